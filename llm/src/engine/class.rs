//! Classes of step, by their number of tokens: one, a few (the end of a prompt, a short one), a chunk of up to [`Settings::chunk`], a part of a long prompt ([`Most::long`]); and one token each of up to 1, 2,
//! 4, … sequences.

use crate::arch::{ExpertTile, Logits, Model, Options, Plane, Pools, TokenClass};
use gristmill_compiler::decompose::halves;
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
    /// Sequences that may share a step: the cache is a pool of pages then. None for one sequence, in a cache of its own.
    pub parallel: Option<usize>,
    /// Have pieces of prompts tokens of other sequences in their steps? Not where functions of such steps would lay weights in another way than others do.
    pub mixed: bool,
    /// Depths that have steps of one token of their own, before that of the whole cache; as the device is better for it unless said.
    pub depths: Option<Vec<usize>>,
}

impl Default for Settings {
    fn default() -> Settings {
        let cache = Scalar::F16;
        Settings { context: None, cache, chunk: CHUNK, long: None, parallel: None, mixed: true, depths: None }
    }
}

/// Most tokens of one step, unless others are asked for.
const CHUNK: usize = 512;
/// Those of a long prompt on a GPU that multiplies halves, the first for which there is memory: weights are read and unpacked less often, and keys of every head, which each step
/// computes of all positions before it. An H200, tokens a second by steps of 2,048 and of 8,192: GLM's prompts of 3,000 24,936 and 31,560, of 8,192 22,766 and 28,839, of 32,768
/// 11,267 and 15,160; Llama 3.1 8B's of 3,000 30,575 and 31,964.
const LONG: [usize; 2] = [8192, 2048];

/// Most tokens of steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Most {
    /// Of a step that may have logits of all of them, or whose kernels are the same wherever a prompt is cut.
    pub chunk: usize,
    /// Of any.
    pub long: usize,
}

impl Most {
    /// As the settings ask, for a model that runs with so many positions, and such a device.
    pub fn of(settings: &Settings, context: usize, model: &dyn Model, target: &Target) -> Most {
        let chunk = settings.chunk.clamp(1, context);
        let halves = target.machine.kind == MachineKind::Gpu && target.machine.fragment(Scalar::F16).is_some();
        let [longest, shorter] = LONG;
        let long = match model.window() {
            // States go through the tokens of a step in kernels of their own for every few of them: a layer of Qwen3.5 has 55 for 512 tokens, and plans for 8,192 take minutes.
            _ if model.state_bytes() > 0 => CHUNK,
            // A window's rows are kept for a whole step besides, in every layer that has one.
            Some(_) => shorter,
            None => longest,
        };
        let usual = if halves && chunk == CHUNK { long } else { chunk };
        Most { chunk, long: settings.long.unwrap_or(usual).clamp(chunk, context) }
    }
    /// Is that what a long prompt's steps have unless the settings say otherwise?
    pub fn is_usual(long: usize) -> bool {
        LONG.contains(&long)
    }
    /// Tokens of a long prompt's steps where these are too many: fewer, or a chunk.
    pub fn shorter(self) -> usize {
        LONG.into_iter().find(|&long| long < self.long && long > self.chunk).unwrap_or(self.chunk)
    }
    /// Of steps that are not longer for long prompts.
    pub fn chunk(chunk: usize) -> Most {
        Most { chunk, long: chunk }
    }
}

/// Rows of the cache are a multiple of this.
const ROWS_STEP: usize = 2048;
/// Tokens of a step of a few: experts get so few rows each that small tiles pay.
pub(super) const FEW: usize = 64;

/// A class of step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Class {
    /// The most tokens it takes.
    pub tokens: usize,
    /// Are they of several sequences, one each?
    pub batch: bool,
    /// Most tokens of other sequences, one each, behind those of one; 0 where there are none.
    pub others: usize,
    /// Which logits it computes.
    pub logits: Logits,
    /// Positions within its reach.
    pub depth: usize,
}

/// Depths of the steps of one token before that of the whole cache, on a GPU: how attention is divided depends on how far it may reach, so a
/// long context has steps of their own for its start.
const DEPTHS: [usize; 2] = [2048, 8192];

/// Depths of the steps of one token, for a cache of so many rows.
pub fn depths(settings: &Settings, rows: usize, target: &Target) -> Vec<usize> {
    let usual: &[usize] = if target.machine.kind == MachineKind::Gpu { &DEPTHS } else { &[] };
    let short = settings.depths.as_deref().unwrap_or(usual);
    short.iter().copied().filter(|&d| d < rows).chain([rows]).collect()
}

impl Settings {
    /// Most tokens of other sequences in the step of a piece, whose sequence is one of those that may share a step; none where there are no such steps.
    pub fn others(&self) -> Option<usize> {
        self.parallel.filter(|&sequences| self.mixed && sequences > 1).map(|sequences| sequences - 1)
    }
    /// The same over these pools. A step of a piece and tokens of others has their rows as numbers of one pool, and no states: where windows have a pool of their own, or there are states, pieces have
    /// steps of their own.
    pub fn over(self, pools: Option<Pools>) -> Settings {
        let mixed = self.mixed && pools.is_none_or(|pools| pools.windows.is_none() && pools.states == 0);
        Settings { mixed, ..self }
    }
}

/// The classes that every session needs, with steps of at most so many tokens and these depths, the last that of the cache: compiled in one batch when a model is loaded.
/// With `others` pieces of a prompt are in steps that take tokens of so many other sequences as well: see [`Settings::others`].
pub fn classes(Most { chunk, long }: Most, depths: &[usize], others: Option<usize>) -> Vec<Class> {
    let (rows, others) = (*depths.last().expect("that of the cache"), others.unwrap_or(0));
    let one = depths.iter().map(|&depth| Class { tokens: 1, batch: false, others: 0, logits: Logits::Last, depth });
    let many = [FEW.min(chunk), chunk, long].map(|n| (n, Logits::Last));
    let many = [many[0], (chunk, Logits::None), many[1], (long, Logits::None), many[2]];
    let many = many.into_iter().filter(|c| c.0 > 1).map(|(tokens, logits)| Class {
        tokens,
        batch: false,
        others,
        logits,
        depth: rows,
    });
    let mut all: Vec<Class> = one.chain(many).collect();
    all.dedup();
    all
}

/// Most tiles of tokens of one expert for which a core that multiplies tiles unpacks a weight once. Unpacking 16 rows costs three times a product with 16 tokens
/// (Xeon, Q4_0); V2-Lite's experts have 48 of 512 tokens on average. Prompts of 512 of V2-Lite by matrices of a GPU's subgroups (H100 through Vulkan): 5,565 tokens a second with two, 6,366 with four,
/// 6,409 with eight.
const TILES_OF_AN_EXPERT: usize = 4;

/// Most columns of a warp's product, of tokens of one expert, for which a GPU unpacks a weight once. GLM's gate and up of 512 tokens on an H100, 32 tokens an expert:
/// 180 us with two and 175 with four, each in the shape that suits it best, 237 with six; empty columns cost what others do.
const COLUMNS_OF_AN_EXPERT: usize = 4;

/// A cache, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheShape {
    /// Positions that a sequence may have.
    pub rows: usize,
    /// Pages of the pools that sequences share, if they do.
    pub pages: Option<Pools>,
    /// The most tokens of a step.
    pub chunk: usize,
    /// Type of what is cached.
    pub scalar: Scalar,
}

impl CacheShape {
    /// Rows that a plane has: those of the pool, of all positions, or of a ring where its tokens see a window and that is less; of a state one for each that there is room for.
    pub fn plane_rows(&self, plane: &Plane) -> usize {
        if plane.is_state() {
            return self.pages.map_or(1, |pools| pools.states);
        }
        let ring = plane.window().map_or(self.rows, |window| Options::ring_rows(window, self.chunk));
        self.pages.map_or(self.rows.min(ring), |pools| pools.pages_of(plane.window()) * Options::PAGE)
    }
}

/// The class of a step of one token each of so many sequences, of `most` at most: the least power of two that takes them.
pub fn batch_class(sequences: usize, most: usize, rows: usize) -> Class {
    let tokens = sequences.next_power_of_two().min(most);
    Class { tokens, batch: true, others: 0, logits: Logits::All, depth: rows }
}

/// How the steps of a class are planned.
pub fn plan_options(class: Class, cache: CacheShape, target: &Target) -> Options {
    let Class { tokens: max, batch, others, logits, depth } = class;
    let CacheShape { rows, pages, chunk, scalar } = cache;
    Options {
        tokens: match max {
            _ if batch => TokenClass::Batch { max },
            _ if others > 0 => TokenClass::Mixed { piece: max, others },
            1 => TokenClass::One,
            _ => TokenClass::Chunk { max },
        },
        rows,
        pages,
        chunk,
        depth,
        cache: scalar,
        logits,
        tile: expert_tile(target),
    }
}

/// Tokens of one expert that several warps of a GPU multiply with one weight, where each expert has as many on average; and rows of a tile, of which the weight has whole ones: others
/// have single warps, for which tiles of 64 tokens take an H100 8 % longer than of 32 (V2-Lite's gate and up before they had several).
const OF_SEVERAL_WARPS: [usize; 2] = [halves::LEAST_OF_GROUP as usize, halves::ROWS_OF_GROUP as usize];

/// Tokens of one expert that a tile has: whole columns of the machine's products, if it multiplies halves or tiles.
fn expert_tile(target: &Target) -> ExpertTile {
    let own = if target.machine.kind == MachineKind::Cpu { Options::TILE_OF_CORES } else { Options::TILE };
    if let Some(of) = target.machine.tile_fragment() {
        return ExpertTile { most: TILES_OF_AN_EXPERT * of.rows as usize, ..own };
    }
    match target.machine.fragment(Scalar::F16) {
        Some(of) => {
            let several = target.machine.fragments.iter().any(Fragment::is_of_group);
            ExpertTile {
                least: of.columns as usize,
                most: COLUMNS_OF_AN_EXPERT * of.columns as usize,
                group: several.then_some(OF_SEVERAL_WARPS),
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
