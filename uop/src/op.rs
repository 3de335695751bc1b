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
    Exp2 Elementwise Exact(1), "2^x, to three units in the last place; 0 perhaps where that is below the least normal number";
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
    SignedDot4 Elementwise Exact(3), "c + the sum of the products of a's four bytes with b's, all signed, b's from -127 as rows in eight bits have them, i32";
    Dot2 Elementwise Exact(3), "a word of two signed 16-bit halves: c's plus the products of two of a's bytes (from 0 to arg Int) each with b's (signed); both hold their sums";
    Half Elementwise Exact(1), "the half whose bits are the lower 16 of a word, f32";
    Halves Elementwise Exact(2), "c + the two signed 16-bit halves of a word, i32";
    Table4 Elementwise Exact(1), "each byte of a word (0 to 15) replaced by that entry of a table of 16 bytes; arg Ints";
    // Tensor level
    Reduce Tensor AtLeast(1), "tensor level: over arg axes, which vanish; kernel level: over the ranges after the value; arg Reduce(op, axes)";
    Gather Tensor Exact(2), "x[idx[i..], rest..]: rows of x by an integer tensor; an indirect base address, never a copy";
    Decode Tensor Exact(1), "the logical f32 values of a packed tensor";
    Assign Tensor AtLeast(2), "a new version of a state: rows [start, start+len) replaced, or, of a tensor of row numbers, each of these; sources state, value, start";
    ScatterAdd Tensor Exact(3), "x with rows added to it: x[r, rest..] + the sum of value[i, rest..] over all i whose index[i] is r; sources x, value, index; once decomposed it adds to the buffer of x, in any order with arg Int(0), row after row with Int(1)";
    Copy Tensor Exact(1), "the same elements in a buffer of their own, which what comes behind changes; arg Int tells the copies of one tensor apart";
    Attention Tensor AtLeast(4), "softmax(scale q.k + causal mask) v, online over the cache; sources q, k, v, first position, length, then perhaps window and sinks; arg Float(scale) or Capped(scale, cap)";
    PagedAttention Tensor AtLeast(6), "Attention whose queries have a position and a sequence each, whose positions lie in pages; sources q, k, v, positions, length, table, then perhaps window and sinks; arg Float(scale) or Capped(scale, cap)";
    Scan Tensor AtLeast(5), "a recurrence over tokens, S = exp(gate) S + u k: a matrix S of values by keys a head, u = value, or rate (value - exp(gate) S k) where rates are; sources S before, queries, keys, values, gates[, rates]; arg Int: 0 for S q after each token, 1 for S after the last";
    Call Tensor AtLeast(1), "tensor level: its first source, which a kernel of the user's own computes in as many workgroups as the second says, from the others, tensors and variables; kernel level: stands for what it stores, sources: an element of each buffer that it reads or what its function gives for one, variables, the number of workgroups; arg Custom";
    // Kernel level
    Range Kernel AtLeast(1), "an index from 0 to its bound, the source; arg Range(id, kind)";
    Load Kernel Exact(2), "buffer at an offset: elements, or bytes of a packed buffer";
    Index Kernel AtLeast(1), "element of a tensor-level node at the indices after it; a placeholder while kernels are cut";
    Local Kernel Exact(1), "a workgroup's own buffer of that many elements; arg Int(id)";
    Rescaled Kernel Exact(2), "a sum over a loop that nests share, whose terms are multiples of 2^-m, and m, the maximum over the same loop: the sum; while nests are lowered, what it is multiplied by in each iteration";
    Store Kernel AtLeast(3), "buffer, offset, value, then the ranges it closes; with arg Reduce(add) adds to what is there: ranges of kind Reduce, if it closes one, are run in order, and others in any";
    Body Kernel AtLeast(1), "nests in order, run for one interval of the launch";
    Kernel Kernel AtLeast(1), "bodies side by side in one launch";
    // Linear level
    Lanes Linear Exact(0), "0, 1, 2, ... across the lanes";
    Pack Linear AtLeast(1), "a vector of its sources, one a lane";
    Splat Linear Exact(1), "one value in every lane";
    Fold Linear AtLeast(1), "the lanes of a vector, or threads of that range, reduced to one, in a fixed tree; arg Reduce";
    Mma Linear AtLeast(3), "a warp's product of bytes, the fragment of so many words: of its rows (bytes from 0 to arg Int, signed without) and of its columns (signed); a lane's sums";
    MmaHalf Linear AtLeast(4), "a warp's product of halves, the row arg Int of the table of fragments: words of its rows and of its columns, added to the last source; a lane's sums";
    PairBf16 Linear Exact(2), "two f32 a lane, each rounded to bf16 (nearest even), as the halves of a word, the first the low one";
    MmaShared Linear AtLeast(4), "the same of four warps, the columns in memory of the workgroup: words of its rows, or a buffer that they stand in and an index of their first unit there; the same of the columns; and the sum";
    ScaledPair Linear AtLeast(2), "two bytes of a word, as whole numbers plus a zero, times a factor, plus a term if there is a third source: each rounded to f16, or to bf16 if so arg Ints([byte, byte, zero, is bf16]), after the factor and the term are: the halves of a word";
    TileLoad Linear Exact(2), "a tile of a fragment's operands, from an offset of a buffer of them on; arg Ints([register of a core, or number of a subgroup's operand, elements between rows])";
    TileRows Linear Exact(16), "a tile of vectors of 16 words; arg Ints([register])";
    TileMma Linear Exact(3), "a product of tiles, the fragment whose sums have this type, the second's rows being groups of terms, added to the last source; arg Ints([register]) of a core's";
    Part Linear Exact(2), "one lane of a vector: the vector, the number";
    Acc Linear Exact(2), "an accumulator: its first value and the reduction it is for";
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
