//! The passes by name, for their tests (`tensor/tests/passes.rs`), which run each of them alone. No interface of the crate: names here are those of the
//! folders that the cases lie in, and stay when a pass moves.

pub use crate::decision::{Cheapest, Decider, Decision};
pub use crate::decompose::attention::{encode as encode_queries, expand as attention};
pub use crate::decompose::f16_split::{are_halves, parts as f16_split, rounded};
pub use crate::decompose::int8::{Derived, derive as int8};
pub use crate::decompose::meaning;
pub use crate::layout::{Layout, Packing};
pub use crate::lower::coalesce::loads as coalesce;
pub use crate::lower::mma::products as mma;
pub use crate::lower::mma_f16::products as mma_f16;
pub use crate::lower::pairs::join as pairs;
pub use crate::lower::print::print as print_linear;
pub use crate::lower::vector::vectorise;
pub use crate::lower::{Code, Statement, When, lower_body as linear};
pub use crate::map::fragment_tiling::nest as fragment_tiling;
pub use crate::map::fuse_reductions::fuse_reductions;
pub use crate::map::simd::nest as simd;
pub use crate::map::simt::nest as simt;
pub use crate::nest::{Ranges, flatten, global_ranges, outermost_reductions};
pub use crate::pipeline::compile;
pub use crate::prepack::prepack;
pub use crate::price::kernel as price;
pub use crate::price::occupancy::room;
pub use crate::request::Hint;
pub use crate::schedule::candidates::find as candidates;
pub use crate::schedule::expand::Expander;
pub use crate::schedule::kernel::{Draft, Surroundings, draft as cut};
pub use crate::schedule::materialise::{Problem, materialise};
pub use crate::schedule::memory::{Lifetime, plan as memory};
pub use crate::schedule::workgroup::{Around, split as workgroup};
pub use crate::schedule::{Decomposed, TEMP, schedule};
