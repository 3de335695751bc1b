//! Word types of values, and construction of nodes in them.

use gristmill_uop::Scalar::{self, I32, I64, U32};
use gristmill_uop::{Arg, Graph, Id, Node, Op, Sources};

/// Returns the legalised type of a value.
pub fn type_of(g: &Graph, id: Id) -> Scalar {
    match g.scalar(id) {
        I64 if g.within(id, i32::MIN.into(), i32::MAX.into()) => I32,
        own => in_a_word(own),
    }
}

/// Returns the word type that holds numbers of a scalar type.
pub fn in_a_word(scalar: Scalar) -> Scalar {
    match scalar {
        Scalar::I8 | Scalar::I16 => I32,
        Scalar::U8 | Scalar::U16 | Scalar::F16 | Scalar::BF16 => U32,
        own => own,
    }
}

/// Interns the node as given, without simplification.
pub fn made(g: &mut Graph, op: Op, scalar: Scalar, src: &[Id]) -> Id {
    g.intern(Node {
        op,
        dtype: scalar.one(),
        src: Sources::from_slice(src),
        arg: Arg::None,
    })
}
