//! The op table. Each op is declared once with its name, arity, class and a line of documentation;
//! exhaustive matches, the reference page (`Op::TABLE`) and the specs are derived from it.

/// Class of an op. Passes and specs test the class instead of listing ops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A leaf: constant, variable or parameter.
    Source,
    /// Moves elements without computing.
    Movement,
    /// One output element per input element, same shape.
    Elementwise,
    /// A tensor-level op with its own semantics.
    Tensor,
    /// Exists from the kernel level on.
    Kernel,
    /// Exists only at the linear level.
    Linear,
}

impl Class {
    /// Name of the class, for display.
    pub fn name(self) -> &'static str {
        match self {
            Class::Source => "source",
            Class::Movement => "movement",
            Class::Elementwise => "elementwise",
            Class::Tensor => "tensor",
            Class::Kernel => "kernel",
            Class::Linear => "linear",
        }
    }
}

/// Number of sources that an op takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arity {
    /// Exactly this number of sources.
    Exact(u8),
    /// At least this number of sources.
    AtLeast(u8),
}

/// One row of the op table.
#[derive(Debug)]
pub struct OpInfo {
    /// Op that the row describes.
    pub op: Op,
    /// Name in the text form.
    pub name: &'static str,
    /// Number of sources it takes.
    pub arity: Arity,
    /// Class of the op.
    pub class: Class,
    /// One line of documentation.
    pub doc: &'static str,
}

macro_rules! ops { ($($id:ident $class:ident $arity:expr, $doc:literal;)*) => {
    /// Operation of a node.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
    #[repr(u8)]
    pub enum Op { $(#[doc = $doc] $id),* }

    impl Op {
        /// The op table, in the order of the enum.
        pub const TABLE: &[OpInfo] = &[
            $(OpInfo { op: Op::$id, name: stringify!($id), arity: $arity, class: Class::$class, doc: $doc }),*
        ];
    }
} }

use Arity::{AtLeast, Exact};
ops! {
    // Sources
    Const Source Exact(0), "a number; arg Int or Float";
    Var Source Exact(0), "a scalar known when a step runs; arg Var(name, min, max)";
    Param Source AtLeast(0), "slot of a function, with its dims as sources; arg Param(slot) or Packed(slot, encoding)";
    Iota Source AtLeast(1), "the index along one axis, dims as sources; arg Axes([axis])";
    // Movement: the source first, then dims
    Reshape Movement AtLeast(1), "same elements in row-major order, new dims";
    Permute Movement Exact(1), "axes in another order; arg Axes";
    Expand Movement AtLeast(1), "axes of length 1 repeated to the given dims";
    Shrink Movement AtLeast(1), "a window: per axis a begin and a length";
    Cat Movement AtLeast(1), "joined along one axis; arg Axes([axis])";
    // Elementwise
    Cast Elementwise Exact(1), "to another dtype; float to int truncates, to a narrower float rounds to nearest even";
    Bitcast Elementwise Exact(1), "same bits, other dtype of the same size";
    Neg Elementwise Exact(1), "-x (floats)";
    Exp Elementwise Exact(1), "e^x";
    Exp2 Elementwise Exact(1), "2^x, within 3 ulp; results below the smallest normal number may be flushed to 0";
    Log Elementwise Exact(1), "natural logarithm";
    Sqrt Elementwise Exact(1), "square root";
    Recip Elementwise Exact(1), "1/x";
    Round Elementwise Exact(1), "nearest integer, ties to even, as a float";
    Add Elementwise Exact(2), "a + b";
    Sub Elementwise Exact(2), "a - b (floats; integers use Add and Mul by -1)";
    Mul Elementwise Exact(2), "a * b";
    Div Elementwise Exact(2), "a / b (floats)";
    IDiv Elementwise Exact(2), "floor(a / b) of integers, b > 0";
    Mod Elementwise Exact(2), "a - b*floor(a / b), b > 0";
    Max Elementwise Exact(2), "the larger";
    Min Elementwise Exact(2), "the smaller";
    And Elementwise Exact(2), "bitwise and";
    Or Elementwise Exact(2), "bitwise or";
    Xor Elementwise Exact(2), "bitwise exclusive or";
    Shl Elementwise Exact(2), "a << b";
    Shr Elementwise Exact(2), "a >> b; the sign is kept";
    Lt Elementwise Exact(2), "a < b, as bool";
    Eq Elementwise Exact(2), "a == b, as bool";
    Where Elementwise Exact(3), "c ? a : b";
    Fma Elementwise Exact(3), "a * b + c, rounded once where the target can";
    Table Elementwise Exact(1), "entry of a constant table of i32; arg Ints";
    // Words: four bytes as one u32, first byte lowest
    Dot4 Elementwise Exact(3), "c + the sum of the products of a's four bytes (from 0 to arg Int) with b's (signed), i32";
    SignedDot4 Elementwise Exact(3), "c + the sum of the products of a's four signed bytes with b's, i32; b's bytes are at least -127 (int8 rows)";
    Dot2 Elementwise Exact(3), "two signed 16-bit sums in a word: c's, each plus two products of a's bytes (0 to arg Int) with b's (signed)";
    Half Elementwise Exact(1), "the f16 in the lower 16 bits of a word, as f32";
    Halves Elementwise Exact(2), "c + the sum of a word's two signed 16-bit halves, i32";
    Table4 Elementwise Exact(1), "each byte of a word (0 to 15) replaced by that entry of a table of 16 bytes; arg Ints";
    // Tensor level
    Reduce Tensor AtLeast(1), "tensor level: over the axes in arg, which are removed; kernel level: over the ranges that follow the value; arg Reduce(op, axes)";
    Gather Tensor Exact(2), "x[idx[i..], rest..]: rows of x by an integer tensor; an indirect base address, never a copy";
    Decode Tensor Exact(1), "the logical f32 values of a packed tensor";
    Assign Tensor AtLeast(2), "a new version of a state: rows start.. replaced by value, or the rows listed in start if it is a tensor; sources state, value, start";
    ScatterAdd Tensor Exact(3), "x with rows added to it: x[r, rest..] + the sum of value[i, rest..] over all i whose index[i] is r; sources x, value, index; once decomposed it adds to the buffer of x, in any order with arg Int(0), row after row with Int(1)";
    Copy Tensor Exact(1), "a copy of the elements in a separate buffer, which later ops may update in place; arg Int distinguishes several copies of one tensor";
    Attention Tensor AtLeast(4), "softmax(scale q.k + causal mask) v, online over the cache; sources q, k, v, first position, length, then perhaps window and sinks; arg Float(scale) or Capped(scale, cap)";
    PagedAttention Tensor AtLeast(6), "attention over a paged KV cache; each query has its own position and sequence; sources q, k, v, positions, length, block table[, window[, sinks]]; arg Float(scale) or Capped(scale, cap)";
    Scan Tensor AtLeast(5), "a recurrence over tokens, S = exp(gate) S + u k: a matrix S of values by keys a head, u = value, or rate (value - exp(gate) S k) where rates are; sources S before, queries, keys, values, gates[, rates]; arg Int: 0 for S q after each token, 1 for S after the last";
    Call Tensor AtLeast(1), "a user's custom kernel; tensor level: sources are the reference output, the number of workgroups, then tensors and variables; kernel level: the value that it stores, sources are an element of each input buffer or what its function computes for one, variables, the number of workgroups; arg Custom";
    // Kernel level
    Range Kernel AtLeast(1), "an index from 0 to its bound, the source; arg Range(id, kind)";
    Load Kernel Exact(2), "buffer at an offset: elements, or bytes of a packed buffer";
    Index Kernel AtLeast(1), "element of a tensor-level node at the indices after it; a placeholder while kernels are cut";
    Local Kernel Exact(1), "a buffer in workgroup memory (stage) with the given number of elements; arg Int(id)";
    Rescaled Kernel Exact(2), "online-softmax sum: a sum of terms scaled by 2^-m over a shared loop, and m, the running maximum; lowering rescales the accumulator in each iteration";
    Store Kernel AtLeast(3), "writes value at an offset of a buffer, over the ranges it closes; with arg Reduce(add) adds; ranges of kind Reduce run in order, others in any order";
    Body Kernel AtLeast(1), "nests in order, run for one interval of the launch";
    Kernel Kernel AtLeast(1), "bodies side by side in one launch";
    // Linear level
    Lanes Linear Exact(0), "0, 1, 2, ... across the lanes";
    Pack Linear AtLeast(1), "a vector of its sources, one a lane";
    Splat Linear Exact(1), "one value in every lane";
    Fold Linear AtLeast(1), "reduces the lanes of a vector, or the threads of a range, to one value in a fixed tree; arg Reduce";
    Mma Linear AtLeast(3), "int8 MMA of a warp: row fragment (bytes 0 to arg Int, or signed without arg), column fragment (signed); returns a lane's accumulators";
    MmaHalf Linear AtLeast(4), "f16 or bf16 MMA of a warp; arg Int is the index in the fragment table; sources: row words, column words, accumulator";
    PairBf16 Linear Exact(2), "two f32 rounded to bf16 (nearest even) and packed into a word, the first in the low half";
    MmaShared Linear AtLeast(4), "the same of four warps, the columns in memory of the workgroup: words of its rows, or a buffer that they stand in and an index of their first unit there; the same of the columns; and the sum";
    ScaledPair Linear AtLeast(2), "two bytes of a word, (byte + zero) * factor [+ term], factor, term and result rounded to f16 (or bf16), packed into a word; arg Ints([byte, byte, zero, is bf16])";
    TileLoad Linear Exact(2), "loads a tile of a fragment operand from a buffer at an offset; arg Ints([AMX register or subgroup operand, elements between rows])";
    TileRows Linear Exact(16), "a tile of vectors of 16 words; arg Ints([register])";
    TileMma Linear Exact(3), "multiplies two tiles and adds to the accumulator tile (last source); arg Ints([register]) on a CPU core";
    Part Linear Exact(2), "one lane of a vector: the vector, the number";
    Acc Linear Exact(2), "an accumulator: its initial value and its reduction";
}

impl Op {
    /// Returns this op's row of the table.
    pub fn info(self) -> &'static OpInfo {
        &Self::TABLE[self as usize]
    }
    /// Returns this op's class.
    pub fn class(self) -> Class {
        self.info().class
    }
    /// Name in the text form.
    pub fn name(self) -> &'static str {
        self.info().name
    }
    /// Looks up an op by name.
    pub fn by_name(name: &str) -> Option<Op> {
        Self::TABLE.iter().find(|r| r.name == name).map(|r| r.op)
    }
    /// Returns whether the op is elementwise.
    pub fn is_elementwise(self) -> bool {
        self.class() == Class::Elementwise
    }
    /// Returns whether half-precision operands must be widened for this op,
    /// with each result rounded.
    pub fn is_float_arithmetic(self) -> bool {
        use Op::{
            Add, Div, Eq, Exp, Exp2, Fma, Log, Lt, Max, Min, Mul, Neg, Recip, Round, Sqrt, Sub,
        };
        matches!(
            self,
            Add | Div
                | Eq
                | Exp
                | Exp2
                | Fma
                | Log
                | Lt
                | Max
                | Min
                | Mul
                | Neg
                | Recip
                | Round
                | Sqrt
                | Sub
        )
    }
    /// Returns whether the op makes a new version of its first source in the same buffer.
    pub fn is_version(self) -> bool {
        matches!(self, Op::Assign | Op::ScatterAdd)
    }
    /// Returns whether the op is a movement op.
    pub fn is_movement(self) -> bool {
        self.class() == Class::Movement
    }
}

/// Combining operation of a reduction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ReduceOp {
    /// Sum; starts at 0.
    Add,
    /// Maximum; starts at -infinity (or the smallest integer).
    Max,
}

impl ReduceOp {
    /// Name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Add => "add",
            ReduceOp::Max => "max",
        }
    }
    /// Returns the elementwise op that combines two partial results.
    pub fn combine(self) -> Op {
        match self {
            ReduceOp::Add => Op::Add,
            ReduceOp::Max => Op::Max,
        }
    }
}

/// Mapping of a range to hardware. Every legal choice gives the same result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum RangeKind {
    /// Workgroups of the launch.
    Global,
    /// A sequential loop without accumulation.
    Loop,
    /// Unrolled copies of the code, in separate registers.
    Upcast,
    /// Lanes of a vector, or threads of a workgroup on a GPU.
    Vector,
    /// A sequential loop that accumulates.
    Reduce,
    /// Unrolled copies that accumulate.
    Unroll,
    /// Lanes or threads that accumulate separately and are reduced at the end.
    VectorReduce,
    /// A sequential loop shared by the nests of a workgroup: in each iteration some nests fill
    /// stages and the last one accumulates from them.
    Fused,
    /// Rows, columns or terms of a tile distributed over the threads of a subgroup.
    Tile,
}

impl RangeKind {
    /// All kinds with their names in the text form.
    pub const ALL: &[(RangeKind, &str)] = &[
        (RangeKind::Global, "global"),
        (RangeKind::Loop, "loop"),
        (RangeKind::Upcast, "upcast"),
        (RangeKind::Vector, "vector"),
        (RangeKind::Reduce, "reduce"),
        (RangeKind::Unroll, "unroll"),
        (RangeKind::VectorReduce, "vector_reduce"),
        (RangeKind::Fused, "fused"),
        (RangeKind::Tile, "tile"),
    ];
    /// Name in the text form.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(k, _)| *k == self)
            .map_or("?", |(_, n)| n)
    }
}
