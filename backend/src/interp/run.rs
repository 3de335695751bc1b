//! Runs compiled kernels.

use super::access::{self, BoundBuffer};
use super::arith;
use super::code::{Bound, Code, CodeStep, Instr, InstrKind, Loop};
use super::fault::Fault;
use super::lanes::{File, LANES};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::program::Program;

/// Registers and local buffers, reused between launches.
#[derive(Default)]
pub(super) struct LoopMachine {
    file: File,
    locals: Vec<Vec<u64>>,
    views: Vec<BoundBuffer>,
}

// SAFETY: the views are set for each launch, from buffers that the caller keeps alive and from
// `locals`, which nothing else uses.
unsafe impl Send for LoopMachine {}

impl LoopMachine {
    /// Runs a kernel on these buffers with these values of the variables.
    pub(super) fn launch(
        &mut self,
        program: &Program,
        code: &Code,
        params: &[BoundBuffer],
        vars: &dyn Fn(&str) -> Option<i64>,
    ) -> Result<(), Fault> {
        self.prepare(code, params, vars)?;
        let g = &program.graph;
        let index = |id| {
            let value = g.evaluate_index(id, vars);
            value.ok_or_else(|| {
                Fault::Launch(format!("no value for {:?}: is a variable missing?", g[id]))
            })
        };
        let mut total = 0;
        for body in &code.bodies {
            let mut sizes = Vec::with_capacity(body.globals.len());
            for &(_, bound) in &body.globals {
                sizes.push(index(bound)?.max(0));
            }
            let groups: i64 = sizes.iter().product();
            total += groups;
            for group in 0..groups {
                let mut rest = group;
                for (&(reg, _), &size) in body.globals.iter().zip(&sizes).rev() {
                    self.file.get_mut(reg, 1)[0] = rest % size;
                    rest /= size;
                }
                for local in body
                    .locals
                    .clone()
                    .filter(|l| group == 0 || !body.staged.contains(l))
                {
                    let BoundBuffer { start, len } = self.views[params.len() + local];
                    // NaN in all float types, so that reads before writes show in the results.
                    // The write goes through the view's pointer, since a reference to the local
                    // would invalidate it. SAFETY: the view of a local has that length, and
                    // nothing else uses it.
                    unsafe { start.write_bytes(0xff, len) };
                }
                for nest in &body.nests[if group == 0 { 0 } else { body.once }..] {
                    self.steps(nest, 1)?;
                }
            }
        }
        let groups = index(program.groups)?;
        if groups != total {
            return Err(Fault::Launch(format!(
                "{groups} workgroups are launched, the bodies have {total}"
            )));
        }
        Ok(())
    }

    fn prepare(
        &mut self,
        code: &Code,
        params: &[BoundBuffer],
        vars: &dyn Fn(&str) -> Option<i64>,
    ) -> Result<(), Fault> {
        self.file.reserve(code.registers);
        for &(reg, v) in &code.ints {
            self.file.get_mut(reg, LANES).fill(v);
        }
        for &(reg, scalar, v) in &code.floats {
            match scalar {
                Scalar::F64 => self.file.get_mut(reg, LANES).fill(v),
                _ => self.file.get_mut(reg, LANES).fill(v as f32),
            }
        }
        for (reg, name) in &code.vars {
            let v =
                vars(name).ok_or_else(|| Fault::Launch(format!("variable {name} has no value")))?;
            self.file.get_mut(*reg, LANES).fill(v);
        }
        self.locals.clear();
        self.locals
            .extend(code.locals.iter().map(|bytes| vec![0; bytes.div_ceil(8)]));
        self.views.clear();
        self.views.extend_from_slice(params);
        let locals = self.locals.iter_mut().zip(&code.locals);
        self.views.extend(locals.map(|(l, &len)| BoundBuffer {
            start: l.as_mut_ptr().cast(),
            len,
        }));
        Ok(())
    }

    fn steps(&mut self, steps: &[CodeStep], n: usize) -> Result<(), Fault> {
        for step in steps {
            match step {
                CodeStep::Do(i) => self.instr(i, n)?,
                CodeStep::Loop(l) => self.run_loop(l)?,
            }
        }
        Ok(())
    }

    fn instr(&mut self, i: &Instr, n: usize) -> Result<(), Fault> {
        match i.kind {
            InstrKind::Load(place) => access::load(&mut self.file, i, place, &self.views, n),
            InstrKind::Add(place) => access::add(&self.file, i, place, &self.views, n),
            InstrKind::Store(place) => access::store(&self.file, i, place, &self.views, n),
            _ => arith::run(&mut self.file, i, n),
        }
    }

    fn run_loop(&mut self, l: &Loop) -> Result<(), Fault> {
        let bound = match l.bound {
            Bound::Const(n) => n,
            Bound::Reg(reg) => self.file.get(reg, 1)[0],
        };
        let strip = if l.strips { LANES as i64 } else { 1 };
        if l.strips {
            for &(reg, bank) in &l.splats {
                self.file.splat(reg, bank, bound.clamp(0, strip) as usize);
            }
        }
        let mut at = 0;
        while at < bound {
            let n = strip.min(bound - at) as usize;
            for index in &l.indices {
                for (lane, out) in self
                    .file
                    .get_mut::<i64>(index.reg, n)
                    .iter_mut()
                    .enumerate()
                {
                    let count = at + lane as i64;
                    *out = match (index.stride, index.size) {
                        (1, 0) => count,
                        (stride, 0) => count / stride,
                        (stride, size) => count / stride % size,
                    };
                }
            }
            self.steps(&l.body, n)?;
            at += n as i64;
        }
        Ok(())
    }
}
