//! The passes by folder name, and those over expressions and nests.

use crate::case::Case;
use crate::context::layout;
use crate::judge::{Applied, Claim, Meaning, Tensors};
use crate::kernels::{Kernels, ranges};
use crate::{scheduling, show, statements, tensors, weights};
use gristmill_compiler::testing::{
    self, Derived, Expander, NestPlan, Packing, ProposalContext, Ranges,
};
use gristmill_uop::op::Class;
use gristmill_uop::rules::{dot, lift};
use gristmill_uop::{Arg, Graph, Id, Scalar, text};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

type Pass = fn(&Case) -> Result<Applied, String>;

/// All passes by the name of their folder.
pub const PASSES: &[(&str, Pass)] = &[
    ("rules_algebra", rules),
    ("rules_index", rules),
    ("rules_dot", rules_dot),
    ("rules_lift", rules_lift),
    ("alternatives", tensors::alternatives),
    ("scan", tensors::scan),
    ("scatter", tensors::scatter),
    ("attention", tensors::attention),
    ("dequantise_rows", tensors::dequantise_rows),
    ("encode_queries", tensors::encode_queries),
    ("factors", tensors::factors),
    ("int8", tensors::int8),
    ("f16_split", tensors::f16_split),
    ("layout", weights::layout_of),
    ("prepack", weights::prepack),
    ("candidates", scheduling::candidates),
    ("materialise", scheduling::materialise),
    ("schedule", scheduling::schedule),
    ("memory", scheduling::memory),
    ("rangeify", scheduling::rangeify),
    ("cut", scheduling::cut),
    ("workgroup", workgroup),
    ("price", price),
    ("simd", simd),
    ("simt", simt),
    ("accumulators", simt),
    ("fragment_tiling", fragment_tiling),
    ("fuse_reductions", fuse_reductions),
    ("legalise", legalise),
    ("linear", statements::linear),
    ("fused_loops", statements::linear),
    ("carried", statements::linear),
    ("forwarded", statements::linear),
    ("unpacked", statements::linear),
    ("surplus", statements::dependents),
    ("vectorise", statements::vectorise),
    ("coalesce", statements::coalesce),
    ("pairs", statements::pairs),
    ("mma", statements::mma),
    ("mma_f16", statements::mma_f16),
    ("async_copies", statements::async_copies),
    ("streamed", statements::streamed),
    ("launch", statements::launch),
    ("unroll", statements::unroll),
    ("dependents", statements::dependents),
    ("prefetch_spans", statements::prefetch_spans),
    ("prefetch_lines", statements::prefetch_lines),
    ("barriers", statements::barriers),
    ("hoist", statements::hoist),
    ("copies_ahead", statements::copies_ahead),
    ("meetings", statements::meetings),
    ("words", statements::words),
    ("written_out", statements::written_out),
    ("decisions", scheduling::decisions),
    ("pipeline", scheduling::pipeline),
];

/// Claims that expressions, of tensors or of elements, are equal before and after a pass.
fn values(before: (&Graph, &[Id]), after: (&Graph, &[Id])) -> Claim {
    let (g, roots) = before;
    let kernel = g
        .toposort(roots)
        .iter()
        .any(|&n| g[n].op.class() == Class::Kernel);
    let ranges = ranges(g, roots);
    let of = |(g, roots): (&Graph, &[Id])| match kernel {
        true => Meaning::Kernels(Kernels::of_values(g.clone(), roots, &ranges)),
        false => {
            let outputs = roots
                .iter()
                .enumerate()
                .map(|(i, &r)| (1000 + i as u32, r))
                .collect();
            Meaning::Tensors(Tensors {
                graph: g.clone(),
                outputs,
            })
        }
    };
    Claim::same(of(before), of(after))
}

/// Rebuilds the input node by node, which applies the rules to each node.
fn rules(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let (mut g, mut map) = (Graph::new(), FxHashMap::default());
    let roots: Vec<Id> = p
        .roots
        .iter()
        .map(|&r| g.import(&p.graph, r, &mut map))
        .collect();
    let claim = values((&p.graph, &p.roots), (&g, &roots));
    Ok(Applied {
        text: text::print(&g, &roots),
        claim,
    })
}

/// `machine: signed` multiplies signed bytes; `machine: rows` has no zero to multiply with sums.
fn rules_dot(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let (mut g, machine) = (p.graph.clone(), case.get("machine").unwrap_or("unsigned"));
    let on = |rule: &str| match rule {
        dot::SIGNED => machine == "signed",
        dot::ROWS => machine == "rows",
        _ => true,
    };
    let roots: Vec<Id> = p
        .roots
        .iter()
        .map(|&r| dot::derive(&mut g, r, &on))
        .collect();
    let claim = values((&p.graph, &p.roots), (&g, &roots));
    Ok(Applied {
        text: text::print(&g, &roots),
        claim,
    })
}

/// Lifts one root, a byte that depends on the range `byte: %n` of four, to a word.
///
/// The word must have the same bytes in memory.
fn rules_lift(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let byte = p.named(case.get("byte").ok_or("no `byte`")?)?[0];
    let &[root] = &p.roots[..] else {
        return Err("one root".into());
    };
    let mut g = p.graph;
    let word = lift::word(&mut g, root, byte);
    let text = text::print(&g, &[word]);
    let others: Vec<Id> = g
        .free_ranges(root)
        .iter()
        .copied()
        .filter(|&r| r != byte)
        .collect();
    let mut at = g.int(0);
    for &r in &others {
        let bound = g[r].src[0];
        at = g.mul(at, bound);
        at = g.add(at, r);
    }
    let four = g.int(4);
    let first = g.mul(at, four);
    let of_byte = g.add(first, byte);
    let low = g.int_of(g.scalar(root), 255);
    let one = g.and(root, low);
    let one = g.cast(one, Scalar::U8);
    let bytes = g.param(1000, &[], Scalar::U8);
    let closed: Vec<Id> = others.iter().copied().chain([byte]).collect();
    let before = g.store(bytes, of_byte, one, &closed);
    // Both are read as bytes; a second nest takes the words apart.
    let (stage, by) = (g.param(1001, &[], Scalar::U32), g.int(8));
    let whole = g.store(stage, at, word, &others);
    let shift = g.mul(byte, by);
    let read = g.load(stage, at, Scalar::U32);
    let shift = g.cast(shift, Scalar::U32);
    let part = g.shr(read, shift);
    let mask = g.int_of(Scalar::U32, 255);
    let part = g.and(part, mask);
    let part = g.cast(part, Scalar::U8);
    let taken = g.store(bytes, of_byte, part, &closed);
    let old = Kernels::new(g.clone(), vec![before]);
    let new = Kernels {
        launches: vec![vec![vec![whole]], vec![vec![taken]]],
        between: vec![1001],
        ..Kernels::new(g, vec![])
    };
    Ok(Applied {
        text,
        claim: Claim::same(Meaning::Kernels(old), Meaning::Kernels(new)),
    })
}

/// The text of nests, and the claim that they compute the same.
fn same(before: (Graph, Vec<Id>), after: (Graph, Vec<Id>)) -> Applied {
    let text = show::nests(&after.0, &after.1);
    let of = |(g, nests): (Graph, Vec<Id>)| Meaning::Kernels(Kernels::new(g, nests));
    Applied {
        text,
        claim: Claim::same(of(before), of(after)),
    }
}

/// The largest range number; ranges made by a pass are numbered after it.
fn last_range(g: &Graph, nests: &[Id]) -> u32 {
    g.toposort(nests)
        .iter()
        .map(|&n| g.range_number(n))
        .max()
        .unwrap_or(0)
}

/// Nests that load only the machine's types.
fn legalise(case: &Case) -> Result<Applied, String> {
    let (p, target) = (case.graph()?, case.target()?);
    let mut g = p.graph.clone();
    let nests = p
        .roots
        .iter()
        .map(|&n| testing::legalise(&mut g, n, &target))
        .collect();
    Ok(same((p.graph, p.roots), (g, nests)))
}

fn simd(case: &Case) -> Result<Applied, String> {
    let (p, target) = (case.graph()?, case.target()?);
    let mut g = p.graph.clone();
    let mut ranges = Ranges::after(last_range(&g, &p.roots));
    let plan = match case.parsed("plan")? {
        Some(NestPlan::Vectors(plan)) => Some(plan),
        Some(_) => return Err("a plan of vectors".into()),
        None => None,
    };
    let mut of = |&n: &Id| testing::simd(&mut g, n, plan.as_ref(), &target, &mut ranges).0;
    let nests = p.roots.iter().map(&mut of).collect();
    Ok(same((p.graph, p.roots), (g, nests)))
}

fn simt(case: &Case) -> Result<Applied, String> {
    let (p, target) = (case.graph()?, case.target()?);
    let mut g = p.graph.clone();
    let mut ranges = Ranges::after(last_range(&g, &p.roots));
    let mut nests = Vec::new();
    for &nest in &p.roots {
        let fused = testing::fused(&mut g, nest);
        let of = testing::ThreadNest {
            store: nest,
            fused,
            accumulators: None,
        };
        let first = || of.proposals(&g, &target, false).remove(0).plan;
        let plan = case.parsed("plan")?.unwrap_or_else(first);
        let of = if matches!(plan, NestPlan::Warps(_) | NestPlan::Accumulators(_)) {
            nest
        } else {
            fused
        };
        nests.push(testing::simt(&mut g, of, &plan, &target, &mut ranges));
    }
    Ok(same((p.graph, p.roots), (g, nests)))
}

/// The last nest; earlier nests fill the stages that it reads.
fn fragment_tiling(case: &Case) -> Result<Applied, String> {
    let (p, target) = (case.graph()?, case.target()?);
    let mut g = p.graph.clone();
    let mut ranges = Ranges::after(last_range(&g, &p.roots));
    let Some((&last, stages)) = p.roots.split_last() else {
        return Err("a nest".into());
    };
    let product = testing::MmaProduct::from_store(&g, last, &target.machine);
    let first = product.map(|product| {
        testing::propose_warps(&g, last, &product, &target)
            .remove(0)
            .plan
    });
    let tiled = match case.parsed("plan")?.or(first) {
        Some(NestPlan::Warps(warps)) => {
            testing::fragment_tiling(&mut g, last, &warps, &target.machine, &mut ranges)
        }
        _ => None,
    };
    match tiled {
        None => Ok(Applied {
            text: "left as it is\n".into(),
            claim: Claim::Text,
        }),
        Some(nest) => {
            let text = show::nests(&g, &[nest]);
            let nests = stages.iter().copied().chain([nest]).collect();
            Ok(Applied {
                text,
                ..same((p.graph, p.roots), (g, nests))
            })
        }
    }
}

fn fuse_reductions(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let mut g = p.graph.clone();
    let mut nests = Vec::new();
    for &nest in &p.roots {
        let (buffer, at, value) = (g[nest].src[0], g[nest].src[1], g[nest].src[2]);
        let closed = g[nest].src[3..].to_vec();
        let all = testing::outermost_reductions(&g, nest);
        let value = testing::fuse_reductions(&mut g, value, &all);
        nests.push(g.store(buffer, at, value, &closed));
    }
    Ok(same((p.graph, p.roots), (g, nests)))
}

/// `layout: 1=planes`: the layouts of slots.
fn derived(case: &Case, g: &Graph, nests: &[Id]) -> Result<Derived, String> {
    let mut out = Derived::default();
    let Some((slot, words)) = case.get("layout").and_then(|l| l.split_once('=')) else {
        return Ok(out);
    };
    let slot: u32 = slot.parse().map_err(|_| format!("`{slot}` is no slot"))?;
    let encoding = g.toposort(nests).into_iter().find_map(|n| match g[n].arg {
        Arg::Packed(s, e) if s == slot => Some(e),
        _ => None,
    });
    let packing = Packing::for_encoding(encoding.ok_or("no such packed slot")?)
        .ok_or("a format without layouts")?;
    out.layouts
        .insert(slot, (layout(words)?, Arc::new(packing)));
    Ok(out)
}

/// Splits loops of nests by `plan:`, or by the first proposal.
///
/// `room: 16` is the number of workgroups that run at once.
fn workgroup(case: &Case) -> Result<Applied, String> {
    let (p, target) = (case.graph()?, case.target()?);
    let mut g = p.graph.clone();
    let derived = derived(case, &g, &p.roots)?;
    let max_workgroups = case
        .parsed("room")?
        .unwrap_or_else(|| testing::resident_workgroups(&target));
    let (buffers, fused) = (FxHashMap::default(), FxHashSet::default());
    let mut x = Expander::new(&buffers, &fused, &derived);
    x.ranges = Ranges::after(last_range(&g, &p.roots));
    // There is no hint, so the node passed here has no effect.
    let around = ProposalContext {
        node: p.roots[0],
        hint: None,
        derived: &derived,
        target: &target,
        max_workgroups,
    };
    let plan = match case.parsed("plan")? {
        Some(plan) => plan,
        None => testing::propose_workgroup(&g, &p.roots, &around),
    };
    let nests = testing::workgroup(&mut g, &mut x, &p.roots, &plan, &around).nests;
    Ok(same((p.graph, p.roots), (g, nests)))
}

/// Cost estimates only; there is nothing to run.
fn price(case: &Case) -> Result<Applied, String> {
    let (p, target) = (case.graph()?, case.target()?);
    let price = testing::price(&p.graph, &p.roots, &target);
    let e = price.estimate;
    let text = format!(
        "{:.3} us, of which {:.3} us before the last nests start\n{} bytes of weights, {} other bytes, {} operations\n",
        price.seconds * 1e6,
        price.stages * 1e6,
        e.weight_bytes,
        e.other_bytes,
        e.operations
    );
    Ok(Applied {
        text,
        claim: Claim::Text,
    })
}
