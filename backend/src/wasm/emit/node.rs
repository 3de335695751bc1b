//! Values of nodes: sources, vectors, and elementwise operations by unit or by lane.

use super::locals::{LANES, Local, LocalKind};
use super::writer::FunctionWriter;
use crate::names::unprintable;
use gristmill_uop::{Arg, Id, Op, ReduceOp, Scalar};
use wasm_encoder::Instruction as I;

impl FunctionWriter<'_> {
    /// Computes a node; returns its units, which are locals of others or temporaries.
    pub fn node(&mut self, id: Id) -> Vec<Local> {
        let n = &self.g[id];
        match n.op {
            Op::Const => self.constant(id),
            Op::Lanes => self.iota(id),
            Op::Splat => self.splat(id),
            Op::Pack => {
                let lanes: Vec<Local> = n.src.iter().map(|&s| self.unit(s, 0)).collect();
                self.assembled(id, &lanes)
            }
            Op::Part => match self.g.int_value(n.src[1]) {
                Some(part) => vec![self.lane(n.src[0], part as usize)],
                None => unprintable(self.g, id),
            },
            Op::Load => self.load(id),
            Op::Fold => vec![self.fold(id)],
            Op::Table => self.table(id),
            Op::Bitcast if self.regroups(id) => self.regrouped(id),
            Op::Range | Op::Var | Op::Acc | Op::Reduce | Op::Param | Op::Local => {
                unprintable(self.g, id)
            }
            _ => self.elementwise(id),
        }
    }
    fn constant(&mut self, id: Id) -> Vec<Local> {
        let form = self.form(id);
        self.push_constant(id, form.kind);
        let one = self.b.keep(form.kind);
        vec![one; form.units]
    }
    fn iota(&mut self, id: Id) -> Vec<Local> {
        let scalar = self.g.scalar(id);
        let number = |i: usize| match scalar {
            Scalar::F32 => (i as f32).to_bits(),
            _ => i as u32,
        };
        let form = self.form(id);
        if form.kind != LocalKind::V128 {
            unprintable(self.g, id);
        }
        let group = |unit: usize| [0, 1, 2, 3].map(|i| number(LANES * unit + i));
        (0..form.units)
            .map(|unit| self.b.lanes(group(unit)))
            .collect()
    }
    fn splat(&mut self, id: Id) -> Vec<Local> {
        let (form, scalar) = (self.form(id), self.g.scalar(id));
        let source = self.g[id].src[0];
        if form.kind != LocalKind::V128 {
            let one = self.scalar_as(source, form.kind);
            return vec![one; form.units];
        }
        if self.splatted.contains(&source) {
            self.load_splat(source);
        } else if self.g[source].op == Op::Const {
            self.push_constant(source, LocalKind::V128);
        } else {
            let one = self.scalar_as(source, Self::narrow_kind(scalar));
            self.b.get(one);
            self.b.op(match scalar {
                Scalar::F32 => I::F32x4Splat,
                _ => I::I32x4Splat,
            });
            if scalar == Scalar::Bool {
                self.b.op(I::I32x4Neg);
            }
        }
        let one = self.b.keep(LocalKind::V128);
        vec![one; form.units]
    }
    /// LocalKind of a lane of a unit of 128 bits.
    fn narrow_kind(scalar: Scalar) -> LocalKind {
        match scalar {
            Scalar::F32 => LocalKind::F32,
            _ => LocalKind::I32,
        }
    }
    /// Computes each unit from the units of the sources, or each lane from their lanes.
    fn elementwise(&mut self, id: Id) -> Vec<Local> {
        let n = &self.g[id];
        let form = self.form(id);
        let vectors = form.kind == LocalKind::V128
            && n.src.iter().all(|&s| self.form(s).kind == LocalKind::V128)
            && self.has_vector_form(id);
        if vectors {
            return (0..form.units)
                .map(|unit| {
                    let s: Vec<Local> = n.src.iter().map(|&s| self.unit(s, unit)).collect();
                    self.vector(id, &s)
                })
                .collect();
        }
        let lanes: Vec<Local> = (0..n.dtype.lanes as usize)
            .map(|lane| {
                let s: Vec<Local> = n.src.iter().map(|&s| self.lane(s, lane)).collect();
                self.scalar(id, &s)
            })
            .collect();
        self.assembled(id, &lanes)
    }
    /// Returns whether a bit cast changes the number of lanes.
    fn regroups(&self, id: Id) -> bool {
        let n = &self.g[id];
        n.dtype.lanes != self.g[n.src[0]].dtype.lanes
    }
    /// Reinterprets a vector's bytes as more or fewer lanes.
    fn regrouped(&mut self, id: Id) -> Vec<Local> {
        let n = &self.g[id];
        let source = n.src[0];
        let (from, to) = (self.g[source].dtype, n.dtype);
        let (small, large) = (from.scalar.bytes(), to.scalar.bytes());
        let lanes: Vec<Local> = (0..to.lanes as usize)
            .map(|lane| {
                if small < large {
                    let parts = large / small;
                    let parts: Vec<Local> = (0..parts)
                        .map(|part| self.lane(source, lane * parts + part))
                        .collect();
                    let word = self.joined(&parts, small);
                    self.reinterpreted(word, to.scalar)
                } else {
                    let parts = small / large;
                    let whole = self.lane(source, lane / parts);
                    let whole = self.word(whole);
                    let shift = 8 * large * (lane % parts);
                    let by = self.b.nullary(LocalKind::I32, I::I32Const(shift as i32));
                    let part = self.b.binary(LocalKind::I32, I::I32ShrU, whole, by);
                    self.normal(part, to.scalar)
                }
            })
            .collect();
        self.assembled(id, &lanes)
    }
    /// Joins parts of that many bytes to a word, the first lowest.
    fn joined(&mut self, parts: &[Local], bytes: usize) -> Local {
        let mask = if bytes == 1 { 255 } else { 0xffff };
        let mut word = self.and(parts[0], mask);
        for (i, &part) in parts.iter().enumerate().skip(1) {
            let part = self.and(part, mask);
            let by = self
                .b
                .nullary(LocalKind::I32, I::I32Const((8 * bytes * i) as i32));
            let part = self.b.binary(LocalKind::I32, I::I32Shl, part, by);
            word = self.b.binary(LocalKind::I32, I::I32Or, word, part);
        }
        word
    }
    /// Reduces the lanes of a vector: halves of the units, then pairs of a unit's lanes.
    fn fold(&mut self, id: Id) -> Local {
        let n = &self.g[id];
        let source = n.src[0];
        let Arg::Reduce(how, _) = n.arg else {
            unprintable(self.g, id)
        };
        let from = self.g.scalar(source);
        let form = self.form(source);
        if form.kind != LocalKind::V128 {
            let lanes = (0..form.units).map(|i| self.unit(source, i)).collect();
            return self.fold_scalars(how, from, lanes);
        }
        let mut units: Vec<Local> = (0..form.units).map(|i| self.unit(source, i)).collect();
        let wide = if from.is_half() { Scalar::F32 } else { from };
        if from.is_half() {
            units = units.iter().map(|&u| self.widen_half(u, from)).collect();
        }
        while units.len() > 1 {
            let (low, high) = units.split_at(units.len() / 2);
            let pairs: Vec<_> = low.iter().copied().zip(high.iter().copied()).collect();
            units = pairs
                .into_iter()
                .map(|(a, b)| self.combine_vectors(how, wide, a, b))
                .collect();
        }
        let lanes = (0..LANES)
            .map(|i| self.extract(units[0], wide, i))
            .collect();
        let sum = self.fold_scalars(how, wide, lanes);
        if from.is_half() {
            return self.cast_scalar(wide, from, sum, LocalKind::I32);
        }
        sum
    }
    fn fold_scalars(&mut self, how: ReduceOp, of: Scalar, mut lanes: Vec<Local>) -> Local {
        while lanes.len() > 1 {
            let (low, high) = lanes.split_at(lanes.len() / 2);
            let pairs: Vec<_> = low.iter().copied().zip(high.iter().copied()).collect();
            lanes = pairs
                .into_iter()
                .map(|(a, b)| {
                    let sum = self.arithmetic(how.combine(), of, &[a, b]);
                    self.normal(sum, of)
                })
                .collect();
        }
        lanes[0]
    }
    fn combine_vectors(&mut self, how: ReduceOp, of: Scalar, a: Local, b: Local) -> Local {
        let sum = self.vector_arithmetic(how.combine(), of, &[a, b]);
        self.normal_vector(sum, of)
    }
    /// Looks entries of a constant table up. The table is in memory, but for one of 16 entries
    /// that the lanes of a vector look up.
    fn table(&mut self, id: Id) -> Vec<Local> {
        let n = &self.g[id];
        let Arg::Ints(entries) = &n.arg else {
            unprintable(self.g, id)
        };
        let (scalar, index) = (n.dtype.scalar, n.src[0]);
        let bits = |&v: &i32| match scalar {
            Scalar::F32 => (v as f32).to_bits(),
            _ => v as u32,
        };
        let words: Vec<u32> = entries.iter().map(bits).collect();
        let in_registers = words.len() <= 16
            && self.form(id).kind == LocalKind::V128
            && self.form(index).kind == LocalKind::V128;
        if in_registers {
            return (0..self.form(id).units)
                .map(|unit| {
                    let index = self.unit(index, unit);
                    self.look_up(&words, index)
                })
                .collect();
        }
        let address = self.tables.place(&words);
        let lanes: Vec<Local> = (0..n.dtype.lanes as usize)
            .map(|lane| {
                let index = self.lane(index, lane);
                let index = self.widened(index, LocalKind::I32);
                let index = match words.len() {
                    16 => self.and(index, 15),
                    _ => index,
                };
                self.entry(address, index, scalar)
            })
            .collect();
        self.assembled(id, &lanes)
    }
}
