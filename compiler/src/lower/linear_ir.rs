//! Linear code: the form of a kernel that a dialect prints. All decisions are explicit in it:
//! synchronisation, prefetches, unroll factors and the number of resident workgroups.

pub mod accesses;
pub mod print;
pub(crate) mod rewriting;
pub mod threads;

use gristmill_uop::{Graph, Id, Op};
use rustc_hash::FxHashSet;
use threads::ThreadIndex;

/// One statement of linear code. A value is named by the node that it computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// Computes the value of a node from values defined before.
    Define(Id),
    /// Begins a loop; the body follows, up to the matching `End`.
    Loop {
        /// Range of the loop. It advances in steps while a whole step fits below the bound.
        range: Id,
        /// Step; above 1 if the body contains as many iterations.
        step: i64,
        /// Unroll factor; `None` leaves it to the device's compiler.
        unroll: Option<i64>,
    },
    /// Begins one unrolled iteration: the range, and the value of its index; the body follows, up
    /// to the matching `End`.
    Iteration(Id, Id),
    /// Ends the innermost open block: a loop, an iteration, a nest, or an `Unless`.
    End,
    /// Declares an accumulator (an `Op::Acc` node) with its initial value.
    Accumulator(Id),
    /// Assigns a new value (second) to an accumulator (first).
    Accumulate(Id, Id),
    /// Writes a value: buffer, offset, value.
    Write(Id, Id, Id),
    /// Adds values to elements of a buffer.
    Add(Addition),
    /// Replaces a word of memory by a function of itself.
    Update(Update),
    /// One wide load for several narrower ones: buffer, offset, bytes, and each load with its byte
    /// offset in the wide one.
    Wide(Id, Id, usize, Vec<(Id, usize)>),
    /// One wide write of consecutive values: buffer, offset of the first, bytes, values.
    WideWrite(Id, Id, usize, Vec<Id>),
    /// Writes a tile: buffer, offset of the first row, elements between rows, tile.
    WriteTile(Id, Id, i64, Id),
    /// Asynchronous copy from memory to a stage or a ring buffer. The thread itself may read the
    /// copied bytes after an `AsyncWait`, other threads after a `Barrier` that follows it.
    AsyncCopy {
        /// Destination: the stage, and the offset in it.
        to: [Id; 2],
        /// Source: the buffer in memory, and the offset in it.
        from: [Id; 2],
        /// Constants added to the two offsets, in elements.
        plus: [i64; 2],
        /// Size of the copy in bytes.
        bytes: usize,
        /// Condition on ranges and variables; threads and iterations where it is false do not copy.
        when: Option<Id>,
    },
    /// Commits the thread's asynchronous copies since the last `AsyncGroup` as one group.
    AsyncGroup,
    /// Waits until at most this many of the thread's most recent copy groups are pending;
    /// 0 waits for all.
    AsyncWait(i64),
    /// Waits until at most this many of the most recent asynchronous MMA products (wgmma) are
    /// pending. With 0 their accumulators may be read, and their operands may be overwritten
    /// after the next `Barrier`.
    ProductsEnded(i64),
    /// Proxy fence: makes the thread's writes to stages visible to asynchronous MMA products
    /// after the next `Barrier`.
    WritesShown,
    /// One wide load of copied data, in place of loads from memory: ring buffer, offset, bytes, and
    /// each load with its byte offset in the wide one.
    Copied(Id, Id, usize, Vec<(Id, usize)>),
    /// Declares a loop-carried value: a load (first) and its value in the first iteration.
    Carried(Id, Id),
    /// Assigns the value that a carried load has in the next iteration.
    Carry(Id, Id),
    /// Workgroup barrier: all threads have arrived, and see each other's writes to stages.
    Barrier,
    /// Prefetches memory without waiting for it.
    Prefetch(Prefetch),
    /// Grid-dependency wait (PDL): the preceding kernels have ended. Their outputs may then be
    /// read, and their inputs overwritten.
    DependencyWait,
    /// Allows dependent kernels to start (PDL); they have grid-dependency waits of their own.
    LaunchDependents,
    /// Ends the workgroup if a condition holds. The condition depends on workgroup indices and on
    /// memory written before the kernel.
    Leave(Id),
    /// Guards the statements up to `End`: they run only if a condition on variables and
    /// workgroup indices is false.
    Unless(Id),
    /// Declares thread indices for the statements that follow outside nests: loads that are
    /// hoisted out of nests.
    Threads(Vec<ThreadIndex>),
    /// Begins a nest; its statements follow, up to `End`. A stage is recomputed only if one of the
    /// workgroup indices in `globals` has changed.
    Nest {
        /// Buffer that the nest writes.
        buffer: Id,
        /// Whether the buffer is a stage.
        staged: bool,
        /// Workgroup indices that the nest depends on.
        globals: Vec<Id>,
        /// Thread indices of the nest, outermost range first.
        threads: Vec<ThreadIndex>,
    },
}

impl Statement {
    /// Returns whether the statement opens a block that ends at an `End`.
    pub fn opens(&self) -> bool {
        matches!(
            self,
            Statement::Loop { .. }
                | Statement::Iteration(..)
                | Statement::Nest { .. }
                | Statement::Unless(_)
        )
    }
    /// Returns the number of 32-bit words that the statement loads from memory.
    pub fn words(&self, g: &Graph) -> i64 {
        match self {
            Statement::Wide(buffer, _, bytes, _) if g[*buffer].op == Op::Param => *bytes as i64 / 4,
            Statement::Define(id) if g[*id].op == Op::Load && g[g[*id].src[0]].op == Op::Param => 1,
            _ => 0,
        }
    }
    /// Calls `each` for every value that the statement reads or prefetches from. For index
    /// expressions that no statement defines, it visits their operands as well.
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
            Statement::WideWrite(_, at, _, values) => {
                values.iter().chain([at]).copied().for_each(each)
            }
            Statement::AsyncCopy { to, from, when, .. } => {
                when.iter().for_each(|&id| expression(id));
                [to[1], from[1]].into_iter().for_each(each);
            }
            Statement::Carried(_, value) | Statement::Carry(_, value) => each(*value),
            Statement::Unless(condition) | Statement::Leave(condition) => expression(*condition),
            Statement::Prefetch(Prefetch::Line { at, .. }) => each(at[1]),
            Statement::Prefetch(Prefetch::Tile(tile)) => {
                tile.terms.iter().for_each(|t| expression(t.0))
            }
            Statement::Prefetch(Prefetch::Span(span)) => {
                span.terms.iter().for_each(|t| expression(t.0))
            }
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

/// Appends the definition of a value and of its operands, except those that are known. Leaves need
/// no statement, and accumulators have their own.
pub fn define(g: &Graph, id: Id, known: &mut FxHashSet<Id>, out: &mut Vec<Statement>) {
    let mut stack = vec![(id, false)];
    while let Some((n, ready)) = stack.pop() {
        let node = &g[n];
        let leaf = matches!(
            node.op,
            Op::Const | Op::Var | Op::Param | Op::Local | Op::Range
        ) && node.dtype.lanes == 1;
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

/// Returns the bytes of a workgroup buffer, rounded up to a multiple of 64.
pub fn bytes_of(g: &Graph, local: Id) -> usize {
    let elements = g.int_value(g[local].src[0]).unwrap_or(0) as usize;
    (elements * g[local].dtype.scalar.bytes()).next_multiple_of(64)
}

/// Returns the index of the `End` of the block that the first statement opens; 0 if it opens none.
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

/// Memory that is prefetched.
#[derive(Clone, Debug, PartialEq)]
pub enum Prefetch {
    /// The cache line of one element.
    Line {
        /// The buffer, and an offset in it that is defined before.
        at: [Id; 2],
        /// Distance from that offset, in elements.
        ahead: i64,
    },
    /// A share of the cache lines of a tile.
    Tile(TilePrefetch),
    /// A span of bytes, prefetched by one instruction per workgroup.
    Span(SpanPrefetch),
}

/// Lines of a tile that one iteration of some loops prefetches; all iterations together cover the
/// tile. Iterations are numbered row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct TilePrefetch {
    /// Buffer that contains the tile.
    pub buffer: Id,
    /// Variable part of the tile's offset: index expressions of workgroup indices,
    /// with coefficients in elements.
    pub terms: Vec<(Id, i64)>,
    /// Constant part of the offset, in elements.
    pub from: i64,
    /// Ranges that number an iteration by their indices, outermost first.
    pub turn: Vec<Id>,
    /// Elements per cache line.
    pub line: i64,
    /// Lines prefetched per iteration.
    pub lines: i64,
}

/// Contiguous bytes of a buffer, at an address that depends on workgroup indices and stages.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanPrefetch {
    /// Buffer that contains the span.
    pub buffer: Id,
    /// Enclosing loops, outermost first, that the address depends on.
    pub loops: Vec<Id>,
    /// Variable part of the address: index expressions, with coefficients in bytes.
    pub terms: Vec<(Id, i64)>,
    /// Constant part of the address, in bytes.
    pub from: i64,
    /// Length of the span in bytes.
    pub bytes: i64,
}

/// An addition to elements of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Addition {
    /// Buffer that is added to.
    pub buffer: Id,
    /// Offset of the first element.
    pub at: Id,
    /// Values added to consecutive elements: one value, the lanes of a vector, or two halves
    /// that share a word.
    pub values: Vec<Id>,
    /// Condition; threads and iterations where it is false add nothing.
    pub when: Option<Id>,
    /// Whether the addition must be atomic, because other threads may add to the same element.
    /// Otherwise one thread makes all additions to an element.
    pub atomic: bool,
}

impl Addition {
    /// Returns the values that the addition reads.
    pub fn uses(&self) -> impl Iterator<Item = Id> + '_ {
        [self.at]
            .into_iter()
            .chain(self.values.iter().copied())
            .chain(self.when)
    }
}

/// A word of memory that is replaced by a function of its old value.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// Buffer that contains the word.
    pub buffer: Id,
    /// Offset of the word's first element.
    pub at: Id,
    /// Old value of the word: a load that no other statement defines.
    pub old: Id,
    /// Computation of the new value, in order; each node uses earlier ones and values defined by
    /// statements. The last is the new value.
    pub values: Vec<Id>,
    /// Condition; threads and iterations where it is false change nothing.
    pub when: Option<Id>,
    /// Whether the update must be atomic, because other threads may change the word
    /// at the same time.
    pub atomic: bool,
}

impl Update {
    /// Returns the new value of the word.
    pub fn result(&self) -> Id {
        self.values.last().copied().unwrap_or(self.old)
    }
    /// Returns the operation and its operand, if the update is a single operation.
    pub fn operation(&self, g: &Graph) -> Option<(Op, Id)> {
        match (&self.values[..], &g[self.result()].src[..]) {
            ([one], &[old, with]) if old == self.old && with != old => Some((g[*one].op, with)),
            _ => None,
        }
    }
    /// Returns the values that the update reads.
    pub fn uses<'a>(&'a self, g: &'a Graph) -> impl Iterator<Item = Id> + 'a {
        let read = self.values.iter().flat_map(|&v| g[v].src.iter().copied());
        let others = read.filter(|s| *s != self.old && !self.values.contains(s));
        [self.at].into_iter().chain(others).chain(self.when)
    }
}

/// Linear code of one body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Code {
    /// Workgroup ranges, outermost first.
    pub globals: Vec<Id>,
    /// Statements of the body, in order.
    pub statements: Vec<Statement>,
    /// Workgroup buffers, in order of first use.
    pub locals: Vec<Id>,
    /// Condition on variables and workgroup indices under which the workgroup's results are not
    /// read; it is then skipped.
    pub skip: Option<Id>,
    /// Condition on workgroup indices and memory under which another workgroup
    /// computes the same results.
    pub surplus: Option<Id>,
}

/// Linear code of a kernel: its bodies, which share a launch, and the launch-wide properties.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCode {
    /// Bodies, in the order of their workgroups.
    pub bodies: Vec<Code>,
    /// Threads per workgroup; 1 if a workgroup is part of one thread's work.
    pub threads: usize,
    /// Minimum number of workgroups resident per unit (occupancy); bounds the registers per thread
    /// in the device's compiler.
    pub resident: i64,
    /// Percentage of a unit's memory used as shared memory; `None` leaves it to the driver.
    pub shared: Option<i64>,
    /// Statements that every workgroup runs first.
    pub entry: Vec<Statement>,
    /// Statements of a workgroup that computes nothing: one that is skipped or past the last.
    pub idle: Vec<Statement>,
}
