//! Inputs of passes besides the graph: the enclosing function and results of earlier passes.

use crate::case::{Case, Parsed};
use crate::kernels::LaidOut;
use gristmill_compiler::testing::{
    Cheapest, Decider, Derived, Hint, Layout, MatmulVariants, Packing, attention, factors, int8,
    layouts_of,
};
use gristmill_uop::function::{Function, Slot, SlotKind, Storage};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, EncodingRef, Graph, Id, Op};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Makes a function of a tensor-level graph: parameters are slots, roots are outputs.
///
/// A parameter that is assigned to is a state.
pub fn function(g: &Graph, roots: &[Id]) -> Function {
    let order = g.toposort(roots);
    let states: BTreeSet<Id> = order
        .iter()
        .filter(|&&n| g[n].op.is_version() && matches!(g[g[n].src[0]].op, Op::Param))
        .map(|&n| g[n].src[0])
        .collect();
    let mut slots: Vec<Slot> = Vec::new();
    for &id in &order {
        let (number, storage) = match g[id].arg {
            Arg::Param(slot) => (slot as usize, Storage::Plain(g.scalar(id))),
            Arg::Packed(slot, e) => (slot as usize, Storage::Packed(e)),
            _ => continue,
        };
        let unused = |n: usize| Slot {
            name: format!("slot{n}"),
            kind: SlotKind::Input,
            dims: vec![],
            storage: Storage::Plain(gristmill_uop::Scalar::F32),
        };
        while slots.len() <= number {
            slots.push(unused(slots.len()));
        }
        let kind = match storage {
            Storage::Packed(_) => SlotKind::Weight,
            _ if states.contains(&id) => SlotKind::State,
            _ => SlotKind::Input,
        };
        let dims = g.dims(id).iter().map(|&d| g.max_of(d)).collect();
        slots[number] = Slot {
            kind,
            dims,
            storage,
            ..unused(number)
        };
    }
    let mut outputs = Vec::new();
    for &root in roots {
        let mut base = root;
        while g[base].op.is_version() {
            base = g[base].src[0];
        }
        if let (true, Arg::Param(slot)) = (base != root, &g[base].arg) {
            outputs.push((*slot, root));
            continue;
        }
        outputs.push((slots.len() as u32, root));
        let dims = g.shape(root).iter().map(|&d| g.max_of(d)).collect();
        let storage = Storage::Plain(g.scalar(root));
        slots.push(Slot {
            name: "out".into(),
            kind: SlotKind::Output,
            dims,
            storage,
        });
    }
    Function {
        name: "case".into(),
        graph: g.clone(),
        slots,
        outputs,
    }
}

/// A tensor-level graph after the passes listed in `after: attention int8`.
pub struct Context {
    pub parsed: Parsed,
    pub function: Function,
    pub target: Target,
    pub graph: Graph,
    pub roots: Vec<Id>,
    pub hints: FxHashMap<Id, Hint>,
    pub derived: Derived,
}

impl Context {
    pub fn for_case(case: &Case) -> Result<Context, String> {
        let (parsed, target) = (case.graph()?, case.target()?);
        let function = function(&parsed.graph, &parsed.roots);
        let (mut graph, mut roots) = (parsed.graph.clone(), parsed.roots.clone());
        let (mut hints, mut derived) = (FxHashMap::default(), Derived::default());
        for pass in case.get("after").unwrap_or_default().split_whitespace() {
            match pass {
                "attention" => {
                    let mut decider = Decider {
                        policy: &mut Cheapest,
                        plans: &target.plans,
                        log: vec![],
                    };
                    attention(
                        &mut graph,
                        &mut roots,
                        &mut hints,
                        &target,
                        "case",
                        &mut decider,
                    )
                }
                "factors" => {
                    let mut decider = Decider {
                        policy: &mut Cheapest,
                        plans: &target.plans,
                        log: vec![],
                    };
                    factors(
                        &mut graph,
                        &mut roots,
                        &mut hints,
                        &function,
                        &target,
                        &mut decider,
                    )
                }
                "int8" => {
                    let mut decider = Decider {
                        policy: &mut Cheapest,
                        plans: &target.plans,
                        log: vec![],
                    };
                    let mut forms = MatmulVariants::new("case", &target, &mut decider);
                    derived = int8(
                        &mut graph,
                        &mut roots,
                        &mut hints,
                        layouts_of(&function, &target),
                        &mut forms,
                    )
                }
                _ => return Err(format!("`{pass}` is no pass that comes before")),
            }
        }
        Ok(Context {
            parsed,
            function,
            target,
            graph,
            roots,
            hints,
            derived,
        })
    }
    /// The current outputs.
    pub fn outputs(&self) -> Vec<(u32, Id)> {
        self.function
            .outputs
            .iter()
            .zip(&self.roots)
            .map(|(o, &r)| (o.0, r))
            .collect()
    }
    /// The roots of the printed graph: the outputs, and sums of activations that no node refers to.
    pub fn all(&self) -> Vec<Id> {
        let mut sums: Vec<Id> = self
            .derived
            .dots
            .values()
            .filter_map(|d| d.s)
            .map(|s| s.0)
            .collect();
        sums.sort_unstable();
        sums.dedup();
        self.roots.iter().copied().chain(sums).collect()
    }
    /// Slots whose layout differs from their file layout.
    pub fn laid_out(&self) -> Vec<LaidOut> {
        let of = |(&slot, (layout, _)): (&u32, &(Layout, Arc<Packing>))| {
            let info = &self.function.slots[slot as usize];
            let Storage::Packed(encoding) = info.storage else {
                unreachable!("a layout of plain numbers")
            };
            LaidOut {
                slot,
                encoding,
                layout: *layout,
                dims: info.dims.clone(),
            }
        };
        self.derived.layouts.iter().map(of).collect()
    }
}

/// `rows 16`, `planes` or `file`.
pub fn layout(words: &str) -> Result<Layout, String> {
    format!("layout: {words}")
        .parse()
        .map_err(|_| format!("no layout `{words}`"))
}

/// `encoding: q4_0`.
pub fn encoding(case: &Case) -> Result<EncodingRef, String> {
    let name = case.get("encoding").ok_or("no `encoding`")?;
    gristmill_encodings::by_name(name).ok_or_else(|| format!("no encoding `{name}`"))
}
