//! Decodes blocks by evaluating the expression of an encoding.

use gristmill_uop::dtype::Scalar;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::fold::{self, Value};
use gristmill_uop::op::{Op, RangeKind};
use gristmill_uop::{Arg, Graph, Id, Node};
use half::{bf16, f16};

fn read(bytes: &[u8], s: Scalar) -> Value {
    let le = |n| u32::from_le_bytes(std::array::from_fn(|i| if i < n { bytes[i] } else { 0 }));
    match s {
        Scalar::U8 | Scalar::I8 => Value::Int(le(1).into()).stored_as(s),
        Scalar::U16 => Value::Int(le(2).into()),
        Scalar::I32 => Value::Int(le(4) as i32 as i64),
        Scalar::F16 => Value::Float(f16::from_bits(le(2) as u16).to_f64()),
        Scalar::BF16 => Value::Float(bf16::from_bits(le(2) as u16).to_f64()),
        Scalar::F32 => Value::Float(f32::from_bits(le(4)) as f64),
        _ => panic!("a field of type {}", s.name()),
    }
}

/// Decodes a block to f32 by evaluating the expression for every element number.
pub fn decode(e: EncodingRef, bytes: &[u8]) -> Vec<f32> {
    assert_eq!(bytes.len(), e.bytes);
    let mut g = Graph::new();
    let (buffer, base, n) = (packed(&mut g, e), g.int(0), g.int(e.elements as i64));
    let k = g.range(n, 0, RangeKind::Loop);
    let value = e.decode(&mut g, buffer, base, k);
    let order = g.toposort(&[value]);
    let mut values = vec![Value::Int(0); g.len()];
    let element = |number: usize| {
        for &id in &order {
            let node = &g[id];
            let x: Vec<Value> = node.src.iter().map(|s| values[s.index()]).collect();
            values[id.index()] = match (node.op, &node.arg) {
                (Op::Const, Arg::Int(v)) => Value::Int(*v),
                (Op::Const, Arg::Float(v)) => Value::Float(f64::from_bits(*v)),
                (Op::Range, _) => Value::Int(number as i64),
                (Op::Param, _) => Value::Int(0),
                (Op::Load, _) => read(&bytes[x[1].int() as usize..], node.dtype.scalar),
                (Op::Table, Arg::Ints(t)) => Value::Int(t[x[0].int() as usize] as i64),
                (Op::Bitcast, _) => x[0].bitcast(g.scalar(node.src[0]), node.dtype.scalar),
                _ => fold::apply(node.op, &x, node.dtype.scalar)
                    .unwrap_or_else(|| panic!("{node:?} of {x:?}")),
            };
        }
        values[value.index()].float() as f32
    };
    (0..e.elements).map(element).collect()
}

fn packed(g: &mut Graph, e: EncodingRef) -> Id {
    g.intern(Node {
        op: Op::Param,
        dtype: Scalar::F32.one(),
        src: Default::default(),
        arg: Arg::Packed(0, e),
    })
}
