//! The table of devices.

use crate::device_info::DeviceInfo;
use crate::{cpu, cuda, interp, null, wgpu};
use std::sync::Arc;

/// Whether a device is present.
type Presence = fn() -> bool;

/// GPUs in the order in which the best one is looked for, and whether one is present.
pub(super) const GPUS: &[(&str, Presence)] = &[("cuda", cuda::present), ("wgpu", wgpu::present)];

/// Device that every machine has.
pub(super) const HOST: &str = "cpu";

/// All devices, in the order in which they are listed.
pub const DEVICES: &[DeviceInfo] = &[
    DeviceInfo {
        name: "cpu",
        several: false,
        doc: "the processor: C kernels compiled by this machine's compiler",
        dialect: Some(&cpu::dialect::C),
        open: |options| {
            Ok(Arc::new(cpu::CpuDevice::new(
                options.threads,
                &options.isa,
                options.quick,
            )?))
        },
    },
    DeviceInfo {
        name: "cuda",
        several: true,
        doc: "an NVIDIA GPU, or `cuda:N` for one of several: CUDA C kernels compiled by NVRTC",
        dialect: Some(&cuda::dialect::Cuda),
        open: |options| Ok(Arc::new(cuda::CudaDevice::new(options.number)?)),
    },
    #[cfg(feature = "wgpu")]
    DeviceInfo {
        name: "wgpu",
        several: true,
        doc: "any GPU, by Vulkan, Metal or Direct3D 12, or `wgpu:N`, `wgpu:NAME` for one of several: kernels in WGSL",
        dialect: Some(&wgpu::dialect::Wgsl),
        open: |options| {
            Ok(Arc::new(wgpu::WgpuDevice::new(
                options.number,
                options.adapter.as_deref(),
            )?))
        },
    },
    DeviceInfo {
        name: "interp",
        several: false,
        doc: "the oracle: kernels run in plain Rust, slowly; needs no compiler",
        dialect: None,
        open: |_| Ok(Arc::new(interp::InterpDevice::new())),
    },
    DeviceInfo {
        name: "null",
        several: false,
        doc: "runs nothing; scheduled as for this processor",
        dialect: Some(&cpu::dialect::C),
        open: |options| {
            Ok(Arc::new(null::NullDevice::new(
                "null",
                cpu::Isa::named(&options.isa)?.target(),
            )))
        },
    },
    DeviceInfo {
        name: "null:gpu",
        several: false,
        doc: "runs nothing; scheduled as for an H200, or `null:NAME` for another GPU",
        dialect: Some(&cuda::dialect::Cuda),
        open: |options| Ok(Arc::new(null::NullDevice::for_gpu(options.machine))),
    },
    DeviceInfo {
        name: "null:wgpu",
        several: false,
        doc: "runs nothing; scheduled as for an H200 through Vulkan, or `null:NAME` for a GPU of another vendor's",
        dialect: Some(&wgpu::dialect::Wgsl),
        open: |options| Ok(Arc::new(null::NullDevice::for_adapter(options.machine))),
    },
];
