//! Cases with what they compute, run in one way after the other.

use super::{Case, DERIVED, ENCODED, Outputs, Run, Want, Way, get, runs, tally, truth, wrong};
use gristmill_compiler::layout::Layout;
use gristmill_compiler::{Cheapest, Perturb, Policy, decompose};
use gristmill_runtime::{Buffer, Memory};
use gristmill_tensor::function::{ContentKey, Key};
use gristmill_tensor::jit::{Call, Jit, Ready};
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::function::{Function, Storage};
use std::collections::HashMap;
use std::sync::Arc;

/// A case by its number, and the content of the function that a target makes of it.
type Meaning = (usize, Key);

/// Cases, the truth of each, and what was found.
pub struct Suite {
    cases: Vec<Case>,
    truths: Vec<Vec<Run>>,
    /// What is computed where products are in integers: targets of different vectors often compute the same.
    derived: HashMap<Meaning, Vec<Want>>,
    /// By mark, case and run: the way that came first, and the bytes of its outputs.
    bits: HashMap<(&'static str, [usize; 2]), (String, Outputs)>,
    /// What is wrong.
    pub errors: Vec<String>,
}

impl Suite {
    /// Nothing has run yet.
    pub fn of(cases: Vec<Case>) -> Suite {
        let truths = cases.iter().map(runs).collect();
        Suite { cases, truths, derived: HashMap::new(), bits: HashMap::new(), errors: Vec::new() }
    }
    /// Runs all cases in one way.
    pub fn run(&mut self, way: &Way) {
        let mut jit = Jit::new(way.device.clone());
        let ready = self.prepare(&mut jit, way);
        for (i, function) in ready.iter().enumerate() {
            let meaning = self.meaning(i, way);
            if std::env::var_os("GRISTMILL_SOURCE").is_some() {
                let sources = function.compiled.programs.iter().map(|p| &p.source);
                sources.for_each(|source| println!("// {} / {}\n{source}", self.cases[i].name, way.name));
            }
            for j in 0..self.truths[i].len() {
                let at = format!("{} / {} {:?}", self.cases[i].name, way.name, self.truths[i][j].vars);
                match self.computed(&jit, function, [i, j]) {
                    Ok(after) => self.judge(&after, way, [i, j], meaning, &at),
                    Err(e) => self.errors.push(format!("{at}: {e}")),
                }
            }
        }
    }
    /// All functions compiled for that way, with the packers of their layouts.
    fn prepare(&self, jit: &mut Jit, way: &Way) -> Vec<Arc<Ready>> {
        let functions: Vec<Arc<Function>> = self.cases.iter().map(|c| c.function.clone()).collect();
        let mut policy: Box<dyn Policy> = match way.seed {
            Some(s) => Box::new(Perturb(s)),
            None => Box::new(Cheapest),
        };
        let ready = jit.prepare_with(&functions, policy.as_mut(), &|_, _| ());
        let ready = ready.unwrap_or_else(|e| panic!("{}: {e}", way.name));
        // All kernels of a batch are compiled together, so these too.
        let of = |(case, function): (&Case, &Arc<Ready>)| {
            function.compiled.layouts.iter().map(|l| packer(&case.function, l)).collect::<Vec<_>>()
        };
        let packers: Vec<_> = self.cases.iter().zip(&ready).flat_map(of).collect();
        jit.prepare_packers(&packers).expect("kernels");
        let decisions = ready.iter().flat_map(|f| &f.compiled.decisions);
        tally::add(&way.device.target.name, decisions).expect("the file of GRISTMILL_DECISIONS");
        ready
    }
    /// What a case means to that way's target, if it is not what it says, with its truth.
    fn meaning(&mut self, i: usize, way: &Way) -> Option<Meaning> {
        let f = decompose::meaning(&self.cases[i].function, &way.device.target)?;
        let key = (i, f.key());
        let runs = &self.truths[i];
        self.derived
            .entry(key)
            .or_insert_with(|| runs.iter().map(|r| truth(&f, &r.vars, &r.before, &r.values, 0.0)).collect());
        Some(key)
    }
    /// The bytes of the outputs of run `j` of case `i`.
    fn computed(&self, jit: &Jit, function: &Arc<Ready>, [i, j]: [usize; 2]) -> Result<Outputs, String> {
        let (case, run) = (&self.cases[i], &self.truths[i][j]);
        let args = buffers(jit, case, run, function);
        let call = Call { function: function.clone(), args: args.clone() };
        jit.run(&[call], &run.vars).map_err(|e| e.to_string())?;
        let read = |slot: u32| {
            let mut bytes = vec![0; args[slot as usize].len()];
            jit.device().read(&args[slot as usize], 0, &mut bytes).expect("read");
            bytes
        };
        Ok(run.want.iter().map(|want| read(want.0)).collect())
    }
    /// Notes what is wrong with outputs, and where they differ from those of a way that they must equal.
    fn judge(&mut self, after: &Outputs, way: &Way, [i, j]: [usize; 2], meaning: Option<Meaning>, at: &str) {
        let (case, run) = (&self.cases[i], &self.truths[i][j]);
        for (n, ((slot, want, places), bytes)) in run.want.iter().zip(after).enumerate() {
            let Storage::Plain(scalar) = case.function.slots[*slot as usize].storage else { continue };
            let got: Vec<f64> = places.iter().map(|&p| get(bytes, p * scalar.bytes(), scalar)).collect();
            let judged = match meaning {
                Some(key) => {
                    let nearer = wrong(&self.derived[&key][j][n].1, &got, scalar, DERIVED, &[]);
                    nearer.or_else(|| wrong(want, &got, scalar, ENCODED, &[]))
                }
                None => {
                    let slack = run.slack.get(n).map_or(&[][..], Vec::as_slice);
                    wrong(want, &got, scalar, case.within, slack)
                }
            };
            self.errors.extend(judged.map(|e| format!("{at}: slot {slot}, {e}")));
        }
        let Some(mark) = way.same_as else { return };
        match self.bits.get(&(mark, [i, j])) {
            Some((other, b)) if b != after => self.errors.push(format!("{at}: differs from {other}")),
            Some(_) => {}
            None => drop(self.bits.insert((mark, [i, j]), (way.name.clone(), after.clone()))),
        }
    }
}

/// The kernel that brings a slot into its layout.
fn packer(f: &Function, &(slot, layout): &(u32, Layout)) -> (EncodingRef, Layout, usize) {
    let info = &f.slots[slot as usize];
    let (Storage::Packed(e), Some(&columns)) = (info.storage, info.dims.last()) else { panic!("{slot} is not packed") };
    (e, layout, columns as usize)
}

/// Buffers with what a run has before, weights in the layouts that the function reads.
fn buffers(jit: &Jit, case: &Case, run: &Run, function: &Ready) -> Vec<Buffer> {
    let device = jit.device();
    let written = |bytes: &Vec<u8>| {
        let buffer = device.alloc(bytes.len().max(1), Memory::Scratch).expect("memory");
        device.write(&buffer, 0, bytes).expect("written");
        buffer
    };
    let mut args: Vec<Buffer> = run.before.iter().map(written).collect();
    for layout in &function.compiled.layouts {
        let (slot, key) = (layout.0 as usize, packer(&case.function, layout));
        let dims = &case.function.slots[slot].dims;
        let packed = device.alloc(key.1.bytes(key.0, dims).expect("a layout"), Memory::Scratch).expect("memory");
        let rows = dims[..dims.len() - 1].iter().product::<i64>() as usize;
        jit.packer(key).and_then(|p| p.pack(&args[slot], &packed, rows)).expect("packed");
        args[slot] = packed;
    }
    args
}
