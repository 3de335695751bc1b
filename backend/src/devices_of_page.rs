//! The table of devices of a page, which runs in a browser's tab.

use crate::device_info::DeviceInfo;
use crate::interp;
#[cfg(feature = "wasm")]
use crate::{wasm, wgpu};
use std::sync::Arc;

/// Whether a device is present.
type Presence = fn() -> bool;

/// GPUs in the order in which the best one is looked for, and whether one is present.
pub(super) const GPUS: &[(&str, Presence)] = &[];

/// Device that every page has.
pub(super) const HOST: &str = "wasm";

/// All devices, in the order in which they are listed.
pub const DEVICES: &[DeviceInfo] = &[
    #[cfg(feature = "wasm")]
    DeviceInfo {
        name: "webgpu",
        several: false,
        doc: "the GPU, by the browser's WebGPU: kernels in WGSL",
        dialect: Some(&wgpu::dialect::Wgsl),
        open: |_| Ok(Arc::new(wgpu::page::WebGpuDevice::new()?)),
    },
    #[cfg(feature = "wasm")]
    DeviceInfo {
        name: "wasm",
        several: false,
        doc: "the processor: WebAssembly kernels with SIMD, compiled by the browser",
        dialect: None,
        open: |_| {
            Ok(Arc::new(wasm::WasmDevice::new(
                wasm::page::PageEngine::new(),
            )))
        },
    },
    DeviceInfo {
        name: "interp",
        several: false,
        doc: "the oracle: kernels run in plain Rust, slowly; needs no compiler",
        dialect: None,
        open: |_| Ok(Arc::new(interp::InterpDevice::new())),
    },
];
