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
mod kept;
// Its tests run without the feature.
#[cfg_attr(not(feature = "wgpu"), allow(dead_code))]
mod lists;
#[cfg(feature = "wgpu")]
mod measure;
#[cfg(feature = "wgpu")]
mod memory;
#[cfg(feature = "wgpu")]
mod order;
#[cfg(feature = "wgpu")]
mod pipelines;
#[cfg(feature = "wgpu")]
mod readback;
#[cfg(feature = "wgpu")]
mod ready;
#[cfg(feature = "wgpu")]
mod replay;
#[cfg(feature = "wgpu")]
mod told;

#[cfg(feature = "wgpu")]
pub use adapters::{Limited, adapters, present};
#[cfg(feature = "wgpu")]
pub use device::WgpuDevice;

/// Without the feature there is no adapter.
#[cfg(not(feature = "wgpu"))]
pub fn present() -> bool {
    false
}
