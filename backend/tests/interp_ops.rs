//! All elementwise ops of the interpreter on all their types, compared with `fold::apply`.

use gristmill_backend::interp::InterpDevice;
use gristmill_runtime::{Device, Launch, Memory};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::fold::{self, Value};
use gristmill_uop::op::{Op, RangeKind};
use gristmill_uop::program::{Access, Extent, Param, Program};
use gristmill_uop::{Arg, Graph, Id, Node, Sources};
use half::{bf16, f16};
use std::sync::Arc;

const N: usize = 200;

fn to_bytes(v: Value, s: Scalar) -> Vec<u8> {
    match s {
        Scalar::F64 => v.float().to_le_bytes().to_vec(),
        Scalar::F32 => (v.float() as f32).to_le_bytes().to_vec(),
        Scalar::F16 => f16::from_f64(v.float()).to_le_bytes().to_vec(),
        Scalar::BF16 => bf16::from_f64(v.float()).to_le_bytes().to_vec(),
        _ => v.int().to_le_bytes()[..s.bytes()].to_vec(),
    }
}

/// Runs `y[i] = f(a[i], b[i], c[i])` and returns the bytes of y.
fn run(inputs: &[(Scalar, Vec<u8>)], out: Scalar, f: impl Fn(&mut Graph, &[Id]) -> Id) -> Vec<u8> {
    let mut g = Graph::new();
    let param = |g: &mut Graph, slot: usize, s: Scalar| {
        g.intern(Node {
            op: Op::Param,
            dtype: s.one(),
            src: Sources::new(),
            arg: Arg::Param(slot as u32),
        })
    };
    let (n, one) = (g.int(N as i64), g.int(1));
    let i = g.range(n, 0, RangeKind::Loop);
    let loads: Vec<Id> = (0..inputs.len())
        .map(|slot| {
            let buffer = param(&mut g, slot, inputs[slot].0);
            g.load(buffer, i, inputs[slot].0)
        })
        .collect();
    let value = f(&mut g, &loads);
    let y = param(&mut g, inputs.len(), out);
    let store = g.store(y, i, value, &[i]);
    let node = |op, src| Node {
        op,
        dtype: out.one(),
        src: Sources::from_slice(&[src]),
        arg: Arg::None,
    };
    let body = g.intern(node(Op::Body, store));
    let root = g.intern(node(Op::Kernel, body));
    let program = Program {
        params: (0..=inputs.len() as u32)
            .map(|slot| Param {
                slot,
                access: Access::ReadWrite,
                extent: Extent::Fixed(0),
            })
            .collect(),
        ..Program::new("e_op", Arc::new(g), root, one)
    };
    let device = InterpDevice::new();
    let kernel = device.load(&[program], &|_, _| {}).unwrap().remove(0);
    let mut buffers = Vec::new();
    for data in inputs
        .iter()
        .map(|x| x.1.clone())
        .chain([vec![0; N * out.bytes()]])
    {
        let b = device.alloc(data.len(), Memory::Scratch).unwrap();
        device.write(&b, 0, &data).unwrap();
        buffers.push(b);
    }
    let y = buffers[inputs.len()].clone();
    device
        .capture(vec![Launch {
            kernel,
            buffers,
            level: 0,
        }])
        .unwrap()
        .replay(&[])
        .unwrap();
    let mut bytes = vec![0; y.len()];
    device.read(&y, 0, &mut bytes).unwrap();
    bytes
}

/// Returns a pseudorandom value of that type, with various magnitudes and signs.
fn value(s: Scalar, seed: &mut u64, positive: bool) -> Value {
    *seed = seed
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    let bits = (*seed >> 20) as i64;
    let small = (bits & 0xffff) as f64 / 256.0 - 128.0;
    let v = match s.is_float() {
        true => Value::Float(small),
        false if bits & 0x30000 == 0 => Value::Int(bits),
        false => Value::Int(bits % 200 - 100),
    };
    let v = v.stored_as(s);
    match v {
        Value::Int(x) if positive => Value::Int(x.unsigned_abs() as i64 % 7 + 1),
        Value::Float(x) if positive => Value::Float(x.abs() + 0.5).stored_as(s),
        v => v,
    }
}

fn check(op: Op, from: Scalar, out: Scalar, arity: usize) {
    let mut seed = op as u64 * 1000 + from as u64;
    let scalars: Vec<Scalar> = (0..arity)
        .map(|i| {
            if op == Op::Where && i == 0 {
                Scalar::Bool
            } else {
                from
            }
        })
        .collect();
    let positive = |i| {
        matches!(
            (op, i),
            (Op::IDiv | Op::Mod | Op::Shl | Op::Shr, 1) | (Op::Sqrt | Op::Log, 0)
        )
    };
    let rows: Vec<Vec<Value>> = (0..N)
        .map(|_| {
            (0..arity)
                .map(|i| value(scalars[i], &mut seed, positive(i)))
                .collect()
        })
        .collect();
    let column = |i: usize| {
        rows.iter()
            .flat_map(|r| to_bytes(r[i], scalars[i]))
            .collect::<Vec<u8>>()
    };
    let inputs: Vec<(Scalar, Vec<u8>)> = (0..arity).map(|i| (scalars[i], column(i))).collect();
    let got = run(&inputs, out, |g, x| {
        g.intern(Node {
            op,
            dtype: out.one(),
            src: Sources::from_slice(x),
            arg: Arg::None,
        })
    });
    for (row, got) in rows.iter().zip(got.chunks_exact(out.bytes())) {
        let want = fold::apply(op, row, out).unwrap();
        assert_eq!(
            got,
            to_bytes(want, out),
            "{op:?} of {row:?} as {} to {}: {want:?}",
            from.name(),
            out.name()
        );
    }
}

#[test]
fn ops_mean_what_fold_says() {
    use Op::*;
    for &s in Scalar::ALL.iter().filter(|&&s| s != Scalar::Bool) {
        for op in [Add, Mul, Max, Min] {
            check(op, s, s, 2);
        }
        check(Where, s, s, 3);
        for op in [Lt, Eq] {
            check(op, s, Scalar::Bool, 2);
        }
        if s.is_float() {
            for op in [Neg, Exp, Exp2, Log, Sqrt, Recip, Round] {
                check(op, s, s, 1);
            }
            for op in [Sub, Div] {
                check(op, s, s, 2);
            }
        } else {
            for op in [IDiv, Mod, And, Or, Xor, Shl, Shr] {
                check(op, s, s, 2);
            }
        }
    }
    for op in [And, Or, Xor] {
        check(op, Scalar::Bool, Scalar::Bool, 2);
    }
}

#[test]
fn casts_mean_what_fold_says() {
    for &from in Scalar::ALL {
        for &to in Scalar::ALL.iter().filter(|&&to| to != from) {
            check(Op::Cast, from, to, 1);
        }
    }
}

#[test]
fn bitcasts_and_tables() {
    let mut seed = 9;
    for (from, to) in [
        (Scalar::F32, Scalar::I32),
        (Scalar::I32, Scalar::F32),
        (Scalar::F16, Scalar::U16),
    ] {
        let values: Vec<Value> = (0..N).map(|_| value(from, &mut seed, true)).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|&v| to_bytes(v, from)).collect();
        let got = run(&[(from, bytes)], to, |g, x| g.bitcast(x[0], to));
        let want: Vec<u8> = values
            .iter()
            .flat_map(|v| to_bytes(v.bitcast(from, to), to))
            .collect();
        assert_eq!(got, want);
    }
    let bytes: Vec<u8> = (0..N).map(|i| (i % 3) as u8).collect();
    let got = run(&[(Scalar::U8, bytes)], Scalar::I32, |g, x| {
        g.table(x[0], &[5, -6, 7])
    });
    let want: Vec<u8> = (0..N)
        .flat_map(|i| [5i32, -6, 7][i % 3].to_le_bytes())
        .collect();
    assert_eq!(got, want);
}
