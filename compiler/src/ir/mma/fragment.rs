//! Recognises sums that a warp computes as an f16 or bf16 matrix product (MMA fragments).
//!
//! Decompositions produce such sums, the mapping lays them out over threads
//! (`map/fragment_tiling.rs`), lowering turns them into instructions (`lower/mma/f16.rs`), and the
//! cost model counts them.

use gristmill_uop::fragment::{Digit, Fragment, SWIZZLE};
use gristmill_uop::{Arg, Graph, Id, Node, Op, ReduceOp, Scalar};

/// Maximum number of consecutive terms that one lane reads: a group of the weight formats.
pub const OF_LANE: i64 = 32;

/// Minimum number of adjacent outputs for a fragment: the number of columns that lanes distinguish.
/// With fewer, most columns of the product would be padding.
pub fn enough(of: &Fragment) -> i64 {
    along(of.sums.lanes, false).count
}

/// The digit of the sums that moves along rows, or along columns.
pub fn along(digits: &[Digit], rows: bool) -> Digit {
    let found = digits.iter().copied().find(|d| (d.row != 0) == rows);
    found.unwrap_or_else(|| unreachable!("sums are spread along both sides: {digits:?}"))
}

/// A sum of products of f16 or bf16 operands.
pub struct MmaSum {
    /// The operand that depends on the rows.
    pub rows: Id,
    /// The operand that depends on the columns, and on the part, if any.
    pub columns: Id,
    /// The range over the two parts, if the column values are split into two.
    pub part: Option<Id>,
    /// Scalar type of both operands.
    pub operand: Scalar,
}

impl MmaSum {
    /// Whether the row operand is read from a stage.
    pub fn staged_rows(&self, g: &Graph) -> bool {
        is_staged(g, self.rows)
    }
    /// Whether the column operand is read from a stage.
    pub fn staged_columns(&self, g: &Graph) -> bool {
        is_staged(g, self.columns)
    }
    /// Recognises a node as a sum of MMA products; `None` otherwise.
    pub fn from_node(g: &Graph, id: Id) -> Option<MmaSum> {
        let n = &g[id];
        let product = (n.op == Op::Reduce && matches!(n.arg, Arg::Reduce(ReduceOp::Add, _)))
            .then(|| &g[n.src[0]])?;
        if product.op != Op::Mul {
            return None;
        }
        let (a, b) = (half(g, product.src[0])?, half(g, product.src[1])?);
        let operand = g.scalar(a);
        if g.scalar(b) != operand {
            return None;
        }
        // Values split into two parts come from f32 and are read from a stage, so they are the
        // columns. If both operands are staged, the one with more elements is the rows.
        let elements = |x: Id| g.max_of(g[g[x].src[0]].src[0]);
        let staged = |x: Id| is_staged(g, x);
        let mut found = n.src[1..].iter().filter_map(|&part| {
            let depends = |x: Id| g.free_ranges(x).contains(&part);
            let (rows, columns) = if depends(a) { (b, a) } else { (a, b) };
            let is_part = g.int_value(g[part].src[0]) == Some(2)
                && depends(columns)
                && !depends(rows)
                && staged(columns);
            is_part.then_some(MmaSum {
                rows,
                columns,
                part: Some(part),
                operand,
            })
        });
        let turned = match (staged(a), staged(b)) {
            (true, true) => elements(a) < elements(b),
            (staged, _) => staged,
        };
        let (rows, columns) = if turned { (b, a) } else { (a, b) };
        Some(found.next().unwrap_or(MmaSum {
            rows,
            columns,
            part: None,
            operand,
        }))
    }
    /// Recognises a node as a sum over elements of a packed weight that are rounded to half
    /// precision after dequantisation. These elements are the rows.
    pub fn unpacked(g: &Graph, id: Id) -> Option<MmaSum> {
        let n = &g[id];
        let product = (n.op == Op::Reduce && matches!(n.arg, Arg::Reduce(ReduceOp::Add, _)))
            .then(|| &g[n.src[0]])?;
        let read = |x: Id| {
            let n = &g[x];
            (n.op == Op::Cast && g.scalar(x) == Scalar::F32 && g.scalar(n.src[0]).is_half())
                .then(|| n.src[0])
        };
        if product.op != Op::Mul {
            return None;
        }
        let (a, b) = (read(product.src[0])?, read(product.src[1])?);
        let is_rounded = |x: Id| g[x].op == Op::Cast && g.any(x, |_, n| is_packed(g, n));
        let (rows, columns) = if is_rounded(a) { (a, b) } else { (b, a) };
        let fits = is_rounded(rows)
            && matches!(g[columns].op, Op::Load | Op::Index)
            && g.scalar(rows) == g.scalar(columns);
        fits.then(|| MmaSum {
            rows,
            columns,
            part: None,
            operand: g.scalar(rows),
        })
    }
    /// Whether the rows are dequantised on load.
    pub fn is_unpacked(&self, g: &Graph) -> bool {
        g[self.rows].op == Op::Cast && g.any(self.rows, |_, n| is_packed(g, n))
    }
    /// The transposed product, if nothing fixes which operand is the rows.
    pub fn turned(self, g: &Graph) -> Option<MmaSum> {
        let free = self.part.is_none() && !self.staged_rows(g) && !self.staged_columns(g);
        free.then(|| self.exchanged())
    }
    /// The transposed product, unconditionally.
    pub fn exchanged(self) -> MmaSum {
        MmaSum {
            rows: self.columns,
            columns: self.rows,
            ..self
        }
    }
}

/// Whether a node loads from a packed buffer.
fn is_packed(g: &Graph, n: &Node) -> bool {
    n.op == Op::Load && matches!(g[n.src[0]].arg, Arg::Packed(..))
}

/// Whether `x` is loaded from a stage.
fn is_staged(g: &Graph, x: Id) -> bool {
    g[x].op == Op::Load && g[g[x].src[0]].op == Op::Local
}

/// The half-precision value that `x` converts to f32: one that is loaded, or one that
/// is rounded on load.
fn half(g: &Graph, x: Id) -> Option<Id> {
    let from = g[x]
        .src
        .first()
        .copied()
        .filter(|_| g[x].op == Op::Cast && g.scalar(x) == Scalar::F32)?;
    let known = |n: Id| matches!(g[n].op, Op::Load | Op::Index);
    let rounded =
        g[from].op == Op::Cast && g.scalar(g[from].src[0]) == Scalar::F32 && known(g[from].src[0]);
    (g.scalar(from).is_half() && (known(from) || rounded)).then_some(from)
}

/// XOR swizzle of a line of units: the unit at a position, and its own inverse
/// (`uop/src/fragment.rs`, `Shared`). Each of the position's two bits is flipped by one
/// bit of the line.
pub fn swizzled(g: &mut Graph, unit: Id, line: Id) -> Id {
    let [two, four] = [2, 4].map(|n| g.int(n));
    let [halves, quarters] = [two, four].map(|n| g.idiv(line, n));
    let high = g.idiv(unit, two);
    let [high, low] = [g.add(high, quarters), g.add(unit, halves)].map(|bit| g.modulo(bit, two));
    let high = g.mul(high, two);
    g.add(high, low)
}

/// Marks the number of a local buffer as one that must be aligned to the swizzle.
pub const fn at_swizzle(number: i64) -> i64 {
    number | AT_SWIZZLE
}
const AT_SWIZZLE: i64 = 1 << 20;

/// Required alignment of that local buffer in bytes.
pub fn alignment(g: &Graph, local: Id) -> i64 {
    match g[local].arg {
        Arg::Int(number) if number & AT_SWIZZLE != 0 => SWIZZLE,
        _ => 1,
    }
}
