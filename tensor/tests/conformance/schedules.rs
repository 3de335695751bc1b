//! Schedules of cases on one device: planned, deduplicated, and compiled together.

use super::progress::{Record, Tally};
use super::{Case, RECORD, Random, Way};
use gristmill_backend::{KernelText, Opened};
use gristmill_compiler::{Cheapest, Compiled, Perturb, Policy, compile};
use gristmill_runtime::store::Key;
use gristmill_runtime::{Error, Kernel};
use gristmill_tensor::jit::Ready;
use gristmill_uop::program::Program;
use gristmill_uop::text::print;
use std::collections::HashSet;
use std::sync::Arc;

/// Ways with kernels for the same device and target.
pub struct Group<'a> {
    pub device: &'a Opened,
    ways: Vec<&'a Way>,
}

/// A schedule of a case; it has kernels once it is loaded.
pub struct Schedule<'a> {
    pub case: usize,
    pub way: &'a Way,
    pub ready: Arc<Ready>,
}

impl Schedule<'_> {
    /// The schedule's name, `case / way`.
    pub fn name(&self, cases: &[Case]) -> String {
        named(&cases[self.case], self.way)
    }
}

fn named(case: &Case, way: &Way) -> String {
    format!("{} / {}", case.name, way.name)
}

/// The distinct schedules of some cases, and counts of their decisions.
pub struct Planned<'a> {
    pub schedules: Vec<Schedule<'a>>,
    pub tallies: Vec<Tally>,
}

impl<'a> Group<'a> {
    /// Groups ways by device and target, in order.
    pub fn all(ways: &'a [Way]) -> Vec<Group<'a>> {
        let mut groups: Vec<(String, Group)> = Vec::new();
        for way in ways {
            let target = format!("{:?}", way.device.target);
            let same = |g: &&mut (String, Group)| {
                Arc::ptr_eq(&g.1.device.device, &way.device.device) && g.0 == target
            };
            match groups.iter_mut().find(same) {
                Some((_, group)) => group.ways.push(way),
                None => groups.push((
                    target,
                    Group {
                        device: &way.device,
                        ways: vec![way],
                    },
                )),
            }
        }
        groups.into_iter().map(|g| g.1).collect()
    }
    /// Plans every case in every way; a perturbed duplicate of a case's plan is counted, not kept.
    pub fn plan(&self, cases: &[Case], record: &Record) -> Planned<'a> {
        let target = &self.device.target;
        let mut planned = Planned {
            schedules: Vec::new(),
            tallies: Vec::new(),
        };
        for (i, case) in cases.iter().enumerate() {
            let mut tally = Tally::new(&target.name);
            let (mut seen, mut texts) = (HashSet::new(), HashSet::new());
            for way in &self.ways {
                if !record.begins("plan", &named(case, way)).expect(RECORD) {
                    continue;
                }
                let mut policy: Box<dyn Policy> = match way.seed {
                    // Seeded by the case too, so that a case has the same schedules alone and among
                    // others.
                    Some(seed) => Box::new(Perturb::new(
                        Random::from_name(&format!("{} {seed}", case.name)).next() | 1,
                    )),
                    None => Box::new(Cheapest),
                };
                let compiled =
                    compile(&case.function, target, self.device.dialect, policy.as_mut());
                tally.decided(&compiled.decisions);
                texts.extend(compiled.programs.iter().map(|p| identity(p)));
                if way.seed.is_none() || seen.insert(whole(&compiled)) {
                    tally.run += 1;
                    let ready = Ready {
                        function: case.function.clone(),
                        compiled: Arc::new(compiled),
                        kernels: vec![],
                    };
                    planned.schedules.push(Schedule {
                        case: i,
                        way,
                        ready: Arc::new(ready),
                    });
                }
            }
            tally.planned = self.ways.len();
            tally.texts = texts.len();
            planned.tallies.push(tally);
        }
        record.pauses().expect(RECORD);
        planned
    }
    /// Compiles and loads all schedules; removes and returns those that fail, with case and reason.
    pub fn load(&self, schedules: &mut Vec<Schedule<'a>>) -> Vec<(usize, String)> {
        let programs = |s: &Schedule| -> Vec<Program> {
            s.ready
                .compiled
                .programs
                .iter()
                .map(|p| p.as_ref().clone())
                .collect()
        };
        let all: Vec<Program> = schedules.iter().flat_map(programs).collect();
        let mut errors = Vec::new();
        let mut with =
            |schedule: &mut Schedule, kernels: Result<Vec<Arc<dyn Kernel>>, Error>| match kernels {
                Ok(kernels) => {
                    Arc::get_mut(&mut schedule.ready)
                        .expect("one owner")
                        .kernels = kernels;
                    true
                }
                Err(e) => {
                    errors.push((schedule.case, format!("{}: {e}", schedule.way.name)));
                    false
                }
            };
        match self.device.device.load(&all, &|_, _| ()) {
            Ok(kernels) => {
                let mut kernels = kernels.into_iter();
                for s in schedules.iter_mut() {
                    let own = kernels
                        .by_ref()
                        .take(s.ready.compiled.programs.len())
                        .collect();
                    with(s, Ok(own));
                }
            }
            // Schedules are then loaded one at a time, to find the one that fails.
            Err(_) => schedules.retain_mut(|s| {
                let kernels = self.device.device.load(&programs(s), &|_, _| ());
                with(s, kernels)
            }),
        }
        errors
    }
}

/// Key of everything in a program that a device uses: not its name, cost or descriptions.
fn identity(p: &Program) -> Key {
    let context = &p.context;
    let own = context
        .when
        .iter()
        .flat_map(|w| [w.skip, w.prologue])
        .flatten();
    let roots = [p.root, p.groups].into_iter().chain(own);
    let text = match p.source.is_empty() {
        // The device runs the graph itself.
        true => print(&p.graph, &roots.collect::<Vec<_>>()),
        false => format!(
            "{} {}",
            KernelText::from_program(p).key.hex(),
            print(&p.graph, &[p.groups])
        ),
    };
    let whens: Vec<_> = context
        .when
        .iter()
        .map(|w| (w.skip.is_some(), w.prologue.is_some(), w.exclusive))
        .collect();
    let around = (
        &p.params,
        &p.vars,
        p.threads,
        p.scratch,
        whens,
        &context.plan,
        &context.streams,
    );
    Key::from_parts([text, format!("{around:?}")])
}

/// Key of everything that determines what a compiled function does.
fn whole(c: &Compiled) -> Key {
    let kernels: Vec<Key> = c.programs.iter().map(|p| identity(p)).collect();
    Key::from_parts([format!(
        "{:?}",
        (kernels, &c.levels, &c.temps, c.arena, &c.layouts)
    )])
}
