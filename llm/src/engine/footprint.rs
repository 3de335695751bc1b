//! The bytes that an engine takes beside its weights, and the context that fits.

use super::class::{Settings, cache_rows};
use super::error::Error;
use crate::arch::{CacheKinds, Model, Options, Pools};
use crate::sampling::NUMBERS;

/// Share of the available memory that a context may take when none is asked for.
const CONTEXT_SHARE: f64 = 0.25;
/// Share of it that a pool for several sequences may take, with what steps need besides.
const POOL_SHARE: f64 = 0.5;
/// Context when none is asked for: no more than this, though the model may allow it.
const CONTEXT_DEFAULT: usize = 32768;
/// What messages count in.
const MB: u64 = 1_000_000;
/// A shorter context is of no use to anybody who does not ask for one.
const CONTEXT_LEAST: usize = 512;

/// The bytes that an engine allocates beside the weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Footprint {
    /// Of each row of the cache: its part of layers that keep every position, its rotations, a token and a random number.
    pub row: u64,
    /// Its part of those layers alone.
    pub cached: u64,
    /// Its part of layers that keep a window, and how many rows they have at most: those of the widest ring, or of the pool of windows.
    pub windowed: [u64; 2],
    /// What the model keeps besides, and the most tokens of a step over a pool.
    pub kinds: CacheKinds,
    pub piece: usize,
    /// Of all states of one sequence.
    pub state: u64,
    /// Whatever the context: logits, hidden rows, tokens, what a request's numbers take, intermediates.
    pub besides: u64,
    /// Most tokens of one step: the cache has rows for one step more.
    pub chunk: usize,
}

impl Footprint {
    /// Of a model that is run so, with intermediates of so many bytes.
    pub fn new(model: &dyn Model, probe: &Options, settings: &Settings, arena: usize) -> Footprint {
        let (chunk, long) = (settings.chunk, settings.long.unwrap_or(settings.chunk));
        let windowed = model.window_row_bytes(probe.cache);
        let kinds = model.cache_kinds();
        let of_windows = |window| match settings.parallel {
            None => Options::ring_rows(window, long),
            Some(n) => Options::PAGE * Pools::new(usize::MAX, kinds, n, chunk).pages_of(Some(window)),
        };
        let cached = model.cache_row_bytes(probe.cache) - windowed;
        let row = cached + rope_row(model, probe.rows) + size_of::<u32>() + size_of::<u32>();
        let others = settings.others().unwrap_or(0);
        let tokens = long + others;
        let hidden = 2 * tokens * model.width() * size_of::<f32>() + layer_input_bytes(model, tokens);
        let logits = chunk.max(others + 1) * model.vocabulary() * size_of::<f32>();
        let request = NUMBERS * size_of::<f32>() + tokens * size_of::<u32>();
        let besides = (hidden + logits + request + arena) as u64;
        let windowed = [windowed as u64, kinds.window.map_or(u64::MAX, |window| of_windows(window) as u64)];
        let (row, cached, state) = (row as u64, cached as u64, model.state_bytes() as u64);
        Footprint { row, cached, windowed, kinds, piece: chunk, state, besides, chunk: long }
    }
    /// What steps take: what there is besides, and rows of the cache for one step more.
    pub fn of_steps(&self) -> u64 {
        self.besides + self.state + self.row * self.chunk as u64
    }
    /// With pools of so many pages, if there are any, for contexts of so many tokens each.
    pub fn with_pool(&self, context: usize, pools: Option<Pools>) -> u64 {
        let rows = cache_rows(context, self.chunk) as u64;
        let of = |bytes: u64, pages: usize| bytes.saturating_mul((pages * Options::PAGE) as u64);
        match pools {
            None => self.bytes(context),
            Some(pools) => {
                let windows = of(self.windowed[0], pools.pages_of(self.kinds.window));
                let of_one = self.cached * rows + self.rings(rows) + self.state;
                let states = self.state.saturating_mul(pools.states as u64);
                self.bytes(context) - of_one + of(self.cached, pools.pages) + windows + states
            }
        }
    }
    /// So many sequences, halved until their rows of states take no more than half of a pool's share of what is available: the rest is for pages.
    pub fn sequences(&self, asked: usize, available: u64) -> usize {
        let most = (available as f64 * POOL_SHARE / 2.0) as u64;
        let states = |n: usize| self.state.saturating_mul(Pools::new(0, self.kinds, n, self.piece).states as u64);
        let halves = std::iter::successors(Some(asked), |n| (*n > 1).then_some(n / 2));
        halves.into_iter().find(|&n| states(n) <= most).unwrap_or(1)
    }
    /// The pools of so many sequences: pages of as many whole contexts, halved until they and all else take no more than a share of what is available, and
    /// of one context at least. By halves, so that kernels, which know the pool's size, still fit when a little less memory is free.
    pub fn pools(&self, context: usize, sequences: usize, available: u64) -> Pools {
        let most = (available as f64 * POOL_SHARE) as u64;
        let pages = context.div_ceil(Options::PAGE);
        let of = |contexts: usize| Pools::new(contexts * pages, self.kinds, sequences, self.piece);
        let mut contexts = sequences.max(1);
        while contexts > 1 && self.with_pool(context, Some(of(contexts))) > most {
            contexts /= 2;
        }
        of(contexts)
    }
    /// Rows of the cache that so many bytes hold.
    fn rows_within(&self, bytes: u64) -> u64 {
        let [row, most] = self.windowed;
        let whole = bytes / (self.row + row).max(1);
        if whole <= most { whole } else { bytes.saturating_sub(row * most) / self.row.max(1) }
    }
    /// For a context of so many tokens.
    pub fn bytes(&self, context: usize) -> u64 {
        let rows = cache_rows(context, self.chunk) as u64;
        let besides = self.besides.saturating_add(self.state);
        besides.saturating_add(self.row.saturating_mul(rows)).saturating_add(self.rings(rows))
    }
    /// Of layers with a window, in a cache of so many rows.
    fn rings(&self, rows: u64) -> u64 {
        let [row, most] = self.windowed;
        row.saturating_mul(rows.min(most))
    }
    /// The longest context, of at most `most` tokens, that takes no more bytes than there are; 0 if none does.
    pub fn longest(&self, most: usize, available: u64) -> usize {
        // The first that does not fit lies behind `fits`, at most at `ends`.
        let (mut fits, mut ends) = (0, most + 1);
        while ends - fits > 1 {
            let middle = fits.midpoint(ends);
            if self.bytes(middle) <= available { fits = middle } else { ends = middle }
        }
        fits
    }
}

/// Bytes of what a model makes of a step's tokens for all its layers: rows of all layers, and after the last what a row lacks that is read from the part of the last
/// layer on.
pub(super) fn layer_input_bytes(model: &dyn Model, chunk: usize) -> usize {
    (chunk + 1) * model.layers() * model.layer_input() * size_of::<f32>()
}

/// Bytes of one row of the tables of rotations, for a context of so many tokens.
fn rope_row(model: &dyn Model, context: usize) -> usize {
    model.rope_tables(context).iter().map(|t| t.row_bytes()).sum()
}

/// The context asked for, or what the model allows within a sensible share of memory. `footprint` are its bytes beside the weights.
pub(super) fn choose_context(
    settings: &Settings,
    most: usize,
    footprint: &Footprint,
    available: u64,
) -> Result<usize, Error> {
    let fits = || footprint.longest(most, available);
    let refused = |context, fits| {
        let need = footprint.bytes(context) / MB;
        Err(Error::Context { context, need, available: available / MB, fits })
    };
    match settings.context {
        Some(0) => Err(Error::BadContext(0, most)),
        Some(context) if context > most => Err(Error::BadContext(context, most)),
        Some(context) if footprint.bytes(context) > available => refused(context, fits()),
        Some(context) => Ok(context),
        None => {
            let least = CONTEXT_LEAST.min(most);
            if footprint.bytes(least) > available {
                return refused(least, 0);
            }
            let share = footprint.rows_within((available as f64 * CONTEXT_SHARE) as u64);
            let share = (share as usize).clamp(CONTEXT_LEAST, CONTEXT_DEFAULT);
            // A power of two: kernels know the cache's size, and those compiled when a little less memory was free still fit.
            Ok((1 << share.min(fits()).ilog2()).min(most))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 KiB a row and 1 MiB besides.
    fn small() -> Footprint {
        Footprint {
            row: 1 << 10,
            cached: 1 << 9,
            windowed: [0, 0],
            kinds: CacheKinds::default(),
            piece: 512,
            state: 0,
            besides: 1 << 20,
            chunk: 512,
        }
    }

    const WINDOW: CacheKinds = CacheKinds { window: Some(128), states: false };

    #[test]
    fn a_context_fits_or_says_what_would() {
        let footprint = small();
        let choose = |context, available| {
            let settings = Settings { context, ..Settings::default() };
            choose_context(&settings, 100_000, &footprint, available)
        };
        // 9,216 tokens and a chunk are 10,240 rows or fewer, allocated by 2,048.
        assert_eq!(choose(Some(9000), 11 << 20).unwrap(), 9000);
        let error = choose(Some(20_000), 11 << 20).unwrap_err();
        // 20,512 rows are allocated as 22,528.
        let Error::Context { context: 20_000, need: 24, available: 11, fits } = error else { panic!("{error}") };
        assert_eq!(cache_rows(fits, 512), 10_240, "{fits}");
        assert!(cache_rows(fits + 1, 512) > 10_240, "{fits}");
        assert!(error.hint().unwrap().contains(&format!("--ctx {fits}")));
        assert!(choose(Some(1), 0).unwrap_err().hint().unwrap().contains("smaller"));
        assert!(matches!(choose(Some(100_001), 1 << 40), Err(Error::BadContext(..))));
        // A quarter of 60 MiB is 15,360 tokens; a little less memory chooses the same.
        assert_eq!(choose(None, 60 << 20).unwrap(), 8192);
        assert_eq!(choose(None, 50 << 20).unwrap(), 8192);
        assert_eq!(choose(None, 1 << 40).unwrap(), CONTEXT_DEFAULT);
        // A quarter of 3 MiB is 768 tokens, and one byte less would not hold the least context.
        assert_eq!(choose(None, 3 << 20).unwrap(), 512);
        assert!(matches!(choose(None, (3 << 20) - 1), Err(Error::Context { fits: 0, .. })));
        assert!(matches!(choose(None, 0), Err(Error::Context { .. })));
        // Where most of the memory goes into what no context changes, what fits decides: 4,096 rows of 3,584 tokens and a chunk.
        let heavy = Footprint { besides: 40 << 20, ..footprint };
        assert_eq!(choose_context(&Settings::default(), 100_000, &heavy, 44 << 20).unwrap(), 2048);
    }

    #[test]
    fn a_pool_has_as_many_contexts_as_fit() {
        let footprint = small();
        // 1,000 tokens are 16 pages of 32 KiB; 2,048 rows take 1 MiB besides, and 1 MiB is there whatever the context.
        let of = Pools::of;
        assert_eq!(footprint.with_pool(1000, Some(of(16))), (2 << 20) + (16 << 15));
        assert_eq!(footprint.with_pool(1000, None), 3 << 20);
        assert_eq!(footprint.pools(1000, 8, 1 << 40), of(8 * 16));
        // Half of 8 MiB holds four of them, and half of 7 two.
        assert_eq!(footprint.pools(1000, 8, 8 << 20), of(4 * 16));
        assert_eq!(footprint.pools(1000, 8, 7 << 20), of(2 * 16));
        assert_eq!(footprint.pools(1000, 8, 0), of(16), "one is the least");
    }

    #[test]
    fn windows_take_rows_of_their_rings_alone() {
        let windowed = [1 << 12, 640];
        let footprint = Footprint { windowed, kinds: WINDOW, besides: 0, ..small() };
        assert_eq!(footprint.bytes(9000), (10_240 << 10) + (640 << 12));
        assert_eq!(footprint.bytes(100_000) - footprint.bytes(9000), (cache_rows(100_000, 512) as u64 - 10_240) << 10);
        assert_eq!((footprint.rows_within(500 << 10), footprint.rows_within((640 << 12) + (9000 << 10))), (100, 9000));
        let longest = footprint.longest(100_000, (640 << 12) + (10_240 << 10));
        assert_eq!(cache_rows(longest, 512), 10_240);
    }

    #[test]
    fn windows_of_a_pool_take_pages_of_their_own() {
        // Of four sequences 35 pages of 256 KiB, whatever the context, where that is fewer than there are.
        let windowed = [1 << 12, 35 * 64];
        let footprint = Footprint { windowed, kinds: WINDOW, besides: 0, ..small() };
        let pools = footprint.pools(100_000, 4, 1 << 40);
        assert_eq!(pools, Pools { windows: Some(35), ..Pools::of(4 * 1563) });
        let rows = cache_rows(100_000, 512) as u64;
        assert_eq!(footprint.with_pool(100_000, Some(pools)), (rows << 9) + ((4 * 1563) << 15) + (35 << 18));
        let pools = footprint.pools(500, 4, 1 << 40);
        assert_eq!(pools, Pools::of(32));
        assert_eq!(footprint.with_pool(500, Some(pools)), (2048 << 9) + (32 << 15) + (32 << 18));
    }

    #[test]
    fn states_of_several_sequences_have_rows() {
        let footprint = Footprint { state: 1 << 16, kinds: CacheKinds { window: None, states: true }, ..small() };
        assert_eq!(footprint.bytes(1000), (3 << 20) + (1 << 16), "of one sequence");
        let pools = footprint.pools(1000, 4, 1 << 40);
        assert_eq!(pools, Pools { states: 12, ..Pools::of(4 * 16) });
        assert_eq!(footprint.with_pool(1000, Some(pools)), (2 << 20) + ((4 * 16) << 15) + (12 << 16));
        // Three rows of 64 KiB each: of 8 MiB a quarter holds those of ten sequences.
        assert_eq!([(8, 8 << 20), (16, 8 << 20), (5, 0)].map(|(n, left)| footprint.sequences(n, left)), [8, 8, 1]);
        assert_eq!(small().sequences(64, 0), 64, "without states all are taken");
    }
}
