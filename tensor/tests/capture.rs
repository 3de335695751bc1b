//! Tests shapes and content keys of captured functions.

use gristmill_compiler::decompose;
use gristmill_tensor::dims;
use gristmill_tensor::function::{Capture, ContentKey};
use gristmill_tensor::nn;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::encoding::Encoding;
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::target::Target;

static A: Encoding = Encoding {
    name: "test_a",
    elements: 32,
    bytes: 18,
    value: |b| b.u8(0),
};
static B: Encoding = Encoding {
    name: "test_b",
    elements: 32,
    bytes: 34,
    value: |b| b.i8(0),
};

fn projection(name: &str, encoding: &'static Encoding, width: usize) -> Function {
    let c = Capture::new(name);
    let x = c.input(name, dims![c.var("n", 1, 8), width], Scalar::F32);
    let w = c.weight("w", &[16, width], encoding);
    c.output("y", x.linear(w));
    c.finish()
}

#[test]
fn a_key_depends_on_the_computation() {
    let key = projection("one", &A, 64).key();
    assert_eq!(key, projection("another", &A, 64).key());
    assert_ne!(key, projection("one", &B, 64).key());
    assert_ne!(key, projection("one", &A, 32).key());
}

#[test]
fn a_format_that_is_described_otherwise_is_another() {
    static OTHER: Encoding = Encoding {
        name: "test_a",
        elements: 32,
        bytes: 18,
        value: |b| b.u8(1),
    };
    assert_ne!(
        projection("one", &A, 64).key(),
        projection("one", &OTHER, 64).key()
    );
}

#[test]
fn nodes_that_nothing_needs_do_not_count() {
    let square = |waste: bool| {
        let c = Capture::new("square");
        let x = c.input("x", dims![4], Scalar::F32);
        if waste {
            let _ = x.exp();
        }
        c.output("y", x * x);
        c.finish().key()
    };
    assert_eq!(square(false), square(true));
}

#[test]
fn dims_meet_like_in_numpy() {
    let c = Capture::new("test");
    let n = c.var("n", 1, 8);
    let x = c.input("x", dims![n, 1, 4], Scalar::F32);
    let y = c.input("y", dims![3, 1], Scalar::F32);
    let sum = x + y;
    assert_eq!(format!("{sum:?}"), "f32 [n, 3, 4]");
    assert_eq!(format!("{:?}", sum * 2.0), "f32 [n, 3, 4]");
    assert_eq!(format!("{:?}", sum.sum(&[0, 2])), "f32 [3]");
}

#[test]
fn constants_keep_their_dims() {
    let c = Capture::new("test");
    let x = c.input("x", dims![4, 4], Scalar::I32);
    assert_eq!(format!("{:?}", x - x), "i32 [4, 4]");
    assert_eq!(
        format!("{:?}", x.equals(x).select(x, 0).lt(0)),
        "bool [4, 4]"
    );
    assert_eq!(
        format!(
            "{:?}",
            c.iota(dims![1, 4], 0).lt(5).cast(Scalar::I32).sum(&[0])
        ),
        "i32 [4]"
    );
}

#[test]
#[should_panic(expected = "dims do not fit: [3, 4] beside [3]")]
fn dims_that_do_not_fit_are_shown() {
    let c = Capture::new("test");
    let _ = c.input("x", dims![3, 4], Scalar::F32) + c.input("y", dims![3], Scalar::F32);
}

#[test]
fn a_state_goes_with_its_last_version() {
    let c = Capture::new("test");
    let pos = c.var("pos", 0, 9);
    let state = c.state("cache", dims![10, 2], Scalar::F32);
    let row = c.input("row", dims![1, 2], Scalar::F32);
    let next = state.assign(row, pos);
    assert_eq!(c.output_state(next), 0);
    c.output("sum", nn::softmax(next).sum(&[0, 1]));
    let f = c.finish();
    assert_eq!(
        f.slots.iter().map(|s| s.kind).collect::<Vec<_>>(),
        [SlotKind::State, SlotKind::Input, SlotKind::Output]
    );
    assert_eq!(f.outputs.iter().map(|o| o.0).collect::<Vec<_>>(), [0, 2]);
    assert!(f.slots[2].dims.is_empty());
}

#[test]
fn a_function_without_integers_means_what_it_says() {
    let exact = Target {
        int8: false,
        ..Target::named("h200")
    };
    assert!(decompose::meaning(&projection("one", &A, 64), &exact, &[]).is_none());
}
