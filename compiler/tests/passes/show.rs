//! Prints results of passes, with node numbers that depend on the graph alone.

use gristmill_compiler::testing::{Decision, Hint};
use gristmill_uop::program::When;
use gristmill_uop::{Graph, Id, Node, Op, Sources, text};
use std::collections::HashMap;
use std::fmt::Write;

/// Numbers of the nodes in the printed graph.
pub struct Numbers(HashMap<Id, u32>);

impl Numbers {
    /// Numbers nodes as [`text::print`] does.
    pub fn new(g: &Graph, roots: &[Id]) -> Numbers {
        let lines = g
            .toposort(roots)
            .into_iter()
            .filter(|&n| g[n].op != Op::Const);
        Numbers(lines.zip(0..).collect())
    }
    /// Formats a node as an operand.
    pub fn name(&self, g: &Graph, id: Id) -> String {
        match (self.0.get(&id), g.int_value(id)) {
            (Some(n), _) => format!("%{n}"),
            (None, Some(v)) => format!("{v}"),
            (None, None) => "elsewhere".to_string(),
        }
    }
    pub fn names(&self, g: &Graph, ids: &[Id]) -> String {
        format!(
            "[{}]",
            ids.iter()
                .map(|&n| self.name(g, n))
                .collect::<Vec<_>>()
                .join(", ")
        )
    }
}

/// Copies nodes with parameters without dims, as kernels have them.
pub fn stripped(from: &Graph, roots: &[Id]) -> (Graph, Vec<Id>) {
    let (mut to, mut map) = (Graph::new(), HashMap::<Id, Id>::new());
    for id in from.toposort(roots) {
        let node = &from[id];
        let src: Sources = if node.op == Op::Param {
            Sources::new()
        } else {
            node.src.iter().map(|s| map[s]).collect()
        };
        map.insert(
            id,
            to.intern(Node {
                src,
                ..node.clone()
            }),
        );
    }
    let roots = roots.iter().map(|r| map[r]).collect();
    (to, roots)
}

/// The text of nests.
pub fn nests(g: &Graph, all: &[Id]) -> String {
    let (g, all) = stripped(g, all);
    text::print(&g, &all)
}

/// Schedule hints, one line per node.
pub fn hints<'a>(
    g: &Graph,
    numbers: &Numbers,
    all: impl IntoIterator<Item = (&'a Id, &'a Hint)>,
) -> String {
    let mut all: Vec<(&Id, &Hint)> = all.into_iter().collect();
    all.sort_by_key(|h| numbers.0.get(h.0));
    let mut out = String::new();
    for (&node, h) in all {
        let _ = write!(
            out,
            "hint {}: over the launch {} axes",
            numbers.name(g, node),
            h.globals
        );
        let _ = write!(out, ", {} of the last inside as {}", h.tile, h.inner.name());
        let _ = write!(out, ", inside {}", numbers.names(g, &h.inside));
        let _ = write!(out, ", staged {}", numbers.names(g, &h.staged));
        if let Some(f) = h.future {
            let (first, size) = (numbers.name(g, f.first), f.size);
            let chunk = match f.window {
                None => format!("(axis {})", f.chunk),
                Some(_) => format!("({} + axis {})", numbers.name(g, f.base), f.chunk),
            };
            let _ = write!(
                out,
                ", skipped where {size}·{chunk} > {first} + (axis {})",
                f.token
            );
            if let Some(w) = f.window {
                let _ = write!(
                    out,
                    " or {size}·{chunk} + {} < {first} + (axis {})",
                    size + w - 2,
                    f.token
                );
            }
        }
        if let Some(r) = h.resident {
            let settled = r.settled.map_or("nothing".to_string(), |s| {
                format!("what is before {}", numbers.name(g, s))
            });
            let _ = write!(
                out,
                ", resident {} of {} positions, settled {settled}",
                numbers.name(g, r.node),
                r.size
            );
        }
        out.push('\n');
    }
    out
}

/// Conditions of workgroups, if there are any.
pub fn when(g: &Graph, numbers: &Numbers, w: &When) -> String {
    let mut out = String::new();
    for (what, id) in [("skipped", w.skip), ("prologue", w.prologue)] {
        if let Some(id) = id {
            let _ = writeln!(out, "{what} if {}", numbers.name(g, id));
        }
    }
    if w.exclusive {
        out.push_str("alone on its worker\n");
    }
    out
}

pub fn decisions(all: &[Decision]) -> String {
    all.iter().map(|d| format!("{}\n", d.explain())).collect()
}
