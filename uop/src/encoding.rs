//! Quantisation formats: plain data and one expression.
//!
//! An [`Encoding`] describes one block: the number of elements, the number of bytes, and the value
//! of element `k` as an expression over those bytes, written with [`Block`] and [`Expr`]. Nothing
//! else about a format is written by hand: the exact dequantisation, the integer dot product, the
//! packed layout and the vector code of every device are derived from it.
//!
//! ```
//! use gristmill_uop::encoding::Encoding;
//! /// 32 four-bit numbers around 8 with one f16 scale; low nibbles first.
//! static Q4: Encoding = Encoding {
//!     name: "example",
//!     elements: 32,
//!     bytes: 18,
//!     value: |b| {
//!         let q = b.u8(b.k() % 16 + 2) >> (b.k() / 16 * 4) & 15;
//!         (q - 8) * b.f16(0)
//!     },
//! };
//! ```

use crate::dtype::Scalar;
use crate::id::Id;
use crate::op::Op;
use std::rc::Rc;

/// A quantisation format. The crate `encodings` contains the table of formats; tests
/// may declare their own.
pub struct Encoding {
    /// Unique lower-case name.
    pub name: &'static str,
    /// Number of elements per block.
    pub elements: usize,
    /// Size of a block, bytes.
    pub bytes: usize,
    /// Value of element `b.k()` of block `b`, an f32. The order of operations defines
    /// it bit for bit.
    pub value: for<'b> fn(&'b Block) -> Expr<'b>,
}

/// Reference to a format; formats are compared by name.
pub type EncodingRef = &'static Encoding;

impl Encoding {
    /// Size of a row of `n` elements, bytes; `None` unless `n` is a multiple of the block.
    pub fn row_bytes(&self, n: usize) -> Option<usize> {
        n.is_multiple_of(self.elements)
            .then(|| (n / self.elements).checked_mul(self.bytes))
            .flatten()
    }
}

/// Access to a block's bytes and to the element number, for the expression of an encoding.
pub struct Block {
    pub(crate) nodes: Rc<dyn Nodes>,
    pub(crate) buffer: Id,
    pub(crate) base: Id,
    pub(crate) k: Id,
}

/// Graph operations needed by encoding expressions; `decode.rs` implements them for graphs.
pub(crate) trait Nodes {
    fn scalar(&self, x: Id) -> Scalar;
    fn int(&self, value: i64) -> Id;
    fn constant(&self, scalar: Scalar, value: f64) -> Id;
    fn load(&self, buffer: Id, at: Id, stored: Scalar) -> Id;
    fn cast(&self, x: Id, to: Scalar) -> Id;
    fn bitcast(&self, x: Id, to: Scalar) -> Id;
    fn table(&self, x: Id, table: &[i32]) -> Id;
    fn binary(&self, op: Op, a: Id, b: Id) -> Id;
    fn select(&self, condition: Id, a: Id, b: Id) -> Id;
}

/// A term of an encoding expression.
///
/// Integers are i32, indices i64, floats f32; an integer combined with a float is converted to f32.
#[derive(Clone, Copy)]
pub struct Expr<'b> {
    block: &'b Block,
    pub(crate) id: Id,
}

impl Block {
    fn expr(&self, id: Id) -> Expr<'_> {
        Expr { block: self, id }
    }
    /// Index of the element, 0 to `elements`.
    pub fn k(&self) -> Expr<'_> {
        self.expr(self.k)
    }
    /// Builds an i32 constant.
    pub fn int(&self, v: i64) -> Expr<'_> {
        let id = self.nodes.int(v);
        self.expr(id)
    }
    fn field<'b>(&'b self, offset: impl Operand<'b>, stored: Scalar, read: Scalar) -> Expr<'b> {
        let offset = offset.on(self, Scalar::I64).id;
        let at = self.nodes.binary(Op::Add, self.base, offset);
        let raw = self.nodes.load(self.buffer, at, stored);
        self.expr(self.nodes.cast(raw, read))
    }
    /// Reads the unsigned byte at an offset.
    pub fn u8<'b>(&'b self, offset: impl Operand<'b>) -> Expr<'b> {
        self.field(offset, Scalar::U8, Scalar::I32)
    }
    /// Reads the signed byte at an offset.
    pub fn i8<'b>(&'b self, offset: impl Operand<'b>) -> Expr<'b> {
        self.field(offset, Scalar::I8, Scalar::I32)
    }
    /// Reads the little-endian unsigned 16-bit number at an offset.
    pub fn u16<'b>(&'b self, offset: impl Operand<'b>) -> Expr<'b> {
        self.field(offset, Scalar::U16, Scalar::I32)
    }
    /// Reads the little-endian 32 bits at an offset, as i32.
    pub fn u32<'b>(&'b self, offset: impl Operand<'b>) -> Expr<'b> {
        self.field(offset, Scalar::I32, Scalar::I32)
    }
    /// Reads the binary16 at an offset, as f32.
    pub fn f16<'b>(&'b self, offset: impl Operand<'b>) -> Expr<'b> {
        self.field(offset, Scalar::F16, Scalar::F32)
    }
    /// Reads the bfloat16 at an offset, as f32.
    pub fn bf16<'b>(&'b self, offset: impl Operand<'b>) -> Expr<'b> {
        self.field(offset, Scalar::BF16, Scalar::F32)
    }
    /// Reads the f32 at an offset.
    pub fn f32<'b>(&'b self, offset: impl Operand<'b>) -> Expr<'b> {
        self.field(offset, Scalar::F32, Scalar::F32)
    }
}

/// An operand of an [`Expr`]: another expression, an integer, or an f32.
pub trait Operand<'b> {
    /// Converts to an expression; an integer takes the type `like`.
    fn on(self, block: &'b Block, like: Scalar) -> Expr<'b>;
}

impl<'b> Operand<'b> for Expr<'b> {
    fn on(self, _: &'b Block, _: Scalar) -> Expr<'b> {
        self
    }
}

impl<'b> Operand<'b> for f32 {
    fn on(self, block: &'b Block, _: Scalar) -> Expr<'b> {
        block.expr(block.nodes.constant(Scalar::F32, self.into()))
    }
}

impl<'b> Operand<'b> for i64 {
    fn on(self, block: &'b Block, like: Scalar) -> Expr<'b> {
        let id = block.nodes.constant(like, self as f64);
        block.expr(id)
    }
}

impl<'b> Expr<'b> {
    fn scalar(self) -> Scalar {
        self.block.nodes.scalar(self.id)
    }
    fn cast(self, to: Scalar) -> Expr<'b> {
        let id = self.block.nodes.cast(self.id, to);
        Expr { id, ..self }
    }
    /// Converts to f32; integers are exact up to 2^24.
    pub fn as_f32(self) -> Expr<'b> {
        self.cast(Scalar::F32)
    }
    /// Converts to i32; an index is narrowed.
    pub fn as_i32(self) -> Expr<'b> {
        self.cast(Scalar::I32)
    }
    /// Reinterprets these 32 bits as an f32.
    pub fn bits_as_f32(self) -> Expr<'b> {
        let id = self.block.nodes.bitcast(self.id, Scalar::F32);
        Expr { id, ..self }
    }
    /// Reinterprets a number from 0 to 65535 as a binary16, then converts it to f32.
    pub fn bits_as_f16(self) -> Expr<'b> {
        let bits = self.cast(Scalar::U16);
        let half = self.block.nodes.bitcast(bits.id, Scalar::F16);
        Expr { id: half, ..self }.as_f32()
    }
    /// Looks up entry `self` of a table.
    pub fn of_table(self, table: &[i32]) -> Expr<'b> {
        let id = self.block.nodes.table(self.id, table);
        Expr { id, ..self }
    }
    /// Selects: `self < other ? a : b`.
    pub fn less_than(self, other: impl Operand<'b>, a: Expr<'b>, b: Expr<'b>) -> Expr<'b> {
        let other = other.on(self.block, self.scalar());
        let c = self.block.nodes.binary(Op::Lt, self.id, other.id);
        let id = self.block.nodes.select(c, a.id, b.id);
        Expr { id, ..self }
    }
    fn binary(self, op: Op, other: impl Operand<'b>) -> Expr<'b> {
        let (mut a, mut b) = (self, other.on(self.block, self.scalar()));
        if a.scalar() != b.scalar() {
            // An integer with a float is converted to f32; an index with a number of the block to
            // i32.
            let to = if a.scalar().is_float() || b.scalar().is_float() {
                Scalar::F32
            } else {
                Scalar::I32
            };
            (a, b) = (a.cast(to), b.cast(to));
        }
        let id = self.block.nodes.binary(op, a.id, b.id);
        Expr { id, ..self }
    }
}

macro_rules! operators { ($($trait:ident $method:ident $op:ident;)*) => { $(
    impl<'b, O: Operand<'b>> std::ops::$trait<O> for Expr<'b> {
        type Output = Expr<'b>;
        fn $method(self, other: O) -> Expr<'b> { self.binary(Op::$op, other) }
    }
)* } }
operators! { Add add Add; Sub sub Sub; Mul mul Mul; Div div IDiv; Rem rem Mod; BitAnd bitand And; BitOr bitor Or; BitXor bitxor Xor; Shl shl Shl; Shr shr Shr; }

impl PartialEq for Encoding {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
impl Eq for Encoding {}
impl std::hash::Hash for Encoding {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        self.name.hash(h)
    }
}
impl std::fmt::Debug for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
