//! The pools of pages that the cache of several sequences is.

/// How many pages there are: those with rows of layers that keep every position, and in pools beside it those of layers with a window, and rows of states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pools {
    /// Pages, each of [`Pools::PAGE`] positions of one sequence.
    pub pages: usize,
    /// Pages of layers with a window; none where these have rows in every page too.
    pub windows: Option<usize>,
    /// Rows of states, each what a layer keeps of all tokens of one sequence so far; 0 where no layer keeps any.
    pub states: usize,
}

/// What a model has of sequences besides a row of every position.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheKinds {
    /// Positions that tokens see of layers with a window, where there are such layers.
    pub window: Option<usize>,
    /// Does a layer keep states?
    pub states: bool,
}

/// Windows that there is room for, for every sequence: the one that its next token sees, and one where another may go on, as where its prompt ends or an earlier one did.
const WINDOWS: usize = 2;
/// Rows of states that there is room for, for every sequence: its own, one where its prompt was gone on from, and one where an earlier answer ended. A guess: how often a snapshot was
/// missed was counted nowhere.
const STATES: usize = 3;

impl Pools {
    /// Positions of a page.
    pub const PAGE: usize = 64;
    /// So many pages, for steps of as many sequences or of so many tokens of one, of a model that keeps these.
    pub fn new(pages: usize, kinds: CacheKinds, sequences: usize, tokens: usize) -> Pools {
        let of = |window| WINDOWS * sequences * Pools::blocks(window, 1) + Pools::blocks(window, tokens);
        let windows = kinds.window.map(of).filter(|&windows| windows < pages);
        Pools { pages, windows, states: if kinds.states { STATES * sequences } else { 0 } }
    }
    /// Pages alone.
    pub fn of(pages: usize) -> Pools {
        Pools { pages, windows: None, states: 0 }
    }
    /// Pages in which the positions lie, wherever the first of them stands, that so many tokens of one sequence see of a window.
    pub fn blocks(window: usize, tokens: usize) -> usize {
        (window + tokens - 2).div_ceil(Pools::PAGE) + 1
    }
    /// Pages of layers whose tokens see so many positions, or all.
    pub fn pages_of(&self, window: Option<usize>) -> usize {
        self.windows.filter(|_| window.is_some()).unwrap_or(self.pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_a_window_lie_in_as_many_pages() {
        for (window, tokens) in [(1, 1), (2, 1), (16, 1), (64, 1), (65, 1), (128, 1), (1024, 512), (16, 64), (1, 2)] {
            let page = |position: usize| position / Pools::PAGE;
            let most = (window - 1..window + 200).map(|at| page(at + tokens - 1) - page(at + 1 - window) + 1).max();
            assert_eq!(Some(Pools::blocks(window, tokens)), most, "{window} {tokens}");
        }
    }

    #[test]
    fn a_pool_of_windows_is_smaller_or_none() {
        let windows = CacheKinds { window: Some(128), states: false };
        assert_eq!(Pools::new(4000, CacheKinds::default(), 4, 512).windows, None);
        // Three pages are what a token sees of 128 positions, eleven what 512 tokens see.
        let pools = Pools::new(4000, windows, 4, 512);
        assert_eq!((pools.windows, pools.pages_of(None), pools.pages_of(Some(128))), (Some(2 * 4 * 3 + 11), 4000, 35));
        assert_eq!(Pools::new(35, windows, 4, 512), Pools::of(35));
    }

    #[test]
    fn states_have_rows_for_every_sequence() {
        let pools = Pools::new(4000, CacheKinds { window: None, states: true }, 4, 512);
        assert_eq!(pools, Pools { states: 12, ..Pools::of(4000) });
    }
}
