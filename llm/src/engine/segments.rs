//! Steps on several devices: segments of calls, each captured on its device, joined by copies.

use super::expert_stream::{SETS, StreamedWeight};
use crate::arch::{Bind, BoundCall, StepKind};
use gristmill_runtime::{Buffer, CopySpan, Device, Error, Replay, Span, StepTrace};
use gristmill_uop::function::SlotKind;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;
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
}

/// A value that is copied between devices before a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Transfer {
    pub bind: Bind,
    pub from: usize,
    /// Largest size in bytes, and whether the value has a row for each token.
    pub bytes: usize,
    pub is_per_token: bool,
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
    segments
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
                needed.push(Needed {
                    reader: number,
                    writer: there.call,
                    transfer: Transfer {
                        bind: value,
                        from: calls[there.call].device,
                        bytes: slot.storage.bytes(&slot.dims).unwrap_or(0),
                        is_per_token: per_token,
                        waits: Vec::new(),
                    },
                });
                there.devices.push(call.device);
            }
        }
    }
    needed
}

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
    pub waits: Vec<usize>,
}

impl BoundTransfer {
    /// Copies the rows of `tokens` tokens; `span` has the bytes that were read for several copies.
    /// Returns the number of bytes.
    fn run(&self, tokens: usize, span: &[u8]) -> Result<usize, Error> {
        let bytes = match self.row {
            Some(row) => (row * tokens).min(self.bytes),
            None => self.bytes,
        };
        let mut staged = self.to.0.stage(&self.to.1, 0, bytes)?;
        match &self.from {
            TransferSource::Buffer(device, buffer) => device.read(buffer, 0, staged.bytes())?,
            TransferSource::Span(offset) => {
                staged
                    .bytes()
                    .copy_from_slice(&span[*offset..offset + bytes]);
            }
        }
        staged.send()?;
        Ok(bytes)
    }
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
    pub streamed: (Arc<dyn Device>, Vec<StreamedWeight>),
    pub fills_after: Option<usize>,
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
        mut timeline: Option<&mut Timeline>,
    ) -> Result<(), Error> {
        let start = timeline.as_ref().map_or(0.0, |of| of.now());
        if let Some((device, span)) = &self.span {
            staging.resize(span.len(), 0);
            // Other values in it may still be written.
            device.read_settled(span, 0, staging)?;
        }
        for copy in &self.copies {
            let bytes = copy.run(tokens, staging)?;
            if let Some(timeline) = &mut timeline {
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
            let bytes = weight.buffer.len();
            device.restore(&*weight.kept, 0..bytes, &weight.buffer, 0)?;
            if let Some(timeline) = &mut timeline {
                device.read(&weight.buffer, 0, &mut [0; 4][..bytes.min(4)])?;
                timeline.copied(start, None, self.device, bytes);
            }
        }
        Ok(())
    }
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

/// A captured step on several devices. It has ended when `start` returns.
pub(super) struct SegmentedStep {
    pub segments: Vec<CapturedSegment>,
    pub kind: StepKind,
    staging: Vec<u8>,
}

impl SegmentedStep {
    pub fn new(segments: Vec<CapturedSegment>, kind: StepKind) -> SegmentedStep {
        SegmentedStep {
            segments,
            kind,
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
    /// Runs all segments; `each` starts one. Copies are recorded in `timeline` if there is one.
    fn run(
        &mut self,
        vars: &[(&str, i64)],
        mut timeline: Option<&mut Timeline>,
        each: &mut dyn FnMut(&mut CapturedSegment) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let tokens = self.tokens(vars);
        for at in 0..self.segments.len() {
            let (before, rest) = self.segments.split_at_mut(at);
            let segment = &mut rest[0];
            for &wait in segment.copies.iter().flat_map(|copy| &copy.waits) {
                before[wait].replay.wait()?;
            }
            segment.copy_values(tokens, &mut self.staging, timeline.as_deref_mut())?;
            if let Some(user) = segment.fills_after {
                before[user].replay.wait()?;
            }
            segment.copy_weights(timeline.as_deref_mut())?;
            each(segment)?;
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

impl Replay for SegmentedStep {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        let ran = self.run(vars, None, &mut |segment| segment.replay.start(vars));
        self.end(ran)
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        let mut seconds = Vec::new();
        let ran = self.run(vars, None, &mut |segment| {
            seconds.extend(segment.replay.replay_timed(vars)?);
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
        let ran = self.run(vars, Some(&mut timeline), &mut |segment| {
            let started = begin.elapsed().as_secs_f64();
            let own = segment.replay.replay_traced(vars)?.spans;
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
