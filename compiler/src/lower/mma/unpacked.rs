//! Dequantises packed weights to f16: two elements are two bytes of a word, as integers, times a
//! shared factor, plus a term.
//!
//! Elements of any other form are computed one by one and rounded.

use crate::decompose::f16_mma::QUAD;
use crate::ir::nest::{Nest, Ranges};
use crate::lower::legalise::loads;
use gristmill_uop::machine::{Machine, MachineKind};
use gristmill_uop::rules::lift;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Scalar, Sources};
use rustc_hash::FxHashMap;

/// First number of ranges that lowering creates, above all others.
const FIRST_RANGE_OF_LOWERING: u32 = 1 << 24;

/// Weight element `(code + zero) · factor + term`. The code is 0 to 255, or to 127 for bf16.
pub struct ScaledElement {
    code: Id,
    zero: i64,
    factor: Id,
    term: Option<Id>,
}

impl ScaledElement {
    /// Matches a half `value` that depends on the range `at` only through its code.
    pub fn from_value(g: &mut Graph, value: Id, at: Id) -> Option<ScaledElement> {
        let depends = |g: &Graph, x: Id| g.free_ranges(x).contains(&at);
        // Factors of the whole sum apply to the code and to the term.
        let mut factors = Vec::new();
        let sum = factors_of(g, g[value].src[0], &depends, &mut factors)?;
        let outer = factors.clone();
        let n = g[sum].clone();
        let (product, term) = match n.op {
            Op::Add | Op::Sub if !depends(g, n.src[1]) => {
                let term = if n.op == Op::Sub {
                    g.neg(n.src[1])
                } else {
                    n.src[1]
                };
                (n.src[0], Some(term))
            }
            Op::Add if !depends(g, n.src[0]) => (n.src[1], Some(n.src[0])),
            _ => (sum, None),
        };
        let whole = factors_of(g, product, &depends, &mut factors)?;
        let from = Some(whole)
            .filter(|&x| g[x].op == Op::Cast)
            .map(|x| g[x].src[0])
            .filter(|&x| g.scalar(x).is_int())?;
        let (code, zero) = with_zero(g, from)?;
        // The code becomes the last bits of a half's fraction.
        let most = if g.scalar(value) == Scalar::BF16 {
            127
        } else {
            255
        };
        if !g.within(code, 0, most) {
            return None;
        }
        let one = g.constant(Scalar::F32.one(), 1.0);
        let factor = factors
            .into_iter()
            .reduce(|a, b| g.mul(a, b))
            .unwrap_or(one);
        let term = term.map(|term| outer.into_iter().fold(term, |a, b| g.mul(a, b)));
        Some(ScaledElement {
            code,
            zero,
            factor,
            term,
        })
    }
}

/// Returns the one factor that depends on the range; appends the others to `free`.
fn factors_of(
    g: &Graph,
    x: Id,
    depends: &dyn Fn(&Graph, Id) -> bool,
    free: &mut Vec<Id>,
) -> Option<Id> {
    if g[x].op != Op::Mul {
        return Some(x);
    }
    let [a, b] = [g[x].src[0], g[x].src[1]];
    match (depends(g, a), depends(g, b)) {
        (true, false) => {
            free.push(b);
            factors_of(g, a, depends, free)
        }
        (false, true) => {
            free.push(a);
            factors_of(g, b, depends, free)
        }
        _ => None,
    }
}

/// Splits an integer into a non-negative code and a constant zero point.
fn with_zero(g: &mut Graph, x: Id) -> Option<(Id, i64)> {
    let n = g[x].clone();
    let (code, zero) = match (n.op, &n.arg) {
        (Op::Add, _) => (n.src[0], g.int_value(n.src[1])?),
        (Op::Table, Arg::Ints(entries)) => {
            let least = i64::from(*entries.iter().min()?).min(0);
            let shifted: Vec<i32> = entries
                .iter()
                .map(|&v| (i64::from(v) - least) as i32)
                .collect();
            (g.table(n.src[0], &shifted), least)
        }
        _ => (x, 0),
    };
    (-256..=0).contains(&zero).then_some((code, zero))
}

/// Two terms of a sum, within one quad.
pub struct PairTerms {
    /// Range of the terms.
    pub range: Id,
    /// First term of the lane.
    pub lane: Id,
    /// The two terms, relative to the lane's first.
    pub low: i64,
    pub high: i64,
}

/// Returns the word with the two f16 values of `value` at these terms, with its other ranges
/// substituted by `map`.
pub fn pair(g: &mut Graph, value: Id, terms: PairTerms, map: &mut FxHashMap<Id, Id>) -> Id {
    let PairTerms {
        range,
        lane,
        low,
        high,
    } = terms;
    let quad = low / QUAD * QUAD;
    let byte = Ranges::after(FIRST_RANGE_OF_LOWERING).fixed(g, QUAD, RangeKind::Unroll);
    let first = g.int(quad);
    let first = g.add(lane, first);
    let here = g.add(first, byte);
    map.insert(range, here);
    let of_quad = g.substitute(value, map);
    let [low, high] = [low, high].map(|k| k - quad);
    let Some(ScaledElement {
        code,
        zero,
        factor,
        term,
    }) = ScaledElement::from_value(g, of_quad, byte)
    else {
        let [low, high] = [low, high].map(|k| {
            let k = g.int(k);
            g.substitute(of_quad, &mut FxHashMap::from_iter([(byte, k)]))
        });
        return joined(g, low, high);
    };
    let word = lift::word(g, code, byte);
    let src: Sources = [word, factor].into_iter().chain(term).collect();
    let bf16 = i64::from(g.scalar(value) == Scalar::BF16);
    let numbers = [low, high, zero, bf16].map(|n| n as i32);
    g.intern(Node {
        op: Op::ScaledPair,
        dtype: Scalar::U32.one(),
        src,
        arg: Arg::Ints(numbers.as_slice().into()),
    })
}

/// Returns the range of four neighbouring elements per thread, in a nest that unpacks a weight. The
/// nest fills an f16 stage for cooperative matrix products.
fn quad(g: &Graph, nest: &Nest, machine: &Machine) -> Option<Id> {
    let packed = |_: Id, n: &Node| n.op == Op::Load && matches!(g[n.src[0]].arg, Arg::Packed(..));
    let is_stage = g[nest.buffer].op == Op::Local && g.scalar(nest.buffer) == Scalar::F16;
    let multiplied = machine.kind == MachineKind::Gpu && machine.tile_fragment().is_some();
    if !is_stage || !multiplied || g[nest.value].op != Op::Cast || !g.any(nest.value, packed) {
        return None;
    }
    let at = g.linear(nest.offset);
    let is_it = |&&r: &&Id| {
        let four =
            g.range_kind(r) == Some(RangeKind::Upcast) && g.int_value(g[r].src[0]) == Some(QUAD);
        let others = at.terms.iter().filter(|t| t.0 != r).all(|t| t.1 % 2 == 0);
        four && at.coefficient(r) == 1 && at.constant % 2 == 0 && others
    };
    nest.closed.iter().find(is_it).copied()
}

/// Returns whether a nest unpacks a weight to such a stage.
pub fn fills_stage(g: &Graph, nest: Id, machine: &Machine) -> bool {
    quad(g, &Nest::from_store(g, nest), machine).is_some()
}

/// Returns the range of four neighbours of such a nest, and its two words with their
/// offsets, with legalised loads.
pub fn words_of_stage(g: &mut Graph, nest: &Nest, target: &Target) -> Option<(Id, Vec<[Id; 2]>)> {
    let range = quad(g, nest, &target.machine)?;
    let zero = g.int(0);
    let words = (0..QUAD / 2).map(|i| {
        let first = g.int(2 * i);
        let at = g.substitute(nest.offset, &mut FxHashMap::from_iter([(range, first)]));
        let terms = PairTerms {
            range,
            lane: zero,
            low: 2 * i,
            high: 2 * i + 1,
        };
        let word = pair(g, nest.value, terms, &mut FxHashMap::default());
        [at, loads::loads(g, word, target)]
    });
    Some((range, words.collect()))
}

/// Packs two 16-bit floats into a word.
pub(crate) fn joined(g: &mut Graph, low: Id, high: Id) -> Id {
    let [low, high] = [low, high].map(|x| {
        let bits = g.bitcast(x, Scalar::U16);
        g.cast(bits, Scalar::U32)
    });
    let sixteen = g.int_of(Scalar::U32, 16);
    let high = g.shl(high, sixteen);
    g.or(low, high)
}
