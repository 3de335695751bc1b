//! What the threads of a warp and the workgroups of a launch touch by one access.

use crate::ir::size_estimate::typical;
use crate::lower::linear_ir::threads::ThreadIndex;
use crate::plan::BANKS;
use gristmill_uop::fold::{self, Value};
use gristmill_uop::{Graph, Id, Op};
use smallvec::SmallVec;

/// Bytes of a transaction of the cache.
pub const SECTOR: i64 = 32;
/// Bytes of a bank of workgroup memory.
const BANK: i64 = 4;

/// Indices that an address may depend on: of workgroups, threads and loops.
pub struct Indices<'a> {
    globals: &'a [Id],
    threads: Vec<ThreadIndex>,
    /// Enclosing loops with their iterations.
    loops: Vec<(Id, f64)>,
    subgroup: i64,
}

/// What one access touches.
#[derive(Debug, PartialEq)]
pub struct Footprint {
    /// Transactions of a warp; in workgroup memory, those that bank conflicts leave.
    pub sectors: f64,
    /// Different addresses within a warp, and within the workgroup.
    pub lanes: f64,
    pub threads: f64,
    /// Workgroups with different addresses.
    pub groups: f64,
    /// Iterations of enclosing loops with equal addresses.
    pub repeats: f64,
}

impl<'a> Indices<'a> {
    /// The indices of a body's workgroups, before any nest or loop; `subgroup` threads form a warp.
    pub fn new(globals: &'a [Id], subgroup: i64) -> Indices<'a> {
        Indices {
            globals,
            threads: vec![],
            loops: vec![],
            subgroup,
        }
    }
    /// Sets the thread indices and returns those before.
    pub fn set_threads(&mut self, threads: Vec<ThreadIndex>) -> Vec<ThreadIndex> {
        std::mem::replace(&mut self.threads, threads)
    }
    /// Enters a loop of that many iterations.
    pub fn enter(&mut self, range: Id, iterations: f64) {
        self.loops.push((range, iterations));
    }
    /// Leaves the innermost loop.
    pub fn leave(&mut self) {
        self.loops.pop();
    }
    /// Thread indices among these ranges.
    pub fn threads_in(&self, ranges: &[Id]) -> impl Iterator<Item = &ThreadIndex> {
        self.threads.iter().filter(|t| ranges.contains(&t.range))
    }
    /// What an access of `bytes` at `offset` touches.
    pub fn footprint(&self, g: &Graph, buffer: Id, offset: Id, bytes: f64) -> Footprint {
        let free = g.free_ranges(offset);
        let size = |r: Id| typical(g, g[r].src[0]);
        let threads = self.threads_in(free).map(|t| size(t.range)).product();
        let groups = self.globals.iter().filter(|r| free.contains(r));
        let repeats = self.loops.iter().filter(|l| !free.contains(&l.0));
        let addresses = self.of_warp(g, offset, g.unit_bytes(buffer));
        let sectors = match g[buffer].op {
            Op::Local => conflicts(&addresses, bytes as i64) * (BANKS / SECTOR),
            _ => sectors(&addresses, bytes as i64),
        };
        let mut distinct = addresses;
        distinct.sort_unstable();
        distinct.dedup();
        Footprint {
            sectors: sectors as f64,
            lanes: distinct.len() as f64,
            threads,
            groups: groups.map(|&r| size(r)).product(),
            repeats: repeats.map(|l| l.1).product(),
        }
    }
    /// Address of each lane of a warp, relative to the first, in bytes.
    fn of_warp(&self, g: &Graph, offset: Id, unit: i64) -> Addresses {
        let linear = g.linear(offset);
        let of_lane = |lane| {
            let term = |&(term, step): &(Id, i64)| self.index(g, term, lane) * step * unit;
            linear.terms.iter().map(term).sum()
        };
        (0..self.subgroup).map(of_lane).collect()
    }
    /// Index expression of a lane, in the first workgroup and iteration. What memory holds counts
    /// as 0.
    fn index(&self, g: &Graph, id: Id, lane: i64) -> i64 {
        let node = &g[id];
        if node.op == Op::Range {
            let of = self.threads.iter().find(|t| t.range == id);
            return of.map_or(0, |t| t.for_thread(lane));
        }
        if let Some(value) = g.int_value(id) {
            return value;
        }
        if g.free_ranges(id).is_empty() || matches!(node.op, Op::Load | Op::Var) {
            return 0;
        }
        let of_source = |&s: &Id| Value::Int(self.index(g, s, lane));
        let sources: SmallVec<[Value; 3]> = node.src.iter().map(of_source).collect();
        fold::apply(node.op, &sources, node.dtype.scalar).map_or(0, Value::int)
    }
}

type Addresses = SmallVec<[i64; 64]>;

/// Sectors of the cache that lanes touch which access `bytes` each.
fn sectors(addresses: &Addresses, bytes: i64) -> i64 {
    let of_lane = |at: &i64| {
        let at = *at / SECTOR;
        (0..(bytes / SECTOR).max(1)).map(move |i| at + i)
    };
    let mut all: Addresses = addresses.iter().flat_map(of_lane).collect();
    all.sort_unstable();
    all.dedup();
    all.len() as i64
}

/// Rows of banks that an access of workgroup memory takes. As many lanes as fill a row go at once;
/// different words of one bank follow one another.
fn conflicts(addresses: &Addresses, bytes: i64) -> i64 {
    let at_once = (BANKS / bytes.max(BANK)).max(1) as usize;
    let of_group = |lanes: &[i64]| {
        let of_lane = |at: &i64| {
            let at = *at / BANK;
            (0..(bytes / BANK).max(1)).map(move |i| at + i)
        };
        let mut words: Addresses = lanes.iter().flat_map(of_lane).collect();
        words.sort_unstable();
        words.dedup();
        let mut of_bank = [0; (BANKS / BANK) as usize];
        for word in words {
            of_bank[word.rem_euclid(BANKS / BANK) as usize] += 1;
        }
        of_bank.into_iter().max().unwrap_or(1)
    };
    addresses.chunks(at_once).map(of_group).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(step: i64) -> Addresses {
        (0..32).map(|lane| lane * step).collect()
    }

    #[test]
    fn a_sector_that_lanes_share_counts_once() {
        assert_eq!(sectors(&lanes(4), 4), 4);
        assert_eq!(sectors(&lanes(0), 4), 1);
        assert_eq!(sectors(&lanes(128), 4), 32);
        assert_eq!(sectors(&lanes(16), 16), 16);
    }

    #[test]
    fn words_of_one_bank_follow_one_another() {
        assert_eq!(conflicts(&lanes(4), 4), 1);
        assert_eq!(conflicts(&lanes(0), 4), 1, "all lanes read one word");
        assert_eq!(conflicts(&lanes(8), 4), 2);
        assert_eq!(conflicts(&lanes(128), 4), 32);
        assert_eq!(conflicts(&lanes(16), 16), 4, "eight lanes fill a row");
        assert_eq!(conflicts(&lanes(144), 16), 4, "padded rows");
    }
}
