//! Compiles the kernel-level graph to loops of instructions.
//!
//! Each node is computed once, in the innermost open loop whose range it depends on. A reduction
//! opens its loops where its free ranges are open, so that loop-invariant operands are hoisted.

mod body;
mod integers;

use super::code::{Bank, Bound, BufferSlot, Code, CodeStep, Index, Instr, InstrKind, Loop, Reg};
use super::fault::Fault;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::op::{Class, Op, RangeKind};
use gristmill_uop::program::Program;
use gristmill_uop::{Arg, Graph, Id, ReduceOp};
use rustc_hash::{FxHashMap, FxHashSet};

/// Constant loops shorter than this are merged with the enclosing loop, so that a
/// strip has enough lanes.
const MIN_LOOP_LENGTH: i64 = 16;

/// Compiles a program's graph.
pub(super) fn compile(program: &Program) -> Result<Code, Fault> {
    let g = &*program.graph;
    let (shared, everywhere) = Default::default();
    let mut compiler = Compiler {
        g,
        program,
        code: Code::default(),
        shared,
        everywhere,
    };
    if g[program.root].op != Op::Kernel {
        return compiler.reject(program.root, "the root is no Kernel");
    }
    for &body in &g[program.root].src {
        let body = compiler.body(body)?;
        compiler.code.bodies.push(body);
    }
    Ok(compiler.code)
}

struct Compiler<'g> {
    g: &'g Graph,
    program: &'g Program,
    code: Code,
    /// Registers of constants and variables.
    shared: FxHashMap<Id, Reg>,
    /// The same registers; all their lanes are filled before a kernel starts.
    everywhere: FxHashSet<Reg>,
}

/// A loop under construction. The first frame of a nest runs once per workgroup, without a loop.
#[derive(Default)]
struct Frame {
    ranges: Vec<Id>,
    known: FxHashMap<Id, Reg>,
    bound: Option<Bound>,
    indices: Vec<Index>,
    /// Registers set inside the loop.
    own: FxHashSet<Reg>,
    outer: Vec<(Reg, Bank)>,
    body: Vec<CodeStep>,
}

/// A nest under construction.
struct Nest<'c, 'g> {
    c: &'c mut Compiler<'g>,
    free: FxHashMap<Id, Vec<Id>>,
    locals: &'c FxHashMap<Id, BufferSlot>,
    frames: Vec<Frame>,
}

impl<'g> Compiler<'g> {
    fn reject<T>(&self, id: Id, why: &str) -> Result<T, Fault> {
        Err(Fault::Graph(format!("{why}: {id:?} = {:?}", self.g[id])))
    }

    fn register(&mut self) -> Reg {
        self.code.registers += 1;
        self.code.registers - 1
    }

    /// Returns for each node below `root` the loop ranges that it depends on and that
    /// no inner node closes.
    fn free_ranges(&self, root: Id) -> FxHashMap<Id, Vec<Id>> {
        let mut free: FxHashMap<Id, Vec<Id>> = FxHashMap::default();
        for n in self.g.toposort(&[root]) {
            let node = &self.g[n];
            let mut ranges: Vec<Id> = node
                .src
                .iter()
                .flat_map(|s| free[s].iter().copied())
                .collect();
            match node.op {
                Op::Range if self.g.range_kind(n) != Some(RangeKind::Global) => ranges.push(n),
                Op::Reduce => ranges.retain(|r| !node.src[1..].contains(r)),
                _ => {}
            }
            ranges.sort_unstable();
            ranges.dedup();
            free.insert(n, ranges);
        }
        free
    }
}

impl Nest<'_, '_> {
    fn store(&mut self, id: Id) -> Result<Vec<CodeStep>, Fault> {
        let g = self.c.g;
        let node = &g[id];
        if node.op != Op::Store {
            return self.c.reject(id, "a nest that is no Store");
        }
        let closed: Vec<Id> = node.src[3..]
            .iter()
            .copied()
            .filter(|&r| g.range_kind(r) != Some(RangeKind::Global))
            .collect();
        let opened = self.open(&closed)?;
        let (place, held) = self.place(node.src[0], g.scalar(node.src[2]))?;
        let offset = self.value(node.src[1])?;
        let value = self.value(node.src[2])?;
        let top = self.frames.len() - 1;
        let value = self.converted(top, value, g.scalar(node.src[2]), held);
        let src = [(offset, Bank::Int), (value, Bank::from_scalar(held))];
        let kind = if node.arg == Arg::None {
            InstrKind::Store(place)
        } else {
            InstrKind::Add(place)
        };
        self.push(top, kind, held, 0, &src);
        self.close(opened);
        Ok(std::mem::take(&mut self.frames[0].body))
    }

    /// Opens loops over these ranges, the last innermost. Returns the number of loops.
    fn open(&mut self, ranges: &[Id]) -> Result<usize, Fault> {
        let g = self.c.g;
        if let Some(&r) = ranges.iter().find(|&&r| g[r].op != Op::Range) {
            return self.c.reject(r, "not a Range");
        }
        let constant = |r: Id| g.int_value(g[r].src[0]);
        // Innermost first: groups of ranges that become one loop.
        let mut groups: Vec<Vec<Id>> = Vec::new();
        for &r in ranges.iter().rev() {
            let inner = groups
                .last()
                .and_then(|group| group.iter().try_fold(1, |p, &r| Some(p * constant(r)?)));
            match (inner, constant(r)) {
                (Some(n), Some(_)) if (1..MIN_LOOP_LENGTH).contains(&n) => {
                    groups.last_mut().expect("has one").push(r)
                }
                _ => groups.push(vec![r]),
            }
        }
        for group in groups.iter().rev() {
            let mut frame = Frame {
                ranges: group.clone(),
                ..Frame::default()
            };
            let (mut stride, mut indices) = (1, Vec::new());
            for (i, &r) in group.iter().enumerate() {
                let reg = self.c.register();
                let last = i + 1 == group.len();
                let size = if last { 0 } else { constant(r).unwrap_or(0) };
                indices.push(Index { reg, stride, size });
                stride *= size;
                frame.known.insert(r, reg);
                frame.own.insert(reg);
            }
            frame.indices = indices;
            frame.bound = Some(
                match group
                    .iter()
                    .try_fold(1i64, |p, &r| p.checked_mul(constant(r)?))
                {
                    Some(n) => Bound::Const(n),
                    None => Bound::Reg(self.value(g[group[0]].src[0])?),
                },
            );
            self.frames.push(frame);
        }
        Ok(groups.len())
    }

    fn close(&mut self, loops: usize) {
        for _ in 0..loops {
            let Some(f) = self.frames.pop() else { return };
            let strips = !f.body.iter().any(|s| matches!(s, CodeStep::Loop(_)));
            let Some(bound) = f.bound else { return };
            let step = CodeStep::Loop(Loop {
                bound,
                indices: f.indices,
                splats: f.outer,
                body: f.body,
                strips,
            });
            if let Some(around) = self.frames.last_mut() {
                around.body.push(step);
            }
        }
    }

    /// Returns the innermost frame with a range that the node depends on.
    fn frame_of(&self, id: Id) -> Result<usize, Fault> {
        let mut at = 0;
        for r in &self.free[&id] {
            match self.frames.iter().rposition(|f| f.ranges.contains(r)) {
                Some(i) => at = at.max(i),
                None => return self.c.reject(*r, "a range that nothing closes"),
            }
        }
        Ok(at)
    }

    fn push(
        &mut self,
        at: usize,
        kind: InstrKind,
        dtype: Scalar,
        out: Reg,
        operands: &[(Reg, Bank)],
    ) {
        self.instr(
            at,
            Instr {
                kind,
                safe: false,
                dtype,
                out,
                src: [0; 3],
            },
            operands,
        )
    }

    fn instr(&mut self, at: usize, mut instr: Instr, operands: &[(Reg, Bank)]) {
        let frame = &mut self.frames[at];
        for (i, &(reg, bank)) in operands.iter().enumerate() {
            instr.src[i] = reg;
            // Registers set in outer loops are broadcast to all lanes before strips run.
            let set = frame.own.contains(&reg) || self.c.everywhere.contains(&reg);
            if !set && !frame.outer.iter().any(|o| o.0 == reg) {
                frame.outer.push((reg, bank));
            }
        }
        if !matches!(
            instr.kind,
            InstrKind::Accumulate(_) | InstrKind::Store(_) | InstrKind::Add(_)
        ) {
            frame.own.insert(instr.out);
        }
        frame.body.push(CodeStep::Do(instr));
    }

    fn converted(&mut self, at: usize, value: Reg, from: Scalar, to: Scalar) -> Reg {
        if from == to {
            return value;
        }
        let out = self.c.register();
        self.push(
            at,
            InstrKind::Cast(from),
            to,
            out,
            &[(value, Bank::from_scalar(from))],
        );
        out
    }

    /// Returns the buffer of an access and the type in memory, which is `accessed` if it is packed.
    fn place(&self, id: Id, accessed: Scalar) -> Result<(BufferSlot, Scalar), Fault> {
        let node = &self.c.g[id];
        let bound = |slot| self.c.program.params.iter().position(|p| p.slot == slot);
        let unit = node.dtype.scalar.bytes();
        // A word of a buffer of bytes.
        let held = if unit == 1 && accessed == Scalar::U32 {
            accessed
        } else {
            node.dtype.scalar
        };
        match (node.op, &node.arg) {
            (Op::Local, _) => Ok((self.locals[&id], held)),
            (Op::Param, Arg::Param(slot)) => match bound(*slot) {
                Some(i) => Ok((
                    BufferSlot {
                        buffer: i as u32,
                        unit,
                    },
                    held,
                )),
                None => self
                    .c
                    .reject(id, "a slot that is not among the program's parameters"),
            },
            (Op::Param, Arg::Packed(slot, _)) => match bound(*slot) {
                Some(i) => Ok((
                    BufferSlot {
                        buffer: i as u32,
                        unit: 1,
                    },
                    accessed,
                )),
                None => self
                    .c
                    .reject(id, "a slot that is not among the program's parameters"),
            },
            _ => self.c.reject(id, "not a buffer"),
        }
    }

    fn shared(&mut self, id: Id) -> Result<Reg, Fault> {
        if let Some(&reg) = self.c.shared.get(&id) {
            return Ok(reg);
        }
        let reg = self.c.register();
        let node = &self.c.g[id];
        match &node.arg {
            Arg::Int(v) => self.c.code.ints.push((reg, *v)),
            Arg::Float(bits) => {
                self.c
                    .code
                    .floats
                    .push((reg, node.dtype.scalar, f64::from_bits(*bits)))
            }
            Arg::Var(name, ..) => self.c.code.vars.push((reg, name.clone())),
            _ => return self.c.reject(id, "a constant without a value"),
        }
        self.c.shared.insert(id, reg);
        self.c.everywhere.insert(reg);
        Ok(reg)
    }

    /// Returns the register of a node, compiling it into its frame if necessary.
    fn value(&mut self, id: Id) -> Result<Reg, Fault> {
        let g = self.c.g;
        let node = &g[id];
        if node.dtype.lanes != 1 {
            return self.c.reject(id, "several lanes");
        }
        if matches!(node.op, Op::Const | Op::Var) {
            return self.shared(id);
        }
        let at = self.frame_of(id)?;
        if let Some(&reg) = self.frames[at].known.get(&id) {
            return Ok(reg);
        }
        let scalar = node.dtype.scalar;
        let out = match (node.op, &node.arg) {
            (Op::Reduce, _) if node.src.len() == 1 => self.value(node.src[0])?,
            (Op::Reduce, Arg::Reduce(how, _)) => self.reduction(at, id, *how)?,
            // A complete sum needs no rescaling.
            (Op::Rescaled, _) => self.value(node.src[0])?,
            (Op::Load, _) => {
                let (place, held) = self.place(node.src[0], scalar)?;
                let offset = self.value(node.src[1])?;
                let raw = self.c.register();
                self.push(
                    at,
                    InstrKind::Load(place),
                    held,
                    raw,
                    &[(offset, Bank::Int)],
                );
                self.converted(at, raw, held, scalar)
            }
            (Op::Add, _) if scalar.is_int() => self.sum(at, id)?,
            (Op::IDiv | Op::Mod, _)
                if g.int_value(node.src[1])
                    .is_some_and(|c| c > 0 && c & (c - 1) == 0) =>
            {
                self.shift_or_mask(at, id)?
            }
            (op, _) if op.class() == Class::Elementwise => self.elementwise(at, id)?,
            _ => return self.c.reject(id, "an op that has no value here"),
        };
        self.frames[at].known.insert(id, out);
        Ok(out)
    }

    /// Compiles the loops of a reduction with its accumulator in frame `at`.
    fn reduction(&mut self, at: usize, id: Id, how: ReduceOp) -> Result<Reg, Fault> {
        let g = self.c.g;
        let (node, scalar) = (&g[id], g.scalar(id));
        let acc = self.c.register();
        // Frames further in stay closed meanwhile: these loops do not enclose them.
        let inner = self.frames.split_off(at + 1);
        self.push(at, InstrKind::Start(how), scalar, acc, &[]);
        let opened = self.open(&node.src[1..])?;
        let value = self.value(node.src[0])?;
        let top = self.frames.len() - 1;
        let value = self.converted(top, value, g.scalar(node.src[0]), scalar);
        self.push(
            top,
            InstrKind::Accumulate(how),
            scalar,
            acc,
            &[(value, Bank::from_scalar(scalar))],
        );
        self.close(opened);
        self.frames.extend(inner);
        Ok(acc)
    }

    /// Compiles a quotient or remainder by a power of two.
    ///
    /// Both round down, so it is a shift or a mask for either sign.
    fn shift_or_mask(&mut self, at: usize, id: Id) -> Result<Reg, Fault> {
        let node = &self.c.g[id];
        let by = self.c.g.int_value(node.src[1]).unwrap_or(1);
        let (op, by) = if node.op == Op::IDiv {
            (Op::Shr, by.trailing_zeros() as i64)
        } else {
            (Op::And, by - 1)
        };
        let src = [
            (self.value(node.src[0])?, Bank::Int),
            (self.number(by), Bank::Int),
        ];
        let out = self.c.register();
        let kind = InstrKind::Apply(op, Bank::Int);
        self.instr(
            at,
            Instr {
                kind,
                safe: true,
                dtype: node.dtype.scalar,
                out,
                src: [0; 3],
            },
            &src,
        );
        Ok(out)
    }

    /// Compiles an elementwise op.
    fn elementwise(&mut self, at: usize, id: Id) -> Result<Reg, Fault> {
        let g = self.c.g;
        let node = &g[id];
        let mut src = Vec::with_capacity(3);
        for &s in &node.src {
            src.push((self.value(s)?, Bank::from_scalar(g.scalar(s))));
        }
        // A selection uses the bank of its alternatives.
        let operand = g.scalar(node.src[if node.op == Op::Where { 1 } else { 0 }]);
        let kind = match (node.op, &node.arg) {
            (Op::Cast, _) => InstrKind::Cast(operand),
            (Op::Bitcast, _) => InstrKind::Bitcast(operand),
            (Op::Table, Arg::Ints(t)) => InstrKind::Table(t.clone()),
            (Op::Table4, Arg::Ints(t)) => InstrKind::Table4(t.clone()),
            (op, _) => InstrKind::Apply(op, Bank::from_scalar(operand)),
        };
        let out = self.c.register();
        self.instr(
            at,
            Instr {
                kind,
                safe: self.safe(id),
                dtype: node.dtype.scalar,
                out,
                src: [0; 3],
            },
            &src,
        );
        Ok(out)
    }
}
