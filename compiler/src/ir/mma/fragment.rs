//! A warp's matrix product of halves, f16 or bf16: the sums that it can be. Decompositions ask for such sums, the mapping to threads lays them out
//! (`map/fragment_tiling.rs`), lowering makes them instructions (`lower/mma/f16.rs`), and the price counts them.

use gristmill_uop::fragment::{Digit, Fragment, SWIZZLE};
use gristmill_uop::{Arg, Graph, Id, Node, Op, ReduceOp, Scalar};

/// Terms that a lane reads before the next lane's begin, at most: a group of the formats.
pub const OF_LANE: i64 = 32;

/// Fewest outputs beside one another that are worth a product: a column for each of the lanes that have different ones. Of fewer most columns would be surplus.
pub fn enough(of: &Fragment) -> i64 {
    along(of.sums.lanes, false).count
}

/// The digits of a row's sums that go along its rows, or along its columns.
pub fn along(digits: &[Digit], rows: bool) -> Digit {
    let found = digits.iter().copied().find(|d| (d.row != 0) == rows);
    found.unwrap_or_else(|| unreachable!("sums are spread along both sides: {digits:?}"))
}

/// A sum of products of halves.
pub struct MmaSum {
    /// What depends on the rows.
    pub rows: Id,
    /// What depends on the columns, and on the part.
    pub columns: Id,
    /// The range over the two parts, if the columns' values have two.
    pub part: Option<Id>,
    /// Type of both.
    pub operand: Scalar,
}

impl MmaSum {
    /// Are the rows in a stage?
    pub fn staged_rows(&self, g: &Graph) -> bool {
        is_staged(g, self.rows)
    }
    /// Are the columns in a stage?
    pub fn staged_columns(&self, g: &Graph) -> bool {
        is_staged(g, self.columns)
    }
    /// The sum that a node is, if it is one.
    pub fn from_node(g: &Graph, id: Id) -> Option<MmaSum> {
        let n = &g[id];
        let product = (n.op == Op::Reduce && matches!(n.arg, Arg::Reduce(ReduceOp::Add, _))).then(|| &g[n.src[0]])?;
        if product.op != Op::Mul {
            return None;
        }
        let (a, b) = (half(g, product.src[0])?, half(g, product.src[1])?);
        let operand = g.scalar(a);
        if g.scalar(b) != operand {
            return None;
        }
        // Values in two parts are on both sides where neither are halves: columns are what a stage holds.
        // Where both are, what has more elements are the rows.
        let elements = |x: Id| g.max_of(g[g[x].src[0]].src[0]);
        let staged = |x: Id| is_staged(g, x);
        let mut found = n.src[1..].iter().filter_map(|&part| {
            let depends = |x: Id| g.free_ranges(x).contains(&part);
            let (rows, columns) = if depends(a) { (b, a) } else { (a, b) };
            let is_part =
                g.int_value(g[part].src[0]) == Some(2) && depends(columns) && !depends(rows) && staged(columns);
            is_part.then_some(MmaSum { rows, columns, part: Some(part), operand })
        });
        let turned = match (staged(a), staged(b)) {
            (true, true) => elements(a) < elements(b),
            (staged, _) => staged,
        };
        let (rows, columns) = if turned { (b, a) } else { (a, b) };
        Some(found.next().unwrap_or(MmaSum { rows, columns, part: None, operand }))
    }
    /// The sum that a node is, if it is one whose rows are elements of a packed weight, rounded to halves where they are unpacked.
    pub fn unpacked(g: &Graph, id: Id) -> Option<MmaSum> {
        let n = &g[id];
        let product = (n.op == Op::Reduce && matches!(n.arg, Arg::Reduce(ReduceOp::Add, _))).then(|| &g[n.src[0]])?;
        let read = |x: Id| {
            let n = &g[x];
            (n.op == Op::Cast && g.scalar(x) == Scalar::F32 && g.scalar(n.src[0]).is_half()).then(|| n.src[0])
        };
        if product.op != Op::Mul {
            return None;
        }
        let (a, b) = (read(product.src[0])?, read(product.src[1])?);
        let is_rounded = |x: Id| g[x].op == Op::Cast && g.any(x, |_, n| is_packed(g, n));
        let (rows, columns) = if is_rounded(a) { (a, b) } else { (b, a) };
        let fits =
            is_rounded(rows) && matches!(g[columns].op, Op::Load | Op::Index) && g.scalar(rows) == g.scalar(columns);
        fits.then(|| MmaSum { rows, columns, part: None, operand: g.scalar(rows) })
    }
    /// Are the rows unpacked where they are read?
    pub fn is_unpacked(&self, g: &Graph) -> bool {
        g[self.rows].op == Op::Cast && g.any(self.rows, |_, n| is_packed(g, n))
    }
    /// With rows and columns in each other's place, where nothing says which is which.
    pub fn turned(self, g: &Graph) -> Option<MmaSum> {
        let free = self.part.is_none() && !self.staged_rows(g) && !self.staged_columns(g);
        free.then(|| self.exchanged())
    }
    /// With rows and columns in each other's place.
    pub fn exchanged(self) -> MmaSum {
        MmaSum { rows: self.columns, columns: self.rows, ..self }
    }
}

/// Does that node load from a packed buffer?
fn is_packed(g: &Graph, n: &Node) -> bool {
    n.op == Op::Load && matches!(g[n.src[0]].arg, Arg::Packed(..))
}

/// Is that a value of a stage?
fn is_staged(g: &Graph, x: Id) -> bool {
    g[x].op == Op::Load && g[g[x].src[0]].op == Op::Local
}

/// What `x` is as a half, if it is one read as f32: loaded, or rounded where it is read.
fn half(g: &Graph, x: Id) -> Option<Id> {
    let from = g[x].src.first().copied().filter(|_| g[x].op == Op::Cast && g.scalar(x) == Scalar::F32)?;
    let known = |n: Id| matches!(g[n].op, Op::Load | Op::Index);
    let rounded = g[from].op == Op::Cast && g.scalar(g[from].src[0]) == Scalar::F32 && known(g[from].src[0]);
    (g.scalar(from).is_half() && (known(from) || rounded)).then_some(from)
}

/// Which of a line's units stands in the place of that number, and the other way round (`uop/src/fragment.rs`, `Shared`): each of its two bits is turned by one of the line's.
pub fn swizzled(g: &mut Graph, unit: Id, line: Id) -> Id {
    let [two, four] = [2, 4].map(|n| g.int(n));
    let [halves, quarters] = [two, four].map(|n| g.idiv(line, n));
    let high = g.idiv(unit, two);
    let [high, low] = [g.add(high, quarters), g.add(unit, halves)].map(|bit| g.modulo(bit, two));
    let high = g.mul(high, two);
    g.add(high, low)
}

/// A local memory, whose number is so, that begins where a swizzle does.
pub const fn at_swizzle(number: i64) -> i64 {
    number | AT_SWIZZLE
}
const AT_SWIZZLE: i64 = 1 << 20;

/// Bytes of whose multiples one is where that local memory begins.
pub fn alignment(g: &Graph, local: Id) -> i64 {
    match g[local].arg {
        Arg::Int(number) if number & AT_SWIZZLE != 0 => SWIZZLE,
        _ => 1,
    }
}
