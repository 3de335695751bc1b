//! Attention plans: how an attention is divided among workgroups, the candidates, and their limits.

use crate::cost::occupancy::{each, resident_workgroups};
use crate::decompose::f16_split;
use crate::ir::mma::fragment::enough;
use crate::ir::nest::{divisor, floor_power};
use crate::ir::parse::{ParseError, bad, count};
use crate::plan::{Proposal, proposals};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, Scalar};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// Number of positions per chunk on a CPU. Longer chunks leave fewer partial results, shorter ones
/// more workgroups. Not tuned.
const CHUNK: i64 = 128;
/// The same if more than [`FEW`] tokens attend: every chunk leaves a partial result per token and
/// head. Not measured; longer chunks leave fewer results and need larger stages.
const CHUNK_MANY: i64 = 256;
/// Largest token count treated as few: the size of the small step class. The next class has 512
/// tokens; nothing between was measured.
pub const FEW: i64 = 64;
/// Minimum and maximum tokens per workgroup with MMA fragments; the stages limit the number
/// between. The minimum is a fragment's rows. The maximum is not measured: twice as many leave no
/// room for a second workgroup.
const SHARING_TILED: [i64; 2] = [16, 64];
/// Alignment of chunk sizes if the machine has no fragment: lanes of the widest vectors.
const POSITIONS: i64 = 16;
/// Largest padding of a staged row, in f16 elements, against bank conflicts (`kernel/stages.rs`).
const PADDING: i64 = 16;
/// Heads, or tokens, per workgroup without MMA fragments: they share f16 conversions and have
/// accumulators in registers. A loop over 4 heads and 4 positions reaches 46 of a thread's 59 G
/// multiply-adds/s (docs/experiments/130); other sizes were not measured in a model.
const SHARING: i64 = 4;
/// Bytes of stages per position and head: a score, a weight, and the same again for their sums.
const BYTES_OF_SCORES: usize = 16;

/// Columns of a partial result that hold its maximum, and as many its sum.
pub const COLUMNS: i64 = 2;

/// Division of the KV cache, and of the heads or tokens that read it, among workgroups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionPlan {
    /// Number of positions per chunk.
    pub chunk: i64,
    /// Heads per workgroup; tokens, if each query head has its own KV head.
    pub sharing: i64,
    /// MMA parameters; `None` computes the sums in f32.
    pub fragments: Option<Fragments>,
    /// Whether the staged tile is copied before the preceding kernels end (early loads).
    pub ahead: bool,
    /// Whether one workgroup loops over all chunks, so that there are no partial results.
    pub online: bool,
    /// Whether a separate kernel combines partial results, instead of the readers of the output.
    pub combine_kernel: bool,
}

/// Parameters of sums computed with f16 MMA fragments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragments {
    /// Parts of the head dimension (split-K); each is summed by warps of its own.
    pub cut: i64,
    /// Whether the cache tile is staged, for both scores and values. In an online loop keys and
    /// values have a stage each, filled in each iteration.
    pub staged: bool,
}

impl Display for AttentionPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "attention: chunk {}, sharing {}",
            self.chunk, self.sharing
        )?;
        if let Some(Fragments { cut, staged }) = self.fragments {
            write!(
                f,
                ", fragments cut {cut}{}",
                if staged { " staged" } else { "" }
            )?;
        }
        f.write_str(if self.ahead { ", ahead" } else { "" })?;
        f.write_str(if self.online { ", online" } else { "" })?;
        f.write_str(if self.combine_kernel {
            ", combine kernel"
        } else {
            ""
        })
    }
}

impl FromStr for AttentionPlan {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<AttentionPlan, ParseError> {
        let Some(rest) = text.trim().strip_prefix("attention:") else {
            return bad(text);
        };
        let mut plan = AttentionPlan {
            chunk: 1,
            sharing: 1,
            fragments: None,
            ahead: false,
            online: false,
            combine_kernel: false,
        };
        for item in rest.split(',') {
            match item.split_whitespace().collect::<Vec<_>>()[..] {
                ["chunk", n] => plan.chunk = count(n)?,
                ["sharing", n] => plan.sharing = count(n)?,
                ["fragments", "cut", n] => {
                    plan.fragments = Some(Fragments {
                        cut: count(n)?,
                        staged: false,
                    })
                }
                ["fragments", "cut", n, "staged"] => {
                    plan.fragments = Some(Fragments {
                        cut: count(n)?,
                        staged: true,
                    })
                }
                ["ahead"] => plan.ahead = true,
                ["online"] => plan.online = true,
                ["combine", "kernel"] => plan.combine_kernel = true,
                _ => return bad(item),
            }
        }
        Ok(plan)
    }
}

/// Sizes of an attention, as inputs of the cost model.
#[derive(Clone, Copy, Debug)]
pub struct Attended {
    /// Tokens of a step, at most.
    pub tokens: i64,
    /// Number of query heads.
    pub heads: i64,
    /// Number of KV heads; divides `heads`.
    pub kv_heads: i64,
    /// Positions of the cache, at most.
    pub positions: i64,
    /// Sliding-window size in positions; `None` for full attention.
    pub window: Option<i64>,
    /// Elements of a key, and of a value.
    pub depth: [i64; 2],
    /// Bytes per element of the cache.
    pub bytes: i64,
    /// Whether keys and values are read from the same rows (latent KV cache).
    pub shared: bool,
    /// Whether tokens share cache rows, instead of heads.
    pub own: bool,
    /// Whether the cache is paged. Adjacent tokens then belong to different sequences
    /// and share no rows.
    pub in_pages: bool,
}

impl Attended {
    /// Returns the chunks of `size` positions of a step, and those that `tokens` of
    /// its tokens see together.
    pub fn chunks(&self, size: i64, tokens: i64) -> [i64; 2] {
        let neighbours = |tokens| if self.in_pages { 1 } else { tokens };
        [self.tokens, tokens]
            .map(|tokens| chunks(self.positions, self.window, neighbours(tokens), size))
    }
}

/// Upper bound on the chunks of `size` positions that `tokens` adjacent tokens see together.
///
/// Chunks start at multiples of `size`.
pub(super) fn chunks(positions: i64, window: Option<i64>, tokens: i64, size: i64) -> i64 {
    let all = (positions + size - 1) / size;
    // A span of s positions at any offset overlaps at most ⌈(s − 1)/size⌉ + 1 chunks.
    window.map_or(all, |window| {
        all.min((window + tokens - 1 + size - 2) / size + 1)
    })
}

/// Sliding-window size of these attention sources; `None` if it covers the whole cache.
pub(super) fn window(g: &Graph, src: &[Id]) -> Option<i64> {
    let window = g.int_value(*src.get(5)?)?;
    (window > 0 && window < positions(g, src)).then_some(window)
}

/// Largest context length of these attention sources; may be less than the cache's capacity.
fn positions(g: &Graph, src: &[Id]) -> i64 {
    g.max_of(src[4]).min(g.max_of(g.dims(src[1])[0]))
}

/// Whether the KV cache is paged: every query row has a position and cache rows of its own.
pub(super) fn in_pages(g: &Graph, src: &[Id]) -> bool {
    !g.dims(src[3]).is_empty()
}

/// Properties of an attention and its target that determine the plans.
pub(super) struct Divided<'a> {
    g: &'a Graph,
    src: &'a [Id],
    target: &'a Target,
    /// Whether several tokens of one sequence attend and each query head has its own KV head.
    own: bool,
    /// Whether every token has cache rows of its own.
    in_pages: bool,
    heads: i64,
    /// Query heads per KV head.
    group: i64,
    tokens: i64,
    /// Positions of the cache, at most.
    positions: i64,
    window: Option<i64>,
}

impl<'a> Divided<'a> {
    /// Reads the sizes from the sources of an attention.
    pub fn new(g: &'a Graph, src: &'a [Id], target: &'a Target) -> Divided<'a> {
        let (qd, kd) = (g.shape(src[0]), g.shape(src[1]));
        let (tokens, heads, kv_heads) = (g.max_of(qd[0]), g.max_of(qd[1]), g.max_of(kd[1]));
        let in_pages = in_pages(g, src);
        let own = !in_pages && kv_heads == heads && tokens > 1;
        let (positions, window) = (positions(g, src), window(g, src));
        Divided {
            g,
            src,
            target,
            own,
            in_pages,
            heads,
            group: heads / kv_heads,
            tokens,
            positions,
            window,
        }
    }
    /// Candidate plans; the heuristic's choice comes first.
    pub fn proposals(&self) -> Vec<Proposal<AttentionPlan>> {
        let first = self.plan(chunk_of(self.g, self.src, self.target));
        let chunk = |chunk: i64| self.with_chunk(first, chunk);
        let sharing = |n: i64| self.with_sharing(first, n);
        let plain = AttentionPlan {
            fragments: None,
            ahead: false,
            online: false,
            sharing: self.sharing(first.chunk),
            ..first
        };
        let fragments = |change: &dyn Fn(Fragments) -> Fragments| {
            let fragments = first.fragments.map(change);
            AttentionPlan {
                fragments,
                ahead: first.ahead && fragments.is_some_and(|f| f.staged),
                ..first
            }
        };
        let online = match self.own && first.fragments.is_some() {
            true => self.online(first),
            false => first,
        };
        let others = [
            ("shorter chunks", chunk(first.chunk / 2)),
            ("longer chunks", chunk(2 * first.chunk)),
            ("fewer share", sharing(first.sharing / 2)),
            ("more share", sharing(2 * first.sharing)),
            ("without fragments", plain),
            (
                "no stage of the cache",
                fragments(&|f| Fragments { staged: false, ..f }),
            ),
            (
                "depth in one part",
                fragments(&|f| Fragments { cut: 1, ..f }),
            ),
            (
                "no copies ahead",
                AttentionPlan {
                    ahead: false,
                    ..first
                },
            ),
            (
                "combined by readers",
                AttentionPlan {
                    combine_kernel: false,
                    ..first
                },
            ),
            (
                "combine kernel",
                AttentionPlan {
                    combine_kernel: self.may_have_combine_kernel(),
                    ..first
                },
            ),
            ("online", online),
        ];
        proposals(first, others)
    }
    /// Changes the positions per chunk, if chunks of that size are possible.
    fn with_chunk(&self, first: AttentionPlan, chunk: i64) -> AttentionPlan {
        let staged = first.fragments.is_some_and(|f| f.staged);
        // Staged tile and scores must fit into workgroup memory.
        let most = if staged {
            first.chunk
        } else {
            whole_chunk(self.target)
        }
        .min(self.positions);
        // Vectors and MMA fragments need whole tiles of positions.
        let tile = self
            .target
            .machine
            .subgroup_fragment(Scalar::F16)
            .map_or(POSITIONS, |of| of.rows);
        match chunk % tile == 0 && (tile..=most).contains(&chunk) {
            true => AttentionPlan {
                chunk,
                combine_kernel: self.has_combine_kernel(chunk),
                ..first
            },
            false => first,
        }
    }
    /// Changes the number that shares cache rows to `n`, if that is possible.
    fn with_sharing(&self, first: AttentionPlan, n: i64) -> AttentionPlan {
        // With grouped-query attention, a workgroup has heads of one group.
        let together = if self.group == 1 {
            self.heads
        } else {
            self.group
        };
        let divides = |n: i64| n >= 1 && (self.own || together % n == 0);
        match first.fragments {
            None if divides(n) => AttentionPlan {
                sharing: n,
                ..first
            },
            _ => first,
        }
    }
    /// Converts the plan to an online loop over the chunks.
    ///
    /// With warpgroup MMA and enough shared memory, each chunk's rows are staged, and each
    /// warpgroup has tokens of its own, as many as its fragment has rows.
    fn online(&self, first: AttentionPlan) -> AttentionPlan {
        let (machine, threads) = (&self.target.machine, self.target.threads as i64);
        let small = first.chunk.min(machine.gpu_facts().loop_positions);
        let alone = AttentionPlan {
            chunk: small,
            online: true,
            ahead: false,
            combine_kernel: false,
            ..first
        };
        let group = machine
            .fragments
            .iter()
            .find(|of| of.is_of_group() && threads % of.sums.lanes() == 0);
        let Some(of) = group.filter(|_| self.target.stage_cache && machine.early) else {
            return alone;
        };
        let [depth, out] = [1, 2].map(|source| self.g.max_of(self.g.shape(self.src[source])[2]));
        let sharing = of.rows * (threads / of.sums.lanes());
        let fits = |chunk: i64| {
            // Rows of queries, keys and values; scores and weights, counted even if registers hold
            // them; a maximum and a sum, double-buffered.
            let rows = sharing * (depth + PADDING) + chunk * (depth + out + 2 * PADDING);
            let bytes = 2 * rows + sharing * (4 * chunk + 2 * (chunk + 2 * PADDING) + 16);
            // Sums of values, scores, and the weights derived from them.
            let registers = sharing * (out + chunk + chunk / 2) / threads
                + machine.gpu_facts().thread_registers;
            bytes <= machine.shared_per_workgroup as i64 && registers <= each(1, self.target)
        };
        let whole = sharing <= self.tokens && f16_split::rounded(self.g, self.src[0]);
        let chunk = [2 * small, small]
            .into_iter()
            .find(|&chunk| whole && chunk <= self.positions && fits(chunk));
        let Some(chunk) = chunk else { return alone };
        let fragments = first.fragments.map(|_| Fragments {
            cut: 1,
            staged: true,
        });
        AttentionPlan {
            chunk,
            sharing,
            fragments,
            ..alone
        }
    }
    /// Sizes for the cost model.
    pub fn attended(&self) -> Attended {
        let &Divided {
            g,
            tokens,
            heads,
            group,
            positions,
            window,
            own,
            in_pages,
            ..
        } = self;
        let (k, v) = (self.src[1], self.src[2]);
        let bytes = if f16_split::are_halves(g, k) {
            2
        } else {
            g.scalar(k).bytes() as i64
        };
        let depth = [g.max_of(g.shape(k)[2]), g.max_of(g.shape(v)[2])];
        let kv_heads = heads / group;
        Attended {
            tokens,
            heads,
            kv_heads,
            positions,
            window,
            depth,
            bytes,
            shared: shared_rows(g, k, v),
            own,
            in_pages,
        }
    }
    /// Heads, or tokens, per workgroup without MMA fragments.
    fn sharing(&self, chunk: i64) -> i64 {
        let &Divided {
            heads,
            group,
            tokens,
            positions,
            window,
            ..
        } = self;
        // Heads of a workgroup read the same rows. For one token's short cache fewer heads share,
        // as long as all workgroups of a full cache run in two waves.
        let most = match threads_multiply(tokens, self.target) {
            true => {
                let [all, rounds] = [
                    chunks(positions, window, 1, chunk) * heads,
                    2 * resident_workgroups(self.target),
                ];
                SHARING.min(
                    ((all + rounds - 1) / rounds)
                        .unsigned_abs()
                        .next_power_of_two() as i64,
                )
            }
            false => SHARING,
        };
        match group {
            _ if self.own => SHARING,
            1 => divisor(heads, most),
            group => divisor(group, most),
        }
    }
    /// The heuristic's plan with chunks of `chunk` positions.
    fn plan(&self, chunk: i64) -> AttentionPlan {
        let plain = AttentionPlan {
            chunk,
            sharing: self.sharing(chunk),
            fragments: None,
            ahead: false,
            online: false,
            combine_kernel: self.has_combine_kernel(chunk),
        };
        let Some((sharing, fragments)) = self.fragments(chunk) else {
            return plain;
        };
        let settled = settled(self.g, self.src[1], self.src[3]).is_some();
        let ahead = fragments.staged && self.target.copy_ahead && settled;
        AttentionPlan {
            sharing,
            fragments: Some(fragments),
            ahead,
            ..plain
        }
    }
    /// Whether a combine kernel is possible: on a GPU with one token, where the readers would
    /// otherwise combine the results in each of their workgroups.
    fn may_have_combine_kernel(&self) -> bool {
        self.target.machine.kind == MachineKind::Gpu && self.tokens <= 1
    }
    /// Whether the heuristic's plan with chunks of `chunk` positions uses a combine kernel.
    fn has_combine_kernel(&self, chunk: i64) -> bool {
        let most = self.target.machine.gpu_facts().results_combined_by_readers;
        self.may_have_combine_kernel() && self.attended().chunks(chunk, 1)[0] > most
    }
    /// Tokens that share a tile of `c` positions: each needs a row of queries, scores
    /// and weights in stages.
    fn tokens_beside(&self, c: i64) -> i64 {
        let [least, most] = SHARING_TILED;
        let of_token = 2 * (self.g.max_of(self.g.shape(self.src[1])[2]) + 2 * PADDING)
            + 4 * c
            + 2 * (c + 2 * PADDING);
        let room = self.target.machine.stage_bytes() as i64 / of_token;
        // With few tokens a wide tile would leave units idle.
        let most = if self.tokens > FEW { most } else { least };
        floor_power(room.clamp(least, most)).min(self.tokens)
    }
    /// Returns the sharing and the MMA parameters if these keys and values can use fragments.
    ///
    /// Needs f16 keys and values, whole tiles, and enough heads or tokens to fill a fragment.
    fn fragments(&self, c: i64) -> Option<(i64, Fragments)> {
        let &Divided {
            g,
            target,
            own,
            in_pages,
            heads,
            group,
            tokens,
            positions,
            window,
            ..
        } = self;
        let (q, k, v) = (self.src[0], self.src[1], self.src[2]);
        let of = target.machine.subgroup_fragment(Scalar::F16)?;
        let [depth, out] = [g.shape(k)[2], g.shape(v)[2]].map(|d| g.max_of(d));
        // All heads of a group read each cache row once. With a short context there are few
        // chunks, so heads are split among workgroups, as long as all workgroups of a full cache
        // are resident at once.
        let neighbours = if in_pages { 1 } else { tokens };
        let workgroups = chunks(positions, window, neighbours, c) * tokens.max(1);
        let groups = (resident_workgroups(target) / workgroups).max(1);
        let enough = enough(of);
        let divided = ((group + groups - 1) / groups + enough - 1) / enough * enough;
        let sharing = match heads == group {
            _ if own => self.tokens_beside(c),
            true => divided.min(group),
            // With several groups, a workgroup has heads of one group.
            false => (divided..group).find(|n| group % n == 0).unwrap_or(group),
        };
        let whole = [c, depth, out].iter().all(|n| n % of.rows == 0);
        let halves = f16_split::are_halves(g, k) && (own || f16_split::are_halves(g, v));
        if sharing < enough || !whole || !halves {
            return None;
        }
        // If a chunk has fewer tiles than the workgroup has warps, the depth is split among warps.
        let warps = target.threads as i64 / of.sums.lanes();
        let cuts = (1..=warps).filter(|n| warps % n == 0 && depth % (n * 2 * of.terms) == 0);
        let cut = cuts
            .take_while(|n| n * (c / of.rows) <= warps)
            .last()
            .unwrap_or(1);
        // Tile and queries, parts of scores, their sum, and f16 weights together with the f32
        // values they are rounded from.
        let bytes = |cut: i64| 2 * (c + sharing) * (depth + PADDING) + sharing * c * (4 * cut + 8);
        let fits = |cut: i64| bytes(cut) <= target.machine.shared_per_workgroup as i64;
        let staged = target.stage_cache
            && !own
            && !in_pages
            && shared_rows(g, k, v)
            && f16_split::rounded(g, q)
            && fits(cut);
        // Warps that share a tile of rows have two tiles each and read the queries half as often.
        let halved = staged && cut == 1 && depth % (4 * of.terms) == 0 && fits(2);
        Some((
            sharing,
            Fragments {
                cut: if halved { 2 } else { cut },
                staged,
            },
        ))
    }
}

/// Token count above which a step is a long prefill.
///
/// Queries are then materialised, and keys may be computed for every head.
pub fn buffered(target: &Target) -> i64 {
    let together = target.machine.fragments.iter().any(|of| of.is_of_group());
    let facts = target.machine.gpu_facts();
    if together && target.stage_cache && target.machine.early {
        facts.long_step_tokens_of_warpgroups
    } else {
        facts.long_step_tokens
    }
}

/// Whether tokens should share cache rows instead of the heads of a group.
///
/// True for a prefill with several KV heads if the group is smaller than the number of tokens that
/// can share. With one KV head, all query heads share each row.
pub(super) fn tokens_share(g: &Graph, src: &[Id]) -> bool {
    let [tokens, heads, kv_heads] =
        [(0, 0), (0, 1), (1, 1)].map(|(source, axis)| g.max_of(g.shape(src[source])[axis]));
    !in_pages(g, src)
        && kv_heads > 1
        && heads > kv_heads
        && heads / kv_heads < SHARING_TILED[0].min(tokens)
}

/// Positions per chunk for a step of at most `tokens` tokens over a cache of `rows` rows.
pub fn chunk_positions(tokens: i64, rows: i64, target: &Target) -> i64 {
    let (facts, units) = (target.machine.gpu_facts(), target.machine.units as i64);
    let [short, plain] = [facts.chunk_positions, facts.plain_chunk_positions];
    match target.machine.kind {
        _ if !target.split_cache => whole_chunk(target).max(CHUNK_MANY),
        MachineKind::Gpu if tokens > FEW => facts.prompt_chunk_positions,
        _ if tokens > FEW => CHUNK_MANY,
        _ if threads_multiply(tokens, target) && 2 * rows <= units * plain => plain,
        // Partial results are written and read again, so chunks are longer if every
        // unit still has one.
        MachineKind::Gpu if rows <= units * short => short,
        MachineKind::Gpu => facts.long_chunk_positions,
        MachineKind::Cpu => CHUNK,
    }
}

/// Whether GPU threads compute the products of one token because the machine has no f16 fragments.
fn threads_multiply(tokens: i64, target: &Target) -> bool {
    let machine = &target.machine;
    machine.kind == MachineKind::Gpu && tokens == 1 && machine.fragment(Scalar::F16).is_none()
}

/// Largest power-of-two chunk with scores that fit into a workgroup's stages.
fn whole_chunk(target: &Target) -> i64 {
    let scores = (target.machine.stage_bytes() / BYTES_OF_SCORES) as i64 / SHARING;
    1 << scores.max(1).ilog2()
}

/// Positions per chunk for these attention sources.
pub(super) fn chunk_of(g: &Graph, src: &[Id], target: &Target) -> i64 {
    let (positions, tokens) = (positions(g, src), g.max_of(g.dims(src[0])[0]));
    let chunk = match window(g, src) {
        // A window overlaps at least two chunks; their positions outside it are wasted work.
        Some(window) if target.split_cache => {
            let least = target.machine.gpu_facts().chunk_positions;
            let half = (1 << (window / 2).max(1).ilog2()).max(least);
            chunk_positions(tokens, window, target).min(half)
        }
        // Each row of a batched decode has chunks of its own.
        _ if in_pages(g, src) => chunk_positions(
            tokens,
            positions.max(positions * tokens / target.machine.gpu_facts().rows_of_one_chunk_count),
            target,
        ),
        _ => chunk_positions(tokens, positions, target),
    };
    let chunk = chunk.min(positions.max(1));
    // Partial results of a long context could exceed the largest buffer binding. Longer chunks
    // leave fewer results, as long as their scores fit.
    let [heads, value] =
        [(0, 1), (2, 2)].map(|(source, axis)| g.max_of(g.shape(src[source])[axis]));
    let fits = |chunk: i64| {
        let numbers = chunks(positions, window(g, src), tokens, chunk)
            * tokens
            * heads
            * (value + 2 * COLUMNS);
        4 * numbers <= target.machine.largest_binding as i64
    };
    let longer = std::iter::successors(Some(chunk), |chunk| {
        (2 * chunk <= whole_chunk(target)).then_some(2 * chunk)
    });
    longer
        .take_while(|&longer| longer <= positions.max(1))
        .find(|&longer| fits(longer))
        .unwrap_or(chunk)
}

/// Whether keys and values are f16 reads of the same rows, the values from their start.
fn shared_rows(g: &Graph, k: Id, v: Id) -> bool {
    let from_zero = || {
        g[v].src[1..]
            .chunks(2)
            .all(|window| g.int_value(window[0]) == Some(0))
    };
    f16_split::are_halves(g, k) && g[v].op == Op::Shrink && g[v].src[0] == k && from_zero()
}

/// Returns `first` if this step writes the cache only from position `first` on.
///
/// Rows before `first` may then be copied before the preceding kernels end.
pub(super) fn settled(g: &Graph, cache: Id, first: Id) -> Option<Id> {
    let n = &g[cache];
    match n.op {
        Op::Assign => (n.src[2] == first).then_some(first),
        Op::Cast | Op::Reshape => settled(g, n.src[0], first),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::machine::Machine;

    /// Positions per chunk for 512 tokens of Llama 3.1 8B over `rows` cache rows, with this
    /// largest binding in bytes.
    fn chunk(rows: i64, largest_binding: usize) -> i64 {
        let mut g = Graph::new();
        let [q, k, v] = [(512, 32), (rows, 8), (rows, 8)]
            .map(|(n, heads)| (n, heads, 128))
            .map(|(n, heads, d)| {
                let dims = [n, heads, d].map(|n| g.int(n));
                g.param(heads as u32, &dims, Scalar::F16)
            });
        let (first, length) = (g.int(0), g.int(rows));
        let named = Target::named("h200");
        let target = Target {
            machine: Machine {
                largest_binding,
                ..named.machine.clone()
            },
            ..named
        };
        chunk_of(&g, &[q, k, v, first, length], &target)
    }

    #[test]
    fn partial_results_of_a_long_context_are_no_more_than_a_kernel_is_given() {
        let prompt = Target::named("h200")
            .machine
            .gpu_facts()
            .prompt_chunk_positions;
        assert_eq!(chunk(34_816, usize::MAX >> 1), prompt);
        // 272 chunks of 132 numbers for each of 16,384 rows are 2.35 GB.
        assert_eq!(chunk(34_816, i32::MAX as usize), 2 * prompt);
        assert_eq!(chunk(8_192, i32::MAX as usize), prompt);
    }
}
