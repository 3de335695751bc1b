//! Runs the statements of a body: registers of all threads, stages, loops.

mod values;

use super::super::access::BoundBuffer;
use super::super::fault::Fault;
use super::memory::{At, LinearMemory};
use gristmill_compiler::lower::{
    Addition, Code, KernelCode, Prefetch, SpanPrefetch, Statement, ThreadIndex, Update,
};
use gristmill_uop::fold::{self, Value};
use gristmill_uop::fragment::Fragment;
use gristmill_uop::{Arg, Graph, Id, Op};
use std::collections::HashMap;

type Variables<'a> = &'a dyn Fn(&str) -> Option<i64>;

/// Lowered code of a kernel and the slots of its buffers.
pub(super) struct Lowered {
    pub graph: Graph,
    pub code: KernelCode,
    /// Slots of the buffers, in the order of the launch.
    pub slots: Vec<u32>,
}

/// Address of a copy: a computed index plus a constant number of elements.
#[derive(Clone, Copy)]
struct CopyAddress {
    buffer: Id,
    at: Id,
    plus: i64,
}

/// State of a body's execution.
pub(super) struct LinearMachine<'a> {
    g: &'a Graph,
    code: &'a Code,
    threads: usize,
    /// Index of each node's first lane among a thread's registers.
    slots: Vec<usize>,
    /// Number of registers of a thread.
    size: usize,
    registers: Vec<Value>,
    memory: LinearMemory,
    /// Index of the matching end of each opening statement.
    ends: Vec<usize>,
    /// Thread indices of the open nest.
    counted: &'a [ThreadIndex],
}

impl<'a> LinearMachine<'a> {
    pub(super) fn new(
        kernel: &'a Lowered,
        code: &'a Code,
        params: &[BoundBuffer],
        vars: Variables,
    ) -> Result<Self, Fault> {
        let (g, threads) = (&kernel.graph, kernel.code.threads);
        let mut m = LinearMachine {
            g,
            code,
            threads,
            slots: vec![usize::MAX; g.len()],
            size: 0,
            registers: vec![],
            memory: LinearMemory::default(),
            ends: vec![0; code.statements.len()],
            counted: &[],
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
                s if s.opens() => open.push(i),
                Statement::End => {
                    let begin = open
                        .pop()
                        .ok_or_else(|| Fault::Graph("an end without an open block".into()))?;
                    m.ends[begin] = i;
                }
                _ => {}
            }
        }
        Ok(m)
    }
    /// Assigns registers to a node, or binds the memory of a buffer.
    fn reserve(
        &mut self,
        id: Id,
        kernel: &Lowered,
        params: &[BoundBuffer],
        leaves: &mut Vec<Id>,
    ) -> Result<(), Fault> {
        let n = &self.g[id];
        match (n.op, &n.arg) {
            (Op::Param, Arg::Param(slot) | Arg::Packed(slot, _)) => {
                if let Some(buffer) = kernel.slots.iter().position(|s| s == slot) {
                    self.memory.bind(id, buffer, params[buffer]);
                }
                return Ok(());
            }
            (Op::Local, _) => {
                let elements = self.g.int_value(n.src[0]).unwrap_or(0) as usize;
                let len = elements * n.dtype.scalar.bytes();
                self.memory.stage(id, params.len(), len, self.threads > 1);
                return Ok(());
            }
            (Op::Store | Op::Body | Op::Kernel, _) => return Ok(()),
            (Op::Const | Op::Var, _) => leaves.push(id),
            // An accumulator and its final sum share registers.
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
    /// Sets all lanes of all threads to a value.
    fn set_all(&mut self, id: Id, v: Value) {
        let (slot, lanes) = (self.slots[id.0 as usize], self.g[id].dtype.lanes as usize);
        for thread in 0..self.threads {
            self.registers[thread * self.size + slot..][..lanes].fill(v);
        }
    }
    /// Sets the lanes of all threads, thread by thread.
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
            n.map(|n| n.max(0)).ok_or_else(|| {
                Fault::Launch("a number of workgroups that cannot be evaluated".into())
            })
        };
        let bounds: Vec<i64> = code.globals.iter().map(bound).collect::<Result<_, _>>()?;
        // Indices of the workgroup that ran before, if any.
        let mut last: Option<HashMap<Id, i64>> = None;
        for group in 0..bounds.iter().product() {
            let mut rest = group;
            let mut now = HashMap::new();
            for (&r, &n) in code.globals.iter().zip(&bounds).rev() {
                self.set_all(r, Value::Int(rest % n));
                now.insert(r, rest % n);
                rest /= n;
            }
            if let Some(skip) = code.skip
                && self.holds(skip)?
            {
                continue;
            }
            self.memory.forget();
            let stale = |on: &[Id]| {
                last.as_ref()
                    .is_none_or(|last| on.iter().any(|r| last.get(r) != now.get(r)))
            };
            self.workgroup(&stale)?;
            last = Some(now);
        }
        Ok(())
    }
    /// Runs the nests and the statements between them.
    ///
    /// In one thread, a stage is kept for workgroups with equal indices.
    fn workgroup(&mut self, stale: &dyn Fn(&[Id]) -> bool) -> Result<(), Fault> {
        let code = self.code;
        let mut at = 0;
        while at < code.statements.len() {
            match &code.statements[at] {
                Statement::Nest {
                    staged,
                    globals,
                    threads,
                    ..
                } => {
                    if self.threads > 1 || !*staged || stale(globals) {
                        self.nest(threads, at)?;
                    }
                    at = self.ends[at];
                }
                Statement::Threads(threads) => self.count(threads),
                s @ (Statement::Define(_) | Statement::Wide(..)) => self.statement(s)?,
                Statement::Leave(condition) if self.holds(*condition)? => return Ok(()),
                Statement::Leave(_) => {}
                Statement::Unless(condition) if self.holds(*condition)? => at = self.ends[at],
                Statement::Unless(_) | Statement::End => {}
                Statement::Barrier => self.memory.barrier(),
                Statement::AsyncWait(groups) => self.memory.arrived(*groups),
                Statement::Prefetch(Prefetch::Span(span)) => self.span(span, &span.loops)?,
                // Launches run one after the other.
                Statement::DependencyWait | Statement::LaunchDependents => {}
                s => return Err(Fault::Graph(format!("{s:?} outside nests"))),
            }
            at += 1;
        }
        Ok(())
    }
    /// Evaluates a condition on variables and workgroup indices.
    fn holds(&mut self, condition: Id) -> Result<bool, Fault> {
        Ok(self.expression(condition, 0)?.int() != 0)
    }
    /// Evaluates an index expression for a thread, without a defining statement.
    fn expression(&mut self, id: Id, thread: usize) -> Result<Value, Fault> {
        let n = &self.g[id];
        match n.op {
            Op::Const | Op::Var | Op::Range => Ok(self.get(id, thread)[0]),
            Op::Load => {
                let byte = self.expression(n.src[1], thread)?.int() * self.g.unit_bytes(n.src[0]);
                self.memory.load(
                    At {
                        buffer: n.src[0],
                        byte,
                    },
                    n.dtype.scalar,
                    thread,
                )
            }
            op => {
                let x = n
                    .src
                    .iter()
                    .map(|&s| self.expression(s, thread))
                    .collect::<Result<Vec<_>, _>>()?;
                let undefined = || Fault::Graph(format!("{op:?} in an index"));
                fold::apply(op, &x, n.dtype.scalar).ok_or_else(undefined)
            }
        }
    }
    /// Checks that prefetched memory lies in its buffer, as for a read.
    fn span(&mut self, span: &SpanPrefetch, loops: &[Id]) -> Result<(), Fault> {
        if let Some((&range, inner)) = loops.split_first() {
            for i in 0..self.expression(self.g[range].src[0], 0)?.int() {
                self.set_all(range, Value::Int(i));
                self.span(span, inner)?;
            }
            return Ok(());
        }
        for thread in 0..self.threads {
            let mut byte = span.from;
            for &(term, times) in &span.terms {
                byte += self.expression(term, thread)?.int() * times;
            }
            self.memory.has(
                At {
                    buffer: span.buffer,
                    byte,
                },
                span.bytes as usize,
            )?;
        }
        Ok(())
    }
    fn nest(&mut self, threads: &'a [ThreadIndex], at: usize) -> Result<(), Fault> {
        self.counted = threads;
        self.memory.begin();
        self.count(threads);
        self.statements(at + 1, self.ends[at])
    }
    /// Sets each thread's indices.
    fn count(&mut self, threads: &[ThreadIndex]) {
        for t in threads {
            let indices: Vec<Value> = (0..self.threads as i64)
                .map(|thread| Value::Int(t.for_thread(thread)))
                .collect();
            self.set(t.range, &indices);
        }
    }
    fn statements(&mut self, mut at: usize, end: usize) -> Result<(), Fault> {
        let code = self.code;
        while at < end {
            match &code.statements[at] {
                &Statement::Loop { range: r, step, .. } => {
                    let bound = self.g[r].src[0];
                    let n = self.index(bound, 0);
                    if (1..self.threads).any(|t| self.index(bound, t) != n) {
                        return Err(Fault::Graph("threads diverge at a loop".into()));
                    }
                    for i in (0..=n - step).step_by(step as usize) {
                        self.set_all(r, Value::Int(i));
                        self.statements(at + 1, self.ends[at])?;
                    }
                    at = self.ends[at];
                }
                Statement::Iteration(r, index) => {
                    self.set_within(*r, *index)?;
                    self.statements(at + 1, self.ends[at])?;
                    at = self.ends[at];
                }
                s => self.statement(s)?,
            }
            at += 1;
        }
        Ok(())
    }
    /// Sets a range's index in an unrolled iteration, after checking it against the bound.
    fn set_within(&mut self, range: Id, index: Id) -> Result<(), Fault> {
        let bound = self.g[range].src[0];
        let all = |at: Id| -> Vec<i64> { (0..self.threads).map(|t| self.index(at, t)).collect() };
        let indices = all(index);
        if let Some((&value, _)) = indices
            .iter()
            .zip(all(bound))
            .find(|(i, bound)| !(0..*bound).contains(i))
        {
            return Err(Fault::Operand {
                op: "an unrolled iteration out of bounds, indexed",
                value,
            });
        }
        let indices: Vec<Value> = indices.into_iter().map(Value::Int).collect();
        self.set(range, &indices);
        Ok(())
    }
    fn statement(&mut self, s: &Statement) -> Result<(), Fault> {
        match s {
            // Constants are in their registers from the start.
            Statement::Define(id) if self.g[*id].op == Op::Const => {}
            Statement::Define(id) => {
                let values = self.node(*id)?;
                self.set(*id, &values);
            }
            Statement::Accumulator(acc) => {
                let first = self.g[*acc].src[0];
                let values: Vec<Value> = (0..self.threads)
                    .flat_map(|t| self.get(first, t).to_vec())
                    .collect();
                self.set(*acc, &values);
            }
            Statement::Accumulate(acc, update) => {
                let values = self.node(*update)?;
                self.set(*acc, &values);
            }
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, &[*value])?,
            Statement::Add(addition) => self.add(addition)?,
            Statement::Update(update) => self.update(update)?,
            Statement::WideWrite(buffer, at, bytes, values) => {
                self.aligned(*buffer, *at, *bytes)?;
                self.write(*buffer, *at, values)?;
            }
            Statement::WriteTile(buffer, at, stride, value) => {
                self.write_tile(*buffer, *at, *stride, *value)?
            }
            Statement::Wide(buffer, at, bytes, parts)
            | Statement::Copied(buffer, at, bytes, parts) => {
                self.wide(*buffer, *at, *bytes, parts)?;
            }
            Statement::AsyncCopy {
                to,
                from,
                plus,
                bytes,
                when,
            } => {
                let addresses = [(to, plus[0]), (from, plus[1])]
                    .map(|(&[buffer, at], plus)| CopyAddress { buffer, at, plus });
                self.copy(addresses, *bytes, *when)?;
            }
            Statement::AsyncGroup => self.memory.group(),
            Statement::AsyncWait(groups) => self.memory.arrived(*groups),
            // Products complete immediately here.
            Statement::ProductsEnded(_) | Statement::WritesShown => {}
            Statement::Barrier => self.memory.barrier(),
            Statement::Carried(load, value) | Statement::Carry(load, value) => {
                let values: Vec<Value> = (0..self.threads)
                    .flat_map(|t| self.get(*value, t).to_vec())
                    .collect();
                self.set(*load, &values);
            }
            // Prefetched lines may lie beyond the end of a buffer.
            Statement::Prefetch(Prefetch::Line { .. } | Prefetch::Tile(_)) => {}
            s => return Err(Fault::Graph(format!("{s:?} in a nest"))),
        }
        Ok(())
    }
    fn aligned(&self, buffer: Id, at: Id, bytes: usize) -> Result<(), Fault> {
        let unit = self.g.unit_bytes(buffer);
        match (0..self.threads)
            .map(|t| self.index(at, t) * unit)
            .find(|at| at % bytes as i64 != 0)
        {
            Some(value) => Err(Fault::Operand {
                op: "a misaligned wide access, offset",
                value,
            }),
            None => Ok(()),
        }
    }
    /// Loads parts of `bytes` bytes at `at`; each part has its byte offset.
    fn wide(
        &mut self,
        buffer: Id,
        at: Id,
        bytes: usize,
        parts: &[(Id, usize)],
    ) -> Result<(), Fault> {
        self.aligned(buffer, at, bytes)?;
        let unit = self.g.unit_bytes(buffer);
        for &(load, byte) in parts {
            let scalar = self.g.scalar(load);
            let mut values = Vec::with_capacity(self.threads);
            for thread in 0..self.threads {
                let at = At {
                    buffer,
                    byte: self.index(at, thread) * unit + byte as i64,
                };
                values.push(self.memory.load(at, scalar, thread)?);
            }
            self.set(load, &values);
        }
        Ok(())
    }
    /// Copies bytes to the first address from the second, in threads where `when` holds.
    fn copy(
        &mut self,
        addresses: [CopyAddress; 2],
        bytes: usize,
        when: Option<Id>,
    ) -> Result<(), Fault> {
        for address in &addresses {
            self.aligned(address.buffer, address.at, bytes)?;
        }
        for thread in 0..self.threads {
            if let Some(when) = when
                && self.expression(when, thread)?.int() == 0
            {
                continue;
            }
            let [to, from] = addresses.map(|CopyAddress { buffer, at, plus }| At {
                buffer,
                byte: (self.index(at, thread) + plus) * self.g.unit_bytes(buffer),
            });
            self.memory.copy(to, from, bytes, thread)?;
        }
        Ok(())
    }
    /// Writes adjacent values from `at` on.
    fn write(&mut self, buffer: Id, at: Id, values: &[Id]) -> Result<(), Fault> {
        let unit = self.g.unit_bytes(buffer);
        for thread in 0..self.threads {
            let mut byte = self.index(at, thread) * unit;
            for &value in values {
                let scalar = self.g.scalar(value);
                for lane in 0..self.g[value].dtype.lanes as usize {
                    let v = self.get(value, thread)[lane];
                    self.memory.store(At { buffer, byte }, scalar, v, thread)?;
                    byte += scalar.bytes() as i64;
                }
            }
        }
        Ok(())
    }
    /// Returns the threads for which the condition of a write holds.
    fn changing(&self, when: Option<Id>) -> Vec<usize> {
        (0..self.threads)
            .filter(|&thread| when.is_none_or(|when| self.index(when, thread) != 0))
            .collect()
    }
    /// Adds to memory, thread by thread. It is a fault if two threads add to the same element
    /// without atomics.
    fn add(&mut self, a: &Addition) -> Result<(), Fault> {
        let (scalar, unit) = (self.g.scalar(a.buffer), self.g.unit_bytes(a.buffer));
        let mut changed = HashMap::new();
        for thread in self.changing(a.when) {
            let mut byte = self.index(a.at, thread) * unit;
            for &value in &a.values {
                for lane in 0..self.g[value].dtype.lanes as usize {
                    if !a.atomic {
                        changes_alone(&mut changed, byte, thread)?;
                    }
                    let at = At {
                        buffer: a.buffer,
                        byte,
                    };
                    let (old, new) = (
                        self.memory.load(at, scalar, thread)?,
                        self.get(value, thread)[lane],
                    );
                    let sum = fold::apply(Op::Add, &[old, new], scalar).unwrap_or(old);
                    self.memory.store(at, scalar, sum, thread)?;
                    byte += unit;
                }
            }
        }
        Ok(())
    }
    /// Updates words, thread by thread. It is a fault if non-atomic updates of two
    /// threads share a word.
    fn update(&mut self, u: &Update) -> Result<(), Fault> {
        let (scalar, unit) = (self.g.scalar(u.old), self.g.unit_bytes(u.buffer));
        let mut changed = HashMap::new();
        for thread in self.changing(u.when) {
            let byte = self.index(u.at, thread) * unit;
            if !u.atomic {
                changes_alone(&mut changed, byte, thread)?;
            }
            let at = At {
                buffer: u.buffer,
                byte,
            };
            let old = self.memory.word(at, scalar)?;
            self.set_all(u.old, old);
            for &value in &u.values {
                let of_all = self.node(value)?;
                self.set(value, &of_all);
            }
            let new = self.get(u.result(), thread)[0];
            self.memory.update(at, scalar, [old, new], thread)?;
        }
        Ok(())
    }
    /// Stores a tile of accumulators, with rows `stride` elements apart.
    fn write_tile(&mut self, buffer: Id, at: Id, stride: i64, value: Id) -> Result<(), Fault> {
        let (unit, scalar) = (self.g.unit_bytes(buffer), self.g.scalar(value));
        let of = Fragment::of_sums(self.g[value].dtype)
            .ok_or_else(|| Fault::Graph("a tile whose type is not an MMA accumulator".into()))?;
        for thread in 0..self.threads {
            let first = self.index(at, thread);
            for i in 0..of.rows * of.columns {
                let at = first + i / of.columns * stride + i % of.columns;
                let v = self.get(value, thread)[i as usize];
                self.memory.store(
                    At {
                        buffer,
                        byte: at * unit,
                    },
                    scalar,
                    v,
                    thread,
                )?;
            }
        }
        Ok(())
    }
}

/// Records a non-atomic change; it is a fault if another thread changed the byte in the statement.
fn changes_alone(changed: &mut HashMap<i64, usize>, byte: i64, thread: usize) -> Result<(), Fault> {
    match changed.insert(byte, thread) {
        Some(other) if other != thread => Err(Fault::Graph(format!(
            "two threads update byte {byte} without an atomic operation"
        ))),
        _ => Ok(()),
    }
}
