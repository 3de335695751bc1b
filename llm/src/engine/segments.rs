//! Steps on several devices: segments of calls, each captured on its device, joined by copies.

use super::expert_stream::SETS;
use crate::arch::{Bind, BoundCall, CutBind, ExpertBind};
use crate::placement::{is_cached, is_of_experts, layer_of};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::{Slot, SlotKind, Storage};
use rustc_hash::FxHashMap;
use std::ops::Range;

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
    /// Largest size in bytes.
    pub bytes: usize,
    /// Most rows, if the value has a row for each token or sequence.
    pub rows: Option<usize>,
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
        Bind::Cut(cut) => Bind::Cut(CutBind {
            is_per_token: false,
            ..*cut
        }),
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
    segments.extend(sampler_segment(calls, &segments));
    segments
}

/// Returns a segment without calls that copies logits from another device to the main one, where
/// they are sampled; `None` if they are there.
fn sampler_segment(calls: &[BoundCall], segments: &[Segment]) -> Option<Segment> {
    let logits = calls.iter().enumerate().find_map(|(number, call)| {
        let slot = call.binds.iter().position(|bind| *bind == Bind::Logits)?;
        Some((number, call.device, &call.function.slots[slot]))
    });
    let (writer, from, slot) = logits.filter(|of| of.1 != 0)?;
    let writer = segments.iter().position(|s| s.calls.contains(&writer))?;
    Some(Segment {
        device: 0,
        calls: calls.len()..calls.len(),
        copies: vec![Transfer {
            bind: Bind::Logits,
            from,
            bytes: slot.storage.bytes(&slot.dims).unwrap_or(0),
            rows: None,
            is_of_misses: false,
            chosen: None,
            waits: vec![writer],
        }],
        streamed: Vec::new(),
        fills_after: None,
        lookup: None,
        misses: None,
    })
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
                let has_rows = !matches!(bind, Bind::Cut(cut) if !cut.is_per_token);
                let rows = slot.dims.first().map(|&rows| rows as usize);
                let of_misses = calls[there.call].misses.is_some();
                needed.push(Needed {
                    reader: number,
                    writer: there.call,
                    transfer: Transfer {
                        bind: value,
                        from: calls[there.call].device,
                        bytes: slot.storage.bytes(&slot.dims).unwrap_or(0),
                        rows: rows.filter(|_| has_rows),
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

/// Returns the layer of whose experts a copied value has the numbers: a part of one token that
/// reads experts has no other integers.
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
