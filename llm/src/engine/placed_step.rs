//! Compilation and capture of a step, on one device or several.

use super::device_buffers::CutBuffers;
use super::executor::Engine;
use super::expert_cache::ExpertBuffers;
use super::graph_key::{GraphKey, plan_options};
use super::graphs::{CaptureKey, Graphs, PlacedCall, PlacedFunction, StepKey, Tokens};
use super::host_experts::ExpertCopies;
use super::inputs::IN_FLIGHT;
use super::planning::with_cached;
use super::segmented_step::{
    BoundLookup, BoundTransfer, CapturedSegment, SegmentedStep, TransferSource,
};
use super::segments::{Segment, Transfer, segments};
use crate::arch::{Bind, BoundCall, ExpertBind, Plan};
use crate::error::{Error, Progress};
use crate::load::check_layouts;
use crate::sampling::{self, CandidateSet};
use gristmill_runtime::{Buffer, Replay};
use gristmill_tensor::jit::Call;
use gristmill_uop::function::Function;
use std::sync::Arc;

impl Engine {
    /// Compiles and captures a step unless it is captured already.
    pub(super) fn prepare(
        &mut self,
        key: &StepKey,
        progress: &dyn Fn(Progress),
    ) -> Result<(), Error> {
        let capture = CaptureKey::Step(*key);
        if self.graphs.has(&capture) {
            return Ok(());
        }
        let plan = self.plan(key.graph)?;
        self.fit_cuts(&plan)?;
        let (next, choice) = self.token_functions(key);
        let of_plan = plan.calls.iter().map(|c| (c.device, c.function.clone()));
        let functions: Vec<PlacedFunction> = next
            .iter()
            .map(|f| (0, f.clone()))
            .chain(of_plan)
            .chain(choice.iter().map(|f| (0, f.clone())))
            .collect();
        let mut ready = self.graphs.compile(&functions, progress)?.into_iter();
        let mut call = |device: usize, args: Vec<Buffer>| -> PlacedCall {
            let Some(function) = ready.next() else {
                unreachable!("as many are ready as were asked for")
            };
            (device, Call { function, args })
        };
        let first = next.map(|_| call(0, self.next_args(key)));
        let mut calls = Vec::new();
        for bound in &plan.calls {
            let (device, placed) = call(bound.device, self.args(bound, key));
            let weights = [&self.on[device].weights, &self.stream.bound];
            check_layouts(weights, bound, &placed.function)?;
            calls.push((device, placed));
        }
        let last = choice.map(|_| call(0, self.choice_args(key)));
        let replay = self.capture_calls(&plan, [&first, &last], &calls, key)?;
        let all = first.iter().chain(&calls).chain(&last);
        let narrower = (0..calls.len()).filter(|&call| plan.is_narrower(call));
        let launches = |call: usize| calls[call].1.function.compiled.programs.len();
        let passed = narrower.map(launches).sum();
        self.graphs
            .keep(capture, replay, all.map(|placed| &placed.1), passed);
        Ok(())
    }
    /// Returns the functions that gather a step's tokens and choose the next ones, if it has any.
    fn token_functions(&mut self, key: &StepKey) -> (Option<Arc<Function>>, Option<Arc<Function>>) {
        let (vocabulary, parallel) = (self.model.vocabulary(), self.settings.rows());
        let next = (key.tokens == Tokens::Gathered).then(|| sampling::next_function(parallel));
        let most = match key.graph {
            GraphKey {
                others: 0, tokens, ..
            } => tokens,
            GraphKey { others, .. } => others + 1,
        };
        let choice = key.among.map(|among| among.function(vocabulary, most));
        let functions = &mut self.graphs.functions;
        let mut share = |f: Option<Function>| f.map(|f| functions.share(f));
        (share(next), share(choice))
    }
    /// Returns the buffers of the function that gathers tokens.
    fn next_args(&self, key: &StepKey) -> Vec<Buffer> {
        let main = self.main();
        let inputs = &main.inputs[key.set];
        let before = &main.inputs[(key.set + IN_FLIGHT - 1) % IN_FLIGHT];
        let args = [&before.chosen, &inputs.from, &inputs.given, &inputs.tokens];
        args.map(Buffer::clone).to_vec()
    }
    /// Returns the buffers of the function that chooses the next tokens.
    fn choice_args(&self, key: &StepKey) -> Vec<Buffer> {
        let main = self.main();
        let inputs = &main.inputs[key.set];
        let mut args = vec![main.activations.logits.clone()];
        if key.among != Some(CandidateSet::Top1) {
            args.extend([inputs.numbers.clone(), inputs.random.clone()]);
        }
        args.push(inputs.chosen.clone());
        args
    }
    /// Returns the buffers that a call of a step is bound to.
    fn args(&self, call: &BoundCall, key: &StepKey) -> Vec<Buffer> {
        let on = &self.on[call.device];
        let bound = |bind: &Bind| match bind {
            Bind::Tokens if key.tokens == Tokens::Chosen => on.inputs
                [(key.set + IN_FLIGHT - 1) % IN_FLIGHT]
                .chosen
                .clone(),
            Bind::State(layer, plane) if key.graph.contiguous => {
                self.cache.sequence_buffer(*layer, *plane, key.state_row)
            }
            Bind::State(layer, plane) => self.cache.buffer(*layer, *plane).clone(),
            Bind::Weight(name) => {
                let streamed = || self.stream.get(name).map(|of| of.buffer());
                let buffer = on.weights.get(name).or_else(streamed);
                buffer.expect("loaded for all plans").clone()
            }
            bind => on.bound(bind, key.set),
        };
        call.binds.iter().map(bound).collect()
    }
    /// Returns the plan of a graph's steps, with the device of each call.
    pub(super) fn plan(&mut self, graph: GraphKey) -> Result<Plan, Error> {
        let (shape, model, settings) = (self.cache.shape(), &self.model, &self.settings);
        let Graphs {
            units,
            functions,
            splitter,
            ..
        } = &mut self.graphs;
        splitter.split(graph.tokens, functions, &mut |of, functions| {
            let options = plan_options(graph, shape, units[of.device].jit.target());
            model.plan(&with_cached(options, graph, of, settings), functions)
        })
    }
    /// Allocates buffers for the values between parts of layers and for the experts that steps
    /// choose, on every device. Steps captured before keep theirs.
    fn fit_cuts(&mut self, plan: &Plan) -> Result<(), Error> {
        let mut sizes: Vec<usize> = Vec::new();
        for call in &plan.calls {
            for (bind, slot) in call.binds.iter().zip(&call.function.slots) {
                let Bind::Cut(cut) = bind else { continue };
                let bytes = slot.storage.bytes(&slot.dims).unwrap_or(0);
                sizes.resize(sizes.len().max(cut.number + 1), 0);
                sizes[cut.number] = bytes.max(sizes[cut.number]);
            }
        }
        let chosen = most_chosen(plan);
        if sizes.is_empty() && chosen.is_none() {
            return Ok(());
        }
        let bytes = chosen.map_or(0, ExpertBuffers::bytes);
        for (device, on) in self.on.iter_mut().enumerate() {
            let device = &**self.graphs.on(device);
            on.cuts = CutBuffers::new(device, &sizes, bytes)?;
            if let Some(most) = chosen {
                on.experts = Some(ExpertBuffers::new(device, most, on.cuts.chosen.clone())?);
            }
        }
        Ok(())
    }
    /// Captures the calls of a plan, with a call of the main device before and after them.
    fn capture_calls(
        &self,
        plan: &Plan,
        [first, last]: [&Option<PlacedCall>; 2],
        calls: &[PlacedCall],
        key: &StepKey,
    ) -> Result<Box<dyn Replay>, Error> {
        let segments = segments(&plan.calls, &self.stream.of_calls(plan));
        let ends = segments.len().saturating_sub(1);
        let mut captured = Vec::new();
        for (number, segment) in segments.iter().enumerate() {
            let own = calls[segment.calls.clone()].iter();
            let before = first.iter().filter(|_| number == 0);
            let after = last.iter().filter(|_| number == ends);
            let all: Vec<Call> = before
                .chain(own)
                .chain(after)
                .map(|c| c.1.clone())
                .collect();
            captured.push(CapturedSegment {
                device: segment.device,
                copies: self.bound_transfers(segment, key),
                span: self.span_of(segment).map(|span| {
                    let from = segment.copies.iter().find(|of| of.bind.is_cut());
                    let device = from.map_or(0, |of| of.from);
                    (self.graphs.on(device).clone(), span.clone())
                }),
                streamed: (
                    self.graphs.on(segment.device).clone(),
                    self.streamed_weights(segment),
                ),
                fills_after: segment.fills_after,
                lookup: self.bound_lookup(segment),
                misses: segment.misses,
                launches: all.iter().map(|c| c.function.compiled.programs.len()).sum(),
                replay: self.graphs.capture_on(segment.device, &all)?,
            });
        }
        if let [only] = &captured[..]
            && only.streamed.1.is_empty()
            && let Some(only) = captured.pop()
        {
            return Ok(only.replay);
        }
        let options = plan_options(key.graph, self.cache.shape(), self.graphs.jit().target());
        let cache = self.expert_cache.clone();
        Ok(Box::new(SegmentedStep::new(
            captured,
            options.tokens,
            cache,
        )))
    }
    fn bound_lookup(&self, segment: &Segment) -> Option<BoundLookup> {
        let of = segment.lookup.clone()?;
        let [home, away] = [segment.device, of.away].map(|device| {
            let experts = self.on[device].experts.as_ref();
            experts.map(|experts| (self.graphs.on(device).clone(), experts))
        });
        let ((home, own), (away, other)) = (home?, away?);
        let span = self.on[segment.device].cuts.span.as_ref();
        let chosen = self.on[segment.device].cuts.chosen.as_ref();
        Some(BoundLookup {
            span: span.zip(chosen).map(|(span, chosen)| {
                let begin = chosen.offset() - span.offset();
                (span.clone(), begin)
            }),
            weights_at: own.weights_at(),
            chosen: (home, own.whole(ExpertBind::Chosen)),
            hits: own.whole(ExpertBind::Hits),
            misses: (away, other.whole(ExpertBind::Misses)),
            of,
        })
    }
    fn streamed_weights(&self, segment: &Segment) -> Vec<Arc<ExpertCopies>> {
        let names = segment.streamed.iter();
        names.filter_map(|n| self.stream.get(n).cloned()).collect()
    }
    fn bound_transfers(&self, segment: &Segment, key: &StepKey) -> Vec<BoundTransfer> {
        let most = key.graph.tokens + key.graph.others;
        let on_device = |device: usize, bind: &Bind| {
            let buffer = self.on[device].bound(bind, key.set);
            (self.graphs.on(device).clone(), buffer)
        };
        let bound = |transfer: &Transfer| {
            let (device, buffer) = on_device(transfer.from, &transfer.bind);
            let span = self.span_of(segment).filter(|_| transfer.bind.is_cut());
            let to = on_device(segment.device, &transfer.bind);
            let is_plain = !transfer.is_of_misses && transfer.chosen.is_none() && span.is_none();
            BoundTransfer {
                device: transfer.from,
                is_queued: is_plain && to.0.queues_copies_from(&*device),
                from: match span {
                    Some(span) => TransferSource::Span(buffer.offset() - span.offset()),
                    None => TransferSource::Buffer(device, buffer),
                },
                to,
                bytes: transfer.bytes,
                row: (transfer.rows == Some(most)).then(|| transfer.bytes / most),
                is_of_misses: transfer.is_of_misses,
                chosen: transfer.chosen,
                waits: transfer.waits.clone(),
            }
        };
        segment.copies.iter().map(bound).collect()
    }
    /// Returns the buffer that the host reads as a whole for the copies of a segment, if there are
    /// several of small values from one device.
    fn span_of(&self, segment: &Segment) -> Option<&Buffer> {
        let mut cuts = segment.copies.iter().filter(|of| of.bind.is_cut());
        let from = cuts.next()?.from;
        let several = cuts.next().is_some_and(|of| of.from == from);
        let span = self.on[from].cuts.span.as_ref();
        let to = self.graphs.on(segment.device);
        let by_host = !to.queues_copies_from(&**self.graphs.on(from));
        span.filter(|_| several && by_host && cuts.all(|of| of.from == from))
    }
}

/// Returns the largest number of experts that a layer's tokens choose, if layers have cached ones.
fn most_chosen(plan: &Plan) -> Option<usize> {
    let sizes = plan.calls.iter().flat_map(|call| {
        let slots = call.binds.iter().zip(&call.function.slots);
        let chosen = slots.filter(|of| *of.0 == Bind::Experts(ExpertBind::Chosen));
        chosen.map(|(_, slot)| slot.dims.iter().product::<i64>() as usize)
    });
    sizes.max()
}
