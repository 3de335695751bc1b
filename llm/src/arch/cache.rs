//! What a layer keeps of every token.

use gristmill_uop::dtype::Scalar;
use gristmill_uop::rows::group_of;

/// A buffer of a cache: of every row, the part of one type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plane {
    /// What the part is called.
    pub name: &'static str,
    /// Its elements.
    pub width: usize,
    /// Their type.
    pub scalar: Scalar,
}

impl Plane {
    /// Bytes of its part of a row.
    pub fn row_bytes(&self) -> usize {
        self.width * self.scalar.bytes()
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

/// The cache of one layer: a row of each component for every position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheSpec {
    /// What a row is made of.
    pub components: Vec<Component>,
}

impl CacheSpec {
    /// Rows of one component.
    pub fn of(name: &'static str, width: usize) -> CacheSpec {
        CacheSpec { components: vec![Component { name, width }] }
    }
    /// Keys and values apart, of so many numbers each.
    pub fn keys_and_values(keys: usize, values: usize) -> CacheSpec {
        let components = vec![Component { name: "keys", width: keys }, Component { name: "values", width: values }];
        CacheSpec { components }
    }
    /// The buffers, where numbers are stored as `cache`: the numbers themselves, or bytes and then their scales (`uop/src/rows.rs`), for one
    /// component after the other.
    pub fn planes(&self, cache: Scalar) -> Vec<Plane> {
        let of = |c: &Component| {
            let mut planes = vec![Plane { name: c.name, width: c.width, scalar: cache }];
            if !cache.is_float() {
                planes.push(Plane { name: "scales", width: c.width / group_of(c.width), scalar: Scalar::F16 });
            }
            planes
        };
        self.components.iter().flat_map(of).collect()
    }
    /// Bytes of a row.
    pub fn row_bytes(&self, cache: Scalar) -> usize {
        self.planes(cache).iter().map(Plane::row_bytes).sum()
    }
}
