//! Places the stages of a kernel in workgroup memory.

use crate::ir::mma::fragment::alignment;
use crate::lower::bytes_of;
use gristmill_uop::program::When;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op};

/// Returns the offsets of the bodies' stages and the total bytes.
pub fn scratch(g: &Graph, bodies: &[Vec<Id>]) -> (Vec<(Id, usize)>, usize) {
    let is_stage = |&n: &Id| g[n].op == Op::Local;
    let stages: Vec<Vec<Id>> = bodies
        .iter()
        .map(|nests| g.toposort(nests).into_iter().filter(is_stage).collect())
        .collect();
    let mut placed = Vec::new();
    let bytes = place(g, &stages, &mut placed);
    (placed, bytes)
}

/// Bytes of workgroup memory that a launch with stages of `bytes` takes. An exclusive kernel
/// reserves more than half of it, which leaves no room for a second workgroup.
pub fn reserved(bytes: usize, when: &[When], target: &Target) -> usize {
    if when.iter().any(|when| when.exclusive) {
        bytes.max((target.machine.shared_per_workgroup / 2 + 64) & !63)
    } else {
        bytes
    }
}

/// Assigns an offset to each buffer without one and returns the total bytes. A buffer starts at a
/// cache line, or at the alignment of its swizzle.
///
/// It overlaps no buffer that occurs with it in any body: buffers of equal number and size are one
/// node, which may have different neighbours in each body.
pub fn place(g: &Graph, bodies: &[Vec<Id>], placed: &mut Vec<(Id, usize)>) -> usize {
    place_behind(g, bodies, placed, 0)
}

/// Same as [`place`], with all new buffers at or after byte `from`.
pub fn place_behind(
    g: &Graph,
    bodies: &[Vec<Id>],
    placed: &mut Vec<(Id, usize)>,
    from: usize,
) -> usize {
    let beside = |a: Id, b: Id| {
        bodies
            .iter()
            .any(|body| body.contains(&a) && body.contains(&b))
    };
    for &n in bodies.iter().flatten() {
        if placed.iter().any(|p| p.0 == n) {
            continue;
        }
        let taken = placed.iter().filter(|p| beside(p.0, n));
        let mut taken: Vec<(usize, usize)> =
            taken.map(|&(m, at)| (at, at + bytes_of(g, m))).collect();
        taken.sort_unstable();
        let size = bytes_of(g, n);
        let whole = alignment(g, n) as usize;
        let free = |at: usize, &(begin, end): &(usize, usize)| {
            if at + size <= begin {
                at
            } else {
                at.max(end).next_multiple_of(whole)
            }
        };
        placed.push((n, taken.iter().fold(from.next_multiple_of(whole), free)));
    }
    placed
        .iter()
        .map(|&(n, at)| at + bytes_of(g, n))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::{Arg, Node, Scalar};
    use smallvec::smallvec;

    /// Returns a body that fills stages of these (number, size in words) pairs.
    fn body(g: &mut Graph, stages: &[(i64, i64)]) -> Vec<Id> {
        let zero = g.int(0);
        let fill = |&(number, words): &(i64, i64)| {
            let (words, one) = (g.int(words), g.constant(Scalar::F32, 1.0));
            let (dtype, arg) = (Scalar::F32.one(), Arg::Int(number));
            let stage = g.intern(Node {
                op: Op::Local,
                dtype,
                src: smallvec![words],
                arg,
            });
            g.store(stage, zero, one, &[])
        };
        stages.iter().map(fill).collect()
    }

    #[test]
    fn stages_of_one_body_lie_apart() {
        let mut g = Graph::new();
        // The third body shares its second stage with the first body, and its first stage with the
        // second.
        let shared: &[(i64, i64)] = &[(0, 64), (1, 256), (2, 64)];
        let all = [
            &[(0, 16), (1, 256)],
            &[(0, 64), (2, 64)],
            shared,
            &[(3, 32)],
        ];
        let bodies: Vec<Vec<Id>> = all.iter().map(|stages| body(&mut g, stages)).collect();
        let (placed, bytes) = scratch(&g, &bodies);
        let span = |nest: &Id| {
            let stage = g[*nest].src[0];
            let begin = placed.iter().find(|p| p.0 == stage).expect("a place").1;
            begin..begin + 4 * g.int_value(g[stage].src[0]).expect("a size") as usize
        };
        for nests in &bodies {
            for (i, a) in nests.iter().enumerate() {
                let a = span(a);
                assert!(a.end <= bytes && a.start % 64 == 0);
                assert!(
                    nests[..i]
                        .iter()
                        .map(span)
                        .all(|b| a.end <= b.start || b.end <= a.start),
                    "{placed:?}"
                );
            }
        }
        assert_eq!(span(&bodies[3][0]), 0..128, "it is beside none");
    }
}
