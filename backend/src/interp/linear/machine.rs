//! Runs the statements of a body: registers of each thread, stages, loops.

use super::super::access::View;
use super::super::fault::Fault;
use super::memory::Place;
use super::nodes;
use super::threads::{Lane, count};
use gristmill_compiler::lower::{Code, Statement};
use gristmill_uop::fold::{self, Value};
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use std::collections::HashMap;

/// What variables are.
type Variables<'a> = &'a dyn Fn(&str) -> Option<i64>;

/// A kernel's linear code, and how it is launched.
pub(super) struct Lowered {
    pub graph: Graph,
    pub codes: Vec<Code>,
    /// Slots of the buffers, in the order of the launch's.
    pub slots: Vec<u32>,
    /// Threads of a workgroup.
    pub threads: usize,
    /// Does a workgroup have threads of its own, and stages that no other has?
    pub apart: bool,
}

/// Runs a body.
pub(super) struct Machine<'a> {
    g: &'a Graph,
    code: &'a Code,
    threads: usize,
    apart: bool,
    /// Where each node's lanes begin among a thread's registers.
    slots: Vec<usize>,
    /// Registers of a thread.
    size: usize,
    registers: Vec<Value>,
    /// Memory of each buffer.
    places: HashMap<Id, Place>,
    stages: Vec<Vec<u64>>,
    /// The statement that ends what each one opens.
    ends: Vec<usize>,
    lanes: Vec<Lane>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(kernel: &'a Lowered, code: &'a Code, params: &[View], vars: Variables) -> Result<Self, Fault> {
        let (g, threads) = (&kernel.graph, kernel.threads);
        let mut m = Machine {
            g,
            code,
            threads,
            apart: kernel.apart,
            slots: vec![usize::MAX; g.len()],
            size: 0,
            registers: vec![],
            places: HashMap::new(),
            stages: vec![],
            ends: vec![0; code.statements.len()],
            lanes: vec![],
        };
        let mut leaves = Vec::new();
        for id in (0..g.len() as u32).map(Id) {
            m.reserve(id, kernel, params, &mut leaves)?;
        }
        m.registers = vec![Value::Int(0); m.size * threads];
        for id in leaves {
            let v = match &g[id].arg {
                Arg::Int(v) => Value::Int(*v),
                Arg::Var(name, ..) => match vars(name) {
                    Some(v) => Value::Int(v),
                    None => return Err(Fault::Launch(format!("variable {name} has no value"))),
                },
                _ => Value::Float(g.float_value(id).unwrap_or(f64::NAN)).stored_as(g.scalar(id)),
            };
            m.set_all(id, v);
        }
        let mut open = Vec::new();
        for (i, s) in code.statements.iter().enumerate() {
            match s {
                Statement::Nest { .. } | Statement::Loop(_) => open.push(i),
                Statement::End => {
                    let begin = open.pop().ok_or_else(|| Fault::Graph("an end of nothing".into()))?;
                    m.ends[begin] = i;
                }
                _ => {}
            }
        }
        Ok(m)
    }
    /// Registers of a node, or memory of a buffer.
    fn reserve(&mut self, id: Id, kernel: &Lowered, params: &[View], leaves: &mut Vec<Id>) -> Result<(), Fault> {
        let n = &self.g[id];
        match (n.op, &n.arg) {
            (Op::Param, Arg::Param(slot) | Arg::Packed(slot, _)) => {
                if let Some(buffer) = kernel.slots.iter().position(|s| s == slot) {
                    self.places.insert(id, Place { buffer, view: params[buffer] });
                }
                return Ok(());
            }
            (Op::Local, _) => {
                let elements = self.g.int_value(n.src[0]).unwrap_or(0) as usize;
                let len = elements * n.dtype.scalar.bytes();
                let mut stage = vec![u64::MAX; len.div_ceil(8)];
                let view = View { start: stage.as_mut_ptr().cast(), len };
                self.places.insert(id, Place { buffer: params.len() + self.stages.len(), view });
                self.stages.push(stage);
                return Ok(());
            }
            (Op::Store | Op::Body | Op::Kernel, _) => return Ok(()),
            (Op::Const | Op::Var, _) => leaves.push(id),
            // An accumulator and the sum that it becomes are one.
            (Op::Acc, _) => {
                self.slots[id.0 as usize] = self.slots[n.src[1].0 as usize];
                return Ok(());
            }
            _ => {}
        }
        self.slots[id.0 as usize] = self.size;
        self.size += n.dtype.lanes as usize;
        Ok(())
    }
    fn get(&self, id: Id, thread: usize) -> &[Value] {
        let at = thread * self.size + self.slots[id.0 as usize];
        &self.registers[at..at + self.g[id].dtype.lanes as usize]
    }
    fn index(&self, id: Id, thread: usize) -> i64 {
        self.get(id, thread)[0].int()
    }
    /// The same in every lane of every thread.
    fn set_all(&mut self, id: Id, v: Value) {
        let (slot, lanes) = (self.slots[id.0 as usize], self.g[id].dtype.lanes as usize);
        for thread in 0..self.threads {
            self.registers[thread * self.size + slot..][..lanes].fill(v);
        }
    }
    /// Lanes of thread after thread.
    fn set(&mut self, id: Id, values: &[Value]) {
        let (slot, lanes) = (self.slots[id.0 as usize], self.g[id].dtype.lanes as usize);
        for (thread, own) in values.chunks(lanes).enumerate() {
            self.registers[thread * self.size + slot..][..lanes].copy_from_slice(own);
        }
    }
    pub(super) fn run(&mut self, vars: Variables) -> Result<(), Fault> {
        let (g, code) = (self.g, self.code);
        let bound = |&r: &Id| {
            let n = g.evaluate_index(g[r].src[0], vars);
            n.map(|n| n.max(0)).ok_or_else(|| Fault::Launch("workgroups that cannot be counted".into()))
        };
        let bounds: Vec<i64> = code.globals.iter().map(bound).collect::<Result<_, _>>()?;
        let mut last: HashMap<Id, i64> = HashMap::new();
        for group in 0..bounds.iter().product() {
            let mut rest = group;
            let mut now = HashMap::new();
            for (&r, &n) in code.globals.iter().zip(&bounds).rev() {
                self.set_all(r, Value::Int(rest % n));
                now.insert(r, rest % n);
                rest /= n;
            }
            if self.apart {
                self.forget();
            }
            let mut at = 0;
            while at < code.statements.len() {
                let Statement::Nest { staged, globals, threads, .. } = &code.statements[at] else {
                    return Err(Fault::Graph("a statement outside nests".into()));
                };
                let changed = globals.iter().any(|r| last.get(r) != now.get(r));
                if group == 0 || self.apart || !*staged || changed {
                    self.nest(threads, at)?;
                }
                at = self.ends[at] + 1;
            }
            last = now;
        }
        Ok(())
    }
    /// Stages as NaN in every float type.
    fn forget(&mut self) {
        for place in self.places.iter().filter(|p| self.g[*p.0].op == Op::Local).map(|p| p.1) {
            // SAFETY: a stage's view is of memory that this machine has, and is as long as it says.
            unsafe { place.view.start.write_bytes(0xff, place.view.len) };
        }
    }
    fn nest(&mut self, ranges: &[Id], at: usize) -> Result<(), Fault> {
        self.lanes = count(self.g, ranges, self.threads as i64);
        for i in 0..self.lanes.len() {
            let (range, all) = (self.lanes[i].range, 0..self.threads as i64);
            let indices: Vec<Value> = all.map(|t| Value::Int(self.lanes[i].index(t))).collect();
            self.set(range, &indices);
        }
        self.statements(at + 1, self.ends[at])
    }
    fn statements(&mut self, mut at: usize, end: usize) -> Result<(), Fault> {
        let code = self.code;
        while at < end {
            match &code.statements[at] {
                Statement::Loop(r) => {
                    let bound = self.g[*r].src[0];
                    let n = self.index(bound, 0);
                    if (1..self.threads).any(|t| self.index(bound, t) != n) {
                        return Err(Fault::Graph("threads part at a loop".into()));
                    }
                    for i in 0..n {
                        self.set_all(*r, Value::Int(i));
                        self.statements(at + 1, self.ends[at])?;
                    }
                    at = self.ends[at];
                }
                s => self.statement(s)?,
            }
            at += 1;
        }
        Ok(())
    }
    fn statement(&mut self, s: &Statement) -> Result<(), Fault> {
        match s {
            // Constants stand in every register of theirs from the beginning.
            Statement::Define(id) if self.g[*id].op == Op::Const => {}
            Statement::Define(id) => {
                let values = self.node(*id)?;
                self.set(*id, &values);
            }
            Statement::Accumulator(acc) => {
                let first = self.g[*acc].src[0];
                let values: Vec<Value> = (0..self.threads).flat_map(|t| self.get(first, t).to_vec()).collect();
                self.set(*acc, &values);
            }
            Statement::Accumulate(acc, update) => {
                let values = self.node(*update)?;
                self.set(*acc, &values);
            }
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, &[*value])?,
            Statement::WideWrite(buffer, at, bytes, values) => {
                self.aligned(*buffer, *at, *bytes)?;
                self.write(*buffer, *at, values)?;
            }
            Statement::Wide(buffer, at, bytes, parts) => {
                self.aligned(*buffer, *at, *bytes)?;
                let unit = self.g.unit_bytes(*buffer);
                for &(load, byte) in parts {
                    let (place, scalar) = (self.places[buffer], self.g.scalar(load));
                    let own = |t| place.load(self.index(*at, t) * unit + byte as i64, scalar);
                    let values = (0..self.threads).map(own).collect::<Result<Vec<_>, _>>()?;
                    self.set(load, &values);
                }
            }
            Statement::Nest { .. } | Statement::Loop(_) | Statement::End => {
                unreachable!("taken apart with what it opens: {s:?}")
            }
        }
        Ok(())
    }
    fn aligned(&self, buffer: Id, at: Id, bytes: usize) -> Result<(), Fault> {
        let unit = self.g.unit_bytes(buffer);
        match (0..self.threads).map(|t| self.index(at, t) * unit).find(|at| at % bytes as i64 != 0) {
            Some(value) => Err(Fault::Operand { op: "a wide access that is not aligned,", value }),
            None => Ok(()),
        }
    }
    /// Neighbours from `at` on.
    fn write(&mut self, buffer: Id, at: Id, values: &[Id]) -> Result<(), Fault> {
        let (place, unit) = (self.places[&buffer], self.g.unit_bytes(buffer));
        for thread in 0..self.threads {
            let mut byte = self.index(at, thread) * unit;
            for &value in values {
                let scalar = self.g.scalar(value);
                for &v in self.get(value, thread) {
                    place.store(byte, scalar, v)?;
                    byte += scalar.bytes() as i64;
                }
            }
        }
        Ok(())
    }
    /// A node's lanes, of thread after thread.
    fn node(&self, id: Id) -> Result<Vec<Value>, Fault> {
        let n = &self.g[id];
        let word = |thread: usize, i: usize| self.index(n.src[i], thread);
        match n.op {
            Op::Load => {
                let (place, unit, size) = (self.places[&n.src[0]], self.g.unit_bytes(n.src[0]), n.dtype.scalar.bytes());
                let lanes = (0..self.threads).flat_map(|t| {
                    let at = self.index(n.src[1], t) * unit;
                    (0..n.dtype.lanes as i64).map(move |lane| place.load(at + lane * size as i64, n.dtype.scalar))
                });
                lanes.collect()
            }
            Op::Fold if n.src.len() == 2 => {
                let own: Vec<Value> = (0..self.threads).map(|t| self.get(n.src[0], t)[0]).collect();
                let lane = self.lanes.iter().find(|l| l.range == n.src[1]);
                let lane = lane.ok_or_else(|| Fault::Graph("a fold over a range that is not threads".into()))?;
                nodes::over_threads(n, &own, lane.fold)
            }
            Op::Mma => {
                let signed = n.arg == Arg::None;
                let dot = if signed { fold::signed_dot4 } else { fold::dot4 };
                let add = |sum: Value, row, column| Value::Int(dot(row, column, sum.int())).stored_as(Scalar::I32);
                Ok(nodes::product(self.threads, n.src.len() / 3, |_, _| Value::Int(0), word, add))
            }
            Op::MmaHalf => {
                let first = |thread: usize, i: usize| self.get(n.src[6], thread)[i];
                Ok(nodes::product(self.threads, 2, first, word, nodes::halves))
            }
            op if op.is_elementwise() && !matches!(op, Op::Bitcast | Op::Table | Op::Table4) => self.elementwise(id),
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
    /// Most of what there is to do: no memory is taken for single threads.
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
                // What has no meaning is a division or a shift by such a number.
                let undefined = || Fault::Operand { op: n.op.name(), value: x[1].int() };
                out.push(fold::apply(n.op, &x[..slots.len()], n.dtype.scalar).ok_or_else(undefined)?);
            }
        }
        Ok(out)
    }
}
