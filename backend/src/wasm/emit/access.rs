//! Loads and stores.

use super::locals::{LANES, Local, LocalKind};
use super::writer::FunctionWriter;
use crate::names::unprintable;
use gristmill_compiler::lower::Addition;
use gristmill_uop::{Arg, Id, Op, Scalar};
use wasm_encoder::{Instruction as I, MemArg, MemArgTarget};

/// Largest constant offset of an access, bytes. An engine then needs no check of its own, as it
/// reserves as many bytes behind the memory.
const MOST_OFFSET: i64 = 1 << 30;

/// An access at a constant offset from the address on the stack, aligned to `1 << align` bytes.
pub(super) fn at(offset: u32, align: u32) -> MemArg {
    MemArg {
        offset: offset.into(),
        align,
        target: MemArgTarget::Memory(0),
        ordering: None,
    }
}

/// An address: the buffer's, an index in units of so many bytes, and a constant number of bytes.
#[derive(Clone, Copy)]
struct Address {
    base: Local,
    index: Option<Id>,
    unit: i64,
    offset: u32,
}

impl FunctionWriter<'_> {
    /// Splits an index into a part that is not negative and a constant.
    fn address(&self, buffer: Id, index: Id) -> Address {
        let unit = match self.g[buffer].arg {
            Arg::Packed(..) => 1,
            _ => self.g[buffer].dtype.scalar.bytes() as i64,
        };
        let base = *self
            .buffers
            .get(&buffer)
            .unwrap_or_else(|| unprintable(self.g, buffer));
        let constant = |id: Id| {
            let bytes = self.g.int_value(id)?.checked_mul(unit)?;
            (0..MOST_OFFSET).contains(&bytes).then_some(bytes as u32)
        };
        let whole = Address {
            base,
            index: Some(index),
            unit,
            offset: 0,
        };
        if let Some(offset) = constant(index) {
            return Address {
                index: None,
                offset,
                ..whole
            };
        }
        let n = &self.g[index];
        if n.op == Op::Add
            && let Some(offset) = constant(n.src[1])
            && self.g.bounds(n.src[0]).is_some_and(|b| b.0 >= 0)
        {
            return Address {
                index: Some(n.src[0]),
                offset,
                ..whole
            };
        }
        whole
    }
    fn push_address(&mut self, address: Address) {
        self.b.get(address.base);
        let Some(index) = address.index else { return };
        self.push_index(index);
        if address.unit > 1 {
            self.b.op(I::I32Const(address.unit.trailing_zeros() as i32));
            self.b.op(I::I32Shl);
        }
        self.b.op(I::I32Add);
    }
    /// Loads elements, or bytes of a packed buffer.
    pub fn load(&mut self, id: Id) -> Vec<Local> {
        let n = &self.g[id];
        let (d, form) = (n.dtype, self.form(id));
        let address = self.address(n.src[0], n.src[1]);
        let bytes = d.scalar.bytes();
        let lanes = if form.kind == LocalKind::V128 {
            LANES
        } else {
            1
        };
        (0..form.units)
            .map(|unit| {
                let offset = address.offset + (unit * lanes * bytes) as u32;
                self.load_unit(address, offset, d.scalar, form.kind)
            })
            .collect()
    }
    /// Pushes a vector with a word of memory in all lanes.
    pub fn load_splat(&mut self, load: Id) {
        let address = self.address(self.g[load].src[0], self.g[load].src[1]);
        self.push_address(address);
        self.b.op(I::V128Load32Splat(at(address.offset, 0)));
    }
    fn load_unit(
        &mut self,
        address: Address,
        offset: u32,
        scalar: Scalar,
        kind: LocalKind,
    ) -> Local {
        if kind == LocalKind::V128 && scalar == Scalar::I64 {
            return self.load_longs(address, offset);
        }
        self.push_address(address);
        match kind {
            LocalKind::V128 => self.load_vector(scalar, offset),
            kind => self.load_scalar(scalar, kind, offset),
        }
    }
    /// Loads four 64-bit integers that fit 32 bits.
    fn load_longs(&mut self, address: Address, offset: u32) -> Local {
        let lanes = [0, 1, 2, 3].map(|lane| {
            self.push_address(address);
            self.load_scalar(Scalar::I64, LocalKind::I32, offset + 8 * lane)
        });
        self.assemble(Scalar::I32, &lanes)
    }
    fn load_scalar(&mut self, scalar: Scalar, kind: LocalKind, offset: u32) -> Local {
        let memory = at(offset, 0);
        self.b.op(match (scalar, kind) {
            (Scalar::F32, _) => I::F32Load(memory),
            (Scalar::F64, _) => I::F64Load(memory),
            (Scalar::I64, LocalKind::I64) => I::I64Load(memory),
            (Scalar::I8, _) => I::I32Load8S(memory),
            (Scalar::I16, _) => I::I32Load16S(memory),
            (Scalar::U8 | Scalar::Bool, _) => I::I32Load8U(memory),
            (Scalar::U16 | Scalar::F16 | Scalar::BF16, _) => I::I32Load16U(memory),
            _ => I::I32Load(memory),
        });
        self.b.keep(kind)
    }
    fn load_vector(&mut self, scalar: Scalar, offset: u32) -> Local {
        let memory = at(offset, 0);
        match scalar {
            Scalar::I8 | Scalar::U8 | Scalar::Bool => {
                self.b.op(I::V128Load32Zero(memory));
                let signed = scalar == Scalar::I8;
                let (half, word) = match signed {
                    true => (I::I16x8ExtendLowI8x16S, I::I32x4ExtendLowI16x8S),
                    false => (I::I16x8ExtendLowI8x16U, I::I32x4ExtendLowI16x8U),
                };
                self.b.op(half);
                self.b.op(word);
                if scalar == Scalar::Bool {
                    self.b.op(I::I32x4Neg);
                }
            }
            Scalar::I16 => self.b.op(I::V128Load16x4S(memory)),
            Scalar::U16 | Scalar::F16 | Scalar::BF16 => self.b.op(I::V128Load16x4U(memory)),
            _ => self.b.op(I::V128Load(memory)),
        }
        self.b.keep(LocalKind::V128)
    }
    /// Writes a value at an index of a buffer.
    pub fn write(&mut self, buffer: Id, index: Id, value: Id) {
        let (scalar, form) = (self.g.scalar(value), self.form(value));
        let address = self.address(buffer, index);
        let lanes = if form.kind == LocalKind::V128 {
            LANES
        } else {
            1
        };
        for unit in 0..form.units {
            let source = self.unit(value, unit);
            let offset = address.offset + (unit * lanes * scalar.bytes()) as u32;
            self.store(address, offset, scalar, source);
        }
    }
    fn store(&mut self, address: Address, offset: u32, scalar: Scalar, source: Local) {
        if source.kind == LocalKind::V128 && scalar == Scalar::I64 {
            for lane in 0..LANES {
                let one = self.extract(source, scalar, lane);
                self.store(address, offset + 8 * lane as u32, scalar, one);
            }
            return;
        }
        self.push_address(address);
        let memory = at(offset, 0);
        if source.kind == LocalKind::V128 {
            return self.store_vector(memory, scalar, source);
        }
        self.b.get(source);
        if scalar == Scalar::I64 && source.kind == LocalKind::I32 {
            self.b.op(I::I64ExtendI32S);
        }
        self.b.op(match scalar.bytes() {
            1 => I::I32Store8(memory),
            2 => I::I32Store16(memory),
            4 if scalar == Scalar::F32 => I::F32Store(memory),
            4 => I::I32Store(memory),
            _ if scalar == Scalar::F64 => I::F64Store(memory),
            _ => I::I64Store(memory),
        });
    }
    /// Stores four lanes at the address on the stack.
    fn store_vector(&mut self, memory: MemArg, scalar: Scalar, source: Local) {
        self.b.get(source);
        match scalar {
            Scalar::Bool => {
                self.b.op(I::I32x4Neg);
                self.narrow_bytes(I::I8x16NarrowI16x8U, source);
            }
            Scalar::U8 => self.narrow_bytes(I::I8x16NarrowI16x8U, source),
            Scalar::I8 => self.narrow_bytes(I::I8x16NarrowI16x8S, source),
            Scalar::U16 | Scalar::F16 | Scalar::BF16 => {
                self.b.get(source);
                self.b.op(I::I16x8NarrowI32x4U);
            }
            Scalar::I16 => {
                self.b.get(source);
                self.b.op(I::I16x8NarrowI32x4S);
            }
            _ => {}
        }
        self.b.op(match scalar.bytes() {
            1 => I::V128Store32Lane {
                memarg: memory,
                lane: 0,
            },
            2 => I::V128Store64Lane {
                memarg: memory,
                lane: 0,
            },
            _ => I::V128Store(memory),
        });
    }
    /// Narrows the vector on the stack to bytes in its lowest 32 bits.
    fn narrow_bytes(&mut self, last: I<'static>, other: Local) {
        self.b.get(other);
        self.b.op(I::I16x8NarrowI32x4S);
        let halves = self.b.keep(LocalKind::V128);
        self.b.get(halves);
        self.b.get(halves);
        self.b.op(last);
    }
    /// Adds a value to elements of a buffer.
    pub fn add(&mut self, addition: &Addition) {
        let &[value] = &addition.values[..] else {
            unreachable!("a vector is added as one value: {addition:?}")
        };
        let (scalar, form) = (self.g.scalar(value), self.form(value));
        let address = self.address(addition.buffer, addition.at);
        let units: Vec<Local> = (0..form.units).map(|unit| self.unit(value, unit)).collect();
        if let Some(when) = addition.when {
            let when = self.unit(when, 0);
            self.b.get(when);
            self.b.op(I::If(wasm_encoder::BlockType::Empty));
        }
        let lanes = if form.kind == LocalKind::V128 {
            LANES
        } else {
            1
        };
        for (unit, value) in units.into_iter().enumerate() {
            let offset = address.offset + (unit * lanes * scalar.bytes()) as u32;
            let old = self.load_unit(address, offset, scalar, form.kind);
            let sum = match form.kind {
                LocalKind::V128 => self.sum_of_vectors(scalar, old, value),
                _ => self.sum_of_scalars(scalar, old, value),
            };
            self.store(address, offset, scalar, sum);
        }
        if addition.when.is_some() {
            self.b.op(I::End);
        }
    }
    fn sum_of_vectors(&mut self, scalar: Scalar, a: Local, b: Local) -> Local {
        if scalar.is_half() {
            let (a, b) = (self.widen_half(a, scalar), self.widen_half(b, scalar));
            let sum = self.b.v2(I::F32x4Add, a, b);
            return self.rounded_half(sum, scalar);
        }
        let sum = self.vector_arithmetic(Op::Add, scalar, &[a, b]);
        self.normal_vector(sum, scalar)
    }
    fn sum_of_scalars(&mut self, scalar: Scalar, a: Local, b: Local) -> Local {
        if scalar.is_half() {
            let a = self.cast_scalar(scalar, Scalar::F32, a, LocalKind::F32);
            let b = self.cast_scalar(scalar, Scalar::F32, b, LocalKind::F32);
            let sum = self.arithmetic(Op::Add, Scalar::F32, &[a, b]);
            return self.cast_scalar(Scalar::F32, scalar, sum, LocalKind::I32);
        }
        let sum = self.arithmetic(Op::Add, scalar, &[a, b]);
        self.normal(sum, scalar)
    }
}
