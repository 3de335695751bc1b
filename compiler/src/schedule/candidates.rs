//! Finds nodes that could be materialised: reductions, concatenations, and expensive elementwise
//! results that are read more than once.

use crate::custom;
use crate::decompose::int8::Derived;
use crate::ir::hints::Hint;
use gristmill_uop::{Graph, Id, Node, Op};
use rustc_hash::{FxHashMap, FxHashSet};

/// Minimum cost of an elementwise result with several readers to be a candidate.
const EXPENSIVE_COST: u32 = 3;

/// Materialisation candidates among the tensor-level nodes below the outputs.
#[derive(Default, Debug)]
pub struct Candidates {
    /// Candidates in topological order.
    pub nodes: Vec<Id>,
    /// Candidates that must be materialised.
    pub forced: FxHashSet<Id>,
    /// Position of every node in topological order.
    pub order: FxHashMap<Id, usize>,
}

fn weight(op: Op) -> u32 {
    match op {
        Op::Exp | Op::Exp2 | Op::Log => 8,
        Op::Sqrt | Op::Recip | Op::Div => 4,
        Op::Cast | Op::Bitcast => 0,
        _ => 1,
    }
}

/// Number of a node's sources that are values; the others are dims.
fn values(node: &Node) -> usize {
    match node.op {
        Op::Param | Op::Iota => 0,
        Op::Cat => node.src.len() - 1,
        op if op.is_movement() => node.src.len().min(1),
        _ => node.src.len(),
    }
}

/// Candidates below `roots`. The roots are forced; quantised activations and nodes with a hint are
/// included.
pub fn find(g: &Graph, roots: &[Id], hints: &FxHashMap<Id, Hint>, derived: &Derived) -> Candidates {
    // Integer contractions read sums of activations without naming them as sources.
    let mut all: Vec<Id> = derived
        .dots
        .values()
        .filter_map(|d| d.s)
        .map(|s| s.0)
        .collect();
    all.sort();
    all.extend(roots);
    let order = g.toposort(&all);
    let mut out = Candidates {
        order: order.iter().enumerate().map(|(i, &n)| (n, i)).collect(),
        ..Candidates::default()
    };
    let readers = Readers::new(g, &order);
    let below_dims = below_dims(g, &order, derived);
    let of_own_state = of_own_state(g, &order);
    let of_added = of_added(g, &order);
    let [by_function, of_calls] = arguments(g, &order);
    let staged: FxHashSet<Id> = hints
        .values()
        .flat_map(|h| h.staged.iter().copied())
        .collect();
    let mut cost: FxHashMap<Id, u32> = FxHashMap::default();
    let mut is_candidate: FxHashSet<Id> = FxHashSet::default();
    for &n in &order {
        let node = &g[n];
        // Cost of computing it in place, down to candidates and leaves.
        let below: u32 = node.src[..values(node)]
            .iter()
            .filter(|s| !is_candidate.contains(s))
            .map(|s| cost.get(s).copied().unwrap_or(0))
            .sum();
        let own = own_cost(node);
        cost.insert(n, below + own);
        let reduction = matches!(node.op, Op::Reduce | Op::Cat | Op::Call);
        let assigned = is_written(g, n)
            || of_own_state.contains(&n)
            || of_added.contains(&n)
            || of_calls.contains(&n);
        let forced = roots.contains(&n) || assigned || reduction && below_dims.contains(&n);
        let several = readers.count(n) > 1 || readers.is_repeated(n);
        let scalar = g.shape(n).is_empty();
        let yes = forced
            || reduction
            || hints.contains_key(&n)
            || staged.contains(&n)
            || by_function.contains(&n)
            || derived.planes.contains_key(&n)
            || node.op.is_elementwise()
                && several
                && below + own >= EXPENSIVE_COST
                && (!scalar || node.dtype.scalar.is_float());
        if yes {
            is_candidate.insert(n);
            out.nodes.push(n);
            if forced {
                out.forced.insert(n);
            }
        }
    }
    out
}

/// Cost of computing an element of the node from its sources.
fn own_cost(node: &Node) -> u32 {
    if node.op.is_elementwise() && node.dtype.scalar != gristmill_uop::Scalar::I64 {
        weight(node.op)
    } else {
        0
    }
}

/// Tensors that custom kernels read through a function, and those that they read by pointer.
fn arguments(g: &Graph, order: &[Id]) -> [FxHashSet<Id>; 2] {
    let (by_function, of_calls): (Vec<_>, Vec<_>) = order
        .iter()
        .flat_map(|&n| custom::tensors(g, n))
        .partition(|argument| argument.1);
    [by_function, of_calls].map(|of| {
        of.into_iter()
            .map(|argument| argument.0)
            .collect::<FxHashSet<Id>>()
    })
}

/// Whether the node's kernel writes memory by itself: a state, a copy, or a custom kernel's output
/// by pointer.
fn is_written(g: &Graph, n: Id) -> bool {
    let by_pointer =
        custom::called(g, n).is_some_and(|kernel| kernel.calls(kernel.output).is_none());
    g[n].op.is_version() || g[n].op == Op::Copy || by_pointer
}

/// Reader counts, looking through movement ops, and whether a reader reads an element repeatedly.
#[derive(Default)]
struct Readers {
    counts: FxHashMap<Id, u32>,
    repeated: FxHashMap<Id, bool>,
}

impl Readers {
    /// Counts readers; `order` has sources before users.
    fn new(g: &Graph, order: &[Id]) -> Readers {
        let mut readers = Readers::default();
        for &n in order.iter().rev() {
            let node = &g[n];
            let (mine, mine_repeated) = (readers.count(n), readers.is_repeated(n));
            for (i, &s) in node.src.iter().enumerate() {
                let movement = node.op.is_movement();
                if movement && i > 0 && (node.op != Op::Cat || i + 1 == node.src.len()) {
                    continue;
                }
                let again = matches!(node.op, Op::Expand | Op::Gather);
                *readers.counts.entry(s).or_default() += if movement { mine } else { 1 };
                *readers.repeated.entry(s).or_default() |= again || movement && mine_repeated;
            }
        }
        readers
    }
    fn count(&self, n: Id) -> u32 {
        self.counts.get(&n).copied().unwrap_or(0)
    }
    fn is_repeated(&self, n: Id) -> bool {
        self.repeated.get(&n).copied().unwrap_or(false)
    }
}

/// Values assigned to a state that are computed elementwise from the same state. They are
/// materialised first: a kernel that writes a state must not read it, since other workgroups may
/// have written it already and surplus elements are computed twice.
fn of_own_state(g: &Graph, order: &[Id]) -> FxHashSet<Id> {
    let mut own: FxHashSet<Id> = FxHashSet::default();
    for &n in order.iter().filter(|&&n| g[n].op.is_version()) {
        let [state, value, ..] = g[n].src[..] else {
            continue;
        };
        let mut stack = vec![value];
        let mut seen = FxHashSet::default();
        while let Some(n) = stack.pop() {
            if n == state {
                own.insert(value);
            } else if !(g[n].op.is_version() || matches!(g[n].op, Op::Reduce | Op::Cat | Op::Copy))
            {
                stack.extend(g[n].src.iter().copied().filter(|&s| seen.insert(s)));
            }
        }
    }
    own
}

/// Reductions in values or row numbers of a `ScatterAdd`. They are materialised, since threads that
/// share a sum would all add it.
fn of_added(g: &Graph, order: &[Id]) -> FxHashSet<Id> {
    let sums = |n: &Id| {
        g.any(*n, |_, n| {
            matches!(n.op, Op::Reduce | Op::Cat | Op::Call) || n.op.is_version()
        })
    };
    let added = order
        .iter()
        .filter(|&&n| g[n].op == Op::ScatterAdd)
        .flat_map(|&n| g[n].src[1..3].iter().copied());
    added.filter(|n| g[*n].op != Op::Param && sums(n)).collect()
}

/// Nodes that dims are computed from: a loop bound must come from an earlier kernel.
///
/// The walk stops at the rounded operands of half-precision products, which are materialised
/// anyway. MoE layers then have five launches fewer, with norms and softmax fused into their
/// readers: steps of 2 and 8 rows of Qwen3-30B on an H100 are 8 and 3 % faster.
fn below_dims(g: &Graph, order: &[Id], derived: &Derived) -> FxHashSet<Id> {
    let dims_of = |&n: &Id| {
        let node = &g[n];
        let dims = if node.op == Op::Call {
            &node.src[1..2]
        } else {
            &node.src[values(node)..]
        };
        dims.iter().copied()
    };
    let mut stack: Vec<Id> = order.iter().flat_map(dims_of).collect();
    let mut below = FxHashSet::default();
    while let Some(n) = stack.pop() {
        if below.insert(n) && !derived.rounded.contains_key(&n) {
            stack.extend(&g[n].src);
        }
    }
    below
}
