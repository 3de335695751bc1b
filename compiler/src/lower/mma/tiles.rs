//! Lowers reductions over products of 16-bit floats to products of MMA tiles (AMX, cooperative
//! matrices).
//!
//! The nests have an output tile with rows and columns as ranges of their own kind
//! (`propose/tiles.rs`). Activations are loaded as a tile of rows. On a CPU, the rows of the weight
//! (or of other activations) are vector lanes, each with a pair of terms, and 16 such vectors form
//! a tile. On a GPU, they are loaded like activations, from a stage with unpacked weights.

use super::f16::neighbours;
use crate::ir::nest::replaced;
use crate::lower::linearise::vector::vectorise;
use gristmill_uop::fragment::{AMX_BF16, Fragment};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, ReduceOp, Scalar, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// Tile registers of a core.
pub const REGISTERS: i64 = 8;
/// Words per row of an AMX tile.
const WORDS_OF_ROW: u16 = (AMX_BF16.terms / 2) as u16;

/// A tile of sums, and its position in memory.
pub struct MatrixTile {
    /// Offset of the first element.
    pub offset: Id,
    /// Elements between consecutive rows.
    pub stride: i64,
    pub value: Id,
}

/// Position of a tile among the neighbouring tiles of a nest.
#[derive(Clone, Copy)]
pub struct Beside {
    /// Index of the tile.
    pub number: i64,
    pub count: i64,
}

/// A reduction in a nest with tile rows and columns.
pub struct SumOfTile {
    /// Offset where the sum is written.
    pub offset: Id,
    pub value: Id,
    /// The ranges of rows and columns.
    pub row: Id,
    pub column: Id,
}

/// Returns the number of tile registers besides those of `count` sums and the weight's tile.
fn registers_of_activations(count: i64) -> i64 {
    REGISTERS - count - 1
}

/// Returns whether the activation tiles of `count` sums share registers on a CPU.
pub fn rotate(count: i64) -> bool {
    count > registers_of_activations(count)
}

/// Returns the sum as a tile; `None` if the nest has no such form.
pub fn product(
    g: &mut Graph,
    sum: SumOfTile,
    beside: Beside,
    target: &Target,
) -> Option<MatrixTile> {
    let SumOfTile {
        offset,
        value,
        row,
        column,
    } = sum;
    let of = target.machine.tile_fragment()?;
    let n = g[value].clone();
    let product = (n.op == Op::Reduce)
        .then(|| g[n.src[0]].clone())
        .filter(|p| p.op == Op::Mul)?;
    let [x, w] = operands(g, &product, [row, column], of)?;
    let on_core = target.machine.kind == MachineKind::Cpu;
    let of_terms = if on_core {
        RangeKind::Unroll
    } else {
        RangeKind::Tile
    };
    let (terms, over): (Vec<Id>, Vec<Id>) = n.src[1..]
        .iter()
        .partition(|&&r| g.range_kind(r) == Some(of_terms));
    let &[term] = &terms[..] else { return None };
    let (activations, weight, arg) = if on_core {
        let Beside { number, count } = beside;
        let to = count + 1 + number % registers_of_activations(count);
        let activations = load(g, x, [row, term], to, of);
        (
            activations,
            weight(g, w, term, count, target),
            register(&[number]),
        )
    } else {
        let straight = |x: Id| g[x].op == Op::Load && g.linear(g[x].src[1]).coefficient(term) == 1;
        if !straight(x) || !straight(w) {
            return None;
        }
        (
            load(g, x, [row, term], 0, of),
            load(g, w, [column, term], 1, of),
            Arg::None,
        )
    };
    let value = accumulated(g, [activations, weight], arg, over, of);
    let stride = g.linear(offset).coefficient(row);
    let zero = g.int(0);
    let offset = g.substitute(
        offset,
        &mut FxHashMap::from_iter([(row, zero), (column, zero)]),
    );
    Some(MatrixTile {
        offset,
        stride,
        value,
    })
}

/// Returns the two narrow operands of a product: activations, loaded by row, and weights.
fn operands(g: &Graph, product: &Node, [row, column]: [Id; 2], of: &Fragment) -> Option<[Id; 2]> {
    let narrow = |x: Id| {
        let from = g[x].src[0];
        (g[x].op == Op::Cast && g.scalar(from) == of.operand).then_some(from)
    };
    let sides = [narrow(product.src[0])?, narrow(product.src[1])?];
    let x = sides
        .into_iter()
        .find(|&s| g[s].op == Op::Load && g.free_ranges(s).contains(&row))?;
    let w = sides
        .into_iter()
        .find(|&s| s != x && g.free_ranges(s).contains(&column))?;
    Some([x, w])
}

/// Returns the sum of the products of two tiles over the ranges `over`.
fn accumulated(
    g: &mut Graph,
    [activations, weight]: [Id; 2],
    arg: Arg,
    over: Vec<Id>,
    of: &Fragment,
) -> Id {
    let sums = of.sums();
    let none = g.constant(Scalar::F32, 0.0);
    let none = g.intern(Node {
        op: Op::Splat,
        dtype: sums,
        src: smallvec![none],
        arg: Arg::None,
    });
    let src: Sources = smallvec![activations, weight, none];
    let mma = g.intern(Node {
        op: Op::TileMma,
        dtype: sums,
        src,
        arg,
    });
    let src: Sources = std::iter::once(mma).chain(over).collect();
    g.intern(Node {
        op: Op::Reduce,
        dtype: sums,
        src,
        arg: Arg::Reduce(ReduceOp::Add, [].into_iter().collect()),
    })
}

fn register(numbers: &[i64]) -> Arg {
    Arg::Ints(numbers.iter().map(|&n| n as i32).collect())
}

/// Returns a tile load of the memory that `x` loads, with its row stride, to
/// register or operand `to`.
fn load(g: &mut Graph, x: Id, [row, term]: [Id; 2], to: i64, of: &Fragment) -> Id {
    let (buffer, at) = (g[x].src[0], g[x].src[1]);
    let stride = g.linear(at).coefficient(row);
    let zero = g.int(0);
    let at = g.substitute(at, &mut FxHashMap::from_iter([(row, zero), (term, zero)]));
    let dtype = of.tile();
    g.intern(Node {
        op: Op::TileLoad,
        dtype,
        src: smallvec![buffer, at],
        arg: register(&[to, stride]),
    })
}

/// Returns a bf16 tile of the weight `w` over the terms `term`.
fn weight(g: &mut Graph, w: Id, term: Id, to: i64, target: &Target) -> Id {
    let words = Scalar::U32.one().with_lanes(WORDS_OF_ROW);
    let rows: Sources = (0..AMX_BF16.terms / 2)
        .map(|pair| {
            let of = [2 * pair, 2 * pair + 1].map(|k| {
                let k = g.int(k);
                let one = g.substitute(w, &mut FxHashMap::from_iter([(term, k)]));
                stored(g, one)
            });
            // Two neighbouring terms stored as bf16 already form the word.
            if let Some(word) = neighbours(g, of[0], of[1]) {
                return vectorise(g, word, target);
            }
            let of = of.map(|one| {
                let one = if g[one].op == Op::Cast {
                    g[one].src[0]
                } else {
                    g.cast(one, Scalar::F32)
                };
                let one = from_words(g, one);
                vectorise(g, one, target)
            });
            g.intern(Node {
                op: Op::PairBf16,
                dtype: words,
                src: of.into_iter().collect(),
                arg: Arg::None,
            })
        })
        .collect();
    let dtype = AMX_BF16.tile();
    g.intern(Node {
        op: Op::TileRows,
        dtype,
        src: rows,
        arg: register(&[to]),
    })
}

/// Returns the bf16 load that a value is the widened form of; otherwise the value itself.
fn stored(g: &Graph, value: Id) -> Id {
    let source = |x: Id| (g[x].op == Op::Cast).then(|| g[x].src[0]);
    let load = source(value)
        .and_then(source)
        .filter(|&x| g[x].op == Op::Load && g.scalar(x) == Scalar::BF16);
    load.unwrap_or(value)
}

/// Replaces loads of single bytes in `value` by loads of the four bytes of a row: the words of
/// neighbouring rows are contiguous, their bytes are not.
fn from_words(g: &mut Graph, value: Id) -> Id {
    replaced(g, value, |g, id| {
        let n = g[id].clone();
        let wide =
            |x: Id| (g[x].op == Op::Cast && g[x].dtype == Scalar::I32.one()).then(|| g[x].src[0]);
        // A part of a byte takes one shift and one mask; the outermost match wins.
        let number = |i: usize| n.src.get(i).and_then(|&c| g.int_value(c));
        match (n.op, number(1)) {
            (Op::Shr, Some(by)) => part(g, wide(n.src[0])?, by, 255 >> by),
            (Op::And, Some(keep)) => match (
                g[n.src[0]].op,
                g[n.src[0]].src.get(1).and_then(|&c| g.int_value(c)),
            ) {
                (Op::Shr, Some(by)) => part(g, wide(g[n.src[0]].src[0])?, by, keep & 255 >> by),
                _ => part(g, wide(n.src[0])?, 0, keep & 255),
            },
            _ => part(g, wide(id)?, 0, 255),
        }
    })
}

/// Returns `load >> by & keep` as an i32, for one of a packed weight row's four bytes.
fn part(g: &mut Graph, load: Id, by: i64, keep: i64) -> Option<Id> {
    let n = g[load].clone();
    if n.op != Op::Load
        || n.dtype != Scalar::U8.one()
        || !matches!(g[n.src[0]].arg, Arg::Packed(..))
    {
        return None;
    }
    let at = g.linear(n.src[1]);
    let lane = at
        .terms
        .iter()
        .find(|t| g.range_kind(t.0) == Some(RangeKind::Vector))?
        .1;
    if lane != 4 || at.terms.iter().any(|t| t.1 % 4 != 0) {
        return None;
    }
    let byte = at.constant.rem_euclid(4);
    let back = g.int(-byte);
    let first = g.add(n.src[1], back);
    let word = g.load(n.src[0], first, Scalar::U32);
    let word = g.cast(word, Scalar::I32);
    let by = g.int(8 * byte + by);
    let word = g.shr(word, by);
    let keep = g.int_of(Scalar::I32, keep);
    Some(g.and(word, keep))
}
