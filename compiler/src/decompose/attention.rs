//! Lowers `ATTENTION` to other ops.
//!
//! The KV cache is split into chunks of positions (split-K over the context, as in flash-decoding).
//! Each chunk yields a partial result with its maximum and its sum; a second step combines the
//! chunks. With a sliding window only the chunks that overlap it are computed. A workgroup computes
//! one (chunk, token, group of heads), and all its heads share each tile of the cache. A hint keeps
//! scores and probabilities of a chunk in workgroup memory (stages): the cost model, which rates
//! them one by one, would materialise them, and a materialised node loses the workgroup's shape.
//!
//! With m_c the maximum of a chunk's scores, l_c = Σ exp(s − m_c) and o_c = Σ exp(s − m_c)·v: out =
//! Σ_c exp(m_c − m)·o_c / Σ_c exp(m_c − m)·l_c, m = max m_c. Positions after the token's own
//! (causal mask) score −1e30. If the queries were rounded to f16, partial results are f16 too: o_c
//! / l_c, with m_c and l_c as two f16 parts each.
//!
//! An attention sink is a term of the final sum and takes part in m; it belongs to no chunk.
//!
//! `PAGED_ATTENTION` (`paged.rs`) takes rows of several sequences. Each row has its own position
//! and block table, so the cache rows that a workgroup reads depend on its token.
//!
//! If each query head has its own KV head, tokens share the tiles instead of heads, and chunks in a
//! token's future are skipped (causal skip).
//!
//! A plan with one loop (`online.rs`) has no partial results: it rescales running sums.

mod bytes;
mod chunked;
mod combine;
mod cost;
mod online;
mod paged;
pub mod plan;
mod tiled;

use crate::decision::{Alternative, Decider, Decision, margin};
use crate::decompose::{dequantise_rows, f16_split};
use crate::ir::hints::Hint;
use crate::plan::Proposal;
use chunked::Chunked;
use gristmill_uop::function::Function;
use gristmill_uop::shape::{PagedSources, Scoring};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
pub use plan::chunk_positions;
use plan::{AttentionPlan, COLUMNS, Divided, buffered, chunk_of};
use rustc_hash::FxHashMap;

/// Replaces every `ATTENTION` and `PAGED_ATTENTION` below `roots` by ops of the
/// plan decided for it.
///
/// Workgroup shapes of the new nodes go to `hints`.
pub fn expand(
    g: &mut Graph,
    roots: &mut [Id],
    hints: &mut FxHashMap<Id, Hint>,
    target: &Target,
    function: &str,
    decider: &mut Decider,
) {
    let order = g.toposort(roots);
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for id in order {
        if matches!(g[id].op, Op::Attention | Op::PagedAttention) {
            let Some(scoring) = Scoring::from_arg(&g[id].arg) else {
                continue;
            };
            let mut node = g[id].clone();
            node.src
                .iter_mut()
                .for_each(|s| *s = g.substitute(*s, &mut map));
            let buffers = dequantise_rows::buffers(g, &node.src[1..3]);
            hints.extend(buffers.into_iter().map(|half| (half, Hint::buffer(vec![]))));
            let (mut src, pages) = match node.op {
                Op::PagedAttention => paged::in_rows(g, &PagedSources::from_node(g, &node)),
                _ => (node.src.to_vec(), None),
            };
            if plan::tokens_share(g, &src) {
                let heads = g.shape(src[0])[1];
                src[1] = of_every_head(g, src[1], heads);
                src[2] = of_every_head(g, src[2], heads);
            }
            src[1] = rounded_keys(g, &src, target, hints);
            let site = format!("{function} {}", g.show_dims(&g.shape(id)));
            let plan = decided(g, &src, target, site, decider);
            if plan.online {
                let of = Chunked::new(
                    g,
                    &src,
                    None,
                    online::in_powers_of_two(scoring),
                    plan,
                    target,
                );
                map.insert(id, online::attended(of, g, hints));
                continue;
            }
            let mut chunked = Chunked::new(g, &src, pages, scoring, plan, target);
            let (softmax, kernel) = chunked.softmax_of_chunks(g, hints);
            let parts = combine::partial(&chunked, g, &softmax, kernel, hints);
            map.insert(
                id,
                combine::combined(&chunked, g, parts, softmax.rounded, hints),
            );
        }
    }
    for r in roots {
        *r = g.substitute(*r, &mut map);
    }
}

/// Repeats KV heads over their group: `x [positions, kv heads, d]` as `[positions, heads, d]`.
fn of_every_head(g: &mut Graph, x: Id, heads: Id) -> Id {
    let (dims, one) = (g.shape(x), g.int(1));
    let [positions, kv_heads, d] = dims[..] else {
        unreachable!("keys and values have three axes: {dims:?}")
    };
    let group = g.int(g.max_of(heads) / g.max_of(kv_heads));
    let x = g.reshape(x, &[positions, kv_heads, one, d]);
    let x = g.expand(x, &[positions, kv_heads, group, d]);
    g.reshape(x, &[positions, heads, d])
}

/// Returns the keys, materialised in f16 where each query head has computed keys of its own.
///
/// This applies to long prefills on machines with f16 fragments if the queries are rounded to f16:
/// the keys are then rounded once for all workgroups. Otherwise returns the keys unchanged.
fn rounded_keys(g: &mut Graph, src: &[Id], target: &Target, hints: &mut FxHashMap<Id, Hint>) -> Id {
    let (q, k) = (src[0], src[1]);
    let [tokens, heads, kv_heads] =
        [(q, 0), (q, 1), (k, 1)].map(|(x, axis)| g.max_of(g.dims(x)[axis]));
    let own =
        !plan::in_pages(g, src) && heads == kv_heads && heads > 1 && tokens > buffered(target);
    let in_halves = target.machine.fragment(Scalar::F16).is_some() && f16_split::rounded(g, q);
    if !own || !in_halves || f16_split::are_halves(g, k) {
        return k;
    }
    let joined = g[k].op == Op::Cat;
    let parts = if joined {
        g[k].src[..g[k].src.len() - 1].to_vec()
    } else {
        vec![k]
    };
    let mut round = |part: Id| {
        if f16_split::are_halves(g, part) {
            return f16_split::narrow(g, part);
        }
        let half = g.cast(part, Scalar::F16);
        hints.insert(half, Hint::buffer(f16_split::computed(g, part)));
        half
    };
    let parts: Vec<Id> = parts.into_iter().map(&mut round).collect();
    let mut half = parts[0];
    if let Arg::Axes(axes) = &g[k].arg.clone()
        && joined
    {
        half = g.cat(&parts, axes[0] as usize);
        hints.insert(half, Hint::buffer(vec![]));
    }
    g.cast(half, Scalar::F32)
}

/// Chooses the attention's plan: the default, or the cheapest if it saves at least the margin.
fn decided(
    g: &Graph,
    src: &[Id],
    target: &Target,
    site: String,
    decider: &mut Decider,
) -> AttentionPlan {
    let divided = Divided::new(g, src, target);
    let (mut all, of) = (divided.proposals(), divided.attended());
    let option = |p: &Proposal<AttentionPlan>| {
        let seconds = cost::seconds(&of, &p.plan, target);
        Alternative {
            name: p.name,
            plan: p.plan.to_string(),
            seconds,
        }
    };
    let options: Vec<Alternative> = all.iter().map(option).collect();
    let best = (0..all.len()).min_by(|&a, &b| options[a].seconds.total_cmp(&options[b].seconds));
    let staged = |plan: &AttentionPlan| plan.fragments.is_some_and(|f| f.staged);
    let online = best
        .map(|best| &all[best].plan)
        .is_some_and(|plan| plan.online && staged(plan));
    let mut decision = Decision::new("attention", site, options);
    if online {
        decision.margin = margin("staged-attention");
    }
    all.swap_remove(decider.choose(decision)).plan
}

/// Returns the f32 values of partial results per token and chunk, summed over
/// a function's attentions.
///
/// A head of an attention contributes its value depth, a maximum and a sum. Attentions of fewer
/// tokens count in proportion to the largest token count. 0 if every attention was decided to
/// be an online loop.
pub fn partial(function: &Function, decisions: &[Decision]) -> usize {
    let mut plans = decisions
        .iter()
        .filter(|d| d.kind == "attention")
        .map(|d| &d.options[d.chosen].plan);
    if plans.all(|plan| plan.parse().is_ok_and(|plan: AttentionPlan| plan.online)) {
        return 0;
    }
    let g = &function.graph;
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let order = g.toposort(&roots);
    let all = order
        .into_iter()
        .filter(|&n| matches!(g[n].op, Op::Attention | Op::PagedAttention));
    let size = |n: Id, axis: usize| g.max_of(g.dims(n)[axis]);
    let of = all.map(|n| {
        (
            size(n, 0),
            size(n, 0) * size(n, 1) * (size(n, 2) + 2 * COLUMNS),
        )
    });
    let (tokens, numbers) = of.fold((1, 0), |(tokens, numbers), (t, n)| {
        (tokens.max(t), numbers + n)
    });
    ((numbers + tokens - 1) / tokens) as usize
}

/// Quantises to int8 the queries that are multiplied with an int8 KV cache, as the kernels do.
///
/// Returns whether the graph changed.
pub fn encode(g: &mut Graph, roots: &mut [Id], target: &Target) -> bool {
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    // `map.is_empty()` would not do: `substitute` enters every node it visits.
    let mut encoded = false;
    for id in g.toposort(roots) {
        if g[id].op == Op::Attention {
            let mut src = g[id].src.clone();
            for s in &mut src {
                *s = g.substitute(*s, &mut map);
            }
            if let Some(rows) = bytes::rows(g, src[0], src[1], chunk_of(g, &src, target), target) {
                src[0] = bytes::queries(g, src[0], &rows).0;
                let n = g[id].clone();
                let new = g.build(n.op, n.dtype, src, n.arg);
                map.insert(id, new);
                encoded = true;
            }
        }
    }
    for r in roots {
        *r = g.substitute(*r, &mut map);
    }
    encoded
}
