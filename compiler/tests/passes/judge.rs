//! Checks that a pass preserves meaning: runs its input and output on the same random values.
//!
//! The evaluator runs the tensor level and `interp` the kernel level, after the spec of their level
//! has accepted them.

use crate::case::Case;
use crate::kernels::{Kernels, Linear, Lowered, Written};
use crate::memory::{Random, Slots, Vars, Wanted, get, places, put, slot};
use gristmill_compiler::testing;
use gristmill_tensor::evaluate::{Env, HostArray, evaluate_all};
use gristmill_uop::fold::Value;
use gristmill_uop::function::Storage;
use gristmill_uop::spec::{self, Level};
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use std::collections::{BTreeMap, HashMap};

/// Tolerance of floats relative to the largest element, because sums may be reordered.
const WITHIN: f64 = 1e-5;

/// The output of a pass on a case: its text, and a claim about its meaning.
pub struct Applied {
    pub text: String,
    pub claim: Claim,
}

/// A claim about the meaning of a pass's output.
pub enum Claim {
    /// The text is the only output: a list, a number, a decision.
    Text,
    /// All meanings compute the same as the first.
    Same(Vec<Meaning>),
}

impl Claim {
    /// Claims that `after` computes the same as `before`.
    pub fn same(before: Meaning, after: Meaning) -> Claim {
        Claim::Same(vec![before, after])
    }
}

/// An executable form of a case.
pub enum Meaning {
    /// Tensor-level nodes, with the slots under which they are compared.
    Tensors(Tensors),
    /// Kernels, compared by the slots that they write.
    Kernels(Kernels),
    /// Linear code of kernels.
    Linear(Linear),
    /// Values with lanes, as linear code of this test; not checked by the spec.
    Values(Linear),
}

pub struct Tensors {
    pub graph: Graph,
    pub outputs: Vec<(u32, Id)>,
}

impl Tensors {
    fn roots(&self) -> Vec<Id> {
        self.outputs.iter().map(|o| o.1).collect()
    }
}

impl Meaning {
    fn check(&self) -> Result<(), String> {
        let spec = |g: &Graph, root, level| spec::check(g, root, level).map_err(|e| e.to_string());
        match self {
            Meaning::Tensors(t) => t
                .roots()
                .into_iter()
                .try_for_each(|r| spec(&t.graph, r, Level::Tensor)),
            Meaning::Kernels(k) => k.launches.iter().try_for_each(|bodies| {
                let (g, root) = k.root(bodies);
                spec(&g, root, Level::Kernel)
            }),
            Meaning::Linear(l) => {
                let check = |k: &Lowered| {
                    testing::check_linear(&k.graph, &k.code).map_err(|e| e.to_string())
                };
                l.kernels.iter().try_for_each(check)
            }
            Meaning::Values(_) => Ok(()),
        }
    }
    fn graph(&self) -> (&Graph, Vec<Id>) {
        match self {
            Meaning::Tensors(t) => (&t.graph, t.roots()),
            Meaning::Linear(Linear { nests: k, .. })
            | Meaning::Values(Linear { nests: k, .. })
            | Meaning::Kernels(k) => {
                let filled = k.filled.iter().map(|f| f.1);
                (
                    &k.graph,
                    k.launches
                        .iter()
                        .flatten()
                        .flatten()
                        .copied()
                        .chain(filled)
                        .collect(),
                )
            }
        }
    }
    fn wanted(&self) -> Result<BTreeMap<u32, Wanted>, String> {
        match self {
            Meaning::Tensors(t) => Ok(wanted(&t.graph, &t.roots())),
            Meaning::Linear(Linear { nests: k, .. })
            | Meaning::Values(Linear { nests: k, .. })
            | Meaning::Kernels(k) => {
                let nodes: Vec<Id> = k.filled.iter().map(|f| f.1).collect();
                let mut all = k.wanted()?;
                all.extend(wanted(&k.graph, &nodes));
                Ok(all)
            }
        }
    }
}

/// The slots that tensor-level nodes read.
fn wanted(g: &Graph, roots: &[Id]) -> BTreeMap<u32, Wanted> {
    let mut out = BTreeMap::new();
    for id in g.toposort(roots) {
        let Some(slot) = slot(g, id) else { continue };
        let dims: Vec<i64> = g.dims(id).iter().map(|&d| g.max_of(d)).collect();
        let storage = match g[id].arg {
            Arg::Packed(_, e) => Storage::Packed(e),
            _ => Storage::Plain(g.scalar(id)),
        };
        let bytes = storage.bytes(&dims).expect("rows of whole blocks");
        let packed = matches!(storage, Storage::Packed(_));
        out.insert(
            slot,
            Wanted {
                scalar: g.scalar(id),
                packed,
                bytes,
            },
        );
    }
    out
}

/// Checks a claim.
pub fn judge(case: &Case, applied: &Applied) -> Result<(), String> {
    let Claim::Same(all) = &applied.claim else {
        return Ok(());
    };
    let (before, after) = all
        .split_first()
        .expect("something is the same as something");
    before
        .check()
        .map_err(|e| format!("the input breaks its spec: {e}"))?;
    let broken = |e| format!("what came out breaks its spec: {e}\n{}", applied.text);
    after.iter().try_for_each(|m| m.check().map_err(broken))?;
    let within = case.parsed::<f64>("within")?.unwrap_or(WITHIN);
    let fills = fills(case)?;
    let mut wanted = BTreeMap::new();
    for meaning in all.iter().rev() {
        wanted.extend(meaning.wanted()?);
    }
    for vars in variables(case, all)? {
        let mut random = Random::from_name(&case.input);
        let fill = |(&slot, w): (&u32, &Wanted)| {
            let bytes = match w.packed {
                true => random.blocks(w.bytes),
                false => random.elements(
                    w.scalar,
                    w.bytes / w.scalar.bytes(),
                    fills.get(&slot).copied(),
                ),
            };
            (slot, bytes)
        };
        let slots: Slots = wanted.iter().map(fill).collect();
        let want = values(before, &slots, &vars)?;
        for meaning in after {
            let result =
                values(meaning, &slots, &vars).and_then(|got| compare(&want, &got, within));
            result.map_err(|e| {
                format!(
                    "computes something else, with {vars:?}: {e}\n{}",
                    applied.text
                )
            })?;
        }
    }
    Ok(())
}

/// `fill: 3=0..8 4=1..2`: integer ranges of slots that hold indices.
fn fills(case: &Case) -> Result<HashMap<u32, (i64, i64)>, String> {
    let one = |w: &str| -> Option<(u32, (i64, i64))> {
        let (slot, interval) = w.split_once('=')?;
        let (lo, hi) = interval.split_once("..")?;
        Some((slot.parse().ok()?, (lo.parse().ok()?, hi.parse().ok()?)))
    };
    let words = case.get("fill").unwrap_or_default();
    words
        .split_whitespace()
        .map(|w| one(w).ok_or_else(|| format!("`{w}` is not `slot=lo..hi`")))
        .collect()
}

/// `vars: n=3 pos=5; n=1 pos=0`: one run each.
///
/// By default one run with all variables at their maximum and one at their minimum.
fn variables(case: &Case, meanings: &[Meaning]) -> Result<Vec<Vars>, String> {
    let mut known: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for meaning in meanings {
        let (g, roots) = meaning.graph();
        for id in g.toposort(&roots) {
            if let Arg::Var(name, lo, hi) = &g[id].arg {
                known.insert(name.to_string(), (*lo, *hi));
            }
        }
    }
    let Some(line) = case.get("vars") else {
        let end = |high: bool| {
            known
                .iter()
                .map(|(n, b)| (n.clone(), if high { b.1 } else { b.0 }))
                .collect()
        };
        return Ok(if known.is_empty() {
            vec![vec![]]
        } else {
            vec![end(true), end(false)]
        });
    };
    let one = |w: &str| -> Option<(String, i64)> {
        let (name, v) = w.split_once('=')?;
        Some((name.to_string(), v.parse().ok()?))
    };
    let run = |words: &str| {
        words
            .split_whitespace()
            .map(|w| one(w).ok_or(format!("`{w}` is not `name=value`")))
            .collect()
    };
    line.split(';').map(run).collect()
}

/// Values of the written slots, by position.
fn values(meaning: &Meaning, slots: &Slots, vars: &Vars) -> Result<BTreeMap<u32, Values>, String> {
    let read = |(slot, w): (u32, Written)| {
        let size = w.scalar.bytes();
        let data = (0..w.bytes.len() / size)
            .map(|i| Some(get(&w.bytes, i * size, w.scalar)))
            .collect();
        (
            slot,
            Values {
                scalar: w.scalar,
                data,
            },
        )
    };
    let written = match meaning {
        Meaning::Tensors(t) => return Ok(evaluated(t, slots, vars)),
        Meaning::Kernels(k) => {
            let mut slots = slots.clone();
            if !k.filled.is_empty() {
                let known = Tensors {
                    graph: k.graph.clone(),
                    outputs: k.filled.clone(),
                };
                let filled = evaluated(&known, &slots, vars).into_iter();
                slots.extend(filled.map(|(slot, v)| (slot, v.bytes())));
            }
            k.run(&slots, vars)?
        }
        Meaning::Linear(l) | Meaning::Values(l) => l.run(slots, vars)?,
    };
    Ok(written.into_iter().map(read).collect())
}

/// Elements of a slot; `None` for an unspecified element.
struct Values {
    scalar: Scalar,
    data: Vec<Option<f64>>,
}

impl Values {
    fn bytes(&self) -> Vec<u8> {
        let size = self.scalar.bytes();
        let mut out = vec![0; self.data.len() * size];
        for (i, v) in self.data.iter().enumerate() {
            let v = v.unwrap_or(0.0);
            let v = if self.scalar.is_float() {
                Value::Float(v)
            } else {
                Value::Int(v as i64)
            };
            put(&mut out, i * size, self.scalar, v.stored_as(self.scalar));
        }
        out
    }
}

fn evaluated(t: &Tensors, slots: &Slots, vars: &Vars) -> BTreeMap<u32, Values> {
    let g = &t.graph;
    let most =
        |id: Id| -> Vec<usize> { g.dims(id).iter().map(|&d| g.max_of(d) as usize).collect() };
    let var = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1);
    let mut plain: HashMap<u32, Vec<f64>> = HashMap::new();
    for id in g.toposort(&t.roots()) {
        let (Some(n), Arg::Param(_)) = (slot(g, id), &g[id].arg) else {
            continue;
        };
        debug_assert_eq!(g[id].op, Op::Param);
        let dim = |&d: &Id| g.evaluate_index(d, &var).expect("a dim of variables") as usize;
        let dims: Vec<usize> = g.dims(id).iter().map(dim).collect();
        let at = places(&dims, &most(id)).into_iter();
        plain.insert(
            n,
            at.map(|p| get(&slots[&n], p * g.scalar(id).bytes(), g.scalar(id)))
                .collect(),
        );
    }
    let mut env = Env::new();
    for (name, v) in vars {
        env = env.var(name, *v);
    }
    for (n, bytes) in slots {
        env = match plain.get(n) {
            Some(values) => env.values(*n, values),
            None => env.packed(*n, bytes),
        };
    }
    let placed = |(&(slot, id), array): (&(u32, Id), HostArray)| {
        let most = most(id);
        let mut data = vec![None; most.iter().product()];
        for (v, at) in array.data.iter().zip(places(&array.dims, &most)) {
            data[at] = Some(*v);
        }
        (
            slot,
            Values {
                scalar: g.scalar(id),
                data,
            },
        )
    };
    t.outputs
        .iter()
        .zip(evaluate_all(g, &t.roots(), &env))
        .map(placed)
        .collect()
}

/// Describes the first wrong element.
fn compare(
    want: &BTreeMap<u32, Values>,
    got: &BTreeMap<u32, Values>,
    within: f64,
) -> Result<(), String> {
    for (slot, want) in want {
        let got = got
            .get(slot)
            .ok_or_else(|| format!("slot {slot} is not written"))?;
        let most = want
            .data
            .iter()
            .flatten()
            .filter(|v| v.is_finite())
            .fold(0f64, |m, v| m.max(v.abs()));
        let allowed = if want.scalar.is_float() {
            within * most
        } else {
            0.0
        };
        for (i, w) in want.data.iter().enumerate() {
            let Some(w) = *w else { continue };
            let Some(&found) = got.data.get(i) else {
                return Err(format!("slot {slot} ends before element {i}"));
            };
            let Some(g) = found else {
                return Err(format!("slot {slot}, element {i} is not known"));
            };
            if !(w == g || w.is_nan() && g.is_nan() || (w - g).abs() <= allowed) {
                return Err(format!(
                    "slot {slot}, element {i}: {w} became {g}, more than {allowed:e} off"
                ));
            }
        }
    }
    Ok(())
}
