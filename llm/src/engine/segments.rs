//! Steps on several devices: segments of calls, each captured on its device, joined by copies.

use super::expert_cache::ExpertCache;
use super::expert_stream::{SETS, StreamedWeight};
use crate::arch::{Bind, BoundCall, ExpertBind, StepKind};
use crate::placement::{is_cached, is_of_experts, layer_of};
use gristmill_runtime::{Buffer, Device, Error, Replay, Span};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::{Slot, SlotKind, Storage};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A run of calls on one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub device: usize,
    /// Indices of its calls in the plan.
    pub calls: Range<usize>,
    /// Values that are copied to its device before it starts.
    pub copies: Vec<Transfer>,
    /// Streamed weights that it reads, and the segments that must have ended before their buffers
    /// are filled.
    pub streamed: Vec<String>,
    pub fills_after: Option<usize>,
    /// Lookup of the experts that it reads.
    pub lookup: Option<LayerLookup>,
    /// Misses of a token up to which it runs: see [`BoundCall::misses`].
    pub misses: Option<usize>,
}

/// Lookup of the experts that a layer's tokens chose, before the first segment that reads them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LayerLookup {
    pub layer: usize,
    /// Experts of a token.
    pub used: usize,
    /// Device of the experts that are not cached, and the misses of a token that it computes.
    pub away: usize,
    pub widths: Vec<usize>,
    /// Segments that must have ended: the one that writes what was chosen, and those that read an
    /// earlier layer's lookup.
    pub waits: Vec<usize>,
}

/// A value that is copied between devices before a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Transfer {
    pub bind: Bind,
    pub from: usize,
    /// Largest size in bytes, and whether the value has a row for each token.
    pub bytes: usize,
    pub is_per_token: bool,
    /// Whether it is the sum of experts that were not cached: 0 if there was none.
    pub is_of_misses: bool,
    /// Layer of whose experts it has the numbers that a token chose.
    pub chosen: Option<usize>,
    /// Segments that must have ended: the one that writes the value, those that used its buffer
    /// before, and those that use the buffer it is copied to.
    pub waits: Vec<usize>,
}

/// Returns the buffer that a binding has on each device, named by its first user.
fn buffer_of(bind: &Bind) -> Bind {
    match bind {
        Bind::Hidden(layer) => Bind::Hidden(layer % 2),
        Bind::LayerInput(_) => Bind::LayerInput(0),
        bind => bind.clone(),
    }
}

/// Returns the value that a binding reads or writes in a step.
fn value_of(bind: &Bind) -> Bind {
    match bind {
        Bind::LayerInput(_) => Bind::LayerInput(0),
        bind => bind.clone(),
    }
}

/// A value that a call has written: its writer, and the devices that have it.
struct Written {
    call: usize,
    devices: Vec<usize>,
}

/// A copy that a call needs.
struct Needed {
    reader: usize,
    writer: usize,
    transfer: Transfer,
}

/// Divides the calls of a step into segments. Inputs of the step are on every device; `streamed`
/// has the streamed weights that each call reads.
pub(super) fn segments(calls: &[BoundCall], streamed: &[Vec<String>]) -> Vec<Segment> {
    let needed = needed_copies(calls);
    // A segment ends where the device changes, before a call that waits for a copy, and after one
    // whose result is copied, so that calls behind it run beside the copy.
    let begins = |call: usize| {
        call == 0
            || calls[call].device != calls[call - 1].device
            || calls[call].misses != calls[call - 1].misses
            || reads_lookup(&calls[call])
            || !streamed[call].is_empty()
            || !streamed[call - 1].is_empty()
            || needed
                .iter()
                .any(|n| n.reader == call || n.writer + 1 == call)
    };
    let mut segments: Vec<Segment> = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        match segments.last_mut().filter(|_| !begins(number)) {
            Some(last) => last.calls.end = number + 1,
            None => segments.push(Segment {
                device: call.device,
                calls: number..number + 1,
                copies: Vec::new(),
                streamed: streamed[number].clone(),
                fills_after: None,
                lookup: None,
                misses: call.misses,
            }),
        }
    }
    let fills = (0..segments.len()).filter(|&s| !segments[s].streamed.is_empty());
    let fills: Vec<usize> = fills.collect();
    for (before, after) in fills.iter().zip(fills.iter().skip(SETS)) {
        segments[*after].fills_after = Some(*before);
    }
    let at = |call: usize| segments.iter().position(|s| s.calls.contains(&call));
    let copies: Vec<(usize, Transfer)> = needed
        .into_iter()
        .filter_map(|n| {
            let (reader, writer) = (at(n.reader)?, at(n.writer)?);
            let buffer = buffer_of(&n.transfer.bind);
            let uses = |s: usize| {
                let calls = calls[segments[s].calls.clone()].iter();
                calls.flat_map(|c| &c.binds).any(|b| buffer_of(b) == buffer)
            };
            // Users of the buffer that is read end with its writer, but must be waited for as well.
            let (from, to) = (n.transfer.from, segments[reader].device);
            let users = (0..reader).filter(|&s| match segments[s].device {
                device if device == to => uses(s),
                device if device == from => s < writer && uses(s),
                _ => false,
            });
            let waits = users.chain([writer]).collect();
            Some((
                reader,
                Transfer {
                    waits,
                    ..n.transfer
                },
            ))
        })
        .collect();
    for (segment, transfer) in copies {
        segments[segment].copies.push(transfer);
    }
    add_lookups(calls, &mut segments);
    segments
}

/// Returns whether a call reads what a lookup writes for cached experts.
fn reads_lookup(call: &BoundCall) -> bool {
    call.binds.contains(&Bind::Experts(ExpertBind::Hits))
}

/// Adds the lookups of layers with cached experts to the segments before which they come.
fn add_lookups(calls: &[BoundCall], segments: &mut [Segment]) {
    let chosen = Bind::Experts(ExpertBind::Chosen);
    let mut chooser: Option<(usize, usize)> = None;
    let mut readers: Vec<usize> = Vec::new();
    for at in 0..segments.len() {
        let own = &calls[segments[at].calls.clone()];
        if own.iter().any(reads_lookup)
            && let Some((writer, used)) = chooser
        {
            let away = segments[at + 1..].iter().take_while(|s| s.misses.is_some());
            let widths: Vec<usize> = away.clone().filter_map(|s| s.misses).collect();
            let lookup = LayerLookup {
                layer: layer_of_calls(own),
                used,
                away: away.clone().next().map_or(0, |s| s.device),
                widths,
                waits: readers.iter().copied().chain([writer]).collect(),
            };
            readers.clear();
            readers.push(at);
            segments[at].lookup = Some(lookup);
        }
        let own = &calls[segments[at].calls.clone()];
        for call in own {
            if let Some(slot) = call.binds.iter().position(|bind| *bind == chosen) {
                let used = call.function.slots[slot].dims.last();
                chooser = Some((at, used.map_or(1, |&used| used as usize)));
            }
        }
    }
}

/// Returns the layer of calls that read cached experts.
fn layer_of_calls(calls: &[BoundCall]) -> usize {
    let binds = calls.iter().flat_map(|call| &call.binds);
    let mut layers = binds.filter_map(|bind| match bind {
        Bind::Weight(name) if is_cached(name) => layer_of(name).map(|of| of.0),
        _ => None,
    });
    layers.next().unwrap_or(0)
}

fn needed_copies(calls: &[BoundCall]) -> Vec<Needed> {
    let mut written: FxHashMap<Bind, Written> = FxHashMap::default();
    let mut needed = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        for (bind, slot) in call.binds.iter().zip(&call.function.slots) {
            let value = value_of(bind);
            if slot.kind == SlotKind::Output {
                let devices = vec![call.device];
                written.insert(
                    value,
                    Written {
                        call: number,
                        devices,
                    },
                );
            } else if let Some(there) = written.get_mut(&value)
                && !there.devices.contains(&call.device)
            {
                let per_token = match bind {
                    Bind::Cut(cut) => cut.is_per_token,
                    _ => true,
                };
                let of_misses = calls[there.call].misses.is_some();
                needed.push(Needed {
                    reader: number,
                    writer: there.call,
                    transfer: Transfer {
                        bind: value,
                        from: calls[there.call].device,
                        bytes: slot.storage.bytes(&slot.dims).unwrap_or(0),
                        is_per_token: per_token,
                        is_of_misses: of_misses,
                        chosen: chosen_by_copy(call, slot),
                        waits: Vec::new(),
                    },
                });
                there.devices.push(call.device);
            }
        }
    }
    needed
}

/// Returns the layer of whose experts a copied value has the numbers: a part of one token that reads
/// experts has no other integers.
fn chosen_by_copy(call: &BoundCall, slot: &Slot) -> Option<usize> {
    let is_one_token = slot.dims.first() == Some(&1);
    let is_numbers = slot.storage == Storage::Plain(Scalar::I32);
    let mut weights = call.binds.iter().filter_map(|bind| match bind {
        Bind::Weight(name) => Some(layer_of(name)?),
        _ => None,
    });
    let (layer, _) = weights.find(|(_, rest)| is_of_experts(rest))?;
    (is_one_token && is_numbers).then_some(layer)
}

/// Where a copy reads.
pub(super) enum TransferSource {
    Buffer(Arc<dyn Device>, Buffer),
    /// At this offset of the span that the segment reads once.
    Span(usize),
}

/// A copy with its buffers.
pub(super) struct BoundTransfer {
    pub from: TransferSource,
    pub to: (Arc<dyn Device>, Buffer),
    /// Largest size, and the bytes of a token's row if there is one.
    pub bytes: usize,
    pub row: Option<usize>,
    pub is_of_misses: bool,
    pub chosen: Option<usize>,
    pub waits: Vec<usize>,
}

impl BoundTransfer {
    /// Copies the rows of `tokens` tokens; `span` has the bytes that were read for several copies.
    /// With `is_zero`, the rows are 0. `observe` sees them.
    fn run(
        &self,
        tokens: usize,
        span: &[u8],
        is_zero: bool,
        observe: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        let bytes = match self.row {
            Some(row) => (row * tokens).min(self.bytes),
            None => self.bytes,
        };
        let mut staged = self.to.0.stage(&self.to.1, 0, bytes)?;
        match &self.from {
            _ if is_zero => staged.bytes().fill(0),
            TransferSource::Buffer(device, buffer) => device.read(buffer, 0, staged.bytes())?,
            TransferSource::Span(offset) => {
                staged
                    .bytes()
                    .copy_from_slice(&span[*offset..offset + bytes]);
            }
        }
        observe(staged.bytes());
        staged.send()
    }
}

/// A segment with its copies and its captured graph.
pub(super) struct CapturedSegment {
    pub copies: Vec<BoundTransfer>,
    /// Device and buffer that are read once for copies of small values.
    pub span: Option<(Arc<dyn Device>, Buffer)>,
    /// Device of streamed weights, those that it reads, and the segment that uses their buffers
    /// before it.
    pub streamed: (Arc<dyn Device>, Vec<StreamedWeight>),
    pub fills_after: Option<usize>,
    /// Lookup of the experts that it reads.
    pub lookup: Option<BoundLookup>,
    /// Misses of a token up to which it runs.
    pub misses: Option<usize>,
    /// Number of its launches.
    pub launches: usize,
    pub replay: Box<dyn Replay>,
}

/// A lookup with its buffers.
pub(super) struct BoundLookup {
    pub of: LayerLookup,
    /// Numbers and weights of the chosen experts, on the main device.
    pub chosen: (Arc<dyn Device>, Buffer),
    /// The same of experts to compute there, and on the other device.
    pub hits: Buffer,
    pub misses: (Arc<dyn Device>, Buffer),
    /// Byte at which weights begin in each of these buffers.
    pub weights_at: usize,
}

impl BoundLookup {
    /// Looks up the experts of `tokens` tokens. Returns the misses of a token to compute.
    fn run(&self, tokens: usize, cache: &mut ExpertCache) -> Result<usize, Error> {
        let count = tokens * self.of.used;
        let (device, chosen) = &self.chosen;
        let mut bytes = vec![0; self.weights_at + count * size_of::<f32>()];
        device.read_settled(chosen, 0, &mut bytes)?;
        let part = |begin: usize| &bytes[begin..begin + count * size_of::<u32>()];
        let (numbers, weights) = (words(part(0)), words(part(self.weights_at)));
        let numbers: Vec<u32> = numbers.map(u32::from_le_bytes).collect();
        let weights: Vec<f32> = weights.map(f32::from_le_bytes).collect();
        let chosen = (&numbers[..], &weights[..]);
        let found = cache.look_up(self.of.layer, self.of.used, chosen, &self.of.widths);
        self.write(device, &self.hits, &found.hits, &found.hit_weights)?;
        if found.width > 0 {
            let (away, misses) = &self.misses;
            self.write(away, misses, &found.misses, &found.miss_weights)?;
        }
        Ok(found.width)
    }
    /// Writes numbers and weights as one copy.
    fn write(
        &self,
        device: &Arc<dyn Device>,
        to: &Buffer,
        numbers: &[u32],
        weights: &[f32],
    ) -> Result<(), Error> {
        let length = self.weights_at + size_of_val(weights);
        let mut staged = device.stage(to, 0, length)?;
        let bytes = staged.bytes();
        bytes[..size_of_val(numbers)].copy_from_slice(bytemuck::cast_slice(numbers));
        bytes[self.weights_at..].copy_from_slice(bytemuck::cast_slice(weights));
        staged.send()
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes
        .chunks_exact(4)
        .map(|word| [word[0], word[1], word[2], word[3]])
}

/// A captured step on several devices. It has ended when `start` returns.
pub(super) struct SegmentedStep {
    pub segments: Vec<CapturedSegment>,
    pub kind: StepKind,
    /// Counts of experts, and the slots that lookups find.
    cache: Arc<Mutex<ExpertCache>>,
    staging: Vec<u8>,
}

impl SegmentedStep {
    pub fn new(
        segments: Vec<CapturedSegment>,
        kind: StepKind,
        cache: Arc<Mutex<ExpertCache>>,
    ) -> SegmentedStep {
        SegmentedStep {
            segments,
            kind,
            cache,
            staging: Vec::new(),
        }
    }
    /// Returns the number of tokens of a step with these variables.
    fn tokens(&self, vars: &[(&str, i64)]) -> usize {
        let value = |name: &str| {
            vars.iter()
                .find(|v| v.0 == name)
                .map_or(1, |v| v.1 as usize)
        };
        match self.kind {
            StepKind::Decode => 1,
            StepKind::Mixed { .. } => value("piece") + value("rows") - 1,
            StepKind::Train { .. } => self.kind.max(),
            StepKind::Prefill { .. } | StepKind::BatchedDecode { .. } => value("n"),
        }
    }
    /// Runs all segments; `each` starts one, or passes it over.
    fn run(
        &mut self,
        vars: &[(&str, i64)],
        each: &mut dyn FnMut(&mut CapturedSegment, Turn) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let tokens = self.tokens(vars);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        // Misses of a token in the layer that was looked up last.
        let mut missed = 0;
        for at in 0..self.segments.len() {
            let (before, rest) = self.segments.split_at_mut(at);
            let segment = &mut rest[0];
            if let Some(lookup) = &segment.lookup {
                for &wait in &lookup.of.waits {
                    before[wait].replay.wait()?;
                }
                missed = lookup.run(tokens, &mut cache)?;
            }
            if segment.misses.is_some() && missed == 0 {
                each(segment, Turn::Passes)?;
                continue;
            }
            for &wait in segment.copies.iter().flat_map(|copy| &copy.waits) {
                before[wait].replay.wait()?;
            }
            if let Some((device, span)) = &segment.span {
                self.staging.resize(span.len(), 0);
                // Other values in it may still be written.
                device.read_settled(span, 0, &mut self.staging)?;
            }
            for copy in &segment.copies {
                let mut observe = |chosen: &[u8]| {
                    if let Some(layer) = copy.chosen {
                        let numbers = words(chosen).map(u32::from_le_bytes);
                        cache.observe(layer, numbers);
                    }
                };
                let is_zero = copy.is_of_misses && missed == 0;
                copy.run(tokens, &self.staging, is_zero, &mut observe)?;
            }
            if let Some(user) = segment.fills_after {
                before[user].replay.wait()?;
            }
            let (device, weights) = &segment.streamed;
            for weight in weights {
                let bytes = 0..weight.buffer.len();
                device.restore(&*weight.kept, bytes, &weight.buffer, 0)?;
            }
            let runs = segment.misses.is_none_or(|misses| misses == missed);
            each(segment, if runs { Turn::Runs } else { Turn::Passes })?;
        }
        Ok(())
    }
    /// Waits for all segments, even after an error; returns the first one.
    fn end<T>(&mut self, ran: Result<T, Error>) -> Result<T, Error> {
        let mut ended = Ok(());
        for segment in &mut self.segments {
            ended = ended.and(segment.replay.wait());
        }
        let ran = ran?;
        ended.map(|()| ran)
    }
}

/// Whether a segment runs in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Runs,
    Passes,
}

impl Replay for SegmentedStep {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        let begin = Instant::now();
        let ran = self.run(vars, &mut |segment, turn| match turn {
            Turn::Runs => segment.replay.start(vars),
            Turn::Passes => Ok(()),
        });
        self.end(ran)?;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.refill(begin.elapsed())
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        let mut seconds = Vec::new();
        let ran = self.run(vars, &mut |segment, turn| {
            match turn {
                Turn::Runs => seconds.extend(segment.replay.replay_timed(vars)?),
                Turn::Passes => seconds.resize(seconds.len() + segment.launches, 0.0),
            }
            Ok(())
        });
        self.end(ran)?;
        Ok(seconds)
    }
    fn replay_traced(&mut self, vars: &[(&str, i64)]) -> Result<Vec<Span>, Error> {
        let mut spans: Vec<Span> = Vec::new();
        let begin = Instant::now();
        let mut launches = 0;
        let ran = self.run(vars, &mut |segment, turn| {
            let started = begin.elapsed().as_secs_f64();
            let own = match turn {
                Turn::Runs => segment.replay.replay_traced(vars)?,
                Turn::Passes => Vec::new(),
            };
            spans.extend(own.into_iter().map(|span| Span {
                launch: span.launch + launches,
                start: span.start + started,
                end: span.end + started,
                ..span
            }));
            launches += segment.launches;
            Ok(())
        });
        self.end(ran)?;
        Ok(spans)
    }
}
