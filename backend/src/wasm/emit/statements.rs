//! Statements of linear code: loops over workgroups, nests, accumulators.

use super::locals::{Local, LocalKind};
use super::writer::FunctionWriter;
use gristmill_compiler::lower::{Code, Statement, bytes_of};
use gristmill_uop::{Arg, Graph, Id, Op};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use wasm_encoder::{BlockType, Instruction as I};

/// Parameters of a kernel's function, all addresses: of its buffers' addresses, of its variables
/// (64 bits each), of its scratch memory.
pub(super) const PARAMETERS: [Local; 3] = [parameter(0), parameter(1), parameter(2)];

const fn parameter(index: u32) -> Local {
    Local {
        index,
        kind: LocalKind::I32,
    }
}

/// A block of statements that is open.
enum OpenBlock {
    /// A loop over a range, with its bound.
    Loop(Local, Local),
    /// A nest that runs if its stage is to be filled.
    Condition,
    /// A nest that always runs.
    Nest,
}

/// What tells whether a stage is filled already.
struct Staging {
    /// 1 until the first workgroup of a body has run.
    fresh: Local,
    /// Workgroup ranges with their last indices.
    last: Vec<(Id, Local)>,
}

impl FunctionWriter<'_> {
    /// Loads the addresses of the buffers and the variables.
    pub fn prologue(&mut self, slots: &[u32], vars: &[Arc<str>]) {
        for id in (0..self.g.len() as u32).map(Id) {
            let n = &self.g[id];
            match (n.op, &n.arg) {
                (Op::Param, Arg::Param(slot) | Arg::Packed(slot, _)) => {
                    if let Some(i) = slots.iter().position(|s| s == slot) {
                        let address = self.b.local(LocalKind::I32);
                        self.b.get(PARAMETERS[0]);
                        self.b.op(I::I32Load(super::access::at(4 * i as u32, 2)));
                        self.b.set(address);
                        self.buffers.insert(id, address);
                    }
                }
                (Op::Var, Arg::Var(name, ..)) => {
                    if let Some(i) = vars.iter().position(|v| v == name) {
                        let place = self.places(id)[0];
                        let memory = super::access::at(8 * i as u32, 2);
                        self.b.get(PARAMETERS[1]);
                        self.b.op(match place.kind {
                            LocalKind::I64 => I::I64Load(memory),
                            _ => I::I32Load(memory),
                        });
                        self.b.set(place);
                    }
                }
                _ => {}
            }
        }
    }
    /// Writes a body: all of its workgroups, one after the other.
    pub fn body(&mut self, code: &Code) {
        let mut offset = 0;
        for &local in &code.locals {
            let address = self.b.local(LocalKind::I32);
            self.b.get(PARAMETERS[2]);
            self.b.op(I::I32Const(offset as i32));
            self.b.op(I::I32Add);
            self.b.set(address);
            self.buffers.insert(local, address);
            offset += bytes_of(self.g, local);
        }
        let staging = Staging {
            fresh: self.b.local(LocalKind::I32),
            last: self.places_of_last(&code.globals),
        };
        self.b.op(I::I32Const(1));
        self.b.set(staging.fresh);
        self.globals(code, &code.globals, &staging);
    }
    fn places_of_last(&mut self, globals: &[Id]) -> Vec<(Id, Local)> {
        let place = |&r: &Id| (r, self.places(r)[0].kind);
        let kinds: Vec<(Id, LocalKind)> = globals.iter().map(place).collect();
        kinds
            .into_iter()
            .map(|(r, kind)| (r, self.b.local(kind)))
            .collect()
    }
    /// Opens a loop for each range of workgroups, and runs one workgroup in the innermost.
    fn globals(&mut self, code: &Code, ranges: &[Id], staging: &Staging) {
        let Some((&range, inner)) = ranges.split_first() else {
            return self.workgroup(code, staging);
        };
        let (index, bound) = self.open_loop(range);
        self.globals(code, inner, staging);
        self.close_loop(index, bound);
    }
    fn workgroup(&mut self, code: &Code, staging: &Staging) {
        self.b.op(I::Block(BlockType::Empty));
        if let Some(skip) = code.skip {
            self.push_index(skip);
            self.b.op(I::BrIf(0));
            self.b.end_statement();
        }
        self.splatted = splatted(self.g, &code.statements);
        let mut open = Vec::new();
        for s in &code.statements {
            self.statement(s, &mut open, staging);
            self.b.end_statement();
        }
        for &(range, last) in &staging.last {
            let index = self.places(range)[0];
            self.b.get(index);
            self.b.set(last);
        }
        self.b.op(I::I32Const(0));
        self.b.set(staging.fresh);
        self.b.op(I::End);
    }
    /// Opens a loop from 0 to the bound of a range; returns its index and bound.
    fn open_loop(&mut self, range: Id) -> (Local, Local) {
        let index = self.places(range)[0];
        let bound = self.scalar_as(self.g[range].src[0], index.kind);
        let kept = self.b.local(index.kind);
        self.b.get(bound);
        self.b.set(kept);
        let (zero, less) = match index.kind {
            LocalKind::I64 => (I::I64Const(0), I::I64LtS),
            _ => (I::I32Const(0), I::I32LtS),
        };
        self.b.op(zero.clone());
        self.b.set(index);
        self.b.op(zero);
        self.b.get(kept);
        self.b.op(less);
        self.b.op(I::If(BlockType::Empty));
        self.b.op(I::Loop(BlockType::Empty));
        self.b.end_statement();
        (index, kept)
    }
    fn close_loop(&mut self, index: Local, bound: Local) {
        let (one, add, less) = match index.kind {
            LocalKind::I64 => (I::I64Const(1), I::I64Add, I::I64LtS),
            _ => (I::I32Const(1), I::I32Add, I::I32LtS),
        };
        self.b.get(index);
        self.b.op(one);
        self.b.op(add);
        self.b.op(I::LocalTee(index.index));
        self.b.get(bound);
        self.b.op(less);
        self.b.op(I::BrIf(0));
        self.b.op(I::End);
        self.b.op(I::End);
    }
    fn statement(&mut self, s: &Statement, open: &mut Vec<OpenBlock>, staging: &Staging) {
        match s {
            Statement::Define(id) if self.splatted.contains(id) => {}
            Statement::Define(id) => self.define(*id),
            Statement::Loop {
                range,
                step: 1,
                unroll: None,
            } => {
                let (index, bound) = self.open_loop(*range);
                open.push(OpenBlock::Loop(index, bound));
            }
            Statement::End => match open.pop() {
                Some(OpenBlock::Loop(index, bound)) => self.close_loop(index, bound),
                Some(OpenBlock::Condition) => self.b.op(I::End),
                Some(OpenBlock::Nest) => {}
                None => unreachable!("an end without an open block"),
            },
            Statement::Accumulator(acc) => {
                let first = self.g[*acc].src[0];
                self.copy(*acc, first);
            }
            Statement::Accumulate(acc, value) => {
                let units = self.node(*value);
                self.assign_from(*acc, *value, &units);
            }
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, *value),
            Statement::Add(addition) => self.add(addition),
            // There is no instruction for it.
            Statement::Prefetch(_) => {}
            Statement::Nest {
                staged, globals, ..
            } => {
                if *staged {
                    self.open_stage(globals, staging);
                    open.push(OpenBlock::Condition);
                } else {
                    open.push(OpenBlock::Nest);
                }
            }
            s => panic!("WebAssembly has no code for {s:?}"),
        }
    }
    /// Opens the statements that fill a stage: they run if an index that it depends on changed.
    fn open_stage(&mut self, globals: &[Id], staging: &Staging) {
        self.b.get(staging.fresh);
        for &range in globals {
            let index = self.places(range)[0];
            let last = staging.last.iter().find(|l| l.0 == range);
            let last = last.expect("a stage depends on the workgroup's ranges").1;
            self.b.get(index);
            self.b.get(last);
            self.b.op(match index.kind {
                LocalKind::I64 => I::I64Ne,
                _ => I::I32Ne,
            });
            self.b.op(I::I32Or);
        }
        self.b.op(I::If(BlockType::Empty));
    }
    /// Copies a value to an accumulator.
    fn copy(&mut self, acc: Id, from: Id) {
        let form = self.form(from);
        let units: Vec<Local> = (0..form.units).map(|unit| self.unit(from, unit)).collect();
        self.assign_from(acc, from, &units);
    }
    /// Copies the units of a node to the locals of another, which may be held otherwise.
    fn assign_from(&mut self, to: Id, from: Id, units: &[Local]) {
        let (held, given) = (self.places(to), self.form(from));
        if held.len() == units.len()
            && (held[0].kind == LocalKind::V128) == (given.kind == LocalKind::V128)
        {
            return self.assign(to, units);
        }
        let scalar = self.g.scalar(from);
        let lanes: Vec<Local> = (0..self.g[from].dtype.lanes as usize)
            .map(|lane| match given.kind {
                LocalKind::V128 => self.extract(units[lane / 4], scalar, lane % 4),
                _ => units[lane],
            })
            .collect();
        let units = match held[0].kind {
            LocalKind::V128 => lanes
                .chunks(4)
                .map(|four| {
                    let four: Vec<Local> = four
                        .iter()
                        .map(|&x| self.widened(x, LocalKind::I32))
                        .collect();
                    self.assemble(scalar, &four)
                })
                .collect(),
            _ => lanes,
        };
        self.assign(to, &units);
    }
}

/// Returns the loads of 32-bit words that only the next statement uses, which splats them.
fn splatted(g: &Graph, statements: &[Statement]) -> FxHashSet<Id> {
    let mut uses: FxHashMap<Id, usize> = FxHashMap::default();
    for s in statements {
        s.uses(g, &mut |id| *uses.entry(id).or_default() += 1);
    }
    let pairs = statements.iter().zip(statements.iter().skip(1));
    let found = pairs.filter_map(|pair| match pair {
        (Statement::Define(load), Statement::Define(splat)) => {
            let (l, s) = (&g[*load], &g[*splat]);
            let is_word = l.op == Op::Load && l.dtype.lanes == 1 && l.dtype.scalar.bytes() == 4;
            let is_splat = s.op == Op::Splat && s.src[0] == *load && s.dtype.lanes % 4 == 0;
            (is_word && is_splat && uses.get(load) == Some(&1)).then_some(*load)
        }
        _ => None,
    });
    found.collect()
}

/// Bytes of scratch memory of a kernel with these bodies.
pub(super) fn scratch_bytes(g: &Graph, bodies: &[Code]) -> usize {
    let bytes = |code: &Code| code.locals.iter().map(|&l| bytes_of(g, l)).sum();
    bodies.iter().map(bytes).max().unwrap_or(0)
}
