//! What the values of a kernel are called in its text, in every language.

use gristmill_compiler::emit::Signature;
use gristmill_uop::fragment::{Fragment, Shared};
use gristmill_uop::text::print_node;
use gristmill_uop::{Arg, Graph, Id, Op};
use std::cell::RefCell;
use std::collections::HashMap;

/// The names of a kernel's values.
pub struct Names<'a> {
    /// What the values are nodes of.
    pub g: &'a Graph,
    /// The kernel's arguments.
    pub signature: &'a Signature,
    numbers: RefCell<HashMap<Id, usize>>,
}

impl<'a> Names<'a> {
    /// Of this graph's values in a kernel with these arguments.
    pub fn new(g: &'a Graph, signature: &'a Signature) -> Names<'a> {
        Names { g, signature, numbers: RefCell::default() }
    }
    /// A value's number in the text: in the order in which they are met, so that equal kernels have equal text.
    pub fn number(&self, id: Id) -> usize {
        let mut numbers = self.numbers.borrow_mut();
        let next = numbers.len();
        *numbers.entry(id).or_insert(next)
    }
    /// How a source that is neither a constant nor a buffer is written inside an expression.
    pub fn name(&self, id: Id) -> String {
        let n = &self.g[id];
        match (&n.op, &n.arg) {
            (Op::Var, Arg::Var(name, ..)) => {
                let i = self.signature.vars.iter().position(|v| v.0 == *name);
                format!("var{}", i.unwrap_or_else(|| unprintable(self.g, id)))
            }
            (Op::Range, _) => format!("r{}", self.g.range_number(id)),
            (Op::Reduce, _) => format!("a{}", self.number(id)),
            (Op::Acc, _) => format!("a{}", self.number(n.src[1])),
            _ => format!("v{}", self.number(id)),
        }
    }
}

/// A node that has no text. Specs let none of those through: it is a bug of a pass, and shows the node.
pub fn unprintable(g: &Graph, id: Id) -> ! {
    panic!("no text for {}", print_node(g, id))
}

/// The sign of an operation that every language writes between its two operands.
pub fn infix(op: Op) -> Option<&'static str> {
    Some(match op {
        Op::Add => "+",
        Op::Sub => "-",
        Op::Mul => "*",
        Op::Div => "/",
        Op::And => "&",
        Op::Or => "|",
        Op::Xor => "^",
        Op::Lt => "<",
        Op::Eq => "==",
        Op::Shl => "<<",
        Op::Shr => ">>",
        _ => return None,
    })
}

/// The words of a table of bytes, four in each.
pub fn words_of_bytes(table: &[i32]) -> Vec<String> {
    let word = |bytes: &[i32]| bytes.iter().rev().fold(0u32, |word, &b| word << 8 | b as u32 & 255);
    table.chunks(4).map(|bytes| format!("{}u", word(bytes))).collect()
}

/// The prelude's function for a product of several warps.
pub fn warp_group_name(of: &Fragment) -> String {
    let how = match of.shared {
        Shared::Columns => "",
        Shared::Transposed => "_transposed",
    };
    format!("wgmma_{}{how}", of.columns)
}
