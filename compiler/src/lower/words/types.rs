//! The types of values in words.

use gristmill_uop::Scalar::{self, I32, I64, U32};
use gristmill_uop::{Graph, Id};

/// The type that a value has in words.
pub fn type_of(g: &Graph, id: Id) -> Scalar {
    match g.scalar(id) {
        I64 if g.within(id, i32::MIN.into(), i32::MAX.into()) => I32,
        own => in_a_word(own),
    }
}

/// The type of the words in which numbers of that one lie.
pub fn in_a_word(scalar: Scalar) -> Scalar {
    match scalar {
        Scalar::I8 | Scalar::I16 => I32,
        Scalar::U8 | Scalar::U16 | Scalar::F16 | Scalar::BF16 => U32,
        own => own,
    }
}
