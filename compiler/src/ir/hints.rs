//! What a decomposition asks of the schedule: the workgroup's shape of a node that it has made, and what belongs inside.

use gristmill_uop::{Id, RangeKind};

/// A workgroup shape asked for by a derivation: how many leading axes the launch is spread over. The node has a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Hint {
    /// Leading axes over which the launch is spread; none for a node that only wants its buffer.
    pub globals: usize,
    /// Elements of the last of them in one workgroup.
    pub tile: i64,
    /// What they become: copies in registers, or a loop for the threads to share.
    pub inner: RangeKind,
    /// Nodes that only this kernel reads, and computes inside.
    pub inside: Vec<Id>,
    /// Those of them that are stages, also where they could be computed in place: threads share the work in another way than the reader's.
    pub staged: Vec<Id>,
    /// Workgroups whose results nobody reads.
    pub future: Option<CausalSkip>,
    /// A stage that both operands of matrix products are read from, as large as fits.
    pub resident: Option<StagedTile>,
    /// Sums whose terms come from stages that are filled anew in each iteration.
    pub fused: Option<FusedSum>,
    /// Is the node itself such a sum, over its first axis and with nothing else that is carried?
    pub looped: bool,
    /// Is its kernel to stand beside others? Where it would be one more on the longest path, it may be fused.
    pub beside: bool,
}

impl Hint {
    /// A buffer, in whatever workgroups: readers want it in memory as it is, and nobody else wants what is inside.
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
            beside: false,
        }
    }
    /// A buffer that is filled beside what nobody waits for it with.
    pub fn beside() -> Hint {
        Hint { beside: true, ..Hint::buffer(vec![]) }
    }
}

/// A tile of a cache that a workgroup copies into a stage, before anything else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StagedTile {
    /// The node that is staged.
    pub node: Id,
    /// Positions of a chunk, of which the first axis has the number, counted from `base` on.
    pub size: i64,
    /// Number of the first chunk: a scalar.
    pub base: Id,
    /// Position of the first token, if what lies before it was there before this step: then a device need not wait for the step's other kernels.
    pub settled: Option<Id>,
    /// Tokens of the step, whose rows follow.
    pub tokens: Id,
}

/// Sums over chunks, their first axis, of which a workgroup has one after the other in its stages. Of token t they end with the chunk of the token's own position,
/// `first + t`: later ones are all zero. Their terms are multiples of 2^-m, m being a maximum over the same chunks, which is carried with the sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedSum {
    /// The reductions that add up.
    pub sums: [Id; 2],
    /// The maximum, whose axes are the first ones of the sums.
    pub most: Id,
    /// Axis of the tokens, of the node that is computed.
    pub token: usize,
    /// Positions of a chunk.
    pub size: i64,
    /// Number of the first chunk: a scalar.
    pub base: Id,
    /// Position of the first token: a scalar.
    pub first: Id,
    /// Has each iteration its rows of the cache in stages, from which both operands of matrix products are read?
    pub staged: bool,
}

/// What of a node nobody reads: elements of chunk c and token t, of which the chunk begins at `(base + c)·size`, where that is behind the token's
/// position `first + t`, or the chunk ends before the token's window. A device may leave workgroups out that compute nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CausalSkip {
    /// Axis of the chunks.
    pub chunk: usize,
    /// Axis of the tokens.
    pub token: usize,
    /// Positions of a chunk.
    pub size: i64,
    /// Number of the first chunk: a scalar.
    pub base: Id,
    /// Position of the first token: a scalar.
    pub first: Id,
    /// Positions that a token sees, its own included, unless it sees all before it.
    pub window: Option<i64>,
}
