//! Evaluates the expression of an encoding on the bytes of one block.

use gristmill_uop::dtype::Scalar;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::fold::{self, Value};
use gristmill_uop::op::Op;
use gristmill_uop::{Arg, Graph, Id};

/// The value of one element as a graph over the bytes of its block.
pub(super) struct Element {
    /// Graph of the expression.
    pub graph: Graph,
    /// The element's value, an f32.
    pub root: Id,
}

impl Element {
    /// Builds the expression of element `k`.
    pub fn new(encoding: EncodingRef, k: usize) -> Element {
        let mut graph = Graph::new();
        let size = graph.int(encoding.bytes as i64);
        let block = graph.param(0, &[size], Scalar::U8);
        let (base, k) = (graph.int(0), graph.int(k as i64));
        let root = encoding.decode(&mut graph, block, base, k);
        Element { graph, root }
    }
    /// Evaluates a node on a block; `None` for an op that no expression of a block has.
    pub fn value(&self, order: &[Id], block: &[u8]) -> Option<f32> {
        let mut values = vec![Value::Int(0); self.graph.len()];
        for &id in order {
            let node = &self.graph[id];
            let x = |i: usize| values[node.src[i].index()];
            values[id.index()] = match (node.op, &node.arg) {
                (Op::Const, Arg::Int(v)) => Value::Int(*v),
                (Op::Const, Arg::Float(bits)) => Value::Float(f64::from_bits(*bits)),
                (Op::Param, _) => continue,
                (Op::Load, _) => load(block, x(1).int(), node.dtype.scalar)?,
                (Op::Bitcast, _) => x(0).bitcast(self.graph.scalar(node.src[0]), node.dtype.scalar),
                (Op::Table, Arg::Ints(table)) => {
                    Value::Int(*table.get(x(0).int() as usize)? as i64)
                }
                _ => {
                    let operands: Vec<Value> = (0..node.src.len()).map(x).collect();
                    fold::apply(node.op, &operands, node.dtype.scalar)?
                }
            };
        }
        Some(values[order.last()?.index()].float() as f32)
    }
    /// Returns the constant offset and the type of a load.
    pub fn load_at(&self, id: Id) -> Option<(usize, Scalar)> {
        let node = &self.graph[id];
        let offset = self.graph.int_value(*node.src.get(1)?)?;
        (node.op == Op::Load).then_some((usize::try_from(offset).ok()?, node.dtype.scalar))
    }
}

/// Loads a little-endian number.
fn load(block: &[u8], offset: i64, scalar: Scalar) -> Option<Value> {
    let at = usize::try_from(offset).ok()?;
    let field = block.get(at..at + scalar.bytes())?;
    let bits = field.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
    let unsigned = match scalar.bytes() {
        1 => Scalar::U8,
        2 => Scalar::U16,
        4 => Scalar::U32,
        _ => return None,
    };
    Some(Value::Int(bits as i64).bitcast(unsigned, scalar))
}
