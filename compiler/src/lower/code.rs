//! Linear code: what lowering makes of the nests of a kernel, and what a dialect prints. Nothing is left to decide: who waits for whom, what is asked
//! for ahead, how loops are unrolled and how many workgroups a unit holds all stand in it.

use super::threads::ThreadIndex;
use gristmill_uop::Id;

/// One statement of linear code. Values are named by the node they compute.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// The value of a node, from values defined before.
    Define(Id),
    /// A loop; its body follows, up to the matching `End`.
    Loop {
        /// Its range.
        range: Id,
        /// Iterations that are written out one after the other; where none are said the device's own compiler decides.
        unroll: Option<i64>,
    },
    /// The end of the innermost open block: a loop, a nest, or what `Unless` guards.
    End,
    /// An accumulator (an `Op::Acc` node) with its first value.
    Accumulator(Id),
    /// A new value (second) for an accumulator (first).
    Accumulate(Id, Id),
    /// Buffer, offset, value.
    Write(Id, Id, Id),
    /// One load of so many bytes, for several: buffer, offset, and each load with the byte where it begins.
    Wide(Id, Id, usize, Vec<(Id, usize)>),
    /// One write of so many bytes, for several that are neighbours, in order: buffer, offset of the first, values.
    WideWrite(Id, Id, usize, Vec<Id>),
    /// Buffer, offset of the first row, elements between rows, a tile.
    WriteTile(Id, Id, i64, Id),
    /// Bytes of memory on their way to a stage while the thread goes on: nobody may read them there before an `AsyncWait`, and other
    /// threads not before a `Barrier` behind it.
    AsyncCopy {
        /// The stage, and the offset in it.
        to: [Id; 2],
        /// The buffer in memory, and the offset in it.
        from: [Id; 2],
        /// How many.
        bytes: usize,
    },
    /// The thread's own asynchronous copies have arrived.
    AsyncWait,
    /// All threads of the workgroup have come here, and see what the others have written to stages.
    Barrier,
    /// Memory is asked for, and nobody waits for it.
    Prefetch(Prefetch),
    /// The kernels before this one have ended: what they write may be read, and what they read may be written.
    DependencyWait,
    /// Kernels behind this one may start, and wait in turn.
    LaunchDependents,
    /// Statements up to `End` that are run where a condition on variables and workgroup indices does not hold.
    Unless(Id),
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
        matches!(self, Statement::Loop { .. } | Statement::Nest { .. } | Statement::Unless(_))
    }
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
}

/// Linear code of a kernel: of its bodies, which share a launch, and what holds for all of them.
#[derive(Clone, Debug)]
pub struct KernelCode {
    /// The bodies, in the order of their workgroups.
    pub bodies: Vec<Code>,
    /// Threads of a workgroup; 1 where a workgroup is part of one thread's work.
    pub threads: usize,
    /// Neighbouring threads that exchange registers, at least: of a power of two; 1 where none do.
    pub exchange: i64,
    /// Workgroups that a unit of the machine has room for at once, at least: the device's compiler gives threads no more registers than that leaves.
    pub resident: i64,
    /// Percent of a unit's memory that shall be shared; where none are said the driver decides.
    pub shared: Option<i64>,
    /// What every workgroup does first.
    pub entry: Vec<Statement>,
    /// What a workgroup does that computes nothing: one that is left out, or comes after the last.
    pub idle: Vec<Statement>,
}
