//! A captured step: its launches as one graph, with the variables in device memory.

use super::clocks::Clocks;
use super::copies::Copies;
use super::device::{CudaKernel, Loaded};
use super::dialect::IDLE;
use super::driver::{Context, Event, Stream, check, event};
use super::graph::{Follow, Graph, Node};
use super::memory::address;
use super::step::{Regions, bucket};
use crate::variables::{Variables, by_level, kernel_of};
use cudarc::driver::sys::{self, CUdeviceptr};
use gristmill_runtime::lease::{InFlight, Order, StepUses};
use gristmill_runtime::{Buffer, Error, Kernel, Launch, Replay};
use std::collections::VecDeque;
use std::sync::Arc;

/// The first architecture whose kernels may start before their predecessor has ended.
const EARLY: u32 = 90;

/// A captured step.
pub struct CudaReplay {
    context: Arc<Context>,
    stream: Arc<Stream>,
    copies: Arc<Copies>,
    variables: Variables,
    /// Workgroups of every count of `variables`: now, and at most.
    counts: Vec<i64>,
    most: Vec<Option<i64>>,
    /// The variables on the device: an address and a variable for each eight bytes.
    cells: Vec<(CUdeviceptr, usize)>,
    values: Buffer,
    kernels: Vec<Node>,
    /// Of every kernel, its count and its place among the launches that were captured.
    order: Vec<(usize, usize)>,
    /// Workgroups to launch, of every kernel.
    groups: Vec<u32>,
    follow: Follow,
    graph: Graph,
    clocks: Option<Clocks>,
    /// A kernel that computes nothing.
    idle: Loaded,
    /// Ends of what was started and not waited for, and events to use again.
    started: VecDeque<(Event, InFlight)>,
    spare: Vec<Event>,
    uses: StepUses,
    /// Keeps memory and modules.
    launches: Vec<Launch>,
}

// SAFETY: functions and addresses belong to the context, not to a thread; `launches` keeps them.
unsafe impl Send for CudaReplay {}

impl CudaReplay {
    /// Binds launches, sorted by level, into a graph.
    pub fn new(
        stream: Arc<Stream>,
        copies: Arc<Copies>,
        idle: Loaded,
        launches: Vec<Launch>,
    ) -> Result<CudaReplay, Error> {
        let context = stream.context().clone();
        let mut variables = Variables::default();
        let mut regions = Regions::default();
        let (mut kernels, mut order, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for number in by_level(&launches) {
            let launch = &launches[number];
            launch.check(context.owner.id())?;
            let kernel: &CudaKernel = kernel_of(launch)?;
            let program = kernel.program();
            let arguments: Result<Vec<CUdeviceptr>, Error> =
                launch.buffers.iter().map(|b| address(&context, &program.name, b, 0, b.len())).collect();
            let (count, slots) = variables.bind(launch)?;
            places.push(regions.place(&slots));
            order.push((count, number));
            let (threads, shared) = (program.threads as u32, program.scratch as u32);
            kernels.push(Node { function: kernel.loaded.function, arguments: arguments?, threads, shared });
        }
        let bytes = regions.cells().len() * 8;
        let values = copies.variables(bytes)?;
        let base = address(&context, "variables", &values, 0, bytes)?;
        for (kernel, place) in kernels.iter_mut().zip(places) {
            kernel.arguments.extend([base + place as CUdeviceptr, 0]);
        }
        let cells = regions.cells().iter().enumerate().map(|(i, &slot)| (base + 8 * i as CUdeviceptr, slot)).collect();
        let most = variables.most();
        // Numbers of workgroups that depend on variables are set before the first launch.
        let groups = vec![1; kernels.len()];
        let follow = if context.sm >= EARLY { Follow::Early } else { Follow::Plainly };
        let graph = Graph::new(&context, &kernels, groups.clone(), follow)?;
        let uses = StepUses::new(&context.owner, &launches, Order::Queued);
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

    /// Takes values of the variables and works out the workgroups of every kernel.
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

    /// Queues a write of the variables. From memory that is not pinned, so little of it travels with the command: what is written here may be
    /// other values before this step has run.
    fn write_variables(&self) -> Result<(), Error> {
        let values = self.variables.values();
        let words: Vec<i64> = self.cells.iter().map(|&(_, slot)| values[slot]).collect();
        let Some(&(first, _)) = self.cells.first() else { return Ok(()) };
        // SAFETY: cells lie one after the other in `values`.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(first, words.as_ptr().cast(), words.len() * 8, self.stream.raw())
        })
    }
}

impl Replay for CudaReplay {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.context.enter()?;
        self.prepare(vars)?;
        let in_flight = self.uses.begin()?;
        self.graph.resize(&self.kernels, &self.groups)?;
        let end = match self.spare.pop() {
            Some(event) => event,
            None => event(&self.context)?,
        };
        self.copies.before(&self.stream)?;
        self.write_variables()?;
        self.graph.launch(&self.stream)?;
        self.stream.mark(&end)?;
        self.started.push_back((end, in_flight));
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Error> {
        let Some((end, _in_flight)) = self.started.pop_front() else { return Ok(()) };
        let result = end.wait();
        self.spare.push(end);
        result
    }

    /// The step runs as it always does, and its kernels note the time. The time of a launch is from the end of those before to its own, as the one
    /// behind it sees it; what it did before that is theirs.
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        self.context.enter()?;
        self.prepare(vars)?;
        let _in_flight = self.uses.begin()?;
        self.copies.before(&self.stream)?;
        self.write_variables()?;
        let clocks = match &mut self.clocks {
            Some(clocks) => clocks,
            none => {
                // Its variables, none of which it reads, and its clock.
                let end = Node { function: self.idle.function, arguments: vec![0, 0], threads: IDLE, shared: 0 };
                none.insert(Clocks::new(&self.context, self.copies.stream(), &self.kernels, end, self.follow)?)
            }
        };
        let mut times = vec![0.0; self.order.len()];
        for (seconds, &(_, number)) in clocks.run(&self.stream, &self.groups)?.into_iter().zip(&self.order) {
            times[number] = seconds;
        }
        Ok(times)
    }
}

impl Drop for CudaReplay {
    /// What was started uses the buffers that go with this.
    fn drop(&mut self) {
        if !self.started.is_empty() {
            let _ = self.stream.wait(); // whoever did not wait does not want to know
        }
        self.copies.give_back(self.values.clone());
    }
}
