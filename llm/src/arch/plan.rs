//! A step as calls of functions: what a model hands to a runtime.

use super::pools::Pools;
use gristmill_tensor::function::{ContentKey, Key};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;
use std::collections::HashMap;
use std::sync::Arc;

/// How many tokens a step takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TokenClass {
    /// One: decoding.
    One,
    /// The variable `n`, 1 to `max`: a chunk of a prompt.
    Chunk {
        /// The most tokens in one step.
        max: usize,
    },
    /// One token each of several sequences: the variable `n`, 1 to `max`, with the variable `length` above the position of each. The cache is a pool of pages.
    Batch {
        /// The most sequences in one step.
        max: usize,
    },
    /// The variable `piece`, 1 to that, of tokens of one sequence, and behind them one token each of `rows` − 1 others, `rows` from 1 to `others` + 1. The cache is a pool of pages; the variable
    /// `length` is above the position of each of those behind the piece, 1 where there are none.
    Mixed {
        /// The most tokens of the one sequence.
        piece: usize,
        /// The most other sequences.
        others: usize,
    },
}

impl TokenClass {
    /// The most tokens in one step.
    pub fn max(self) -> usize {
        match self {
            TokenClass::One => 1,
            TokenClass::Chunk { max } | TokenClass::Batch { max } => max,
            TokenClass::Mixed { piece, others } => piece + others,
        }
    }
}

/// Which logits a step computes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Logits {
    /// None: a chunk of a prompt that is not its last.
    None,
    /// Those after the last token: `[1, vocabulary]`.
    Last,
    /// Those after every token: `[n, vocabulary]`.
    All,
    /// Of a piece with tokens of other sequences behind it, those after its last token and after each of these: `[rows, vocabulary]`.
    Ends,
}

/// What a plan is made for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Options {
    /// Tokens of a step.
    pub tokens: TokenClass,
    /// Positions that a sequence may have, which is the rows of the rope table and of a cache of one sequence: see [`Options::rows_for`].
    pub rows: usize,
    /// The page pools that hold the KV cache and recurrent states.
    pub pools: Pools,
    /// Reads a sequence's pages without a block table. Its pages must be neighbours, and the step
    /// must have tokens of one sequence.
    pub contiguous: bool,
    /// Positions within reach of a step: `rows`, or fewer for steps that are made for the start of a long context. The variable `pos`, the
    /// position of a step's first token, runs from 0 to `depth - tokens.max()`, so that a step never leaves the table.
    pub depth: usize,
    /// How cached rows are stored: f16, f32, or i8 for bytes with scales: see [`super::CacheSpec`].
    pub cache: Scalar,
    /// Which logits are computed.
    pub logits: Logits,
    /// Tokens of one expert that a tile has: [`Options::TILE`], or as many as the machine's products of matrices want.
    pub tile: ExpertTile,
}

/// How many tokens of one expert a tile has: powers of two, or multiples of [`ExpertTile::WHOLE`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExpertTile {
    /// However few an expert gets.
    pub least: usize,
    /// However many.
    pub most: usize,
    /// Tokens that all tiles have where experts get as many on average and their rows are multiples of the second number; none where the machine has no use for them.
    pub group: Option<[usize; 2]>,
}

impl ExpertTile {
    /// Larger tiles are multiples of so many tokens.
    pub const WHOLE: usize = 16;
}

impl Options {
    /// Tokens of a tile of one expert for products in registers: as many as keep the sums of a vector of rows there.
    pub const TILE: ExpertTile = ExpertTile { least: 4, most: ExpertTile::WHOLE, group: None };
    /// The same of a processor's cores: where an expert gets a token or two its weights are read once for both, and what fills the tile is computed while memory is waited for.
    pub const TILE_OF_CORES: ExpertTile = ExpertTile { least: 2, ..Options::TILE };
    /// Positions of a page.
    pub const PAGE: usize = Pools::PAGE;
    /// Rows for a context of `context` tokens that is filled in steps of at most `max_tokens`: any position may start any
    /// step. A multiple of 256, so that chunks of the cache are whole and kernels do not depend on the length.
    pub fn rows_for(context: usize, max_tokens: usize) -> usize {
        (context + max_tokens - 1).next_multiple_of(256)
    }
    /// Pages that one sequence may have: the length of its block table.
    pub fn blocks(&self) -> usize {
        self.rows / Options::PAGE
    }
    /// Rows of a cache tensor of a layer with that window.
    pub fn pool_rows(&self, window: Option<usize>) -> usize {
        self.pools.pages_of(window) * Options::PAGE
    }
    /// Rows of a recurrent state, one for each sequence or snapshot.
    pub fn state_rows(&self) -> usize {
        self.pools.states.max(1)
    }
}

/// What a slot of a call is bound to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Bind {
    /// The step's token ids, `[n]` i32.
    Tokens,
    /// The position of each of the step's tokens, `[n]` i32, where they are of several sequences.
    Positions,
    /// The row of the pool of each of the step's tokens, `[n]` i32, where a piece of one sequence is among them.
    Slots,
    /// Of a cache by pages, those of the step's only sequence, or of its piece's, in the order of its positions, `[rows / PAGE]` i32.
    Pages,
    /// The same of each of its sequences: `[n, rows / PAGE]` i32; where there is a piece of one, of its last token and of those behind it.
    Table,
    /// Those of the pool of layers with a window, as [`Bind::Pages`], and as [`Bind::Table`]: of blocks that no token sees any number.
    WindowPages,
    /// See [`Bind::WindowPages`].
    WindowTable,
    /// The row of states of the step's only sequence, `[1]` i32, where several have rows.
    StateRow,
    /// The same of each of its sequences, `[n]` i32, no two the same.
    StateRows,
    /// The table of rotations of that number, `[rows, pairs, 2]` f32.
    Rope(usize),
    /// Hidden rows `[n, width]` f32, before layer `i` (after the last for `i` = layers). Two buffers in turn suffice.
    Hidden(usize),
    /// Rows `[n, layers·width]` f32 that a model makes of the tokens for all its layers, from the part of layer `i` on: see [`super::Model::layer_input`].
    LayerInput(usize),
    /// The cache of that layer: the plane of that number, rows or a state. Of a state, a contiguous step
    /// gets the sequence's row alone.
    State(usize, usize),
    /// The packed tensor of that name.
    Weight(String),
    /// The step's logits, f32.
    Logits,
}

/// One call of a step.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is called.
    pub function: Arc<Function>,
    /// What its slots are bound to, one each.
    pub binds: Vec<Bind>,
}

/// The calls of one step, in order. Its variables are `pos` and, for chunks, `n`; with contiguous pages also `first_page` and `window_shift`; for tokens of several sequences `n` and `length`; for a piece of one with those `pos`, `piece`, `rows`, `length`.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The calls.
    pub calls: Vec<Call>,
}

impl Plan {
    /// The functions called, each once, in the order of their first call.
    pub fn functions(&self) -> Vec<&Arc<Function>> {
        let mut seen: Vec<&Arc<Function>> = Vec::new();
        for call in &self.calls {
            if !seen.iter().any(|f| Arc::ptr_eq(f, &call.function)) {
                seen.push(&call.function);
            }
        }
        seen
    }
    /// Names of the packed tensors it reads, each once.
    pub fn weights(&self) -> Vec<&str> {
        let mut seen = std::collections::HashSet::new();
        let binds = self.calls.iter().flat_map(|c| &c.binds);
        binds
            .filter_map(|b| if let Bind::Weight(n) = b { seen.insert(n).then_some(n.as_str()) } else { None })
            .collect()
    }
}

/// Functions by what they compute.
#[derive(Clone, Default, Debug)]
pub struct Functions {
    by_key: HashMap<Key, Arc<Function>>,
}

impl Functions {
    /// None yet.
    pub fn new() -> Functions {
        Functions::default()
    }
    /// The function that computes the same as this one: an earlier one, or this one.
    pub fn share(&mut self, function: Function) -> Arc<Function> {
        self.by_key.entry(function.key()).or_insert_with(|| Arc::new(function)).clone()
    }
    /// Their names, in order.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.by_key.values().map(|f| f.name.clone()).collect();
        names.sort();
        names
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }
    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}
