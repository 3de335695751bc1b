//! Reverse-mode gradients of a captured graph, written as ordinary ops of the same graph.
//!
//! [`grad`] walks the graph from the loss to the parameters. Every op has one row in
//! [`rules::rule`], which maps the gradient of its value to gradients of its sources. The compiler
//! schedules the result like any other graph: the gradient of a contraction is a contraction, that
//! of a packed weight's product reads the weight as it is packed.
//!
//! Gradients are f32 whatever the type of the value: a cast to f16 or bf16 passes its gradient on
//! unrounded, and the rounding itself counts as the identity. Integers and booleans have none, so
//! that a choice (top-k, a row number) is a constant. Where two sources of `MAX` or `MIN` are
//! equal, the first gets the gradient; equal maxima of a reduction share it.
//!
//! ```
//! use gristmill_tensor::evaluate::{Env, evaluate};
//! use gristmill_tensor::{dims, function::Capture, grad::grad};
//! use gristmill_uop::Scalar;
//! let c = Capture::new("square");
//! let x = c.input("x", dims![3], Scalar::F32);
//! let loss = (x * x).sum(&[0]);
//! let dx = grad(loss, &[x])[0];
//! c.output("dx", dx);
//! let f = c.finish();
//! let values = evaluate(&f.graph, f.outputs[0].1, &Env::new().values(0, &[1.0, 2.0, -3.0]));
//! assert_eq!(values.data, [2.0, 4.0, -6.0]);
//! ```

mod attention;
mod elementwise;
mod movement;
mod product;
mod rules;
mod step;
#[cfg(test)]
mod tests;

use crate::capture::Capture;
use crate::tensor::Tensor;
use gristmill_compiler::decompose;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::{Id, Op};
use rules::Rule;
pub use rules::{Derivative, derivative};
use rustc_hash::{FxHashMap, FxHashSet};
use step::{Part, Step, zeros};

/// Returns the gradient of a scalar loss with respect to each of `of`, f32 and of the same dims.
///
/// A tensor that the loss does not depend on has gradient zero. `of` may hold parameters and
/// intermediate values.
///
/// # Panics
/// If the loss is no scalar, or depends on `of` through an op without a gradient.
pub fn grad<'g>(loss: Tensor<'g>, of: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
    assert!(loss.rank() == 0, "a loss is a scalar, not {loss:?}");
    let one = loss.capture().constant(1.0, Scalar::F32);
    pullback(&[(loss, one)], of, Scalar::F32)
}

/// Returns the gradients of `Σ value·seed` over the pairs of `outputs` with respect to `of`.
///
/// Seeds are f32 and have the dims of their values: the gradients of a loss with respect to them
/// (vector-Jacobian product). Factors of matrix products are rounded to `operands`, f32 for none,
/// except packed weights.
///
/// # Panics
/// If dims differ, or a value depends on `of` through an op without a gradient.
pub fn pullback<'g>(
    outputs: &[(Tensor<'g>, Tensor<'g>)],
    of: &[Tensor<'g>],
    operands: Scalar,
) -> Vec<Tensor<'g>> {
    let Some(&(first, _)) = outputs.first() else {
        return of.iter().map(|&x| zeros(x)).collect();
    };
    let c = first.capture();
    let mut roots: Vec<Id> = outputs.iter().map(|o| o.0.id).collect();
    // The chunks of a recurrence are ordinary ops, whose gradients run backwards over its states.
    decompose::scan::expand(&mut c.graph.borrow_mut(), &mut roots);
    let order = c.graph.borrow().toposort(&roots);
    let mut pass = Backward::new(c, &order, of, operands);
    for (&root, &(value, seed)) in roots.iter().zip(outputs) {
        assert_eq!(
            value.dims(),
            seed.dims(),
            "the seed of {value:?} is {seed:?}"
        );
        pass.add(root, Part::Whole(seed));
    }
    for &id in order.iter().rev() {
        pass.visit(id);
    }
    of.iter()
        .map(|&x| pass.whole.get(&x.id).copied().unwrap_or_else(|| zeros(x)))
        .collect()
}

/// The walk from the outputs to the parameters.
struct Backward<'g> {
    capture: &'g Capture,
    /// Nodes whose gradients are needed: floats that depend on a parameter.
    active: FxHashSet<Id>,
    parts: FxHashMap<Id, Vec<Part<'g>>>,
    /// Finished gradients of the parameters.
    whole: FxHashMap<Id, Tensor<'g>>,
    wanted: FxHashSet<Id>,
    operands: Scalar,
}

impl<'g> Backward<'g> {
    fn new(
        capture: &'g Capture,
        order: &[Id],
        of: &[Tensor<'g>],
        operands: Scalar,
    ) -> Backward<'g> {
        let wanted: FxHashSet<Id> = of.iter().map(|t| t.id).collect();
        let g = capture.graph.borrow();
        let mut active = FxHashSet::default();
        for &id in order {
            let depends = wanted.contains(&id) || g[id].src.iter().any(|s| active.contains(s));
            if depends && g.scalar(id).is_float() {
                active.insert(id);
            }
        }
        drop(g);
        let (parts, whole) = Default::default();
        Backward {
            capture,
            active,
            parts,
            whole,
            wanted,
            operands,
        }
    }
    fn add(&mut self, id: Id, part: Part<'g>) {
        if self.active.contains(&id) {
            self.parts.entry(id).or_default().push(part);
        }
    }
    /// Sums the parts of a node's gradient and passes it on to its sources.
    fn visit(&mut self, id: Id) {
        let Some(parts) = self.parts.remove(&id) else {
            return;
        };
        let y = self.capture.tensor(id);
        let dy = movement::total(y, parts);
        if self.wanted.contains(&id) {
            self.whole.insert(id, dy);
        }
        let (op, arg, src) = {
            let g = self.capture.graph.borrow();
            let n = &g[id];
            (n.op, n.arg.clone(), n.src.clone())
        };
        if !src.iter().any(|s| self.active.contains(s)) {
            return;
        }
        let step = Step {
            y,
            src: src.iter().map(|&s| self.capture.tensor(s)).collect(),
            arg,
            dy,
            operands: self.operands,
        };
        for (i, part) in self.parts_of(op, &step) {
            self.add(src[i], part);
        }
    }
    /// Gradients of the sources that need one.
    fn parts_of(&self, op: Op, step: &Step<'g>) -> Vec<(usize, Part<'g>)> {
        let needs = |i: usize| self.active.contains(&step.src[i].id);
        match rules::rule(op) {
            Rule::Constant => Vec::new(),
            Rule::Elementwise(rule) => (0..step.src.len())
                .filter(|&i| needs(i))
                .map(|i| (i, Part::Whole(elementwise::fit(rule(step, i), step.src[i]))))
                .collect(),
            Rule::Tensor(rule) => rule(step, &needs),
            Rule::Missing(why) => panic!("{} has no gradient: {why}", op.name()),
        }
    }
}
