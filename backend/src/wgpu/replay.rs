//! A captured step on wgpu: dispatches recorded at each start, variables in one uniform buffer.

use super::context::WgpuContext;
use super::dialect::GROUPS_X;
use super::memory::memory;
use super::pipelines::Pipeline;
use super::readback::{HostCopies, Readback};
use super::uniforms::{UniformLayout, VARIABLE_BYTES, grid};
use crate::variables::{Variables, by_level};
use gristmill_runtime::lease::{Order, StepGuard, StepUses};
use gristmill_runtime::{Error, Launch, Replay};
use gristmill_uop::program::Extent;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindingResource, BufferBinding,
    BufferDescriptor, BufferSize, BufferUsages, CommandEncoder, CommandEncoderDescriptor,
    ComputePassDescriptor, ComputePassTimestampWrites, Features, MapMode, QuerySet,
    QuerySetDescriptor, QueryType, SubmissionIndex,
};

/// Maximum number of queries in a set.
const MAX_QUERIES: usize = 4096;
/// Bytes of a query's result.
const QUERY_RESULT_BYTES: u64 = 8;

/// Dispatches of a step's first submission, and the growth factor of the following ones.
const FIRST_SUBMISSION: usize = 16;
const SUBMISSION_GROWTH: usize = 4;

/// A launch with its bindings.
struct Dispatch {
    pipeline: Arc<Pipeline>,
    bindings: BindGroup,
    /// Index of its workgroup count, then its index among the captured launches.
    count: usize,
    number: usize,
}

/// A step in flight: its last submission and the readback copies.
struct Started {
    index: SubmissionIndex,
    copy: HostCopies,
    _in_flight: StepGuard,
}

/// A captured step on wgpu.
pub struct WgpuReplay {
    context: Arc<WgpuContext>,
    variables: Variables,
    /// Evaluated workgroup counts of `variables`.
    counts: Vec<i64>,
    /// Variable of each word of `values`; None for padding between lists.
    cells: Vec<Option<usize>>,
    values: wgpu::Buffer,
    dispatches: Vec<Dispatch>,
    clock: Option<QuerySet>,
    readback: Readback,
    started: VecDeque<Started>,
    uses: StepUses,
    /// Keeps the buffers alive.
    launches: Vec<Launch>,
}

impl WgpuReplay {
    /// Binds launches, sorted by level.
    pub fn new(context: Arc<WgpuContext>, launches: Vec<Launch>) -> Result<WgpuReplay, Error> {
        let (mut variables, mut lists) = (Variables::default(), UniformLayout::default());
        let alignment = context.limits.min_uniform_buffer_offset_alignment.max(16) as usize;
        let mut bound = Vec::new();
        for number in by_level(&launches) {
            let launch = &launches[number];
            launch.check(context.owner.id())?;
            let (groups, slots) = variables.bind(launch)?;
            let place = (!slots.is_empty()).then(|| lists.offset_of(&slots, alignment));
            bound.push((number, groups.all, place, slots.len()));
        }
        let size = (lists.cells.len() * VARIABLE_BYTES).max(16) as u64;
        let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
        let descriptor = BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        };
        let values = context.scoped("variables", || context.device.create_buffer(&descriptor))?;
        let mut dispatches = Vec::new();
        for (number, count, place, variables) in bound {
            let launch = &launches[number];
            let pipeline = launch.loaded::<Arc<Pipeline>>()?.code.clone();
            let bytes = (variables * VARIABLE_BYTES).next_multiple_of(16) as u64;
            let uniform = place.map(|at| BufferBinding {
                buffer: &values,
                offset: at as u64,
                size: BufferSize::new(bytes),
            });
            let bindings = bind(&context, launch, &pipeline, uniform)?;
            dispatches.push(Dispatch {
                pipeline,
                bindings,
                count,
                number,
            });
        }
        let uses = StepUses::new(
            &context.owner,
            launches.iter().flat_map(Launch::uses),
            Order::Queued,
        );
        let (cells, counts, clock, started) = (lists.cells, vec![], None, VecDeque::new());
        let readback = Readback::new(&launches);
        Ok(WgpuReplay {
            context,
            variables,
            counts,
            cells,
            values,
            dispatches,
            clock,
            readback,
            started,
            uses,
            launches,
        })
    }

    /// Sets the variables and uploads them.
    fn prepare(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.variables.set(vars)?;
        self.variables.count(&mut self.counts)?;
        let most = i64::from(GROUPS_X)
            * i64::from(
                self.context
                    .limits
                    .max_compute_workgroups_per_dimension
                    .min(0xffff),
            );
        if let Some(dispatch) = self.dispatches.iter().find(|d| self.counts[d.count] > most) {
            let name = &self.launches[dispatch.number].kernel.program().name;
            return Err(Error::invalid(
                name,
                format!("has {} workgroups", self.counts[dispatch.count]),
            ));
        }
        if self.cells.is_empty() {
            return Ok(());
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
        self.context.scoped("variables", || {
            self.context.queue.write_buffer(&self.values, 0, &words)
        })
    }

    /// Returns the grid of a dispatch.
    fn grid(&self, dispatch: &Dispatch) -> [u32; 2] {
        grid(self.counts[dispatch.count])
    }

    fn encoder(&self) -> CommandEncoder {
        self.context
            .device
            .create_command_encoder(&CommandEncoderDescriptor::default())
    }

    /// Records and submits the step.
    ///
    /// If a step is in flight, it is one submission. Otherwise it is split into growing parts, so
    /// that the adapter runs one while the next is recorded.
    fn submit(&self, copy: &HostCopies) -> SubmissionIndex {
        let mut part = if self.started.is_empty() {
            FIRST_SUBMISSION
        } else {
            self.dispatches.len()
        };
        let mut rest = &self.dispatches[..];
        loop {
            let (now, later) = rest.split_at(part.min(rest.len()));
            let mut encoder = self.encoder();
            self.record(&mut encoder, now, None);
            if later.is_empty() {
                self.readback.record(&mut encoder, copy);
                let index = self.context.queue.submit([encoder.finish()]);
                Readback::map(copy);
                return index;
            }
            self.context.queue.submit([encoder.finish()]);
            (rest, part) = (later, part * SUBMISSION_GROWTH);
        }
    }

    /// Records dispatches in one compute pass, with optional timestamps.
    fn record(
        &self,
        encoder: &mut CommandEncoder,
        dispatches: &[Dispatch],
        times: Option<ComputePassTimestampWrites>,
    ) {
        let descriptor = ComputePassDescriptor {
            label: None,
            timestamp_writes: times,
        };
        let mut pass = encoder.begin_compute_pass(&descriptor);
        for dispatch in dispatches {
            let [x, y] = self.grid(dispatch);
            if x > 0 {
                pass.set_pipeline(&dispatch.pipeline.pipeline);
                pass.set_bind_group(0, &dispatch.bindings, &[]);
                pass.dispatch_workgroups(x, y, 1);
            }
        }
    }

    /// Runs each dispatch with timestamp queries. Returns the seconds, in order.
    fn run_by_clock(&mut self) -> Result<Vec<f64>, Error> {
        let context = self.context.clone();
        let mut seconds = Vec::new();
        for part in 0..self.dispatches.len().div_ceil(MAX_QUERIES / 2) {
            if self.clock.is_none() {
                let descriptor = QuerySetDescriptor {
                    label: None,
                    ty: QueryType::Timestamp,
                    count: MAX_QUERIES as u32,
                };
                self.clock = Some(context.scoped("timestamps", || {
                    context.device.create_query_set(&descriptor)
                })?);
            }
            let Some(clock) = &self.clock else {
                unreachable!("made before")
            };
            let part = self
                .dispatches
                .chunks(MAX_QUERIES / 2)
                .nth(part)
                .unwrap_or_default();
            let size = 2 * part.len() as u64 * QUERY_RESULT_BYTES;
            let buffer = |usage| BufferDescriptor {
                label: None,
                size,
                usage,
                mapped_at_creation: false,
            };
            let (staging, index) = context.scoped("a timed step", || {
                let resolved = context.device.create_buffer(&buffer(
                    BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC,
                ));
                let staging = context
                    .device
                    .create_buffer(&buffer(BufferUsages::MAP_READ | BufferUsages::COPY_DST));
                let mut encoder = self.encoder();
                for (i, dispatch) in part.iter().enumerate() {
                    let i = 2 * i as u32;
                    let times = ComputePassTimestampWrites {
                        query_set: clock,
                        beginning_of_pass_write_index: Some(i),
                        end_of_pass_write_index: Some(i + 1),
                    };
                    self.record(&mut encoder, std::slice::from_ref(dispatch), Some(times));
                }
                encoder.resolve_query_set(clock, 0..2 * part.len() as u32, &resolved, 0);
                encoder.copy_buffer_to_buffer(&resolved, 0, &staging, 0, size);
                let index = context.queue.submit([encoder.finish()]);
                staging.map_async(MapMode::Read, .., |_| ());
                (staging, index)
            })?;
            context.wait("a timed step", index)?;
            let view = staging
                .get_mapped_range(..)
                .map_err(|e| Error::invalid("timestamps", e.to_string()))?;
            let ticks: Vec<u64> = view
                .chunks(8)
                .map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default()))
                .collect();
            let period = f64::from(context.queue.get_timestamp_period()) * 1e-9;
            seconds.extend(
                ticks
                    .chunks(2)
                    .map(|t| t[1].saturating_sub(t[0]) as f64 * period),
            );
        }
        Ok(seconds)
    }

    /// Runs each dispatch and waits for it, timed by the host's clock. Returns the seconds.
    fn run_by_hosts_clock(&self) -> Result<Vec<f64>, Error> {
        let one = |dispatch: &Dispatch| {
            let before = Instant::now();
            let index = self.context.scoped("a timed step", || {
                let mut encoder = self.encoder();
                self.record(&mut encoder, std::slice::from_ref(dispatch), None);
                self.context.queue.submit([encoder.finish()])
            })?;
            self.context.wait("a timed step", index)?;
            Ok(before.elapsed().as_secs_f64())
        };
        self.dispatches.iter().map(one).collect()
    }
}

/// Binds the buffers of a launch, its variables, further pieces of long buffers, and its tables.
fn bind(
    context: &WgpuContext,
    launch: &Launch,
    pipeline: &Pipeline,
    uniform: Option<BufferBinding>,
) -> Result<BindGroup, Error> {
    let program = launch.kernel.program();
    let name = &program.name;
    let (mut resources, mut further) = (Vec::new(), Vec::new());
    for (i, (buffer, &pieces)) in launch.buffers.iter().zip(&pipeline.pieces).enumerate() {
        let memory = memory(context, name, buffer, [0, buffer.len()])?;
        let alignment = u64::from(context.limits.min_storage_buffer_offset_alignment);
        let (first, piece) = (buffer.offset() as u64, pipeline.piece as u64);
        if !first.is_multiple_of(alignment) {
            return Err(Error::invalid(
                name,
                format!("its buffer {i} begins at {first}, no multiple of {alignment}"),
            ));
        }
        // Bytes that the kernel may access.
        let touched = match program.params[i].extent {
            Extent::Fixed(bytes) => bytes.min(buffer.len()),
            Extent::Per { .. } => buffer.len(),
        };
        let all = (touched.max(1) as u64)
            .next_multiple_of(16)
            .min(memory.buffer.size() - first);
        let most = context.limits.max_storage_buffer_binding_size;
        if pieces == 1 && all > most {
            return Err(Error::Lacking {
                device: "wgpu".into(),
                message: format!(
                    "{} binds {most} bytes, and {name} is given {all}",
                    context.title
                ),
                hint: "try a smaller --ctx, a smaller model, or another device".into(),
            });
        }
        let part = |at: u64| {
            let size = if pieces == 1 {
                all
            } else {
                (all - at).min(piece)
            };
            BufferBinding {
                buffer: &memory.buffer,
                offset: first + at,
                size: BufferSize::new(size),
            }
        };
        resources.push(part(0));
        further.extend((1..pieces as u64).map(|number| part(number * piece)));
    }
    let part = BindingResource::Buffer;
    let parts = resources
        .into_iter()
        .chain(uniform)
        .chain(further)
        .map(part);
    let tables = pipeline
        .tables
        .as_ref()
        .map(wgpu::Buffer::as_entire_binding);
    let entry = |(resource, binding)| BindGroupEntry { binding, resource };
    let all = parts.chain(tables).zip(0..);
    let entries: Vec<BindGroupEntry> = all.map(entry).collect();
    let descriptor = BindGroupDescriptor {
        label: None,
        layout: &pipeline.layout,
        entries: &entries,
    };
    context.scoped(name, || context.device.create_bind_group(&descriptor))
}

impl Replay for WgpuReplay {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.prepare(vars)?;
        let _in_flight = self.uses.begin()?;
        let context = self.context.clone();
        let (index, copy) = context.scoped("a step", || {
            let copy = self.readback.take(&context);
            (self.submit(&copy), copy)
        })?;
        self.started.push_back(Started {
            index,
            copy,
            _in_flight,
        });
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Error> {
        let Some(Started {
            index,
            copy,
            _in_flight,
        }) = self.started.pop_front()
        else {
            return Ok(());
        };
        self.context.wait("a step", index)?;
        self.readback.finish(copy)
    }

    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        self.prepare(vars)?;
        let _in_flight = self.uses.begin()?;
        self.readback.invalidate();
        let seconds = match self.context.features.contains(Features::TIMESTAMP_QUERY) {
            true => self.run_by_clock()?,
            false => self.run_by_hosts_clock()?,
        };
        let mut times = vec![0.0; self.launches.len()];
        for (seconds, dispatch) in seconds.into_iter().zip(&self.dispatches) {
            times[dispatch.number] = seconds;
        }
        Ok(times)
    }
}

impl Drop for WgpuReplay {
    /// Waits for steps in flight: wgpu keeps their buffers alive, but leases would end.
    fn drop(&mut self) {
        while !self.started.is_empty() {
            let _ = self.wait(); // the result is not needed
        }
    }
}
