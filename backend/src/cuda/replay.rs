//! A captured step on CUDA: one graph, with its variables in device memory.

use super::clocks::Clocks;
use super::context::{CudaContext, Current};
use super::copies::PinnedCopies;
use super::dialect::IDLE;
use super::graph::{Follow, Graph, KernelNode};
use super::handle::{Event, Stream, event};
use super::memory::address;
use super::modules::LoadedModule;
use super::step::{VariableLayout, bucket};
use crate::variables::{Variables, by_level};
use cudarc::driver::sys::{self, CUdeviceptr};
use gristmill_runtime::lease::{Order, StepGuard, StepUses};
use gristmill_runtime::{Buffer, Error, Kernel, Launch, Replay};
use gristmill_uop::machine::EARLY_LAUNCH_SINCE;
use std::collections::VecDeque;
use std::sync::Arc;

/// Resources of one started step until it has ended.
struct Slot {
    /// Event at the end of the step.
    end: Event,
    /// Values of the variables to upload; the copy may read them until the step has ended.
    words: Vec<i64>,
}

/// A captured step on CUDA.
pub struct CudaReplay {
    context: Arc<CudaContext>,
    stream: Arc<Stream>,
    copies: Arc<PinnedCopies>,
    variables: Variables,
    /// Evaluated workgroup counts of `variables`, then their maxima.
    counts: Vec<i64>,
    most: Vec<Option<i64>>,
    /// Variables on the device: address and variable of each eight bytes.
    cells: Vec<(CUdeviceptr, usize)>,
    values: Buffer,
    kernels: Vec<KernelNode>,
    /// Count index and launch index of each kernel.
    order: Vec<(usize, usize)>,
    /// Workgroups to launch for each kernel.
    groups: Vec<u32>,
    follow: Follow,
    graph: Graph,
    clocks: Option<Clocks>,
    /// Kernel that computes nothing.
    idle: LoadedModule,
    /// Slots of started steps, then slots to reuse.
    started: VecDeque<(Slot, StepGuard)>,
    spare: Vec<Slot>,
    uses: StepUses,
    /// Keeps buffers and modules alive.
    launches: Vec<Launch>,
}

// SAFETY: functions and addresses belong to the context, not to a thread;
// `launches` keeps them alive.
unsafe impl Send for CudaReplay {}

/// Launches bound to a step's variables, in the order of their levels.
#[derive(Default)]
struct Bound {
    variables: Variables,
    regions: VariableLayout,
    /// Kernels with the addresses of their buffers.
    kernels: Vec<KernelNode>,
    /// Count index and launch index of each kernel.
    order: Vec<(usize, usize)>,
    /// Offset of each kernel's variables in bytes.
    places: Vec<usize>,
}

impl Bound {
    fn new(context: &Arc<CudaContext>, launches: &[Launch]) -> Result<Bound, Error> {
        let mut bound = Bound::default();
        for number in by_level(launches) {
            let launch = &launches[number];
            launch.check(context.owner.id())?;
            let kernel = launch.loaded::<LoadedModule>()?;
            let program = kernel.program();
            let arguments: Result<Vec<CUdeviceptr>, Error> = launch
                .buffers
                .iter()
                .map(|b| address(context, &program.name, b, 0, b.len()))
                .collect();
            let (groups, slots) = bound.variables.bind(launch)?;
            bound.places.push(bound.regions.place(&slots));
            bound.order.push((groups.all, number));
            let (threads, shared) = (program.threads as u32, program.scratch as u32);
            bound.kernels.push(KernelNode {
                function: kernel.code.function,
                arguments: arguments?,
                threads,
                shared,
            });
        }
        Ok(bound)
    }
}

impl CudaReplay {
    /// Binds launches, sorted by level, into a graph.
    pub fn new(
        stream: Arc<Stream>,
        copies: Arc<PinnedCopies>,
        idle: LoadedModule,
        launches: Vec<Launch>,
    ) -> Result<CudaReplay, Error> {
        let context = stream.context().clone();
        let current = context.enter()?;
        let Bound {
            mut variables,
            regions,
            mut kernels,
            order,
            places,
        } = Bound::new(&context, &launches)?;
        let bytes = regions.cells().len() * 8;
        let values = copies.variables(bytes)?;
        let base = address(&context, "variables", &values, 0, bytes)?;
        for (kernel, place) in kernels.iter_mut().zip(places) {
            kernel.arguments.extend([base + place as CUdeviceptr, 0]);
        }
        let cells = regions
            .cells()
            .iter()
            .enumerate()
            .map(|(i, &slot)| (base + 8 * i as CUdeviceptr, slot))
            .collect();
        let most = variables.most();
        // Counts that depend on variables are set before the first launch.
        let groups = vec![1; kernels.len()];
        let follow = if context.sm >= EARLY_LAUNCH_SINCE {
            Follow::Early
        } else {
            Follow::Plainly
        };
        let graph = Graph::new(&current, &kernels, groups.clone(), follow)?;
        let uses = StepUses::new(
            &context.owner,
            launches.iter().flat_map(Launch::uses),
            Order::Queued,
        );
        drop(current);
        Ok(CudaReplay {
            uses,
            context,
            stream,
            copies,
            variables,
            counts: vec![],
            most,
            cells,
            values,
            kernels,
            order,
            groups,
            follow,
            graph,
            clocks: None,
            idle,
            started: VecDeque::new(),
            spare: vec![],
            launches,
        })
    }

    /// Sets the variables and computes the workgroups of each kernel.
    fn prepare(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.variables.set(vars)?;
        self.variables.count(&mut self.counts)?;
        for (groups, &(count, number)) in self.groups.iter_mut().zip(&self.order) {
            let wanted = bucket(self.counts[count], self.most[count]);
            *groups = i32::try_from(wanted).map_err(|_| {
                let name = &self.launches[number].kernel.program().name;
                Error::invalid(name, format!("has {wanted} workgroups"))
            })? as u32;
        }
        Ok(())
    }

    /// Returns a slot with the current values of the variables.
    fn slot(&mut self, current: &Current) -> Result<Slot, Error> {
        let mut slot = match self.spare.pop() {
            Some(slot) => slot,
            None => Slot {
                end: event(current)?,
                words: Vec::with_capacity(self.cells.len()),
            },
        };
        let values = self.variables.values();
        slot.words.clear();
        slot.words
            .extend(self.cells.iter().map(|&(_, variable)| values[variable]));
        Ok(slot)
    }

    /// Queues the upload of the variables, after the staged copies that steps wait for.
    ///
    /// The source is not pinned: the driver usually embeds this few bytes in the command, but
    /// nothing relies on that.
    fn write_variables(&self, current: &Current, slot: &Slot) -> Result<(), Error> {
        self.copies.wait_before(current, &self.stream)?;
        let Some(&(first, _)) = self.cells.first() else {
            return Ok(());
        };
        let (words, bytes) = (slot.words.as_ptr().cast(), slot.words.len() * 8);
        // SAFETY: cells are contiguous in `values`; the words are not modified until
        // the step has ended.
        let queued = unsafe { sys::cuMemcpyHtoDAsync_v2(first, words, bytes, self.stream.raw()) };
        current.check("cuMemcpyHtoDAsync", queued)
    }

    /// Queues a step and its event.
    fn queue(&mut self, current: &Current, slot: &Slot) -> Result<(), Error> {
        self.write_variables(current, slot)?;
        self.graph.launch(current, &self.stream)?;
        self.stream.mark(current, &slot.end)
    }

    /// Runs a timed step. Returns the seconds of its kernels.
    fn run_timed(&mut self, current: &Current, slot: &Slot) -> Result<Vec<f64>, Error> {
        self.write_variables(current, slot)?;
        match &mut self.clocks {
            Some(clocks) => clocks.run(current, &self.stream, &self.groups),
            None => unreachable!("made before"),
        }
    }

    /// Waits for the queued work after an error, since no event follows it.
    fn end<T>(&self, queued: Result<T, Error>) -> Result<T, Error> {
        if queued.is_err() {
            let _ = self.stream.settle(); // the first error is reported
        }
        queued
    }
}

impl Replay for CudaReplay {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        let context = self.context.clone();
        let current = context.enter()?;
        self.prepare(vars)?;
        let in_flight = self.uses.begin()?;
        self.graph.resize(&current, &self.kernels, &self.groups)?;
        let slot = self.slot(&current)?;
        let queued = self.queue(&current, &slot);
        let queued = self.end(queued);
        match queued {
            Ok(()) => self.started.push_back((slot, in_flight)),
            Err(_) => self.spare.push(slot),
        }
        queued
    }

    fn wait(&mut self) -> Result<(), Error> {
        let Some((slot, _in_flight)) = self.started.pop_front() else {
            return Ok(());
        };
        let ended = self.end(slot.end.wait());
        self.spare.push(slot);
        ended
    }

    /// Runs the usual step with clocks. The time of a launch is from the end of its predecessors to
    /// its own end, as its successor observes it; earlier work overlaps with theirs.
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        let context = self.context.clone();
        let current = context.enter()?;
        self.prepare(vars)?;
        let _in_flight = self.uses.begin()?;
        if self.clocks.is_none() {
            // Null pointers for the variables, which it does not read, and the clock.
            let end = KernelNode {
                function: self.idle.function,
                arguments: vec![0, 0],
                threads: IDLE,
                shared: 0,
            };
            self.clocks = Some(Clocks::new(
                &current,
                self.copies.stream(),
                &self.kernels,
                end,
                self.follow,
            )?);
        }
        let slot = self.slot(&current)?;
        let seconds = self.run_timed(&current, &slot);
        let seconds = self.end(seconds);
        self.spare.push(slot);
        let mut times = vec![0.0; self.order.len()];
        for (seconds, &(_, number)) in seconds?.into_iter().zip(&self.order) {
            times[number] = seconds;
        }
        Ok(times)
    }
}

impl Drop for CudaReplay {
    /// Waits for started steps, which use the buffers owned here.
    fn drop(&mut self) {
        if !self.started.is_empty() {
            let _ = self.stream.settle(); // the result is not needed
        }
        if self.context.is_stuck() {
            // A copy may still read these words.
            std::mem::forget((
                std::mem::take(&mut self.started),
                std::mem::take(&mut self.spare),
            ));
        }
        self.copies.recycle(self.values.clone());
    }
}
