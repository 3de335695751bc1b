//! Keys of the captured graphs: kind of step, token bucket, logits, context depth and cache view.
//!
//! Steps of one sequence have four buckets: one token, up to `FEW_TOKENS` (short prompts and
//! remainders), up to [`Settings::chunk`], and up to [`StepLimits::long`] for long prompts. Batched
//! decode steps have buckets of 2, 4, 8, … sequences.

use crate::arch::{
    CacheTensor, CacheType, DraftOptions, DraftSource, ExpertTile, Logits, Model, Options, Pools,
    StepKind,
};
use crate::placement::PlacementRequest;
use gristmill_compiler::decompose::f16_mma;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;

/// Settings that a model is compiled and run with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Context length in tokens; `None`: the longest that the model and a share of memory allow.
    pub context: Option<usize>,
    /// Element type of the KV cache.
    pub cache: CacheType,
    /// Maximum tokens of one step, except in steps of long prompts.
    pub chunk: usize,
    /// Maximum tokens in a step of a long prompt; `None`: chosen for the device and its memory.
    pub long: Option<usize>,
    /// Maximum sequences of a step.
    pub parallel: usize,
    /// Rows of a step for drafts, besides those of `parallel` sequences.
    pub drafts: usize,
    /// Uses the block that drafts tokens, if the model has one.
    pub draft_block: bool,
    /// Whole contexts that the page pool holds if memory allows; at least `parallel`.
    pub contexts: usize,
    /// Runs prefill chunks and decode rows in one step (mixed batch). Off if the functions of such
    /// steps would need a weight in another layout than other steps do.
    pub mixed: bool,
    /// Context depths with their own decode graphs, in addition to the whole cache; `None`:
    /// chosen for the device.
    pub depths: Option<Vec<usize>>,
    /// Length of the first prompt in tokens, where a CPU may compile the graphs that it does not
    /// need in the background; `None`: all graphs are compiled before the engine is loaded.
    pub first_prompt: Option<usize>,
    /// Other devices, and where parts of the model may be.
    pub placement: PlacementRequest,
}

impl Default for Settings {
    fn default() -> Settings {
        let cache = CacheType::F16;
        Settings {
            context: None,
            cache,
            chunk: DEFAULT_CHUNK,
            long: None,
            parallel: 1,
            drafts: 0,
            draft_block: false,
            contexts: 1,
            mixed: true,
            depths: None,
            first_prompt: None,
            placement: PlacementRequest::default(),
        }
    }
}

/// Default of [`Settings::chunk`], in tokens.
const DEFAULT_CHUNK: usize = 512;
/// Step sizes of long prompts on a GPU with f16 MMA, tried in this order until one fits in memory.
/// Large steps dequantise weights and recompute MLA keys of the context less often
/// (docs/experiments/104).
const LONG_CHUNKS: [usize; 2] = [8192, 2048];

/// Maximum tokens of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepLimits {
    /// Maximum of steps with logits of all tokens, and of steps that use the same kernels wherever
    /// a prompt is cut.
    pub chunk: usize,
    /// Maximum tokens of any step.
    pub long: usize,
}

impl StepLimits {
    /// Tokens of the longest steps.
    pub(super) const LONGEST: usize = LONG_CHUNKS[0];

    /// Applies the settings to a model with `context` positions and a device.
    pub fn new(
        settings: &Settings,
        context: usize,
        model: &dyn Model,
        target: &Target,
    ) -> StepLimits {
        if model.is_encoder() {
            return StepLimits::for_texts(settings, context);
        }
        let chunk = settings.chunk.clamp(1, context);
        let halves = target.machine.kind == MachineKind::Gpu
            && target.machine.fragment(Scalar::F16).is_some();
        let [longest, shorter] = LONG_CHUNKS;
        let long = match model.window() {
            // Recurrent states run a kernel sequence for every few tokens: a layer of Qwen3.5 has
            // 55 kernels for 512 tokens, and planning 8,192 tokens takes minutes.
            _ if model.state_bytes() > 0 => DEFAULT_CHUNK,
            // Every sliding-window layer keeps rows for a whole step in addition to its window.
            Some(_) => shorter,
            None => longest,
        };
        let usual = if halves && chunk == DEFAULT_CHUNK {
            long
        } else {
            chunk
        };
        StepLimits {
            chunk,
            long: settings.long.unwrap_or(usual).clamp(chunk, context),
        }
    }
    /// Returns the limits of a text encoder: a step has a whole text, and a row of padding.
    fn for_texts(settings: &Settings, context: usize) -> StepLimits {
        let longest = settings.context.map_or(context, |own| own.min(context));
        let long = (longest + 1).next_multiple_of(FEW_TOKENS);
        let chunk = match settings.chunk {
            chunk if chunk >= longest => long,
            chunk => chunk.max(FEW_TOKENS),
        };
        StepLimits { chunk, long }
    }
    /// Returns whether `long` is one of the default sizes for long prompts.
    pub fn is_usual(long: usize) -> bool {
        LONG_CHUNKS.contains(&long)
    }
    /// Returns the next smaller step size for long prompts; at least a chunk.
    pub fn shorter(self) -> usize {
        LONG_CHUNKS
            .into_iter()
            .find(|&long| long < self.long && long > self.chunk)
            .unwrap_or(self.chunk)
    }
}

/// The rows of the KV cache are a multiple of this.
const ROWS_STEP: usize = 2048;
/// Token bucket of short steps: experts get few rows each, so small tiles are faster.
pub(super) const FEW_TOKENS: usize = 64;

/// Key of the captured graph that runs a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GraphKey {
    /// Maximum tokens of the step; in a mixed step, of its prefill chunk.
    pub tokens: usize,
    /// Whether the step decodes one token of each of several sequences.
    pub batch: bool,
    /// Maximum decode rows of a mixed step; 0 for other steps.
    pub others: usize,
    /// Logits that the step computes.
    pub logits: Logits,
    /// Context depth: positions that attention can reach.
    pub depth: usize,
    /// Reads the sequence's pages without a block table.
    pub contiguous: bool,
    /// Hidden rows that a step of the draft block reads; `None` for steps of the model.
    pub draft: Option<DraftOptions>,
}

/// Context depths with their own decode graphs on a GPU. The split of attention over workgroups
/// depends on the depth, so long contexts get separate steps for their start.
const CONTEXT_DEPTHS: [usize; 2] = [2048, 8192];

/// Returns the context depths of decode steps of one sequence, for a cache of `rows` rows.
pub fn depths(settings: &Settings, rows: usize, target: &Target) -> Vec<usize> {
    let usual: &[usize] = if target.machine.kind == MachineKind::Gpu {
        &CONTEXT_DEPTHS
    } else {
        &[]
    };
    let short = settings.depths.as_deref().unwrap_or(usual);
    short
        .iter()
        .copied()
        .filter(|&d| d < rows)
        .chain([rows])
        .collect()
}

impl GraphKey {
    /// Returns whether a prompt of `prompt` tokens, or the decode steps after it, run this graph
    /// while no other sequence runs.
    pub(super) fn serves_prompt(&self, prompt: usize, limits: StepLimits) -> bool {
        let few = FEW_TOKENS.min(limits.chunk);
        let is_of_prompt = match self.tokens {
            1 => true,
            tokens if prompt <= few => tokens == few,
            tokens if prompt <= limits.chunk => {
                tokens == limits.chunk && self.logits == Logits::Last
            }
            _ => true,
        };
        is_of_prompt && self.others == 0 && !self.batch && self.draft.is_none()
    }
}

impl Settings {
    /// Returns the most decode rows of a step.
    pub(super) fn rows(&self) -> usize {
        self.parallel + self.drafts
    }
    /// Returns the maximum decode rows of a mixed step; `None` if there are no mixed steps.
    pub fn decode_rows(&self) -> Option<usize> {
        (self.mixed && self.parallel > 1).then(|| self.parallel - 1)
    }
    /// Returns the settings without mixed steps, and with these tokens of a step of a long prompt.
    pub fn without_mixed(&self, long: Option<usize>) -> Settings {
        Settings {
            long,
            mixed: false,
            ..self.clone()
        }
    }
    /// Adapts the settings to these pools. Mixed steps address a single page pool and no recurrent
    /// states, so a window pool or states turn them off.
    pub fn over(self, pools: Pools) -> Settings {
        let mixed = self.mixed && pools.windows.is_none() && pools.states == 0;
        Settings { mixed, ..self }
    }
}

/// Returns the graphs of one sequence, which are compiled in one batch when a model is loaded.
/// `depths` ascend; the last is the whole cache.
pub fn sequence_graphs(StepLimits { chunk, long }: StepLimits, depths: &[usize]) -> Vec<GraphKey> {
    let rows = *depths.last().expect("the depth of the whole cache");
    let key = |tokens, logits, depth| GraphKey {
        tokens,
        batch: false,
        others: 0,
        logits,
        depth,
        contiguous: true,
        draft: None,
    };
    let one = depths.iter().map(|&depth| key(1, Logits::Last, depth));
    let chunks = chunk_buckets(chunk, long);
    let mut all: Vec<GraphKey> = one
        .chain(chunks.into_iter().map(|(n, logits)| key(n, logits, rows)))
        .collect();
    all.dedup();
    all
}

/// Returns the graphs of a text encoder, for a cache of `rows` rows.
pub(super) fn text_graphs(StepLimits { chunk, long }: StepLimits, rows: usize) -> Vec<GraphKey> {
    let key = |tokens| GraphKey {
        tokens,
        batch: false,
        others: 0,
        logits: Logits::None,
        depth: rows,
        contiguous: true,
        draft: None,
    };
    let mut all: Vec<GraphKey> = [FEW_TOKENS, chunk, long].into_iter().map(key).collect();
    all.dedup();
    all
}

/// Returns the mixed graphs with prefill chunks of at most `chunk` tokens and `others` decode rows.
pub fn mixed_graphs(chunk: usize, rows: usize, others: usize) -> Vec<GraphKey> {
    let key = |(tokens, logits)| GraphKey {
        tokens,
        batch: false,
        others,
        logits,
        depth: rows,
        contiguous: false,
        draft: None,
    };
    let mut all: Vec<GraphKey> = chunk_buckets(chunk, chunk).into_iter().map(key).collect();
    all.dedup();
    all
}

/// Returns the hidden rows that steps of a draft block read, of the model and of the block; `None`
/// without one.
pub(super) fn draft_options(settings: &Settings, limits: StepLimits) -> Option<[DraftOptions; 2]> {
    let others = settings.decode_rows().unwrap_or(0);
    let of = |source, rows| DraftOptions { source, rows };
    settings.draft_block.then_some([
        of(
            DraftSource::Model,
            limits.long.max(settings.rows()) + others,
        ),
        of(DraftSource::Block, settings.rows()),
    ])
}

/// Returns the graphs of a draft block: steps that fill its cache with a prompt, and of one token
/// with logits. `sources` are the hidden rows that a step reads first, and those of further drafts.
pub(super) fn draft_graphs(
    limits: StepLimits,
    depths: &[usize],
    sources: [DraftOptions; 2],
) -> Vec<GraphKey> {
    let of_model = sequence_graphs(limits, depths).into_iter();
    let of_prompt = |graph: &GraphKey| GraphKey {
        logits: Logits::None,
        draft: Some(sources[0]),
        ..*graph
    };
    let (one, prompts): (Vec<_>, Vec<_>) = of_model.partition(|graph| graph.tokens == 1);
    let mut all: Vec<GraphKey> = prompts.iter().map(of_prompt).collect();
    all.dedup();
    let drafts = one.iter().flat_map(|graph| {
        sources.map(|source| GraphKey {
            draft: Some(source),
            ..*graph
        })
    });
    all.extend(drafts);
    all
}

/// Returns the token buckets of prefill chunks and the logits that each is run with.
fn chunk_buckets(chunk: usize, long: usize) -> Vec<(usize, Logits)> {
    let few = (FEW_TOKENS.min(chunk), Logits::Last);
    let all = [
        few,
        (chunk, Logits::None),
        (chunk, Logits::Last),
        (long, Logits::None),
        (long, Logits::Last),
    ];
    all.into_iter().filter(|bucket| bucket.0 > 1).collect()
}

/// Sizes of the KV cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheShape {
    /// Maximum positions of a sequence.
    pub rows: usize,
    /// Pages of the pools that sequences share.
    pub pools: Pools,
    /// Element type of the cache.
    pub cache_type: CacheType,
}

impl CacheShape {
    /// Returns the rows of a cache tensor: positions of its page pool, or one
    /// for each recurrent state.
    pub fn tensor_rows(&self, plane: &CacheTensor) -> usize {
        match plane.is_state() {
            true => self.pools.states.max(1),
            false => self.pools.pages_of(plane.window()) * Options::PAGE,
        }
    }
}

/// Returns the batched decode graph of `sequences` sequences: the next power of
/// two, at most `most`.
pub fn batch_graph(sequences: usize, most: usize, rows: usize) -> GraphKey {
    let tokens = sequences.next_power_of_two().min(most);
    GraphKey {
        tokens,
        batch: true,
        others: 0,
        logits: Logits::All,
        depth: rows,
        contiguous: false,
        draft: None,
    }
}

/// Returns the plan options for the steps of a graph.
pub fn plan_options(key: GraphKey, cache: CacheShape, target: &Target) -> Options {
    let GraphKey {
        tokens: max,
        batch,
        others,
        logits,
        depth,
        contiguous,
        draft,
    } = key;
    let CacheShape {
        rows,
        pools,
        cache_type,
    } = cache;
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
        cache: cache_type,
        logits,
        tile: expert_tile(target),
        cached: None,
        draft,
    }
}

/// Returns the tile of tokens of one expert: whole MMA columns if the machine has f16 MMA or tiles.
pub(crate) fn expert_tile(target: &Target) -> ExpertTile {
    let facts = target.machine.gpu_facts();
    let (own, tiles) = match target.machine.kind {
        MachineKind::Cpu => (
            Options::TILE_OF_CORES,
            target.machine.cpu_facts().tiles_per_expert,
        ),
        MachineKind::Gpu => (Options::TILE, facts.tiles_per_expert),
    };
    if let Some(of) = target.machine.tile_fragment() {
        return ExpertTile {
            most: tiles * of.rows as usize,
            ..own
        };
    }
    match target.machine.fragment(Scalar::F16) {
        Some(of) => {
            let several = target.machine.fragments.iter().any(Fragment::is_of_group);
            ExpertTile {
                least: of.columns as usize,
                most: facts.columns_per_expert * of.columns as usize,
                group: several.then_some([
                    facts.warpgroup_expert_tokens as usize,
                    f16_mma::rows_of_warpgroup(&target.machine) as usize,
                ]),
            }
        }
        None => own,
    }
}

/// Returns the cache rows of a context, in large steps so that similar contexts share kernels; rows
/// never written take no memory.
pub fn cache_rows(context: usize, chunk: usize) -> usize {
    Options::rows_for(context, chunk).next_multiple_of(ROWS_STEP)
}
