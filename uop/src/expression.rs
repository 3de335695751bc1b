//! Mathematical notation of a node, `(3·r1 + %7)`, for messages and pages. It is not parsed;
//! [`crate::text`] is the form that is.

use crate::graph::Graph;
use crate::id::Id;
use crate::node::{Arg, Node};
use crate::op::Op;

/// Formats the node and its sources down to `depth` levels; deeper nodes are shown as `%number`.
pub fn expression(g: &Graph, node: &Node, depth: usize) -> String {
    if let Some(leaf) = leaf(node) {
        return leaf;
    }
    let source = |&s: &Id| match (depth, leaf(&g[s])) {
        (_, Some(leaf)) => leaf,
        (0, None) => format!("%{}", s.0),
        (_, None) => expression(g, &g[s], depth - 1),
    };
    let sources: Vec<String> = node.src.iter().map(source).collect();
    match (sign(node.op), &sources[..]) {
        (Some(sign), [a, b]) => format!("({a} {sign} {b})"),
        _ => call(node, &sources),
    }
}

/// Returns the infix operator of an op.
fn sign(op: Op) -> Option<&'static str> {
    Some(match op {
        Op::Add => "+",
        Op::Sub => "-",
        Op::Mul => "·",
        Op::Div => "/",
        Op::IDiv => "//",
        Op::Mod => "mod",
        Op::And => "&",
        Op::Or => "|",
        Op::Xor => "^",
        Op::Shl => "<<",
        Op::Shr => ">>",
        Op::Lt => "<",
        Op::Eq => "=",
        _ => return None,
    })
}

fn leaf(node: &Node) -> Option<String> {
    Some(match (node.op, &node.arg) {
        (Op::Const, Arg::Int(value)) => value.to_string(),
        (Op::Const, Arg::Float(bits)) => format!("{:?}", f64::from_bits(*bits)),
        (Op::Var, Arg::Var(name, ..)) => name.to_string(),
        (Op::Range, Arg::Range(number, _)) => format!("r{number}"),
        (Op::Param, Arg::Param(slot) | Arg::Packed(slot, _)) => format!("slot{slot}"),
        _ => return None,
    })
}

fn call(node: &Node, sources: &[String]) -> String {
    let name = node.op.name().to_lowercase();
    let about = match &node.arg {
        Arg::Reduce(op, _) => format!(" {}", op.name()),
        _ if node.op == Op::Cast => format!(" {}", node.dtype),
        _ => String::new(),
    };
    format!("{name}{about}({})", sources.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_round_trip() {
        let mut g = Graph::new();
        let (n, three) = (g.var("n", 0, 7), g.int(3));
        let product = g.mul(n, three);
        let sum = g.add(product, n);
        let whole = expression(&g, &g[sum].clone(), 3);
        assert!(whole.contains("n") && whole.contains("·"), "{whole}");
        let square = g.mul(product, product);
        assert_eq!(
            expression(&g, &g[square].clone(), 0),
            format!("(%{} · %{})", product.0, product.0)
        );
        assert_eq!(expression(&g, &g[product].clone(), 0), "(n · 3)");
    }
}
