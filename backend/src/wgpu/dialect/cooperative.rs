//! Cooperative matrices of a subgroup in WGSL.
//!
//! Only f16 arrays are loaded as matrices (`Memories`), since in Metal a matrix has the same
//! element type as the memory that it is loaded from.

use super::expression::WgslExpressions;
use super::memory::Memories;
use crate::names::unprintable;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::{Arg, DType, Id, Op, Scalar};

/// Directives of a module with cooperative matrices.
pub const ENABLE: &str = "enable f16;\nenable wgpu_cooperative_matrix;\n";
/// Prefix of the matrix types.
pub const MATRIX: &str = "coop_mat";

/// Returns the type of a matrix as an operand (`A`, `B`) or an accumulator (`C`).
fn matrix(of: &Fragment, role: char) -> String {
    let element = if role == 'C' { of.sum } else { of.operand };
    format!(
        "{MATRIX}{}x{}<{}, {role}>",
        of.rows,
        of.columns,
        element.name()
    )
}

/// Returns whether a type is a matrix accumulator.
pub fn is_sums(dtype: DType) -> bool {
    dtype.lanes > 1 && Fragment::of_sums(dtype).is_some()
}

/// Renders the load of an operand: A with contiguous rows, B with contiguous columns.
pub fn load(t: &WgslExpressions, memories: &Memories, id: Id) -> String {
    let n = &t.g[id];
    let (Arg::Ints(numbers), &[buffer, at]) = (&n.arg, &n.src[..]) else {
        unprintable(t.g, id)
    };
    let Some(of) = Fragment::of_operands(n.dtype, t.g.scalar(buffer)) else {
        unprintable(t.g, id)
    };
    let (role, how) = if numbers[0] == 0 {
        ('A', "coopLoadT")
    } else {
        ('B', "coopLoad")
    };
    let (mut at, mut stride) = (t.offset(at), numbers[1]);
    let memory = memories.get(buffer);
    if memory.has_pairs() {
        (at, stride) = (format!("{at} / 2u"), stride / 2);
    }
    let place = memory.at(&at);
    format!(
        "let v{} = {how}<{}>(&{place}, {stride}u);",
        t.number(id),
        matrix(of, role)
    )
}

/// Renders the declaration of an accumulator, which always starts at zero.
pub fn first_sums(t: &WgslExpressions, acc: Id) -> String {
    let node = &t.g[acc];
    let Some(of) = Fragment::of_sums(node.dtype) else {
        unprintable(t.g, acc)
    };
    let matrix = matrix(of, 'C');
    format!("var a{}: {matrix} = {matrix}();", t.number(node.src[1]))
}

/// Renders the store of an accumulator to rows of a buffer.
pub fn write(
    t: &WgslExpressions,
    memories: &Memories,
    [buffer, at, sums]: [Id; 3],
    stride: i64,
) -> String {
    let place = memories.get(buffer).at(&t.offset(at));
    format!("coopStoreT({}, &{place}, {stride}u);", t.name(sums))
}

/// Renders two bytes of a word, plus a zero, times a factor, plus an optional term, as two f16
/// values.
///
/// A byte in the low mantissa bits of the float 2^23 makes 2^23 + byte.
pub fn scaled_pair(t: &WgslExpressions, id: Id) -> String {
    let n = &t.g[id];
    let Arg::Ints(numbers) = &n.arg else {
        unprintable(t.g, id)
    };
    let &[low, high, zero, 0] = &numbers[..] else {
        unprintable(t.g, id)
    };
    let s: Vec<String> = n.src.iter().map(|&s| t.name(s)).collect();
    let float = |byte: i32| {
        format!(
            "bitcast<f32>(extractBits({}, {}u, 8u) | 0x4b000000u)",
            s[0],
            8 * byte
        )
    };
    let whole = format!(
        "vec2<f32>({}, {}) - {}.0f",
        float(low),
        float(high),
        (1 << 23) - zero
    );
    let term = s.get(2).map_or(String::new(), |term| format!(" + {term}"));
    format!(
        "let v{} = vec2<f16>(({whole}) * {}{term});",
        t.number(id),
        s[1]
    )
}

/// Renders stores of adjacent values to an f16 array, each of one value or of a word's two.
pub fn writes(
    t: &WgslExpressions,
    memories: &Memories,
    [buffer, at]: [Id; 2],
    values: &[Id],
) -> Vec<String> {
    let (at, memory) = (t.offset(at), memories.get(buffer));
    let place = |i: usize| memory.at(&format!("({at} + {i}u)"));
    let written = |(i, &value): (usize, &Id)| {
        let name = t.name(value);
        let pair = if t.g[value].op == Op::ScaledPair {
            name.clone()
        } else {
            format!("vec2<f16>(unpack2x16float({name}))")
        };
        match t.g.scalar(value) {
            Scalar::U32 if memory.has_pairs() => {
                format!("{} = {pair};", memory.at(&format!("{at} / 2u")))
            }
            Scalar::U32 => format!("{} = {pair}.x;\n{} = {pair}.y;", place(0), place(1)),
            _ => format!("{} = {name};", place(i)),
        }
    };
    values.iter().enumerate().map(written).collect()
}
