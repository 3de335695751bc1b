//! The [`Device`] implementation for the CPU.

use super::cc::{Cc, QUICK_FLAG};
use super::code_index::CodeIndex;
use super::isa::Isa;
use super::measure;
use super::memory::{Allocator, huge_pages};
use super::processor::machine;
use super::replay::CpuReplay;
use super::team::{MAX_WORKERS, Team};
use super::unit::{CpuCode, LoadedUnit, Unit, partition};
use crate::cost_store::CostStore;
use crate::parallel::{cores, parallel_for};
use crate::text::{KernelText, Libraries};
use crate::tuning;
use gristmill_runtime::lease::{Order, Owner};
use gristmill_runtime::staging::{self, StagedWrite};
use gristmill_runtime::store::{Key, Store};
use gristmill_runtime::{
    Buffer, Device, DeviceId, Error, Kernel, Launch, LoadedProgram, Memory, Replay, memory,
};
use gristmill_uop::costs::Costs;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The CPU as a device.
pub struct CpuDevice {
    owner: Owner,
    isa: Isa,
    target: Target,
    prelude: String,
    cc: Cc,
    store: Store,
    team: Arc<Team>,
    allocator: Allocator,
    /// Schedules share compiled kernels even if their units differ.
    loaded: Libraries<LoadedUnit>,
    compiled: AtomicUsize,
    /// Held while the index of kernels is saved, as loads on several threads save to one entry.
    saving: Mutex<()>,
}

impl CpuDevice {
    /// Opens the CPU with `threads` workers and an instruction set (a name or `auto`).
    ///
    /// None means all cores of the process. It uses the user's store and C compiler, with
    /// [`QUICK_FLAG`] if `quick`. `GRISTMILL_PIN=1` pins workers to cores.
    pub fn new(threads: Option<usize>, isa: &str, quick: bool) -> Result<CpuDevice, Error> {
        // Cheap checks first.
        let (threads, isa) = (team_size(threads)?, Isa::parse(isa)?);
        let store = Store::user()?;
        let cc = Cc::find_or_remember(&store)?;
        CpuDevice::with(
            threads,
            isa,
            if quick { cc.with_flag(QUICK_FLAG) } else { cc },
            store,
        )
    }

    /// Opens the CPU with this compiler and store.
    pub fn with(threads: usize, isa: Isa, cc: Cc, store: Store) -> Result<CpuDevice, Error> {
        let pin = std::env::var("GRISTMILL_PIN").is_ok_and(|v| !v.is_empty() && v != "0");
        let (tuning, plans) = tuning::load(&store, &machine(isa));
        let owner = Owner::new();
        Ok(CpuDevice {
            isa,
            target: Target {
                tuning,
                plans,
                ..isa.target()
            },
            prelude: super::dialect::prelude(),
            cc,
            store,
            team: Arc::new(Team::new(team_size(Some(threads))?, pin)?),
            allocator: Allocator::new(&owner),
            owner,
            loaded: Libraries::default(),
            compiled: AtomicUsize::new(0),
            saving: Mutex::new(()),
        })
    }

    /// Loads the stored units that contain some of these texts. Returns them by text.
    fn stored(
        &self,
        places: &CodeIndex,
        texts: &[&KernelText],
    ) -> Result<Vec<(Key, Arc<LoadedUnit>)>, Error> {
        let units = places.units(texts);
        let of = |number: usize| {
            units[number]
                .1
                .iter()
                .map(|&i| texts[i])
                .collect::<Vec<&KernelText>>()
        };
        let load = |number: usize| Ok(CodeIndex::load(&self.store, &units[number].0, &of(number)));
        let mut libraries = Vec::new();
        parallel_for(units.len(), cores(), load, |number, library| {
            let library = library.map(Arc::new);
            libraries.extend(
                of(number)
                    .into_iter()
                    .filter_map(|text| Some((text.key, library.clone()?))),
            );
            Ok(())
        })?;
        Ok(libraries)
    }

    /// Replaces the prelude of each translation unit: types and helper functions.
    pub fn with_prelude(mut self, prelude: impl Into<String>) -> CpuDevice {
        self.prelude = prelude.into();
        self
    }

    /// Returns the instruction set that kernels are compiled for.
    pub fn isa(&self) -> Isa {
        self.isa
    }
    /// Returns the number of workers, including the caller of a replay.
    pub fn threads(&self) -> usize {
        self.team.count()
    }
    /// Returns the team, for other parallel work (prepacking at load).
    pub fn team(&self) -> &Arc<Team> {
        &self.team
    }
    /// Returns the entry of measured costs.
    fn cost_store(&self) -> CostStore<'_> {
        let device = format!("{}, {} threads", machine(self.isa), self.threads());
        CostStore::new(&self.store, &device, "")
    }
    /// Returns the number of translation units that this device has compiled.
    pub fn compiled(&self) -> usize {
        self.compiled.load(Ordering::Relaxed)
    }
    /// Divides texts among translation units; also returns the indices of each unit's texts.
    fn units<'t>(&self, texts: &[&'t KernelText]) -> (Vec<Vec<usize>>, Vec<Unit<'t>>) {
        let lengths: Vec<usize> = texts.iter().map(|t| t.source.len()).collect();
        let parts = partition(&lengths, cores());
        let unit = |p: &Vec<usize>| Unit::new(&self.prelude, p.iter().map(|&i| texts[i]).collect());
        let units = parts.iter().map(unit).collect();
        (parts, units)
    }
}

fn team_size(asked: Option<usize>) -> Result<usize, Error> {
    let there = cores();
    match asked {
        None => Ok(there.min(MAX_WORKERS)),
        Some(n) if (1..=MAX_WORKERS).contains(&n) => Ok(n),
        Some(n) => Err(Error::Setting {
            setting: format!("--threads {n}"),
            message: format!("a team has 1 to {MAX_WORKERS} threads"),
            hint: format!("this process may use {there} cores; without the flag it uses them all"),
        }),
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        "cpu"
    }
    fn id(&self) -> DeviceId {
        self.owner.id()
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn describe(&self) -> Vec<String> {
        let sets: Vec<&str> = Isa::all_available().iter().map(|isa| isa.name()).collect();
        let [costs, measured] = self.cost_store().describe(&self.target.machine, None);
        vec![
            format!(
                "instruction set: {} (of {})",
                self.isa.name(),
                sets.join(", ")
            ),
            format!("threads: {} of {}", self.threads(), cores()),
            format!("C compiler: {}", self.cc.describe()),
            format!("kernel cache: {}", self.store.describe()),
            tuning::describe(&self.store, &machine(self.isa), &self.target.plans),
            costs,
            measured,
            huge_pages(),
            match memory::available() {
                Some(bytes) => format!("memory: {} MB available", bytes / 1_000_000),
                None => "memory: the system does not say how much is available".into(),
            },
        ]
    }
    fn measure(&self) -> Result<Option<Costs>, Error> {
        self.cost_store()
            .renew(|| measure::costs(self.threads()))
            .map(Some)
    }
    fn measured(&self) -> Option<Costs> {
        self.cost_store().read()
    }
    fn tuned_as(&self) -> Option<String> {
        Some(machine(self.isa))
    }
    fn store(&self) -> Option<&Store> {
        Some(&self.store)
    }
    fn warnings(&self) -> Vec<Error> {
        self.store.warnings()
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        self.allocator.alloc(bytes, memory)
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        to.copy_in(self.id(), offset, data)
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        from.copy_out(self.id(), offset, data)
    }
    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn StagedWrite + 'a>, Error> {
        staging::staged_in_place(self.id(), to, offset, len)
    }
    fn load(
        &self,
        programs: &[Program],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        let texts = KernelText::all(programs)?;
        let (mut libraries, missing) = self.loaded.find(&texts);
        let done = |libraries: &HashMap<Key, Arc<LoadedUnit>>| {
            progress(
                texts
                    .iter()
                    .filter(|t| libraries.contains_key(&t.key))
                    .count(),
                texts.len(),
            )
        };
        done(&libraries);
        let before = self.compiled();
        let mut places = CodeIndex::open(&self.store, &self.cc, self.isa, &self.prelude);
        libraries.extend(self.stored(&places, &missing)?);
        let missing: Vec<&KernelText> = missing
            .into_iter()
            .filter(|t| !libraries.contains_key(&t.key))
            .collect();
        let (parts, units) = self.units(&missing);
        let load = |number: usize| units[number].load(&self.cc, self.isa, &self.store);
        parallel_for(
            units.len(),
            cores(),
            load,
            |number, (library, was_compiled)| {
                self.compiled
                    .fetch_add(usize::from(was_compiled), Ordering::Relaxed);
                let library = Arc::new(library);
                places.add(
                    parts[number].iter().map(|&i| missing[i]),
                    units[number].key(&self.cc, self.isa),
                );
                libraries.extend(
                    parts[number]
                        .iter()
                        .map(|&i| (missing[i].key, library.clone())),
                );
                done(&libraries);
                Ok(())
            },
        )?;
        let saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        places.save(&self.store);
        drop(saving);
        if self.compiled() > before {
            self.cc.remember(&self.store);
        }
        self.loaded.remember(&libraries);
        let kernel = |(text, program): (&KernelText, &Program)| -> Result<Arc<dyn Kernel>, Error> {
            let library = libraries[&text.key].clone();
            let function = library.function(text)?;
            Ok(Arc::new(LoadedProgram::new(
                program.clone(),
                self.id(),
                CpuCode {
                    function,
                    _library: library,
                },
            )))
        };
        texts.iter().zip(programs).map(kernel).collect()
    }

    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        Ok(Box::new(CpuReplay::new(
            &self.owner,
            Order::Queued,
            self.team.clone(),
            launches,
        )?))
    }
    fn capture_alone(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        Ok(Box::new(CpuReplay::new(
            &self.owner,
            Order::Alone,
            Arc::new(Team::new(1, false)?),
            launches,
        )?))
    }
}
