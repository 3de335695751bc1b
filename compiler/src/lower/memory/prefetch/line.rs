//! Prefetches cache lines of upcoming rows on CPUs, for vector loads of weights and of a KV cache.
//!
//! Rows are too short for the hardware prefetcher to detect the stream, unless they are interleaved
//! and thus contiguous.

use super::tile::{self, CacheTile};
use crate::lower::linear_ir::{Code, Prefetch, Statement, end_of_block};
use gristmill_uop::facts::CpuFacts;
use gristmill_uop::linear::Linear;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, Scalar};
use rustc_hash::FxHashSet;

/// Bytes of a cache line; half of it for packed bytes, as their addresses need not start at a line.
const LINE: i64 = 64;
const HALF_LINE: i64 = 32;

/// A line: its buffer, the variable terms of its address, and its number relative to these.
type Line = (Id, Vec<(Id, i64)>, i64);

/// State of the walk over a body.
struct Walk<'a> {
    g: &'a Graph,
    tiles: &'a [CacheTile],
    ahead: i64,
    streams: &'a [u32],
    /// Facts of the machine: bytes to prefetch ahead.
    facts: &'a CpuFacts,
    /// Number of streams that the open reduction reads, which share the prefetch distance.
    sharing: i64,
    /// Ranges around the statement that select outputs (workgroup ranges
    /// and loops, not reductions).
    around: Vec<Id>,
    /// Ranges of the open reductions.
    reducing: Vec<Id>,
    /// Loop range of every open block; `None` for other blocks.
    open: Vec<Option<Id>>,
    /// Lines already prefetched in this loop.
    fetched: FxHashSet<Line>,
}

/// Inserts line prefetches after loads, and tile prefetches at the start of iterations.
pub(super) fn prefetch(
    g: &Graph,
    code: &Code,
    tiles: &[CacheTile],
    ahead: i64,
    streams: &[u32],
    facts: &CpuFacts,
) -> Vec<Statement> {
    let mut walk = Walk {
        g,
        tiles,
        ahead,
        streams,
        facts,
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
            if chooses {
                &mut self.around
            } else {
                &mut self.reducing
            }
            .push(r);
        }
    }
    fn leave(&mut self) {
        self.fetched.clear();
        if let Some(r) = self.open.pop().expect("a block is open") {
            let chooses = self.chooses(r);
            if chooses {
                &mut self.around
            } else {
                &mut self.reducing
            }
            .pop();
        }
    }
    /// Returns whether a loop over the range selects outputs, rather than reduces.
    fn chooses(&self, range: Id) -> bool {
        self.g.range_kind(range) == Some(RangeKind::Loop)
    }
    /// Returns the line to prefetch after a vector load.
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
                (narrow && self.g[n.src[0]].op == Op::Param)
                    .then(|| self.rows(id, &at, elements, false))?
            }
        }
    }
    /// Prefetches the next rows, past everything that the enclosing reductions read; for
    /// a summed KV cache tile these are the rows of the next workgroup. Lines of a KV
    /// cache are not prefetched if many workgroups read the same rows in between: they
    /// would be evicted before use.
    fn rows(&mut self, id: Id, at: &Linear, elements: i64, packed: bool) -> Option<Prefetch> {
        let n = &self.g[id];
        let reach =
            |&r: &Id| at.coefficient(r) * (self.g.bounds(self.g[r].src[0]).map_or(1, |b| b.1) - 1);
        let read: i64 = self.reducing.iter().map(reach).sum();
        let mut between = 1;
        let stride = self.around.iter().rev().find_map(|&r| {
            let stride = at.coefficient(r);
            if stride == 0 && self.g.range_kind(r) == Some(RangeKind::Global) {
                between *= self.g.max_of(self.g[r].src[0]);
            }
            (stride > read).then_some(stride * self.ahead)
        });
        let line = (
            n.src[0],
            at.terms.to_vec(),
            at.constant.div_euclid(elements),
        );
        let ahead = stride.filter(|_| packed || between <= tile::MAX_WORKGROUPS_BETWEEN)?;
        self.fetched.insert(line).then(|| Prefetch::Line {
            at: [n.src[0], n.src[1]],
            ahead,
        })
    }
    /// Prefetches contiguous (interleaved) rows further ahead than the hardware does, which keeps
    /// too few lines in flight. Rows shared by tokens come from L2 for all but the first, with a
    /// latency of their own.
    ///
    /// Two Zen 5 cores, Youtu: 16 sequences 142 tok/s without and 229 with; prompts of 128 tokens
    /// 260 and 293 (`docs/experiments/123`).
    fn stream(&mut self, id: Id, at: &Linear) -> Option<Prefetch> {
        let (buffer, offset) = (self.g[id].src[0], self.g[id].src[1]);
        let line = (buffer, at.terms.to_vec(), at.constant.div_euclid(LINE));
        let bytes = if self.reads_again(at) {
            self.facts.panel_bytes_ahead
        } else {
            self.facts.stream_bytes_ahead
        };
        let ahead = self.ahead * (bytes / self.sharing.max(1) / LINE * LINE);
        self.fetched.insert(line).then_some(Prefetch::Line {
            at: [buffer, offset],
            ahead,
        })
    }
    /// Returns whether a workgroup reads the memory at that address more than once.
    fn reads_again(&self, at: &Linear) -> bool {
        let is_again = |&r: &Id| {
            self.chooses(r) && at.coefficient(r) == 0 && self.g.max_of(self.g[r].src[0]) > 1
        };
        self.around.iter().any(is_again)
    }
}

/// Returns how many of `streams` these statements read.
fn streams_read(g: &Graph, statements: &[Statement], streams: &[u32]) -> i64 {
    let slot = |s: &Statement| match s {
        Statement::Define(id) if g[*id].op == Op::Load => match g[g[*id].src[0]].arg {
            Arg::Packed(slot, _) => Some(slot).filter(|slot| streams.contains(slot)),
            _ => None,
        },
        _ => None,
    };
    statements
        .iter()
        .filter_map(slot)
        .collect::<FxHashSet<u32>>()
        .len() as i64
}
