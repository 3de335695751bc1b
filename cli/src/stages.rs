//! What a function and its kernels were on their way to text, for `kernels` and `profile`: a table.

use crate::failure::printable;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use gristmill_compiler::alternatives::saturate::Budget;
use gristmill_compiler::alternatives::{considered, rules as forms};
use gristmill_compiler::decision::Decider;
use gristmill_compiler::{Cheapest, Compiled, Decision, custom, lower};
use gristmill_profile::StageText as Shown;
use gristmill_uop::Id;
use gristmill_uop::function::Function;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use gristmill_uop::text;
use std::fmt::Write;

/// What there is to read at a point of that way.
pub struct Stage {
    /// What it is called.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Its text.
    pub text: Text,
}

/// The text of a stage.
pub enum Text {
    /// Of a function as a whole.
    OfFunction(fn(&Function, &Compiled, &Target) -> String),
    /// Of each of its kernels.
    OfKernel(fn(&Program, &Target) -> String),
}

/// All stages, in the order in which they come to be: `kernels --stage` prints them, the pages of `kernels --html` and `profile --html` show them.
pub static TABLE: &[Stage] = &[
    Stage { name: "tensor", about: "The function as the model wrote it", text: Text::OfFunction(|f, _, _| tensor(f)) },
    Stage {
        name: "alternatives",
        about: "Its other forms: classes of equal terms, the forms that were looked at with their prices, what was chosen",
        text: Text::OfFunction(|f, _, t| alternatives(f, t)),
    },
    Stage {
        name: DECISIONS,
        about: "How it was cut into kernels: the rules that fired, the decisions and what each option would have cost",
        text: Text::OfFunction(|_, c, _| lines(c)),
    },
    Stage { name: "kernel", about: "Kernels: loops and loads", text: Text::OfKernel(|p, _| kernel(p)) },
    Stage { name: "linear", about: "Statements in order", text: Text::OfKernel(linear) },
    Stage { name: SOURCE, about: "The text that is compiled", text: Text::OfKernel(|p, _| p.source.clone()) },
];

/// The stage that wants all alternatives to be listed.
pub const DECISIONS: &str = "decisions";
/// The stage that a device without a dialect has not.
pub const SOURCE: &str = "source";

/// Reads the name of a stage.
pub fn parser() -> impl TypedValueParser<Value = &'static Stage> {
    let names = TABLE.iter().map(|stage| PossibleValue::new(stage.name).help(stage.about));
    PossibleValuesParser::new(names).map(|name| TABLE.iter().find(|stage| stage.name == name).unwrap_or(&TABLE[0]))
}

/// The stages of a kernel that have any text.
pub fn of_kernel(program: &Program, target: &Target) -> Vec<Shown> {
    let shown = |stage: &Stage| match stage.text {
        Text::OfKernel(text) => Some(Shown { name: stage.name, text: text(program, target) }),
        Text::OfFunction(_) => None,
    };
    TABLE.iter().filter_map(shown).filter(|stage| !stage.text.is_empty()).collect()
}

/// The stages of a function as a whole, but for those named.
pub fn of_function(function: &Function, compiled: &Compiled, target: &Target, without: &[&str]) -> Vec<Shown> {
    let shown = |stage: &Stage| match stage.text {
        Text::OfFunction(text) => Some(Shown { name: stage.name, text: text(function, compiled, target) }),
        Text::OfKernel(_) => None,
    };
    TABLE.iter().filter(|stage| !without.contains(&stage.name)).filter_map(shown).collect()
}

/// The function as the model wrote it.
pub fn tensor(function: &Function) -> String {
    let mut out = String::new();
    for (i, slot) in slots(function).into_iter().enumerate() {
        let _ = writeln!(out, "# slot {i}: {slot}");
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

/// What each slot of a function is.
pub fn slots(function: &Function) -> Vec<String> {
    let slot = |slot: &gristmill_uop::function::Slot| {
        format!("{} {:?} {:?} {:?}", printable(&slot.name), slot.kind, slot.dims, slot.storage)
    };
    function.slots.iter().map(slot).collect()
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

/// All decisions and rules.
fn lines(compiled: &Compiled) -> String {
    let lines = decisions(compiled, |_| true).into_iter().chain(rules(compiled));
    lines.map(|line| line + "\n").collect()
}

/// A kernel as loops and loads.
fn kernel(program: &Program) -> String {
    text::print(&program.graph, &[program.root])
}

/// A kernel as statements in order.
fn linear(program: &Program, target: &Target) -> String {
    if custom::is_custom(program) {
        return "# a kernel of the user's own: its text is all there is\n".into();
    }
    let (g, code) = lower::lower_program(program, target);
    lower::print::print_kernel(&g, &code)
}

/// What a kernel computes: for people, and the nodes with their shapes.
pub fn computes(program: &Program) -> String {
    printable(&format!("{}: {}", program.title, program.notes.join("; ")))
}
