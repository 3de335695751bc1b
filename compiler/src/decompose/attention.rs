//! `ATTENTION` in terms of other ops: the cache is cut into chunks of positions, each chunk gives a partial result with its maximum and its
//! sum, and a second step combines the chunks. Of a window there are only the chunks that it meets. All heads of a workgroup share each tile of the cache. A workgroup is one
//! (chunk, token, group of heads); scores and probabilities of the chunk are its stages, by a hint: priced one by one, each of them looks
//! better in a buffer, where the workgroup's shape no longer holds.
//!
//! With m_c the maximum of a chunk's scores, l_c = Σ exp(s − m_c) and o_c = Σ exp(s − m_c)·v:
//! out = Σ_c exp(m_c − m)·o_c / Σ_c exp(m_c − m)·l_c, m = max m_c. Positions behind the token's own count as −1e30. Of queries that were rounded to
//! halves, partial results are halves too: o_c / l_c, with m_c and l_c in two parts.
//!
//! A sink is a term of the last sum, and counts for m: no chunk has it.
//!
//! Rows of several sequences (`PAGED_ATTENTION`, `paged.rs`) are tokens that have a position and rows of the cache each: what a workgroup reads depends on its token.
//!
//! Where every head has keys or values of its own, tokens share the tiles instead, and chunks that lie in a token's future are left out.

mod bytes;
mod chunked;
mod combine;
mod cost;
mod online;
mod paged;
pub mod plan;
mod tiled;

use crate::decision::{Alternative, Decider, Decision};
use crate::decompose::f16_split;
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

/// Replaces every `ATTENTION` of a function below `roots`, divided as is decided; workgroup shapes of the new nodes go to `hints`.
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
            let Some(scoring) = Scoring::from_arg(&g[id].arg) else { continue };
            let mut node = g[id].clone();
            node.src.iter_mut().for_each(|s| *s = g.substitute(*s, &mut map));
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
                let of = Chunked::new(g, &src, None, online::in_powers_of_two(scoring), plan, target);
                map.insert(id, online::attended(of, g, hints));
                continue;
            }
            let mut chunked = Chunked::new(g, &src, pages, scoring, plan, target);
            let (softmax, kernel) = chunked.softmax_of_chunks(g, hints);
            let parts = combine::partial(&chunked, g, &softmax, kernel, hints);
            map.insert(id, combine::combined(&chunked, g, parts, softmax.rounded, hints));
        }
    }
    for r in roots {
        *r = g.substitute(*r, &mut map);
    }
}

/// `x [positions, kv heads, d]` as rows that every head has for itself, `[positions, heads, d]`.
fn of_every_head(g: &mut Graph, x: Id, heads: Id) -> Id {
    let (dims, one) = (g.shape(x), g.int(1));
    let [positions, kv_heads, d] = dims[..] else { unreachable!("keys and values have three axes: {dims:?}") };
    let group = g.int(g.max_of(heads) / g.max_of(kv_heads));
    let x = g.reshape(x, &[positions, kv_heads, one, d]);
    let x = g.expand(x, &[positions, kv_heads, group, d]);
    g.reshape(x, &[positions, heads, d])
}

/// The keys of these sources. Those of a long prompt that are computed for every head are rounded as queries and values are, once for all workgroups that read them.
fn rounded_keys(g: &mut Graph, src: &[Id], target: &Target, hints: &mut FxHashMap<Id, Hint>) -> Id {
    let (q, k) = (src[0], src[1]);
    let [tokens, heads, kv_heads] = [(q, 0), (q, 1), (k, 1)].map(|(x, axis)| g.max_of(g.dims(x)[axis]));
    let own = !plan::in_pages(g, src) && heads == kv_heads && heads > 1 && tokens > buffered(target);
    let in_halves = target.machine.fragment(Scalar::F16).is_some() && f16_split::rounded(g, q);
    if !own || !in_halves || f16_split::are_halves(g, k) {
        return k;
    }
    let joined = g[k].op == Op::Cat;
    let parts = if joined { g[k].src[..g[k].src.len() - 1].to_vec() } else { vec![k] };
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

/// The part of a division's price that another must save: the price knows workgroups, bytes and operations, but of what overlaps in a kernel nothing. Loops from memory, of prompts of 2,048 tokens on an H200: with 64 tokens
/// a workgroup, at a third of the first plan's price, 2 to 18 % of a prompt faster (GLM, Llama 3.1 8B); with 32, at 0.55 and 0.6, 7 to 25 % slower.
const MARGIN: f64 = 0.5;
/// The part that one loop with rows in stages must save. Of steps of 512 tokens on an H100 it was never slower: at 0.51 of the first plan's price GLM's whole prompt is 9 % faster, at 0.76 V2-Lite's 6 % and Youtu's 25 %
/// (experiments, 105); nothing between 0.76 and 1 was seen.
const MARGIN_STAGED_LOOP: f64 = 0.15;

/// How an attention of these sources is divided: by price, where another plan than the first could be so much cheaper.
fn decided(g: &Graph, src: &[Id], target: &Target, site: String, decider: &mut Decider) -> AttentionPlan {
    let divided = Divided::new(g, src, target);
    let (mut all, of) = (divided.proposals(), divided.attended());
    let option = |p: &Proposal<AttentionPlan>| {
        let seconds = cost::seconds(&of, &p.plan, target);
        Alternative { name: p.name, plan: p.plan.to_string(), seconds }
    };
    let options: Vec<Alternative> = all.iter().map(option).collect();
    let best = (0..all.len()).min_by(|&a, &b| options[a].seconds.total_cmp(&options[b].seconds));
    let staged = |plan: &AttentionPlan| plan.fragments.is_some_and(|f| f.staged);
    let online = best.map(|best| &all[best].plan).is_some_and(|plan| plan.online && staged(plan));
    let margin = if online { MARGIN_STAGED_LOOP } else { MARGIN };
    let decision = Decision { margin, ..Decision::new("attention", site, options) };
    all.swap_remove(decider.choose(decision)).plan
}

/// Numbers that partial results take for one token of a step and a chunk, of all attentions of a function, of which one may be of fewer tokens: of each head its values, with a maximum and a sum;
/// none where it was decided that all are online.
pub fn partial(function: &Function, decisions: &[Decision]) -> usize {
    let mut plans = decisions.iter().filter(|d| d.kind == "attention").map(|d| &d.options[d.chosen].plan);
    if plans.all(|plan| plan.parse().is_ok_and(|plan: AttentionPlan| plan.online)) {
        return 0;
    }
    let g = &function.graph;
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let order = g.toposort(&roots);
    let all = order.into_iter().filter(|&n| matches!(g[n].op, Op::Attention | Op::PagedAttention));
    let size = |n: Id, axis: usize| g.max_of(g.dims(n)[axis]);
    let of = all.map(|n| (size(n, 0), size(n, 0) * size(n, 1) * (size(n, 2) + 2 * COLUMNS)));
    let (tokens, numbers) = of.fold((1, 0), |(tokens, numbers), (t, n)| (tokens.max(t), numbers + n));
    ((numbers + tokens - 1) / tokens) as usize
}

/// Queries that meet a cache of bytes as the kernels have them, encoded in eight bits. Did that change anything?
pub fn encode(g: &mut Graph, roots: &mut [Id], target: &Target) -> bool {
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    // Not whether the map is empty: substitution enters every node that it passes.
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
