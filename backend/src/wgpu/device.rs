//! An adapter as a device.

use super::adapters::{Limited, adapters, facts, find};
use super::context::WgpuContext;
use super::measure::costs;
use super::memory::{WgpuCopies, alloc};
use super::pipeline_cache::CachedPipelines;
use super::pipelines::{Pipeline, PipelineBuilder};
use super::replay::WgpuReplay;
use super::subgroup_order::in_order;
use crate::cost_store::CostStore as Measured;
use crate::parallel::{cores, each};
use crate::text::{KernelText, Libraries};
use crate::tuning;
use gristmill_runtime::lease::Use;
use gristmill_runtime::staging::{self, StagedWrite};
use gristmill_runtime::store::Store;
use gristmill_runtime::{Buffer, Device, DeviceId, Error, Kernel, Launch, LoadedProgram, Memory, Replay};
use gristmill_uop::adapter::{Adapter as Facts, AdapterKind};
use gristmill_uop::costs::Costs;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::sync::Arc;
use std::time::Duration;
use wgpu::{AdapterInfo, DeviceType, Features};

/// An adapter.
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
    /// The adapter of that number, or with that in its name, with the user's store.
    pub fn new(number: usize, name: Option<&str>) -> Result<WgpuDevice, Error> {
        WgpuDevice::with((number, name), Store::user()?, &Limited::default())
    }

    /// That adapter with this store, as if it had no more than that.
    pub fn with((number, name): (usize, Option<&str>), store: Store, limited: &Limited) -> Result<WgpuDevice, Error> {
        let (number, adapter) = find(number, name)?;
        let open = |limited: &Limited, store: Store| -> Result<WgpuDevice, Error> {
            let context = Arc::new(WgpuContext::open(&adapter, limited)?);
            let told = facts(&adapter, context.features, &context.limits);
            let subgroup = told.subgroup.map(|threads| limited.subgroup.map_or(threads, |most| threads.min(most)));
            let facts = match limited.unnamed {
                true => Facts { subgroup, name: "adapter".into(), kind: AdapterKind::Discrete, ..told },
                false => Facts { subgroup, ..told },
            };
            let info = adapter.get_info();
            // Of the tuner's parameters a GPU has none that it reads.
            let (_, plans) = tuning::kept(&store, &words(&info));
            Ok(WgpuDevice {
                name: if number == 0 { "wgpu".into() } else { format!("wgpu:{number}") },
                target: Target { plans, ..Target::new(facts.machine()) },
                info,
                facts,
                copies: WgpuCopies::default(),
                loaded: Libraries::default(),
                store,
                context,
            })
        };
        let device = open(limited, store)?;
        match device.target.machine.folds > 1 && !in_order(&device)? {
            true => open(&Limited { no_subgroups: true, ..*limited }, device.store)?.measured(),
            false => device.measured(),
        }
    }

    /// As plans are made for it: of an adapter whose name says nothing with what it reads and computes a second, kept or measured now.
    fn measured(self) -> Result<WgpuDevice, Error> {
        if self.facts.is_known() {
            return Ok(self);
        }
        let measured = self.kept().read_or_measure(|| costs(&self))?.unwrap_or_default();
        let machine = Facts { measured, ..self.facts.clone() }.machine();
        Ok(WgpuDevice { target: Target { plans: self.target.plans, ..Target::new(machine) }, ..self })
    }

    /// What was measured of it, as it is kept.
    fn kept(&self) -> Measured<'_> {
        Measured::new(&self.store, &format!("{} by {}", self.facts.name, self.info.backend), &self.context.driver)
    }

    /// A wait for a step or a copy that takes longer than this (two minutes unless said) makes the device [lost](Error::Lost).
    pub fn with_wait_limit(self, limit: Duration) -> WgpuDevice {
        self.context.limit_waits(limit);
        self
    }
}

/// The adapter in words, as what a tuner finds is kept for it.
fn words(info: &AdapterInfo) -> String {
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
    /// Not of a program, which takes the host's cores; and a choice of tokens on the device takes integers of 64 bits.
    fn overlaps(&self) -> bool {
        self.info.device_type != DeviceType::Cpu && self.context.features.contains(Features::SHADER_INT64)
    }
    fn describe(&self) -> Vec<String> {
        let (info, limits, machine) = (&self.info, &self.context.limits, &self.target.machine);
        let has = |feature, name: &'static str| self.context.features.contains(feature).then_some(name);
        let features = [
            has(Features::SUBGROUP, "subgroups"),
            has(Features::SHADER_INT64, "integers of 64 bits"),
            has(Features::TIMESTAMP_QUERY, "timestamps"),
            has(Features::PIPELINE_CACHE, "compiled kernels that are kept"),
        ];
        let matrices = machine.tile_fragment().map(|of| format!("matrices of {} by {} halves", of.rows, of.columns));
        let features: Vec<String> = features.into_iter().flatten().map(String::from).chain(matrices).collect();
        let others = adapters().into_iter().enumerate().map(|(i, adapter)| {
            let info = adapter.get_info();
            format!("wgpu:{i} is {}, {:?}, reached by {}", info.name, info.device_type, info.backend)
        });
        let lines = vec![
            format!("{}, {:?} by {} {}", info.name, info.device_type, info.driver, info.driver_info),
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
            tuning::describe(&self.store, &words(info), &self.target.plans),
        ];
        let measured = match self.facts.kind {
            AdapterKind::Software(_) => vec![],
            _ => {
                let unknown = ["bandwidth and operations as measured, others guessed", "guessed"];
                self.kept().describe(machine, (!self.facts.is_known()).then_some(unknown)).into()
            }
        };
        lines.into_iter().chain(measured).chain(others).collect()
    }
    /// Not of a program: that is as fast as the processor.
    fn measure(&self) -> Result<Option<Costs>, Error> {
        match self.facts.kind {
            AdapterKind::Software(_) => Ok(None),
            _ => self.kept().renew(|| costs(self)).map(Some),
        }
    }
    fn tuned_as(&self) -> Option<String> {
        Some(words(&self.info))
    }
    fn store(&self) -> Option<&Store> {
        Some(&self.store)
    }
    fn warnings(&self) -> Vec<Error> {
        self.store.warnings()
    }
    /// No interface tells: of an adapter on the processor's memory that is the processor's.
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
    /// Behind the steps in flight: new bytes.
    fn read_settled(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        self.copies.read(&self.context, from, offset, data)
    }
    fn stage<'a>(&'a self, to: &Buffer, offset: usize, len: usize) -> Result<Box<dyn StagedWrite + 'a>, Error> {
        staging::through(self, to, offset, len)
    }
    fn load(&self, programs: &[Program], progress: &dyn Fn(usize, usize)) -> Result<Vec<Arc<dyn Kernel>>, Error> {
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
        let maker = PipelineBuilder { context: &self.context, piece: self.target.machine.piece(), kept: &kept };
        let make = |i: usize| Pipeline::new(&maker, missing[i], program(missing[i]));
        each(missing.len(), cores(), make, |i, pipeline| {
            pipelines.insert(missing[i].key, Arc::new(Arc::new(pipeline)));
            done += 1;
            progress(done, total);
            Ok(())
        })?;
        kept.store(&self.store);
        self.loaded.keep(&pipelines);
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
