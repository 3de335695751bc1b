//! The lines behind what is read. A vector of packed bytes, or of halves or bytes (a cache): those of the next rows are on their way while these are worked on.
//! Rows are too short for the hardware to find the stream by itself, but where they are interleaved and so follow one another.

use super::tile::{self, CacheTile};
use crate::lower::linear_ir::{Code, Prefetch, Statement, end_of_block};
use gristmill_uop::linear::Linear;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, Scalar};
use rustc_hash::FxHashSet;

/// Bytes that a sum asks for behind what it reads of rows that follow one another, of all its weights together, for each iteration ahead: no fewer than memory's latency times its rate (170 ns and 28 GB/s a core of Zen 4), and no
/// more than stays in the first cache (32 KB there, 48 of a Xeon and of Zen 5) until it is read. One token of Youtu on two cores of Zen 4, in ms: 26.9 with 8 KB of each weight, 27.0 with 8 KB for all of a nest, 24.7 with
/// 4, and with 6, timed once so, 23.8; a Xeon 49.4, 46.2, 49.5 and 48.7, and 53.7 with 2 KB of each (experiments, 119, 120). Eight tokens beside one another, a block of 288 bytes, two cores of Zen 5: 17.0 ns with 2 KB, 13.8
/// with 4, 12.8 with 6, 12.7 with 8 and 13.0 with 12, of which 11.4 are arithmetic (125). On Zen 3, which was timed with 2 KB of each alone, a matvec of 2,048 rows of 2,048 took 82 us without and 62 with.
const BYTES_AHEAD_IN_STREAMS: i64 = 6144;
/// The same of rows that tiles of tokens read one after the other: all but the first have them from the second-level cache, and each takes its time. A block for 16 tokens, Zen 5: 26.2 ns with 2 KB, 25.3 with 4, 25.9 with 6,
/// 27.0 with 8; for 64 tokens 91.5, 91.5, 92.2, 93.6 (125).
const BYTES_AHEAD_OF_ROWS_READ_AGAIN: i64 = 4096;
/// Bytes of a cache line; of packed bytes, whose lines are counted from addresses that need not begin one, half of it.
const LINE: i64 = 64;
const HALF_LINE: i64 = 32;

/// A line: its buffer, the terms of its address, and its number after those.
type Line = (Id, Vec<(Id, i64)>, i64);

/// Where the walk over a body is.
struct Walk<'a> {
    g: &'a Graph,
    tiles: &'a [CacheTile],
    ahead: i64,
    streams: &'a [u32],
    /// How many of them the sum reads whose loop is open: these share what is asked for.
    sharing: i64,
    /// Ranges around the statement that choose what is computed (workgroup ranges and loops, not reductions).
    around: Vec<Id>,
    /// Ranges of the reductions whose loops are open.
    reducing: Vec<Id>,
    /// Of every open block, the range of its loop.
    open: Vec<Option<Id>>,
    /// What is asked for already in this loop.
    fetched: FxHashSet<Line>,
}

/// The body's statements with lines asked for behind the loads, and tiles at the beginning of a loop's turns.
pub(super) fn prefetch(g: &Graph, code: &Code, tiles: &[CacheTile], ahead: i64, streams: &[u32]) -> Vec<Statement> {
    let mut walk = Walk {
        g,
        tiles,
        ahead,
        streams,
        sharing: 1,
        around: code.globals.clone(),
        reducing: vec![],
        open: vec![],
        fetched: FxHashSet::default(),
    };
    let mut out = Vec::with_capacity(code.statements.len());
    for (i, s) in code.statements.iter().enumerate() {
        out.push(s.clone());
        match s {
            Statement::Define(id) => out.extend(walk.line(*id).map(Statement::Prefetch)),
            Statement::Loop { range, .. } => {
                if walk.reducing.is_empty() && !walk.chooses(*range) {
                    let sum = &code.statements[i..];
                    walk.sharing = streams_read(g, &sum[..end_of_block(sum)], streams);
                }
                walk.enter(Some(*range));
                let asked = tiles.iter().filter(|t| t.innermost() == Some(*range));
                out.extend(asked.map(|t| Statement::Prefetch(Prefetch::Tile(t.lines.clone()))));
            }
            s if s.opens() => walk.enter(None),
            Statement::End => walk.leave(),
            _ => {}
        }
    }
    out
}

impl Walk<'_> {
    fn enter(&mut self, range: Option<Id>) {
        self.fetched.clear();
        self.open.push(range);
        if let Some(r) = range {
            let chooses = self.chooses(r);
            if chooses { &mut self.around } else { &mut self.reducing }.push(r);
        }
    }
    fn leave(&mut self) {
        self.fetched.clear();
        if let Some(r) = self.open.pop().expect("a block is open") {
            let chooses = self.chooses(r);
            if chooses { &mut self.around } else { &mut self.reducing }.pop();
        }
    }
    /// Does a loop over it choose what is computed, where others add up?
    fn chooses(&self, range: Id) -> bool {
        self.g.range_kind(range) == Some(RangeKind::Loop)
    }
    /// The line to ask for behind a load of a vector, if it is one.
    fn line(&mut self, id: Id) -> Option<Prefetch> {
        let n = &self.g[id];
        if n.op != Op::Load || n.dtype.lanes == 1 {
            return None;
        }
        let at = self.g.linear(n.src[1]);
        match self.g[n.src[0]].arg {
            Arg::Packed(slot, _) if self.streams.contains(&slot) => self.stream(id, &at),
            Arg::Packed(..) => self.rows(id, &at, HALF_LINE, true),
            _ if self.tiles.iter().any(|t| t.lines.buffer == n.src[0]) => None,
            _ => {
                let narrow = n.dtype.scalar.is_half() || n.dtype.scalar == Scalar::I8;
                let elements = LINE / n.dtype.scalar.bytes() as i64;
                (narrow && self.g[n.src[0]].op == Op::Param).then(|| self.rows(id, &at, elements, false))?
            }
        }
    }
    /// The next rows lie behind all that the reductions around read: of a tile of the cache whose rows are summed up, they are those of the next
    /// workgroup. Where others in between read the same again they are asked for too soon: after many, the cache holds other things.
    fn rows(&mut self, id: Id, at: &Linear, elements: i64, packed: bool) -> Option<Prefetch> {
        let n = &self.g[id];
        let reach = |&r: &Id| at.coefficient(r) * (self.g.bounds(self.g[r].src[0]).map_or(1, |b| b.1) - 1);
        let read: i64 = self.reducing.iter().map(reach).sum();
        let mut between = 1;
        let stride = self.around.iter().rev().find_map(|&r| {
            let stride = at.coefficient(r);
            if stride == 0 && self.g.range_kind(r) == Some(RangeKind::Global) {
                between *= self.g.max_of(self.g[r].src[0]);
            }
            (stride > read).then_some(stride * self.ahead)
        });
        let line = (n.src[0], at.terms.to_vec(), at.constant.div_euclid(elements));
        let ahead = stride.filter(|_| packed || between <= tile::MOST_WORKGROUPS_BETWEEN)?;
        self.fetched.insert(line).then(|| Prefetch::Line { at: [n.src[0], n.src[1]], ahead })
    }
    /// Interleaved rows follow one another, but the hardware's own prefetch keeps too few lines on their way: those further behind are asked for too. Rows that tokens share come from the second-level
    /// cache for all but the first, which is waited for as well: two cores of Zen 5, Youtu, 16 sequences 142 and with it 229 tokens a second, prompts of 128 260 and 293 (experiments, 123).
    fn stream(&mut self, id: Id, at: &Linear) -> Option<Prefetch> {
        let (buffer, offset) = (self.g[id].src[0], self.g[id].src[1]);
        let line = (buffer, at.terms.to_vec(), at.constant.div_euclid(LINE));
        let bytes = if self.reads_again(at) { BYTES_AHEAD_OF_ROWS_READ_AGAIN } else { BYTES_AHEAD_IN_STREAMS };
        let ahead = self.ahead * (bytes / self.sharing.max(1) / LINE * LINE);
        self.fetched.insert(line).then_some(Prefetch::Line { at: [buffer, offset], ahead })
    }
    /// Does a workgroup read what lies at that address more than once?
    fn reads_again(&self, at: &Linear) -> bool {
        let is_again = |&r: &Id| self.chooses(r) && at.coefficient(r) == 0 && self.g.max_of(self.g[r].src[0]) > 1;
        self.around.iter().any(is_again)
    }
}

/// How many of `streams` these statements read.
fn streams_read(g: &Graph, statements: &[Statement], streams: &[u32]) -> i64 {
    let slot = |s: &Statement| match s {
        Statement::Define(id) if g[*id].op == Op::Load => match g[g[*id].src[0]].arg {
            Arg::Packed(slot, _) => Some(slot).filter(|slot| streams.contains(slot)),
            _ => None,
        },
        _ => None,
    };
    statements.iter().filter_map(slot).collect::<FxHashSet<u32>>().len() as i64
}
