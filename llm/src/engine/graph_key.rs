//! Which captured graph runs a step: its kind, token bucket, logits, context depth and cache view.
//!
//! Steps of one sequence have buckets of one token, a few (a short prompt, the end of one), a chunk of up to [`Settings::chunk`], and a chunk of a long prompt ([`StepLimits::long`]).
//! Batched decode steps have buckets of 2, 4, 8, … sequences.

use crate::arch::{CacheTensor, ExpertTile, Logits, Model, Options, Pools, StepKind};
use gristmill_compiler::decompose::f16_mma;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;

/// How a model is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tokens of context; as many as the model allows within a share of memory unless said.
    pub context: Option<usize>,
    /// Type of the cache: f16, f32, or i8 for bytes with scales.
    pub cache: Scalar,
    /// Most tokens of one step, but for those of long prompts.
    pub chunk: usize,
    /// Most tokens of a step of a long prompt; as suits the device and its memory unless said.
    pub long: Option<usize>,
    /// Most sequences of a step.
    pub parallel: usize,
    /// Whole contexts that the page pool holds where memory allows; `parallel` at least.
    pub contexts: usize,
    /// Runs prefill chunks and decode rows in one step. Off where the functions of such steps
    /// would need another layout of a weight than others do.
    pub mixed: bool,
    /// Depths that have steps of one token of their own, before that of the whole cache; as the device is better for it unless said.
    pub depths: Option<Vec<usize>>,
}

impl Default for Settings {
    fn default() -> Settings {
        let cache = Scalar::F16;
        Settings {
            context: None,
            cache,
            chunk: DEFAULT_CHUNK,
            long: None,
            parallel: 1,
            contexts: 1,
            mixed: true,
            depths: None,
        }
    }
}

/// Most tokens of one step, unless others are asked for.
const DEFAULT_CHUNK: usize = 512;
/// Those of a long prompt on a GPU that multiplies halves, the first for which there is memory: weights are read and unpacked less often, and keys of every head, which each step
/// computes of all positions before it. An H200, tokens a second by steps of 2,048 and of 8,192: GLM's prompts of 3,000 24,936 and 31,560, of 8,192 22,766 and 28,839, of 32,768
/// 11,267 and 15,160; Llama 3.1 8B's of 3,000 30,575 and 31,964.
const LONG_CHUNKS: [usize; 2] = [8192, 2048];

/// Most tokens of steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepLimits {
    /// Of a step that may have logits of all of them, or whose kernels are the same wherever a prompt is cut.
    pub chunk: usize,
    /// Of any.
    pub long: usize,
}

impl StepLimits {
    /// As the settings ask, for a model that runs with so many positions, and such a device.
    pub fn new(settings: &Settings, context: usize, model: &dyn Model, target: &Target) -> StepLimits {
        let chunk = settings.chunk.clamp(1, context);
        let halves = target.machine.kind == MachineKind::Gpu && target.machine.fragment(Scalar::F16).is_some();
        let [longest, shorter] = LONG_CHUNKS;
        let long = match model.window() {
            // States go through the tokens of a step in kernels of their own for every few of them: a layer of Qwen3.5 has 55 for 512 tokens, and plans for 8,192 take minutes.
            _ if model.state_bytes() > 0 => DEFAULT_CHUNK,
            // A window's rows are kept for a whole step besides, in every layer that has one.
            Some(_) => shorter,
            None => longest,
        };
        let usual = if halves && chunk == DEFAULT_CHUNK { long } else { chunk };
        StepLimits { chunk, long: settings.long.unwrap_or(usual).clamp(chunk, context) }
    }
    /// Is that what a long prompt's steps have unless the settings say otherwise?
    pub fn is_usual(long: usize) -> bool {
        LONG_CHUNKS.contains(&long)
    }
    /// Tokens of a long prompt's steps where these are too many: fewer, or a chunk.
    pub fn shorter(self) -> usize {
        LONG_CHUNKS.into_iter().find(|&long| long < self.long && long > self.chunk).unwrap_or(self.chunk)
    }
}

/// Rows of the cache are a multiple of this.
const ROWS_STEP: usize = 2048;
/// Tokens of a step of a few: experts get so few rows each that small tiles pay.
pub(super) const FEW_TOKENS: usize = 64;

/// Which captured graph runs a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GraphKey {
    /// Most tokens of the step; of a mixed step, of its prefill chunk.
    pub tokens: usize,
    /// One token each of several sequences.
    pub batch: bool,
    /// Most decode rows behind a prefill chunk; 0 unless the step is mixed.
    pub others: usize,
    /// Logits that the step computes.
    pub logits: Logits,
    /// Positions within reach.
    pub depth: usize,
    /// Reads the sequence's pages without a block table.
    pub contiguous: bool,
}

/// Depths of the steps of one token before that of the whole cache, on a GPU: how attention is divided depends on how far it may reach, so a
/// long context has steps of their own for its start.
const CONTEXT_DEPTHS: [usize; 2] = [2048, 8192];

/// Depths of the steps of one token, for a cache of so many rows.
pub fn depths(settings: &Settings, rows: usize, target: &Target) -> Vec<usize> {
    let usual: &[usize] = if target.machine.kind == MachineKind::Gpu { &CONTEXT_DEPTHS } else { &[] };
    let short = settings.depths.as_deref().unwrap_or(usual);
    short.iter().copied().filter(|&d| d < rows).chain([rows]).collect()
}

impl Settings {
    /// Most decode rows of a mixed step; none where there are no mixed steps.
    pub fn decode_rows(&self) -> Option<usize> {
        (self.mixed && self.parallel > 1).then(|| self.parallel - 1)
    }
    /// Settings for these pools. A mixed step addresses rows of one pool and no recurrent state, so
    /// there is none with a window pool or states.
    pub fn over(self, pools: Pools) -> Settings {
        let mixed = self.mixed && pools.windows.is_none() && pools.states == 0;
        Settings { mixed, ..self }
    }
}

/// The graphs of one sequence, compiled in one batch when a model is loaded. `depths` ascend, the
/// last is the cache's.
pub fn sequence_graphs(StepLimits { chunk, long }: StepLimits, depths: &[usize]) -> Vec<GraphKey> {
    let rows = *depths.last().expect("the depth of the whole cache");
    let key = |tokens, logits, depth| GraphKey { tokens, batch: false, others: 0, logits, depth, contiguous: true };
    let one = depths.iter().map(|&depth| key(1, Logits::Last, depth));
    let chunks = chunk_buckets(chunk, long);
    let mut all: Vec<GraphKey> = one.chain(chunks.into_iter().map(|(n, logits)| key(n, logits, rows))).collect();
    all.dedup();
    all
}

/// The mixed graphs, with prefill chunks of at most so many tokens beside `others` decode rows.
pub fn mixed_graphs(chunk: usize, rows: usize, others: usize) -> Vec<GraphKey> {
    let key = |(tokens, logits)| GraphKey { tokens, batch: false, others, logits, depth: rows, contiguous: false };
    let mut all: Vec<GraphKey> = chunk_buckets(chunk, chunk).into_iter().map(key).collect();
    all.dedup();
    all
}

/// Token buckets of prefill chunks with the logits that they are run with.
fn chunk_buckets(chunk: usize, long: usize) -> Vec<(usize, Logits)> {
    let few = (FEW_TOKENS.min(chunk), Logits::Last);
    let all = [few, (chunk, Logits::None), (chunk, Logits::Last), (long, Logits::None), (long, Logits::Last)];
    all.into_iter().filter(|bucket| bucket.0 > 1).collect()
}

/// Most tiles of tokens of one expert for which a core that multiplies tiles unpacks a weight once. Unpacking 16 rows costs three times a product with 16 tokens
/// (Xeon, Q4_0); V2-Lite's experts have 48 of 512 tokens on average. Prompts of 512 of V2-Lite by matrices of a GPU's subgroups (H100 through Vulkan): 5,565 tokens a second with two, 6,366 with four,
/// 6,409 with eight.
const TILES_PER_EXPERT: usize = 4;

/// Most columns of a warp's product, of tokens of one expert, for which a GPU unpacks a weight once. GLM's gate and up of 512 tokens on an H100, 32 tokens an expert:
/// 180 us with two and 175 with four, each in the shape that suits it best, 237 with six; empty columns cost what others do.
const COLUMNS_PER_EXPERT: usize = 4;

/// Sizes of the KV cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheShape {
    /// Positions that a sequence may have.
    pub rows: usize,
    /// Pages of the pools that sequences share.
    pub pools: Pools,
    /// Type of the cached numbers.
    pub scalar: Scalar,
}

impl CacheShape {
    /// Rows of a cache tensor: those of its page pool, or one for each recurrent state.
    pub fn tensor_rows(&self, plane: &CacheTensor) -> usize {
        match plane.is_state() {
            true => self.pools.states.max(1),
            false => self.pools.pages_of(plane.window()) * Options::PAGE,
        }
    }
}

/// The batched decode graph for so many sequences of at most `most`: the next power of two.
pub fn batch_graph(sequences: usize, most: usize, rows: usize) -> GraphKey {
    let tokens = sequences.next_power_of_two().min(most);
    GraphKey { tokens, batch: true, others: 0, logits: Logits::All, depth: rows, contiguous: false }
}

/// Options that the steps of a graph are planned with.
pub fn plan_options(key: GraphKey, cache: CacheShape, target: &Target) -> Options {
    let GraphKey { tokens: max, batch, others, logits, depth, contiguous } = key;
    let CacheShape { rows, pools, scalar } = cache;
    Options {
        tokens: match max {
            _ if batch => StepKind::BatchedDecode { max },
            _ if others > 0 => StepKind::Mixed { piece: max, others },
            1 => StepKind::Decode,
            _ => StepKind::Prefill { max },
        },
        rows,
        pools,
        contiguous,
        depth,
        cache: scalar,
        logits,
        tile: expert_tile(target),
    }
}

/// Tokens of one expert that several warps of a GPU multiply with one weight, where each expert has as many on average; and rows of a tile, of which the weight has whole ones: others
/// have single warps, for which tiles of 64 tokens take an H100 8 % longer than of 32 (V2-Lite's gate and up before they had several).
const WARP_GROUP_ROWS: [usize; 2] = [f16_mma::LEAST_OF_GROUP as usize, f16_mma::ROWS_OF_GROUP as usize];

/// Tokens of one expert that a tile has: whole columns of the machine's products, if it multiplies halves or tiles.
fn expert_tile(target: &Target) -> ExpertTile {
    let own = if target.machine.kind == MachineKind::Cpu { Options::TILE_OF_CORES } else { Options::TILE };
    if let Some(of) = target.machine.tile_fragment() {
        return ExpertTile { most: TILES_PER_EXPERT * of.rows as usize, ..own };
    }
    match target.machine.fragment(Scalar::F16) {
        Some(of) => {
            let several = target.machine.fragments.iter().any(Fragment::is_of_group);
            ExpertTile {
                least: of.columns as usize,
                most: COLUMNS_PER_EXPERT * of.columns as usize,
                group: several.then_some(WARP_GROUP_ROWS),
            }
        }
        None => own,
    }
}

/// Rows of every state for a context: in large steps, so that nearby contexts share their kernels; rows that are never touched take no
/// memory.
pub fn cache_rows(context: usize, chunk: usize) -> usize {
    Options::rows_for(context, chunk).next_multiple_of(ROWS_STEP)
}
