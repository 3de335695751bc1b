//! Requests of a decomposition to the scheduler: workgroup shape, fused nodes and stages
//! (workgroup-local buffers) of a node that it created.

use gristmill_uop::{Id, RangeKind};

/// Workgroup shape that a decomposition requests for a node. The node is materialised.
#[derive(Clone, Debug, PartialEq)]
pub struct Hint {
    /// Number of leading axes that the launch is spread over; 0 for a node that
    /// only needs a buffer.
    pub globals: usize,
    /// Elements of the last of these axes in one workgroup.
    pub tile: i64,
    /// Kind of range for these elements: `Upcast` for copies in registers, `Loop` for a
    /// loop that threads share.
    pub inner: RangeKind,
    /// Nodes that only this kernel reads, and that are fused into it.
    pub inside: Vec<Id>,
    /// Fused nodes that get a stage even where they could be computed in place, because threads
    /// divide their work differently from the reader's.
    pub staged: Vec<Id>,
    /// Workgroups with results that are never read.
    pub future: Option<CausalSkip>,
    /// A stage that both operands of matrix products are read from, as large as fits.
    pub resident: Option<StagedTile>,
    /// Sums of terms from stages that are refilled in each iteration.
    pub fused: Option<FusedSum>,
    /// Whether the node itself is such a sum, over its first axis and with nothing else carried.
    pub looped: bool,
    /// Whether the kernel should run in parallel with others. It may be fused if it would
    /// lengthen the critical path.
    pub concurrent: bool,
}

impl Hint {
    /// Requests a buffer with any workgroup shape, and fuses `inside`, which has no other reader.
    pub fn buffer(inside: Vec<Id>) -> Hint {
        Hint {
            globals: 0,
            tile: 1,
            inner: RangeKind::Loop,
            inside,
            staged: vec![],
            future: None,
            resident: None,
            fused: None,
            looped: false,
            concurrent: false,
        }
    }
    /// Requests a buffer that is filled in parallel with kernels off the critical path.
    pub fn concurrent() -> Hint {
        Hint {
            concurrent: true,
            ..Hint::buffer(vec![])
        }
    }
}

/// A tile of the KV cache that a workgroup copies into a stage before any other work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StagedTile {
    /// Tensor-level node that is staged.
    pub node: Id,
    /// Positions of a chunk. The first axis counts chunks from `base`.
    pub size: i64,
    /// Index of the first chunk: a scalar.
    pub base: Id,
    /// Position of the step's first token, if the positions before it were written before this
    /// step: a device then need not wait for the step's other kernels to read them.
    pub settled: Option<Id>,
    /// Number of tokens of the step; their rows come after those.
    pub tokens: Id,
}

/// Sums over chunks, their first axis, which a workgroup loads one at a time into its stages.
///
/// The sums of token t end with the chunk of the token's own position, `first + t`; later terms are
/// zero. Terms are multiples of 2^-m, where m is a running maximum over the same chunks, carried
/// with the sums (online softmax).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedSum {
    /// The reductions that are accumulated.
    pub sums: [Id; 2],
    /// The maximum; its axes are the leading axes of the sums.
    pub most: Id,
    /// Axis of the tokens in the computed node.
    pub token: usize,
    /// Positions of a chunk.
    pub size: i64,
    /// Index of the first chunk: a scalar.
    pub base: Id,
    /// Position of the first token: a scalar.
    pub first: Id,
    /// Whether each iteration stages its KV cache rows, from which both operands of
    /// matrix products are read.
    pub staged: bool,
}

/// Elements of a node that are never read (causal mask and window).
///
/// The element of chunk c and token t is not read if the chunk's beginning `(base + c)·size` is
/// after the token's position `first + t`, or if the chunk ends before the token's window. A device
/// may skip workgroups that compute nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CausalSkip {
    /// Axis of the chunks.
    pub chunk: usize,
    /// Axis of the tokens.
    pub token: usize,
    /// Positions of a chunk.
    pub size: i64,
    /// Index of the first chunk: a scalar.
    pub base: Id,
    /// Position of the first token: a scalar.
    pub first: Id,
    /// Size of the attention window in positions, the token's own included; `None`
    /// for full causal attention.
    pub window: Option<i64>,
}
