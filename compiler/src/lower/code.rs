//! Linear code: what lowering makes of the nests of a body, and what a dialect prints.

use gristmill_uop::Id;

/// What holds for a workgroup, and when.
#[derive(Clone, Copy, Default, Debug)]
pub struct When {
    /// Nobody reads what it computes.
    pub skip: Option<Id>,
    /// Its first nest reads nothing that this step writes. Where this does not hold, the second does again what did.
    pub early: Option<Id>,
    /// Always: it has a worker to itself. Two of them on one, with others idle, would take twice the time.
    pub alone: bool,
}

/// One statement of linear code. Values are named by the node they compute.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// The value of a node, from values defined before.
    Define(Id),
    /// A loop of a range; its body follows, up to the matching `End`.
    Loop(Id),
    /// The end of the innermost open loop or nest.
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
    /// A nest: its statements up to `End`. Stages are computed again only if one of these workgroup indices has changed.
    Nest {
        /// The buffer written.
        buffer: Id,
        /// Is it a stage?
        staged: bool,
        /// Workgroup indices it depends on.
        globals: Vec<Id>,
        /// Ranges that its threads are counted over, outermost first.
        threads: Vec<Id>,
    },
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
    /// Conditions on variables and workgroup ranges.
    pub when: When,
}
