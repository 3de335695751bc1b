//! Page pools of the KV cache, shared by all sequences.

/// Sizes of the page pools: full-attention layers, sliding-window layers, and recurrent states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pools {
    /// Number of pages of [`Pools::PAGE`] positions each.
    pub pages: usize,
    /// Number of pages of sliding-window layers; `None` if they use the pages of the other layers.
    pub windows: Option<usize>,
    /// Number of recurrent-state rows, for sequences and snapshots; 0 without recurrent layers.
    pub states: usize,
}

/// Kinds of cache a model needs in addition to one row per position.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheKinds {
    /// Longest sliding window in positions; `None` without windowed layers.
    pub window: Option<usize>,
    /// True if a layer has recurrent state.
    pub states: bool,
}

/// Windows held per sequence: that of its next token, and one at a position where another request
/// may resume, such as the end of the prompt.
const WINDOWS_PER_SEQUENCE: usize = 2;
/// State rows held per sequence: its own, the snapshot at which its prompt resumed, and one at the
/// end of an earlier reply. A guess; missed snapshots were not counted.
const STATES_PER_SEQUENCE: usize = 3;

impl Pools {
    /// Number of positions per page.
    pub const PAGE: usize = 64;
    /// Sizes the pools for steps of `sequences` sequences or `tokens` tokens of one. Windowed
    /// layers get their own pool only if it is smaller than `pages`.
    pub fn new(pages: usize, kinds: CacheKinds, sequences: usize, tokens: usize) -> Pools {
        let of = |window| {
            WINDOWS_PER_SEQUENCE * sequences * Pools::blocks(window, 1)
                + Pools::blocks(window, tokens)
        };
        let windows = kinds.window.map(of).filter(|&windows| windows < pages);
        Pools {
            pages,
            windows,
            states: if kinds.states {
                STATES_PER_SEQUENCE * sequences
            } else {
                0
            },
        }
    }
    /// Creates a pool of `pages` pages, without window pool and states.
    pub fn from_pages(pages: usize) -> Pools {
        Pools {
            pages,
            windows: None,
            states: 0,
        }
    }
    /// Returns the maximum number of pages touched by `tokens` consecutive tokens and their
    /// windows, at any alignment.
    pub fn blocks(window: usize, tokens: usize) -> usize {
        (window + tokens - 2).div_ceil(Pools::PAGE) + 1
    }
    /// Returns the number of pages for layers with the given window; `None` for full attention.
    pub fn pages_of(&self, window: Option<usize>) -> usize {
        self.windows
            .filter(|_| window.is_some())
            .unwrap_or(self.pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_a_window_lie_in_as_many_pages() {
        for (window, tokens) in [
            (1, 1),
            (2, 1),
            (16, 1),
            (64, 1),
            (65, 1),
            (128, 1),
            (1024, 512),
            (16, 64),
            (1, 2),
        ] {
            let page = |position: usize| position / Pools::PAGE;
            let most = (window - 1..window + 200)
                .map(|at| page(at + tokens - 1) - page(at + 1 - window) + 1)
                .max();
            assert_eq!(
                Some(Pools::blocks(window, tokens)),
                most,
                "{window} {tokens}"
            );
        }
    }

    #[test]
    fn a_pool_of_windows_is_smaller_or_none() {
        let windows = CacheKinds {
            window: Some(128),
            states: false,
        };
        assert_eq!(
            Pools::new(4000, CacheKinds::default(), 4, 512).windows,
            None
        );
        // A window of 128 positions touches three pages for one token, eleven for 512 tokens.
        let pools = Pools::new(4000, windows, 4, 512);
        assert_eq!(
            (
                pools.windows,
                pools.pages_of(None),
                pools.pages_of(Some(128))
            ),
            (Some(2 * 4 * 3 + 11), 4000, 35)
        );
        assert_eq!(Pools::new(35, windows, 4, 512), Pools::from_pages(35));
    }

    #[test]
    fn states_have_rows_for_every_sequence() {
        let pools = Pools::new(
            4000,
            CacheKinds {
                window: None,
                states: true,
            },
            4,
            512,
        );
        assert_eq!(
            pools,
            Pools {
                states: 12,
                ..Pools::from_pages(4000)
            }
        );
    }
}
