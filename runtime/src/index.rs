//! Index expressions, such as workgroup counts, compiled once and evaluated at every replay.

use gristmill_uop::fold::{self, Value};
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use std::sync::Arc;

/// One instruction of an [`Index`]; operands are indices of earlier instructions.
enum Step {
    Const(i64),
    Var(usize),
    Apply {
        op: Op,
        out: Scalar,
        operands: Vec<usize>,
    },
}

/// An index expression as a list of instructions, one per node.
///
/// `Graph::evaluate_index` walks the expression as a tree and looks variables up by name; a step
/// evaluates hundreds of expressions per replay.
pub struct Index {
    steps: Vec<Step>,
    values: Vec<Value>,
    operands: Vec<Value>,
}

impl Index {
    /// Compiles `id`; `slot` maps a variable to its position in the slice
    /// passed to [`Index::evaluate`].
    ///
    /// Returns `None` if the expression contains anything but constants, variables and arithmetic.
    pub fn compile(
        graph: &Graph,
        id: Id,
        slot: &mut dyn FnMut(&Arc<str>) -> usize,
    ) -> Option<Index> {
        let order = graph.toposort(&[id]);
        let mut place = std::collections::HashMap::new();
        let mut steps = Vec::with_capacity(order.len());
        for node in order {
            place.insert(node, steps.len());
            let n = &graph[node];
            steps.push(match (&n.op, &n.arg) {
                (Op::Const, Arg::Int(v)) => Step::Const(*v),
                (Op::Var, Arg::Var(name, ..)) => Step::Var(slot(name)),
                (op, Arg::None) if !n.src.is_empty() => Step::Apply {
                    op: *op,
                    out: n.dtype.scalar,
                    operands: n
                        .src
                        .iter()
                        .map(|s| place.get(s).copied())
                        .collect::<Option<_>>()?,
                },
                _ => return None,
            });
        }
        debug_assert_eq!(
            place.get(&id).copied(),
            Some(steps.len() - 1),
            "toposort ends with its root"
        );
        Some(Index {
            values: Vec::with_capacity(steps.len()),
            operands: Vec::new(),
            steps,
        })
    }

    /// Evaluates the expression for these variables. Returns `None` on a division by zero and for
    /// ops that are not arithmetic.
    pub fn evaluate(&mut self, vars: &[i64]) -> Option<i64> {
        self.values.clear();
        for step in &self.steps {
            let value = match step {
                Step::Const(v) => Value::Int(*v),
                Step::Var(slot) => Value::Int(*vars.get(*slot)?),
                Step::Apply { op, out, operands } => {
                    self.operands.clear();
                    self.operands
                        .extend(operands.iter().map(|&o| self.values[o]));
                    fold::apply(*op, &self.operands, *out)?
                }
            };
            self.values.push(value);
        }
        self.values.last().map(|v| v.int())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_graph() {
        let mut g = Graph::new();
        let (n, p) = (g.var("n", 0, 1000), g.var("p", 0, 1000));
        let (seven, three) = (g.int(7), g.int(3));
        let a = g.add(n, seven);
        let b = g.idiv(a, three);
        let c = g.mul(b, b);
        let d = g.modulo(c, seven);
        let e = g.max(d, p);
        let f = g.add(e, c);
        let mut names: Vec<Arc<str>> = vec![];
        let mut index = Index::compile(&g, f, &mut |name| {
            names.iter().position(|x| x == name).unwrap_or_else(|| {
                names.push(name.clone());
                names.len() - 1
            })
        })
        .unwrap();
        for (nv, pv) in [(0, 0), (5, 900), (999, 1), (17, 4)] {
            let by_name = |s: &str| Some(if s == "n" { nv } else { pv });
            let slots: Vec<i64> = names.iter().map(|x| by_name(x).unwrap()).collect();
            assert_eq!(index.evaluate(&slots), g.evaluate_index(f, &by_name));
        }
    }

    #[test]
    fn refuses_files_that_are_not_an_index() {
        let mut g = Graph::new();
        let x = g.f32(1.0);
        assert!(Index::compile(&g, x, &mut |_| 0).is_none());
        let (n, zero) = (g.var("n", 0, 9), g.var("z", 0, 9));
        let div = g.idiv(n, zero);
        let mut slots = 0;
        let mut index = Index::compile(&g, div, &mut |_| {
            slots += 1;
            slots - 1
        })
        .unwrap();
        assert_eq!(index.evaluate(&[4, 0]), None);
    }
}
