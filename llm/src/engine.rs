//! A model on a device: weights loaded, functions compiled, steps captured.
//!
//! Classes of step, by their number of tokens: one, a few (the end of a prompt, a short one), a chunk of up to [`Settings::chunk`]; one token each of several
//! sequences. All share weights, states and tables.

mod ahead;
mod captured;
mod class;
mod compiled;
mod decode;
mod error;
mod executor;
mod footprint;
mod hidden;
mod inputs;
mod mixed;
mod pages;
mod paging;
mod pool;
mod ranks;
mod rows;
mod seen;
mod sets;
mod several;
mod states;
mod window;

pub use crate::load::Weights;
pub use ahead::{AheadRow, Source};
pub use class::{CacheShape, Class, Most, Settings, batch_class, cache_rows, classes, depths, plan_options};
pub use compiled::{Compiled, Forecast};
pub use decode::Draw;
pub use error::{Error, Progress};
pub use executor::Engine;
pub use inputs::Row;
pub use mixed::{Left, Piece};
pub use pages::{PageCopy, Pages, StateCopy};
pub use rows::Part;
