//! The [`Device`] implementation for wgpu adapters.

use super::adapters::{Limited, adapters, facts, find};
use super::context::WgpuContext;
use super::measure::costs;
use super::memory::{WgpuCopies, alloc};
use super::pipeline_cache::CachedPipelines;
use super::pipelines::{Pipeline, PipelineBuilder};
use super::replay::WgpuReplay;
use super::subgroup_order::subgroups_in_order;
use crate::cost_store::CostStore as Measured;
use crate::parallel::{cores, parallel_for};
use crate::text::{KernelText, Libraries};
use crate::tuning;
use gristmill_runtime::lease::Use;
use gristmill_runtime::staging::{self, StagedWrite};
use gristmill_runtime::store::Store;
use gristmill_runtime::{
    Buffer, Device, DeviceId, Error, Kernel, Launch, LoadedProgram, Memory, Replay,
};
use gristmill_uop::adapter::{Adapter as Facts, AdapterKind};
use gristmill_uop::costs::Costs;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::sync::Arc;
use std::time::Duration;
use wgpu::{AdapterInfo, DeviceType, Features};

/// A wgpu adapter as a device.
pub struct WgpuDevice {
    name: String,
    info: AdapterInfo,
    facts: Facts,
    context: Arc<WgpuContext>,
    target: Target,
    copies: WgpuCopies,
    store: Store,
    loaded: Libraries<Arc<Pipeline>>,
}

impl WgpuDevice {
    /// Opens the adapter with that index, or with `name` in its name, with the user's store.
    pub fn new(number: usize, name: Option<&str>) -> Result<WgpuDevice, Error> {
        WgpuDevice::with((number, name), Store::user()?, &Limited::default())
    }

    /// Opens an adapter with this store and artificial limits.
    pub fn with(
        (number, name): (usize, Option<&str>),
        store: Store,
        limited: &Limited,
    ) -> Result<WgpuDevice, Error> {
        let (number, adapter) = find(number, name)?;
        let open = |limited: &Limited, store: Store| -> Result<WgpuDevice, Error> {
            let context = Arc::new(WgpuContext::open(&adapter, limited)?);
            let told = facts(&adapter, context.features, &context.limits);
            let subgroup = told
                .subgroup
                .map(|threads| limited.subgroup.map_or(threads, |most| threads.min(most)));
            let facts = match limited.unnamed {
                true => Facts {
                    subgroup,
                    name: "adapter".into(),
                    kind: AdapterKind::Discrete,
                    ..told
                },
                false => Facts { subgroup, ..told },
            };
            let info = adapter.get_info();
            // GPUs use none of the tuner's parameters, only plans.
            let (_, plans) = tuning::load(&store, &description(&info));
            Ok(WgpuDevice {
                name: if number == 0 {
                    "wgpu".into()
                } else {
                    format!("wgpu:{number}")
                },
                target: Target {
                    plans,
                    ..Target::new(facts.machine())
                },
                info,
                facts,
                copies: WgpuCopies::default(),
                loaded: Libraries::default(),
                store,
                context,
            })
        };
        let device = open(limited, store)?;
        match device.target.machine.folds > 1 && !subgroups_in_order(&device)? {
            true => open(
                &Limited {
                    no_subgroups: true,
                    ..*limited
                },
                device.store,
            )?
            .measured(),
            false => device.measured(),
        }
    }

    /// Adds measured bandwidth and operations to the target if the adapter's name is unknown.
    fn measured(self) -> Result<WgpuDevice, Error> {
        if self.facts.is_known() {
            return Ok(self);
        }
        let measured = self
            .cost_store()
            .read_or_measure(|| costs(&self))?
            .unwrap_or_default();
        let machine = Facts {
            measured,
            ..self.facts.clone()
        }
        .machine();
        Ok(WgpuDevice {
            target: Target {
                plans: self.target.plans,
                ..Target::new(machine)
            },
            ..self
        })
    }

    /// Returns the entry of measured costs.
    fn cost_store(&self) -> Measured<'_> {
        Measured::new(
            &self.store,
            &format!("{} by {}", self.facts.name, self.info.backend),
            &self.context.driver,
        )
    }

    /// Sets the timeout of waits for steps and copies, two minutes by default.
    ///
    /// After a timeout the device is [lost](Error::Lost).
    pub fn with_wait_limit(self, limit: Duration) -> WgpuDevice {
        self.context.limit_waits(limit);
        self
    }
}

/// Returns the text that identifies the adapter for tuning.
fn description(info: &AdapterInfo) -> String {
    format!("{} by {}", info.name, info.backend)
}

impl Device for WgpuDevice {
    fn name(&self) -> &str {
        &self.name
    }
    fn id(&self) -> DeviceId {
        self.context.owner.id()
    }
    fn target(&self) -> &Target {
        &self.target
    }
    /// False for software rasterisers, which use the host's cores, and without 64-bit integers,
    /// which sampling on the device needs.
    fn overlaps(&self) -> bool {
        self.info.device_type != DeviceType::Cpu
            && self.context.features.contains(Features::SHADER_INT64)
    }
    fn describe(&self) -> Vec<String> {
        let (info, limits, machine) = (&self.info, &self.context.limits, &self.target.machine);
        let has =
            |feature, name: &'static str| self.context.features.contains(feature).then_some(name);
        let features = [
            has(Features::SUBGROUP, "subgroups"),
            has(Features::SHADER_INT64, "integers of 64 bits"),
            has(Features::TIMESTAMP_QUERY, "timestamps"),
            has(Features::PIPELINE_CACHE, "compiled kernels that are kept"),
        ];
        let matrices = machine
            .tile_fragment()
            .map(|of| format!("matrices of {} by {} halves", of.rows, of.columns));
        let features: Vec<String> = features
            .into_iter()
            .flatten()
            .map(String::from)
            .chain(matrices)
            .collect();
        let others = adapters().into_iter().enumerate().map(|(i, adapter)| {
            let info = adapter.get_info();
            format!(
                "wgpu:{i} is {}, {:?}, reached by {}",
                info.name, info.device_type, info.backend
            )
        });
        let lines = vec![
            format!(
                "{}, {:?} by {} {}",
                info.name, info.device_type, info.driver, info.driver_info
            ),
            format!(
                "reached by {}; {}; subgroups of {} to {} threads",
                info.backend,
                features.join(", "),
                info.subgroup_min_size,
                info.subgroup_max_size
            ),
            format!(
                "buffers of {} MB, {} a kernel; workgroups of {} threads share {} KiB",
                machine.largest_binding / 1_000_000,
                limits.max_storage_buffers_per_shader_stage,
                limits.max_compute_invocations_per_workgroup,
                machine.shared_per_workgroup >> 10
            ),
            tuning::describe(&self.store, &description(info), &self.target.plans),
        ];
        let measured = match self.facts.kind {
            AdapterKind::Software(_) => vec![],
            _ => {
                let unknown = [
                    "bandwidth and operations as measured, others guessed",
                    "guessed",
                ];
                self.cost_store()
                    .describe(machine, (!self.facts.is_known()).then_some(unknown))
                    .into()
            }
        };
        lines.into_iter().chain(measured).chain(others).collect()
    }
    /// A software rasteriser is not measured: it is as fast as the CPU.
    fn measure(&self) -> Result<Option<Costs>, Error> {
        match self.facts.kind {
            AdapterKind::Software(_) => Ok(None),
            _ => self.cost_store().renew(|| costs(self)).map(Some),
        }
    }
    fn measured(&self) -> Option<Costs> {
        self.cost_store().read()
    }
    fn tuned_as(&self) -> Option<String> {
        Some(description(&self.info))
    }
    fn store(&self) -> Option<&Store> {
        Some(&self.store)
    }
    fn warnings(&self) -> Vec<Error> {
        self.store.warnings()
    }
    /// No backend reports free memory; an integrated adapter uses the host's.
    fn available(&self) -> Option<u64> {
        match self.info.device_type {
            DeviceType::DiscreteGpu => None,
            _ => gristmill_runtime::memory::available(),
        }
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        alloc(&self.context, bytes, memory)
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        to.check_device("write", self.id())?;
        let _lease = to.lease("write", offset, data.len(), Use::Write)?;
        self.copies.write(&self.context, to, offset, data)
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        from.check_device("read", self.id())?;
        let _lease = from.lease("read", offset, data.len(), Use::Read)?;
        self.copies.read(&self.context, from, offset, data)
    }
    /// The copy is queued after the steps in flight and waits for them.
    fn read_settled(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        self.copies.read(&self.context, from, offset, data)
    }
    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn StagedWrite + 'a>, Error> {
        staging::through(self, to, offset, len)
    }
    fn load(
        &self,
        programs: &[Program],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        let texts = KernelText::all(programs)?;
        let (mut pipelines, missing) = self.loaded.find(&texts);
        let mut done = pipelines.len();
        let total = done + missing.len();
        progress(done, total);
        let program = |text: &KernelText| {
            let found = texts.iter().position(|other| other.key == text.key);
            &programs[found.expect("a text of one of the programs")]
        };
        let kept = CachedPipelines::new(&self.context, &self.store, &missing)?;
        let maker = PipelineBuilder {
            context: &self.context,
            piece: self.target.machine.max_binding_chunk(),
            kept: &kept,
        };
        let make = |i: usize| Pipeline::new(&maker, missing[i], program(missing[i]));
        parallel_for(missing.len(), cores(), make, |i, pipeline| {
            pipelines.insert(missing[i].key, Arc::new(Arc::new(pipeline)));
            done += 1;
            progress(done, total);
            Ok(())
        })?;
        kept.store(&self.store);
        self.loaded.remember(&pipelines);
        let kernel = |(text, program): (&KernelText, &Program)| -> Arc<dyn Kernel> {
            let pipeline: Arc<Pipeline> = (*pipelines[&text.key]).clone();
            Arc::new(LoadedProgram::new(program.clone(), self.id(), pipeline))
        };
        Ok(texts.iter().zip(programs).map(kernel).collect())
    }
    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        Ok(Box::new(WgpuReplay::new(self.context.clone(), launches)?))
    }
}
