//! Compares building blocks with plain Rust implementations.

use gristmill_tensor::evaluate::{Env, evaluate_all};
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::Tensor;
use gristmill_tensor::{dims, nn};
use gristmill_uop::dtype::Scalar;

/// Returns the outputs of `body` for the input `x`.
fn apply(
    shape: &[usize],
    scalar: Scalar,
    x: &[f64],
    n: usize,
    body: impl for<'g> Fn(&'g Capture, Tensor<'g>) -> Vec<Tensor<'g>>,
) -> Vec<Vec<f64>> {
    let c = Capture::new("test");
    let mut dims: Vec<_> = dims![c.var("n", 1, 512)].to_vec();
    dims.extend(
        shape
            .iter()
            .map(|&d| gristmill_tensor::tensor::Dim::Size(d)),
    );
    let input = c.input("x", &dims, scalar);
    let roots: Vec<_> = body(&c, input).into_iter().map(Tensor::id).collect();
    let env = Env::new().var("n", n as i64).values(0, x);
    evaluate_all(&c.finish().graph, &roots, &env)
        .into_iter()
        .map(|a| a.data)
        .collect()
}

#[test]
fn the_first_of_equals_comes_first() {
    let x = [
        1.0, 3.0, 3.0, 0.0, 3.0, /* second row */ 0.0, 0.0, 0.0, 0.0, 0.0,
    ];
    let y = apply(&[5], Scalar::F32, &x, 2, |_, x| {
        let top = nn::top_k(x, 4);
        vec![nn::rank(x), top.index, top.select(x)]
    });
    assert_eq!(y[0], [3.0, 0.0, 1.0, 4.0, 2.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
    assert_eq!(y[1], [1.0, 2.0, 4.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
    assert_eq!(y[2], [3.0, 3.0, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn scores_that_are_no_numbers_choose_valid_indices() {
    let y = apply(
        &[3],
        Scalar::F32,
        &[f64::NAN, f64::NAN, f64::NAN, 1.0, f64::NAN, 2.0],
        2,
        |_, x| vec![nn::top_k(x, 2).index],
    );
    assert!(y[0].iter().all(|&i| (0.0..3.0).contains(&i)), "{y:?}");
}

#[test]
fn groups_are_as_good_as_their_two_best() {
    // Sums of two: 5, 6, 4; the best single score is in the last group.
    let y = apply(
        &[9],
        Scalar::F32,
        &[3.0, 2.0, 0.0, 3.0, 3.0, -9.0, 4.0, 0.0, -1.0],
        1,
        |_, x| vec![nn::group_limited(x, 3, 2)],
    );
    assert_eq!(y[0][..6], [3.0, 2.0, 0.0, 3.0, 3.0, -9.0]);
    assert!(y[0][6..].iter().all(|&v| v < -1e38));
}

#[test]
fn softplus_does_not_overflow() {
    let y = apply(&[3], Scalar::F32, &[-1000.0, 0.0, 1000.0], 1, |_, x| {
        vec![x.softplus(), x.sigmoid()]
    });
    assert_eq!(y, [vec![0.0, 2f64.ln(), 1000.0], vec![0.0, 0.5, 1.0]]);
}

#[test]
fn tiles_hold_each_slot_once_beside_its_expert() {
    [2, 4].into_iter().for_each(tiles_hold_each_slot);
}

fn tiles_hold_each_slot(height: usize) {
    let (experts, k) = (5usize, 3usize);
    let mut random = 12345u64;
    // At most 48 slots, which are one block, and at most 1,500, which are many.
    for (n, most) in [
        (1usize, 16usize),
        (2, 16),
        (7, 16),
        (16, 16),
        (1, 500),
        (21, 500),
        (64, 500),
        (499, 500),
    ] {
        for spread in [1, 2, 5] {
            let mut next = || {
                random = random
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (random >> 33) as usize % spread
            };
            let index: Vec<f64> = (0..n * k).map(|_| next() as f64).collect();
            let y = apply(&[k], Scalar::I32, &index, n, |c, x| {
                let t = nn::tiles(x, c.var("n", 1, 512), most, experts, height);
                vec![t.count.cast(Scalar::I32), t.expert, t.token, t.row]
            });
            let [count, expert, token, row] = &y[..] else {
                panic!("four results")
            };
            let of = |e: usize| index.iter().filter(|&&i| i as usize == e).count();
            let tiles: usize = (0..experts).map(|e| of(e).div_ceil(height)).sum();
            assert_eq!(count[0] as usize, tiles);
            assert_eq!((expert.len(), token.len()), (tiles, tiles * height));
            let mut taken = vec![false; tiles * height];
            for (slot, &r) in row.iter().enumerate() {
                let r = r as usize;
                assert!(
                    !std::mem::replace(&mut taken[r], true),
                    "row {r} taken twice"
                );
                assert_eq!(token[r] as usize, slot / k);
                assert_eq!(expert[r / height], index[slot]);
            }
        }
    }
}
