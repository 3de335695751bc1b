//! Lowers reductions over products of 16-bit floats (f16 or bf16) to MMA operations with f32
//! accumulators.
//!
//! `map/fragment_tiling.rs` has laid the nests out over warps as MMA fragments. A tile contains
//! neighbouring outputs of one part or of two parts (`decompose/f16_split.rs`), which are columns
//! as well: one lane holds both parts of an output and adds them. Operands are words of two terms
//! each. The assignment of terms to lanes is free as long as rows and columns agree; neighbours are
//! chosen, so that loads are wide.

use super::unpacked;
use crate::decompose::f16_mma;
use crate::ir::mma::fragment::MmaSum;
use crate::ir::mma::lane_tile::{LaneTile, Side};
use crate::ir::nest::{distance, ranges_of_kind, replaced};
use gristmill_uop::fragment::{Digit, Fragment, UNIT, WARPS};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, ReduceOp, Scalar, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

const TERMS_OF_WORD: i64 = 2;
const BYTES_OF_WORD: i64 = 4;

/// Replaces such reductions in `value` by MMA operations; `closed` are the ranges of its nest.
pub fn products(g: &mut Graph, value: Id, closed: &[Id], target: &Target) -> Id {
    replaced(g, value, |g, n| {
        Product::from_node(g, n, closed, target).map(|product| product.node(g))
    })
}

/// Returns the stages that an asynchronous multi-warp product reads directly: its columns, and its
/// rows if they are in MMA layout. Empty for other nodes.
pub(crate) fn stages(g: &Graph, id: Id, closed: &[Id], target: &Target) -> Vec<Id> {
    let product = (g[id].op == Op::Reduce)
        .then(|| Product::of_stages(g, id, closed, target))
        .flatten();
    let Some(product) = product else {
        return vec![];
    };
    let rows = product.rows_in_units.then_some(product.sum.rows);
    rows.into_iter()
        .chain([product.sum.columns])
        .map(|load| g[load].src[0])
        .collect()
}

/// A reduction that becomes MMA operations, and its output tile.
struct Product {
    id: Id,
    sum: MmaSum,
    of: &'static Fragment,
    tile: LaneTile,
    /// Range of the terms of a step, which the lanes share.
    term: Id,
    /// Number of terms per step, a multiple of the fragment's.
    terms: i64,
    unrolled: Vec<Id>,
    /// Whether the rows are in a stage in MMA layout; otherwise they are words in registers.
    rows_in_units: bool,
}

impl Product {
    /// Returns the product of a node, if its nest has been laid out for it.
    fn from_node(g: &mut Graph, id: Id, closed: &[Id], target: &Target) -> Option<Product> {
        if let Some(product) = Product::of_group(g, id, closed, target)
            .or_else(|| Product::of_stages(g, id, closed, target))
        {
            return Some(product);
        }
        let sum = MmaSum::from_node(g, id).or_else(|| MmaSum::unpacked(g, id))?;
        let of = target.machine.fragment(sum.operand)?;
        let tile = LaneTile::from_ranges(g, of, closed, sum.part)?;
        let unrolled = ranges_of_kind(g, &g[id].src[1..], RangeKind::Unroll);
        let others: Vec<Id> = unrolled
            .iter()
            .copied()
            .filter(|&r| Some(r) != sum.part)
            .collect();
        let &[term] = &others[..] else { return None };
        let terms = g.int_value(g[term].src[0])?;
        let fits = |sum: &MmaSum| tile.fits(g, sum.rows, sum.columns);
        // For two stages, the layout was chosen when one of them held all iterations of a loop; so
        // both orders are tried.
        let turned = || {
            MmaSum::from_node(g, id)
                .filter(|sum| sum.part.is_none())
                .map(MmaSum::exchanged)
        };
        let sum = Some(sum).filter(fits).or_else(|| turned().filter(fits))?;
        (terms % of.terms == 0).then_some(Product {
            id,
            sum,
            of,
            tile,
            term,
            terms,
            unrolled,
            rows_in_units: false,
        })
    }
    /// Returns a node's multi-warp product, if its nest is laid out for one. This form multiplies a
    /// packed weight, in a loop that copies the columns, with all threads of the workgroup.
    fn of_group(g: &mut Graph, id: Id, closed: &[Id], target: &Target) -> Option<Product> {
        let sum = MmaSum::unpacked(g, id)?;
        let unrolled = ranges_of_kind(g, &g[id].src[1..], RangeKind::Unroll);
        let &[term] = &unrolled[..] else { return None };
        let loops: Vec<Id> = g[id].src[1..]
            .iter()
            .copied()
            .filter(|&r| r != term)
            .collect();
        let &[step] = &loops[..] else { return None };
        let steps = g
            .int_value(g[step].src[0])
            .filter(|_| g.range_kind(step) == Some(RangeKind::Reduce))?;
        let threads = ranges_of_kind(g, closed, RangeKind::Vector);
        let counted = threads
            .iter()
            .map(|&r| g.int_value(g[r].src[0]))
            .product::<Option<i64>>()?;
        // Units are copied by wide loads.
        if steps < 2 || counted != target.threads as i64 || !target.wide_loads {
            return None;
        }
        let terms = g.int_value(g[term].src[0])?;
        let of_operand = |of: &&&'static Fragment| {
            of.is_of_group() && of.operand == sum.operand && terms % of.terms == 0
        };
        // Widest first: a nest laid out for a wide fragment also fits narrower ones.
        let all: Vec<&'static Fragment> = target
            .machine
            .fragments
            .iter()
            .filter(|of| of_operand(&of))
            .rev()
            .collect();
        all.into_iter().find_map(|of| {
            let tile = LaneTile::from_ranges(g, of, closed, None)
                .filter(|tile| tile.fits(g, sum.rows, sum.columns))?;
            let sum = MmaSum { ..sum };
            let unrolled = unrolled.clone();
            let product = Product {
                id,
                sum,
                of,
                tile,
                term,
                terms,
                unrolled,
                rows_in_units: false,
            };
            product.has_units(g).then_some(product)
        })
    }
    /// Returns a node's multi-warp product, if its nest is laid out for one. This form has rows in
    /// a stage and columns in another, and uses all threads of the workgroup.
    fn of_stages(g: &Graph, id: Id, closed: &[Id], target: &Target) -> Option<Product> {
        let staged =
            |sum: &MmaSum| sum.part.is_none() && sum.staged_rows(g) && sum.staged_columns(g);
        let sum = MmaSum::from_node(g, id).filter(staged)?;
        let unrolled = ranges_of_kind(g, &g[id].src[1..], RangeKind::Unroll);
        let &[term] = &unrolled[..] else { return None };
        let terms = g.int_value(g[term].src[0])?;
        let threads = ranges_of_kind(g, closed, RangeKind::Vector);
        let counted = threads
            .iter()
            .map(|&r| g.int_value(g[r].src[0]))
            .product::<Option<i64>>()?;
        if counted != target.threads as i64 {
            return None;
        }
        target
            .machine
            .fragments
            .iter()
            .find(|of| of.is_of_group())?;
        let both = || {
            [
                MmaSum::from_node(g, id),
                MmaSum::from_node(g, id).map(MmaSum::exchanged),
            ]
            .into_iter()
            .flatten()
        };
        // Widest first: a nest laid out for a wide fragment also fits narrower ones.
        let all = WARPS
            .iter()
            .rev()
            .filter(|of| of.is_of_group() && of.operand == sum.operand && terms % of.terms == 0);
        for of in all {
            let Some(tile) = LaneTile::from_ranges(g, of, closed, None) else {
                continue;
            };
            let in_units =
                |value: Id, side: Side| in_units(g, of, &tile, term, Operand { side, value });
            let fits = |sum: &MmaSum| {
                tile.fits(g, sum.rows, sum.columns) && in_units(sum.columns, Side::Second)
            };
            if let Some(sum) = both().find(fits) {
                let rows_in_units = in_units(sum.rows, Side::First);
                return Some(Product {
                    id,
                    sum,
                    of,
                    tile,
                    term,
                    terms,
                    unrolled,
                    rows_in_units,
                });
            }
        }
        None
    }
    fn rows(&self) -> Operand {
        Operand {
            side: Side::First,
            value: self.sum.rows,
        }
    }
    fn columns(&self) -> Operand {
        Operand {
            side: Side::Second,
            value: self.sum.columns,
        }
    }
    /// Returns whether several warps read the columns directly from a stage.
    fn is_of_stages(&self, g: &Graph) -> bool {
        self.of.is_of_group() && self.sum.staged_columns(g)
    }
    /// Returns the buffer and offset where an operand's terms of a step begin in its stage,
    /// equal for all lanes.
    fn begin(&self, g: &mut Graph, load: Id, step: i64) -> [Id; 2] {
        let (buffer, at) = (g[load].src[0], g[load].src[1]);
        let zero = g.int(0);
        let mut map: FxHashMap<Id, Id> = self.tile.ranges().map(|r| (r, zero)).collect();
        map.insert(self.term, g.int(step * self.of.terms));
        [buffer, g.substitute(at, &mut map)]
    }
    /// Returns whether a lane's operands have the form that ring buffers need. Its words of a
    /// column are 16 contiguous bytes, and those of a row are two bytes of a word.
    fn has_units(&self, g: &mut Graph) -> bool {
        let Some(mut first) = self.tile.operand(g, Side::First).into_iter().next() else {
            return false;
        };
        let row = self.word(g, self.rows(), first.word, &mut first.at);
        if g[row].op != Op::ScaledPair {
            return false;
        }
        let words = self.tile.words(Side::Second);
        let units = self
            .tile
            .operand(g, Side::Second)
            .into_iter()
            .take(words as usize);
        let loads: Vec<Id> = units
            .map(|mut unit| self.word(g, self.columns(), unit.word, &mut unit.at))
            .collect();
        if !loads.iter().all(|&load| g[load].op == Op::Load) {
            return false;
        }
        let bytes = BYTES_OF_WORD / g.unit_bytes(g[loads[0]].src[0]);
        let first = g.linear(g[loads[0]].src[1]);
        loads.iter().enumerate().all(|(i, &load)| {
            let mut at = g.linear(g[load].src[1]);
            at.constant -= i as i64 * bytes;
            at == first
        })
    }
    /// Returns the reduction as an element of accumulated products; for an output of two parts,
    /// the sum of both.
    fn node(&self, g: &mut Graph) -> Id {
        let vector = self
            .of
            .sum
            .one()
            .with_lanes(self.of.sums.registers() as u16);
        // Each product is added to the accumulator by itself.
        let steps = (0..self.terms / self.of.terms)
            .map(|step| self.step(g, step))
            .collect::<Vec<Id>>();
        let loops: Sources = g[self.id].src[1..]
            .iter()
            .copied()
            .filter(|r| !self.unrolled.contains(r))
            .collect();
        let add = |g: &mut Graph, a: Id, b: Id| {
            g.intern(Node {
                op: Op::Add,
                dtype: vector,
                src: smallvec![a, b],
                arg: Arg::None,
            })
        };
        let all = steps
            .into_iter()
            .reduce(|a, b| add(g, a, b))
            .unwrap_or_else(|| unreachable!("a step: {}", self.terms));
        let src: Sources = std::iter::once(all).chain(loops).collect();
        let all = g.intern(Node {
            op: Op::Reduce,
            dtype: vector,
            src,
            arg: Arg::Reduce(ReduceOp::Add, smallvec![]),
        });
        let (at, scalar) = (self.tile.sum(g), self.of.sum.one());
        let part = |g: &mut Graph, at: Id| {
            g.intern(Node {
                op: Op::Part,
                dtype: scalar,
                src: smallvec![all, at],
                arg: Arg::None,
            })
        };
        if self.sum.part.is_none() {
            return part(g, at);
        }
        let (lowest, count) = self.tile.lowest();
        let parts: Vec<Id> = (0..count)
            .map(|j| {
                let j = g.int(j);
                let at = g.substitute(at, &mut FxHashMap::from_iter([(lowest, j)]));
                part(g, at)
            })
            .collect();
        parts.into_iter().reduce(|a, b| g.add(a, b)).unwrap_or(all)
    }
    /// Returns the product of one fragment's terms.
    fn step(&self, g: &mut Graph, step: i64) -> Id {
        let mut src = Sources::new();
        let of_stages = self.is_of_stages(g);
        let words = [
            (self.rows(), !self.rows_in_units),
            (self.columns(), !of_stages),
        ];
        for operand in words.into_iter().filter(|w| w.1).map(|w| w.0) {
            for mut register in self.tile.operand(g, operand.side) {
                let word = step * self.tile.words(operand.side) + register.word;
                src.push(self.word(g, operand, word, &mut register.at));
            }
        }
        let dtype = self
            .of
            .sum
            .one()
            .with_lanes(self.of.sums.registers() as u16);
        let mut op = Op::MmaHalf;
        if of_stages {
            op = Op::MmaShared;
            let stages = [
                (self.sum.rows, self.rows_in_units),
                (self.sum.columns, true),
            ];
            for load in stages.into_iter().filter(|s| s.1).map(|s| s.0) {
                src.extend(self.begin(g, load, step));
            }
        }
        src.push(g.constant(dtype, 0.0));
        g.intern(Node {
            op,
            dtype,
            src,
            arg: Arg::Int(self.of.number()),
        })
    }
    /// Returns a lane's word of an operand, with `at` substituted for its output ranges.
    fn word(&self, g: &mut Graph, of: Operand, word: i64, at: &mut FxHashMap<Id, Id>) -> Id {
        let (Operand { side, value }, range) = (of, self.term);
        if !self.sum.is_unpacked(g) {
            let first = self.place(g, side, word);
            return pair(
                g,
                value,
                Terms {
                    range,
                    first,
                    apart: 1,
                },
                at,
            );
        }
        let ([first, apart], of_lane) = (f16_mma::word(word), g.int(self.terms / f16_mma::LANES));
        let lane = g.mul(self.tile.part(side), of_lane);
        match side {
            Side::First => unpacked::pair(
                g,
                value,
                unpacked::PairTerms {
                    range,
                    lane,
                    low: first,
                    high: first + apart,
                },
                at,
            ),
            Side::Second if self.of.is_of_group() => {
                let (part, of_lane) = (self.tile.part(side), self.terms / f16_mma::LANES);
                let first = f16_mma::unit_word(
                    g,
                    part,
                    word / self.tile.words(side),
                    word % self.tile.words(side) * of_lane,
                );
                pair(
                    g,
                    value,
                    Terms {
                        range,
                        first,
                        apart,
                    },
                    at,
                )
            }
            Side::Second => {
                let first = g.int(first);
                let first = g.add(lane, first);
                pair(
                    g,
                    value,
                    Terms {
                        range,
                        first,
                        apart,
                    },
                    at,
                )
            }
        }
    }
    /// Returns the first term of a lane's word. From memory a lane takes neighbours, which are one
    /// wide load; from a stage each lane takes every `lanes`-th word.
    fn place(&self, g: &mut Graph, side: Side, word: i64) -> Id {
        let lanes = self.of.terms / (TERMS_OF_WORD * self.tile.words(side));
        let (of_lane, apart) = if self.sum.staged_rows(g) {
            (TERMS_OF_WORD, TERMS_OF_WORD * lanes)
        } else {
            (self.terms / lanes, TERMS_OF_WORD)
        };
        let (of_lane, at) = (g.int(of_lane), g.int(apart * word));
        let lane = g.mul(self.tile.part(side), of_lane);
        g.add(lane, at)
    }
}

/// Operand of a product.
#[derive(Clone, Copy)]
struct Operand {
    side: Side,
    value: Id,
}

/// Returns whether an operand's stage has the MMA layout of the fragment.
fn in_units(g: &Graph, of: &Fragment, tile: &LaneTile, term: Id, operand: Operand) -> bool {
    let Operand { side, value: load } = operand;
    let first: Vec<(Id, i64)> = tile.ranges().chain([term]).map(|r| (r, 0)).collect();
    let behind = |r: Id, n: i64| {
        let at: Vec<(Id, i64)> = first
            .iter()
            .map(|&(x, _)| (x, if x == r { n } else { 0 }))
            .collect();
        distance(g, g[load].src[1], &at)
    };
    let place = |d: &Digit, n: i64| {
        let [unit, element] = match side {
            Side::First => of.place_of_row(n * d.row, 0),
            Side::Second => of.place(0, n * d.column),
        };
        unit * UNIT + element
    };
    let of_digit = |&(d, r): &(Digit, Id)| {
        [1, d.count - 1]
            .into_iter()
            .all(|n| behind(r, n) == place(&d, n))
    };
    tile.outputs(side).all(of_digit)
}

/// Two terms of a sum.
struct Terms {
    range: Id,
    first: Id,
    /// Distance of the second term.
    apart: i64,
}

/// Returns the word with the two 16-bit floats at these terms.
fn pair(g: &mut Graph, value: Id, terms: Terms, map: &mut FxHashMap<Id, Id>) -> Id {
    let apart = g.int(terms.apart);
    let next = g.add(terms.first, apart);
    let [low, high] = [terms.first, next].map(|k| {
        let mut map = map.clone();
        map.insert(terms.range, k);
        g.substitute(value, &mut map)
    });
    if let Some(word) = neighbours(g, low, high) {
        return word;
    }
    unpacked::joined(g, low, high)
}

/// Returns a single word load in place of two loads of adjacent 16-bit floats; `None` unless they
/// form an aligned word.
pub(crate) fn neighbours(g: &mut Graph, low: Id, high: Id) -> Option<Id> {
    let (a, b) = (g[low].clone(), g[high].clone());
    if a.op != Op::Load || b.op != Op::Load || a.src[0] != b.src[0] {
        return None;
    }
    // Size of a buffer's unit, bytes: an element, or one byte of a packed buffer.
    let unit = g.unit_bytes(a.src[0]);
    let (first, mut second) = (g.linear(a.src[1]), g.linear(b.src[1]));
    let mut all = std::iter::once(first.constant).chain(first.terms.iter().map(|t| t.1));
    let aligned = all.all(|c| c * unit % BYTES_OF_WORD == 0);
    second.constant -= BYTES_OF_WORD / TERMS_OF_WORD / unit;
    (aligned && first == second).then(|| g.load(a.src[0], a.src[1], Scalar::U32))
}
