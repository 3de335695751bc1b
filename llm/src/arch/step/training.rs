//! Calls of a step of training: what is captured twice, and what the backward pass adds.

use super::super::low_rank::LowRank;
use super::super::plan::{Bind, BoundCall, Functions, Options, StepKind};
use super::super::tensors::WeightInfo;
use super::super::trained::{Trained, TrainingPlan};
use super::adapters::{WeightAdapter, adapter};
use super::trained_call::{Pass, TrainedCall, Training};
use super::{AttentionMask, StepBuilder, StepFunction};
use gristmill_tensor::function::Capture;
use gristmill_tensor::grad::pullback;
use gristmill_tensor::tensor::{Dim, Tensor};
use gristmill_tensor::{dims, nn};
use gristmill_uop::Id;
use gristmill_uop::dtype::Scalar;
use std::cell::{Cell, RefCell};

/// Name of the bias that chooses experts. It affects no loss continuously and is never trained.
const SELECTION_BIAS: &str = "exp_probs_b.bias";

impl<'a> StepBuilder<'a> {
    /// Creates an empty step of training: options of the step, and of the function of the loss;
    /// what is trained, and the type of its products' operands.
    pub(in super::super) fn training(
        architecture: &'static str,
        [options, loss_options]: [&'a Options; 2],
        (trained, operands): (&'a Trained, Scalar),
        functions: &'a mut Functions,
    ) -> StepBuilder<'a> {
        StepBuilder {
            training: Some(Training {
                trained,
                operands,
                loss_options,
                loss: None,
                evaluation: None,
                backward: Vec::new(),
            }),
            ..StepBuilder::new(architecture, options, functions)
        }
    }
    /// Adds the call that computes logits; in training, the loss and its backward pass.
    pub(in super::super) fn head(&mut self, part: &str, write: impl Fn(&StepFunction<'a>)) {
        let Some(training) = &self.training else {
            return self.call(part, write);
        };
        let is_other = matches!(training.trained, Trained::DraftBlock(_)) && !self.drafts;
        if is_other || *training.trained == Trained::Nothing {
            return;
        }
        let options = training.loss_options;
        let (loss, evaluation) = (format!("{part}.loss"), format!("{part}.evaluation"));
        let loss = self.captured(&loss, options, Pass::Backward, &write);
        let evaluation = self.captured(&evaluation, options, Pass::Evaluation, &write);
        if let Some(training) = &mut self.training {
            (training.loss, training.evaluation) = (loss, evaluation);
        }
    }
    /// Captures a call's forward pass, and its backward pass if anything in it is trained.
    pub(super) fn trained_call(&mut self, part: &str, write: &dyn Fn(&StepFunction<'a>)) {
        let forward = self.captured(part, self.options, Pass::Forward, write);
        self.calls.extend(forward);
        let trained = self.training.as_ref().map(|training| training.trained);
        let is_frozen = match trained {
            Some(Trained::Nothing) => true,
            Some(Trained::DraftBlock(_)) => !self.drafts,
            _ => false,
        };
        if is_frozen {
            return;
        }
        let name = format!("{part}.backward");
        let backward = self.captured(&name, self.options, Pass::Backward, write);
        if let Some(training) = &mut self.training {
            training.backward.extend(backward);
        }
    }
    /// Replaces the bindings of the last call, and of its backward pass.
    pub(in super::super) fn rebind_last(&mut self, bind: &dyn Fn(&Bind) -> Bind) {
        let backward = self.training.as_mut().and_then(|of| of.backward.last_mut());
        for call in self.calls.last_mut().into_iter().chain(backward) {
            call.binds = call.binds.iter().map(bind).collect();
        }
    }
    /// Returns whether the calls are of a step of training.
    pub(in super::super) fn is_training(&self) -> bool {
        self.training.is_some()
    }
    /// Captures one pass of a call; `None` if its gradients are not needed.
    fn captured(
        &mut self,
        part: &str,
        options: &'a Options,
        pass: Pass,
        write: &dyn Fn(&StepFunction<'a>),
    ) -> Option<BoundCall> {
        let Training {
            trained, operands, ..
        } = *self.training.as_ref()?;
        let mut step = StepFunction::new(self.architecture, part, options);
        step.trained = Some(TrainedCall {
            trained,
            operands,
            pass,
            hidden: Cell::default(),
            parameters: RefCell::default(),
            results: RefCell::default(),
        });
        write(&step);
        if pass == Pass::Backward && !step.write_gradients() {
            return None;
        }
        let (function, binds) = step.finish();
        Some(self.bound_call(function, binds))
    }
    /// Returns the finished step of training.
    pub(in super::super) fn finish_training(self) -> TrainingPlan {
        let training = self.training.expect("a builder of a step of training");
        TrainingPlan {
            forward: self.calls,
            loss: training.loss.expect("a model has a head"),
            evaluation: training.evaluation.expect("a model has a head"),
            backward: training.backward.into_iter().rev().collect(),
        }
    }
}

impl<'o> StepFunction<'o> {
    /// Returns true in a step of training.
    pub(super) fn is_training(&self) -> bool {
        self.trained.is_some()
    }
    /// Multiplies `x [.., in]` by `w [.., out, in]`. Training rounds both to the operands of its
    /// products; other steps round activations where the weight is f16: see [`Tensor::contract`].
    pub(in super::super) fn product<'g>(&'g self, x: Tensor<'g>, w: Tensor<'g>) -> Tensor<'g> {
        match self.is_training() {
            // The compiler decides how a packed weight is multiplied.
            true if w.is_packed() => x.contract_in_f32(w),
            true => self.float_product(x, w),
            false => x.contract(w),
        }
    }
    /// Multiplies `x [.., in]` by `w [.., out, in]` of f32 values.
    pub(super) fn float_product<'g>(&'g self, x: Tensor<'g>, w: Tensor<'g>) -> Tensor<'g> {
        let to = self.operands();
        x.rounded(to).contract_in_f32(w.rounded(to))
    }
    /// Type that factors of float products are rounded to.
    fn operands(&self) -> Scalar {
        self.trained.as_ref().map_or(Scalar::F32, |t| t.operands)
    }
    /// Type that queries, keys and values are rounded to: f16 where products have halves, as in
    /// caches.
    fn attention_operands(&self) -> Scalar {
        match self.operands() {
            Scalar::F32 => Scalar::F32,
            _ => Scalar::F16,
        }
    }
    /// Returns the trained adapter of a weight, if it has one.
    pub(super) fn trained_adapter(&self, w: &WeightInfo) -> Option<WeightAdapter<'_>> {
        let Trained::LowRank(adapters) = self.trained.as_ref()?.trained else {
            return None;
        };
        let shape = *adapters.shapes.get(&w.name)?;
        let names = LowRank::matrices(&w.name);
        Some(adapter(w, shape, |side, dims| {
            let short = ["lora_a", "lora_b"][side];
            self.parameter(&names[side], short, dims)
        }))
    }
    /// Returns a weight as a parameter if all weights are trained.
    pub(super) fn full_parameter(&self, w: &WeightInfo, short: &str) -> Option<Tensor<'_>> {
        let trained = self.trained.as_ref()?;
        let is_trained = match trained.trained {
            Trained::Full => true,
            Trained::DraftBlock(layer) => w.name.starts_with(&format!("blk.{layer}.")),
            Trained::LowRank(_) | Trained::Nothing => false,
        };
        let is_trained = is_trained && !w.name.ends_with(SELECTION_BIAS);
        is_trained.then(|| self.parameter(&w.name, short, &w.dims))
    }
    /// Returns the parameter of that name.
    fn parameter(&self, name: &str, short: &str, dims: &[usize]) -> Tensor<'_> {
        let trained = self.trained.as_ref().expect("parameters exist in training");
        let known = |(other, id): &(String, Id)| (other == name).then_some(*id);
        if let Some(id) = trained.parameters.borrow().iter().find_map(known) {
            return self.capture.tensor(id);
        }
        let sizes: Vec<Dim> = dims.iter().map(|&d| Dim::from(d)).collect();
        let value = self.input(short, Bind::Parameter(name.into()), &sizes, Scalar::F32);
        trained
            .parameters
            .borrow_mut()
            .push((name.into(), value.id()));
        value
    }
    /// Keeps the hidden rows that a call reads, for their gradient.
    pub(super) fn keep_hidden(&self, layer: usize, x: Tensor<'_>) {
        if let Some(trained) = &self.trained {
            trained.hidden.set(Some((layer, x.id())));
        }
    }
    /// In a backward pass, keeps a result with its gradient instead of making it an output. Returns
    /// false if it is an output.
    pub(super) fn keep_result(&self, bind: &Bind, value: Tensor<'_>) -> bool {
        let Some(trained) = self.trained.as_ref().filter(|t| t.pass != Pass::Forward) else {
            return false;
        };
        let gradient = match bind {
            Bind::Hidden(layer) => {
                let dims: Vec<Dim> = value.dims().into_iter().map(Dim::Of).collect();
                self.input("dy", Bind::HiddenGradient(*layer), &dims, Scalar::F32)
            }
            Bind::Logits => self.loss(value),
            // Inputs of layers that depend on tokens alone are constants.
            _ => return true,
        };
        trained
            .results
            .borrow_mut()
            .push((value.id(), gradient.id()));
        true
    }
    /// Adds the cross-entropy of logits `[n, vocabulary]` to the loss; returns its gradient.
    fn loss<'g>(&'g self, logits: Tensor<'g>) -> Tensor<'g> {
        let (c, n) = (&self.capture, self.tokens());
        let vocabulary = logits.dim(1);
        let targets = self.input("targets", Bind::Targets, dims![n], Scalar::I32);
        let weights = self.input("weights", Bind::TargetWeights, dims![n], Scalar::F32);
        let largest = logits.max(&[1]);
        let terms = (logits - largest.unsqueeze(1)).exp();
        let sum = terms.sum(&[1]);
        let is_target = c.iota(dims![n, vocabulary], 1).equals(targets.unsqueeze(1));
        let of_target = is_target.select(logits, 0.0).sum(&[1]);
        let loss = ((sum.log() + largest - of_target) * weights).sum(&[0]);
        self.add_to("loss", Bind::Loss, loss.reshape(dims![1]));
        let expected = terms * sum.recip().unsqueeze(1);
        (expected - is_target.cast(Scalar::F32)) * weights.unsqueeze(1)
    }
    /// Adds a value to a state.
    pub(super) fn add_to(&self, name: &str, bind: Bind, value: Tensor<'_>) {
        let dims: Vec<Dim> = value.dims().into_iter().map(Dim::Of).collect();
        let state = self.capture.state(name, &dims, Scalar::F32);
        let state = self.bound(bind, state);
        let zero = self.capture.int(0);
        self.capture.output_state(state.assign(state + value, zero));
    }
    /// Writes the gradients of hidden rows and parameters. Returns false if none is needed.
    fn write_gradients(&self) -> bool {
        let trained = self.trained.as_ref().expect("a step of training");
        let tensor = |id: Id| self.capture.tensor(id);
        let results: Vec<_> = trained
            .results
            .borrow()
            .iter()
            .map(|&(y, dy)| (tensor(y), tensor(dy)))
            .collect();
        let parameters = trained.parameters.borrow().clone();
        // Nothing before the first layer is trained unless all weights are.
        let is_full = *trained.trained == Trained::Full;
        let hidden = trained
            .hidden
            .get()
            .filter(|&(layer, _)| layer > 0 || is_full);
        if results.is_empty() || (parameters.is_empty() && hidden.is_none()) {
            return false;
        }
        let of: Vec<Tensor<'_>> = hidden
            .iter()
            .map(|h| h.1)
            .chain(parameters.iter().map(|p| p.1))
            .map(tensor)
            .collect();
        let mut gradients = pullback(&results, &of, self.operands()).into_iter();
        if let Some((layer, _)) = hidden
            && let Some(dx) = gradients.next()
        {
            self.bound(Bind::HiddenGradient(layer), self.capture.output("dx", dx));
        }
        for ((name, _), gradient) in parameters.iter().zip(gradients) {
            self.add_to("gradient", Bind::Gradient(name.clone()), gradient);
        }
        true
    }
    /// Computes causal attention within each sequence of queries, keys and values
    /// `[n, heads, ..]`.
    pub(super) fn training_attention<'g>(
        &'g self,
        q: Tensor<'g>,
        kv: [Tensor<'g>; 2],
        of: AttentionMask<'g>,
    ) -> Tensor<'g> {
        let StepKind::Train {
            sequences,
            length,
            packed,
        } = self.options.tokens
        else {
            unreachable!("attention of training in another step")
        };
        match packed {
            true => self.packed_attention([sequences, length], q, kv, of),
            false => self.attention_by_heads([sequences, length], q, kv, of),
        }
    }
    /// Attention of sequences of one example each: equal lengths make them heads.
    fn attention_by_heads<'g>(
        &'g self,
        [sequences, length]: [usize; 2],
        q: Tensor<'g>,
        kv: [Tensor<'g>; 2],
        of: AttentionMask<'g>,
    ) -> Tensor<'g> {
        let all = |heads: Dim| fixed(&self.capture, heads) * sequences;
        let as_heads = |x: Tensor<'g>| {
            let (heads, width) = (x.dim(1), x.dim(2));
            x.reshape(dims![sequences, length, heads, width])
                .permute(&[1, 0, 2, 3])
                .reshape(dims![length, all(heads), width])
        };
        let heads = q.dim(1);
        let sinks = of.sinks.map(|sinks| {
            let each = sinks.unsqueeze(0).expand(dims![sequences, heads]);
            each.reshape(dims![all(heads)])
        });
        let seen = [self.capture.int(0), self.capture.int(length)];
        let to = self.attention_operands();
        let [q, k, v] = [q, kv[0], kv[1]].map(|x| as_heads(x).rounded(to));
        let out = q.attention_within([k, v], seen, of.scores, of.window, sinks);
        let width = out.dim(2);
        out.reshape(dims![length, sequences, heads, width])
            .permute(&[1, 0, 2, 3])
            .reshape(dims![self.tokens(), heads, width])
    }
    /// Attention of packed rows, by its definition: scores of all pairs of a row, masked.
    fn packed_attention<'g>(
        &'g self,
        [sequences, length]: [usize; 2],
        q: Tensor<'g>,
        kv: [Tensor<'g>; 2],
        of: AttentionMask<'g>,
    ) -> Tensor<'g> {
        let c = &self.capture;
        let by_head = |x: Tensor<'g>| {
            x.reshape(dims![sequences, length, x.dim(1), x.dim(2)])
                .permute(&[0, 2, 1, 3])
        };
        let [heads, groups] = [q, kv[0]].map(|x| fixed(c, x.dim(1)));
        let [k, v] = kv.map(by_head);
        let rows = heads / groups * length;
        let grouped = |x: Tensor<'g>| x.reshape(dims![sequences, groups, rows, x.dim(3)]);
        let to = self.operands();
        let product = |x: Tensor<'g>, w: Tensor<'g>| x.rounded(to).matmul_transposed(w.rounded(to));
        let scores = product(grouped(by_head(q)), k) * of.scores.scale;
        let scores = of
            .scores
            .cap
            .map_or(scores, |cap| nn::soft_cap(scores, cap));
        let scores = scores.reshape(dims![sequences, heads, length, length]);
        let pairs = dims![sequences, 1, length, length];
        let (row, seen) = (c.iota(pairs, 2), c.iota(pairs, 3));
        let own = self.each_position().reshape(dims![sequences, 1, length, 1]);
        let visible = seen.lt(row + 1) & (row - own).lt(seen + 1);
        let visible = match of.window {
            Some(window) => visible & row.lt(seen + window as i64),
            None => visible,
        };
        let masked = visible.select(scores, f64::from(f32::MIN));
        let sinks = of.sinks.map(|s| s.reshape(dims![1, heads, 1]));
        let largest = masked.max(&[3]);
        let largest = sinks.map_or(largest, |s| largest.maximum(s));
        let terms = (masked - largest.unsqueeze(3)).exp();
        let sum = terms.sum(&[3]);
        let sum = sinks.map_or(sum, |s| sum + (s - largest).exp());
        let weights = grouped(terms * sum.recip().unsqueeze(3));
        let out = product(weights, v.permute(&[0, 1, 3, 2]));
        out.reshape(dims![sequences, heads, length, v.dim(3)])
            .permute(&[0, 2, 1, 3])
            .reshape(dims![self.tokens(), heads, v.dim(3)])
    }
}

/// A length that is known at capture.
fn fixed(capture: &Capture, dim: Dim) -> usize {
    match dim {
        Dim::Size(n) => n,
        Dim::Of(id) => capture
            .tensor(id)
            .known()
            .expect("heads have a constant number"),
    }
}
