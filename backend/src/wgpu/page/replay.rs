//! A captured step: dispatches, recorded by the page at each start.

use super::super::dialect::GROUPS_X;
use super::super::uniforms::{UniformLayout, VARIABLE_BYTES, grid};

use super::gpu::{self, BufferPart, GpuDispatch, GpuLimits, GpuObject};
use super::memory::{GpuPipeline, memory, out_of_memory};
use crate::variables::{Variables, by_level};
use gristmill_runtime::lease::{Order, Owner, StepUses};
use gristmill_runtime::{DeviceId, Error, Launch, Replay};
use gristmill_uop::clock::Instant;
use gristmill_uop::program::Extent;
use std::sync::Arc;

/// A launch with its bindings.
struct BoundLaunch {
    pipeline: Arc<GpuPipeline>,
    bindings: GpuObject,
    /// Index of its workgroup count, then its index among the captured launches.
    count: usize,
    number: usize,
}

/// A captured step on a page's GPU.
pub(super) struct PageReplay {
    variables: Variables,
    counts: Vec<i64>,
    /// Variable of each word of `values`; None for padding between lists.
    cells: Vec<Option<usize>>,
    values: GpuObject,
    bound: Vec<BoundLaunch>,
    dispatches: Vec<GpuDispatch>,
    uses: StepUses,
    /// Keeps the buffers alive.
    launches: Vec<Launch>,
}

impl PageReplay {
    /// Binds launches, sorted by level.
    pub fn new(
        owner: &Owner,
        limits: &GpuLimits,
        launches: Vec<Launch>,
    ) -> Result<PageReplay, Error> {
        let (mut variables, mut lists) = (Variables::default(), UniformLayout::default());
        let mut places = Vec::new();
        for number in by_level(&launches) {
            let launch = &launches[number];
            launch.check(owner.id())?;
            let (groups, slots) = variables.bind(launch)?;
            let alignment = limits.alignment.max(16.0) as usize;
            let place = (!slots.is_empty()).then(|| lists.offset_of(&slots, alignment));
            places.push((number, groups.all, place, slots.len()));
        }
        let size = (lists.cells.len() * VARIABLE_BYTES).max(16);
        let values = gpu::buffer(size as u64, true);
        let values = values.ok_or_else(|| out_of_memory("variables", size))?;
        let mut bound = Vec::new();
        for (number, count, place, variables) in places {
            let launch = &launches[number];
            let pipeline = launch.loaded::<Arc<GpuPipeline>>()?.code.clone();
            let uniform = place.map(|at| BufferPart {
                buffer: values.number(),
                offset: at as u32,
                bytes: (variables * VARIABLE_BYTES).next_multiple_of(16) as u32,
            });
            let parts = parts(owner.id(), launch, &pipeline, uniform)?;
            bound.push(BoundLaunch {
                bindings: gpu::bind(&pipeline.object, &parts),
                pipeline,
                count,
                number,
            });
        }
        gpu::check("binding buffers")?;
        let order = Order::Queued;
        let uses = StepUses::new(owner, launches.iter().flat_map(Launch::uses), order);
        Ok(PageReplay {
            variables,
            counts: vec![],
            cells: lists.cells,
            values,
            bound,
            dispatches: vec![],
            uses,
            launches,
        })
    }
    /// Sets the variables, uploads them, and counts workgroups.
    fn prepare(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.variables.set(vars)?;
        self.variables.count(&mut self.counts)?;
        let most = i64::from(GROUPS_X) * 0xffff;
        self.dispatches.clear();
        for bound in &self.bound {
            let count = self.counts[bound.count];
            if count > most {
                let name = &self.launches[bound.number].kernel.program().name;
                return Err(Error::invalid(name, format!("has {count} workgroups")));
            }
            let [x, y] = grid(count);
            if x > 0 {
                self.dispatches.push(GpuDispatch {
                    pipeline: bound.pipeline.object.number(),
                    bindings: bound.bindings.number(),
                    x,
                    y,
                });
            }
        }
        let values = self.variables.values();
        let mut words = Vec::with_capacity(self.cells.len() * VARIABLE_BYTES);
        for cell in &self.cells {
            let value = cell.map_or(0, |variable| values[variable]);
            let value = i32::try_from(value).map_err(|_| {
                Error::invalid("a variable", format!("{value} takes more than 32 bits"))
            })?;
            words.extend(value.to_le_bytes());
        }
        if !words.is_empty() {
            gpu::write(&self.values, 0, &words);
        }
        Ok(())
    }
}

/// Returns the bindings of a launch: its buffers, its variables, further pieces, its tables.
fn parts(
    device: DeviceId,
    launch: &Launch,
    pipeline: &GpuPipeline,
    uniform: Option<BufferPart>,
) -> Result<Vec<BufferPart>, Error> {
    let program = launch.kernel.program();
    let (mut first, mut further) = (Vec::new(), Vec::new());
    for (i, (buffer, &pieces)) in launch.buffers.iter().zip(&pipeline.pieces).enumerate() {
        let memory = memory(device, &program.name, buffer)?;
        let begin = buffer.offset() as u64;
        // Bytes that the kernel may access.
        let touched = match program.params[i].extent {
            Extent::Fixed(bytes) => bytes.min(buffer.len()),
            Extent::Per { .. } => buffer.len(),
        };
        let all = (touched.max(1) as u64)
            .next_multiple_of(16)
            .min(memory.size - begin);
        let part = |at: u64| BufferPart {
            buffer: memory.object.number(),
            offset: (begin + at) as u32,
            bytes: match pieces {
                1 => all as u32,
                _ => (all - at).min(pipeline.piece as u64) as u32,
            },
        };
        first.push(part(0));
        further.extend((1..pieces as u64).map(|piece| part(piece * pipeline.piece as u64)));
    }
    let tables = pipeline.tables.as_ref().map(|(object, bytes)| BufferPart {
        buffer: object.number(),
        offset: 0,
        bytes: *bytes as u32,
    });
    Ok(first
        .into_iter()
        .chain(uniform)
        .chain(further)
        .chain(tables)
        .collect())
}

impl Replay for PageReplay {
    /// The page runs steps and copies in their order, so that nothing waits for a step's end.
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.prepare(vars)?;
        let _in_flight = self.uses.begin()?;
        gpu::run(&self.dispatches);
        gpu::check("a step")
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        self.prepare(vars)?;
        let _in_flight = self.uses.begin()?;
        let mut times = vec![0.0; self.launches.len()];
        let mut word = [0; VARIABLE_BYTES];
        let dispatches = std::mem::take(&mut self.dispatches);
        let launched = self.bound.iter().filter(|b| self.counts[b.count] > 0);
        for (dispatch, bound) in dispatches.iter().zip(launched) {
            let begin = Instant::now();
            gpu::run(std::slice::from_ref(dispatch));
            gpu::read(&self.values, 0, &mut word)?;
            times[bound.number] = begin.elapsed().as_secs_f64();
        }
        Ok(times)
    }
}
