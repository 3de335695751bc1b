//! GPUs through wgpu (Vulkan, Metal, Direct3D 12), with kernels in WGSL.
//!
//! A step is a recorded list of dispatches. The device needs the feature `wgpu`; the dialect is
//! always available. The supported and tested adapters are listed in docs/wgpu.

pub mod dialect;

#[cfg(feature = "wgpu")]
mod adapters;
#[cfg(feature = "wgpu")]
mod block_on;
#[cfg(feature = "wgpu")]
mod context;
#[cfg(feature = "wgpu")]
mod device;
#[cfg(feature = "wgpu")]
mod measure;
#[cfg(feature = "wgpu")]
mod memory;
#[cfg(all(target_family = "wasm", feature = "wasm"))]
pub mod page;
#[cfg(feature = "wgpu")]
mod pipeline_cache;
#[cfg(feature = "wgpu")]
mod pipelines;
#[cfg(feature = "wgpu")]
mod readback;
#[cfg(feature = "wgpu")]
mod readback_cache;
#[cfg(feature = "wgpu")]
mod replay;
#[cfg(feature = "wgpu")]
mod subgroup_order;
// Its tests run without the feature.
#[cfg_attr(not(feature = "wgpu"), allow(dead_code))]
mod uniforms;

#[cfg(feature = "wgpu")]
pub use adapters::{Limited, adapters, present};
#[cfg(feature = "wgpu")]
pub use device::WgpuDevice;

/// Returns false: without the feature `wgpu` there is no adapter.
#[cfg(not(feature = "wgpu"))]
pub fn present() -> bool {
    false
}
