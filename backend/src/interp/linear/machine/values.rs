//! Values of defining statements: loads, MMA products, and operations of single threads.

use super::super::super::fault::Fault;
use super::super::memory::At;
use super::super::nodes;
use super::LinearMachine;
use gristmill_uop::fold::{self, Value};
use gristmill_uop::fragment::{self, Fragment, UNIT};
use gristmill_uop::{Arg, Id, Node, Op, Scalar};

impl LinearMachine<'_> {
    /// Loads the words of an operand tile, row by row.
    fn load_tile(&mut self, id: Id) -> Result<Vec<Value>, Fault> {
        let n = &self.g[id];
        let Arg::Ints(numbers) = &n.arg else {
            return Err(Fault::Graph("a tile without a stride".into()));
        };
        let (buffer, unit, stride) = (n.src[0], self.g.unit_bytes(n.src[0]), i64::from(numbers[1]));
        let of = Fragment::of_operands(n.dtype, self.g.scalar(buffer));
        let of =
            of.ok_or_else(|| Fault::Graph("a tile whose type is not an MMA operand".into()))?;
        let each = Scalar::U32.bytes() as i64 / unit;
        let words = of.terms / each;
        let mut out = Vec::with_capacity(self.threads * (of.rows * words) as usize);
        for thread in 0..self.threads {
            let first = self.index(n.src[1], thread);
            for i in 0..of.rows * words {
                let at = first + i / words * stride + each * (i % words);
                out.push(self.memory.load(
                    At {
                        buffer,
                        byte: at * unit,
                    },
                    Scalar::U32,
                    thread,
                )?);
            }
        }
        Ok(out)
    }
    /// Loads the lanes of all threads, thread by thread.
    pub(super) fn load(&mut self, id: Id) -> Result<Vec<Value>, Fault> {
        let n = &self.g[id];
        let (unit, scalar) = (self.g.unit_bytes(n.src[0]), n.dtype.scalar);
        let mut out = Vec::with_capacity(self.threads * n.dtype.lanes as usize);
        for thread in 0..self.threads {
            let at = self.index(n.src[1], thread) * unit;
            for lane in 0..n.dtype.lanes as i64 {
                let at = At {
                    buffer: n.src[0],
                    byte: at + lane * scalar.bytes() as i64,
                };
                out.push(self.memory.load(at, scalar, thread)?);
            }
        }
        Ok(out)
    }
    /// Computes the lanes of a node, thread by thread.
    pub(super) fn node(&mut self, id: Id) -> Result<Vec<Value>, Fault> {
        let g = self.g;
        let n = &g[id];
        if n.op == Op::Load {
            return self.load(id);
        }
        match n.op {
            Op::TileLoad => self.load_tile(id),
            Op::Fold if n.src.len() == 2 => {
                let own: Vec<Value> = (0..self.threads)
                    .map(|t| self.get(n.src[0], t)[0])
                    .collect();
                let lane = self.counted.iter().find(|l| l.range == n.src[1]);
                let lane = lane.ok_or_else(|| {
                    Fault::Graph("a Fold over a range that is not a thread range".into())
                })?;
                let lanes = g.int_value(g[lane.range].src[0]);
                let lanes = lanes
                    .ok_or_else(|| Fault::Graph("a thread range without a known size".into()))?;
                nodes::over_threads(n, &own, (lane.stride(), lanes))
            }
            Op::Mma | Op::MmaHalf => self.product(n),
            Op::MmaShared => self.product_of_group(n),
            op if op.is_elementwise() && !matches!(op, Op::Bitcast | Op::Table | Op::Table4) => {
                self.elementwise(id)
            }
            _ => {
                let types: Vec<Scalar> = n.src.iter().map(|&s| self.g.scalar(s)).collect();
                let mut out = Vec::with_capacity(self.threads * n.dtype.lanes as usize);
                for thread in 0..self.threads {
                    let src: Vec<&[Value]> = n.src.iter().map(|&s| self.get(s, thread)).collect();
                    out.extend(nodes::value(n, &src, &types)?);
                }
                Ok(out)
            }
        }
    }
    /// Computes an MMA for each warp.
    fn product(&self, n: &Node) -> Result<Vec<Value>, Fault> {
        let no_fragment = || Fault::Graph(format!("{:?} without an MMA fragment", n.op));
        let of = Fragment::of_product(n).ok_or_else(no_fragment)?;
        // Bytes of rows may be unsigned.
        let rows = if matches!(n.arg, Arg::Int(_)) && n.op == Op::Mma {
            Scalar::U8
        } else {
            of.operand
        };
        let mut out = Vec::with_capacity(self.threads * n.dtype.lanes as usize);
        for warp in (0..self.threads).step_by(of.sums.lanes() as usize) {
            let word = |lane: i64, i: i64| self.index(n.src[i as usize], warp + lane as usize);
            let second =
                |lane: i64, register: i64, _: i64| word(lane, of.first.registers() + register);
            let begin = |lane: i64, i: usize| match n.op {
                Op::Mma => Value::Int(0),
                _ => self.get(n.src[of.words()], warp + lane as usize)[i],
            };
            out.extend(nodes::product(
                of,
                [rows, of.operand],
                |lane, register, _| word(lane, register),
                second,
                begin,
            ));
        }
        Ok(out)
    }
    /// Computes a warp-group MMA, with columns in shared memory.
    fn product_of_group(&mut self, n: &Node) -> Result<Vec<Value>, Fault> {
        let of = Fragment::of_product(n).filter(|of| of.is_of_group());
        let of = of.ok_or_else(|| Fault::Graph(format!("{:?} without an MMA fragment", n.op)))?;
        let (count, element) = (n.src.len(), |[unit, at]: [i64; 2]| {
            (unit * UNIT + at) as usize
        });
        let in_memory = Fragment::has_rows_in_memory(n);
        let mut out = Vec::with_capacity(self.threads * n.dtype.lanes as usize);
        for group in (0..self.threads).step_by(of.sums.lanes() as usize) {
            let columns = self.halves(
                [n.src[count - 3], n.src[count - 2]],
                of.shared_units(),
                group,
            )?;
            let units = fragment::units(of.terms, of.rows);
            let rows = if in_memory {
                self.halves([n.src[0], n.src[1]], units, group)?
            } else {
                vec![]
            };
            let second = |lane: i64, register: i64, _: i64| {
                let [term, column] = of.second.at(lane, register, 0);
                let half = |term: i64| columns[element(of.place(term, column))];
                half(term) | half(term + 1) << 16
            };
            let first = |lane: i64, register: i64, _: i64| {
                if !in_memory {
                    return self.index(n.src[register as usize], group + lane as usize);
                }
                let [row, term] = of.first.at(lane, register, 0);
                let half = |term: i64| rows[element(of.place_of_row(row, term))];
                half(term) | half(term + 1) << 16
            };
            let begin = |lane: i64, i: usize| self.get(n.src[count - 1], group + lane as usize)[i];
            out.extend(nodes::product(of, [of.operand; 2], first, second, begin));
        }
        Ok(out)
    }
    /// Loads the halves of `units` units from an address on, as the group's first thread.
    fn halves(
        &mut self,
        [buffer, at]: [Id; 2],
        units: i64,
        group: usize,
    ) -> Result<Vec<i64>, Fault> {
        let first = self.index(at, group) * self.g.unit_bytes(buffer);
        let word = |i: i64| At {
            buffer,
            byte: first + 4 * i,
        };
        let words = (0..units * UNIT / 2).map(|i| self.memory.load(word(i), Scalar::U32, group));
        let halves = words.map(|word| word.map(|w| [w.int() & 0xffff, w.int() >> 16 & 0xffff]));
        Ok(halves.collect::<Result<Vec<_>, Fault>>()?.concat())
    }
    /// Computes an elementwise op. It is the most frequent case, so it
    /// allocates nothing per thread.
    fn elementwise(&self, id: Id) -> Result<Vec<Value>, Fault> {
        let n = &self.g[id];
        let mut slots = [0; 3];
        for (slot, s) in slots.iter_mut().zip(&n.src) {
            *slot = self.slots[s.0 as usize];
        }
        let slots = &slots[..n.src.len()];
        let mut out = Vec::with_capacity(self.threads * n.dtype.lanes as usize);
        let mut x = [Value::Int(0); 3];
        for thread in self.registers.chunks(self.size) {
            for lane in 0..n.dtype.lanes as usize {
                for (x, slot) in x.iter_mut().zip(slots) {
                    *x = thread[slot + lane];
                }
                // Only divisions and shifts are undefined for some second operands.
                let undefined = || Fault::Operand {
                    op: n.op.name(),
                    value: x[1].int(),
                };
                out.push(
                    fold::apply(n.op, &x[..slots.len()], n.dtype.scalar).ok_or_else(undefined)?,
                );
            }
        }
        Ok(out)
    }
}
