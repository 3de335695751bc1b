//! Linear code: what lowering makes of the nests of a kernel, and what a dialect prints. Nothing is left to decide: who waits for whom, what is asked
//! for ahead, how loops are unrolled and how many workgroups a unit holds all stand in it.

pub mod accesses;
pub mod print;
pub(crate) mod rewriting;
pub mod threads;

use gristmill_uop::{Graph, Id, Op};
use rustc_hash::FxHashSet;
use threads::ThreadIndex;

/// One statement of linear code. Values are named by the node they compute.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// The value of a node, from values defined before.
    Define(Id),
    /// A loop; its body follows, up to the matching `End`.
    Loop {
        /// Its range, which counts in steps as long as a whole one lies below its bound.
        range: Id,
        /// The step, of 1 but where a body holds as many iterations.
        step: i64,
        /// Iterations that are written out one after the other; where none are said the device's own compiler decides.
        unroll: Option<i64>,
    },
    /// One iteration that is written out: the range, and its index there, a value; the body follows, up to the matching `End`.
    Iteration(Id, Id),
    /// The end of the innermost open block: a loop, an iteration, a nest, or what `Unless` guards.
    End,
    /// An accumulator (an `Op::Acc` node) with its first value.
    Accumulator(Id),
    /// A new value (second) for an accumulator (first).
    Accumulate(Id, Id),
    /// Buffer, offset, value.
    Write(Id, Id, Id),
    /// A value added to what a buffer holds.
    Add(Addition),
    /// A word of memory that becomes what is computed of it.
    Update(Update),
    /// One load of so many bytes, for several: buffer, offset, and each load with the byte where it begins.
    Wide(Id, Id, usize, Vec<(Id, usize)>),
    /// One write of so many bytes, for several that are neighbours, in order: buffer, offset of the first, values.
    WideWrite(Id, Id, usize, Vec<Id>),
    /// Buffer, offset of the first row, elements between rows, a tile.
    WriteTile(Id, Id, i64, Id),
    /// Bytes of memory on their way to a stage, or a ring, while the thread goes on: nobody may read them there before an `AsyncWait`, and other
    /// threads not before a `Barrier` behind it.
    AsyncCopy {
        /// The stage, and the offset in it.
        to: [Id; 2],
        /// The buffer in memory, and the offset in it.
        from: [Id; 2],
        /// Elements behind each offset.
        plus: [i64; 2],
        /// How many.
        bytes: usize,
        /// A condition on ranges and variables: only threads and iterations of which it holds copy.
        when: Option<Id>,
    },
    /// What the thread has copied asynchronously since the last such statement is a group of copies.
    AsyncGroup,
    /// The thread's own asynchronous copies have arrived, but those of so many of the last groups; with 0 all of them.
    AsyncWait(i64),
    /// The products of several warps that the thread takes part in have ended, but so many of the last: with 0 their sums may be read, and what they have read
    /// may be written behind the next `Barrier`.
    ProductsEnded(i64),
    /// What the thread has written to stages may be read by products of several warps behind the next `Barrier`.
    WritesShown,
    /// One load of so many bytes from where copies have brought them, for loads from memory: ring, offset, and each load with the byte where it begins.
    Copied(Id, Id, usize, Vec<(Id, usize)>),
    /// A load (first) whose value iterations hand on to the next, with its first value.
    Carried(Id, Id),
    /// The value that such a load has in the next iteration.
    Carry(Id, Id),
    /// All threads of the workgroup have come here, and see what the others have written to stages.
    Barrier,
    /// Memory is asked for, and nobody waits for it.
    Prefetch(Prefetch),
    /// The kernels before this one have ended: what they write may be read, and what they read may be written.
    DependencyWait,
    /// Kernels behind this one may start, and wait in turn.
    LaunchDependents,
    /// A workgroup ends here where a condition holds, which is one on its indices and on what was written before the kernel.
    Leave(Id),
    /// Statements up to `End` that are run where a condition on variables and workgroup indices does not hold.
    Unless(Id),
    /// The indices that a workgroup's threads have of these ranges, in what stands behind it outside nests: loads that nests would make later.
    Threads(Vec<ThreadIndex>),
    /// A nest: its statements up to `End`. Stages are computed again only if one of these workgroup indices has changed.
    Nest {
        /// The buffer written.
        buffer: Id,
        /// Is it a stage?
        staged: bool,
        /// Workgroup indices it depends on.
        globals: Vec<Id>,
        /// How its threads are counted, the outermost range first.
        threads: Vec<ThreadIndex>,
    },
}

impl Statement {
    /// Does it open a block, up to an `End`?
    pub fn opens(&self) -> bool {
        matches!(
            self,
            Statement::Loop { .. } | Statement::Iteration(..) | Statement::Nest { .. } | Statement::Unless(_)
        )
    }
    /// Words that it loads from memory.
    pub fn words(&self, g: &Graph) -> i64 {
        match self {
            Statement::Wide(buffer, _, bytes, _) if g[*buffer].op == Op::Param => *bytes as i64 / 4,
            Statement::Define(id) if g[*id].op == Op::Load && g[g[*id].src[0]].op == Op::Param => 1,
            _ => 0,
        }
    }
    /// The values that it reads, or asks for; not those below index expressions that no statement defines, but those that these are of.
    pub fn uses(&self, g: &Graph, each: &mut impl FnMut(Id)) {
        let mut expression = |id: Id| g.toposort(&[id]).into_iter().for_each(&mut *each);
        match self {
            Statement::Define(id) => g[*id].src.iter().copied().for_each(each),
            Statement::Loop { range, .. } => g[*range].src.iter().copied().for_each(each),
            Statement::Iteration(_, index) => each(*index),
            Statement::Accumulator(acc) => each(g[*acc].src[0]),
            Statement::Accumulate(_, value) => g[*value].src.iter().copied().for_each(each),
            Statement::Write(_, at, value) | Statement::WriteTile(_, at, _, value) => {
                [*at, *value].into_iter().for_each(each)
            }
            Statement::Add(addition) => addition.uses().for_each(each),
            Statement::Update(update) => update.uses(g).for_each(each),
            Statement::Wide(_, at, ..) | Statement::Copied(_, at, ..) => each(*at),
            Statement::WideWrite(_, at, _, values) => values.iter().chain([at]).copied().for_each(each),
            Statement::AsyncCopy { to, from, when, .. } => {
                when.iter().for_each(|&id| expression(id));
                [to[1], from[1]].into_iter().for_each(each);
            }
            Statement::Carried(_, value) | Statement::Carry(_, value) => each(*value),
            Statement::Unless(condition) | Statement::Leave(condition) => expression(*condition),
            Statement::Prefetch(Prefetch::Line { at, .. }) => each(at[1]),
            Statement::Prefetch(Prefetch::Tile(tile)) => tile.terms.iter().for_each(|t| expression(t.0)),
            Statement::Prefetch(Prefetch::Span(span)) => span.terms.iter().for_each(|t| expression(t.0)),
            Statement::End
            | Statement::AsyncGroup
            | Statement::AsyncWait(_)
            | Statement::ProductsEnded(_)
            | Statement::WritesShown
            | Statement::Barrier
            | Statement::DependencyWait
            | Statement::LaunchDependents
            | Statement::Threads(_)
            | Statement::Nest { .. } => {}
        }
    }
}

/// Defines a value, and what it needs, behind these statements, unless they are known: leaves have no statement, and accumulators one of their own.
pub fn define(g: &Graph, id: Id, known: &mut FxHashSet<Id>, out: &mut Vec<Statement>) {
    let mut stack = vec![(id, false)];
    while let Some((n, ready)) = stack.pop() {
        let node = &g[n];
        let leaf = matches!(node.op, Op::Const | Op::Var | Op::Param | Op::Local | Op::Range) && node.dtype.lanes == 1;
        if leaf || matches!(node.op, Op::Acc | Op::Reduce) || known.contains(&n) {
            continue;
        }
        if ready {
            known.insert(n);
            out.push(Statement::Define(n));
        } else {
            stack.push((n, true));
            stack.extend(node.src.iter().map(|&s| (s, false)));
        }
    }
}

/// Bytes of a workgroup buffer up to where the next may begin, at a multiple of 64.
pub fn bytes_of(g: &Graph, local: Id) -> usize {
    let elements = g.int_value(g[local].src[0]).unwrap_or(0) as usize;
    (elements * g[local].dtype.scalar.bytes()).next_multiple_of(64)
}

/// The place of the `End` of the block that the first of these statements opens; 0 where it opens none.
pub fn end_of_block(statements: &[Statement]) -> usize {
    let mut depth = 0;
    for (i, s) in statements.iter().enumerate() {
        match s {
            s if s.opens() => depth += 1,
            Statement::End => depth -= 1,
            _ => {}
        }
        if depth <= 0 {
            return i;
        }
    }
    statements.len()
}

/// What is asked for ahead of its use.
#[derive(Clone, Debug, PartialEq)]
pub enum Prefetch {
    /// The cache line so many elements behind an offset, which is a value defined before.
    Line {
        /// The buffer, and the offset in it.
        at: [Id; 2],
        /// Elements from there.
        ahead: i64,
    },
    /// A share of the lines of a tile.
    Tile(TilePrefetch),
    /// A span of bytes, by one instruction for the workgroup.
    Span(SpanPrefetch),
}

/// Lines of a tile that one turn of some loops asks for: as many as all turns together need. Turns are counted row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct TilePrefetch {
    /// The buffer.
    pub buffer: Id,
    /// Where the tile begins: index expressions of workgroup indices, and their coefficients, in elements.
    pub terms: Vec<(Id, i64)>,
    /// And a number of elements.
    pub from: i64,
    /// Ranges whose indices number a turn, outermost first.
    pub turn: Vec<Id>,
    /// Elements of a line.
    pub line: i64,
    /// Lines of a turn.
    pub lines: i64,
}

/// Bytes of a buffer that lie together, at an address that workgroup indices and stages decide.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanPrefetch {
    /// The buffer.
    pub buffer: Id,
    /// Loops around it, outermost first, whose indices the address depends on.
    pub loops: Vec<Id>,
    /// Where it begins: index expressions and their coefficients, in bytes.
    pub terms: Vec<(Id, i64)>,
    /// And a number of bytes.
    pub from: i64,
    /// Its length.
    pub bytes: i64,
}

/// A value that is added to an element of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Addition {
    /// The buffer.
    pub buffer: Id,
    /// The offset of the element.
    pub at: Id,
    /// What is added there, and behind it: one value, lanes of a vector, or two halves that share a word.
    pub values: Vec<Id>,
    /// A value: only threads and iterations for which it is true add anything.
    pub when: Option<Id>,
    /// Do additions exclude one another, as others may add to the same element at the same time? Else an element's additions follow one another in one thread.
    pub atomic: bool,
}

impl Addition {
    /// The values that it reads.
    pub fn uses(&self) -> impl Iterator<Item = Id> + '_ {
        [self.at].into_iter().chain(self.values.iter().copied()).chain(self.when)
    }
}

/// A word of memory that becomes what is computed of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The buffer.
    pub buffer: Id,
    /// The offset of the word's first element.
    pub at: Id,
    /// What the word was: a load of it that no other statement defines.
    pub old: Id,
    /// What is computed of that, each value from those before it and from others that statements define. The last is what the word becomes.
    pub values: Vec<Id>,
    /// A value: only threads and iterations for which it is true change anything.
    pub when: Option<Id>,
    /// Do updates exclude one another, as others may change the word at the same time?
    pub atomic: bool,
}

impl Update {
    /// What the word becomes.
    pub fn result(&self) -> Id {
        self.values.last().copied().unwrap_or(self.old)
    }
    /// The operation that is all that is done to the word, and with which value.
    pub fn operation(&self, g: &Graph) -> Option<(Op, Id)> {
        match (&self.values[..], &g[self.result()].src[..]) {
            ([one], &[old, with]) if old == self.old && with != old => Some((g[*one].op, with)),
            _ => None,
        }
    }
    /// The values that it reads.
    pub fn uses<'a>(&'a self, g: &'a Graph) -> impl Iterator<Item = Id> + 'a {
        let read = self.values.iter().flat_map(|&v| g[v].src.iter().copied());
        let others = read.filter(|s| *s != self.old && !self.values.contains(s));
        [self.at].into_iter().chain(others).chain(self.when)
    }
}

/// Linear code of one body.
#[derive(Clone, Debug, Default)]
pub struct Code {
    /// Workgroup ranges, outermost first.
    pub globals: Vec<Id>,
    /// Statements.
    pub statements: Vec<Statement>,
    /// Workgroup buffers: nodes, in order of their first use.
    pub locals: Vec<Id>,
    /// Where this condition on variables and workgroup indices holds nobody reads what the workgroup computes, and it is left out.
    pub skip: Option<Id>,
    /// Where this condition on workgroup indices and memory holds, another workgroup computes the same.
    pub surplus: Option<Id>,
}

/// Linear code of a kernel: of its bodies, which share a launch, and what holds for all of them.
#[derive(Clone, Debug)]
pub struct KernelCode {
    /// The bodies, in the order of their workgroups.
    pub bodies: Vec<Code>,
    /// Threads of a workgroup; 1 where a workgroup is part of one thread's work.
    pub threads: usize,
    /// Workgroups that a unit of the machine has room for at once, at least: the device's compiler gives threads no more registers than that leaves.
    pub resident: i64,
    /// Percent of a unit's memory that shall be shared; where none are said the driver decides.
    pub shared: Option<i64>,
    /// What every workgroup does first.
    pub entry: Vec<Statement>,
    /// What a workgroup does that computes nothing: one that is left out, or comes after the last.
    pub idle: Vec<Statement>,
}
