//! Compiles a body: ranges over workgroups, local buffers, nests.

use super::{Compiler, Frame, Nest};
use crate::interp::code::{BodyCode, BufferSlot, Reg};
use crate::interp::fault::Fault;
use gristmill_uop::Id;
use gristmill_uop::op::{Op, RangeKind};
use rustc_hash::FxHashMap;

impl Compiler<'_> {
    pub(super) fn body(&mut self, id: Id) -> Result<BodyCode, Fault> {
        if self.g[id].op != Op::Body {
            return self.reject(id, "not a Body");
        }
        let nodes = self.g.toposort(&[id]);
        let mut globals: Vec<Id> = nodes
            .iter()
            .copied()
            .filter(|&n| self.g.range_kind(n) == Some(RangeKind::Global))
            .collect();
        globals.sort_by_key(|&r| self.g.range_number(r));
        let globals: Vec<(Reg, Id)> = globals.into_iter().map(|r| (self.register(), r)).collect();
        let first = self.code.locals.len();
        let mut locals = FxHashMap::default();
        for &n in nodes.iter().filter(|&&n| self.g[n].op == Op::Local) {
            let unit = self.g.scalar(n).bytes();
            let Some(bytes) = self
                .g
                .int_value(self.g[n].src[0])
                .and_then(|e| unit.checked_mul(e.try_into().ok()?))
            else {
                return self.reject(n, "a local buffer of no constant size");
            };
            let buffer = (self.program.params.len() + self.code.locals.len()) as u32;
            locals.insert(n, BufferSlot { buffer, unit });
            self.code.locals.push(bytes);
        }
        let mut nests = Vec::new();
        for &store in &self.g[id].src {
            let free = self.free_ranges(store);
            let root = Frame {
                known: globals.iter().map(|&(r, id)| (id, r)).collect(),
                ..Frame::default()
            };
            let mut nest = Nest {
                c: &mut *self,
                free,
                locals: &locals,
                frames: vec![root],
            };
            nests.push(nest.store(store)?);
        }
        let globals = globals
            .into_iter()
            .map(|(r, id)| (r, self.g[id].src[0]))
            .collect();
        let once = self.uniform(id);
        let stages: Vec<Id> = self.g[id].src[..once]
            .iter()
            .map(|&nest| self.g[nest].src[0])
            .collect();
        let staged = locals.iter().filter(|l| stages.contains(l.0));
        let staged = staged
            .map(|l| l.1.buffer as usize - self.program.params.len())
            .collect();
        Ok(BodyCode {
            globals,
            nests,
            once,
            locals: first..self.code.locals.len(),
            staged,
        })
    }

    /// Returns the number of leading nests with equal results in all workgroups.
    ///
    /// They are stages: they fill local buffers that no other nest writes, from data that the body
    /// does not change. They run for the first workgroup only; otherwise a matrix with a workgroup
    /// per row would compute its stage once per row, at the cost of the matrix.
    fn uniform(&self, body: Id) -> usize {
        let g = self.g;
        let nests = &g[body].src;
        let written: Vec<Id> = nests.iter().map(|&n| g[n].src[0]).collect();
        let mut once = 0;
        for (i, &nest) in nests.iter().enumerate() {
            let own = g[written[i]].op == Op::Local && !written[i + 1..].contains(&written[i]);
            let varies = g.any(nest, |n, node| {
                let global = g.range_kind(n) == Some(RangeKind::Global);
                let changed = node.op == Op::Load && written[i..].contains(&node.src[0]);
                global || changed
            });
            if !own || varies {
                break;
            }
            once += 1;
        }
        once
    }
}
