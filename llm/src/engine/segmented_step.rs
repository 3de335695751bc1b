//! A captured step on several devices: its segments are run in order, joined by copies.

use super::expert_cache::ExpertCache;
use super::host_experts::ExpertCopies;
use super::segments::LayerLookup;
use crate::arch::StepKind;
use gristmill_runtime::{Buffer, CopySpan, Device, Error, Replay, Span, StepTrace};
use gristmill_uop::clock::Instant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a copy reads.
pub(super) enum TransferSource {
    Buffer(Arc<dyn Device>, Buffer),
    /// At this offset of the span that the segment reads once.
    Span(usize),
}

/// A copy with its buffers.
pub(super) struct BoundTransfer {
    /// Index of the device that it reads.
    pub device: usize,
    pub from: TransferSource,
    pub to: (Arc<dyn Device>, Buffer),
    /// Largest size, and the bytes of a token's row if there is one.
    pub bytes: usize,
    pub row: Option<usize>,
    /// Whether it is the sum of experts that were not cached.
    pub is_of_misses: bool,
    /// Layer of whose experts it has the numbers that a token chose.
    pub chosen: Option<usize>,
    /// Whether the devices order the copy among their steps, so that nothing waits for `waits`.
    pub is_queued: bool,
    pub waits: Vec<usize>,
}

impl BoundTransfer {
    /// Copies the rows of `tokens` tokens; `span` has the bytes that were read for several copies.
    /// Returns the number of bytes.
    fn run(&self, tokens: usize, span: &[u8], experts: &mut Experts) -> Result<usize, Error> {
        let bytes = match self.row {
            Some(row) => (row * tokens).min(self.bytes),
            None => self.bytes,
        };
        if let (true, TransferSource::Buffer(device, buffer)) = (self.is_queued, &self.from) {
            let (to, at) = &self.to;
            to.copy_queued(&**device, buffer, at, bytes)?;
            return Ok(bytes);
        }
        let mut staged = self.to.0.stage(&self.to.1, 0, bytes)?;
        match &self.from {
            _ if self.is_of_misses && experts.missed == 0 => staged.bytes().fill(0),
            TransferSource::Buffer(device, buffer) => device.read(buffer, 0, staged.bytes())?,
            TransferSource::Span(offset) => {
                staged
                    .bytes()
                    .copy_from_slice(&span[*offset..offset + bytes]);
            }
        }
        if let Some(layer) = self.chosen {
            let numbers = words(staged.bytes()).map(u32::from_le_bytes);
            experts.cache.observe(layer, numbers);
        }
        staged.send()?;
        Ok(bytes)
    }
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
    /// The buffer that is read for the copies of the next segments as well, and the byte at which
    /// it has the chosen experts.
    pub span: Option<(Buffer, usize)>,
}

impl BoundLookup {
    /// Looks up the experts of `tokens` tokens. Returns the misses of a token to compute.
    fn run(
        &self,
        tokens: usize,
        staging: &mut Vec<u8>,
        cache: &mut ExpertCache,
    ) -> Result<usize, Error> {
        let count = tokens * self.of.used;
        let (device, chosen) = &self.chosen;
        let (buffer, length, begin) = match &self.span {
            Some((span, begin)) => (span, span.len(), *begin),
            None => (chosen, self.weights_at + count * size_of::<f32>(), 0),
        };
        staging.resize(length, 0);
        // Other values in it may still be written.
        device.read_settled(buffer, 0, staging)?;
        let bytes = &staging[begin..];
        let part = |begin: usize| &bytes[begin..begin + count * size_of::<u32>()];
        let (numbers, weights) = (words(part(0)), words(part(self.weights_at)));
        let numbers: Vec<u32> = numbers.map(u32::from_le_bytes).collect();
        let weights: Vec<f32> = weights.map(f32::from_le_bytes).collect();
        let chosen = (&numbers[..], &weights[..]);
        let found = cache.look_up(self.of.layer, self.of.used, chosen, &self.of.widths)?;
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

/// A segment with its copies and its captured graph.
pub(super) struct CapturedSegment {
    /// Index of its device.
    pub device: usize,
    pub copies: Vec<BoundTransfer>,
    /// Device and buffer that are read once for copies of small values.
    pub span: Option<(Arc<dyn Device>, Buffer)>,
    /// Device of streamed weights, those that it reads, and the segment that uses their buffers
    /// before it.
    pub streamed: (Arc<dyn Device>, Vec<Arc<ExpertCopies>>),
    pub fills_after: Option<usize>,
    /// Lookup of the experts that it reads.
    pub lookup: Option<BoundLookup>,
    /// Misses of a token up to which it runs.
    pub misses: Option<usize>,
    /// Number of its launches.
    pub launches: usize,
    pub replay: Box<dyn Replay>,
}

impl CapturedSegment {
    /// Copies the values that it reads from other devices.
    fn copy_values(
        &self,
        tokens: usize,
        staging: &mut Vec<u8>,
        experts: &mut Experts,
        mut timeline: Option<&mut Timeline>,
    ) -> Result<(), Error> {
        let start = timeline.as_ref().map_or(0.0, |of| of.now());
        if let Some((device, span)) = &self.span
            && !(experts.has_read && self.misses.is_some())
        {
            staging.resize(span.len(), 0);
            // Other values in it may still be written.
            device.read_settled(span, 0, staging)?;
        }
        for copy in &self.copies {
            let bytes = copy.run(tokens, staging, experts)?;
            if let Some(timeline) = &mut timeline {
                copy.to.0.settle()?;
                timeline.copied(start, Some(copy.device), self.device, bytes);
            }
        }
        Ok(())
    }
    /// Copies its streamed weights from host memory; a traced step waits for them.
    fn copy_weights(&self, mut timeline: Option<&mut Timeline>) -> Result<(), Error> {
        let start = timeline.as_ref().map_or(0.0, |of| of.now());
        let (device, weights) = &self.streamed;
        for weight in weights {
            weight.copy_all()?;
            if let Some(timeline) = &mut timeline {
                let bytes = weight.buffer().len();
                device.settle()?;
                device.read(weight.buffer(), 0, &mut [0; 4][..bytes.min(4)])?;
                timeline.copied(start, None, self.device, bytes);
            }
        }
        Ok(())
    }
}

/// Experts of a step that is run.
struct Experts<'c> {
    cache: MutexGuard<'c, ExpertCache>,
    /// Misses of a token in the layer that was looked up last.
    missed: usize,
    /// Whether that lookup has read the values that are copied for the misses.
    has_read: bool,
}

/// Whether a segment runs in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Runs,
    Passes,
}

/// Clock of a traced step, and the copies so far.
struct Timeline {
    begin: Instant,
    copies: Vec<CopySpan>,
}

impl Timeline {
    fn now(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }
    /// Records a copy that began when the one before it ended, or at `start` if that is later.
    fn copied(&mut self, start: f64, from: Option<usize>, to: usize, bytes: usize) {
        let last = self.copies.last().map_or(0.0, |copy| copy.end);
        self.copies.push(CopySpan {
            from,
            to,
            bytes,
            start: start.max(last),
            end: self.now(),
        });
    }
}

/// A captured step on several devices. It has ended when `start` returns, unless the devices order
/// all of its copies.
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
    /// Runs all segments; `each` starts one, or passes it over. Copies are recorded in `timeline`
    /// if there is one.
    fn run(
        &mut self,
        vars: &[(&str, i64)],
        mut timeline: Option<&mut Timeline>,
        each: &mut dyn FnMut(&mut CapturedSegment, Turn) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let tokens = self.tokens(vars);
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut experts = Experts {
            cache,
            missed: 0,
            has_read: false,
        };
        for at in 0..self.segments.len() {
            let (before, rest) = self.segments.split_at_mut(at);
            let segment = &mut rest[0];
            if let Some(lookup) = &segment.lookup {
                for &wait in &lookup.of.waits {
                    before[wait].replay.wait()?;
                }
                experts.missed = lookup.run(tokens, &mut self.staging, &mut experts.cache)?;
                experts.has_read = lookup.span.is_some();
            }
            if segment.misses.is_some() && experts.missed == 0 {
                each(segment, Turn::Passes)?;
                continue;
            }
            let waited = segment.copies.iter().filter(|copy| !copy.is_queued);
            for &wait in waited.flat_map(|copy| &copy.waits) {
                before[wait].replay.wait()?;
            }
            let of_trace = timeline.as_deref_mut();
            segment.copy_values(tokens, &mut self.staging, &mut experts, of_trace)?;
            if let Some(user) = segment.fills_after {
                before[user].replay.wait()?;
            }
            segment.copy_weights(timeline.as_deref_mut())?;
            let runs = segment.misses.is_none_or(|misses| misses == experts.missed);
            each(segment, if runs { Turn::Runs } else { Turn::Passes })?;
        }
        Ok(())
    }
    /// Returns whether the host need not wait for a segment to start another.
    fn is_queued(&self) -> bool {
        let is_queued = |segment: &CapturedSegment| {
            let alone = segment.lookup.is_none() && segment.streamed.1.is_empty();
            alone && segment.copies.iter().all(|copy| copy.is_queued)
        };
        self.segments.iter().all(is_queued)
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

impl Replay for SegmentedStep {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        let begin = Instant::now();
        let ran = self.run(vars, None, &mut |segment, turn| match turn {
            Turn::Runs => segment.replay.start(vars),
            Turn::Passes => Ok(()),
        });
        if ran.is_ok() && self.is_queued() {
            return Ok(());
        }
        self.end(ran)?;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.refill(begin.elapsed())
    }
    fn wait(&mut self) -> Result<(), Error> {
        self.end(Ok(()))
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        let mut seconds = Vec::new();
        let ran = self.run(vars, None, &mut |segment, turn| {
            match turn {
                Turn::Runs => seconds.extend(segment.replay.replay_timed(vars)?),
                Turn::Passes => seconds.resize(seconds.len() + segment.launches, 0.0),
            }
            Ok(())
        });
        self.end(ran)?;
        Ok(seconds)
    }
    /// Segments run one after the other, each with the clock of its device, which starts with the
    /// host's.
    fn replay_traced(&mut self, vars: &[(&str, i64)]) -> Result<StepTrace, Error> {
        let (mut spans, mut devices): (Vec<Span>, Vec<usize>) = (Vec::new(), Vec::new());
        let begin = Instant::now();
        let mut timeline = Timeline {
            begin,
            copies: Vec::new(),
        };
        let ran = self.run(vars, Some(&mut timeline), &mut |segment, turn| {
            let started = begin.elapsed().as_secs_f64();
            let own = match turn {
                Turn::Runs => segment.replay.replay_traced(vars)?.spans,
                Turn::Passes => Vec::new(),
            };
            let took = begin.elapsed().as_secs_f64() - started;
            let last = own.iter().map(|span| span.end).fold(0.0, f64::max);
            // A device's clock may run faster than the host's.
            let scale = if last > took { took / last } else { 1.0 };
            spans.extend(own.into_iter().map(|span| Span {
                launch: span.launch + devices.len(),
                start: span.start * scale + started,
                end: span.end * scale + started,
                ..span
            }));
            devices.resize(devices.len() + segment.launches, segment.device);
            Ok(())
        });
        self.end(ran)?;
        Ok(StepTrace {
            spans,
            copies: timeline.copies,
            devices,
        })
    }
}
