//! Every GPU that Vulkan, Metal or Direct3D 12 reaches, through wgpu: kernels in WGSL, a step as a recorded list of dispatches.
//!
//! The device is there with the feature `wgpu`; the dialect always. Which adapters there are, and what was checked on which, is docs/wgpu.

pub mod dialect;

#[cfg(feature = "wgpu")]
mod adapters;
#[cfg(feature = "wgpu")]
mod context;
#[cfg(feature = "wgpu")]
mod device;
#[cfg(feature = "wgpu")]
mod pipeline_cache;
// Its tests run without the feature.
#[cfg(feature = "wgpu")]
mod block_on;
#[cfg(feature = "wgpu")]
mod measure;
#[cfg(feature = "wgpu")]
mod memory;
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
#[cfg_attr(not(feature = "wgpu"), allow(dead_code))]
mod uniforms;

#[cfg(feature = "wgpu")]
pub use adapters::{Limited, adapters, present};
#[cfg(feature = "wgpu")]
pub use device::WgpuDevice;

/// Without the feature there is no adapter.
#[cfg(not(feature = "wgpu"))]
pub fn present() -> bool {
    false
}
