//! Dequantises the visible rows of a KV cache to f16, once for all tokens of a prefill.
//!
//! MMA fragments multiply f16 rows. Rows that are stored as codes with scales, or in another form
//! that is narrower than f32, would be decoded and multiplied in f32 by every workgroup. Here a
//! step decodes the rows that its tokens see into an f16 buffer, and rounds the queries to f16, as
//! over an f16 cache. The buffer is an intermediate of one layer. Whether this pays is a decision
//! (`crate::alternatives::cache_rows`).

use super::f16_split;
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use rustc_hash::FxHashMap;

/// Source number of an attention's queries.
const QUERIES: usize = 0;
/// Source number of the position of the first token.
const FIRST: usize = 3;
/// Source number of the positions in use.
const LENGTH: usize = 4;
/// Source number of the window, if there is one.
const WINDOW: usize = 5;

/// Returns whether an f32 tensor is computed element by element from narrower stored values alone,
/// such as codes and scales of a quantised cache.
pub fn is_stored(g: &Graph, x: Id) -> bool {
    let mut known = FxHashMap::default();
    g.scalar(x) == Scalar::F32 && source(g, x, &mut known).is_stored()
}

/// What the elements of a tensor are computed from.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    /// Constants and indices, which have no rows.
    Constant,
    /// This many narrow stored values, and constants.
    Stored(i64),
    /// Values that no cache stores.
    Other,
}

impl Source {
    fn is_stored(self) -> bool {
        matches!(self, Source::Stored(_))
    }
}

/// Most elements that are decoded from one stored value: the bits of a byte. More are products of
/// rows with something else, such as an f16 weight.
const PER_VALUE: i64 = 8;

fn source(g: &Graph, x: Id, known: &mut FxHashMap<Id, Source>) -> Source {
    if let Some(&found) = known.get(&x) {
        return found;
    }
    let n = &g[x];
    let found = match n.op {
        Op::Const | Op::Var | Op::Iota => Source::Constant,
        Op::Param if matches!(n.arg, Arg::Param(_)) && g.scalar(x).bytes() < 4 => {
            Source::Stored(g.max_elements(x))
        }
        Op::Assign | Op::Reshape | Op::Expand | Op::Permute => source(g, n.src[0], known),
        Op::Shrink | Op::Gather => match source(g, n.src[0], known) {
            Source::Stored(values) => Source::Stored(values.min(g.max_elements(x))),
            other => other,
        },
        op if op.is_elementwise() => {
            let joined = |one, other| match (one, other) {
                (Source::Other, _) | (_, Source::Other) => Source::Other,
                (Source::Stored(a), Source::Stored(b)) => Source::Stored(a.max(b)),
                (Source::Constant, other) | (other, Source::Constant) => other,
            };
            let all: Vec<Source> = n.src.iter().map(|&s| source(g, s, known)).collect();
            match all.into_iter().fold(Source::Constant, joined) {
                Source::Stored(values) if g.max_elements(x) > PER_VALUE * values => Source::Other,
                found => found,
            }
        }
        _ => Source::Other,
    };
    known.insert(x, found);
    found
}

/// Returns the function with its attentions over dequantised f16 rows, and the attentions of both;
/// `None` if no attention of several tokens reads narrow rows or the machine has no f16 fragments.
pub fn dequantised(function: &Function, target: &Target) -> Option<(Function, [Vec<Id>; 2])> {
    target.machine.fragment(Scalar::F16)?;
    let mut g = function.graph.clone();
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let (mut map, mut both) = (FxHashMap::default(), [vec![], vec![]]);
    for id in g.toposort(&roots) {
        if g[id].op != Op::Attention || g.max_of(g.dims(id)[0]) < 2 {
            continue;
        }
        let mut n = g[id].clone();
        for s in &mut n.src {
            *s = g.substitute(*s, &mut map);
        }
        let rows = n.src[1..3].to_vec();
        let changed = match rows.iter().all(|&x| is_stored(&g, x)) {
            true => whole(&mut g, &mut n.src, &rows),
            false => parts(&mut g, &mut n.src, &rows),
        };
        if changed {
            n.src[QUERIES] = rounded(&mut g, n.src[QUERIES]);
            let new = g.build(n.op, n.dtype, n.src, n.arg);
            map.insert(id, new);
            both[0].push(id);
            both[1].push(new);
        }
    }
    if both[0].is_empty() {
        return None;
    }
    let outputs = function
        .outputs
        .iter()
        .map(|&(slot, root)| (slot, g.substitute(root, &mut map)))
        .collect();
    let function = Function {
        graph: g,
        outputs,
        ..function.clone()
    };
    Some((function, both))
}

/// Replaces keys and values that are stored rows by the visible ones in f16. With a sliding window
/// positions are counted from the first that the window of the first token covers.
fn whole(g: &mut Graph, src: &mut [Id], rows: &[Id]) -> bool {
    if rows.iter().all(|&x| f16_split::are_halves(g, x)) {
        return false;
    }
    let (first, length) = (src[FIRST], src[LENGTH]);
    let window = src.get(WINDOW).and_then(|&w| g.int_value(w)).unwrap_or(0);
    let (mut begin, mut seen) = (g.int(0), length);
    if window > 0 {
        // The sum of the two is `first`; both are written so that their bounds are exact.
        let (most, least, zero) = (g.int(window - 1), g.int(1 - window), g.int(0));
        let before = g.min(first, most);
        begin = g.add(first, least);
        begin = g.max(begin, zero);
        let tokens = g.sub(length, first);
        seen = g.add(before, tokens);
        src[FIRST] = before;
        src[LENGTH] = seen;
    }
    for (at, &x) in rows.iter().enumerate() {
        let zero = g.int(0);
        let mut part: Vec<(Id, Id)> = g.shape(x).iter().map(|&d| (zero, d)).collect();
        part[0] = (begin, seen);
        let x = g.shrink(x, &part);
        src[1 + at] = half(g, x);
    }
    true
}

/// Replaces stored rows in the computation of keys and values, such as those of a latent cache.
/// They must already be cut to the visible rows.
fn parts(g: &mut Graph, src: &mut [Id], rows: &[Id]) -> bool {
    let seen = src[LENGTH];
    let mut map = FxHashMap::default();
    for x in below(g, rows) {
        let Some(base) = base(g, x).filter(|&base| g.dims(base).first() == Some(&seen)) else {
            continue;
        };
        map.entry(base).or_insert_with(|| half(g, base));
    }
    if map.is_empty() {
        return false;
    }
    for (at, &x) in rows.iter().enumerate() {
        src[1 + at] = g.substitute(x, &mut map);
    }
    true
}

/// Returns the stored rows that these tensors are computed from, the nodes nearest to them.
fn below(g: &Graph, of: &[Id]) -> Vec<Id> {
    let (mut known, mut found) = (FxHashMap::default(), Vec::new());
    let (mut stack, mut visited) = (of.to_vec(), Vec::new());
    while let Some(x) = stack.pop() {
        if visited.contains(&x) || g.dims(x).is_empty() {
            continue;
        }
        visited.push(x);
        let n = &g[x];
        match n.op {
            _ if source(g, x, &mut known).is_stored() => {
                found.extend(
                    (g.scalar(x) == Scalar::F32 && !f16_split::are_halves(g, x)).then_some(x),
                );
            }
            Op::Cat | Op::Reduce => stack.extend(n.src.iter().copied()),
            op if op.is_elementwise() || op.is_movement() => stack.extend(n.src.iter().copied()),
            _ => {}
        }
    }
    found
}

/// Returns the decoded rows below movements, cut to the rows that are read.
fn base(g: &Graph, x: Id) -> Option<Id> {
    let n = &g[x];
    match n.op {
        Op::Shrink if g[n.src[0]].op.is_elementwise() => Some(x),
        op if op.is_movement() => base(g, n.src[0]),
        op if op.is_elementwise() => Some(x),
        _ => None,
    }
}

/// Rounds to f16, as f32.
fn half(g: &mut Graph, x: Id) -> Id {
    let half = g.cast(x, Scalar::F16);
    g.cast(half, Scalar::F32)
}

/// Rounds queries to f16, each part of a concatenation where it is computed.
fn rounded(g: &mut Graph, q: Id) -> Id {
    if f16_split::rounded(g, q) {
        return q;
    }
    let n = g[q].clone();
    match (n.op, &n.arg) {
        (Op::Cat, Arg::Axes(axes)) => {
            let parts: Vec<Id> = n.src[..n.src.len() - 1]
                .iter()
                .map(|&part| rounded(g, part))
                .collect();
            g.cat(&parts, axes[0] as usize)
        }
        _ => half(g, q),
    }
}

/// Returns the f16 rows among the sources of keys and values, which are to be materialised.
pub fn buffers(g: &Graph, rows: &[Id]) -> Vec<Id> {
    let order = g.toposort_within(rows, |id| !g[id].op.is_version());
    let is_half = |&id: &Id| {
        let n = &g[id];
        n.op == Op::Cast && n.dtype.scalar == Scalar::F16 && is_stored(g, n.src[0])
    };
    order.into_iter().filter(is_half).collect()
}
