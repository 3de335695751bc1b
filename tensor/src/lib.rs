//! Lazy tensors, functions, the schedule cache and the jit: Gristmill's compiler as a library.
//!
//! # A first product
//!
//! An [eager `Tensor`](eager::Tensor) records expressions lazily and computes its values on demand:
//!
//! ```
//! use gristmill_tensor::eager::{self, Tensor};
//! # fn main() -> Result<(), gristmill_runtime::Error> {
//! // The interpreter needs neither a C compiler nor a GPU; `cpu` and `cuda` are faster.
//! // Without this call, the best available device is used.
//! eager::use_device("interp")?;
//!
//! let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
//! let w = Tensor::from([[0.5f32], [0.25]]);
//! let y = x.matmul(&w) + 1.0;
//! assert_eq!(y.dims(), [2, 1]);
//! // So far there is only a graph. `to_vec` plans, fuses, compiles and runs it as one function.
//! assert_eq!(y.to_vec::<f32>()?, [2.0, 3.5]);
//!
//! // Several tensors at once: common subexpressions are computed once, and values are kept.
//! let e = (&x - x.max(&[1]).unsqueeze(1)).exp();
//! let softmax = &e / e.sum(&[1]).unsqueeze(1);
//! let entropy = -(&softmax * softmax.log()).sum(&[1]);
//! eager::realize(&[&softmax, &entropy])?;
//! let rows = softmax.sum(&[1]).to_vec::<f32>()?;
//! assert!(rows.iter().all(|sum| (sum - 1.0).abs() < 1e-6));
//!
//! // Any function over captured tensors can be applied to eager tensors.
//! use gristmill_tensor::nn;
//! let weight = Tensor::from([1.0f32, 2.0]);
//! let normed = Tensor::from_fn([&x, &weight], |_, [x, w]| nn::rms_norm(x, w, 0.0));
//! assert_eq!(normed.dims(), [2, 2]);
//!
//! // `gather` selects rows by index; `scatter_add` adds rows at indices and is its gradient.
//! let numbers = Tensor::from(vec![1i32, 1, 0]);
//! let chosen = x.gather(&numbers);
//! let added = Tensor::from([[0.0f32, 0.0], [0.0, 0.0]]).scatter_add(&chosen, &numbers);
//! assert_eq!(added.to_vec::<f32>()?, [1.0, 2.0, 6.0, 8.0]);
//!
//! // A block-quantised format is a description of one block: here an f32 scale and four i8 codes.
//! // Every device derives its dequantisation and its matrix products from that description.
//! use gristmill_uop::Encoding;
//! static BYTES: Encoding = Encoding {
//!     name: "bytes",
//!     elements: 4,
//!     bytes: 8,
//!     value: |b| b.i8(b.k() + 4) * b.f32(0),
//! };
//! let block = |scale: f32, codes: [i8; 4]| {
//!     scale.to_le_bytes().into_iter().chain(codes.map(|c| c as u8))
//! };
//! let packed = block(0.5, [1, -2, 3, 4]).chain(block(2.0, [1, 1, 1, 1])).collect();
//! let matrix = Tensor::packed(&BYTES, &[2, 4], packed);
//! let product = Tensor::from([[1.0f32, 1.0, 1.0, 1.0]]).linear(&matrix);
//! assert_eq!(product.to_vec::<f32>()?, [3.0, 8.0]);
//!
//! // Below the eager API are functions: captured once, with lengths that vary within bounds and
//! // states that are updated in place, and replayed with no host work except kernel launches.
//! // This running sum keeps its state between calls:
//! use gristmill_runtime::Memory;
//! use gristmill_tensor::jit::{Call, Jit};
//! use gristmill_tensor::{dims, function::Capture};
//! use gristmill_uop::Scalar;
//! let c = Capture::new("running_sum");
//! let n = c.var("n", 1, 8);
//! let sum = c.state("sum", dims![1], Scalar::F32);
//! let x = c.input("x", dims![n], Scalar::F32);
//! c.output_state(sum.assign(sum + x.sum(&[0]).unsqueeze(0), c.int(0)));
//! let options = gristmill_backend::Options::default();
//! let mut jit = Jit::new(gristmill_backend::open("interp", &options)?);
//! let ready = jit.prepare(&[c.finish().into()], &|_done, _all| ())?.remove(0);
//! let device = jit.device().clone();
//! let (state, input) = (device.alloc(4, Memory::State)?, device.alloc(32, Memory::Scratch)?);
//! let arena = device.alloc(Jit::arena(&[ready.clone()]).max(64), Memory::Scratch)?;
//! let call = Call { function: ready, args: vec![state.clone(), input.clone()] };
//! let mut step = jit.capture(&[call], &arena)?;
//! device.write(&input, 0, &[1.0f32, 2.0, 3.0].map(f32::to_le_bytes).concat())?;
//! step.replay(&[("n", 2)])?;
//! step.replay(&[("n", 3)])?;
//! let mut bytes = [0; 4];
//! device.read(&state, 0, &mut bytes)?;
//! assert_eq!(f32::from_le_bytes(bytes), 3.0 + 6.0);
//!
//! // A custom kernel has a text per device language, and a definition in tensors for devices
//! // without a text. This one reads elements by a function, `x(i)`, and writes results by another,
//! // `y(i, value)`, so that adjacent elementwise ops may be fused into its launch.
//! use gristmill_uop::custom::CustomKernel;
//! static CUBE: CustomKernel = CustomKernel {
//!     name: "cube",
//!     texts: &[("c", "for (i64 i = first; i < end; i++) { f32 v = x(i); y(i, v * v * v); }")],
//!     output: "y",
//!     arguments: &["x"],
//!     accessors: &[("x", 1), ("y", 1)],
//!     operations: 2,
//! };
//! let c = Capture::new("cubes");
//! let x = c.input("x", dims![8], Scalar::F32) * 2.0;
//! c.output("y", (x * x * x).computed_by(&CUBE, c.int(8), &[x]) + 1.0);
//! let ready = jit.prepare(&[c.finish().into()], &|_done, _all| ())?.remove(0);
//! let (x, y) = (device.alloc(32, Memory::Scratch)?, device.alloc(32, Memory::Scratch)?);
//! device.write(&x, 0, &[0.5f32; 8].map(f32::to_le_bytes).concat())?;
//! jit.capture(&[Call { function: ready, args: vec![x, y.clone()] }], &arena)?.replay(&[])?;
//! device.read(&y, 0, &mut bytes)?;
//! assert_eq!(f32::from_le_bytes(bytes), 1.0 + 1.0);
//! # Ok(())
//! # }
//! ```
//!
//! More in `tensor/examples`: matrix product, softmax, convolution, a custom format, custom
//! kernels.
//!
//! # Where to look
//!
//! - [`eager`]: tensors that have values.
//! - [`tensor`] and [`function`]: tensors of a captured function, and the capture. [`nn`]: neural
//!   network blocks.
//! - [`jit`]: compiles functions, binds calls to buffers, captures and replays steps.
//! - [`evaluate`]: the f64 reference of a function, without a schedule; all devices are tested
//!   against it.

#[cfg(test)]
mod build_id;
mod capture;
pub mod eager;
pub mod evaluate;
pub mod function;
mod function_store;
pub mod grad;
pub mod jit;
pub mod nn;
pub mod packer;
pub mod partition;
pub mod tensor;
