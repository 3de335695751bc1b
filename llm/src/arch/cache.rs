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
    /// Is it a state of all tokens so far, whatever their number? Else it has a row for every position.
    pub fixed: bool,
}

impl Plane {
    /// Bytes of its part of a row; of a state none.
    pub fn row_bytes(&self) -> usize {
        if self.fixed { 0 } else { self.width * self.scalar.bytes() }
    }
    /// Bytes that it takes whatever the number of positions: those of a state.
    pub fn fixed_bytes(&self) -> usize {
        if self.fixed { self.width * self.scalar.bytes() } else { 0 }
    }
    /// Its elements in a cache of so many rows.
    pub fn elements(&self, rows: usize) -> usize {
        if self.fixed { self.width } else { rows * self.width }
    }
    /// Its bytes in a cache of so many rows.
    pub fn bytes(&self, rows: usize) -> usize {
        self.elements(rows) * self.scalar.bytes()
    }
}

/// Numbers that a layer keeps of every token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Component {
    /// What they are called.
    pub name: &'static str,
    /// How many.
    pub width: usize,
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
        CacheSpec { components: vec![Component { name, width }], states: Vec::new() }
    }
    /// Keys and values apart, of so many numbers each.
    pub fn keys_and_values(keys: usize, values: usize) -> CacheSpec {
        let components = vec![Component { name: "keys", width: keys }, Component { name: "values", width: values }];
        CacheSpec { components, states: Vec::new() }
    }
    /// States alone.
    pub fn of_states(states: Vec<Component>) -> CacheSpec {
        CacheSpec { components: Vec::new(), states }
    }
    /// The buffers, where numbers are stored as `cache`: the numbers themselves, or bytes and then their scales (`uop/src/rows.rs`), for one
    /// component after the other; then the states.
    pub fn planes(&self, cache: Scalar) -> Vec<Plane> {
        let of = |c: &Component| {
            let mut planes = vec![Plane { name: c.name, width: c.width, scalar: cache, fixed: false }];
            if !cache.is_float() {
                let width = c.width / group_of(c.width);
                planes.push(Plane { name: "scales", width, scalar: Scalar::F16, fixed: false });
            }
            planes
        };
        let state = |c: &Component| Plane { name: c.name, width: c.width, scalar: Scalar::F32, fixed: true };
        self.components.iter().flat_map(of).chain(self.states.iter().map(state)).collect()
    }
    /// Bytes of a row.
    pub fn row_bytes(&self, cache: Scalar) -> usize {
        self.planes(cache).iter().map(Plane::row_bytes).sum()
    }
    /// Bytes of its states.
    pub fn state_bytes(&self) -> usize {
        self.planes(Scalar::F32).iter().map(Plane::fixed_bytes).sum()
    }
}
