//! Enumerates wgpu adapters, describes them and finds one by name.

use super::block_on::block_on;
use gristmill_runtime::Error;
use gristmill_uop::adapter::{Adapter as Facts, AdapterKind};
use gristmill_uop::costs::Costs;
use std::sync::OnceLock;
use wgpu::{
    Adapter, Backend, Backends, CooperativeMatrixProperties, CooperativeScalarType, DeviceType,
    Features, Instance, InstanceDescriptor, InstanceFlags, Limits,
};

/// Features that kernels use where an adapter supports them.
pub const WANTED: Features = COOPERATIVE
    .union(Features::SHADER_INT64)
    .union(Features::TIMESTAMP_QUERY)
    .union(Features::PIPELINE_CACHE);
/// Features that f16 cooperative matrices require.
pub const COOPERATIVE: Features = Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(Features::SHADER_F16)
    .union(Features::SUBGROUP);
/// Backends that are searched for adapters.
const BACKENDS: Backends = Backends::VULKAN
    .union(Backends::METAL)
    .union(Backends::DX12);

/// Artificial limits on an adapter's features, for tests.
#[derive(Clone, Copy, Default, Debug)]
pub struct Limited {
    /// Maximum bytes of a buffer binding.
    pub largest_binding: Option<u64>,
    /// Maximum bytes of a buffer.
    pub largest_buffer: Option<u64>,
    /// Maximum number of storage buffers of a kernel.
    pub buffers: Option<u32>,
    /// Disables operations of subgroups.
    pub no_subgroups: bool,
    /// Maximum subgroup size in threads to assume.
    pub subgroup: Option<i64>,
    /// Disables cooperative matrices of subgroups.
    pub no_matrices: bool,
    /// Disables timestamp queries of steps.
    pub no_timestamps: bool,
    /// Disables 64-bit integers.
    pub no_long: bool,
    /// Hides the name and kind, so that the speed of the adapter is unknown.
    pub unnamed: bool,
}

impl Limited {
    /// Returns the limits of an adapter, reduced to these.
    pub fn limits(&self, adapter: &Adapter) -> Limits {
        let mut limits = adapter.limits();
        if let Some(bytes) = self.largest_binding {
            limits.max_storage_buffer_binding_size =
                limits.max_storage_buffer_binding_size.min(bytes);
        }
        if let Some(bytes) = self.largest_buffer {
            limits.max_buffer_size = limits.max_buffer_size.min(bytes);
        }
        if let Some(buffers) = self.buffers {
            limits.max_storage_buffers_per_shader_stage =
                limits.max_storage_buffers_per_shader_stage.min(buffers);
        }
        limits
    }
    /// Returns the supported features among the wanted ones.
    pub fn features(&self, adapter: &Adapter) -> Features {
        let mut wanted = WANTED;
        wanted.set(Features::SUBGROUP, !self.no_subgroups);
        wanted.set(Features::EXPERIMENTAL_COOPERATIVE_MATRIX, !self.no_matrices);
        wanted.set(Features::TIMESTAMP_QUERY, !self.no_timestamps);
        wanted.set(Features::SHADER_INT64, !self.no_long);
        wanted & adapter.features()
    }
}

fn instance() -> &'static Instance {
    static INSTANCE: OnceLock<Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        let descriptor = InstanceDescriptor {
            backends: BACKENDS,
            flags: InstanceFlags::empty(),
            ..InstanceDescriptor::new_without_display_handle()
        };
        Instance::new(descriptor)
    })
}

/// Returns the adapters: discrete GPUs first, software rasterisers last.
pub fn adapters() -> Vec<Adapter> {
    let mut all = block_on(instance().enumerate_adapters(BACKENDS));
    all.sort_by_key(|adapter| match adapter.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu | DeviceType::Other => 2,
        DeviceType::Cpu => 3,
    });
    all
}

/// Returns whether there is a hardware adapter.
pub fn present() -> bool {
    adapters()
        .first()
        .is_some_and(|adapter| adapter.get_info().device_type != DeviceType::Cpu)
}

/// Finds an adapter by index, or by a part of its name, ignoring case.
pub fn find(number: usize, name: Option<&str>) -> Result<(usize, Adapter), Error> {
    let all = adapters();
    if all.is_empty() {
        return Err(Error::Lacking {
            device: "wgpu".into(),
            message: "no driver of Vulkan, Metal or Direct3D 12 is here".into(),
            hint: "install the GPU's driver (Debian: apt install mesa-vulkan-drivers, which also has a Vulkan for processors)"
                .into(),
        });
    }
    let names: Vec<String> = all
        .iter()
        .enumerate()
        .map(|(i, adapter)| format!("wgpu:{i} {}", adapter.get_info().name))
        .collect();
    let is_it = |i: usize, adapter: &Adapter| match name {
        Some(name) => adapter
            .get_info()
            .name
            .to_lowercase()
            .contains(&name.to_lowercase()),
        None => i == number,
    };
    let found = all
        .into_iter()
        .enumerate()
        .find(|(i, adapter)| is_it(*i, adapter));
    found.ok_or_else(|| {
        let wanted = name.map_or_else(|| number.to_string(), str::to_owned);
        Error::NoDevice(
            format!("wgpu:{wanted}"),
            format!("the adapters are {}", names.join(", ")),
        )
    })
}

/// Returns the side of the square f16 cooperative matrices with f32 accumulators; `None` without
/// them.
fn cooperative(adapter: &Adapter) -> Option<i64> {
    let all = adapter.cooperative_matrix_properties();
    let has = |side: u32| {
        let fits = |m: &CooperativeMatrixProperties| {
            [m.m_size, m.n_size, m.k_size] == [side; 3]
                && [m.ab_type, m.cr_type]
                    == [CooperativeScalarType::F16, CooperativeScalarType::F32]
        };
        all.iter().any(fits)
    };
    [16, 8].into_iter().find(|&side| has(side)).map(i64::from)
}

/// Describes an adapter with these features and limits.
pub fn facts(adapter: &Adapter, features: Features, limits: &Limits) -> Facts {
    let info = adapter.get_info();
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    // Offsets of bindings must suit storage buffers and 16-byte loads.
    let alignment = limits.min_storage_buffer_offset_alignment.max(16) as usize;
    Facts {
        kind: match info.device_type {
            DeviceType::DiscreteGpu => AdapterKind::Discrete,
            DeviceType::Cpu => AdapterKind::Software(cores()),
            _ => AdapterKind::Integrated,
        },
        cooperative: features
            .contains(COOPERATIVE)
            .then(|| cooperative(adapter))
            .flatten(),
        vector_parts: info.backend == Backend::Vulkan,
        widest: info.subgroup_max_size.max(1).into(),
        subgroup: features
            .contains(Features::SUBGROUP)
            .then_some(info.subgroup_min_size.max(1).into()),
        threads: limits
            .max_compute_invocations_per_workgroup
            .min(limits.max_compute_workgroup_size_x) as usize,
        shared: limits.max_compute_workgroup_storage_size as usize,
        // Offsets are signed 32-bit integers.
        largest_binding: limits.max_storage_buffer_binding_size.min(i32::MAX as u64) as usize,
        bindings: limits.max_storage_buffers_per_shader_stage as usize,
        alignment,
        measured: Costs::default(),
        name: info.name,
    }
}
