//! Device memory that an engine takes in addition to its weights, and the context that fits.

use super::graph_key::{Settings, cache_rows};
use crate::arch::hadamard::BLOCK;
use crate::arch::{CacheKinds, Model, Options, Pools};
use crate::error::Error;
use crate::placement::Placement;

/// Share of the available memory for the default context.
const CONTEXT_SHARE: f64 = 0.25;
/// Share of it for the page pool of several sequences, including step buffers.
const POOL_SHARE: f64 = 0.5;
/// Upper limit of the default context in tokens, if the model allows more.
const DEFAULT_CONTEXT: usize = 32768;
/// Unit of memory sizes in error messages, in bytes.
const MB: u64 = 1_000_000;
/// Lower limit of the default context in tokens; shorter ones are useful only if requested.
const MIN_CONTEXT: usize = 512;

/// Bytes that an engine allocates in addition to the weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Footprint {
    /// Bytes of a row of the RoPE tables.
    pub rope: u64,
    /// Bytes of a KV cache position in layers with full attention.
    pub cached: u64,
    /// Bytes of a KV cache position in sliding-window layers.
    pub windowed: u64,
    /// Other caches of the model: sliding window, recurrent states.
    pub kinds: CacheKinds,
    /// Bytes of all recurrent states of one sequence.
    pub state: u64,
    /// Bytes that do not depend on the context: logits, hidden rows, tokens, intermediates.
    pub besides: u64,
    /// Maximum tokens of one step; the cache has rows for one step past the context.
    pub step: usize,
    /// Maximum sequences of one step, and whole contexts in the pool if memory allows.
    pub sequences: usize,
    pub contexts: usize,
}

impl Footprint {
    /// Computes the footprint of a model with these settings and intermediates of `arena` bytes, on
    /// a device of this placement, by its index.
    pub fn new(
        model: &dyn Model,
        probe: &Options,
        settings: &Settings,
        (placement, device): (&Placement, usize),
        arena: usize,
    ) -> Footprint {
        let (chunk, step) = (settings.chunk, settings.long.unwrap_or(settings.chunk));
        let own = || {
            let caches = model.caches().iter().enumerate();
            caches.filter(|(layer, _)| placement.layer(*layer).layer == device)
        };
        let windowed: usize = own().map(|c| c.1.window_row_bytes(probe.cache)).sum();
        let all: usize = own().map(|c| c.1.row_bytes(probe.cache)).sum();
        let cached = (all - windowed) as u64;
        let others = settings.decode_rows().unwrap_or(0);
        let tokens = step + others;
        let hidden =
            2 * tokens * model.width() * size_of::<f32>() + layer_input_bytes(model, tokens);
        let rows = if placement.has_logits(device) && !model.is_encoder() {
            chunk.max(settings.rows())
        } else {
            1
        };
        let logits = rows * model.vocabulary() * size_of::<f32>();
        let rope = rope_row(model, probe.rows);
        // Signs of the Hadamard matrix (f16) and mean rows of the RoPE tables.
        let signs = match probe.cache.has_scales() {
            true => BLOCK * BLOCK * size_of::<u16>(),
            false => 0,
        };
        let means = match probe.cache.is_quantised() {
            true => rope,
            false => 0,
        };
        let transforms = signs + means;
        let besides = (hidden + logits + tokens * size_of::<u32>() + transforms + arena) as u64;
        Footprint {
            rope: rope as u64,
            cached,
            windowed: windowed as u64,
            kinds: model.cache_kinds(),
            state: own().map(|c| c.1.state_bytes()).sum::<usize>() as u64,
            besides,
            step,
            sequences: settings.parallel,
            contexts: settings.contexts.max(settings.parallel),
        }
    }
    /// Returns the bytes of one step: the part independent of the context, one sequence's recurrent
    /// states, and the KV rows of the step.
    pub fn step_bytes(&self) -> u64 {
        self.besides + self.state + (self.cached + self.rope) * self.step as u64
    }
    /// Returns pools for `contexts` whole contexts and `sequences` sequences.
    fn pools_of(&self, context: usize, contexts: usize, sequences: usize) -> Pools {
        let pages = (contexts * context.div_ceil(Options::PAGE))
            .max(cache_rows(context, self.step) / Options::PAGE);
        Pools::new(pages, self.kinds, sequences, self.step)
    }
    /// Returns the bytes with these pools and contexts of `context` tokens.
    pub fn with_pools(&self, context: usize, pools: Pools) -> u64 {
        let of = |bytes: u64, pages: usize| bytes.saturating_mul((pages * Options::PAGE) as u64);
        let rope = self
            .rope
            .saturating_mul(cache_rows(context, self.step) as u64);
        let pages = of(self.cached, pools.pages)
            .saturating_add(of(self.windowed, pools.pages_of(self.kinds.window)));
        let states = self.state.saturating_mul(pools.states as u64);
        self.besides
            .saturating_add(rope)
            .saturating_add(pages)
            .saturating_add(states)
    }
    /// Returns the number of sequences, halved until their recurrent states take at most half of
    /// the pools' share of memory.
    pub fn sequences(&self, available: u64) -> usize {
        let most = (available as f64 * POOL_SHARE / 2.0) as u64;
        let states = |n: usize| {
            self.state
                .saturating_mul(Pools::new(0, self.kinds, n, self.step).states as u64)
        };
        let halves = std::iter::successors(Some(self.sequences), |n| (*n > 1).then_some(n / 2));
        halves.into_iter().find(|&n| states(n) <= most).unwrap_or(1)
    }
    /// Returns the pools of `sequences` sequences. The number of contexts is halved, down to one,
    /// until all fits the pools' share of memory. Kernels are compiled for a pool size; halving
    /// keeps them valid when slightly less memory is free.
    pub fn pools(&self, context: usize, sequences: usize, available: u64) -> Pools {
        let most = (available as f64 * POOL_SHARE) as u64;
        let mut contexts = self.contexts.max(1);
        while contexts > 1
            && self.with_pools(context, self.pools_of(context, contexts, sequences)) > most
        {
            contexts /= 2;
        }
        self.pools_of(context, contexts, sequences)
    }
    /// Returns the positions that a KV cache of `bytes` bytes holds.
    fn rows_within(&self, bytes: u64) -> u64 {
        let windows = Pools::new(usize::MAX, self.kinds, self.sequences, self.step).windows;
        let most = windows.map_or(u64::MAX, |pages| (pages * Options::PAGE) as u64);
        let row = self.cached + self.rope;
        let whole = bytes / (row + self.windowed).max(1);
        if whole <= most {
            whole
        } else {
            bytes.saturating_sub(self.windowed * most) / row.max(1)
        }
    }
    /// Returns the bytes with pools for one context of `context` tokens.
    pub fn bytes(&self, context: usize) -> u64 {
        self.with_pools(context, self.pools_of(context, 1, self.sequences))
    }
    /// Returns the longest context, at most `most` tokens, that fits `available` bytes;
    /// 0 if none does.
    pub fn longest(&self, most: usize, available: u64) -> usize {
        // The shortest context that does not fit is after `fits` and at most `ends`.
        let (mut fits, mut ends) = (0, most + 1);
        while ends - fits > 1 {
            let middle = fits.midpoint(ends);
            if self.bytes(middle) <= available {
                fits = middle
            } else {
                ends = middle
            }
        }
        fits
    }
}

/// Returns the bytes of the per-layer inputs of a step: one row of all layers for each token, and
/// one more row, because a layer's slice extends past the last token's row.
pub(super) fn layer_input_bytes(model: &dyn Model, chunk: usize) -> usize {
    (chunk + 1) * model.layers() * model.layer_input() * size_of::<f32>()
}

/// Returns the bytes of one row of all RoPE tables, for a context of `context` tokens.
fn rope_row(model: &dyn Model, context: usize) -> usize {
    model
        .rope_tables(context)
        .iter()
        .map(|t| t.row_bytes())
        .sum()
}

/// Returns the requested context, or the longest within the model's limit and a share of memory.
///
/// `most` is the model's limit, `footprint` the memory in addition to the weights.
pub(super) fn choose_context(
    settings: &Settings,
    most: usize,
    footprint: &Footprint,
    available: u64,
) -> Result<usize, Error> {
    let fits = || footprint.longest(most, available);
    let refused = |context, fits| {
        let need = footprint.bytes(context) / MB;
        Err(Error::Context {
            context,
            need,
            available: available / MB,
            fits,
        })
    };
    match settings.context {
        Some(0) => Err(Error::BadContext(0, most)),
        Some(context) if context > most => Err(Error::BadContext(context, most)),
        Some(context) if footprint.bytes(context) > available => refused(context, fits()),
        Some(context) => Ok(context),
        None => {
            let least = MIN_CONTEXT.min(most);
            if footprint.bytes(least) > available {
                return refused(least, 0);
            }
            if footprint.cached + footprint.windowed + footprint.state == 0 {
                return Ok(fits().min(DEFAULT_CONTEXT));
            }
            let share = footprint.rows_within((available as f64 * CONTEXT_SHARE) as u64);
            let share = (share as usize).clamp(MIN_CONTEXT, DEFAULT_CONTEXT);
            // A power of two: kernels are compiled for the cache size, and stay valid when slightly
            // less memory is free.
            Ok((1 << share.min(fits()).ilog2()).min(most))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A footprint of 1 KiB a row, half of it cached, and 1 MiB independent of the context.
    fn small() -> Footprint {
        Footprint {
            rope: 1 << 9,
            cached: 1 << 9,
            windowed: 0,
            kinds: CacheKinds::default(),
            state: 0,
            besides: 1 << 20,
            step: 512,
            sequences: 1,
            contexts: 1,
        }
    }

    const WINDOW: CacheKinds = CacheKinds {
        window: Some(128),
        states: false,
    };

    #[test]
    fn a_context_fits_or_says_what_would() {
        let footprint = small();
        let choose = |context, available| {
            let settings = Settings {
                context,
                ..Settings::default()
            };
            choose_context(&settings, 100_000, &footprint, available)
        };
        // 9,216 tokens and a chunk take at most 10,240 rows, allocated in multiples of 2,048.
        assert_eq!(choose(Some(9000), 11 << 20).unwrap(), 9000);
        let error = choose(Some(20_000), 11 << 20).unwrap_err();
        // 20,512 rows are allocated as 22,528.
        let Error::Context {
            context: 20_000,
            need: 24,
            available: 11,
            fits,
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(cache_rows(fits, 512), 10_240, "{fits}");
        assert!(cache_rows(fits + 1, 512) > 10_240, "{fits}");
        assert!(error.hint().unwrap().contains(&format!("--ctx {fits}")));
        assert!(
            choose(Some(1), 0)
                .unwrap_err()
                .hint()
                .unwrap()
                .contains("smaller")
        );
        assert!(matches!(
            choose(Some(100_001), 1 << 40),
            Err(Error::BadContext(..))
        ));
        // A quarter of 60 MiB is 15,360 tokens; a little less memory chooses the same.
        assert_eq!(choose(None, 60 << 20).unwrap(), 8192);
        assert_eq!(choose(None, 50 << 20).unwrap(), 8192);
        assert_eq!(choose(None, 1 << 40).unwrap(), DEFAULT_CONTEXT);
        // A quarter of 3 MiB is 768 tokens; one byte less does not hold the minimum context.
        assert_eq!(choose(None, 3 << 20).unwrap(), 512);
        assert!(matches!(
            choose(None, (3 << 20) - 1),
            Err(Error::Context { fits: 0, .. })
        ));
        assert!(matches!(choose(None, 0), Err(Error::Context { .. })));
        // If most of the memory is independent of the context, the limit is 4,096 rows: 3,584
        // tokens and a chunk.
        let heavy = Footprint {
            besides: 40 << 20,
            ..footprint
        };
        assert_eq!(
            choose_context(&Settings::default(), 100_000, &heavy, 44 << 20).unwrap(),
            2048
        );
    }

    #[test]
    fn a_pool_has_as_many_contexts_as_fit() {
        let footprint = Footprint {
            sequences: 8,
            contexts: 8,
            ..small()
        };
        // 4,000 tokens are 63 pages of 32 KiB, and a cache of 6,144 rows has 96. RoPE tables take 3
        // MiB; 1 MiB is independent of the context.
        let of = Pools::from_pages;
        assert_eq!(footprint.with_pools(4000, of(96)), (4 << 20) + (96 << 15));
        assert_eq!(footprint.pools(4000, 8, 1 << 40), of(8 * 63));
        // Half of 24 MiB holds four contexts, half of 18 MiB two, and one is the minimum.
        assert_eq!(footprint.pools(4000, 8, 24 << 20), of(4 * 63));
        assert_eq!(footprint.pools(4000, 8, 18 << 20), of(2 * 63));
        assert_eq!(
            footprint.pools(4000, 8, 0),
            of(96),
            "a step more than a context"
        );
    }

    #[test]
    fn windows_have_pages_of_their_own() {
        // Four sequences need 35 window pages of 256 KiB whatever the context, unless
        // the pool is smaller.
        let footprint = Footprint {
            windowed: 1 << 12,
            kinds: WINDOW,
            besides: 0,
            sequences: 4,
            contexts: 4,
            rope: 0,
            ..small()
        };
        let pools = footprint.pools(100_000, 4, 1 << 40);
        assert_eq!(
            pools,
            Pools {
                windows: Some(35),
                ..Pools::from_pages(4 * 1563)
            }
        );
        assert_eq!(
            footprint.with_pools(100_000, pools),
            ((4 * 1563) << 15) + (35 << 18)
        );
        // Longer contexts take pages of the full-attention layers alone.
        assert_eq!(
            footprint.bytes(100_000) - footprint.bytes(9000),
            (cache_rows(100_000, 512) as u64 - 10_240) << 9
        );
        assert_eq!(footprint.rows_within(100 * ((1 << 12) + (1 << 9))), 100);
        assert_eq!(footprint.rows_within((35 << 18) + (9000 << 9)), 9000);
    }

    #[test]
    fn states_of_several_sequences_have_rows() {
        let kinds = CacheKinds {
            window: None,
            states: true,
        };
        let footprint = Footprint {
            state: 1 << 16,
            kinds,
            sequences: 4,
            contexts: 4,
            ..small()
        };
        let pools = footprint.pools(4000, 4, 1 << 40);
        assert_eq!(
            pools,
            Pools {
                states: 12,
                ..Pools::from_pages(4 * 63)
            }
        );
        assert_eq!(
            footprint.with_pools(4000, pools),
            (4 << 20) + ((4 * 63) << 15) + (12 << 16)
        );
        // Three rows of 64 KiB each: a quarter of 8 MiB holds those of ten sequences.
        let sequences = |sequences, available| {
            Footprint {
                sequences,
                ..footprint
            }
            .sequences(available)
        };
        assert_eq!(
            [
                sequences(8, 8 << 20),
                sequences(16, 8 << 20),
                sequences(5, 0)
            ],
            [8, 8, 1]
        );
        assert_eq!(
            Footprint {
                sequences: 64,
                ..small()
            }
            .sequences(0),
            64,
            "without states all are taken"
        );
    }
}
