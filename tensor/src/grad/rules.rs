//! The table of gradient rules: one row per op.

use super::step::{Part, Step};
use super::{attention, elementwise as e, movement as m};
use crate::tensor::Tensor;
use gristmill_uop::Op;

/// Gradients of a tensor-level op's sources: index and gradient of each source that needs one.
pub(super) type TensorRule =
    for<'g> fn(&Step<'g>, &dyn Fn(usize) -> bool) -> Vec<(usize, Part<'g>)>;

/// How the gradient of a value becomes gradients of its sources.
pub(super) enum Rule {
    /// The value does not depend on its sources continuously, or has none.
    Constant,
    /// Gradient of source `i`, of the value's dims; sources may be scalars.
    Elementwise(for<'g> fn(&Step<'g>, usize) -> Tensor<'g>),
    /// Gradients of all sources that need one.
    Tensor(TensorRule),
    /// There is no rule, with the reason.
    Missing(&'static str),
}

/// What is known of an op's gradient, for tests and documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Derivative {
    /// Zero everywhere, or the op has no float sources.
    Zero,
    /// The op has a rule.
    Rule,
    /// The op has no gradient; a graph that needs it is refused.
    Missing,
}

/// Returns what [`grad`](super::grad) does at an op.
pub fn derivative(op: Op) -> Derivative {
    match rule(op) {
        Rule::Constant => Derivative::Zero,
        Rule::Elementwise(_) | Rule::Tensor(_) => Derivative::Rule,
        Rule::Missing(_) => Derivative::Missing,
    }
}

const LATER: Rule = Rule::Missing("it exists only in kernels");

/// Returns the gradient rule of an op.
pub(super) fn rule(op: Op) -> Rule {
    match op {
        Op::Const | Op::Var | Op::Param | Op::Iota => Rule::Constant,

        Op::Reshape => Rule::Tensor(m::reshape),
        Op::Permute => Rule::Tensor(m::permute),
        Op::Expand => Rule::Tensor(m::expand),
        Op::Shrink => Rule::Tensor(m::shrink),
        Op::Cat => Rule::Tensor(m::cat),

        Op::Cast => Rule::Elementwise(|s, _| s.dy),
        Op::Neg => Rule::Elementwise(|s, _| -s.dy),
        Op::Exp => Rule::Elementwise(|s, _| s.dy * s.value()),
        Op::Exp2 => Rule::Elementwise(|s, _| s.dy * s.value() * std::f64::consts::LN_2),
        Op::Log => Rule::Elementwise(|s, _| s.dy * s.float(0).recip()),
        Op::Sqrt => Rule::Elementwise(|s, _| s.dy * s.value().recip() * 0.5),
        Op::Recip => Rule::Elementwise(|s, _| -(s.dy * s.value() * s.value())),
        Op::Add => Rule::Elementwise(|s, _| s.dy),
        Op::Sub => Rule::Elementwise(e::sub),
        Op::Mul => Rule::Elementwise(e::mul),
        Op::Div => Rule::Elementwise(e::div),
        Op::Max => Rule::Elementwise(e::max),
        Op::Min => Rule::Elementwise(e::min),
        Op::Where => Rule::Elementwise(e::select),
        Op::Fma => Rule::Elementwise(e::fma),
        Op::Round | Op::Lt | Op::Eq => Rule::Constant,
        Op::IDiv | Op::Mod | Op::And | Op::Or | Op::Xor | Op::Shl | Op::Shr => Rule::Constant,
        Op::Table | Op::Dot4 | Op::SignedDot4 | Op::Dot2 | Op::Half | Op::Halves | Op::Table4 => {
            Rule::Constant
        }
        Op::Bitcast => Rule::Missing("bits of a float are no function of it that has a slope"),

        Op::Reduce => Rule::Tensor(m::reduce),
        Op::Gather => Rule::Tensor(m::gather),
        // The packed bytes are constants; a trained weight is asked for as the decoded tensor.
        Op::Decode => Rule::Constant,
        Op::Assign => Rule::Tensor(m::assign),
        Op::ScatterAdd => Rule::Tensor(m::scatter_add),
        Op::Copy => Rule::Tensor(m::copy),
        Op::Attention => Rule::Tensor(attention::attention),
        Op::PagedAttention => Rule::Missing("a paged cache is for inference; use attention"),
        Op::Scan => Rule::Missing("it is replaced by its chunks before gradients are taken"),
        // The gradient of a custom kernel is that of its reference expression.
        Op::Call => Rule::Tensor(m::copy),

        Op::Range | Op::Load | Op::Index | Op::Local | Op::Rescaled => LATER,
        Op::Store | Op::Body | Op::Kernel => LATER,
        Op::Lanes | Op::Pack | Op::Splat | Op::Fold | Op::Mma | Op::MmaHalf => LATER,
        Op::PairBf16 | Op::MmaShared | Op::ScaledPair | Op::TileLoad => LATER,
        Op::TileRows | Op::TileMma | Op::Part | Op::Acc => LATER,
    }
}
