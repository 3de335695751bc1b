//! MMA fragments: products of small matrices computed by one instruction, described by data.
//!
//! Each row gives the shape, the types, the rate per processor unit, and the mapping of operand
//! elements to lanes and registers. Lowering, the cost model, the linear level's spec and its
//! interpreter read these rows; a dialect knows them by name.

use crate::{Arg, DType, Node, Op, Scalar};

/// A digit of a lane, register or element number: its count of values, and the step that each
/// makes in the operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Digit {
    /// Number of values, from 0 to `count - 1`.
    pub count: i64,
    /// Rows of the operand per step.
    pub row: i64,
    /// Columns of the operand per step.
    pub column: i64,
}

impl Digit {
    /// A digit that steps along rows.
    const fn rows(count: i64, row: i64) -> Digit {
        Digit {
            count,
            row,
            column: 0,
        }
    }
    /// A digit that steps along columns.
    const fn columns(count: i64, column: i64) -> Digit {
        Digit {
            count,
            row: 0,
            column,
        }
    }
}

/// Layout of an operand over lanes and registers, as an index map.
///
/// The numbers of a lane, of its register and of an element in the register are decomposed into
/// digits, lowest first; the element's row and column are the sums of their steps. A core's tile
/// (AMX) has one lane, and its rows are registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OperandLayout {
    /// Digits of a lane number.
    pub lanes: &'static [Digit],
    /// Digits of a register number.
    pub registers: &'static [Digit],
    /// Digits of an element's number in its register.
    pub elements: &'static [Digit],
}

/// Count of numbers that these digits represent.
fn numbers(digits: &[Digit]) -> i64 {
    digits.iter().map(|d| d.count).product()
}

/// Maps `number` to its row and column.
fn place(digits: &[Digit], mut number: i64) -> [i64; 2] {
    let mut at = [0; 2];
    for d in digits {
        let value = number % d.count;
        number /= d.count;
        at = [at[0] + value * d.row, at[1] + value * d.column];
    }
    at
}

impl OperandLayout {
    /// Number of lanes that hold the operand.
    pub fn lanes(&self) -> i64 {
        numbers(self.lanes)
    }
    /// Registers per lane, one word each.
    pub fn registers(&self) -> i64 {
        numbers(self.registers)
    }
    /// Number of elements per register.
    pub fn elements(&self) -> i64 {
        numbers(self.elements)
    }
    /// Maps lane, register and element to row and column.
    pub fn at(&self, lane: i64, register: i64, element: i64) -> [i64; 2] {
        let all = [
            place(self.lanes, lane),
            place(self.registers, register),
            place(self.elements, element),
        ];
        all.into_iter()
            .fold([0; 2], |[row, column], [r, c]| [row + r, column + c])
    }
}

/// A matrix product computed by one instruction: `rows × terms` by `terms × columns`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fragment {
    /// Name of its instruction.
    pub name: &'static str,
    /// Rows of the first operand.
    pub rows: i64,
    /// Columns of the second operand.
    pub columns: i64,
    /// Terms of each sum (K).
    pub terms: i64,
    /// Element type of both operands.
    pub operand: Scalar,
    /// Element type of the sums.
    pub sum: Scalar,
    /// Operations per processor unit and cycle; a multiply-add counts as two.
    pub rate: f64,
    /// Layout of the first operand, `rows × terms`.
    pub first: OperandLayout,
    /// Layout of the second operand, `terms × columns`.
    pub second: OperandLayout,
    /// Layout of the sums, `rows × columns`.
    pub sums: OperandLayout,
    /// Shared memory layout of the second operand of a warpgroup product.
    pub shared: Shared,
}

/// Shared memory layout of the operand that several warps share: units of 16 bytes with the 64-byte
/// swizzle (PTX ISA, "Asynchronous warpgroup level matrix shared memory layout").
///
/// A line has four units, so that lanes that copy rows from memory fill whole lines. The position
/// of a unit in its line depends on the line, so that the units of eight lines that are read
/// together fall into all banks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shared {
    /// K-major: a line is 32 terms of a column; the lines of all columns follow, then those of
    /// the next 32 terms.
    Columns,
    /// MN-major: a line is 32 columns of a term; the lines of all terms follow, then those of
    /// the next 32 columns.
    Transposed,
}

/// Size of a register word, bytes.
const WORD: i64 = 4;
/// Number of 16-byte units per line.
pub const OF_LINE: i64 = 4;
/// Period of the swizzle, bytes (512): a swizzled layout begins at a multiple of it.
pub const SWIZZLE: i64 = 2 * OF_LINE * OF_LINE * 2 * UNIT;

/// Rounds a number of bytes up to a multiple of [`SWIZZLE`].
pub const fn whole_swizzles(bytes: i64) -> i64 {
    (bytes + SWIZZLE - 1) / SWIZZLE * SWIZZLE
}

/// Index of unit `number` of a row in line `line`, where each group of four
/// units has `lines` lines.
const fn unit(number: i64, line: i64, lines: i64) -> i64 {
    (number / OF_LINE * lines + line) * OF_LINE + ((number % OF_LINE) ^ (line / 2 % OF_LINE))
}

/// Units of `lines` lines with `elements` elements each, in whole lines.
pub const fn units(elements: i64, lines: i64) -> i64 {
    let of_line = OF_LINE * UNIT;
    (elements + of_line - 1) / of_line * OF_LINE * lines
}

impl Fragment {
    /// Returns the same instruction with another rate.
    pub const fn at(self, rate: f64) -> Fragment {
        Fragment { rate, ..self }
    }
    /// Returns whether several warps split its rows and share its columns (`wgmma`).
    pub fn is_of_group(&self) -> bool {
        self.rows > MMA_F16.rows
    }
    /// Position of an element of the shared operand: index of its unit, and index within the unit.
    pub const fn place(&self, term: i64, column: i64) -> [i64; 2] {
        match self.shared {
            Shared::Columns => [unit(term / UNIT, column, self.columns), term % UNIT],
            Shared::Transposed => [unit(column / UNIT, term, self.terms), column % UNIT],
        }
    }
    /// Position of an element of the first operand in shared memory, in lines of 32 terms: index of
    /// its unit, and index within the unit.
    pub const fn place_of_row(&self, row: i64, term: i64) -> [i64; 2] {
        [unit(term / UNIT, row, self.rows), term % UNIT]
    }
    /// Lines per group of four units: columns or terms.
    pub const fn lines(&self) -> i64 {
        match self.shared {
            Shared::Columns => self.columns,
            Shared::Transposed => self.terms,
        }
    }
    /// Units of its lines with `elements` elements each.
    pub const fn units(&self, elements: i64) -> i64 {
        units(elements, self.lines())
    }
    /// Units of the whole shared operand.
    pub const fn shared_units(&self) -> i64 {
        match self.shared {
            Shared::Columns => self.units(self.terms),
            Shared::Transposed => self.units(self.columns),
        }
    }
    /// Finds the warpgroup product with `columns` columns and this layout in a stage.
    pub fn of_stage(operand: Scalar, columns: i64, shared: Shared) -> Option<&'static Fragment> {
        WARPS.iter().find(|f| {
            f.is_of_group() && f.operand == operand && f.columns == columns && f.shared == shared
        })
    }
    /// Registers per lane of both operands together.
    pub fn words(&self) -> usize {
        (self.first.registers() + self.second.registers()) as usize
    }
    /// Finds the row of [`WARPS`] with this operand type and `words` registers for both operands.
    pub fn of_words(operand: Scalar, words: usize) -> Option<&'static Fragment> {
        WARPS
            .iter()
            .find(|f| f.operand == operand && f.words() == words)
    }
    /// Index in [`WARPS`], by which nodes refer to it.
    pub fn number(&self) -> i64 {
        WARPS
            .iter()
            .position(|f| f.name == self.name)
            .unwrap_or(WARPS.len()) as i64
    }
    /// Returns the row of [`WARPS`] that a warp-level product node uses.
    pub fn of_product(n: &Node) -> Option<&'static Fragment> {
        match (n.op, &n.arg) {
            (Op::Mma, _) => Fragment::of_words(Scalar::I8, n.src.len()),
            (Op::MmaHalf | Op::MmaShared, &Arg::Int(number)) => WARPS
                .get(usize::try_from(number).ok()?)
                .filter(|f| f.operand.is_half()),
            _ => None,
        }
    }
    /// Returns whether the first operand of a warpgroup product is in shared memory; its node then
    /// has two positions and the sum as sources.
    pub fn has_rows_in_memory(n: &Node) -> bool {
        n.op == Op::MmaShared && n.src.len() == 5
    }
    /// Returns whether its tiles are loaded and stored as a whole, with an
    /// opaque distribution over threads.
    pub fn is_whole(&self) -> bool {
        self.sums.lanes() == 1
    }
    /// Finds a row of [`TILES`] with this type of sums.
    pub fn of_sums(sums: DType) -> Option<&'static Fragment> {
        TILES.iter().find(|f| f.sums() == sums)
    }
    /// Finds the row of [`TILES`] with operand tiles of type `tile` from a buffer of type `buffer`.
    pub fn of_operands(tile: DType, buffer: Scalar) -> Option<&'static Fragment> {
        TILES
            .iter()
            .find(|f| f.operand == buffer && f.tile() == tile)
    }
    /// Finds the row of [`TILES`] that multiplies such tiles into such sums.
    pub fn of_tiles(tile: DType, sums: DType) -> Option<&'static Fragment> {
        TILES.iter().find(|f| f.tile() == tile && f.sums() == sums)
    }
    /// Type of an operand tile: a vector of u32 words.
    pub fn tile(&self) -> DType {
        Scalar::U32
            .one()
            .with_lanes((self.rows * self.terms * self.operand.bytes() as i64 / WORD) as u16)
    }
    /// Type of a tile of sums.
    pub fn sums(&self) -> DType {
        self.sum.one().with_lanes((self.rows * self.columns) as u16)
    }
}

/// Lane digits of `mma.sync` operands and sums (PTX ISA, "Matrix fragments"): four lanes share a
/// row, and there are eight rows.
const fn of_warp(part: Digit, row: Digit) -> [Digit; 2] {
    [part, row]
}
/// Lane digits of the four warps of `wgmma`.
const fn of_group(part: Digit, row: Digit, warp: Digit) -> [Digit; 3] {
    [part, row, warp]
}
/// Sums of 16 rows and 8 columns: two neighbouring columns per lane, in a row and in
/// the row eight below.
const SUMS: OperandLayout = OperandLayout {
    lanes: &of_warp(Digit::columns(4, 2), Digit::rows(8, 1)),
    registers: &[Digit::columns(2, 1), Digit::rows(2, 8)],
    elements: &[],
};

/// Defines an `mma.sync` fragment with 16 rows and 8 columns, with `$elements` elements per word.
macro_rules! mma {
    ($name:literal, $operand:ident -> $sum:ident, $elements:literal a word, $words:literal words) => {
        Fragment {
            name: $name,
            rows: 16,
            columns: 8,
            terms: 4 * $elements * $words,
            operand: Scalar::$operand,
            sum: Scalar::$sum,
            rate: 0.0,
            first: OperandLayout {
                lanes: &of_warp(Digit::columns(4, $elements), Digit::rows(8, 1)),
                registers: &[Digit::rows(2, 8), Digit::columns($words, 4 * $elements)],
                elements: &[Digit::columns($elements, 1)],
            },
            second: OperandLayout {
                lanes: &of_warp(Digit::rows(4, $elements), Digit::columns(8, 1)),
                registers: &[Digit::rows($words, 4 * $elements)],
                elements: &[Digit::rows($elements, 1)],
            },
            sums: SUMS,
            shared: Shared::Columns,
        }
    };
}

/// Defines a `wgmma` fragment as two instructions of 16 terms.
///
/// Four warps hold 16 rows each; the columns are in shared memory. A lane's part of the second
/// operand consists of the units of [`UNIT`] terms that it copies there.
macro_rules! wgmma {
    ($name:literal, $columns:literal columns, $shared:ident) => {
        Fragment {
            name: $name,
            rows: 64,
            columns: $columns,
            terms: 4 * UNIT,
            operand: Scalar::F16,
            sum: Scalar::F32,
            rate: 0.0,
            first: OperandLayout {
                lanes: &of_group(Digit::columns(4, 2), Digit::rows(8, 1), Digit::rows(4, 16)),
                registers: &[Digit::rows(2, 8), Digit::columns(4, 8)],
                elements: &[Digit::columns(2, 1)],
            },
            second: OperandLayout {
                lanes: &of_group(
                    Digit::rows(4, UNIT),
                    Digit::columns(8, 1),
                    Digit::rows(4, 0),
                ),
                registers: &[Digit::rows(UNIT / 2, 2), Digit::columns($columns / 8, 8)],
                elements: &[Digit::rows(2, 1)],
            },
            sums: OperandLayout {
                lanes: &of_group(Digit::columns(4, 2), Digit::rows(8, 1), Digit::rows(4, 16)),
                registers: &[
                    Digit::columns(2, 1),
                    Digit::rows(2, 8),
                    Digit::columns($columns / 8, 8),
                ],
                elements: &[],
            },
            shared: Shared::$shared,
        }
    };
}

/// f16 elements per unit of 16 bytes.
pub const UNIT: i64 = 8;
/// f16 product of sm_90 with 16 columns (PTX ISA, `wgmma.mma_async`). Column counts divide
/// a tile of tokens.
pub const WGMMA_16: Fragment = wgmma!("wgmma.m64n16k16.f16", 16 columns, Columns);
/// f16 product of sm_90 with 32 columns.
pub const WGMMA_32: Fragment = wgmma!("wgmma.m64n32k16.f16", 32 columns, Columns);
/// f16 product of sm_90 with 64 columns.
pub const WGMMA_64: Fragment = wgmma!("wgmma.m64n64k16.f16", 64 columns, Columns);
/// f16 product of sm_90 with 128 columns.
pub const WGMMA_128: Fragment = wgmma!("wgmma.m64n128k16.f16", 128 columns, Columns);
/// Variants for columns in stages: 256 columns, and MN-major layouts.
const WGMMA_256: Fragment = wgmma!("wgmma.m64n256k16.f16", 256 columns, Columns);
const WGMMA_16_TRANSPOSED: Fragment =
    wgmma!("wgmma.m64n16k16.f16.transposed", 16 columns, Transposed);
const WGMMA_32_TRANSPOSED: Fragment =
    wgmma!("wgmma.m64n32k16.f16.transposed", 32 columns, Transposed);
const WGMMA_64_TRANSPOSED: Fragment =
    wgmma!("wgmma.m64n64k16.f16.transposed", 64 columns, Transposed);
const WGMMA_128_TRANSPOSED: Fragment =
    wgmma!("wgmma.m64n128k16.f16.transposed", 128 columns, Transposed);
const WGMMA_256_TRANSPOSED: Fragment =
    wgmma!("wgmma.m64n256k16.f16.transposed", 256 columns, Transposed);

/// int8 product with 32 terms, from sm_80 on (PTX ISA, `mma.sync`).
pub const MMA_I8: Fragment = mma!("mma.m16n8k32.s8", I8 -> I32, 4 a word, 2 words);
/// int8 product with 16 terms, from sm_80 on.
pub const MMA_I8_16: Fragment = mma!("mma.m16n8k16.s8", I8 -> I32, 4 a word, 1 words);
/// f16 product with 16 terms, from sm_80 on.
pub const MMA_F16: Fragment = mma!("mma.m16n8k16.f16", F16 -> F32, 2 a word, 2 words);
/// bf16 product with 16 terms, from sm_80 on.
pub const MMA_BF16: Fragment = mma!("mma.m16n8k16.bf16", BF16 -> F32, 2 a word, 2 words);
/// f16 product with 8 terms, the only one of sm_75.
pub const MMA_F16_8: Fragment = mma!("mma.m16n8k8.f16", F16 -> F32, 2 a word, 1 words);

/// bf16 product of AMX (`TDPBF16PS`), on tiles of 16 rows of 64 bytes (Intel 64 and IA-32
/// Architectures, volume 1, chapter 18).
///
/// The rows of the second operand are groups of terms. A core has eight tile registers. Rows of the
/// first operand are tokens; columns of the second are rows of a weight.
pub const AMX_BF16: Fragment = Fragment {
    name: "tdpbf16ps",
    rows: 16,
    columns: 16,
    terms: 32,
    operand: Scalar::BF16,
    sum: Scalar::F32,
    // One product of 16 rows, columns and words starts every 16 cycles. On a 3.2 GHz Xeon a product
    // takes 5.0 ns, plus 0.6 ns with operands from the first-level cache.
    rate: 2.0 * 16.0 * 16.0 * 2.0,
    first: OperandLayout {
        lanes: &[],
        registers: &[Digit::rows(16, 1)],
        elements: &[Digit::columns(32, 1)],
    },
    second: OperandLayout {
        lanes: &[],
        registers: &[Digit::rows(16, 2)],
        elements: &[Digit::rows(2, 1), Digit::columns(16, 1)],
    },
    sums: OperandLayout {
        lanes: &[],
        registers: &[Digit::rows(16, 1)],
        elements: &[Digit::columns(16, 1)],
    },
    shared: Shared::Columns,
};

/// All products of a warp, or of four warps that share an operand.
pub const WARPS: &[Fragment] = &[
    MMA_I8,
    MMA_I8_16,
    MMA_F16,
    MMA_BF16,
    MMA_F16_8,
    WGMMA_16,
    WGMMA_32,
    WGMMA_64,
    WGMMA_128,
    WGMMA_256,
    WGMMA_16_TRANSPOSED,
    WGMMA_32_TRANSPOSED,
    WGMMA_64_TRANSPOSED,
    WGMMA_128_TRANSPOSED,
    WGMMA_256_TRANSPOSED,
];
/// Defines a product of a subgroup's cooperative matrices (SPV_KHR_cooperative_matrix;
/// `simdgroup_matrix` in the Metal Shading Language).
///
/// The distribution over threads is opaque: tiles are loaded from memory as a whole, the second
/// operand with the terms of a column contiguous, and sums are stored as a whole.
macro_rules! cooperative {
    ($name:literal, $side:literal) => {
        Fragment {
            name: $name,
            rows: $side,
            columns: $side,
            terms: $side,
            operand: Scalar::F16,
            sum: Scalar::F32,
            rate: 0.0,
            first: OperandLayout {
                lanes: &[],
                registers: &[Digit::rows($side, 1)],
                elements: &[Digit::columns($side, 1)],
            },
            second: OperandLayout {
                lanes: &[],
                registers: &[Digit::columns($side, 1)],
                elements: &[Digit::rows($side, 1)],
            },
            sums: OperandLayout {
                lanes: &[],
                registers: &[Digit::rows($side, 1)],
                elements: &[Digit::columns($side, 1)],
            },
            shared: Shared::Columns,
        }
    };
}

/// 16 × 16 f16 cooperative matrices of NVIDIA, AMD and Intel GPUs.
pub const COOPERATIVE_16: Fragment = cooperative!("coop_mat16x16<f16>", 16);
/// 8 × 8 f16 cooperative matrices of Apple GPUs.
pub const COOPERATIVE_8: Fragment = cooperative!("coop_mat8x8<f16>", 8);

/// All products of tiles that are loaded and stored as a whole, by a core or a subgroup.
pub const TILES: &[Fragment] = &[AMX_BF16, COOPERATIVE_16, COOPERATIVE_8];

/// Returns the tensor core products of an NVIDIA architecture, with the dense rates of its
/// data-centre parts and f32 sums.
///
/// An H200's 989 tera-operations of f16 apply to `wgmma`; `mma.sync` reaches 62 %
/// of them (Luo et al., "Benchmarking and dissecting the NVIDIA Hopper GPU
/// architecture via microbenchmarking", 2024).
pub fn tensor_cores(sm: u32) -> &'static [Fragment] {
    match sm {
        ..75 => &[],
        75..80 => TURING,
        80 => AMPERE,
        // For smaller chips the GeForce rates are assumed.
        86..90 | 120.. => GEFORCE,
        90 => HOPPER,
        _ => LATER,
    }
}

/// sm_75 (T4 data sheet: 65 tera-operations of f16 by 40 units at 1.59 GHz).
pub const TURING: &[Fragment] = &[MMA_F16_8.at(1024.0)];
/// sm_80 (A100 data sheet: 312 tera-operations of f16, 624 of int8, by 108 units at 1.41 GHz).
pub const AMPERE: &[Fragment] = &[
    MMA_I8.at(4096.0),
    MMA_I8_16.at(4096.0),
    MMA_F16.at(2048.0),
    MMA_BF16.at(2048.0),
];
/// sm_86 and sm_89 as GeForce. Ada GPU architecture, appendix A: an RTX 4090 does 165
/// tera-operations of f16 with f32 sums, 661 of int8, by 128 units at 2.52 GHz.
pub const GEFORCE: &[Fragment] = &[
    MMA_I8.at(2048.0),
    MMA_I8_16.at(2048.0),
    MMA_F16.at(512.0),
    MMA_BF16.at(512.0),
];
/// sm_89 in data centres (L4 data sheet: 121 tera-operations of f16, 242 of int8, by 58 units
/// at 2.04 GHz).
pub const ADA: &[Fragment] = &[
    MMA_I8.at(2048.0),
    MMA_I8_16.at(2048.0),
    MMA_F16.at(1024.0),
    MMA_BF16.at(1024.0),
];
/// sm_90; the sources are given at [`tensor_cores`].
pub const HOPPER: &[Fragment] = &[
    MMA_I8.at(5120.0),
    MMA_I8_16.at(5120.0),
    MMA_F16.at(2560.0),
    MMA_BF16.at(2560.0),
    WGMMA_16.at(4096.0),
    WGMMA_32.at(4096.0),
    WGMMA_64.at(4096.0),
    WGMMA_128.at(4096.0),
];

/// Assumed rate of 16 × 16 cooperative matrices, relative to f32 operations of the same threads.
///
/// An estimate between [`GEFORCE`] (f16 `mma.sync` with f32 sums is twice as fast as f32) and
/// [`HOPPER`] (ten times). No interface reports it; other vendors' were not measured.
pub const OF_SUBGROUPS_16: &[Fragment] = &[COOPERATIVE_16.at(4.0)];
/// Assumed rate of 8 × 8 cooperative matrices: Apple GPUs before the M5 compute them
/// on the f32 units.
pub const OF_SUBGROUPS_8: &[Fragment] = &[COOPERATIVE_8.at(1.0)];

/// Data-centre parts after sm_90: `mma.sync` only, since `wgmma` is specific to sm_90, at
/// the rates of sm_90.
pub const LATER: &[Fragment] = &[
    MMA_I8.at(5120.0),
    MMA_I8_16.at(5120.0),
    MMA_F16.at(2560.0),
    MMA_BF16.at(2560.0),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Returns whether each element of an operand is held exactly once, and none outside.
    fn covers(held: &OperandLayout, rows: i64, columns: i64) -> bool {
        let mut found = BTreeSet::new();
        // Lanes that differ only in a digit with zero steps hold the same elements.
        let copies: i64 = held
            .lanes
            .iter()
            .filter(|d| d.row == 0 && d.column == 0)
            .map(|d| d.count)
            .product();
        for lane in 0..held.lanes() / copies {
            for register in 0..held.registers() {
                for element in 0..held.elements() {
                    let [row, column] = held.at(lane, register, element);
                    if !(0..rows).contains(&row)
                        || !(0..columns).contains(&column)
                        || !found.insert((row, column))
                    {
                        return false;
                    }
                }
            }
        }
        found.len() as i64 == rows * columns
    }

    #[test]
    fn rows_in_memory_lie_as_columns_of_a_product_of_as_many_do() {
        for f in WARPS.iter().filter(|f| f.is_of_group()) {
            let places = (0..f.rows).flat_map(|row| (0..f.terms).map(move |term| (row, term)));
            for (row, term) in places {
                assert_eq!(
                    f.place_of_row(row, term),
                    WGMMA_64.place(term, row),
                    "{}: {row}, {term}",
                    f.name
                );
            }
        }
    }

    #[test]
    fn every_element_of_a_fragment_is_held_once() {
        for f in WARPS.iter().chain(TILES) {
            assert!(
                covers(&f.first, f.rows, f.terms),
                "{}: the first operand",
                f.name
            );
            assert!(
                covers(&f.second, f.terms, f.columns),
                "{}: the second operand",
                f.name
            );
            assert!(covers(&f.sums, f.rows, f.columns), "{}: the sums", f.name);
            // Lowering uses the same lane digits for operands and sums.
            let counts =
                |held: &OperandLayout| held.lanes.iter().map(|d| d.count).collect::<Vec<_>>();
            assert!(
                counts(&f.first) == counts(&f.sums) && counts(&f.second) == counts(&f.sums),
                "{}",
                f.name
            );
        }
    }

    /// Checks against the figures of `mma.m16n8k16` in the PTX ISA: lane 4g + t.
    #[test]
    fn lanes_hold_what_the_instruction_says() {
        let (g, t) = (5, 3);
        let lane = 4 * g + t;
        assert_eq!(MMA_F16.first.at(lane, 0, 1), [g, 2 * t + 1]);
        assert_eq!(MMA_F16.first.at(lane, 3, 0), [g + 8, 2 * t + 8]);
        assert_eq!(MMA_BF16.second.at(lane, 1, 1), [2 * t + 9, g]);
        assert_eq!(MMA_F16.sums.at(lane, 2, 0), [g + 8, 2 * t]);
        assert_eq!(MMA_I8.first.at(lane, 2, 3), [g, 4 * t + 19]);
        assert_eq!(MMA_I8.second.at(lane, 1, 2), [4 * t + 18, g]);
        assert_eq!(MMA_F16_8.first.at(lane, 1, 0), [g + 8, 2 * t]);
        // The third warp of four, and the unit of 8 terms that lane 3 of a row copies.
        assert_eq!(WGMMA_64.first.at(64 + lane, 3, 1), [32 + g + 8, 2 * t + 9]);
        assert_eq!(WGMMA_64.second.at(64 + lane, 4 + 2, 1), [8 * t + 5, 8 + g]);
        assert_eq!(
            WGMMA_64.sums.at(64 + lane, 4 + 3, 0),
            [32 + g + 8, 8 + 2 * t + 1]
        );
        // Word 7 of row 2 of the second AMX tile: terms 4 and 5 of column 7.
        assert_eq!(AMX_BF16.second.at(0, 2, 2 * 7 + 1), [5, 7]);
    }

    #[test]
    fn rows_are_told_apart_by_type_and_words() {
        for f in WARPS.iter().filter(|f| f.shared == Shared::Columns) {
            assert_eq!(
                Fragment::of_words(f.operand, f.words()).map(|f| f.name),
                Some(f.name)
            );
        }
        for f in TILES {
            assert_eq!(
                Fragment::of_tiles(f.tile(), f.sums()).map(|f| f.name),
                Some(f.name)
            );
        }
        assert_eq!(Fragment::of_words(Scalar::F16, 5), None);
        let stage =
            |columns, shared| Fragment::of_stage(Scalar::F16, columns, shared).map(|f| f.name);
        assert_eq!(stage(64, Shared::Columns), Some(WGMMA_64.name));
        assert_eq!(
            stage(256, Shared::Transposed),
            Some("wgmma.m64n256k16.f16.transposed")
        );
        assert_eq!(stage(48, Shared::Columns), None);
    }

    #[test]
    fn each_element_that_warps_share_has_a_place() {
        for f in WARPS.iter().filter(|f| f.is_of_group()) {
            let all = (0..f.terms)
                .flat_map(|term| (0..f.columns).map(move |column| f.place(term, column)));
            let distinct: BTreeSet<[i64; 2]> = all.collect();
            assert_eq!(distinct.len() as i64, f.terms * f.columns, "{}", f.name);
            assert!(
                distinct.iter().all(|p| p[0] < f.shared_units()),
                "{}",
                f.name
            );
            // The eight terms, or columns, of a unit are contiguous.
            let [along, other] = match f.shared {
                Shared::Transposed => [f.place(3, 8 + 5), f.place(3, 8)],
                Shared::Columns => [f.place(8 + 5, 3), f.place(8, 3)],
            };
            assert_eq!(
                [along[0] - other[0], along[1], other[1]],
                [0, 5, 0],
                "{}",
                f.name
            );
        }
    }

    /// 64-byte swizzle of the PTX ISA: bits 7 and 8 of an address are XORed into bits 4 and 5.
    #[test]
    fn units_change_places_as_bits_of_their_address_do() {
        let of_stage = Fragment::of_stage(Scalar::F16, 64, Shared::Transposed).expect("a row");
        let all = (0..32).flat_map(|term| (0..64).map(move |column| [term, column]));
        for [term, column] in all.filter(|[term, _]| term % 8 == 0) {
            let plain = (column * OF_LINE + term / UNIT) * 16;
            assert_eq!(
                WGMMA_64.place(term, column)[0] * 16,
                plain ^ (plain >> 7 & 3) << 4
            );
            // In the transposed order: the first 32 columns of all terms, then the others.
            let (term, column) = (column % 32, 8 * (term / 8 + 4 * (column / 32)));
            let plain = ((column / 32 * 32 + term) * OF_LINE + column / UNIT % OF_LINE) * 16;
            assert_eq!(
                of_stage.place(term, column)[0] * 16,
                plain ^ (plain >> 7 & 3) << 4
            );
        }
        assert_eq!(SWIZZLE, 512);
    }

    #[test]
    fn all_that_a_machine_has_is_a_row_with_a_rate() {
        for of in [
            TURING,
            AMPERE,
            GEFORCE,
            ADA,
            HOPPER,
            &[AMX_BF16],
            OF_SUBGROUPS_16,
            OF_SUBGROUPS_8,
        ] {
            for f in of {
                assert!(
                    f.rate > 0.0 && WARPS.iter().chain(TILES).any(|row| row.name == f.name),
                    "{}",
                    f.name
                );
            }
        }
        assert_eq!(tensor_cores(61), &[]);
        assert_eq!(tensor_cores(90), HOPPER);
        // Only sm_90 has warpgroup products.
        let groups = |sm: u32| tensor_cores(sm).iter().any(Fragment::is_of_group);
        assert!((75..130).all(|sm| groups(sm) == (sm == 90)));
    }
}
