//! Rewrites a statement list: replaces values by others, and inserts the definitions that the new
//! values need.

use super::{Addition, Statement, define};
use gristmill_uop::{Graph, Id, Node, RangeKind};
use rustc_hash::{FxHashMap, FxHashSet};

/// State of a rewrite of one body's statements.
pub struct Rewriting<'a> {
    pub g: &'a mut Graph,
    /// Statements emitted up to now.
    pub out: Vec<Statement>,
    /// Replacement of each replaced value.
    pub values: FxHashMap<Id, Id>,
    /// Values defined at the current position.
    known: FxHashSet<Id>,
    /// Values defined in each open block.
    scopes: Vec<Vec<Id>>,
    /// Largest range number in use.
    ranges: u32,
}

impl<'a> Rewriting<'a> {
    /// Creates a rewrite with no statements and no replacements.
    pub fn new(g: &'a mut Graph) -> Rewriting<'a> {
        let (values, known) = (FxHashMap::default(), FxHashSet::default());
        let ranges = (0..g.len() as u32)
            .map(|i| g.range_number(Id(i)))
            .max()
            .unwrap_or(0);
        Rewriting {
            g,
            out: vec![],
            values,
            known,
            scopes: vec![vec![]],
            ranges,
        }
    }
    /// Marks a value as defined without a statement.
    pub fn knows(&mut self, id: Id) {
        self.known.insert(id);
    }
    /// Creates a range with an unused number.
    pub fn range(&mut self, bound: Id, kind: RangeKind) -> Id {
        self.ranges += 1;
        self.g.range(bound, self.ranges, kind)
    }
    /// Returns the replacement of a value, or the value itself.
    pub fn value(&self, id: Id) -> Id {
        self.values.get(&id).copied().unwrap_or(id)
    }
    /// Returns the node with its sources replaced, interned without simplification.
    pub fn node(&mut self, id: Id) -> Id {
        let n = &self.g[id];
        if self.values.contains_key(&id) || !n.src.iter().any(|s| self.values.contains_key(s)) {
            return self.value(id);
        }
        let n = Node {
            src: n.src.iter().map(|&s| self.value(s)).collect(),
            ..n.clone()
        };
        let new = self.g.intern(n);
        self.values.insert(id, new);
        new
    }
    /// Defines a value and its operands, unless they are known.
    pub fn define(&mut self, id: Id) {
        let before = self.out.len();
        define(self.g, id, &mut self.known, &mut self.out);
        let new = self.out[before..].iter().filter_map(|s| {
            if let Statement::Define(id) = s {
                Some(*id)
            } else {
                None
            }
        });
        self.scopes.last_mut().expect("a scope is open").extend(new);
    }
    /// Appends a statement unchanged, and tracks definitions and blocks.
    pub fn push(&mut self, s: Statement) {
        let defined: Vec<Id> = match &s {
            Statement::Define(id) => vec![*id],
            Statement::Wide(.., parts) | Statement::Copied(.., parts) => {
                parts.iter().map(|p| p.0).collect()
            }
            _ => vec![],
        };
        match &s {
            s if s.opens() => self.scopes.push(vec![]),
            Statement::End => {
                let closed = self.scopes.pop().expect("a block is open");
                for id in &closed {
                    self.known.remove(id);
                }
            }
            _ => {}
        }
        let scope = self.scopes.last_mut().expect("a scope is open");
        scope.extend(defined.into_iter().filter(|id| self.known.insert(*id)));
        self.out.push(s);
    }
    /// Appends a statement with its values replaced, unless it defines a known value.
    pub fn replaced(&mut self, s: &Statement) {
        let s = match s {
            Statement::Define(id) => Statement::Define(self.node(*id)),
            // A sum keeps its name, even if its terms are replaced.
            Statement::Accumulator(acc) => Statement::Accumulator(self.node(*acc)),
            Statement::Accumulate(acc, value) => {
                Statement::Accumulate(self.value(*acc), self.node(*value))
            }
            Statement::Wide(buffer, at, bytes, parts) => {
                // No statement defines the offsets of all parts.
                let parts = parts
                    .iter()
                    .map(|&(load, byte)| (self.g.replace(load, &mut self.values), byte))
                    .collect();
                Statement::Wide(*buffer, self.value(*at), *bytes, parts)
            }
            &Statement::Loop {
                range,
                step,
                unroll,
            } => Statement::Loop {
                range: self.node(range),
                step,
                unroll,
            },
            s => s.replaced(&|id| self.value(id)),
        };
        if !matches!(&s, Statement::Define(id) if self.known.contains(id)) {
            self.push(s);
        }
    }
}

impl Statement {
    /// Returns the statement with its operands replaced.
    fn replaced(&self, new: &impl Fn(Id) -> Id) -> Statement {
        match self {
            Statement::Write(buffer, at, value) => Statement::Write(*buffer, new(*at), new(*value)),
            Statement::WriteTile(buffer, at, stride, value) => {
                Statement::WriteTile(*buffer, new(*at), *stride, new(*value))
            }
            Statement::WideWrite(buffer, at, bytes, values) => Statement::WideWrite(
                *buffer,
                new(*at),
                *bytes,
                values.iter().map(|&value| new(value)).collect(),
            ),
            Statement::Add(a) => {
                let (at, when) = (new(a.at), a.when.map(new));
                Statement::Add(Addition {
                    at,
                    when,
                    values: a.values.iter().map(|&v| new(v)).collect(),
                    ..a.clone()
                })
            }
            s => s.clone(),
        }
    }
}
