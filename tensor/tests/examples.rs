//! Runs the examples on the interpreter and this CPU, and tests lazy tensors across devices.

#[path = "../examples/convolution.rs"]
mod convolution;
#[path = "../examples/custom_format.rs"]
mod custom_format;
#[path = "../examples/custom_kernel.rs"]
mod custom_kernel;
#[path = "../examples/fused_kernel.rs"]
mod fused_kernel;
#[path = "../examples/matmul.rs"]
mod matmul;
#[path = "../examples/softmax.rs"]
mod softmax;

use gristmill_backend::Opened;
use gristmill_backend::cpu::{Cc, CpuDevice, Isa, dialect};
use gristmill_backend::interp::InterpDevice;
use gristmill_runtime::store::Store;
use gristmill_tensor::eager::{self, Tensor};
use gristmill_uop::Scalar;
use std::sync::Arc;

/// This CPU, with the tests' own kernel store.
fn cpu() -> Opened {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let store = Store::open(path, 1 << 30).expect("a store");
    let (isa, cc) = (
        Isa::parse("auto").expect("an instruction set"),
        Cc::find().expect("a C compiler"),
    );
    Opened::new(
        Arc::new(CpuDevice::with(2, isa, cc, store).expect("a cpu")),
        Some(&dialect::C),
    )
}

/// All in one test, because the current device is global to the process.
#[test]
fn examples_run_and_values_outlive_their_device() {
    let interp = || Opened::new(Arc::new(InterpDevice::new()), None);
    for device in [interp, cpu] {
        eager::set_device(device());
        // The second run reads compiled functions from the store, if there is one.
        for _ in 0..2 {
            let sizes = custom_kernel::Sizes {
                layers: 2,
                width: 64,
                heads: 2,
                head: 32,
                inner: 128,
                positions: 5,
            };
            custom_kernel::run(&device(), sizes).expect("a kernel of one's own");
            fused_kernel::run(&device(), [3, 64], 2).expect("what is fused into one");
        }
        let small = matmul::run(8, 24, 5)
            .and_then(|()| softmax::run(3, 17))
            .and_then(|()| custom_format::run(8, 64));
        small
            .and_then(|()| convolution::run([2, 5, 6], 3, 3))
            .expect("the small ones");
    }
    for main in [
        matmul::main,
        softmax::main,
        custom_format::main,
        convolution::main,
        custom_kernel::main,
        fused_kernel::main,
    ] {
        main().expect("an example");
    }
    realized_tensors_are_not_recomputed();
    // Values computed on one device are inputs on the next.
    let computed = (Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]) * 2.0)
        .realize()
        .expect("on the processor");
    eager::set_device(interp());
    assert_eq!(
        computed
            .sum(&[0])
            .to_vec::<f32>()
            .expect("on the interpreter"),
        [8.0, 12.0]
    );
    assert_eq!(eager::device().expect("a device").name(), "interp");
    types_and_shapes();
    assert!(eager::use_device("tpu").is_err());
}

fn realized_tensors_are_not_recomputed() {
    let x = Tensor::from([1.0f32, 2.0, 3.0]);
    let y = (&x + 1.0).realize().expect("computed");
    let (a, b) = (&y * 2.0, -&y);
    eager::realize(&[&a, &b, &a, &y]).expect("computed");
    assert_eq!(a.to_vec::<f32>().expect("read"), [4.0, 6.0, 8.0]);
    assert_eq!(b.to_vec::<f32>().expect("read"), [-2.0, -3.0, -4.0]);
    // Long chains are captured and dropped without recursion.
    let mut sum = x;
    for _ in 0..200 {
        sum = sum + 1.0;
    }
    assert_eq!(
        sum.to_vec::<f32>().expect("computed"),
        [201.0, 202.0, 203.0]
    );
}

fn types_and_shapes() {
    let rows = Tensor::from([[1i32, -2, 3], [4, 5, -6]]);
    assert_eq!(
        (rows.dims(), format!("{rows:?}")),
        (&[2, 3][..], "i32 [2, 3]".into())
    );
    assert_eq!(
        rows.permute(&[1, 0]).to_vec::<i32>().expect("moved"),
        [1, 4, -2, 5, 3, -6]
    );
    assert_eq!(
        rows.gather(&Tensor::from(vec![1u8, 0]))
            .slice(1, 1..3)
            .to_vec::<i32>()
            .expect("gathered"),
        [5, -6, -2, 3]
    );
    let positive = rows.gt(&Tensor::from(0i32));
    assert_eq!(
        positive.to_vec::<bool>().expect("compared"),
        [true, false, true, true, true, false]
    );
    assert_eq!(
        positive
            .select(&rows, &Tensor::from(0i32))
            .sum(&[0, 1])
            .to_vec::<i32>()
            .expect("summed"),
        [13]
    );
    let joined = Tensor::cat(&[&rows, &rows], 1).max(&[1]);
    assert_eq!(
        joined.cast(Scalar::F32).to_vec::<f32>().expect("cast"),
        [3.0, 5.0]
    );
}

#[test]
#[should_panic(expected = "dims do not fit: [2] beside [3]")]
fn shapes_that_do_not_fit_are_shown_where_they_are_written() {
    let _ = Tensor::from([1.0f32, 2.0]) + Tensor::from([1.0f32, 2.0, 3.0]);
}

#[test]
#[should_panic(expected = "elements of f32 [2] are no i32")]
fn numbers_are_of_the_type_that_they_have() {
    let _ = Tensor::from([1.0f32, 2.0]).to_vec::<i32>();
}
