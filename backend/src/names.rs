//! Names of a kernel's values in its source text, shared by all dialects.

use gristmill_compiler::emit::Signature;
use gristmill_uop::fragment::{Fragment, Shared};
use gristmill_uop::text::print_node;
use gristmill_uop::{Arg, Graph, Id, Op};
use std::cell::RefCell;
use std::collections::HashMap;

pub struct Names<'a> {
    /// Graph that contains the values.
    pub g: &'a Graph,
    /// Arguments of the kernel.
    pub signature: &'a Signature,
    numbers: RefCell<HashMap<Id, usize>>,
}

impl<'a> Names<'a> {
    /// Creates the names for a kernel with these arguments.
    pub fn new(g: &'a Graph, signature: &'a Signature) -> Names<'a> {
        Names {
            g,
            signature,
            numbers: RefCell::default(),
        }
    }
    /// Returns a value's number, assigned on first use, so that equal kernels have equal text.
    pub fn number(&self, id: Id) -> usize {
        let mut numbers = self.numbers.borrow_mut();
        let next = numbers.len();
        *numbers.entry(id).or_insert(next)
    }
    /// Returns the name of a source that is neither a constant nor a buffer.
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

/// Panics with the node: specs exclude nodes without text, so this is a bug in a pass.
pub fn unprintable(g: &Graph, id: Id) -> ! {
    panic!("no text for {}", print_node(g, id))
}

/// Returns the infix operator of an operation that all languages share.
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

/// Packs a table of bytes into words, four bytes each, little-endian.
pub fn words_of_bytes(table: &[i32]) -> Vec<String> {
    let word = |bytes: &[i32]| {
        bytes
            .iter()
            .rev()
            .fold(0u32, |word, &b| word << 8 | b as u32 & 255)
    };
    table
        .chunks(4)
        .map(|bytes| format!("{}u", word(bytes)))
        .collect()
}

/// Returns the name of the prelude's function for a warp-group MMA.
pub fn warp_group_name(of: &Fragment) -> String {
    let how = match of.shared {
        Shared::Columns => "",
        Shared::Transposed => "_transposed",
    };
    format!("wgmma_{}{how}", of.columns)
}
