//! State of a function that is being written, and operands of its nodes.

use super::super::engine::Features;
use super::locals::{
    FunctionBody, LANES, Local, LocalKind, ValueForm, constant, form, scalar_kind,
};
use super::math::Math;
use super::tables::Tables;
use crate::names::unprintable;
use gristmill_uop::{Graph, Id, Op, Scalar};
use half::{bf16, f16};
use rustc_hash::{FxHashMap, FxHashSet};
use wasm_encoder::{Ieee32, Ieee64, Instruction as I};

/// Writes the function of one kernel.
pub(super) struct FunctionWriter<'a> {
    pub g: &'a Graph,
    pub b: FunctionBody,
    pub features: Features,
    /// Constant tables in memory.
    pub tables: &'a Tables<'a>,
    /// Units of the nodes that have been defined; an accumulator's are its reduction's.
    values: FxHashMap<Id, Vec<Local>>,
    /// Addresses of the buffers.
    pub buffers: FxHashMap<Id, Local>,
    /// Loads of words that are splatted as they are loaded.
    pub splatted: FxHashSet<Id>,
}

impl<'a> FunctionWriter<'a> {
    pub fn new(
        g: &'a Graph,
        params: u32,
        features: Features,
        tables: &'a Tables<'a>,
    ) -> FunctionWriter<'a> {
        FunctionWriter {
            g,
            b: FunctionBody::new(params),
            features,
            tables,
            values: FxHashMap::default(),
            buffers: FxHashMap::default(),
            splatted: FxHashSet::default(),
        }
    }
    pub fn math(&mut self) -> Math<'_> {
        Math {
            b: &mut self.b,
            relaxed: self.features.relaxed,
        }
    }
    /// Returns how the values of a node are held.
    pub fn form(&self, id: Id) -> ValueForm {
        form(self.g, id)
    }
    /// Returns the node under which a value is known.
    fn key(&self, id: Id) -> Id {
        match self.g[id].op {
            Op::Acc => self.g[id].src[1],
            _ => id,
        }
    }
    /// Returns the locals of a node, which are new at its first definition.
    pub fn places(&mut self, id: Id) -> Vec<Local> {
        let (key, form) = (self.key(id), self.form(id));
        if let Some(known) = self.values.get(&key) {
            return known.clone();
        }
        let new: Vec<Local> = (0..form.units).map(|_| self.b.local(form.kind)).collect();
        self.values.insert(key, new.clone());
        new
    }
    /// Returns a unit of a source. A constant, and an index expression that no statement defines,
    /// is computed into a temporary.
    pub fn unit(&mut self, id: Id, unit: usize) -> Local {
        let key = self.key(id);
        if let Some(known) = self.values.get(&key) {
            return known[unit];
        }
        match self.g[id].op {
            Op::Const => {
                let kind = self.form(id).kind;
                self.push_constant(id, kind);
                self.b.keep(kind)
            }
            _ if self.g[id].dtype.lanes == 1 => self.node(id)[0],
            _ => unprintable(self.g, id),
        }
    }
    /// Pushes a constant as a scalar or as a vector of four lanes.
    pub fn push_constant(&mut self, id: Id, kind: LocalKind) {
        let (int, float) = (self.g.int_value(id), self.g.float_value(id));
        let scalar = self.g.scalar(id);
        let real = float.unwrap_or_else(|| int.unwrap_or_default() as f64);
        let bits = match (scalar, int) {
            (Scalar::F32, _) => (real as f32).to_bits(),
            (Scalar::F16, _) => u32::from(f16::from_f64(real).to_bits()),
            (Scalar::BF16, _) => u32::from(bf16::from_f64(real).to_bits()),
            (_, Some(v)) => v as u32,
            _ => unprintable(self.g, id),
        };
        let op = match kind {
            LocalKind::I32 => I::I32Const(bits as i32),
            LocalKind::I64 => I::I64Const(int.unwrap_or_else(|| unprintable(self.g, id))),
            LocalKind::F32 => I::F32Const(Ieee32::new(bits)),
            LocalKind::F64 => I::F64Const(Ieee64::new(real.to_bits())),
            LocalKind::V128 if scalar == Scalar::Bool => {
                I::V128Const(constant([0u32.wrapping_sub(bits & 1); 4]))
            }
            LocalKind::V128 => I::V128Const(constant([bits; 4])),
        };
        self.b.op(op);
    }
    /// Returns one lane of a source as a scalar of its type.
    pub fn lane(&mut self, id: Id, lane: usize) -> Local {
        let form = self.form(id);
        let lane = if self.g[id].dtype.lanes == 1 { 0 } else { lane };
        if form.kind != LocalKind::V128 {
            return self.unit(id, lane);
        }
        let vector = self.unit(id, lane / LANES);
        self.extract(vector, self.g.scalar(id), lane % LANES)
    }
    /// Extracts a lane of a unit of 128 bits.
    pub fn extract(&mut self, vector: Local, scalar: Scalar, lane: usize) -> Local {
        let lane = lane as u8;
        if scalar == Scalar::F32 {
            return self
                .b
                .unary(LocalKind::F32, I::F32x4ExtractLane(lane), vector);
        }
        let word = self
            .b
            .unary(LocalKind::I32, I::I32x4ExtractLane(lane), vector);
        match scalar {
            Scalar::Bool => self.and(word, 1),
            _ => word,
        }
    }
    /// Applies a mask to a word.
    pub fn and(&mut self, word: Local, mask: i32) -> Local {
        let mask = self.b.nullary(LocalKind::I32, I::I32Const(mask));
        self.b.binary(LocalKind::I32, I::I32And, word, mask)
    }
    /// Builds a unit of 128 bits of four scalars.
    pub fn assemble(&mut self, scalar: Scalar, lanes: &[Local]) -> Local {
        let (splat, replace): (I, fn(u8) -> I<'static>) = match scalar {
            Scalar::F32 => (I::F32x4Splat, I::F32x4ReplaceLane),
            _ => (I::I32x4Splat, I::I32x4ReplaceLane),
        };
        self.b.get(lanes[0]);
        self.b.op(splat);
        for (i, &lane) in lanes.iter().enumerate().skip(1) {
            self.b.get(lane);
            self.b.op(replace(i as u8));
        }
        if scalar == Scalar::Bool {
            self.b.op(I::I32x4Neg);
        }
        self.b.keep(LocalKind::V128)
    }
    /// Builds the units of a node of its lanes.
    pub fn assembled(&mut self, id: Id, lanes: &[Local]) -> Vec<Local> {
        let scalar = self.g.scalar(id);
        match self.form(id).kind {
            LocalKind::V128 => lanes
                .chunks(LANES)
                .map(|four| self.assemble(scalar, four))
                .collect(),
            _ => lanes.to_vec(),
        }
    }
    /// Returns a scalar source as an integer or a float of that kind.
    pub fn scalar_as(&mut self, id: Id, kind: LocalKind) -> Local {
        let value = self.unit(id, 0);
        self.widened(value, kind)
    }
    /// Widens or truncates an integer to that kind; other values are returned as they are.
    pub fn widened(&mut self, value: Local, kind: LocalKind) -> Local {
        match (value.kind, kind) {
            (LocalKind::I32, LocalKind::I64) => {
                self.b.unary(LocalKind::I64, I::I64ExtendI32S, value)
            }
            (LocalKind::I64, LocalKind::I32) => self.b.unary(LocalKind::I32, I::I32WrapI64, value),
            _ => value,
        }
    }
    /// Pushes a scalar index as an i32.
    pub fn push_index(&mut self, id: Id) {
        if self.g[id].op == Op::Const {
            return self.push_constant(id, LocalKind::I32);
        }
        let value = self.unit(id, 0);
        self.b.get(value);
        if value.kind == LocalKind::I64 {
            self.b.op(I::I32WrapI64);
        }
    }
    /// Computes a node and copies its units to its own locals.
    pub fn define(&mut self, id: Id) {
        let units = self.node(id);
        self.assign(id, &units);
    }
    /// Copies units to the locals of a node.
    pub fn assign(&mut self, id: Id, units: &[Local]) {
        let places = self.places(id);
        for (&unit, place) in units.iter().zip(places) {
            let unit = self.widened(unit, place.kind);
            self.b.get(unit);
            self.b.set(place);
        }
    }
    /// LocalKind of a scalar of that type where 64 bits are needed.
    pub fn wide_kind(scalar: Scalar) -> LocalKind {
        scalar_kind(scalar, false)
    }
}
