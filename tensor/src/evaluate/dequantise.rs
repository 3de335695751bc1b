//! Dequantises packed blocks by evaluating the encoding's expression.

use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::fold::{self, Value};
use gristmill_uop::{Arg, Graph, Id, Op, Scalar, text};
use rustc_hash::FxHashMap;

/// Dequantises consecutive packed blocks; each value is the f32 of the encoding's expression.
pub fn decode(encoding: EncodingRef, bytes: &[u8]) -> Vec<f64> {
    decoded(encoding, bytes, false)
}

/// Dequantises packed blocks in f32 steps, or in f64 (`exactly`).
pub(super) fn decoded(encoding: EncodingRef, bytes: &[u8], exactly: bool) -> Vec<f64> {
    let mut g = Graph::new();
    let size = g.int(encoding.bytes as i64);
    let block = g.param(0, &[size], Scalar::U8);
    let base = g.int(0);
    let k = g.var("k", 0, encoding.elements as i64 - 1);
    let root = encoding.decode(&mut g, block, base, k);
    let order = g.toposort(&[root]);
    let place: FxHashMap<Id, usize> = order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let sources: Vec<Vec<usize>> = order
        .iter()
        .map(|&id| g[id].src.iter().map(|s| place[s]).collect())
        .collect();
    let mut reads = vec![false; order.len()];
    for (at, &id) in order.iter().enumerate() {
        reads[at] = g[id].op == Op::Load || sources[at].iter().any(|&s| reads[s]);
    }
    let (of_element, of_block): (Vec<usize>, Vec<usize>) =
        (0..order.len()).partition(|&at| !reads[at]);
    let mut values = vec![Value::Int(0); order.len()];
    let mut out = vec![0.0; bytes.len() / encoding.bytes * encoding.elements];
    for element in 0..encoding.elements {
        let step = |values: &mut [Value], at: usize, block: &[u8]| {
            let n = &g[order[at]];
            let x = |i: usize| values[sources[at][i]];
            values[at] = match (n.op, &n.arg) {
                (Op::Const, Arg::Int(v)) => Value::Int(*v),
                (Op::Const, Arg::Float(b)) => Value::Float(f64::from_bits(*b)),
                (Op::Var, _) => Value::Int(element as i64),
                (Op::Param, _) => return,
                (Op::Load, _) => load(block, x(1).int(), n.dtype.scalar),
                (Op::Bitcast, _) => x(0).bitcast(g.scalar(n.src[0]), n.dtype.scalar),
                (Op::Table, Arg::Ints(t)) => Value::Int(t[x(0).int() as usize] as i64),
                _ => {
                    let count = n.src.len().min(3);
                    let mut operands = [Value::Int(0); 3];
                    (0..count).for_each(|i| operands[i] = x(i));
                    let scalar = if exactly && n.dtype.scalar == Scalar::F32 {
                        Scalar::F64
                    } else {
                        n.dtype.scalar
                    };
                    fold::apply(n.op, &operands[..count], scalar).unwrap_or_else(|| {
                        panic!("{}: {}", encoding.name, text::print_node(&g, order[at]))
                    })
                }
            };
        };
        // Nodes that depend only on the element index are evaluated once for all blocks.
        of_element.iter().for_each(|&at| step(&mut values, at, &[]));
        for (number, block) in bytes.chunks_exact(encoding.bytes).enumerate() {
            of_block.iter().for_each(|&at| step(&mut values, at, block));
            out[number * encoding.elements + element] = values[order.len() - 1].float();
        }
    }
    out
}

/// Loads a little-endian number from the bytes of a block.
fn load(block: &[u8], offset: i64, scalar: Scalar) -> Value {
    let field = &block[offset as usize..offset as usize + scalar.bytes()];
    let bits = field
        .iter()
        .rev()
        .fold(0u64, |bits, &b| bits << 8 | b as u64);
    let unsigned = match scalar.bytes() {
        1 => Scalar::U8,
        2 => Scalar::U16,
        4 => Scalar::U32,
        _ => Scalar::I64,
    };
    Value::Int(bits as i64).bitcast(unsigned, scalar)
}
