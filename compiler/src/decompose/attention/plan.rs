//! How an attention is divided: a value that is proposed in several, decided on, and read by what makes nodes of it.

use crate::cost::occupancy::{REGISTERS, each, room};
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

/// Positions of a chunk: on a GPU of a cache too long for chunks of 64 to be all at once (one of 18,432 rows; experiments, 37), on a processor not measured against others: longer ones leave fewer
/// partial results, shorter ones more workgroups to divide.
const CHUNK: i64 = 128;
/// As many on a GPU, where a chunk is a workgroup's, unless the cache is long: a short context should still keep several busy (GLM on an H200 with a cache of 2,048 rows: 530 tokens a second, 445 where it is
/// divided as one of 18,432; experiments, 37).
const CHUNK_THREADS: i64 = 64;
/// As many where threads multiply for one token, of a cache so short that there are twice as many units as such chunks: threads take long for a chunk, 31 ns for each position and head of
/// 1,088 values on an H200. Tokens a second at the beginning, and behind 1,500 positions (experiments, 110): Youtu with 64 positions and 4 heads 510 and 494, with 32 and 2 566 and 497; Llama 3.1 8B 309 and 305,
/// with 32 and 4 317 and 304. Behind 3,500 Youtu's 428 would be 419.
const CHUNK_PLAIN: i64 = 32;
/// Rows of several sequences that have as many chunks as one alone before they are longer: partial results of 64 rows are as many bytes as what is read. 64 rows of GLM behind
/// 2,048 positions on an H200 make 3,788 tokens a second in chunks of 64, 4,431 of 128 and 4,265 of 256; 8 rows behind 16 positions 1,577, 1,521 and 1,341.
const ROWS_AT_ONCE: i64 = 8;
/// Positions of a chunk where more than [`FEW`] tokens attend: every chunk leaves a partial result per token and head. Not measured: longer chunks leave
/// fewer of these and want larger stages.
const CHUNK_MANY: i64 = 256;
/// As many on a GPU, whose workgroups have room for twice as many tokens then, and read the cache half as often: GLM's 512 tokens on an H200 70 us a layer with 256 positions
/// and 16 tokens, 58 with 128 and 32, 66 with 64 and 32.
const CHUNK_MANY_THREADS: i64 = 128;
/// Most tokens that are a few: as many as a step's class of a few has, the next one has 512. Nothing between was measured.
pub const FEW: i64 = 64;
/// Tokens of a step, at most, above which queries have a buffer of halves that workgroups copy, and keys of every head may be computed: GLM's 2,048 on an H200 571 us a layer for 632 with it.
const BUFFERED: i64 = 1024;
/// As many where warps multiply rows in stages together: the loop over keys of every head takes GLM's 512 tokens on an H100 24 us a layer where chunks and their combination took 88. Classes of steps have 64 or 512 tokens, so
/// nothing between was measured.
const BUFFERED_TOGETHER: i64 = 256;
/// Positions of an iteration of one loop, at most; with rows in stages twice as many where these and sums have room (Llama 3.1 8B, 2,048 tokens behind 6,144 on an H100: 1.39 ms a layer with 64, 1.21
/// with 128 and copies behind products).
const ROUND: i64 = 64;
/// Tokens of a workgroup whose sums are matrix products, at least and at most: as many as there is room for in its stages. The least
/// are a fragment's rows; the most not measured: twice as many leave no room for a second workgroup.
const SHARING_TILED: [i64; 2] = [16, 64];
/// Positions of a whole tile where no fragment says how many: lanes of the widest vectors.
const POSITIONS: i64 = 16;
/// Halves behind a row of a stage, at most, that let rows begin in other banks (`kernel/stages.rs`).
const PADDING: i64 = 16;
/// Heads, or tokens, of a workgroup whose sums are not: they share conversions of halves, and each has accumulators in registers (a loop over 4 heads and 4 positions reaches 46 of 59 G multiply-adds
/// a second of a thread; docs/experiments.md). Other numbers were not measured in a model.
const SHARING: i64 = 4;
/// Bytes of stages for a position and a head: a score, a weight, and as much again for their sums.
const BYTES_OF_SCORES: usize = 16;
/// Most partial results of one token that a GPU's readers combine; more have a kernel of their own. Whoever reads the combination would combine them anew in each of its
/// workgroups, of which a head has several: more bytes than a launch takes time for. GLM on an H200 behind 16,384 positions, 129 of them: 378 tokens a second, 366 without (experiments, 39). Where
/// between 1 and 129 both take as long was not measured.
const COMBINED_BY_READERS: i64 = 64;

/// Columns of a maximum, and of a sum, beside a partial result.
pub const COLUMNS: i64 = 2;

/// How the cache, and the heads or tokens that read it, are divided among workgroups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionPlan {
    /// Positions of a chunk.
    pub chunk: i64,
    /// Heads of a workgroup, or tokens where every head has rows of its own.
    pub sharing: i64,
    /// Sums as matrix products of halves; `None` for sums of floats.
    pub fragments: Option<Fragments>,
    /// Is a tile in a stage copied before the kernels before have ended?
    pub ahead: bool,
    /// Are chunks one workgroup's, one after the other, so that there are no partial results?
    pub online: bool,
    /// Are partial results combined by a kernel of its own, not by those who read what they come to?
    pub combine_kernel: bool,
}

/// Sums as matrix products of halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragments {
    /// Parts that the depth is cut into, each summed by warps of its own.
    pub cut: i64,
    /// Does a workgroup have its tile of the cache in a stage? It reads it for scores and for values; in one loop keys and values have a stage each, which each iteration fills.
    pub staged: bool,
}

impl Display for AttentionPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "attention: chunk {}, sharing {}", self.chunk, self.sharing)?;
        if let Some(Fragments { cut, staged }) = self.fragments {
            write!(f, ", fragments cut {cut}{}", if staged { " staged" } else { "" })?;
        }
        f.write_str(if self.ahead { ", ahead" } else { "" })?;
        f.write_str(if self.online { ", online" } else { "" })?;
        f.write_str(if self.combine_kernel { ", combine kernel" } else { "" })
    }
}

impl FromStr for AttentionPlan {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<AttentionPlan, ParseError> {
        let Some(rest) = text.trim().strip_prefix("attention:") else { return bad(text) };
        let mut plan =
            AttentionPlan { chunk: 1, sharing: 1, fragments: None, ahead: false, online: false, combine_kernel: false };
        for item in rest.split(',') {
            match item.split_whitespace().collect::<Vec<_>>()[..] {
                ["chunk", n] => plan.chunk = count(n)?,
                ["sharing", n] => plan.sharing = count(n)?,
                ["fragments", "cut", n] => plan.fragments = Some(Fragments { cut: count(n)?, staged: false }),
                ["fragments", "cut", n, "staged"] => plan.fragments = Some(Fragments { cut: count(n)?, staged: true }),
                ["ahead"] => plan.ahead = true,
                ["online"] => plan.online = true,
                ["combine", "kernel"] => plan.combine_kernel = true,
                _ => return bad(item),
            }
        }
        Ok(plan)
    }
}

/// An attention, in numbers.
#[derive(Clone, Copy, Debug)]
pub struct Attended {
    /// Tokens of a step, at most.
    pub tokens: i64,
    /// Heads of queries.
    pub heads: i64,
    /// Heads of keys, a divisor of those.
    pub kv_heads: i64,
    /// Positions of the cache, at most.
    pub positions: i64,
    /// Of which a token sees the last so many, unless it sees all before it.
    pub window: Option<i64>,
    /// Values of a key, and of a value.
    pub depth: [i64; 2],
    /// Bytes of an element of the cache.
    pub bytes: i64,
    /// Are keys and values the same rows?
    pub shared: bool,
    /// Do tokens share rows, not heads?
    pub own: bool,
    /// Has every token rows of its own? Then neighbours see nothing together.
    pub in_pages: bool,
}

impl Attended {
    /// Chunks of so many positions that a step has, and those among them that so many of its tokens see together, at most.
    pub fn chunks(&self, size: i64, tokens: i64) -> [i64; 2] {
        let neighbours = |tokens| if self.in_pages { 1 } else { tokens };
        [self.tokens, tokens].map(|tokens| chunks(self.positions, self.window, neighbours(tokens), size))
    }
}

/// Chunks of `size` positions, from multiples of it on, that `tokens` neighbouring tokens see at most, of a cache of so many positions.
pub(super) fn chunks(positions: i64, window: Option<i64>, tokens: i64, size: i64) -> i64 {
    let all = (positions + size - 1) / size;
    // A span of s positions that begins anywhere meets ⌈(s − 1)/size⌉ + 1 chunks.
    window.map_or(all, |window| all.min((window + tokens - 1 + size - 2) / size + 1))
}

/// The positions that a token of an attention of these sources sees, its own included, where these are fewer than it may have before it.
pub(super) fn window(g: &Graph, src: &[Id]) -> Option<i64> {
    let window = g.int_value(*src.get(5)?)?;
    (window > 0 && window < positions(g, src)).then_some(window)
}

/// The most positions that an attention of these sources may reach, which may be less than the cache has.
fn positions(g: &Graph, src: &[Id]) -> i64 {
    g.max_of(src[4]).min(g.max_of(g.dims(src[1])[0]))
}

/// Has every row of queries a position and rows of the cache of its own? Then rows share nothing.
pub(super) fn in_pages(g: &Graph, src: &[Id]) -> bool {
    !g.dims(src[3]).is_empty()
}

/// What a division follows from.
pub(super) struct Divided<'a> {
    g: &'a Graph,
    src: &'a [Id],
    target: &'a Target,
    /// Do several tokens of one sequence attend, and has every head rows of its own?
    own: bool,
    /// Has every token rows of its own?
    in_pages: bool,
    heads: i64,
    /// Heads that share rows of the cache.
    group: i64,
    tokens: i64,
    /// Positions of the cache, at most.
    positions: i64,
    window: Option<i64>,
}

impl<'a> Divided<'a> {
    /// An attention of these sources.
    pub fn new(g: &'a Graph, src: &'a [Id], target: &'a Target) -> Divided<'a> {
        let (qd, kd) = (g.shape(src[0]), g.shape(src[1]));
        let (tokens, heads, kv_heads) = (g.max_of(qd[0]), g.max_of(qd[1]), g.max_of(kd[1]));
        let in_pages = in_pages(g, src);
        let own = !in_pages && kv_heads == heads && tokens > 1;
        let (positions, window) = (positions(g, src), window(g, src));
        Divided { g, src, target, own, in_pages, heads, group: heads / kv_heads, tokens, positions, window }
    }
    /// How it could be divided, the heuristic's choice first.
    pub fn proposals(&self) -> Vec<Proposal<AttentionPlan>> {
        let first = self.plan(chunk_of(self.g, self.src, self.target));
        let staged = first.fragments.is_some_and(|f| f.staged);
        // A tile that is staged, and scores, have to fit.
        let most = if staged { first.chunk } else { whole_chunk(self.target) }.min(self.positions);
        // Vectors and fragments want whole tiles of positions.
        let tile = self.target.machine.subgroup_fragment(Scalar::F16).map_or(POSITIONS, |of| of.rows);
        let chunk = |chunk: i64| match chunk % tile == 0 && (tile..=most).contains(&chunk) {
            true => AttentionPlan { chunk, combine_kernel: self.has_combine_kernel(chunk), ..first },
            false => first,
        };
        // Where heads are in groups, a workgroup has heads of one.
        let together = if self.group == 1 { self.heads } else { self.group };
        let divides = |n: i64| n >= 1 && (self.own || together % n == 0);
        let sharing = |n: i64| match first.fragments {
            None if divides(n) => AttentionPlan { sharing: n, ..first },
            _ => first,
        };
        let plain =
            AttentionPlan { fragments: None, ahead: false, online: false, sharing: self.sharing(first.chunk), ..first };
        let fragments = |change: &dyn Fn(Fragments) -> Fragments| {
            let fragments = first.fragments.map(change);
            AttentionPlan { fragments, ahead: first.ahead && fragments.is_some_and(|f| f.staged), ..first }
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
            ("no stage of the cache", fragments(&|f| Fragments { staged: false, ..f })),
            ("depth in one part", fragments(&|f| Fragments { cut: 1, ..f })),
            ("no copies ahead", AttentionPlan { ahead: false, ..first }),
            ("combined by readers", AttentionPlan { combine_kernel: false, ..first }),
            ("combine kernel", AttentionPlan { combine_kernel: self.may_have_combine_kernel(), ..first }),
            ("online", online),
        ];
        proposals(first, others)
    }
    /// That plan with one loop over the chunks. Where warps multiply together and there is room, each chunk has its rows in stages, and each group of warps tokens of its own, as many
    /// as their product has rows.
    fn online(&self, first: AttentionPlan) -> AttentionPlan {
        let (machine, threads) = (&self.target.machine, self.target.threads as i64);
        let small = first.chunk.min(ROUND);
        let alone = AttentionPlan { chunk: small, online: true, ahead: false, combine_kernel: false, ..first };
        let group = machine.fragments.iter().find(|of| of.is_of_group() && threads % of.sums.lanes() == 0);
        let Some(of) = group.filter(|_| self.target.stage_cache && machine.early) else { return alone };
        let [depth, out] = [1, 2].map(|source| self.g.max_of(self.g.shape(self.src[source])[2]));
        let sharing = of.rows * (threads / of.sums.lanes());
        let fits = |chunk: i64| {
            // Rows of queries, keys and values; scores and weights, for which there is to be room where threads do not keep them; a maximum and a sum in two slots.
            let rows = sharing * (depth + PADDING) + chunk * (depth + out + 2 * PADDING);
            let bytes = 2 * rows + sharing * (4 * chunk + 2 * (chunk + 2 * PADDING) + 16);
            // Sums of values, scores, and what is made of these.
            let registers = sharing * (out + chunk + chunk / 2) / threads + REGISTERS;
            bytes <= machine.shared_per_workgroup as i64 && registers <= each(1, self.target)
        };
        let whole = sharing <= self.tokens && f16_split::rounded(self.g, self.src[0]);
        let chunk = [2 * small, small].into_iter().find(|&chunk| whole && chunk <= self.positions && fits(chunk));
        let Some(chunk) = chunk else { return alone };
        let fragments = first.fragments.map(|_| Fragments { cut: 1, staged: true });
        AttentionPlan { chunk, sharing, fragments, ..alone }
    }
    /// In numbers, as it has a price.
    pub fn attended(&self) -> Attended {
        let &Divided { g, tokens, heads, group, positions, window, own, in_pages, .. } = self;
        let (k, v) = (self.src[1], self.src[2]);
        let bytes = if f16_split::are_halves(g, k) { 2 } else { g.scalar(k).bytes() as i64 };
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
    /// Heads, or tokens, that share where no fragments do.
    fn sharing(&self, chunk: i64) -> i64 {
        let &Divided { heads, group, tokens, positions, window, .. } = self;
        // Heads of a workgroup read the same rows. Of one token's short cache fewer share, as long as all workgroups of a full cache run in two rounds.
        let most = match threads_multiply(tokens, self.target) {
            true => {
                let [all, rounds] = [chunks(positions, window, 1, chunk) * heads, 2 * room(self.target)];
                SHARING.min(((all + rounds - 1) / rounds).unsigned_abs().next_power_of_two() as i64)
            }
            false => SHARING,
        };
        match group {
            _ if self.own => SHARING,
            1 => divisor(heads, most),
            group => divisor(group, most),
        }
    }
    /// The heuristic's plan in chunks of so many positions.
    fn plan(&self, chunk: i64) -> AttentionPlan {
        let plain = AttentionPlan {
            chunk,
            sharing: self.sharing(chunk),
            fragments: None,
            ahead: false,
            online: false,
            combine_kernel: self.has_combine_kernel(chunk),
        };
        let Some((sharing, fragments)) = self.fragments(chunk) else { return plain };
        let settled = settled(self.g, self.src[1], self.src[3]).is_some();
        let ahead = fragments.staged && self.target.copy_ahead && settled;
        AttentionPlan { sharing, fragments: Some(fragments), ahead, ..plain }
    }
    /// Could a kernel of its own combine partial results? One token's, where whoever reads them computes that in each of its workgroups.
    fn may_have_combine_kernel(&self) -> bool {
        self.target.machine.kind == MachineKind::Gpu && self.tokens <= 1
    }
    /// Does one in the heuristic's plan in chunks of so many positions?
    fn has_combine_kernel(&self, chunk: i64) -> bool {
        self.may_have_combine_kernel() && self.attended().chunks(chunk, 1)[0] > COMBINED_BY_READERS
    }
    /// Tokens that share a tile of so many positions: each has a row of queries in a stage, scores and weights.
    fn tokens_beside(&self, c: i64) -> i64 {
        let [least, most] = SHARING_TILED;
        let of_token = 2 * (self.g.max_of(self.g.shape(self.src[1])[2]) + 2 * PADDING) + 4 * c + 2 * (c + 2 * PADDING);
        let room = self.target.machine.stage_bytes() as i64 / of_token;
        // Of a few tokens a wide tile would leave units without one.
        let most = if self.tokens > FEW { most } else { least };
        floor_power(room.clamp(least, most)).min(self.tokens)
    }
    /// Can warps multiply these keys and values, and are there enough heads or tokens beside one another? So many of them share.
    fn fragments(&self, c: i64) -> Option<(i64, Fragments)> {
        let &Divided { g, target, own, in_pages, heads, group, tokens, positions, window, .. } = self;
        let (q, k, v) = (self.src[0], self.src[1], self.src[2]);
        let of = target.machine.subgroup_fragment(Scalar::F16)?;
        let [depth, out] = [g.shape(k)[2], g.shape(v)[2]].map(|d| g.max_of(d));
        // All heads of a group read each row of the cache once. A short context has few chunks: then heads are divided, as long as all workgroups of a
        // full cache run at once.
        let neighbours = if in_pages { 1 } else { tokens };
        let workgroups = chunks(positions, window, neighbours, c) * tokens.max(1);
        let groups = (room(target) / workgroups).max(1);
        let enough = enough(of);
        let divided = ((group + groups - 1) / groups + enough - 1) / enough * enough;
        let sharing = match heads == group {
            _ if own => self.tokens_beside(c),
            true => divided.min(group),
            // Of several groups a workgroup has heads of one.
            false => (divided..group).find(|n| group % n == 0).unwrap_or(group),
        };
        let whole = [c, depth, out].iter().all(|n| n % of.rows == 0);
        let halves = f16_split::are_halves(g, k) && (own || f16_split::are_halves(g, v));
        if sharing < enough || !whole || !halves {
            return None;
        }
        // Where a chunk has fewer tiles than a workgroup warps, each of them has a part of the depth.
        let warps = target.threads as i64 / of.sums.lanes();
        let cuts = (1..=warps).filter(|n| warps % n == 0 && depth % (n * 2 * of.terms) == 0);
        let cut = cuts.take_while(|n| n * (c / of.rows) <= warps).last().unwrap_or(1);
        // The tile and queries, parts of scores, their sum, and weights in halves beside what they are made of.
        let bytes = |cut: i64| 2 * (c + sharing) * (depth + PADDING) + sharing * c * (4 * cut + 8);
        let fits = |cut: i64| bytes(cut) <= target.machine.shared_per_workgroup as i64;
        let staged =
            target.stage_cache && !own && !in_pages && shared_rows(g, k, v) && f16_split::rounded(g, q) && fits(cut);
        // Warps that share a tile of rows have two of them each, and read the queries half as often.
        let halved = staged && cut == 1 && depth % (4 * of.terms) == 0 && fits(2);
        Some((sharing, Fragments { cut: if halved { 2 } else { cut }, staged }))
    }
}

/// Tokens of a step, at most, above which it is that of a long prompt: queries have a buffer, and keys of every head may be computed.
pub fn buffered(target: &Target) -> i64 {
    let together = target.machine.fragments.iter().any(|of| of.is_of_group());
    if together && target.stage_cache && target.machine.early { BUFFERED_TOGETHER } else { BUFFERED }
}

/// Is each row of the cache better shared by tokens than by the heads of its group? Tokens are more where a prompt has several heads of keys; of one
/// head of keys every head of queries shares each row.
pub(super) fn tokens_share(g: &Graph, src: &[Id]) -> bool {
    let [tokens, heads, kv_heads] = [(0, 0), (0, 1), (1, 1)].map(|(source, axis)| g.max_of(g.shape(src[source])[axis]));
    !in_pages(g, src) && kv_heads > 1 && heads > kv_heads && heads / kv_heads < SHARING_TILED[0].min(tokens)
}

/// Positions of a chunk where at most so many tokens attend in one step, to a cache of so many rows.
pub fn chunk_positions(tokens: i64, rows: i64, target: &Target) -> i64 {
    match target.machine.kind {
        _ if !target.split_cache => whole_chunk(target).max(CHUNK_MANY),
        MachineKind::Gpu if tokens > FEW => CHUNK_MANY_THREADS,
        _ if tokens > FEW => CHUNK_MANY,
        _ if threads_multiply(tokens, target) && 2 * rows <= target.machine.units as i64 * CHUNK_PLAIN => CHUNK_PLAIN,
        // Partial results are written and read again: fewer, where every multiprocessor has a chunk.
        MachineKind::Gpu if rows <= target.machine.units as i64 * CHUNK_THREADS => CHUNK_THREADS,
        _ => CHUNK,
    }
}

/// Do a GPU's threads multiply for one token, as the machine has no fragments of halves?
fn threads_multiply(tokens: i64, target: &Target) -> bool {
    let machine = &target.machine;
    machine.kind == MachineKind::Gpu && tokens == 1 && machine.fragment(Scalar::F16).is_none()
}

/// Positions of a chunk whose scores just fit into a workgroup's stages: a power of two.
fn whole_chunk(target: &Target) -> i64 {
    let scores = (target.machine.stage_bytes() / BYTES_OF_SCORES) as i64 / SHARING;
    1 << scores.max(1).ilog2()
}

/// Positions of a chunk of an attention of these sources.
pub(super) fn chunk_of(g: &Graph, src: &[Id], target: &Target) -> i64 {
    let (positions, tokens) = (positions(g, src), g.max_of(g.dims(src[0])[0]));
    let chunk = match window(g, src) {
        // A window lies across two chunks at least: what both have beside it is computed for nothing.
        Some(window) if target.split_cache => {
            let half = (1 << (window / 2).max(1).ilog2()).max(CHUNK_THREADS);
            chunk_positions(tokens, window, target).min(half)
        }
        // Each row of several sequences has chunks of its own.
        _ if in_pages(g, src) => chunk_positions(tokens, positions.max(positions * tokens / ROWS_AT_ONCE), target),
        _ => chunk_positions(tokens, positions, target),
    };
    let chunk = chunk.min(positions.max(1));
    // Partial results of a long context would be more than a kernel is given: longer chunks leave fewer, as long as their scores fit.
    let [heads, value] = [(0, 1), (2, 2)].map(|(source, axis)| g.max_of(g.shape(src[source])[axis]));
    let fits = |chunk: i64| {
        let numbers = chunks(positions, window(g, src), tokens, chunk) * tokens * heads * (value + 2 * COLUMNS);
        4 * numbers <= target.machine.largest_binding as i64
    };
    let longer = std::iter::successors(Some(chunk), |chunk| (2 * chunk <= whole_chunk(target)).then_some(2 * chunk));
    longer.take_while(|&longer| longer <= positions.max(1)).find(|&longer| fits(longer)).unwrap_or(chunk)
}

/// Rows of halves that both keys and values are read from, the values from their beginning.
fn shared_rows(g: &Graph, k: Id, v: Id) -> bool {
    let from_zero = || g[v].src[1..].chunks(2).all(|window| g.int_value(window[0]) == Some(0));
    f16_split::are_halves(g, k) && g[v].op == Op::Shrink && g[v].src[0] == k && from_zero()
}

/// The position `first` of a cache that this step writes from there on, and nowhere else.
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

    /// Positions of a chunk for 512 tokens of Llama 3.1 8B over so many rows, on a machine whose kernels are given so much.
    fn chunk(rows: i64, largest_binding: usize) -> i64 {
        let mut g = Graph::new();
        let [q, k, v] = [(512, 32), (rows, 8), (rows, 8)].map(|(n, heads)| (n, heads, 128)).map(|(n, heads, d)| {
            let dims = [n, heads, d].map(|n| g.int(n));
            g.param(heads as u32, &dims, Scalar::F16)
        });
        let (first, length) = (g.int(0), g.int(rows));
        let named = Target::named("h200");
        let target = Target { machine: Machine { largest_binding, ..named.machine.clone() }, ..named };
        chunk_of(&g, &[q, k, v, first, length], &target)
    }

    #[test]
    fn partial_results_of_a_long_context_are_no_more_than_a_kernel_is_given() {
        assert_eq!(chunk(34_816, usize::MAX >> 1), CHUNK_MANY_THREADS);
        // 272 chunks of 132 numbers for each of 16,384 rows are 2.35 GB.
        assert_eq!(chunk(34_816, i32::MAX as usize), 2 * CHUNK_MANY_THREADS);
        assert_eq!(chunk(8_192, i32::MAX as usize), CHUNK_MANY_THREADS);
    }
}
