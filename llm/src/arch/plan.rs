//! A step as a list of function calls: the interface between a model and a runtime.

use super::cache::CacheType;
use super::pools::Pools;
use gristmill_tensor::function::{ContentKey, Key};
use gristmill_uop::function::Function;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum texts of a step of a text encoder.
pub(crate) const MAX_TEXTS: usize = 15;

/// Kind of a step: which tokens of which sequences it processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StepKind {
    /// Decode step of one sequence: one token.
    Decode,
    /// Prefill chunk of one sequence: variable `n`, 1 to `max` tokens.
    Prefill {
        /// Maximum tokens in one step.
        max: usize,
    },
    /// Batched decode: one token each of `n` sequences, 1 to `max`, over a paged KV cache. The
    /// variable `length` is greater than every token's position.
    BatchedDecode {
        /// Maximum sequences in one step.
        max: usize,
    },
    /// Mixed batch over a paged KV cache: a prefill chunk and one token each of other sequences.
    ///
    /// The chunk has `piece` tokens of one sequence; `rows` − 1 decode tokens follow it.
    /// The variable `length` is greater than the positions of these decode tokens, and 1
    /// if there are none.
    Mixed {
        /// Maximum tokens of the prefill chunk.
        piece: usize,
        /// Maximum number of decode tokens after the chunk.
        others: usize,
    },
    /// A step of training: `length` tokens each of `sequences` sequences, from position 0, without
    /// a KV cache. Rows are in order of sequences.
    Train {
        /// Number of sequences, at least 1.
        sequences: usize,
        /// Tokens of each sequence.
        length: usize,
        /// Sequences are rows of several examples: the input `positions` has each token's position
        /// in its example, and tokens see their own example alone.
        packed: bool,
    },
}

impl StepKind {
    /// Returns the maximum number of tokens in one step.
    pub fn max(self) -> usize {
        match self {
            StepKind::Decode => 1,
            StepKind::Prefill { max } | StepKind::BatchedDecode { max } => max,
            StepKind::Mixed { piece, others } => piece + others,
            StepKind::Train {
                sequences, length, ..
            } => sequences * length,
        }
    }
}

/// Rows of a step for which logits are computed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Logits {
    /// No logits: a prefill chunk that is not the prompt's last.
    None,
    /// Logits of the last token: `[1, vocabulary]`.
    Last,
    /// Logits of every token: `[n, vocabulary]`.
    All,
    /// The same, where tokens from the variable `kept` on, 1 to `n`, are drafts: recurrent states
    /// are left as they are before these. Not for steps of several sequences.
    Drafted,
    /// Logits of a mixed batch: the chunk's last token and every decode token,
    /// `[rows, vocabulary]`.
    LastOfEach,
}

/// Parameters that a plan is specialised for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Options {
    /// Kind and maximum size of a step.
    pub tokens: StepKind,
    /// Maximum positions of a sequence; length of the RoPE tables. See [`Options::rows_for`].
    pub rows: usize,
    /// Page pools of the KV cache and of recurrent states.
    pub pools: Pools,
    /// Reads a sequence's pages without a block table. The pages must be adjacent in the pool, and
    /// the step must have tokens of one sequence.
    pub contiguous: bool,
    /// Maximum context depth of a step: `rows`, or less for steps specialised for short contexts.
    /// The variable `pos`, the position of the first token, runs from 0 to `depth - tokens.max()`.
    pub depth: usize,
    /// Element type of the KV cache; see [`super::CacheSpec`].
    pub cache: CacheType,
    /// Rows for which logits are computed.
    pub logits: Logits,
    /// Tile sizes of experts: [`Options::TILE`], or those of the machine's matrix products.
    pub tile: ExpertTile,
    /// Decode steps take some of a layer's experts from slots; see [`CachedExperts`].
    pub cached: Option<CachedExperts>,
    /// The step is one of the model's draft block.
    pub draft: Option<DraftOptions>,
}

/// Hidden rows that a step of a draft block reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DraftSource {
    /// Those of the model's last layer.
    Model,
    /// Those of the block's last step.
    Block,
}

/// A step of a draft block. Without logits it fills the block's KV cache alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DraftOptions {
    /// Hidden rows that it reads.
    pub source: DraftSource,
    /// Number of these rows.
    pub rows: usize,
}

/// Experts of a layer in two places: slots that hold some of them, and all of them elsewhere.
///
/// A step returns what its tokens chose ([`ExpertBind::Chosen`]) and reads, for each of the two
/// places, the experts to compute there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CachedExperts {
    /// Number of slots of a layer.
    pub slots: usize,
    /// Experts of a token that the place with all of them computes, at least 1.
    pub misses: usize,
}

impl CachedExperts {
    /// Prefix of the names of weights whose leading axis has slots instead of experts.
    pub const PREFIX: &'static str = "cached.";
}

/// Tokens per tile of one expert: powers of two, or multiples of [`ExpertTile::WHOLE`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExpertTile {
    /// Minimum tokens per tile.
    pub least: usize,
    /// Maximum tokens per tile.
    pub most: usize,
    /// Fixed tile `[tokens, rows]`: used if experts get `tokens` tokens on average and their width
    /// is a multiple of `rows`. `None` if the machine has no such tile.
    pub group: Option<[usize; 2]>,
}

impl ExpertTile {
    /// Tiles for a mean of 32 or more tokens per expert are multiples of this number.
    pub const WHOLE: usize = 16;
}

impl Options {
    /// Expert tile for products accumulated in registers, where the sums of a vector of rows fit.
    pub const TILE: ExpertTile = ExpertTile {
        least: 4,
        most: ExpertTile::WHOLE,
        group: None,
    };
    /// Expert tile of CPU cores. With one or two tokens an expert's weights are read once; the
    /// padding is computed while loads are outstanding.
    pub const TILE_OF_CORES: ExpertTile = ExpertTile {
        least: 2,
        ..Options::TILE
    };
    /// Number of positions per page.
    pub const PAGE: usize = Pools::PAGE;
    /// Returns the rows for a context of `context` tokens filled in steps of at most `max_tokens`.
    ///
    /// Any position may start a step. The result is a multiple of 256, so that kernels need no
    /// partial tile of the cache and do not depend on the exact length.
    pub fn rows_for(context: usize, max_tokens: usize) -> usize {
        (context + max_tokens - 1).next_multiple_of(256)
    }
    /// Returns the length of a sequence's block table in pages.
    pub fn blocks(&self) -> usize {
        self.rows / Options::PAGE
    }
    /// Returns the rows of a layer's cache buffer; `window` is the layer's sliding window.
    pub fn pool_rows(&self, window: Option<usize>) -> usize {
        self.pools.pages_of(window) * Options::PAGE
    }
    /// Returns the rows of a recurrent-state buffer, one per sequence or snapshot.
    pub fn state_rows(&self) -> usize {
        self.pools.states.max(1)
    }
}

/// Buffer that a slot of a call is bound to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Bind {
    /// Token ids of the step, `[n]` i32.
    Tokens,
    /// Position of each token, `[n]` i32, in steps with several sequences.
    Positions,
    /// Cache row of each token in the page pool, `[n]` i32, in mixed batches.
    Slots,
    /// Number of each token's text, `[n]` i32, in steps of text encoders.
    Texts,
    /// Factor of each adapter for each token, `[n, choices]` f32, if rows choose adapters.
    AdapterScales,
    /// Block table of the step's only sequence or of the chunk's sequence, `[rows / PAGE]` i32.
    Pages,
    /// Block tables of all sequences, `[n, rows / PAGE]` i32. In mixed batches: the chunk's
    /// sequence, then those of the decode tokens.
    Table,
    /// [`Bind::Pages`] for the pool of sliding-window layers. Entries of blocks outside
    /// the window are unused.
    WindowPages,
    /// [`Bind::Table`] for the pool of sliding-window layers. Entries of blocks outside
    /// the window are unused.
    WindowTable,
    /// State row of the step's only sequence, `[1]` i32, in steps that are not contiguous.
    StateRow,
    /// State rows of all sequences, `[n]` i32, all different.
    StateRows,
    /// RoPE table of this index, `[rows, pairs, 2]` f32.
    Rope(usize),
    /// Mean row of the RoPE table of this index, `[1, pairs, 2]` f32: see
    /// [`super::RopeTable::mean`].
    RopeMean(usize),
    /// Signs of a Hadamard matrix, `[BLOCK, BLOCK]` f16: see [`super::hadamard`].
    Hadamard,
    /// Hidden rows `[n, width]` f32 before layer `i`; after the last layer for `i` = number of
    /// layers. Two alternating buffers suffice.
    Hidden(usize),
    /// Per-layer token input `[n, layers·width]` f32, starting at layer `i`:
    /// see [`super::Model::layer_input`].
    LayerInput(usize),
    /// Cache buffer (layer, index) of KV rows or recurrent states. A contiguous step gets only its
    /// sequence's state row.
    State(usize, usize),
    /// Packed weight tensor of this name.
    Weight(String),
    /// Hidden row that comes before each token of a draft block's step, `[n]` i32; negative if
    /// there is none.
    DraftRows,
    /// Hidden rows `[n, width]` f32 that a draft block's step leaves for the next one.
    Drafted,
    /// Hidden rows `[n, d]` f32 before layer `i` of a draft block with several layers; after the
    /// last one for `i` = number of them. Two alternating buffers suffice.
    Drafting(usize),
    /// Logits of the step, f32.
    Logits,
    /// Gradient of [`Bind::Hidden`]`(i)`, of the same dims. Two alternating buffers suffice.
    HiddenGradient(usize),
    /// Trained parameter of this name, f32.
    Parameter(String),
    /// Gradient of the parameter of this name, f32; a step adds to it.
    Gradient(String),
    /// Target token of each row, `[n]` i32.
    Targets,
    /// Weight of each row in the loss, `[n]` f32; 0 for rows that are no target.
    TargetWeights,
    /// Weighted sum of the negative log-likelihoods of targets, `[1]` f32; a step adds to it.
    Loss,
    /// Sums of squares of the inputs of a weight's product, by column: `[in]` f32, for stacked
    /// experts `[experts, in]`; a step adds to it.
    Squares(String),
    /// Rows that went through each expert of a stacked weight, `[experts]` f32; a step adds to it.
    ExpertRows(String),
    /// Value between parts of a layer that is on two devices.
    Cut(CutBind),
    /// Experts of the step's tokens where a layer's experts are cached.
    Experts(ExpertBind),
}

impl Bind {
    /// Returns whether it is a value between parts of a layer.
    pub fn is_cut(&self) -> bool {
        matches!(self, Bind::Cut(_))
    }
}

/// Experts of a step's tokens, `k` of each, and what the host makes of them in two places: see
/// [`CachedExperts`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExpertBind {
    /// Numbers of the chosen experts, `[n, k]` i32, written by the step.
    Chosen,
    /// Their weights, `[n, k]` f32, written by the step.
    ChosenWeights,
    /// Slots of the experts that are cached, `[n, k]` i32.
    Hits,
    /// Their weights, `[n, k]` f32; 0 for those that are not.
    HitWeights,
    /// Numbers of the experts that are not cached, `[n, misses]` i32.
    Misses,
    /// Their weights, `[n, misses]` f32; 0 beyond the last one.
    MissWeights,
}

impl ExpertBind {
    /// Returns whether the place with all experts reads it.
    pub fn is_of_misses(self) -> bool {
        matches!(self, ExpertBind::Misses | ExpertBind::MissWeights)
    }
}

/// A value between parts of a layer: see [`gristmill_tensor::partition`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CutBind {
    /// Number of the value in its layer.
    pub number: usize,
    /// Whether it has a row for each token.
    pub is_per_token: bool,
}

/// One call of a step: a function and its buffers.
#[derive(Clone, Debug)]
pub struct BoundCall {
    /// Index of the device that runs it; 0 is the main device.
    pub device: usize,
    /// Function that the call executes.
    pub function: Arc<Function>,
    /// One binding per slot of the function.
    pub binds: Vec<Bind>,
    /// Runs only if a token misses at most so many experts, and more than the call before; `None`
    /// for calls that always run.
    pub misses: Option<usize>,
}

/// Calls of one step, in order.
///
/// Variables by kind: `pos`, and for prefill `n`; batched decode: `n` and `length`; mixed batch:
/// `pos`, `piece`, `rows` and `length`. Contiguous steps add `first_page` and `window_shift`.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Calls in execution order.
    pub calls: Vec<BoundCall>,
}

impl Plan {
    /// Returns the functions called, each once, in order of their first call.
    pub fn functions(&self) -> Vec<&Arc<Function>> {
        let mut seen: Vec<&Arc<Function>> = Vec::new();
        for call in &self.calls {
            if !seen.iter().any(|f| Arc::ptr_eq(f, &call.function)) {
                seen.push(&call.function);
            }
        }
        seen
    }
    /// Returns whether a call is one of several of which a step runs one, and not the last of them.
    pub fn is_narrower(&self, call: usize) -> bool {
        let is_variant = |call: usize| self.calls.get(call).is_some_and(|of| of.misses.is_some());
        is_variant(call) && is_variant(call + 1)
    }
    /// Returns the plan of a step whose tokens have no cached experts.
    #[must_use]
    pub fn without_cached(&self) -> Plan {
        let calls = self.calls.iter().enumerate();
        let calls = calls.filter(|(number, _)| !self.is_narrower(*number));
        Plan {
            calls: calls.map(|(_, call)| call.clone()).collect(),
        }
    }
    /// Returns the plan of the calls on one device.
    pub fn on_device(&self, device: usize) -> Plan {
        let calls = self.calls.iter().filter(|call| call.device == device);
        Plan {
            calls: calls.cloned().collect(),
        }
    }
    /// Returns the names of the weight tensors read, each once.
    pub fn weights(&self) -> Vec<&str> {
        let mut seen = std::collections::HashSet::new();
        let binds = self.calls.iter().flat_map(|c| &c.binds);
        binds
            .filter_map(|b| {
                if let Bind::Weight(n) = b {
                    seen.insert(n).then_some(n.as_str())
                } else {
                    None
                }
            })
            .collect()
    }
}

/// Captured functions, deduplicated by content.
#[derive(Clone, Default, Debug)]
pub struct Functions {
    by_key: HashMap<Key, Arc<Function>>,
}

impl Functions {
    /// Creates an empty set.
    pub fn new() -> Functions {
        Functions::default()
    }
    /// Returns an equal function captured earlier, or adds this one.
    pub fn share(&mut self, function: Function) -> Arc<Function> {
        self.by_key
            .entry(function.key())
            .or_insert_with(|| Arc::new(function))
            .clone()
    }
    /// Returns the function names, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.by_key.values().map(|f| f.name.clone()).collect();
        names.sort();
        names
    }
    /// Returns the number of distinct functions.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }
    /// Returns true if the set has no function.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}
