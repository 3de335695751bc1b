//! Data of the page of `kernels --html`: functions compiled again, observed at every pass.

use crate::failure::printable;
use crate::stages::{self, DECISIONS, computes};
use gristmill_backend::Opened;
use gristmill_compiler::{Compiled, Decision, Listed, Watch, compile_watched, watch};
use gristmill_profile::compilation::{
    self, AlternativeRecord, KernelRecord, NodeRecord, Pass, RuleRecord,
};
use gristmill_uop::expression::expression;
use gristmill_uop::function::Function;
use gristmill_uop::program::Program;
use gristmill_uop::rules::fired_with_examples;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, text};
use std::collections::BTreeMap;

/// Depth of the expressions in examples of a rule.
const DEPTH: usize = 3;

/// Lists the ops: name, class and documentation.
pub fn ops() -> Vec<[&'static str; 3]> {
    Op::TABLE
        .iter()
        .map(|row| [row.name, row.class.name(), row.doc])
        .collect()
}

/// Lists the observed passes: name and description.
pub fn passes() -> Vec<[&'static str; 2]> {
    watch::PASSES.iter().map(|pass| [pass.0, pass.1]).collect()
}

/// Compiles a function as for the device and records every pass; a step calls it `calls` times.
pub fn function(
    function: &Function,
    name: String,
    calls: usize,
    opened: &Opened,
) -> compilation::Function {
    let mut seen = Seen {
        function,
        nodes: BTreeMap::new(),
        passes: vec![],
        fired: BTreeMap::new(),
    };
    let target = &opened.target;
    let compiled = compile_watched(function, target, opened.dialect, &mut Listed, &mut seen);
    let Seen { nodes, passes, .. } = seen;
    compilation::Function {
        name,
        calls,
        seconds: critical_path(&compiled),
        arena: compiled.arena,
        slots: stages::slots(function),
        nodes: nodes.into_values().collect(),
        passes,
        decisions: compiled.decisions.iter().map(decision).collect(),
        kernels: (0..compiled.programs.len())
            .map(|launch| kernel(&compiled, launch, target))
            .collect(),
        stages: stages::of_function(function, &compiled, &opened.target, &[DECISIONS]),
    }
}

/// Modelled seconds of one call: launches of a level are concurrent, levels are sequential.
pub fn critical_path(compiled: &Compiled) -> f64 {
    let mut levels: Vec<f64> = Vec::new();
    for (program, &level) in compiled.programs.iter().zip(&compiled.levels) {
        levels.resize(levels.len().max(level + 1), 0.0);
        levels[level] = levels[level].max(program.seconds);
    }
    levels.iter().sum()
}

fn decision(of: &Decision) -> compilation::DecisionRecord {
    let option = |o: &gristmill_compiler::decision::Alternative| AlternativeRecord {
        name: o.name,
        plan: printable(&o.plan),
        seconds: o.seconds,
    };
    compilation::DecisionRecord {
        kind: of.kind,
        site: printable(&of.site),
        margin: of.margin,
        chosen: of.chosen,
        asked: of.asked,
        options: of.options.iter().map(option).collect(),
    }
}

fn kernel(compiled: &Compiled, launch: usize, target: &Target) -> KernelRecord {
    let program: &Program = &compiled.programs[launch];
    KernelRecord {
        name: program.name.clone(),
        level: compiled.levels[launch],
        about: computes(program),
        seconds: program.seconds,
        weight_bytes: program.estimate.weight_bytes,
        other_bytes: program.estimate.other_bytes,
        operations: program.estimate.operations,
        plans: compiled.plans[launch].texts(),
        stages: stages::of_kernel(program, target),
    }
}

/// Observer of the compilation of a function.
struct Seen<'f> {
    function: &'f Function,
    nodes: BTreeMap<Id, NodeRecord>,
    passes: Vec<Pass>,
    /// Firings of each rule until the last pass.
    fired: BTreeMap<&'static str, u32>,
}

impl Watch for Seen<'_> {
    fn pass(&mut self, name: &'static str, graph: &mut Graph, roots: &[Id]) {
        for id in graph.toposort(roots) {
            self.nodes
                .entry(id)
                .or_insert_with(|| node(graph, id, self.function));
        }
        let mut rules = Vec::new();
        for (name, times, examples) in fired_with_examples(graph) {
            let before = self.fired.insert(name, times).unwrap_or(0);
            let example = |(left, right): &(gristmill_uop::Node, Id)| {
                [
                    expression(graph, left, DEPTH),
                    expression(graph, &graph[*right], DEPTH),
                ]
                .map(|text| printable(&text))
            };
            if times > before {
                rules.push(RuleRecord {
                    name,
                    times: times - before,
                    examples: examples.iter().map(example).collect(),
                });
            }
        }
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.times));
        let pass = watch::PASSES
            .iter()
            .position(|pass| pass.0 == name)
            .unwrap_or(0);
        // Rules that fired while the model built the graph belong to no pass.
        let rules = if self.passes.is_empty() {
            vec![]
        } else {
            rules
        };
        self.passes.push(Pass {
            pass,
            roots: roots.iter().map(|root| root.0).collect(),
            rules,
        });
        graph.keep_examples();
    }
}

fn node(graph: &Graph, id: Id, function: &Function) -> NodeRecord {
    let node = &graph[id];
    let mut argument = String::new();
    text::argument(&node.arg, &mut argument);
    if let Arg::Param(slot) | Arg::Packed(slot, _) = node.arg
        && let Some(slot) = function.slots.get(slot as usize)
    {
        argument.push(' ');
        argument.push_str(&slot.name);
    }
    let value = graph.int_value(id).map(|value| value.to_string());
    let value = value.or_else(|| graph.float_value(id).map(|value| format!("{value:?}")));
    let dims = graph.dims(id);
    NodeRecord {
        number: id.0,
        op: node.op as usize,
        dtype: node.dtype.to_string(),
        shape: if dims.is_empty() {
            String::new()
        } else {
            graph.show_dims(dims)
        },
        argument: printable(value.as_deref().unwrap_or(argument.trim_start())),
        sources: node.src.iter().map(|source| source.0).collect(),
    }
}
