//! Prints linear code as text, for `gristmill kernels --stage linear`.

use super::{Addition, Code, KernelCode, Prefetch, Statement, Update};
use gristmill_uop::text::print_node;
use gristmill_uop::{Arg, Graph, Id, Op};
use std::collections::HashMap;
use std::fmt::Write;

/// Prints a kernel: its launch-wide properties and its bodies.
pub fn print_kernel(g: &Graph, code: &KernelCode) -> String {
    let mut out = String::new();
    if code.threads > 1 {
        let _ = writeln!(
            out,
            "{} threads, room for {} workgroups",
            code.threads, code.resident
        );
        let _ = code.shared.map_or(Ok(()), |percent| {
            writeln!(out, "{percent} % of a unit's memory shared")
        });
    }
    for (what, statements) in [
        ("at first", &code.entry),
        ("where nothing is computed", &code.idle),
    ] {
        let words: Vec<String> = statements.iter().map(|s| line(g, s)).collect();
        if !words.is_empty() {
            let _ = writeln!(out, "{what}: {}", words.join(", "));
        }
    }
    for body in &code.bodies {
        out.push_str("body {\n");
        for line in print(g, body).lines() {
            let _ = writeln!(out, "  {line}");
        }
        out.push_str("}\n");
    }
    out
}

/// Prints the statements of a body, one per line, indented by block. Nodes are named by their
/// number in `g`; parameters, variables and workgroup indices come first.
pub fn print(g: &Graph, code: &Code) -> String {
    let mut out = String::new();
    for id in leaves(g, code) {
        let _ = writeln!(out, "{}", print_node(g, id));
    }
    if let Some(skip) = code.skip {
        let _ = writeln!(out, "left out if {}", expression(g, skip));
    }
    let mut depth = 0;
    for statement in &code.statements {
        if *statement == Statement::End {
            depth -= 1;
        }
        let _ = writeln!(out, "{:1$}{2}", "", 2 * depth, line(g, statement));
        if statement.opens() {
            depth += 1;
        }
        if let Statement::Nest { threads, .. } | Statement::Threads(threads) = statement {
            for t in threads {
                let divide = t.divide.map(|by| format!(" / {by}")).unwrap_or_default();
                let modulo = t.modulo.map(|by| format!(" mod {by}")).unwrap_or_default();
                let _ = writeln!(
                    out,
                    "{:1$}%{2} = thread{divide}{modulo}",
                    "",
                    2 * depth,
                    t.range.0
                );
            }
        }
    }
    out
}

fn line(g: &Graph, statement: &Statement) -> String {
    match statement {
        Statement::Define(id) => print_node(g, *id),
        Statement::Loop {
            range,
            step,
            unroll,
        } => {
            let step = if *step == 1 {
                String::new()
            } else {
                format!("in steps of {step} ")
            };
            let unroll = unroll.map(|n| format!("unroll {n} ")).unwrap_or_default();
            format!("loop {} {step}{unroll}{{", print_node(g, *range))
        }
        Statement::Iteration(range, index) => {
            format!("iteration %{} = {} {{", range.0, value(g, *index))
        }
        // An accumulator's second source is its reduction.
        Statement::Accumulator(id) => {
            let (first, result) = (value(g, g[*id].src[0]), value(g, g[*id].src[1]));
            format!("accumulator %{} = {first}, in the end {result}", id.0)
        }
        Statement::Accumulate(id, update) => {
            let text = print_node(g, *update);
            format!(
                "%{} <- {}",
                id.0,
                text.split_once(" = ")
                    .map_or(text.as_str(), |(_, rest)| rest)
            )
        }
        Statement::Add(of) => addition(g, of),
        Statement::Update(of) => update(g, of),
        Statement::AsyncGroup => "end of a group of async copies".into(),
        Statement::AsyncWait(0) => "wait for async copies".into(),
        Statement::AsyncWait(groups) => {
            format!("wait for async copies but those of {groups} groups")
        }
        Statement::ProductsEnded(0) => "wait for products of several warps".into(),
        Statement::ProductsEnded(but) => {
            format!("wait for products of several warps but the last {but}")
        }
        Statement::Carried(load, first) => format!("carried %{} = {}", load.0, value(g, *first)),
        Statement::Carry(load, next) => format!("%{} <- {}", load.0, value(g, *next)),
        Statement::Prefetch(p) => prefetch(g, p),
        Statement::Leave(condition) => format!("leave if {}", expression(g, *condition)),
        Statement::Unless(condition) => format!("unless {} {{", expression(g, *condition)),
        Statement::Nest {
            buffer,
            staged,
            globals,
            ..
        } => {
            let per: Vec<String> = globals.iter().map(|g| format!("%{}", g.0)).collect();
            let what = if *staged { "stage" } else { "nest" };
            format!("{what} %{} for [{}] {{", buffer.0, per.join(", "))
        }
        s => access(g, s),
    }
}

/// Prints a statement that reads or writes memory, or one without operands.
fn access(g: &Graph, statement: &Statement) -> String {
    match statement {
        Statement::Write(buffer, at, v) => {
            format!("%{}[{}] <- {}", buffer.0, value(g, *at), value(g, *v))
        }
        Statement::WriteTile(buffer, at, stride, v) => {
            format!(
                "rows {stride} apart of %{}[{}] <- {}",
                buffer.0,
                value(g, *at),
                value(g, *v)
            )
        }
        Statement::WideWrite(buffer, at, bytes, values) => {
            format!(
                "{bytes} bytes of %{}[{}] <- {}",
                buffer.0,
                value(g, *at),
                values_of(g, values)
            )
        }
        Statement::Wide(buffer, at, bytes, parts) => {
            format!(
                "{} = {bytes} bytes of %{}[{}]",
                defined(parts),
                buffer.0,
                value(g, *at)
            )
        }
        Statement::Copied(buffer, at, bytes, parts) => {
            format!(
                "{} = {bytes} copied bytes of %{}[{}]",
                defined(parts),
                buffer.0,
                value(g, *at)
            )
        }
        Statement::AsyncCopy {
            to,
            from,
            plus,
            bytes,
            when,
        } => {
            let copied = async_copy(g, [*to, *from], *plus, *when);
            format!("async copy of {bytes} bytes: {copied}")
        }
        s => words(s).into(),
    }
}

/// Prints the destination, source and condition of an asynchronous copy.
fn async_copy(g: &Graph, [to, from]: [[Id; 2]; 2], plus: [i64; 2], when: Option<Id>) -> String {
    let place = |of: [Id; 2], plus: i64| match plus {
        0 => format!("%{}[{}]", of[0].0, value(g, of[1])),
        _ => format!("%{}[{} + {plus}]", of[0].0, value(g, of[1])),
    };
    let when = when
        .map(|when| format!(" if {}", expression(g, when)))
        .unwrap_or_default();
    format!("{} <- {}{when}", place(to, plus[0]), place(from, plus[1]))
}

/// Returns the text of a statement without operands.
fn words(statement: &Statement) -> &'static str {
    match statement {
        Statement::Barrier => "barrier",
        Statement::WritesShown => "show what was written to products of several warps",
        Statement::DependencyWait => "wait for predecessors",
        Statement::LaunchDependents => "launch dependents",
        Statement::Threads(_) => "threads",
        Statement::End => "}",
        s => unreachable!("it has operands: {s:?}"),
    }
}

fn addition(
    g: &Graph,
    Addition {
        buffer,
        at,
        values,
        when,
        atomic,
    }: &Addition,
) -> String {
    let how = if *atomic { "atomically " } else { "" };
    let when = when
        .map(|when| format!(" if {}", value(g, when)))
        .unwrap_or_default();
    format!(
        "%{}[{}] {how}+= {}{when}",
        buffer.0,
        value(g, *at),
        values_of(g, values)
    )
}

/// Prints an update of a word: its old value and the nodes computed from it, in order.
fn update(g: &Graph, of: &Update) -> String {
    let how = if of.atomic { "atomically " } else { "" };
    let when = of
        .when
        .map(|when| format!(" if {}", value(g, when)))
        .unwrap_or_default();
    let values: Vec<String> = [of.old]
        .iter()
        .chain(&of.values)
        .map(|&v| print_node(g, v))
        .collect();
    format!(
        "%{}[{}] {how}<- {{ {} }}{when}",
        of.buffer.0,
        value(g, of.at),
        values.join("; ")
    )
}

fn values_of(g: &Graph, values: &[Id]) -> String {
    let values: Vec<String> = values.iter().map(|&v| value(g, v)).collect();
    values.join(", ")
}

/// Prints the loads that a wide load replaces, each with its byte offset.
fn defined(parts: &[(Id, usize)]) -> String {
    let parts: Vec<String> = parts
        .iter()
        .map(|p| format!("%{} at {}", p.0.0, p.1))
        .collect();
    parts.join(", ")
}

fn prefetch(g: &Graph, p: &Prefetch) -> String {
    let sum = |terms: &[(Id, i64)]| -> String {
        terms
            .iter()
            .map(|&(t, c)| format!("{} * {c} + ", expression(g, t)))
            .collect()
    };
    match p {
        Prefetch::Line {
            at: [buffer, at],
            ahead,
        } => {
            format!(
                "prefetch the line of %{}[{} + {ahead}]",
                buffer.0,
                value(g, *at)
            )
        }
        Prefetch::Tile(t) => {
            let turn: Vec<String> = t.turn.iter().map(|r| format!("%{}", r.0)).collect();
            let (at, step) = (sum(&t.terms), t.line * t.lines);
            format!(
                "prefetch {} lines of {} from %{}[{at}{} + turn [{}] * {step}]",
                t.lines,
                t.line,
                t.buffer.0,
                t.from,
                turn.join(", ")
            )
        }
        Prefetch::Span(s) => {
            let loops: Vec<String> = s
                .loops
                .iter()
                .map(|&r| format!(" for {}", print_node(g, r)))
                .collect();
            format!(
                "prefetch {} bytes of %{} from byte {}{}{}",
                s.bytes,
                s.buffer.0,
                sum(&s.terms),
                s.from,
                loops.concat()
            )
        }
    }
}

/// Returns the nodes known before the first statement: buffers, variables and
/// workgroup indices, by number.
fn leaves(g: &Graph, code: &Code) -> Vec<Id> {
    let mut roots: Vec<Id> = code.globals.clone();
    roots.extend(code.skip);
    for statement in &code.statements {
        match statement {
            Statement::Define(id)
            | Statement::Loop { range: id, .. }
            | Statement::Accumulator(id) => roots.push(*id),
            Statement::Iteration(_, id)
            | Statement::Accumulate(_, id)
            | Statement::Unless(id)
            | Statement::Leave(id) => roots.push(*id),
            Statement::Write(buffer, at, v) => roots.extend([*buffer, *at, *v]),
            Statement::Add(addition) => roots.extend(addition.uses().chain([addition.buffer])),
            Statement::Update(update) => roots.extend(update.uses(g).chain([update.buffer])),
            Statement::WriteTile(buffer, at, _, v) => roots.extend([*buffer, *at, *v]),
            Statement::WideWrite(buffer, at, _, values) => {
                roots.extend([*buffer, *at].iter().chain(values))
            }
            Statement::Wide(_, _, _, parts) => roots.extend(parts.iter().map(|p| p.0)),
            Statement::AsyncCopy { to, from, when, .. } => {
                roots.extend(to.iter().chain(from).chain(when))
            }
            Statement::Copied(buffer, at, ..) => roots.extend([*buffer, *at]),
            Statement::Carried(_, value) | Statement::Carry(_, value) => roots.push(*value),
            Statement::Nest { buffer, .. } => roots.push(*buffer),
            Statement::Prefetch(Prefetch::Span(s)) => {
                roots.extend(s.terms.iter().map(|t| t.0).chain([s.buffer]))
            }
            Statement::Prefetch(Prefetch::Tile(t)) => {
                roots.extend(t.terms.iter().map(|t| t.0).chain([t.buffer]))
            }
            Statement::Prefetch(Prefetch::Line { at, .. }) => roots.extend(at),
            Statement::End
            | Statement::Barrier
            | Statement::AsyncGroup
            | Statement::AsyncWait(_)
            | Statement::ProductsEnded(_)
            | Statement::WritesShown
            | Statement::DependencyWait
            | Statement::Threads(_)
            | Statement::LaunchDependents => {}
        }
    }
    let mut leaves: Vec<Id> = g
        .toposort(&roots)
        .into_iter()
        .filter(|id| {
            matches!(g[*id].op, Op::Param | Op::Var | Op::Local) || code.globals.contains(id)
        })
        .collect();
    leaves.sort();
    leaves
}

/// Prints an index expression that no statement defines, as nested operations.
fn expression(g: &Graph, id: Id) -> String {
    match g[id].op {
        Op::Const | Op::Var | Op::Range | Op::Param | Op::Local => value(g, id),
        op => {
            let of: Vec<String> = g[id].src.iter().map(|&s| expression(g, s)).collect();
            format!("{}({})", op.name(), of.join(", "))
        }
    }
}

/// Prints a value as an operand.
fn value(g: &Graph, id: Id) -> String {
    match &g[id].arg {
        Arg::Int(v) if g[id].op == Op::Const => v.to_string(),
        Arg::Float(bits) if g[id].op == Op::Const => f64::from_bits(*bits).to_string(),
        _ => format!("%{}", id.0),
    }
}

/// Renumbers `%12` in order of first use: arena numbers of linear code count unprinted nodes.
pub fn renumbered(text: &str) -> String {
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let end = part
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(part.len());
        let (number, rest) = part.split_at(end);
        let next = known.len();
        let _ = write!(out, "%{}{rest}", known.entry(number).or_insert(next));
    }
    out
}
