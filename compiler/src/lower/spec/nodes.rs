//! Rules for single nodes of linear code: sources, lanes and types.

use crate::lower::mma::tiles;
use gristmill_uop::fragment::{AMX_BF16, Fragment, TILES, WARPS};
use gristmill_uop::op::Class;
use gristmill_uop::spec::{self, is_value};
use gristmill_uop::{Arg, DType, Graph, Id, Node, Op, Scalar};

/// Entries of a table that fits in a register.
const TABLE: usize = 16;

pub(super) struct NodeRule {
    /// The rule in words, as shown in errors.
    pub name: &'static str,
    /// Operations that the rule applies to; empty for all.
    pub ops: &'static [Op],
    /// Returns whether the rule holds in a nest with these thread ranges; may rely
    /// on the preceding rules.
    pub check: fn(&Graph, &Node, &[Id]) -> bool,
}

macro_rules! rows { ($([$($op:ident)*] $name:literal $check:expr;)*) => {
    /// Table of all rules.
    pub(super) static ROWS: &[NodeRule] = &[$(NodeRule { name: $name, ops: &[$(Op::$op),*], check: $check }),*];
} }

rows! {
    [] "only scalars and vectors, elementwise ops, loads and linear ops" |_, n, _| match n.op.class() {
        Class::Source => matches!(n.op, Op::Const | Op::Var),
        Class::Elementwise | Class::Linear => true,
        _ => n.op == Op::Load,
    };
    [Cast Bitcast Neg Exp Exp2 Log Sqrt Recip Round Add Sub Mul Div IDiv Mod Max Min And Or Xor Shl Shr Lt Eq Where Fma Table Half Dot4 SignedDot4 Dot2 Halves Table4 Splat Pack Part PairBf16 ScaledPair TileRows TileMma]
        "operands are values" |g, n, _| n.src.iter().all(|&s| is_value(g, s));
    [Cast Neg Exp Exp2 Log Sqrt Recip Round Add Sub Mul Div IDiv Mod Max Min And Or Xor Shl Shr Lt Eq Where Fma Table Half Dot4 SignedDot4 Dot2 Halves Table4]
        "as many lanes as the operands" |g, n, _| n.src.iter().all(|&s| g[s].dtype.lanes == n.dtype.lanes);
    [Table] "an integer index within a table, and a result of i32 or f32" |g, n, _| {
        let Arg::Ints(table) = &n.arg else { return false };
        // Only the low bits of an index into a register table count.
        let found = table.len() == TABLE || g.within(n.src[0], 0, table.len() as i64 - 1);
        found && g.scalar(n.src[0]).is_int() && matches!(n.dtype.scalar, Scalar::I32 | Scalar::F32)
    };
    [Load] "the buffer's type (any if packed), a word of 8- or 16-bit elements, or the low word of an i64, at an offset" |g, n, _| {
        let (buffer, at) = (n.src[0], n.src[1]);
        let packed = matches!(g[buffer].arg, Arg::Packed(..));
        let word = n.dtype.scalar == Scalar::U32 && g.scalar(buffer).bytes() <= 2;
        let word = word || n.dtype.scalar == Scalar::I32 && g.scalar(buffer) == Scalar::I64;
        let place = matches!(g[buffer].op, Op::Param | Op::Local) && is_offset(g, at) && is_value(g, at);
        place && (packed || word || g.scalar(buffer) == n.dtype.scalar)
    };
    [Lanes Splat Pack Load] "with threads, only MMA accumulators are vectors" |_, n, threads| {
        // Accumulators start as a splat, and may be multiplied by a factor per element.
        let is_product = WARPS.iter().map(sums).chain(TILES.iter().map(Fragment::sums)).any(|of| n.dtype == of);
        let of_sums = matches!(n.op, Op::Splat | Op::Pack) && is_product;
        threads.is_empty() || n.dtype.lanes == 1 || of_sums
    };
    [Lanes] "a vector of integers" |_, n, _| n.dtype.scalar.is_int() && n.dtype.lanes > 1;
    [Splat] "one value of the vector's type" |g, n, _| g[n.src[0]].dtype == n.dtype.with_lanes(1) && n.dtype.lanes > 1;
    [Pack] "a value of the vector's type for each lane" |g, n, _| {
        n.src.len() == n.dtype.lanes as usize && n.src.iter().all(|&s| g[s].dtype == n.dtype.with_lanes(1))
    };
    [Fold] "reduces a vector, or one value per thread of a range, to a scalar of their type" |g, n, threads| {
        let from = g[n.src[0]].dtype;
        let over = match n.src[1..] {
            [] => from.lanes > 1,
            [range] => from.lanes == 1 && threads.contains(&range),
            _ => false,
        };
        over && matches!(n.arg, Arg::Reduce(..)) && n.dtype == from.with_lanes(1)
    };
    // Reason: the rewrite rule that puts the lower bound first (`uop/src/rules/algebra.rs`).
    [Max] "with threads, a lower bound is applied before the upper one" |g, n, threads| {
        threads.is_empty() || g.bounded_above_first(n).is_none()
    };
    [Mma MmaHalf MmaShared] "an MMA needs threads" |_, _, threads| !threads.is_empty();
    [Mma] "words of an int8 MMA fragment, and its accumulators" |g, n, _| {
        let largest = matches!(n.arg, Arg::None | Arg::Int(0..=255));
        largest && Fragment::of_product(n).is_some_and(|of| are_words(g, &n.src) && n.dtype == sums(of))
    };
    [MmaHalf] "words of a 16-bit MMA fragment, added to its accumulators" |g, n, _| {
        let Some((&last, words)) = n.src.split_last() else { return false };
        let fits = |of: &Fragment| words.len() == of.words() && g[last].dtype == sums(of) && n.dtype == sums(of);
        Fragment::of_product(n).is_some_and(fits) && are_words(g, words)
    };
    [MmaShared] "rows in registers or a 16-bit stage, columns in a 16-bit stage or a ring of words, at i64 offsets, added to accumulators" |g, n, _| {
        let Some(of) = Fragment::of_product(n).filter(|of| of.is_of_group()) else { return false };
        let words = if Fragment::has_rows_in_memory(n) { 0 } else { of.first.registers() as usize };
        let (words, rest) = n.src.split_at(words.min(n.src.len()));
        let Some((&sum, places)) = rest.split_last() else { return false };
        let (halves, whole) = (of.operand.one(), g[sum].dtype == sums(of) && n.dtype == sums(of));
        let within = |at: &[Id]| g[at[0]].op == Op::Local && g[at[1]].dtype == Scalar::I64.one();
        let stands = match places {
            [_, _] => g[places[0]].dtype == Scalar::U32.one() || g[places[0]].dtype == halves,
            [_, _, _, _] => [0, 2].iter().all(|&i| g[places[i]].dtype == halves),
            _ => false,
        };
        stands && places.chunks(2).all(within) && whole && are_words(g, words)
    };
    [PairBf16] "two vectors of f32, and a vector of words with as many lanes" |g, n, _| {
        let lanes = n.dtype.lanes;
        n.dtype.scalar == Scalar::U32 && n.src.iter().all(|&s| g[s].dtype == Scalar::F32.one().with_lanes(lanes))
    };
    [ScaledPair] "a word of bytes, a scale and an optional term; two byte indices and a zero point" |g, n, _| {
        let Arg::Ints(numbers) = &n.arg else { return false };
        let &[first, second, zero, bf16] = &numbers[..] else { return false };
        let bytes = [first, second].iter().all(|i| (0..4).contains(i));
        let within = bytes && (-256..=0).contains(&zero) && (0..2).contains(&bf16);
        let types = g[n.src[0]].dtype == Scalar::U32.one() && n.src[1..].iter().all(|&s| g[s].dtype == Scalar::F32.one());
        within && types && n.src.len() <= 3 && n.dtype == Scalar::U32.one()
    };
    [TileLoad] "rows of words of an MMA operand, into a tile register or as a subgroup's first or second operand" |g, n, threads| {
        let Arg::Ints(numbers) = &n.arg else { return false };
        let &[to, stride] = &numbers[..] else { return false };
        let of = Fragment::of_operands(n.dtype, g.scalar(n.src[0]));
        let apart = of.is_some_and(|of| i64::from(stride) >= of.terms);
        let place = if threads.is_empty() { is_register(to) } else { (0..2).contains(&to) };
        apart && place && is_offset(g, n.src[1])
    };
    [TileRows] "a vector of words for each row, into a tile register" |g, n, _| {
        let row = Scalar::U32.one().with_lanes((AMX_BF16.terms / 2) as u16);
        has_register(n) && n.dtype == AMX_BF16.tile() && n.src.iter().all(|&s| g[s].dtype == row)
    };
    [TileMma] "two operand tiles and an accumulator tile, in distinct registers or as a subgroup's first and second operand" |g, n, threads| {
        let tile = g[n.src[0]].dtype;
        let known = Fragment::of_tiles(tile, n.dtype).is_some();
        let types = known && n.src.iter().map(|&s| g[s].dtype).eq([tile, tile, n.dtype]);
        if !threads.is_empty() {
            return types && n.src[..2].iter().map(|&s| tile_register(&g[s])).eq([Some(0), Some(1)]);
        }
        let registers: Vec<_> = n.src[..2].iter().map(|&s| tile_register(&g[s])).chain([tile_register(n)]).collect();
        let apart = registers.iter().enumerate().all(|(i, r)| r.is_some() && !registers[..i].contains(r));
        types && has_register(n) && apart
    };
    [Part] "a constant lane within a vector of its type" |g, n, _| {
        let from = g[n.src[0]].dtype;
        let within = g.int_value(n.src[1]).is_some_and(|i| (0..from.lanes as i64).contains(&i));
        within && from.lanes > 1 && n.dtype == from.with_lanes(1)
    };
    [Acc] "an initial value and a reduction, of one type" |g, n, _| {
        g[n.src[1]].op == Op::Reduce && n.src.iter().all(|&s| g[s].dtype == n.dtype)
    };
}

/// Returns the first violated rule of this table, or of the rules for all levels (`uop::spec`).
pub(super) fn broken(g: &Graph, n: &Node, threads: &[Id]) -> Option<&'static str> {
    let applies = |ops: &[Op]| ops.is_empty() || ops.contains(&n.op);
    // Tables of floats exist only at this level.
    let mut common = spec::ROWS
        .iter()
        .filter(|r| r.level.is_none() && applies(r.ops) && r.ops != [Op::Table]);
    let own = || {
        ROWS.iter()
            .find(|r| applies(r.ops) && !(r.check)(g, n, threads))
            .map(|r| r.name)
    };
    common
        .find(|r| !(r.check)(g, n))
        .map(|r| r.name)
        .or_else(own)
}

/// Returns the type of a lane's share of a fragment's sums.
fn sums(of: &Fragment) -> DType {
    of.sum.one().with_lanes(of.sums.registers() as u16)
}

fn are_words(g: &Graph, src: &[Id]) -> bool {
    src.iter().all(|&s| g[s].dtype == Scalar::U32.one())
}

/// Returns whether the type is valid for an offset.
pub(super) fn is_offset(g: &Graph, at: Id) -> bool {
    [Scalar::I64, Scalar::I32]
        .iter()
        .any(|of| g[at].dtype == of.one())
}

fn is_register(number: i32) -> bool {
    (0..tiles::REGISTERS).contains(&number.into())
}

/// Returns the tile register of a node.
fn tile_register(n: &Node) -> Option<i32> {
    if let Arg::Ints(numbers) = &n.arg {
        numbers.first().copied()
    } else {
        None
    }
}

fn has_register(n: &Node) -> bool {
    matches!(&n.arg, Arg::Ints(numbers) if numbers.len() == 1 && is_register(numbers[0]))
}
