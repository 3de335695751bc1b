//! Cache layout of a layer: KV cache rows per token and recurrent states per sequence.

use gristmill_uop::dtype::Scalar;
use gristmill_uop::rows::group_of;

/// Element type of the KV cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CacheType {
    /// 32 bits per element.
    F32,
    /// 16 bits per element.
    F16,
    /// 8 bits per element, and an f16 scale per group of at most 32 elements.
    Int8,
    /// 4 bits per element of values, and an f16 scale per group of at most 32 elements. Keys are
    /// `Int8`: with 4 bits they cost 5 to 80 % of perplexity on small published models.
    Int4,
    /// 8 bits per element: e4m3 floats without scales (`uop/src/rows.rs`).
    Fp8,
}

impl CacheType {
    /// Returns true if elements have fewer than 16 bits.
    pub fn is_quantised(self) -> bool {
        self.has_scales() || self == CacheType::Fp8
    }
    /// Returns true if elements are integers with a scale per group.
    pub fn has_scales(self) -> bool {
        matches!(self, CacheType::Int8 | CacheType::Int4)
    }
    /// Returns the type that a component is stored in. Keys have at least 8 bits, and so have rows
    /// of an odd width, as 4-bit elements are packed in pairs.
    pub(super) fn stored_for(self, c: &Component) -> CacheType {
        match self {
            CacheType::Int4 if c.is_key || c.width % 2 == 1 => CacheType::Int8,
            other => other,
        }
    }
    /// Returns the scalar type of the elements' buffer, and the elements per scalar.
    pub(super) fn stored(self) -> (Scalar, usize) {
        match self {
            CacheType::F32 => (Scalar::F32, 1),
            CacheType::F16 => (Scalar::F16, 1),
            CacheType::Int8 => (Scalar::I8, 1),
            CacheType::Int4 => (Scalar::U8, 2),
            CacheType::Fp8 => (Scalar::U8, 1),
        }
    }
}

/// One buffer of a layer's cache: one component of all rows, or a recurrent state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheTensor {
    /// Name of the component that the buffer stores.
    pub name: &'static str,
    /// Number of elements of a row, or of a whole state.
    pub width: usize,
    /// Element type in the buffer.
    pub scalar: Scalar,
    /// Part of a sequence that the buffer covers.
    pub extent: CacheExtent,
}

/// Part of a sequence that a cache buffer covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheExtent {
    /// One row for every position.
    All,
    /// Rows of the last positions, for a sliding window of this length.
    Window(usize),
    /// One recurrent state, independent of the number of tokens.
    State,
}

impl CacheTensor {
    /// Returns true for a recurrent state.
    pub fn is_state(&self) -> bool {
        self.extent == CacheExtent::State
    }
    /// Returns the length of the sliding window; `None` if all positions are kept.
    pub fn window(&self) -> Option<usize> {
        if let CacheExtent::Window(window) = self.extent {
            Some(window)
        } else {
            None
        }
    }
    /// Returns the bytes of one position's row; 0 for a recurrent state.
    pub fn row_bytes(&self) -> usize {
        if self.is_state() { 0 } else { self.bytes(1) }
    }
    /// Returns the bytes of `rows` rows, or of `rows` recurrent states.
    pub fn bytes(&self, rows: usize) -> usize {
        rows * self.width * self.scalar.bytes()
    }
}

/// A vector that a layer caches: per token in the KV cache, or per sequence as a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Component {
    /// Name of the component in functions and listings.
    pub name: &'static str,
    /// Number of elements per row or state.
    pub width: usize,
    /// Length of the sliding window in positions; `None` if every position is visible.
    pub window: Option<usize>,
    /// True for rows that scores are computed from: keys, and latents that serve as both.
    pub is_key: bool,
}

impl Component {
    /// Creates a component that is visible at every position and is read as keys.
    pub fn new(name: &'static str, width: usize) -> Component {
        Component {
            name,
            width,
            window: None,
            is_key: true,
        }
    }
    fn extent(&self) -> CacheExtent {
        self.window.map_or(CacheExtent::All, CacheExtent::Window)
    }
}

/// Cache layout of one layer: KV cache components per position, and recurrent states.
///
/// A recurrent state exists only for the sequence's current end. A sequence can be truncated only
/// to a position with a state snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CacheSpec {
    /// Components of a row of the KV cache.
    pub components: Vec<Component>,
    /// Recurrent states, stored as f32.
    pub states: Vec<Component>,
}

impl CacheSpec {
    /// Creates a layout with one component per position.
    pub fn new(name: &'static str, width: usize) -> CacheSpec {
        CacheSpec {
            components: vec![Component::new(name, width)],
            states: Vec::new(),
        }
    }
    /// Creates a layout with these components per position and no recurrent states.
    pub fn from_components(components: &[Component]) -> CacheSpec {
        CacheSpec {
            components: components.to_vec(),
            states: Vec::new(),
        }
    }
    /// Creates a layout with recurrent states only.
    pub fn from_states(states: Vec<Component>) -> CacheSpec {
        CacheSpec {
            components: Vec::new(),
            states,
        }
    }
    /// Returns the buffers for elements of type `cache`, component by component, then the states.
    /// A type with scales adds a buffer of f16 scales after each component (`uop/src/rows.rs`).
    pub fn tensors(&self, cache: CacheType) -> Vec<CacheTensor> {
        let of = |c: &Component| {
            let (scalar, packed) = cache.stored_for(c).stored();
            let mut planes = vec![CacheTensor {
                name: c.name,
                width: c.width / packed,
                scalar,
                extent: c.extent(),
            }];
            if cache.has_scales() {
                let width = c.width / group_of(c.width);
                planes.push(CacheTensor {
                    name: "scales",
                    width,
                    scalar: Scalar::F16,
                    extent: c.extent(),
                });
            }
            planes
        };
        let state = |c: &Component| CacheTensor {
            name: c.name,
            width: c.width,
            scalar: Scalar::F32,
            extent: CacheExtent::State,
        };
        self.components
            .iter()
            .flat_map(of)
            .chain(self.states.iter().map(state))
            .collect()
    }
    /// Returns the bytes of one position's row in all buffers.
    pub fn row_bytes(&self, cache: CacheType) -> usize {
        self.tensors(cache).iter().map(CacheTensor::row_bytes).sum()
    }
    /// Returns the bytes of one position's row in sliding-window buffers only.
    pub fn window_row_bytes(&self, cache: CacheType) -> usize {
        self.tensors(cache)
            .iter()
            .filter(|p| p.window().is_some())
            .map(CacheTensor::row_bytes)
            .sum()
    }
    /// Returns the longest sliding window of a component; `None` if all attend to every position.
    pub fn window(&self) -> Option<usize> {
        self.components.iter().filter_map(|c| c.window).max()
    }
    /// Returns the bytes of one sequence's recurrent states.
    pub fn state_bytes(&self) -> usize {
        self.tensors(CacheType::F32)
            .iter()
            .filter(|p| p.is_state())
            .map(|p| p.bytes(1))
            .sum()
    }
}
