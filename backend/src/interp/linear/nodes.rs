//! What the nodes of linear code compute, on values, elementwise ops apart (`uop::fold` says what those mean): vectors, tables, and a warp's products.

use super::super::fault::Fault;
use super::memory::{decoded, encoded};
use gristmill_uop::fold::{self, Value};
use gristmill_uop::machine::AMX_BF16;
use gristmill_uop::{Arg, Node, Op, Scalar};

/// Threads of a warp, and lanes of it that hold one row.
const WARP: usize = 32;
const ROW: usize = 4;

/// A node of one thread, from its sources' lanes; `types` are theirs.
pub(super) fn value(n: &Node, src: &[&[Value]], types: &[Scalar]) -> Result<Vec<Value>, Fault> {
    let (lanes, scalar) = (n.dtype.lanes as usize, n.dtype.scalar);
    let no_meaning = || Fault::Graph(format!("{:?} in linear code", n.op));
    Ok(match n.op {
        Op::Lanes => (0..lanes as i64).map(Value::Int).collect(),
        Op::Splat => vec![src[0][0]; lanes],
        Op::Pack => src.iter().map(|s| s[0]).collect(),
        Op::Part => {
            let at = usize::try_from(src[1][0].int()).ok().filter(|&i| i < src[0].len()).ok_or_else(no_meaning)?;
            vec![src[0][at]]
        }
        Op::Fold => {
            let Arg::Reduce(op, _) = n.arg else { return Err(no_meaning()) };
            let mut sum = src[0][0];
            for &x in &src[0][1..] {
                sum = fold::apply(op.combine(), &[sum, x], scalar).ok_or_else(no_meaning)?;
            }
            vec![sum]
        }
        Op::Bitcast => {
            let bytes: Vec<u8> =
                src[0].iter().flat_map(|&v| encoded(types[0], v)[..types[0].bytes()].to_vec()).collect();
            bytes.chunks(scalar.bytes()).map(|b| decoded(scalar, b)).collect()
        }
        Op::Table => {
            let Arg::Ints(table) = &n.arg else { return Err(no_meaning()) };
            let entry = |v: &Value| {
                // Of a table that a register holds only the low bits of an index count.
                let at = if table.len() == 16 { v.int() & 15 } else { v.int() };
                let entry = usize::try_from(at).ok().and_then(|at| table.get(at));
                entry.map(|&e| Value::Int(e.into())).ok_or(Fault::Operand { op: "Table", value: at })
            };
            let all: Result<Vec<Value>, Fault> = src[0].iter().map(entry).collect();
            all?.into_iter().map(|v| if scalar.is_float() { Value::Float(v.float()) } else { v }).collect()
        }
        Op::Table4 => {
            let Arg::Ints(table) = &n.arg else { return Err(no_meaning()) };
            let word = |v: &Value| {
                let byte = |c: i64| i64::from(table[(v.int() >> (8 * c)) as usize & 15] & 255) << (8 * c);
                Value::Int((0..4).map(byte).sum())
            };
            src[0].iter().map(word).collect()
        }
        Op::PairBf16 => {
            let bits = |v: &Value| i64::from(half::bf16::from_f32(v.float() as f32).to_bits());
            src[0].iter().zip(src[1]).map(|(a, b)| Value::Int(bits(a) | bits(b) << 16)).collect()
        }
        Op::TileRows => src.concat(),
        Op::TileMma => tile_product(src),
        _ => return Err(no_meaning()),
    })
}

/// A tile of words of rows times one of words of columns, added to sums.
fn tile_product(src: &[&[Value]]) -> Vec<Value> {
    let [rows, columns, sums] = src else { return vec![] };
    let (width, words) = (AMX_BF16.columns as usize, AMX_BF16.terms as usize / 2);
    let half = |word: Value, k: u32| half::bf16::from_bits((word.int() >> (16 * k)) as u16).to_f32();
    let sum = |i: usize| {
        let (row, column) = (i / width, i % width);
        let terms = (0..words).flat_map(|k| [(k, 0), (k, 1)]);
        let all = terms.fold(sums[i].float() as f32, |sum, (k, part)| {
            half(rows[row * words + k], part).mul_add(half(columns[k * width + column], part), sum)
        });
        Value::Float(all.into())
    };
    (0..sums.len()).map(sum).collect()
}

/// A fold over threads, `lanes` of them `stride` apart: in the tree that threads exchange their values in.
pub(super) fn over_threads(n: &Node, own: &[Value], (stride, lanes): (i64, i64)) -> Result<Vec<Value>, Fault> {
    let Arg::Reduce(op, _) = n.arg else { return Err(Fault::Graph("a fold without an op".into())) };
    let mut all = own.to_vec();
    let mut apart = stride as usize;
    while apart < (stride * lanes) as usize {
        let other = |i: usize| all.get(i ^ apart).copied();
        let next = (0..all.len()).map(|i| fold::apply(op.combine(), &[all[i], other(i)?], n.dtype.scalar));
        all =
            next.collect::<Option<_>>().ok_or_else(|| Fault::Graph("a fold over threads that are not there".into()))?;
        apart *= 2;
    }
    Ok(all)
}

/// The four sums of each thread of a product of 16 rows and 8 columns: lane `4g + t` has rows `g + 8i` and columns `2t + j`. Sources by
/// number, of a thread, are `word`; a row's words are those of the lanes `4g..4g + 4`.
pub(super) fn product(
    threads: usize,
    halves: usize,
    first: impl Fn(usize, usize) -> Value,
    word: impl Fn(usize, usize) -> i64,
    add: impl Fn(Value, i64, i64) -> Value,
) -> Vec<Value> {
    let mut out = Vec::with_capacity(4 * threads);
    for thread in 0..threads {
        let (lane, warp) = (thread % WARP, thread - thread % WARP);
        let (g, t) = (lane / ROW, lane % ROW);
        for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut sum = first(thread, 2 * i + j);
            for h in 0..halves {
                for k in 0..ROW {
                    let row = word(warp + g * ROW + k, 2 * h + i);
                    let column = word(warp + (2 * t + j) * ROW + k, 2 * halves + h);
                    sum = add(sum, row, column);
                }
            }
            out.push(sum);
        }
    }
    out
}

/// `sum` plus the products of the two halves of each word, each in f32.
pub(super) fn halves(sum: Value, row: i64, column: i64) -> Value {
    let half = |word: i64, k: u32| half::f16::from_bits((word >> (16 * k)) as u16).to_f32();
    let total = (0..2).fold(sum.float() as f32, |sum, k| sum + half(row, k) * half(column, k));
    Value::Float(total.into())
}
