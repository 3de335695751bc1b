//! What a kernel was on its way to text, for `kernels` and `profile`.

use crate::failure::printable;
use gristmill_compiler::alternatives::saturate::Budget;
use gristmill_compiler::alternatives::{considered, rules as forms};
use gristmill_compiler::decision::Decider;
use gristmill_compiler::{Cheapest, Compiled, Decision, lower};
use gristmill_uop::Id;
use gristmill_uop::function::Function;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use gristmill_uop::text;
use std::fmt::Write;

/// The function as the model wrote it.
pub fn tensor(function: &Function) -> String {
    let mut out = String::new();
    for (i, slot) in function.slots.iter().enumerate() {
        let _ =
            writeln!(out, "# slot {i}: {} {:?} {:?} {:?}", printable(&slot.name), slot.kind, slot.dims, slot.storage);
    }
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    out + &text::print(&function.graph, &roots)
}

/// The forms of a function that were looked at, and what was chosen.
pub fn alternatives(function: &Function, target: &Target) -> String {
    let mut decider = Decider { policy: &mut Cheapest, plans: &target.plans, log: vec![] };
    let (_, report) = considered(function, target, &mut decider, &forms::all(), Budget::USUAL);
    printable(&report.to_string()).to_string()
}

/// What was decided when a function was compiled, as far as it is wanted: a line of heading, a line for each decision.
pub fn decisions(compiled: &Compiled, wanted: impl Fn(&Decision) -> bool) -> Vec<String> {
    let wanted: Vec<&Decision> = compiled.decisions.iter().filter(|d| wanted(d)).collect();
    let heading = (!wanted.is_empty()).then(|| "decisions, * what was chosen:".to_owned());
    let lines = wanted.into_iter().map(|d| format!("  {}", printable(&d.explain())));
    heading.into_iter().chain(lines).collect()
}

/// The rules that fired meanwhile, the most frequent first.
pub fn rules(compiled: &Compiled) -> Vec<String> {
    let mut rules = compiled.rules.clone();
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.1));
    let heading = (!rules.is_empty()).then(|| "rules that fired, also for kernels that were only tried:".to_owned());
    heading.into_iter().chain(rules.iter().map(|(name, times)| format!("  {times:>7}  {name}"))).collect()
}

/// A kernel as loops and loads.
pub fn kernel(program: &Program) -> String {
    text::print(&program.graph, &[program.root])
}

/// A kernel as statements in order.
pub fn linear(program: &Program, target: &Target) -> String {
    let (g, code) = lower::lower_program(program, target);
    lower::print::print_kernel(&g, &code)
}

/// What a kernel computes: for people, and the nodes with their shapes.
pub fn computes(program: &Program) -> String {
    printable(&format!("{}: {}", program.title, program.notes.join("; ")))
}
