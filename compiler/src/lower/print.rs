//! Linear code as text, for people: `gristmill kernels --stage linear`.

use super::code::{Code, Statement};
use gristmill_uop::text::print_node;
use gristmill_uop::{Arg, Graph, Id, Op};
use std::fmt::Write;

/// The statements of a body, one a line, indented by the loops around them. Nodes bear their numbers in `g`, which
/// statements before them define; parameters, variables and workgroup indices come first.
pub fn print(g: &Graph, code: &Code) -> String {
    let mut out = String::new();
    for id in leaves(g, code) {
        let _ = writeln!(out, "{}", print_node(g, id));
    }
    let mut depth = 0;
    for statement in &code.statements {
        if *statement == Statement::End {
            depth -= 1;
        }
        let _ = write!(out, "{:1$}", "", 2 * depth);
        let _ = match statement {
            Statement::Define(id) => writeln!(out, "{}", print_node(g, *id)),
            Statement::Loop(id) => writeln!(out, "loop {} {{", print_node(g, *id)),
            Statement::End => writeln!(out, "}}"),
            // An accumulator's second source is the reduction that it becomes the value of.
            Statement::Accumulator(id) => {
                let (first, result) = (value(g, g[*id].src[0]), value(g, g[*id].src[1]));
                writeln!(out, "accumulator %{} = {first}, in the end {result}", id.0)
            }
            Statement::Accumulate(id, update) => {
                let text = print_node(g, *update);
                writeln!(out, "%{} <- {}", id.0, text.split_once(" = ").map_or(text.as_str(), |(_, rest)| rest))
            }
            Statement::Write(buffer, at, v) => {
                writeln!(out, "%{}[{}] <- {}", buffer.0, value(g, *at), value(g, *v))
            }
            Statement::WideWrite(buffer, at, bytes, values) => {
                let values: Vec<String> = values.iter().map(|&v| value(g, v)).collect();
                writeln!(out, "{bytes} bytes of %{}[{}] <- {}", buffer.0, value(g, *at), values.join(", "))
            }
            Statement::Wide(buffer, at, bytes, parts) => {
                let parts: Vec<String> = parts.iter().map(|p| format!("%{} at {}", p.0.0, p.1)).collect();
                writeln!(out, "{} = {bytes} bytes of %{}[{}]", parts.join(", "), buffer.0, value(g, *at))
            }
            Statement::Nest { buffer, staged, globals, .. } => {
                let per: Vec<String> = globals.iter().map(|g| format!("%{}", g.0)).collect();
                let what = if *staged { "stage" } else { "nest" };
                writeln!(out, "{what} %{} for [{}] {{", buffer.0, per.join(", "))
            }
        };
        if matches!(statement, Statement::Loop(_) | Statement::Nest { .. }) {
            depth += 1;
        }
    }
    out
}

/// What is known before the first statement: buffers, variables and workgroup indices, in the order of their numbers.
fn leaves(g: &Graph, code: &Code) -> Vec<Id> {
    let mut roots: Vec<Id> = code.globals.clone();
    for statement in &code.statements {
        match statement {
            Statement::Define(id) | Statement::Loop(id) | Statement::Accumulator(id) => roots.push(*id),
            Statement::Accumulate(_, id) => roots.push(*id),
            Statement::Write(buffer, at, v) => roots.extend([*buffer, *at, *v]),
            Statement::WideWrite(buffer, at, _, values) => roots.extend([*buffer, *at].iter().chain(values)),
            Statement::Wide(_, _, _, parts) => roots.extend(parts.iter().map(|p| p.0)),
            Statement::Nest { buffer, .. } => roots.push(*buffer),
            Statement::End => {}
        }
    }
    let mut leaves: Vec<Id> = g
        .toposort(&roots)
        .into_iter()
        .filter(|id| matches!(g[*id].op, Op::Param | Op::Var | Op::Local) || code.globals.contains(id))
        .collect();
    leaves.sort();
    leaves
}

/// A value as an operand.
fn value(g: &Graph, id: Id) -> String {
    match &g[id].arg {
        Arg::Int(v) if g[id].op == Op::Const => v.to_string(),
        Arg::Float(bits) if g[id].op == Op::Const => f64::from_bits(*bits).to_string(),
        _ => format!("%{}", id.0),
    }
}
