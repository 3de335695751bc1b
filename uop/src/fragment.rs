//! Fragments: products of small matrices that one instruction computes, as rows of data. Of each: its shape, its types, how fast a unit computes it, and
//! which element of each operand lies where. Lowering, pricing, the linear level's spec and its interpreter read them; a dialect knows them by name.

use crate::{Arg, DType, Node, Op, Scalar};

/// A digit of the number of a lane, of a register or of an element in it: how many values it has, and how far each step moves in the operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Digit {
    /// Its values: from 0 up to this.
    pub count: i64,
    /// Rows of the operand for each step.
    pub row: i64,
    /// Columns of the operand for each step.
    pub column: i64,
}

impl Digit {
    /// Steps along rows.
    const fn rows(count: i64, row: i64) -> Digit {
        Digit { count, row, column: 0 }
    }
    /// Steps along columns.
    const fn columns(count: i64, column: i64) -> Digit {
        Digit { count, row: 0, column }
    }
}

/// Where the elements of an operand are held, as an index map: the numbers of a lane, of one of its registers and of an element in that are taken apart into
/// digits, the lowest first, and the element's row and column are the sums of their steps. A core's tile has one lane, and its rows are registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Held {
    /// Of the number of a lane.
    pub lanes: &'static [Digit],
    /// Of the number of a register.
    pub registers: &'static [Digit],
    /// Of the number of an element in a register.
    pub elements: &'static [Digit],
}

/// How many numbers these digits write.
fn numbers(digits: &[Digit]) -> i64 {
    digits.iter().map(|d| d.count).product()
}

/// Row and column that `number` stands for.
fn place(digits: &[Digit], mut number: i64) -> [i64; 2] {
    let mut at = [0; 2];
    for d in digits {
        let value = number % d.count;
        number /= d.count;
        at = [at[0] + value * d.row, at[1] + value * d.column];
    }
    at
}

impl Held {
    /// How many lanes hold it.
    pub fn lanes(&self) -> i64 {
        numbers(self.lanes)
    }
    /// Registers of a lane.
    pub fn registers(&self) -> i64 {
        numbers(self.registers)
    }
    /// Elements of a register.
    pub fn elements(&self) -> i64 {
        numbers(self.elements)
    }
    /// Row and column of an element.
    pub fn at(&self, lane: i64, register: i64, element: i64) -> [i64; 2] {
        let all = [place(self.lanes, lane), place(self.registers, register), place(self.elements, element)];
        all.into_iter().fold([0; 2], |[row, column], [r, c]| [row + r, column + c])
    }
}

/// A product of small matrices that one instruction computes: `rows × terms` by `terms × columns`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fragment {
    /// What its instruction is called.
    pub name: &'static str,
    /// Rows of the first operand.
    pub rows: i64,
    /// Columns of the second.
    pub columns: i64,
    /// Terms of each sum.
    pub terms: i64,
    /// Type of both operands' elements.
    pub operand: Scalar,
    /// Type of the sums.
    pub sum: Scalar,
    /// Operations that a unit does each cycle, a product and its addition being two.
    pub rate: f64,
    /// The first operand, `rows × terms`.
    pub first: Held,
    /// The second, `terms × columns`.
    pub second: Held,
    /// The sums, `rows × columns`.
    pub sums: Held,
    /// Of a product of several warps: how the columns that they share lie.
    pub shared: Shared,
}

/// How columns that several warps share lie in memory of the workgroup's, by units of 16 bytes with a swizzle of 64 (PTX ISA, "Asynchronous warpgroup level matrix shared memory
/// layout"): lines of four units, so that lanes that copy rows from memory fill whole ones, and which of the four stands where depends on the line, so that units of eight lines
/// that are read together lie in all banks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shared {
    /// A line is 32 terms of a column; those of all columns follow, then those of the next terms (K-major).
    Columns,
    /// A line is 32 columns of a term; those of all terms follow, then those of the next columns (MN-major).
    Transposed,
}

/// Bytes of a word.
const WORD: i64 = 4;
/// Units of a line.
pub const OF_LINE: i64 = 4;
/// Bytes after which the places of units in their lines are the same again: what is laid out so begins at a multiple of them.
pub const SWIZZLE: i64 = 2 * OF_LINE * OF_LINE * 2 * UNIT;

/// So many bytes, and as many as there are to where the next swizzle may begin.
pub const fn whole_swizzles(bytes: i64) -> i64 {
    (bytes + SWIZZLE - 1) / SWIZZLE * SWIZZLE
}

/// The place of a unit, of so many from the first of a row, where there are so many lines of each four.
const fn unit(number: i64, line: i64, lines: i64) -> i64 {
    (number / OF_LINE * lines + line) * OF_LINE + ((number % OF_LINE) ^ (line / 2 % OF_LINE))
}

/// Units of so many lines that have so many elements each.
pub const fn units(elements: i64, lines: i64) -> i64 {
    let of_line = OF_LINE * UNIT;
    (elements + of_line - 1) / of_line * OF_LINE * lines
}

impl Fragment {
    /// The same instruction on units of another rate.
    pub const fn at(self, rate: f64) -> Fragment {
        Fragment { rate, ..self }
    }
    /// Do several warps have parts of its rows, and share its columns?
    pub fn is_of_group(&self) -> bool {
        self.rows > MMA_F16.rows
    }
    /// Where it has the unit that holds an element of what several warps share, in units from the first; and the element's number in it.
    pub const fn place(&self, term: i64, column: i64) -> [i64; 2] {
        match self.shared {
            Shared::Columns => [unit(term / UNIT, column, self.columns), term % UNIT],
            Shared::Transposed => [unit(column / UNIT, term, self.terms), column % UNIT],
        }
    }
    /// Where it has the unit that holds an element of rows that stand in memory of the workgroup's too, in lines of 32 terms as columns do; and the element's number in it.
    pub const fn place_of_row(&self, row: i64, term: i64) -> [i64; 2] {
        [unit(term / UNIT, row, self.rows), term % UNIT]
    }
    /// Lines of each four units of a row: columns, or terms.
    pub const fn lines(&self) -> i64 {
        match self.shared {
            Shared::Columns => self.columns,
            Shared::Transposed => self.terms,
        }
    }
    /// Units of lines that have so many elements each.
    pub const fn units(&self, elements: i64) -> i64 {
        units(elements, self.lines())
    }
    /// Units of what several warps share.
    pub const fn shared_units(&self) -> i64 {
        match self.shared {
            Shared::Columns => self.units(self.terms),
            Shared::Transposed => self.units(self.columns),
        }
    }
    /// The product of several warps of so many columns that stand in a stage.
    pub fn of_stage(operand: Scalar, columns: i64, shared: Shared) -> Option<&'static Fragment> {
        WARPS.iter().find(|f| f.is_of_group() && f.operand == operand && f.columns == columns && f.shared == shared)
    }
    /// Registers of a lane that both operands have.
    pub fn words(&self) -> usize {
        (self.first.registers() + self.second.registers()) as usize
    }
    /// The row of [`WARPS`] whose operands have this type, and so many registers together.
    pub fn of_words(operand: Scalar, words: usize) -> Option<&'static Fragment> {
        WARPS.iter().find(|f| f.operand == operand && f.words() == words)
    }
    /// Its place in [`WARPS`], by which nodes name it.
    pub fn number(&self) -> i64 {
        WARPS.iter().position(|f| f.name == self.name).unwrap_or(WARPS.len()) as i64
    }
    /// The row of [`WARPS`] that a warp's product is of.
    pub fn of_product(n: &Node) -> Option<&'static Fragment> {
        match (n.op, &n.arg) {
            (Op::Mma, _) => Fragment::of_words(Scalar::I8, n.src.len()),
            (Op::MmaHalf | Op::MmaShared, &Arg::Int(number)) => {
                WARPS.get(usize::try_from(number).ok()?).filter(|f| f.operand.is_half())
            }
            _ => None,
        }
    }
    /// Do the rows of a product of several warps stand in memory of the workgroup's, as its columns do? Then two places and the sum are its sources.
    pub fn has_rows_in_memory(n: &Node) -> bool {
        n.op == Op::MmaShared && n.src.len() == 5
    }
    /// Is a tile of it loaded from memory, and written to it, as a whole, and held by nobody in particular?
    pub fn is_whole(&self) -> bool {
        self.sums.lanes() == 1
    }
    /// A row of [`TILES`] whose tile of sums has this type.
    pub fn of_sums(sums: DType) -> Option<&'static Fragment> {
        TILES.iter().find(|f| f.sums() == sums)
    }
    /// The row of [`TILES`] whose operands are such tiles of a buffer of this type.
    pub fn of_operands(tile: DType, buffer: Scalar) -> Option<&'static Fragment> {
        TILES.iter().find(|f| f.operand == buffer && f.tile() == tile)
    }
    /// The row of [`TILES`] that multiplies such tiles to such sums.
    pub fn of_tiles(tile: DType, sums: DType) -> Option<&'static Fragment> {
        TILES.iter().find(|f| f.tile() == tile && f.sums() == sums)
    }
    /// The type of a tile of its operands: words.
    pub fn tile(&self) -> DType {
        Scalar::U32.one().with_lanes((self.rows * self.terms * self.operand.bytes() as i64 / WORD) as u16)
    }
    /// The type of a tile of its sums.
    pub fn sums(&self) -> DType {
        self.sum.one().with_lanes((self.rows * self.columns) as u16)
    }
}

/// Lanes of a warp that hold operands and sums of `mma.sync` (PTX ISA, "Matrix fragments"): of four in a row each has a part of it, and eight such rows.
const fn of_warp(part: Digit, row: Digit) -> [Digit; 2] {
    [part, row]
}
/// Of the four warps of `wgmma`.
const fn of_group(part: Digit, row: Digit, warp: Digit) -> [Digit; 3] {
    [part, row, warp]
}
/// Sums of 16 rows and 8 columns: two beside one another, and the same eight rows below.
const SUMS: Held = Held {
    lanes: &of_warp(Digit::columns(4, 2), Digit::rows(8, 1)),
    registers: &[Digit::columns(2, 1), Digit::rows(2, 8)],
    elements: &[],
};

/// A row of `mma.sync` with 16 rows and 8 columns, whose words have so many elements.
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
            first: Held {
                lanes: &of_warp(Digit::columns(4, $elements), Digit::rows(8, 1)),
                registers: &[Digit::rows(2, 8), Digit::columns($words, 4 * $elements)],
                elements: &[Digit::columns($elements, 1)],
            },
            second: Held {
                lanes: &of_warp(Digit::rows(4, $elements), Digit::columns(8, 1)),
                registers: &[Digit::rows($words, 4 * $elements)],
                elements: &[Digit::rows($elements, 1)],
            },
            sums: SUMS,
            shared: Shared::Columns,
        }
    };
}

/// A row of `wgmma` with so many columns, as two instructions of 16 terms: four warps have 16 rows each, and of the columns what they share in memory of
/// the workgroup's. A lane's part of that are the units of [`UNIT`] terms that it copies there.
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
            first: Held {
                lanes: &of_group(Digit::columns(4, 2), Digit::rows(8, 1), Digit::rows(4, 16)),
                registers: &[Digit::rows(2, 8), Digit::columns(4, 8)],
                elements: &[Digit::columns(2, 1)],
            },
            second: Held {
                lanes: &of_group(Digit::rows(4, UNIT), Digit::columns(8, 1), Digit::rows(4, 0)),
                registers: &[Digit::rows(UNIT / 2, 2), Digit::columns($columns / 8, 8)],
                elements: &[Digit::rows(2, 1)],
            },
            sums: Held {
                lanes: &of_group(Digit::columns(4, 2), Digit::rows(8, 1), Digit::rows(4, 16)),
                registers: &[Digit::columns(2, 1), Digit::rows(2, 8), Digit::columns($columns / 8, 8)],
                elements: &[],
            },
            shared: Shared::$shared,
        }
    };
}

/// Terms of 16 bytes of halves.
pub const UNIT: i64 = 8;
/// Products of halves on sm_90 (PTX ISA, `wgmma.mma_async`), for columns by fours: what divides a tile of tokens.
pub const WGMMA_16: Fragment = wgmma!("wgmma.m64n16k16.f16", 16 columns, Columns);
/// The same of 32 columns.
pub const WGMMA_32: Fragment = wgmma!("wgmma.m64n32k16.f16", 32 columns, Columns);
/// The same of 64 columns.
pub const WGMMA_64: Fragment = wgmma!("wgmma.m64n64k16.f16", 64 columns, Columns);
/// The same of 128 columns.
pub const WGMMA_128: Fragment = wgmma!("wgmma.m64n128k16.f16", 128 columns, Columns);
/// Those whose columns stand in stages: of 256 columns too, and with lines of a term.
const WGMMA_256: Fragment = wgmma!("wgmma.m64n256k16.f16", 256 columns, Columns);
const WGMMA_16_TRANSPOSED: Fragment = wgmma!("wgmma.m64n16k16.f16.transposed", 16 columns, Transposed);
const WGMMA_32_TRANSPOSED: Fragment = wgmma!("wgmma.m64n32k16.f16.transposed", 32 columns, Transposed);
const WGMMA_64_TRANSPOSED: Fragment = wgmma!("wgmma.m64n64k16.f16.transposed", 64 columns, Transposed);
const WGMMA_128_TRANSPOSED: Fragment = wgmma!("wgmma.m64n128k16.f16.transposed", 128 columns, Transposed);
const WGMMA_256_TRANSPOSED: Fragment = wgmma!("wgmma.m64n256k16.f16.transposed", 256 columns, Transposed);

/// Products of bytes on NVIDIA's tensor cores from sm_80 on (PTX ISA, `mma.sync`).
pub const MMA_I8: Fragment = mma!("mma.m16n8k32.s8", I8 -> I32, 4 a word, 2 words);
/// The same of half as many terms.
pub const MMA_I8_16: Fragment = mma!("mma.m16n8k16.s8", I8 -> I32, 4 a word, 1 words);
/// Products of halves there.
pub const MMA_F16: Fragment = mma!("mma.m16n8k16.f16", F16 -> F32, 2 a word, 2 words);
/// Products of bfloat16 there.
pub const MMA_BF16: Fragment = mma!("mma.m16n8k16.bf16", BF16 -> F32, 2 a word, 2 words);
/// Products of halves of half as many terms: all that sm_75 has.
pub const MMA_F16_8: Fragment = mma!("mma.m16n8k8.f16", F16 -> F32, 2 a word, 1 words);

/// Products of bfloat16 of a core with AMX (`TDPBF16PS`): tiles of 16 rows of 64 bytes (Intel 64 and IA-32 Architectures, volume 1, chapter 18), the second operand's rows being groups of terms. Eight tiles
/// are its registers: rows of the first operand are tokens, columns of the second rows of a weight.
pub const AMX_BF16: Fragment = Fragment {
    name: "tdpbf16ps",
    rows: 16,
    columns: 16,
    terms: 32,
    operand: Scalar::BF16,
    sum: Scalar::F32,
    // One of 16 rows, columns and words begins every 16 cycles: on a Xeon of 3.2 GHz a product takes 5.0 ns, and 0.6 ns more with its operands from
    // the first cache.
    rate: 2.0 * 16.0 * 16.0 * 2.0,
    first: Held { lanes: &[], registers: &[Digit::rows(16, 1)], elements: &[Digit::columns(32, 1)] },
    second: Held {
        lanes: &[],
        registers: &[Digit::rows(16, 2)],
        elements: &[Digit::rows(2, 1), Digit::columns(16, 1)],
    },
    sums: Held { lanes: &[], registers: &[Digit::rows(16, 1)], elements: &[Digit::columns(16, 1)] },
    shared: Shared::Columns,
};

/// Every product of a warp, or of four that share an operand.
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
/// A product of a subgroup's cooperative matrices (SPV_KHR_cooperative_matrix; `simdgroup_matrix` of the Metal Shading Language). Which of its threads hold what nobody tells: a tile is
/// loaded from memory as a whole, of the second operand with the terms of a column beside one another, and sums are written to it as a whole.
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
            first: Held { lanes: &[], registers: &[Digit::rows($side, 1)], elements: &[Digit::columns($side, 1)] },
            second: Held { lanes: &[], registers: &[Digit::columns($side, 1)], elements: &[Digit::rows($side, 1)] },
            sums: Held { lanes: &[], registers: &[Digit::rows($side, 1)], elements: &[Digit::columns($side, 1)] },
            shared: Shared::Columns,
        }
    };
}

/// Of halves, 16 by 16, as NVIDIA's, AMD's and Intel's GPUs have them.
pub const COOPERATIVE_16: Fragment = cooperative!("coop_mat16x16<f16>", 16);
/// Of halves, 8 by 8, as Apple's have them.
pub const COOPERATIVE_8: Fragment = cooperative!("coop_mat8x8<f16>", 8);

/// Every product of tiles that are loaded and written as a whole: a core's, or a subgroup's.
pub const TILES: &[Fragment] = &[AMX_BF16, COOPERATIVE_16, COOPERATIVE_8];

/// What tensor cores of a version of NVIDIA's architecture have, at the rates of its data-centre parts: with no sparsity and sums in f32. An H200's 989 tera-operations of
/// halves are those of `wgmma`; `mma.sync` reaches 62 of 100 of them (Luo et al., "Benchmarking and dissecting the NVIDIA Hopper GPU architecture via
/// microbenchmarking", 2024).
pub fn tensor_cores(sm: u32) -> &'static [Fragment] {
    match sm {
        ..75 => &[],
        75..80 => TURING,
        80 => AMPERE,
        // Of smaller chips those sold as GeForce are counted with.
        86..90 | 120.. => GEFORCE,
        90 => HOPPER,
        _ => LATER,
    }
}

/// sm_75 (T4 data sheet: 65 tera-operations of halves by 40 units at 1.59 GHz).
pub const TURING: &[Fragment] = &[MMA_F16_8.at(1024.0)];
/// sm_80 (A100 data sheet: 312 tera-operations of halves, 624 of bytes, by 108 units at 1.41 GHz).
pub const AMPERE: &[Fragment] = &[MMA_I8.at(4096.0), MMA_I8_16.at(4096.0), MMA_F16.at(2048.0), MMA_BF16.at(2048.0)];
/// sm_86 and sm_89 as GeForce (Ada GPU architecture, appendix A: an RTX 4090 does 165 tera-operations of halves with sums in f32, 661 of bytes, by 128 units at 2.52 GHz).
pub const GEFORCE: &[Fragment] = &[MMA_I8.at(2048.0), MMA_I8_16.at(2048.0), MMA_F16.at(512.0), MMA_BF16.at(512.0)];
/// sm_89 in data centres (L4 data sheet: 121 tera-operations of halves, 242 of bytes, by 58 units at 2.04 GHz).
pub const ADA: &[Fragment] = &[MMA_I8.at(2048.0), MMA_I8_16.at(2048.0), MMA_F16.at(1024.0), MMA_BF16.at(1024.0)];
/// sm_90.
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

/// What a subgroup's cooperative matrices of 16 by 16 are counted with, f32 operations of the same threads being 1: a guess between [`GEFORCE`], whose `mma.sync` adds up halves in f32 twice as fast
/// as threads do f32, and [`HOPPER`], ten times. No interface tells; of other vendors' nothing was measured.
pub const OF_SUBGROUPS_16: &[Fragment] = &[COOPERATIVE_16.at(4.0)];
/// The same of 8 by 8: Apple's GPUs before the M5 add them up with the units that do f32.
pub const OF_SUBGROUPS_8: &[Fragment] = &[COOPERATIVE_8.at(1.0)];

/// Data centres after sm_90: `mma.sync` alone, as `wgmma` is sm_90's; its rates are taken for theirs.
pub const LATER: &[Fragment] = &[MMA_I8.at(5120.0), MMA_I8_16.at(5120.0), MMA_F16.at(2560.0), MMA_BF16.at(2560.0)];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Each element of an operand is held once, and none outside.
    fn covers(held: &Held, rows: i64, columns: i64) -> bool {
        let mut found = BTreeSet::new();
        // Lanes of a digit that moves nowhere hold the same.
        let copies: i64 = held.lanes.iter().filter(|d| d.row == 0 && d.column == 0).map(|d| d.count).product();
        for lane in 0..held.lanes() / copies {
            for register in 0..held.registers() {
                for element in 0..held.elements() {
                    let [row, column] = held.at(lane, register, element);
                    if !(0..rows).contains(&row) || !(0..columns).contains(&column) || !found.insert((row, column)) {
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
                assert_eq!(f.place_of_row(row, term), WGMMA_64.place(term, row), "{}: {row}, {term}", f.name);
            }
        }
    }

    #[test]
    fn every_element_of_a_fragment_is_held_once() {
        for f in WARPS.iter().chain(TILES) {
            assert!(covers(&f.first, f.rows, f.terms), "{}: the first operand", f.name);
            assert!(covers(&f.second, f.terms, f.columns), "{}: the second operand", f.name);
            assert!(covers(&f.sums, f.rows, f.columns), "{}: the sums", f.name);
            // Lowering takes an operand's lane for the same digits as the sums'.
            let counts = |held: &Held| held.lanes.iter().map(|d| d.count).collect::<Vec<_>>();
            assert!(counts(&f.first) == counts(&f.sums) && counts(&f.second) == counts(&f.sums), "{}", f.name);
        }
    }

    /// The figures of PTX ISA's `mma.m16n8k16`: lane 4g + t.
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
        assert_eq!(WGMMA_64.sums.at(64 + lane, 4 + 3, 0), [32 + g + 8, 8 + 2 * t + 1]);
        // Word 7 of row 2 of the second tile of AMX: terms 4 and 5 of column 7.
        assert_eq!(AMX_BF16.second.at(0, 2, 2 * 7 + 1), [5, 7]);
    }

    #[test]
    fn rows_are_told_apart_by_type_and_words() {
        for f in WARPS.iter().filter(|f| f.shared == Shared::Columns) {
            assert_eq!(Fragment::of_words(f.operand, f.words()).map(|f| f.name), Some(f.name));
        }
        for f in TILES {
            assert_eq!(Fragment::of_tiles(f.tile(), f.sums()).map(|f| f.name), Some(f.name));
        }
        assert_eq!(Fragment::of_words(Scalar::F16, 5), None);
        let stage = |columns, shared| Fragment::of_stage(Scalar::F16, columns, shared).map(|f| f.name);
        assert_eq!(stage(64, Shared::Columns), Some(WGMMA_64.name));
        assert_eq!(stage(256, Shared::Transposed), Some("wgmma.m64n256k16.f16.transposed"));
        assert_eq!(stage(48, Shared::Columns), None);
    }

    #[test]
    fn each_element_that_warps_share_has_a_place() {
        for f in WARPS.iter().filter(|f| f.is_of_group()) {
            let all = (0..f.terms).flat_map(|term| (0..f.columns).map(move |column| f.place(term, column)));
            let distinct: BTreeSet<[i64; 2]> = all.collect();
            assert_eq!(distinct.len() as i64, f.terms * f.columns, "{}", f.name);
            assert!(distinct.iter().all(|p| p[0] < f.shared_units()), "{}", f.name);
            // Eight terms, or columns, of a unit are neighbours.
            let [along, other] = match f.shared {
                Shared::Transposed => [f.place(3, 8 + 5), f.place(3, 8)],
                Shared::Columns => [f.place(8 + 5, 3), f.place(8, 3)],
            };
            assert_eq!([along[0] - other[0], along[1], other[1]], [0, 5, 0], "{}", f.name);
        }
    }

    /// The swizzle of 64 bytes as PTX ISA has it: bits 7 and 8 of an address change its bits 4 and 5.
    #[test]
    fn units_change_places_as_bits_of_their_address_do() {
        let of_stage = Fragment::of_stage(Scalar::F16, 64, Shared::Transposed).expect("a row");
        let all = (0..32).flat_map(|term| (0..64).map(move |column| [term, column]));
        for [term, column] in all.filter(|[term, _]| term % 8 == 0) {
            let plain = (column * OF_LINE + term / UNIT) * 16;
            assert_eq!(WGMMA_64.place(term, column)[0] * 16, plain ^ (plain >> 7 & 3) << 4);
            // Of the other order, the first 32 columns of all terms and then the rest.
            let (term, column) = (column % 32, 8 * (term / 8 + 4 * (column / 32)));
            let plain = ((column / 32 * 32 + term) * OF_LINE + column / UNIT % OF_LINE) * 16;
            assert_eq!(of_stage.place(term, column)[0] * 16, plain ^ (plain >> 7 & 3) << 4);
        }
        assert_eq!(SWIZZLE, 512);
    }

    #[test]
    fn all_that_a_machine_has_is_a_row_with_a_rate() {
        for of in [TURING, AMPERE, GEFORCE, ADA, HOPPER, &[AMX_BF16], OF_SUBGROUPS_16, OF_SUBGROUPS_8] {
            for f in of {
                assert!(f.rate > 0.0 && WARPS.iter().chain(TILES).any(|row| row.name == f.name), "{}", f.name);
            }
        }
        assert_eq!(tensor_cores(61), &[]);
        assert_eq!(tensor_cores(90), HOPPER);
        // Only sm_90 has products of several warps.
        let groups = |sm: u32| tensor_cores(sm).iter().any(Fragment::is_of_group);
        assert!((75..130).all(|sm| groups(sm) == (sm == 90)));
    }
}
