//! Cost estimate of a single term, which steers extraction before anything is scheduled.
//!
//! Costs of terms add up, each counted once. Fusion is ignored, except that movement ops are free.

use super::import::Written;
use super::term::{Class, ContractionTerm, Source, Term, TermForm};
use super::terms::TermGraph;
use crate::decompose::scatter::{ScatterVariant, Sizes};
use crate::ir::size_estimate::{TYPICAL, typical};
use gristmill_uop::fragment::Fragment;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Id, Op, Scalar};
use rustc_hash::FxHashMap;
use std::cell::RefCell;

/// Row count for which a step is estimated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowCount {
    /// The row count that kernel costs assume.
    Typical,
    /// The fewest rows possible. Variables that are never 0 count rows and take their
    /// minimum; others are positions.
    Fewest,
}

/// Seconds of a term that only moves elements; a tie-breaker for fewer terms.
const MOVED: f64 = 1e-12;
/// Bytes per copied element: read and written as f32.
const COPIED: f64 = 8.0;
/// Kernel launches of an attention: partial results and their combination.
const ATTENTION_LAUNCHES: f64 = 2.0;
/// Byte products that cost as much as one f32 instruction (`DOT4`).
const OF_A_WORD: f64 = 4.0;

/// Estimates of an e-graph's terms for one target.
pub struct Estimate<'a> {
    terms: &'a TermGraph,
    written: &'a Written,
    target: &'a Target,
    rows: RowCount,
    sizes: RefCell<FxHashMap<Id, f64>>,
}

impl<'a> Estimate<'a> {
    /// Creates an estimator for these terms and this row count.
    pub fn new(
        terms: &'a TermGraph,
        written: &'a Written,
        target: &'a Target,
        rows: RowCount,
    ) -> Estimate<'a> {
        Estimate {
            terms,
            written,
            target,
            rows,
            sizes: RefCell::default(),
        }
    }
    fn size(&self, dim: Id) -> f64 {
        let g = &self.terms.graph;
        let fewest = |name: &str| {
            g.toposort(&[dim])
                .into_iter()
                .find_map(|n| match &g[n].arg {
                    Arg::Var(v, lo, hi) if &**v == name => {
                        Some(if *lo > 0 { *lo } else { TYPICAL.min(*hi) })
                    }
                    _ => None,
                })
        };
        *self
            .sizes
            .borrow_mut()
            .entry(dim)
            .or_insert_with(|| match self.rows {
                RowCount::Typical => typical(g, dim),
                RowCount::Fewest => g
                    .evaluate_index(dim, &fewest)
                    .map_or_else(|| typical(g, dim), |v| v.max(1) as f64),
            })
    }
    fn elements(&self, dims: &[Id]) -> f64 {
        dims.iter().map(|&d| self.size(d)).product()
    }
    /// Estimated seconds of a term, without its children.
    pub fn seconds(&self, class: Class, term: &Term) -> f64 {
        let m = &self.target.machine;
        match &term.form {
            TermForm::Leaf(_) => 0.0,
            TermForm::View(_) => MOVED,
            TermForm::Contract(c) => self.contraction(c, term),
            TermForm::Node {
                op: Op::Attention | Op::PagedAttention,
                sources,
                ..
            } => self.attention(term, sources),
            TermForm::Node { op: Op::Reduce, .. } => match self.again(class) {
                Some((c, t)) => self.contraction(c, t),
                None => self.elements(&self.terms.facts(term.children[0]).dims) / m.operations,
            },
            TermForm::Node {
                op: Op::ScatterAdd, ..
            } => self.scattered(term),
            // A concatenation is copied: whether its readers could read the parts is unknown here.
            TermForm::Node { op: Op::Cat, .. } => {
                COPIED * self.elements(&term.dims) / m.cache_bandwidth
            }
            TermForm::Node { op, .. } if op.is_movement() => 0.0,
            TermForm::Node {
                op: Op::Gather | Op::Assign,
                ..
            } => 0.0,
            // The products of a sum are computed inside the sum.
            TermForm::Node { .. } if self.written.products.contains(&class) => 0.0,
            TermForm::Node { .. } => self.elements(&term.dims) / m.operations,
        }
    }
    /// Contraction form of a reduction in this class.
    fn again(&self, class: Class) -> Option<(&'a ContractionTerm, &'a Term)> {
        self.terms.egraph[class]
            .nodes
            .iter()
            .find_map(|t| match &t.form {
                TermForm::Contract(c) if self.written.shadows.contains(t) => Some((c, t)),
                _ => None,
            })
    }
    /// Bytes per element of a class where it is stored, and whether it is a packed weight.
    fn bytes(&self, class: Class) -> (f64, bool) {
        let mut at = class;
        while let Some(t) = self.terms.egraph[at]
            .nodes
            .iter()
            .min_by_key(|t| (t.children.len(), t.op().is_some()))
        {
            match (&t.form, t.children.first()) {
                (TermForm::Leaf(id), _) => {
                    let g = &self.terms.graph;
                    let node = &g[*id];
                    return match node.src.first().map(|&p| &g[p].arg) {
                        Some(Arg::Packed(_, e)) if node.op == Op::Decode => {
                            (e.bytes as f64 / e.elements as f64, true)
                        }
                        _ => (g.scalar(*id).bytes() as f64, false),
                    };
                }
                (
                    TermForm::Node {
                        op: Op::Cast | Op::Gather | Op::Assign,
                        ..
                    }
                    | TermForm::View(_),
                    Some(&c),
                ) if c != at => at = c,
                _ => break,
            }
        }
        (self.terms.facts(at).dtype.scalar.bytes() as f64, false)
    }
    fn contraction(&self, c: &ContractionTerm, term: &Term) -> f64 {
        let m = &self.target.machine;
        let (mut memory, mut cached) = (0.0, self.elements(&term.dims) * 4.0);
        let mut packed = false;
        for &child in &term.children {
            let (bytes, weight) = self.bytes(child);
            let all = bytes * self.elements(&self.terms.facts(child).dims);
            packed |= weight;
            *(if weight { &mut memory } else { &mut cached }) += all;
        }
        let integers = packed && crate::decompose::int8::integers(self.target);
        let weight = if integers { 2.0 / OF_A_WORD } else { 2.0 };
        let operations = weight * self.elements(&c.sizes);
        m.launch
            + (memory / m.bandwidth)
                .max(operations / m.operations)
                .max(cached / m.cache_bandwidth)
    }
    fn scattered(&self, term: &Term) -> f64 {
        let added = self.terms.facts(term.children[1]);
        let of = Sizes {
            rows: self.size(term.dims[0]),
            added: self.size(added.dims[0]),
            width: self.elements(&term.dims[1..]),
            scalar: term.dtype.scalar,
            own: false,
        };
        ScatterVariant::legal(term.dtype.scalar, self.target)
            .map(|form| of.seconds(form, self.target))
            .fold(f64::INFINITY, f64::min)
    }
    fn attention(&self, term: &Term, sources: &[Source]) -> f64 {
        let m = &self.target.machine;
        let [q, k, v] = [0, 1, 2].map(|i| &self.terms.facts(term.children[i]).dims);
        let length = match sources.get(4) {
            Some(Source::Scalar(length)) => self.size(*length),
            _ => self.size(k[0]),
        };
        // With pages each row has positions of its own; otherwise all tokens share them.
        let (of_row, kv_heads) = (&k[..k.len() - 2], self.size(k[k.len() - 2]));
        let positions = length.min(self.elements(of_row));
        let sequences = if of_row.len() > 1 {
            self.size(q[0])
        } else {
            1.0
        };
        let depth = [k, v]
            .iter()
            .map(|rows| self.size(rows[rows.len() - 1]))
            .sum::<f64>();
        // Cache rows that several heads or tokens share are multiplied by MMA.
        let shared = self.size(q[0]) / sequences * self.size(q[1]) / kv_heads;
        let term_of = |f: &Fragment| m.term_of(f);
        let weight = m
            .fragment(Scalar::F16)
            .filter(|_| shared >= 8.0)
            .map_or(2.0, term_of);
        let operations = weight * self.size(q[0]) * self.size(q[1]) * positions * depth;
        let bytes = sequences * positions * kv_heads * depth * self.bytes(term.children[1]).0;
        ATTENTION_LAUNCHES * m.launch + (bytes / m.bandwidth).max(operations / m.operations)
    }
}
