//! What a layer keeps: of every token, and of all tokens before.

use gristmill_uop::dtype::Scalar;
use gristmill_uop::rows::group_of;

/// A buffer of a cache: of every row, the part of one type; or a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plane {
    /// What the part is called.
    pub name: &'static str,
    /// Its elements, of a row or of the state.
    pub width: usize,
    /// Their type.
    pub scalar: Scalar,
    /// What it has of a sequence.
    pub holds: Holds,
}

/// What a buffer of a cache has of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holds {
    /// A row for every position.
    All,
    /// Rows of the last positions, so many at least: a ring, see [`super::Options::ring`].
    Window(usize),
    /// A state of all tokens so far, whatever their number.
    State,
}

impl Plane {
    /// Is it a state?
    pub fn is_state(&self) -> bool {
        self.holds == Holds::State
    }
    /// The positions that tokens see of its rows, unless they see all.
    pub fn window(&self) -> Option<usize> {
        if let Holds::Window(window) = self.holds { Some(window) } else { None }
    }
    /// Bytes of its part of a row of a position; of a state none.
    pub fn row_bytes(&self) -> usize {
        if self.is_state() { 0 } else { self.bytes(1) }
    }
    /// Its bytes, where it has so many rows, of a state one for each sequence.
    pub fn bytes(&self, rows: usize) -> usize {
        rows * self.width * self.scalar.bytes()
    }
}

/// Numbers that a layer keeps of every token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Component {
    /// What they are called.
    pub name: &'static str,
    /// How many.
    pub width: usize,
    /// Positions that tokens see of them, unless they see all.
    pub window: Option<usize>,
}

impl Component {
    /// Numbers of every token.
    pub fn new(name: &'static str, width: usize) -> Component {
        Component { name, width, window: None }
    }
    /// What a buffer of them has of a sequence.
    fn holds(&self) -> Holds {
        self.window.map_or(Holds::All, Holds::Window)
    }
}

/// The cache of one layer: a row of each component for every position, and states, which each token changes. Of states only the latest is there: a
/// sequence cannot be cut to a part of which no copy of them was kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CacheSpec {
    /// What a row is made of.
    pub components: Vec<Component>,
    /// States, in f32, by their number of elements.
    pub states: Vec<Component>,
}

impl CacheSpec {
    /// Rows of one component.
    pub fn of(name: &'static str, width: usize) -> CacheSpec {
        CacheSpec { components: vec![Component::new(name, width)], states: Vec::new() }
    }
    /// Rows of components.
    pub fn of_rows(components: &[Component]) -> CacheSpec {
        CacheSpec { components: components.to_vec(), states: Vec::new() }
    }
    /// States alone.
    pub fn of_states(states: Vec<Component>) -> CacheSpec {
        CacheSpec { components: Vec::new(), states }
    }
    /// The buffers, where numbers are stored as `cache`: the numbers themselves, or bytes and then their scales (`uop/src/rows.rs`), for one
    /// component after the other; then the states.
    pub fn planes(&self, cache: Scalar) -> Vec<Plane> {
        let of = |c: &Component| {
            let mut planes = vec![Plane { name: c.name, width: c.width, scalar: cache, holds: c.holds() }];
            if !cache.is_float() {
                let width = c.width / group_of(c.width);
                planes.push(Plane { name: "scales", width, scalar: Scalar::F16, holds: c.holds() });
            }
            planes
        };
        let state = |c: &Component| Plane { name: c.name, width: c.width, scalar: Scalar::F32, holds: Holds::State };
        self.components.iter().flat_map(of).chain(self.states.iter().map(state)).collect()
    }
    /// Bytes of a row.
    pub fn row_bytes(&self, cache: Scalar) -> usize {
        self.planes(cache).iter().map(Plane::row_bytes).sum()
    }
    /// Bytes of a row, as far as it is there for a window alone.
    pub fn window_row_bytes(&self, cache: Scalar) -> usize {
        self.planes(cache).iter().filter(|p| p.window().is_some()).map(Plane::row_bytes).sum()
    }
    /// The positions that its tokens see at most, where there are rows that they do not see all of.
    pub fn window(&self) -> Option<usize> {
        self.components.iter().filter_map(|c| c.window).max()
    }
    /// Bytes of its states.
    pub fn state_bytes(&self) -> usize {
        self.planes(Scalar::F32).iter().filter(|p| p.is_state()).map(|p| p.bytes(1)).sum()
    }
}
