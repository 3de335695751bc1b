//! Compiler stages of a function and its kernels, as text for `kernels` and `profile`.

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

/// A stage that can be printed.
pub struct Stage {
    pub name: &'static str,
    /// Description in one line, for --help.
    pub about: &'static str,
    pub text: Text,
}

/// Printer of a stage.
pub enum Text {
    /// Prints a function as a whole.
    OfFunction(fn(&Function, &Compiled, &Target) -> String),
    /// Prints one kernel of a function.
    OfKernel(fn(&Program, &Target) -> String),
}

/// All stages in the order of compilation.
pub static TABLE: &[Stage] = &[
    Stage {
        name: "tensor",
        about: "Tensor graph that the model builds",
        text: Text::OfFunction(|f, _, _| tensor(f)),
    },
    Stage {
        name: "alternatives",
        about: "Equality saturation: e-classes, the alternatives with their costs, the choice",
        text: Text::OfFunction(|f, _, t| alternatives(f, t)),
    },
    Stage {
        name: DECISIONS,
        about: "Decisions on placement and schedules with the cost of each candidate, and the rewrite rules that fired",
        text: Text::OfFunction(|_, c, _| lines(c)),
    },
    Stage {
        name: "kernel",
        about: "Kernel graph: loops and loads",
        text: Text::OfKernel(|p, _| kernel(p)),
    },
    Stage {
        name: "linear",
        about: "Linearised statements",
        text: Text::OfKernel(linear),
    },
    Stage {
        name: SOURCE,
        about: "Source code that is compiled",
        text: Text::OfKernel(|p, _| p.source.clone()),
    },
];

/// The stage that needs all candidates of each decision.
pub const DECISIONS: &str = "decisions";
/// The stage that a device without a dialect lacks.
pub const SOURCE: &str = "source";

/// Parser of a stage's name.
pub fn parser() -> impl TypedValueParser<Value = &'static Stage> {
    let names = TABLE
        .iter()
        .map(|stage| PossibleValue::new(stage.name).help(stage.about));
    PossibleValuesParser::new(names).map(|name| {
        TABLE
            .iter()
            .find(|stage| stage.name == name)
            .unwrap_or(&TABLE[0])
    })
}

/// Returns the non-empty stages of a kernel.
pub fn of_kernel(program: &Program, target: &Target) -> Vec<Shown> {
    let shown = |stage: &Stage| match stage.text {
        Text::OfKernel(text) => Some(Shown {
            name: stage.name,
            text: text(program, target),
        }),
        Text::OfFunction(_) => None,
    };
    TABLE
        .iter()
        .filter_map(shown)
        .filter(|stage| !stage.text.is_empty())
        .collect()
}

/// Returns the stages of a function as a whole, except those named.
pub fn of_function(
    function: &Function,
    compiled: &Compiled,
    target: &Target,
    without: &[&str],
) -> Vec<Shown> {
    let shown = |stage: &Stage| match stage.text {
        Text::OfFunction(text) => Some(Shown {
            name: stage.name,
            text: text(function, compiled, target),
        }),
        Text::OfKernel(_) => None,
    };
    TABLE
        .iter()
        .filter(|stage| !without.contains(&stage.name))
        .filter_map(shown)
        .collect()
}

/// Prints the tensor graph of a function.
pub fn tensor(function: &Function) -> String {
    let mut out = String::new();
    for (i, slot) in slots(function).into_iter().enumerate() {
        let _ = writeln!(out, "# slot {i}: {slot}");
    }
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    out + &text::print(&function.graph, &roots)
}

/// Prints the alternatives of a function and the choice.
pub fn alternatives(function: &Function, target: &Target) -> String {
    let mut decider = Decider {
        policy: &mut Cheapest,
        plans: &target.plans,
        log: vec![],
    };
    let (_, report) = considered(function, target, &mut decider, &forms::all(), Budget::USUAL);
    printable(&report.to_string()).to_string()
}

/// Describes the slots of a function.
pub fn slots(function: &Function) -> Vec<String> {
    let slot = |slot: &gristmill_uop::function::Slot| {
        format!(
            "{} {:?} {:?} {:?}",
            printable(&slot.name),
            slot.kind,
            slot.dims,
            slot.storage
        )
    };
    function.slots.iter().map(slot).collect()
}

/// Prints the `wanted` decisions of a compilation below a heading, one per line.
pub fn decisions(compiled: &Compiled, wanted: impl Fn(&Decision) -> bool) -> Vec<String> {
    explained(compiled.decisions.iter().filter(|d| wanted(d)))
}

/// Prints decisions below a heading, one per line.
pub fn explained<'d>(decisions: impl IntoIterator<Item = &'d Decision>) -> Vec<String> {
    let mut decisions = decisions.into_iter().peekable();
    let heading = decisions
        .peek()
        .map(|_| "decisions (* marks the choice):".to_owned());
    let lines = decisions.map(|d| format!("  {}", printable(&d.explain())));
    heading.into_iter().chain(lines).collect()
}

/// Prints the rewrite rules that fired, the most frequent first.
pub fn rules(compiled: &Compiled) -> Vec<String> {
    let mut rules = compiled.rules.clone();
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.1));
    let heading = (!rules.is_empty())
        .then(|| "rules that fired, including those of rejected candidates:".to_owned());
    heading
        .into_iter()
        .chain(
            rules
                .iter()
                .map(|(name, times)| format!("  {times:>7}  {name}")),
        )
        .collect()
}

/// Prints all decisions and rules.
fn lines(compiled: &Compiled) -> String {
    let lines = decisions(compiled, |_| true)
        .into_iter()
        .chain(rules(compiled));
    lines.map(|line| line + "\n").collect()
}

/// Prints the graph of a kernel.
fn kernel(program: &Program) -> String {
    text::print(&program.graph, &[program.root])
}

/// Prints the linearised statements of a kernel.
fn linear(program: &Program, target: &Target) -> String {
    if custom::is_custom(program) {
        return "# a custom kernel: there is only its source\n".into();
    }
    let (g, code) = lower::lower_program(program, target);
    lower::print::print_kernel(&g, &code)
}

/// Describes the computation of a kernel: title, then nodes with shapes.
pub fn computes(program: &Program) -> String {
    printable(&format!("{}: {}", program.title, program.notes.join("; ")))
}
