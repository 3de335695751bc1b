//! Values of linear code's nodes: vectors, tables and products of a warp.
//!
//! Elementwise ops have the semantics of `uop::fold`.

use super::super::fault::Fault;
use super::memory::{decoded, encoded};
use gristmill_uop::fold::{self, Value};
use gristmill_uop::fragment::{Fragment, OperandLayout};
use gristmill_uop::{Arg, Node, Op, Scalar};

/// Bytes of a word.
const WORD: i64 = 4;

/// Computes a node of one thread from the lanes of its sources, of these types.
pub(super) fn value(n: &Node, src: &[&[Value]], types: &[Scalar]) -> Result<Vec<Value>, Fault> {
    let (lanes, scalar) = (n.dtype.lanes as usize, n.dtype.scalar);
    let no_meaning = || Fault::Graph(format!("{:?} in linear code", n.op));
    Ok(match n.op {
        Op::Lanes => (0..lanes as i64).map(Value::Int).collect(),
        Op::Splat => vec![src[0][0]; lanes],
        Op::Pack => src.iter().map(|s| s[0]).collect(),
        Op::Part => {
            let at = usize::try_from(src[1][0].int())
                .ok()
                .filter(|&i| i < src[0].len())
                .ok_or_else(no_meaning)?;
            vec![src[0][at]]
        }
        Op::Fold => folded(n, src[0]).ok_or_else(no_meaning)?,
        Op::Bitcast => {
            let bytes: Vec<u8> = src[0]
                .iter()
                .flat_map(|&v| encoded(types[0], v)[..types[0].bytes()].to_vec())
                .collect();
            bytes
                .chunks(scalar.bytes())
                .map(|b| decoded(scalar, b))
                .collect()
        }
        Op::Table => {
            let Arg::Ints(table) = &n.arg else {
                return Err(no_meaning());
            };
            entries(table, src[0], scalar)?
        }
        Op::Table4 => {
            let Arg::Ints(table) = &n.arg else {
                return Err(no_meaning());
            };
            let word = |v: &Value| {
                let byte =
                    |c: i64| i64::from(table[(v.int() >> (8 * c)) as usize & 15] & 255) << (8 * c);
                Value::Int((0..4).map(byte).sum())
            };
            src[0].iter().map(word).collect()
        }
        Op::PairBf16 => {
            let bits = |v: &Value| i64::from(half::bf16::from_f32(v.float() as f32).to_bits());
            src[0]
                .iter()
                .zip(src[1])
                .map(|(a, b)| Value::Int(bits(a) | bits(b) << 16))
                .collect()
        }
        Op::ScaledPair => scaled_pair(n, src).ok_or_else(no_meaning)?,
        Op::TileRows => src.concat(),
        Op::TileMma => {
            let tile = Scalar::U32.one().with_lanes(src[0].len() as u16);
            tile_product(
                src,
                Fragment::of_tiles(tile, n.dtype).ok_or_else(no_meaning)?,
            )
        }
        _ => return Err(no_meaning()),
    })
}

/// Combines the lanes of a vector in order.
fn folded(n: &Node, lanes: &[Value]) -> Option<Vec<Value>> {
    let Arg::Reduce(op, _) = n.arg else {
        return None;
    };
    let mut sum = lanes[0];
    for &x in &lanes[1..] {
        sum = fold::apply(op.combine(), &[sum, x], n.dtype.scalar)?;
    }
    Some(vec![sum])
}

/// Looks up a table's entries at these indices.
fn entries(table: &[i32], indices: &[Value], scalar: Scalar) -> Result<Vec<Value>, Fault> {
    let entry = |v: &Value| {
        // A 16-entry table fits a register, where only the low bits of an index count.
        let at = if table.len() == 16 {
            v.int() & 15
        } else {
            v.int()
        };
        let entry = usize::try_from(at).ok().and_then(|at| table.get(at));
        entry.map(|&e| Value::Int(e.into())).ok_or(Fault::Operand {
            op: "Table",
            value: at,
        })
    };
    let all: Result<Vec<Value>, Fault> = indices.iter().map(entry).collect();
    Ok(all?
        .into_iter()
        .map(|v| {
            if scalar.is_float() {
                Value::Float(v.float())
            } else {
                v
            }
        })
        .collect())
}

/// Computes two bytes of a word as scaled f16 values.
fn scaled_pair(n: &Node, src: &[&[Value]]) -> Option<Vec<Value>> {
    let Arg::Ints(numbers) = &n.arg else {
        return None;
    };
    let &[first, second, zero, bf16] = &numbers[..] else {
        return None;
    };
    let bits_of = |x: f64| {
        if bf16 == 1 {
            half::bf16::from_f64(x).to_bits()
        } else {
            half::f16::from_f64(x).to_bits()
        }
    };
    let rounded = |x: f64| {
        if bf16 == 1 {
            half::bf16::from_f64(x).to_f64()
        } else {
            half::f16::from_f64(x).to_f64()
        }
    };
    let (word, factor) = (src[0][0].int(), rounded(src[1][0].float()));
    let term = src.get(2).map_or(0.0, |term| rounded(term[0].float()));
    let bits = |byte: i32| {
        let number = (word >> (8 * byte) & 255) + i64::from(zero);
        i64::from(bits_of(number as f64 * factor + term))
    };
    Some(vec![Value::Int(bits(first) | bits(second) << 16)])
}

/// Computes a tile of rows times a tile of columns, plus accumulators; a tile's row is a
/// register of several words.
fn tile_product(src: &[&[Value]], of: &Fragment) -> Vec<Value> {
    let word = |side: usize, held: &OperandLayout, register: i64, at: i64| {
        let words = held.elements() * of.operand.bytes() as i64 / WORD;
        src[side][(register * words + at) as usize].int()
    };
    let first = |_: i64, register: i64, at: i64| word(0, &of.first, register, at);
    let second = |_: i64, register: i64, at: i64| word(1, &of.second, register, at);
    product(of, [of.operand; 2], first, second, |_, i| src[2][i])
}

/// Reduces over `lanes` threads, `stride` apart, in the order of the butterfly exchange.
pub(super) fn over_threads(
    n: &Node,
    own: &[Value],
    (stride, lanes): (i64, i64),
) -> Result<Vec<Value>, Fault> {
    let Arg::Reduce(op, _) = n.arg else {
        return Err(Fault::Graph("a Fold without a reduction op".into()));
    };
    let mut all = own.to_vec();
    let mut apart = stride as usize;
    while apart < (stride * lanes) as usize {
        let other = |i: usize| all.get(i ^ apart).copied();
        let next =
            (0..all.len()).map(|i| fold::apply(op.combine(), &[all[i], other(i)?], n.dtype.scalar));
        all = next
            .collect::<Option<_>>()
            .ok_or_else(|| Fault::Graph("a Fold over an unknown thread range".into()))?;
        apart *= 2;
    }
    Ok(all)
}

/// Computes an MMA of the fragment `of`. Returns the accumulators, lane by lane.
///
/// `first` and `second` return the words of the operands' registers, `begin` the initial
/// accumulators; `types` are those of the operands' elements.
pub(super) fn product(
    of: &Fragment,
    types: [Scalar; 2],
    first: impl Fn(i64, i64, i64) -> i64,
    second: impl Fn(i64, i64, i64) -> i64,
    begin: impl Fn(i64, usize) -> Value,
) -> Vec<Value> {
    let rows = elements(&of.first, of.terms, types[0], first);
    let columns = elements(&of.second, of.columns, types[1], second);
    let mut out = Vec::new();
    for lane in 0..of.sums.lanes() {
        for register in 0..of.sums.registers() {
            for element in 0..of.sums.elements() {
                let [row, column] = of.sums.at(lane, register, element);
                let terms = (0..of.terms).map(|k| {
                    [
                        rows[(row * of.terms + k) as usize],
                        columns[(k * of.columns + column) as usize],
                    ]
                });
                out.push(added(
                    begin(lane, (register * of.sums.elements() + element) as usize),
                    terms,
                    of.sum,
                ));
            }
        }
    }
    out
}

/// Adds products to `sum`, each addition in the type of the accumulator.
fn added(sum: Value, terms: impl Iterator<Item = [Value; 2]>, scalar: Scalar) -> Value {
    match scalar.is_float() {
        true => Value::Float(
            terms
                .fold(sum.float() as f32, |sum, [a, b]| {
                    (a.float() as f32).mul_add(b.float() as f32, sum)
                })
                .into(),
        ),
        false => Value::Int(terms.fold(sum.int(), |sum, [a, b]| sum + a.int() * b.int()))
            .stored_as(scalar),
    }
}

/// Returns an operand's elements row by row, each row of `width`.
fn elements(
    held: &OperandLayout,
    width: i64,
    scalar: Scalar,
    word: impl Fn(i64, i64, i64) -> i64,
) -> Vec<Value> {
    let (each, bits) = (WORD / scalar.bytes() as i64, 8 * scalar.bytes() as i64);
    let mut out = vec![Value::Int(0); (held.lanes() * held.registers() * held.elements()) as usize];
    for lane in 0..held.lanes() {
        for register in 0..held.registers() {
            for element in 0..held.elements() {
                let [row, column] = held.at(lane, register, element);
                let part = word(lane, register, element / each) >> (element % each * bits);
                out[(row * width + column) as usize] =
                    decoded(scalar, &part.to_le_bytes()[..scalar.bytes()]);
            }
        }
    }
    out
}
