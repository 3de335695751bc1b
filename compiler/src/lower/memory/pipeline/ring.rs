//! Finds loops with loads that can become asynchronous copies (`multistage.rs`): shared memory per
//! iteration, and threads that load the same data.

use crate::lower::linear_ir::threads::ThreadIndex;
use crate::lower::linear_ir::{Code, Statement, end_of_block};
use gristmill_uop::fragment::{Fragment, UNIT, whole_swizzles};
use gristmill_uop::rules::index::gcd;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, RangeKind};
use rustc_hash::FxHashMap;

/// Bytes of a copy.
pub const BYTES: i64 = 16;

/// Loads that become copies, `stride` elements apart.
pub struct Family {
    /// Indices of the load statements, in memory order.
    pub statements: Vec<usize>,
    pub stride: i64,
    /// Position in the ring's columns that asynchronous MMA products read; `None` for other loads.
    pub unit: Option<Unit>,
    /// Thread ranges that the addresses depend on, with thread counts, outermost first; and the
    /// other ranges: threads along these load the same data.
    pub own: Vec<(Id, i64)>,
    pub others: Vec<(Id, i64)>,
}

/// A loop with loads that become copies.
pub struct Ring {
    /// Indices of the loop's statement and of its end.
    pub first: usize,
    pub end: usize,
    pub range: Id,
    pub count: i64,
    pub copied: Vec<Family>,
    /// Indices of the carried loads.
    pub carried: Vec<usize>,
    /// Columns that asynchronous MMA products read.
    pub columns: Columns,
}

/// Position of a load relative to the first of its threads, and distance to the family's
/// next member, in words.
#[derive(Clone, Copy)]
pub struct Unit {
    pub at: i64,
    pub stride: i64,
}

/// Columns that asynchronous MMA products read, within an iteration's slot.
#[derive(Default)]
pub struct Columns {
    /// Words shared by warps with the same columns; every such group has this many.
    pub words: i64,
    /// Words between a lane's unit and the next lane's, and between columns.
    pub strides: [i64; 2],
    /// Thread ranges that select the columns, with thread counts.
    pub groups: Vec<(Id, i64)>,
    /// First word of a product's columns, by the first word that its lane holds of them.
    pub of: FxHashMap<Id, i64>,
    /// Positions of a load's unit, by its first word; several where columns past
    /// the last repeat it.
    units: FxHashMap<Id, Vec<i64>>,
}

const UNIT_WORDS: i64 = BYTES / 4;

impl Columns {
    /// Collects the columns of the MMA products in these statements.
    fn from_products(g: &Graph, inside: &[Statement]) -> Columns {
        let mut all = Columns::default();
        for s in inside {
            let Statement::Accumulate(_, value) = s else {
                continue;
            };
            let Some(of) = group(g, *value) else { continue };
            let words = &g[*value].src[of.first.registers() as usize..of.words()];
            if all.of.contains_key(&words[0]) {
                continue;
            }
            all.of.insert(words[0], all.words);
            for (i, unit) in words.chunks(UNIT_WORDS as usize).enumerate() {
                // Eight neighbouring columns form one MMA fragment.
                let place = all.words + of.place(0, 8 * i as i64)[0] * UNIT_WORDS;
                all.units.entry(unit[0]).or_default().push(place);
            }
            all.strides = [of.place(UNIT, 0), of.place(0, 1)].map(|[units, _]| units * UNIT_WORDS);
            all.words += of.shared_units() * UNIT_WORDS;
        }
        all
    }
    /// Returns whether there are no columns.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
    fn bytes(&self) -> i64 {
        4 * self.words * self.groups.iter().map(|t| t.1).product::<i64>()
    }
}

/// Returns the multi-warp MMA fragment of a product, if it has one.
pub fn group(g: &Graph, product: Id) -> Option<&'static Fragment> {
    Some(&g[product])
        .filter(|n| n.op == Op::MmaHalf)
        .and_then(Fragment::of_product)
        .filter(|of| of.is_of_group())
}

impl Ring {
    /// Returns the ring of the loop that begins at `first`; `None` if the loop does not qualify.
    fn from_loop(
        g: &Graph,
        statements: &[Statement],
        first: usize,
        threads: &[(Id, i64)],
        most_carried: i64,
    ) -> Option<Ring> {
        let Statement::Loop { range, .. } = statements[first] else {
            return None;
        };
        let end = first + end_of_block(&statements[first..]);
        let inside = &statements[first + 1..end];
        let count = g.int_value(g[range].src[0]).filter(|&n| n > 1)?;
        let unpacks = inside
            .iter()
            .any(|s| matches!(s, Statement::Define(id) if g[*id].op == Op::ScaledPair));
        if g.range_kind(range) != Some(RangeKind::Reduce)
            || inside.iter().any(Statement::opens)
            || !unpacks
        {
            return None;
        }
        let columns = Columns::from_products(g, inside);
        let mut ring = Ring {
            first,
            end,
            range,
            count,
            copied: vec![],
            carried: vec![],
            columns,
        };
        let (mut left, mut units) = (most_carried, Vec::new());
        for (statement, s) in statements.iter().enumerate().take(end).skip(first + 1) {
            let Some(at) = moving(g, s, range) else {
                continue;
            };
            if let Statement::Wide(_, _, bytes, parts) = s
                && *bytes as i64 == BYTES
            {
                let (own, others) = threads
                    .iter()
                    .partition(|t| g.free_ranges(at).contains(&t.0));
                let single = |unit| Family {
                    statements: vec![statement],
                    stride: 0,
                    unit,
                    own,
                    others,
                };
                match ring.columns.units.get(&parts[0].0) {
                    None => ring.copied.push(single(None)),
                    Some(places) => units.push((single(None), places.clone())),
                }
            } else if s.words(g) <= left {
                left -= s.words(g);
                ring.carried.push(statement);
            }
        }
        ring.copy_units(units, threads);
        ring.copied = families(g, statements, ring.copied);
        (!ring.copied.is_empty()).then_some(ring)
    }
    /// Adds copies of column units, each with its positions. A lane fills its own part of
    /// every position, even where all lanes load the last column; this happens only with
    /// fewer tokens than columns.
    fn copy_units(&mut self, units: Vec<(Family, Vec<i64>)>, threads: &[(Id, i64)]) {
        let is_own = |t: &(Id, i64)| units.iter().any(|(load, _)| load.own.contains(t));
        let (own, others): (Vec<_>, Vec<_>) = threads.iter().partition(|t| is_own(t));
        // The last two ranges are the digits of a lane.
        self.columns.groups = own[..own.len().saturating_sub(2)].to_vec();
        for (load, places) in units {
            self.copied.extend(places.into_iter().map(|at| Family {
                statements: load.statements.clone(),
                stride: 0,
                unit: Some(Unit { at, stride: 0 }),
                own: own.clone(),
                others: others.clone(),
            }));
        }
    }
    /// Returns the bytes of an iteration's slot.
    pub fn bytes(&self) -> i64 {
        self.columns_at() + self.columns.bytes()
    }
    /// Returns the byte offset of the columns for asynchronous MMA products within a slot.
    pub fn columns_at(&self) -> i64 {
        let before: i64 = self
            .copied
            .iter()
            .filter(|f| f.unit.is_none())
            .map(Family::bytes)
            .sum();
        if self.columns.is_empty() {
            before
        } else {
            whole_swizzles(before)
        }
    }
    /// Returns whether threads read data that other threads have copied.
    pub fn is_shared(&self) -> bool {
        self.copied.iter().any(|c| !c.others.is_empty())
    }
}

impl Family {
    /// Returns the bytes of one member, over all threads.
    pub fn bytes_of_one(&self) -> i64 {
        BYTES * self.own.iter().map(|t| t.1).product::<i64>()
    }
    pub fn bytes(&self) -> i64 {
        self.bytes_of_one() * self.statements.len() as i64
    }
    /// Returns how many threads load the same data.
    pub fn sharing(&self) -> i64 {
        self.others.iter().map(|t| t.1).product()
    }
}

/// A buffer, and the variable terms of an address in it.
type Base = (Id, Vec<(Id, i64)>);

/// Joins single loads to families that the threads with equal loads can divide among them.
fn families(g: &Graph, statements: &[Statement], single: Vec<Family>) -> Vec<Family> {
    let place = |f: &Family| match &statements[f.statements[0]] {
        Statement::Wide(buffer, at, ..) => (*buffer, g.linear(*at)),
        s => unreachable!("a wide load: {s:?}"),
    };
    let mut by: Vec<(Base, Vec<(i64, Family)>)> = Vec::new();
    for f in single {
        let (buffer, at) = place(&f);
        let key = (buffer, at.terms.to_vec());
        match by.iter_mut().find(|b| b.0 == key) {
            Some(of) => of.1.push((at.constant, f)),
            None => by.push((key, vec![(at.constant, f)])),
        }
    }
    let mut out = Vec::new();
    for (_, mut of) in by {
        of.sort_by_key(|f| f.0);
        let stride = if of.len() > 1 { of[1].0 - of[0].0 } else { 0 };
        let place = |f: &(i64, Family)| f.1.unit.map_or(0, |unit| unit.at);
        let stride_there = if of.len() > 1 {
            place(&of[1]) - place(&of[0])
        } else {
            0
        };
        let alike = |w: &[(i64, Family)]| {
            w[1].0 - w[0].0 == stride
                && place(&w[1]) - place(&w[0]) == stride_there
                && w[0].1.unit.is_some() == w[1].1.unit.is_some()
        };
        let evenly = of.windows(2).all(alike);
        // The family's size divides the number of threads with equal loads.
        let size = if evenly {
            gcd(of.len() as i64, of[0].1.sharing())
        } else {
            1
        };
        let mut rest = of.into_iter().map(|f| f.1);
        while let Some(mut first) = rest.next() {
            first.statements.extend(
                rest.by_ref()
                    .take(size as usize - 1)
                    .flat_map(|f| f.statements),
            );
            let unit = first.unit.map(|unit| Unit {
                stride: stride_there,
                ..unit
            });
            out.push(Family {
                stride,
                unit,
                ..first
            });
        }
    }
    out
}

/// Returns the address of a load from memory, if it changes in each iteration and
/// is known in advance.
fn moving(g: &Graph, s: &Statement, range: Id) -> Option<Id> {
    let (buffer, at) = match s {
        Statement::Wide(buffer, at, ..) => (*buffer, *at),
        Statement::Define(id) if g[*id].op == Op::Load => (g[*id].src[0], g[*id].src[1]),
        _ => return None,
    };
    let moves = |id: Id| g.free_ranges(id).contains(&range);
    let computed = |id: Id| {
        matches!(
            g[id].op,
            Op::Load | Op::Reduce | Op::Fold | Op::Acc | Op::Mma | Op::MmaHalf
        )
    };
    let known = || {
        g.toposort(&[at])
            .into_iter()
            .all(|n| !(computed(n) && moves(n)))
    };
    (g[buffer].op == Op::Param && moves(at) && known()).then_some(at)
}

/// Returns the thread ranges with their counts, outermost first; `None` unless they
/// number all threads uniquely.
fn all_threads(g: &Graph, counted: &[ThreadIndex], threads: i64) -> Option<Vec<(Id, i64)>> {
    let mut sorted: Vec<&ThreadIndex> = counted.iter().collect();
    sorted.sort_by_key(|t| t.stride());
    let (mut all, mut stride) = (vec![], 1);
    for t in sorted {
        let count = g
            .int_value(g[t.range].src[0])
            .filter(|_| t.stride() == stride)?;
        all.push((t.range, count));
        stride *= count;
    }
    all.reverse();
    (stride == threads).then_some(all)
}

/// Returns the loops of a body with loads that become copies.
pub fn rings(g: &Graph, statements: &[Statement], target: &Target) -> Vec<Ring> {
    let carried = target.machine.gpu_facts().carried_registers;
    let mut out = Vec::new();
    let mut counted = None;
    for (at, s) in statements.iter().enumerate() {
        match s {
            Statement::Nest { threads: t, .. } => {
                counted = all_threads(g, t, target.threads as i64)
            }
            Statement::Loop { .. } => {
                out.extend(
                    counted
                        .as_ref()
                        .and_then(|threads| Ring::from_loop(g, statements, at, threads, carried)),
                );
            }
            _ => {}
        }
    }
    out
}

/// Returns whether each unpacked MMA fragment is used in several products.
fn is_reused(g: &Graph, statements: &[Statement]) -> bool {
    let mut products = statements.iter().filter_map(|s| match s {
        Statement::Accumulate(_, value) => Fragment::of_product(&g[*value]),
        _ => None,
    });
    let unpacked =
        |s: &&Statement| matches!(s, Statement::Define(id) if g[*id].op == Op::ScaledPair);
    let Some(of) = products.next() else {
        return false;
    };
    if of.is_of_group() {
        return true;
    }
    let fragments = statements.iter().filter(unpacked).count() as i64 / of.first.registers();
    1 + products.count() as i64 > fragments
}

/// Resources that a body's pipelined loops require.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Shared memory per iteration, in bytes.
    pub bytes: i64,
    /// Iterations of the longest loop.
    pub longest: i64,
    /// Registers for carried loads.
    pub carried: i64,
    /// Whether each unpacked MMA fragment is used in several products.
    pub reused: bool,
    /// Whether there are asynchronous MMA products, which read only copied data.
    pub needed: bool,
}

impl Wanted {
    /// Combines the requirements of two bodies, of which a workgroup runs one.
    pub fn and(self, other: Wanted) -> Wanted {
        let bytes = self.bytes.max(other.bytes);
        let (longest, carried) = (
            self.longest.max(other.longest),
            self.carried.max(other.carried),
        );
        Wanted {
            bytes,
            longest,
            carried,
            reused: self.reused && other.reused,
            needed: self.needed || other.needed,
        }
    }
}

/// Returns the requirements of a body's pipelined loops; `None` if it has none.
pub fn wanted(g: &Graph, body: &Code, target: &Target) -> Option<Wanted> {
    let rings = rings(g, &body.statements, target);
    let longest = rings.iter().map(|r| r.count).max()?;
    let carried = |r: &Ring| {
        r.carried
            .iter()
            .map(|&at| body.statements[at].words(g))
            .sum()
    };
    let carried = rings.iter().map(carried).max().unwrap_or(0);
    let reused = rings
        .iter()
        .all(|r| is_reused(g, &body.statements[r.first..r.end]));
    let needed = rings.iter().any(|r| !r.columns.is_empty());
    Some(Wanted {
        bytes: rings.iter().map(Ring::bytes).sum(),
        longest,
        carried,
        reused,
        needed,
    })
}
