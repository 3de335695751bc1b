//! Inserts barriers between the nests of a GPU workgroup, and waits for asynchronous copies.
//!
//! They precede nests that read what other threads have written since the last barrier or that
//! overwrite what they may still read, and prefetches with an address in a stage. Barriers are as
//! few as needed, because loads between two barriers overlap their latencies.

use crate::lower::linear_ir::{Prefetch, SpanPrefetch, Statement, Update, end_of_block};
use crate::lower::mma::stage_products::OfStages;
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::FxHashSet;

/// Accesses not yet synchronised.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Pending {
    /// Stages written since the last barrier.
    written: FxHashSet<Id>,
    /// Stages read since the last barrier.
    read: FxHashSet<Id>,
    /// Stages with copies in flight.
    copied: FxHashSet<Id>,
}

/// Stages that a statement or nest reads, writes and copies to.
#[derive(Default)]
pub(crate) struct Touched {
    pub read: FxHashSet<Id>,
    pub written: FxHashSet<Id>,
    pub copied: FxHashSet<Id>,
}

impl Touched {
    /// Collects the accesses of these statements.
    pub fn by(g: &Graph, statements: &[Statement]) -> Touched {
        let mut t = Touched::default();
        for s in statements {
            match s {
                Statement::Define(id) => t.load(g, *id),
                Statement::Wide(_, _, _, parts) => parts.iter().for_each(|p| t.load(g, p.0)),
                Statement::Nest {
                    buffer,
                    staged: true,
                    ..
                } => drop(t.written.insert(*buffer)),
                // In a shared loop a nest also writes stages of others.
                Statement::Write(buffer, ..)
                | Statement::WideWrite(buffer, ..)
                | Statement::Update(Update { buffer, .. })
                    if g[*buffer].op == Op::Local =>
                {
                    t.written.insert(*buffer);
                }
                Statement::AsyncCopy { to, .. } => drop(t.copied.insert(to[0])),
                Statement::Accumulate(..) => {
                    t.read.extend(
                        OfStages::from_statement(g, s)
                            .into_iter()
                            .flat_map(|p| p.rows.into_iter().chain([p.columns])),
                    );
                }
                Statement::Prefetch(Prefetch::Span(span)) => t.span(g, span),
                _ => {}
            }
        }
        t
    }
    fn load(&mut self, g: &Graph, id: Id) {
        let n = &g[id];
        if matches!(n.op, Op::Load | Op::TileLoad) && g[n.src[0]].op == Op::Local {
            self.read.insert(n.src[0]);
        }
    }
    /// The address of a span is an expression that may contain loads.
    fn span(&mut self, g: &Graph, span: &SpanPrefetch) {
        let terms: Vec<Id> = span.terms.iter().map(|t| t.0).collect();
        g.toposort(&terms).into_iter().for_each(|n| self.load(g, n));
    }
}

/// Inserts the barriers and waits that the statements need.
pub fn barriers(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let mut out = Vec::with_capacity(statements.len());
    let mut pending = Pending::default();
    // Pending accesses for the case that an `Unless` is skipped.
    let mut around: Vec<Pending> = Vec::new();
    let mut rest = statements.into_iter();
    while let Some(first) = rest.as_slice().first() {
        let block = match first {
            Statement::Unless(_) => {
                around.push(pending.clone());
                0
            }
            Statement::End => {
                let outside = around
                    .pop()
                    .expect("an end outside nests ends what `Unless` guards");
                pending.add(outside);
                0
            }
            Statement::Barrier => {
                pending.agree();
                0
            }
            _ => {
                let end = end_of_block(rest.as_slice());
                let touched = Touched::by(g, &rest.as_slice()[..=end]);
                pending.wait_before(&touched, !around.is_empty(), &mut out);
                pending.after(touched);
                end
            }
        };
        out.extend(rest.by_ref().take(block + 1));
    }
    out
}

impl Pending {
    /// Emits the waits needed before statements with these accesses. Successive nests that fill a
    /// stage fill different parts; `again` says that these statements overwrite earlier contents.
    pub(crate) fn wait_before(&mut self, t: &Touched, again: bool, out: &mut Vec<Statement>) {
        let meets = |a: &FxHashSet<Id>, b: &FxHashSet<Id>| a.iter().any(|x| b.contains(x));
        if meets(&t.read, &self.copied) || again && meets(&t.written, &self.copied) {
            out.push(Statement::AsyncWait(0));
            self.copied.clear();
        }
        let overwrites = again && meets(&t.written, &self.written) || meets(&t.written, &self.read);
        if meets(&t.read, &self.written) || overwrites {
            out.push(Statement::Barrier);
            self.agree();
        }
    }
    pub(crate) fn after(&mut self, t: Touched) {
        self.read.extend(t.read);
        self.written.extend(t.written);
        self.copied.extend(t.copied);
    }
    /// Applies a barrier. Copies in flight stay unsynchronised.
    fn agree(&mut self) {
        self.read.clear();
        self.written.clone_from(&self.copied);
    }
    pub(crate) fn add(&mut self, other: Pending) {
        self.read.extend(other.read);
        self.written.extend(other.written);
        self.copied.extend(other.copied);
    }
}
