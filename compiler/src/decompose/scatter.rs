//! Lowers `SCATTER_ADD` to the cheapest of three variants:
//!
//! - *compared*: each row of the result sums the added rows with its index. Ordinary ops,
//!   deterministic, with work rows × added rows;
//! - *in order*: the base is copied to the result, and rows are added to it one after the other.
//!   Deterministic, one addition per element, but each column belongs to one workgroup;
//! - *atomic*: the same with all rows in parallel, by atomic additions. The order differs from run
//!   to run, so floats need `Target::any_order`; integer sums are exact in any order.
//!
//! The last version of a state is updated in place, without a copy.

use crate::decision::{Alternative, Decider, Decision};
use crate::ir::parse::{ParseError, bad};
use crate::ir::size_estimate::typical;
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;
use std::fmt;
use std::str::FromStr;

/// How added rows are accumulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScatterVariant {
    /// Compares indices: one sum per element of the result.
    Compared,
    /// Adds the rows one after the other.
    InOrder,
    /// Adds all rows in parallel, atomically.
    Atomic,
}

impl ScatterVariant {
    fn name(self) -> &'static str {
        match self {
            ScatterVariant::Compared => "compared",
            ScatterVariant::InOrder => "in order",
            ScatterVariant::Atomic => "atomic",
        }
    }
    const ALL: [ScatterVariant; 3] = [
        ScatterVariant::Compared,
        ScatterVariant::InOrder,
        ScatterVariant::Atomic,
    ];
    /// Returns the variants that are legal for sums of this type.
    pub fn legal(scalar: Scalar, target: &Target) -> impl Iterator<Item = ScatterVariant> {
        let atomic = target.scatter && (target.any_order || scalar == Scalar::I32);
        let is_legal = move |form: &ScatterVariant| match form {
            ScatterVariant::Compared => true,
            ScatterVariant::InOrder => target.scatter,
            ScatterVariant::Atomic => atomic,
        };
        ScatterVariant::ALL.into_iter().filter(is_legal)
    }
}

impl fmt::Display for ScatterVariant {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "scatter: {}", self.name())
    }
}

impl FromStr for ScatterVariant {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<ScatterVariant, ParseError> {
        ScatterVariant::ALL
            .into_iter()
            .find(|form| form.to_string() == text.trim())
            .map_or_else(|| bad(text), Ok)
    }
}

/// Operations per compared element: comparison, selection and sum. Counted, not measured.
const COMPARED: f64 = 3.0;
/// Memory accesses per added element: read it, read the old value, write the sum.
const MOVED: f64 = 3.0;

/// Replaces every `SCATTER_ADD` of a function below `roots` in the variant that is decided on.
pub fn expand(
    g: &mut Graph,
    roots: &mut [Id],
    function: &Function,
    target: &Target,
    decider: &mut Decider,
) {
    let in_place = in_place(g, roots, function);
    let (mut map, mut copies) = (FxHashMap::default(), 0);
    for id in g.toposort(roots) {
        if g[id].op != Op::ScatterAdd {
            continue;
        }
        let [x, value, index] = [0, 1, 2]
            .map(|i| g[id].src[i])
            .map(|s| g.substitute(s, &mut map));
        let own = in_place.contains(&id);
        let new = match decided(g, id, own, &function.full_name(), target, decider) {
            ScatterVariant::Compared => compared(g, Added { x, value, index }, own),
            form => {
                let base = if own { x } else { copied(g, x, &mut copies) };
                let arg = Arg::Int(i64::from(form == ScatterVariant::InOrder));
                let dtype = g[id].dtype;
                g.intern(Node {
                    op: Op::ScatterAdd,
                    dtype,
                    src: smallvec![base, value, index],
                    arg,
                })
            }
        };
        map.insert(id, new);
    }
    if !map.is_empty() {
        roots
            .iter_mut()
            .for_each(|r| *r = g.substitute(*r, &mut map));
    }
}

/// Operands: `value[i]` is added to row `index[i]` of `x`.
#[derive(Clone, Copy)]
struct Added {
    x: Id,
    value: Id,
    index: Id,
}

/// Finds the nodes that make the final version of a state, and the versions below it.
fn in_place(g: &Graph, roots: &[Id], function: &Function) -> FxHashSet<Id> {
    let mut found = FxHashSet::default();
    for (&(slot, _), &root) in function.outputs.iter().zip(roots) {
        let mut at = root;
        while function.slots[slot as usize].kind == SlotKind::State && g[at].op.is_version() {
            found.insert(at);
            at = g[at].src[0];
        }
    }
    found
}

/// A copy with a unique number, so that it is not shared with another node.
fn copied(g: &mut Graph, x: Id, copies: &mut i64) -> Id {
    *copies += 1;
    let dtype = g[x].dtype;
    g.intern(Node {
        op: Op::Copy,
        dtype,
        src: smallvec![x],
        arg: Arg::Int(*copies),
    })
}

/// `x[r] + Σ_i (index[i] = r ? value[i] : 0)`; f16 is summed in f32.
fn compared(g: &mut Graph, Added { x, value, index }: Added, own: bool) -> Id {
    let (dims, scalar) = (g.shape(x), g.scalar(x));
    let count = g.shape(value)[0];
    let of = if scalar == Scalar::F16 {
        Scalar::F32
    } else {
        scalar
    };
    let one = g.int(1);
    let mut full = dims.clone();
    full.insert(1, count);
    let mut beside = full.clone();
    beside[2..].fill(one);
    let number = g.iota(&beside, 0);
    let number = g.cast(number, Scalar::I32);
    let index = g.cast(index, Scalar::I32);
    let mut across = beside.clone();
    across[0] = one;
    let index = g.reshape(index, &across);
    let index = g.expand(index, &beside);
    let here = g.eq(index, number);
    let here = g.expand(here, &full);
    let value = g.cast(value, of);
    across[2..].copy_from_slice(&dims[1..]);
    let value = g.reshape(value, &across);
    let value = g.expand(value, &full);
    let none = g.constant(of, 0.0);
    let counts = g.select(here, value, none);
    let sum = g.sum(counts, &[1]);
    let old = g.cast(x, of);
    let new = g.add(old, sum);
    let new = g.cast(new, scalar);
    if !own {
        return new;
    }
    let begin = g.int(0);
    g.assign(x, new, begin)
}

/// Chooses the variant of a node.
fn decided(
    g: &Graph,
    id: Id,
    own: bool,
    function: &str,
    target: &Target,
    decider: &mut Decider,
) -> ScatterVariant {
    let of = Sizes::from_node(g, id, own);
    let forms: Vec<ScatterVariant> = ScatterVariant::legal(g.scalar(id), target).collect();
    let options = forms.iter().map(|&form| Alternative {
        name: form.name(),
        plan: form.to_string(),
        seconds: of.seconds(form, target),
    });
    let site = format!(
        "{function} {} by {}",
        g.show_dims(g.dims(id)),
        g.show_dims(g.dims(g[id].src[2]))
    );
    forms[decider.choose(Decision::new("scatter", site, options.collect()))]
}

/// Sizes of a scatter, as inputs of the cost model.
pub struct Sizes {
    /// Rows of the result.
    pub rows: f64,
    /// Number of rows that are added.
    pub added: f64,
    /// Number of elements per row.
    pub width: f64,
    /// Type of the elements.
    pub scalar: Scalar,
    /// Whether it is in place, without a copy of the base.
    pub own: bool,
}

impl Sizes {
    fn from_node(g: &Graph, id: Id, own: bool) -> Sizes {
        let size = |d: &Id| typical(g, *d);
        let dims = g.dims(id);
        Sizes {
            rows: size(&dims[0]),
            added: size(&g.dims(g[id].src[2])[0]),
            width: dims[1..].iter().map(size).product(),
            scalar: g.scalar(id),
            own,
        }
    }
    /// Seconds to move `bytes`, at cache bandwidth if they fit into the cache.
    fn moved(&self, bytes: f64, target: &Target) -> f64 {
        let m = &target.machine;
        bytes
            / if bytes > m.cache as f64 {
                m.bandwidth
            } else {
                m.cache_bandwidth
            }
    }
    /// Estimated seconds of a variant.
    pub fn seconds(&self, form: ScatterVariant, target: &Target) -> f64 {
        let (m, bytes) = (&target.machine, self.scalar.bytes() as f64);
        let all = 2.0 * self.rows * self.width * bytes;
        let elements = self.added * self.width;
        let copy = if self.own {
            0.0
        } else {
            m.launch + self.moved(all, target)
        };
        let moved = self.moved(MOVED * elements * bytes, target);
        match form {
            ScatterVariant::Compared => {
                let operations = COMPARED * self.rows * elements;
                m.launch
                    + self
                        .moved(all + elements * bytes, target)
                        .max(operations / m.operations)
            }
            ScatterVariant::InOrder => {
                // Columns are divided among CPU cores in vectors, or among GPU threads. A GPU
                // thread waits for a row before it starts the next.
                let (together, wait) = match m.kind {
                    MachineKind::Cpu => (m.lanes as f64, m.cpu_facts().scatter_row_seconds),
                    MachineKind::Gpu => (target.threads as f64, m.latency),
                };
                let busy = (self.width / together).ceil().clamp(1.0, m.units as f64);
                let together = (self.width / together / busy).ceil();
                copy + m.launch + (moved * m.units as f64 / busy).max(self.added * together * wait)
            }
            ScatterVariant::Atomic => {
                copy + m.launch + moved.max(elements * m.atomic / m.units as f64)
            }
        }
    }
}
