//! Runs a batch of cases in every way.
//!
//! Ways of one device are planned first, compiled together, and run once per distinct schedule.

use super::accuracy::Accuracy;
use super::progress::{Finished, Record, Stages};
use super::schedules::{Group, Schedule};
use super::truths::{Meant, Truth};
use super::{Case, DERIVED, ENCODED, MIXED, Outputs, RECORD, Run, Way, Within, get, wrong};
use gristmill_compiler::decompose;
use gristmill_compiler::decompose::matmul_variant::MatmulVariant;
use gristmill_compiler::ir::layout::Layout;
use gristmill_runtime::{Buffer, Memory};
use gristmill_tensor::jit::{Call, Jit};
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::function::{Function, Storage};
use gristmill_uop::target::Target;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Cases with their reference results, and the results so far.
pub struct Suite {
    cases: Vec<Case>,
    truths: Vec<Arc<Truth>>,
    /// First way and its output bytes, by mark, case and run.
    bits: HashMap<(&'static str, [usize; 2]), (String, Outputs)>,
    /// Schedules and failures of each case.
    finished: Vec<Finished>,
    stages: Stages,
}

/// Reference results of a case under a schedule, with their tolerance.
struct Meaning {
    values: Meant,
    within: Within,
}

impl Suite {
    /// Computes or finds the reference results of cases.
    pub fn new(cases: Vec<Case>) -> Suite {
        let start = Instant::now();
        let truths = cases.iter().map(Truth::for_case).collect();
        let finished = cases.iter().map(|c| Finished::new(&c.name)).collect();
        let stages = Stages {
            truth: start.elapsed(),
            ..Stages::default()
        };
        Suite {
            cases,
            truths,
            bits: HashMap::new(),
            finished,
            stages,
        }
    }
    /// Runs all cases in all ways; returns results per case and the time per stage.
    pub fn run(mut self, ways: &[Way], record: &Record) -> (Vec<Finished>, Stages) {
        for group in Group::all(ways) {
            self.run_group(&group, record);
        }
        (self.finished, self.stages)
    }
    fn run_group(&mut self, group: &Group, record: &Record) {
        let start = Instant::now();
        let mut planned = group.plan(&self.cases, record);
        for (finished, tally) in self.finished.iter_mut().zip(planned.tallies) {
            finished.add(tally);
        }
        self.stages.plan += start.elapsed();
        let start = Instant::now();
        for (case, error) in group.load(&mut planned.schedules) {
            self.finished[case]
                .wrong
                .push(format!("{} / {error}", self.cases[case].name));
        }
        let mut jit = Jit::new(group.device.clone());
        // All kernels of a batch are compiled together, including repacking kernels.
        let of = |s: &Schedule| {
            let layouts = s.ready.compiled.layouts.iter();
            layouts
                .map(|l| packer(&s.ready.function, l))
                .collect::<Vec<_>>()
        };
        let packers: Vec<_> = planned.schedules.iter().flat_map(of).collect();
        jit.prepare_packers(&packers).expect("kernels");
        self.stages.compile += start.elapsed();
        for schedule in &planned.schedules {
            if record
                .begins("run", &schedule.name(&self.cases))
                .expect(RECORD)
            {
                self.run_schedule(&jit, schedule, &group.device.target);
            }
        }
        record.pauses().expect(RECORD);
    }
    fn run_schedule(&mut self, jit: &Jit, schedule: &Schedule, target: &Target) {
        let i = schedule.case;
        let name = schedule.name(&self.cases);
        if std::env::var_os("GRISTMILL_SOURCE").is_some() {
            let sources = schedule.ready.compiled.programs.iter().map(|p| &p.source);
            sources.for_each(|source| println!("// {name}\n{source}"));
        }
        let start = Instant::now();
        let meaning = self.meaning(schedule, target);
        self.stages.truth += start.elapsed();
        let start = Instant::now();
        for j in 0..self.truths[i].runs.len() {
            let at = format!("{name} {:?}", self.truths[i].runs[j].vars);
            match self.computed(jit, schedule, j) {
                Ok(after) => self.judge(&after, schedule.way, [i, j], meaning.as_ref(), &at),
                Err(e) => self.finished[i].wrong.push(format!("{at}: {e}")),
            }
        }
        self.stages.run += start.elapsed();
    }
    /// Reference results under a schedule, if it changes the function that is computed.
    fn meaning(&self, schedule: &Schedule, target: &Target) -> Option<Meaning> {
        let decisions = &schedule.ready.compiled.decisions;
        let f = decompose::meaning(&self.cases[schedule.case].function, target, decisions)?;
        let forms = || {
            decisions
                .iter()
                .filter(|d| d.kind == "product")
                .map(|d| d.options[d.chosen].plan.as_str())
        };
        let in_integers = |plan: &str| plan == MatmulVariant::Integers.to_string();
        let of_halves = |plan: &str| {
            ![MatmulVariant::Integers, MatmulVariant::Floats]
                .iter()
                .any(|form| form.to_string() == plan)
        };
        let mixed = forms().any(in_integers) && forms().any(of_halves);
        let within = if mixed { MIXED } else { DERIVED };
        Some(Meaning {
            values: self.truths[schedule.case].meant(&f),
            within,
        })
    }
    /// Runs a schedule on run `j` of its case; returns the output bytes.
    fn computed(&self, jit: &Jit, schedule: &Schedule, j: usize) -> Result<Outputs, String> {
        let run = &self.truths[schedule.case].runs[j];
        let args = buffers(jit, run, schedule);
        let call = Call {
            function: schedule.ready.clone(),
            args: args.clone(),
        };
        jit.run(&[call], &run.vars).map_err(|e| e.to_string())?;
        let read = |slot: u32| {
            let mut bytes = vec![0; args[slot as usize].len()];
            jit.device()
                .read(&args[slot as usize], 0, &mut bytes)
                .expect("read");
            bytes
        };
        Ok(run.want.iter().map(|want| read(want.0)).collect())
    }
    /// Records wrong outputs, and differences from a way that must be bit-identical.
    fn judge(
        &mut self,
        after: &Outputs,
        way: &Way,
        [i, j]: [usize; 2],
        meaning: Option<&Meaning>,
        at: &str,
    ) {
        let (case, run, errors) = (
            &self.cases[i],
            &self.truths[i].runs[j],
            &mut self.finished[i].wrong,
        );
        for (n, ((slot, want, places), bytes)) in run.want.iter().zip(after).enumerate() {
            let Storage::Plain(scalar) = case.function.slots[*slot as usize].storage else {
                continue;
            };
            let got: Vec<f64> = places
                .iter()
                .map(|&p| get(bytes, p * scalar.bytes(), scalar))
                .collect();
            let judged = match meaning {
                Some(meant) => {
                    let off =
                        |want, within| wrong(&[want], &got, scalar, within, &[], &|_, _| false);
                    off(&meant.values[j][n].1, meant.within).or_else(|| off(want, ENCODED))
                }
                None => Accuracy::for_way(way).wrong(case, run, n, &got, scalar),
            };
            errors.extend(judged.map(|e| format!("{at}: slot {slot}, {e}")));
        }
        let Some(mark) = way.same_as else { return };
        match self.bits.get(&(mark, [i, j])) {
            Some((other, b)) if b != after => errors.push(format!("{at}: differs from {other}")),
            Some(_) => {}
            None => drop(
                self.bits
                    .insert((mark, [i, j]), (way.name.clone(), after.clone())),
            ),
        }
    }
}

/// Key of the kernel that repacks a slot into its layout.
fn packer(f: &Function, &(slot, layout): &(u32, Layout)) -> (EncodingRef, Layout, usize) {
    let info = &f.slots[slot as usize];
    let (Storage::Packed(e), Some(&columns)) = (info.storage, info.dims.last()) else {
        panic!("{slot} is not packed")
    };
    (e, layout, columns as usize)
}

/// Buffers with the contents of a run; weights are repacked into the function's layouts.
fn buffers(jit: &Jit, run: &Run, schedule: &Schedule) -> Vec<Buffer> {
    let (device, function) = (jit.device(), &schedule.ready.function);
    let written = |bytes: &Vec<u8>| {
        let buffer = device
            .alloc(bytes.len().max(1), Memory::Scratch)
            .expect("memory");
        device.write(&buffer, 0, bytes).expect("written");
        buffer
    };
    let mut args: Vec<Buffer> = run.before.iter().map(written).collect();
    for layout in &schedule.ready.compiled.layouts {
        let (slot, key) = (layout.0 as usize, packer(function, layout));
        let dims = &function.slots[slot].dims;
        let packed = device
            .alloc(key.1.bytes(key.0, dims).expect("a layout"), Memory::Scratch)
            .expect("memory");
        let rows = dims[..dims.len() - 1].iter().product::<i64>() as usize;
        jit.packer(key)
            .and_then(|p| p.pack(&args[slot], &packed, rows))
            .expect("packed");
        args[slot] = packed;
    }
    args
}
