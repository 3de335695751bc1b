//! Coalesces neighbouring loads of a thread into aligned loads of 8 or 16 bytes. Neighbouring
//! writes are coalesced likewise, also to single words.

use crate::lower::linear_ir::{Addition, Statement};
use gristmill_uop::{Graph, Id, Op, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};

/// Bytes of wide accesses, the widest first.
const WIDTHS: [i64; 2] = [16, 8];
/// Bytes per register; narrower values are written together up to this size.
const BYTES_OF_REGISTER: i64 = 4;

/// A load's address in bytes: variable terms, and a constant.
struct Place {
    load: Id,
    buffer: Id,
    terms: Vec<(Id, i64)>,
    at: i64,
    bytes: i64,
}

fn place(g: &Graph, load: Id) -> Option<Place> {
    let n = &g[load];
    // Parts are extracted from 32-bit registers.
    if n.op != Op::Load || n.dtype.lanes != 1 || n.dtype.scalar.bytes() > 4 {
        return None;
    }
    let buffer = n.src[0];
    let unit = g.unit_bytes(buffer);
    let sum = g.linear(n.src[1]);
    let terms = sum.terms.iter().map(|&(t, c)| (t, c * unit)).collect();
    let (at, bytes) = (sum.constant * unit, n.dtype.scalar.bytes() as i64);
    // An unaligned scale may span two words.
    (at.rem_euclid(BYTES_OF_REGISTER) + bytes <= BYTES_OF_REGISTER).then_some(Place {
        load,
        buffer,
        terms,
        at,
        bytes,
    })
}

/// Coalesces the loads of straight-line code, and then the writes.
///
/// At most `in_flight` registers have loads in flight before the first is used.
pub fn loads(g: &Graph, statements: Vec<Statement>, in_flight: i64) -> Vec<Statement> {
    let mut out = Vec::new();
    let mut run: Vec<Statement> = Vec::new();
    for s in statements {
        // A write may alias a later read.
        if matches!(
            s,
            Statement::Loop { .. } | Statement::End | Statement::Write(..) | Statement::Add(_)
        ) {
            straight(g, std::mem::take(&mut run), in_flight, &mut out);
            out.push(s);
        } else {
            run.push(s);
        }
    }
    straight(g, run, in_flight, &mut out);
    writes(g, out)
}

/// Coalesces consecutive writes to the same buffer.
fn writes(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let mut out = Vec::new();
    let mut rest = statements.into_iter().peekable();
    while let Some(s) = rest.next() {
        let s = match s {
            Statement::Add(first) => {
                let second =
                    rest.next_if(|s| matches!(s, Statement::Add(a) if are_a_word(g, &first, a)));
                let both = second.and_then(|s| {
                    if let Statement::Add(a) = s {
                        Some(a.values)
                    } else {
                        None
                    }
                });
                let values = first
                    .values
                    .iter()
                    .copied()
                    .chain(both.into_iter().flatten())
                    .collect();
                out.push(Statement::Add(Addition { values, ..first }));
                continue;
            }
            s => s,
        };
        let Statement::Write(first, ..) = s else {
            out.push(s);
            continue;
        };
        let mut run = vec![s];
        while let Some(next) = rest.next_if(|s| matches!(s, Statement::Write(b, ..) if *b == first))
        {
            run.push(next);
        }
        joined(g, first, run, &mut out);
    }
    out
}

/// Returns whether two additions go to the two halves of a word, under the same condition.
fn are_a_word(g: &Graph, a: &Addition, b: &Addition) -> bool {
    let of = |a: &Addition| (a.buffer, a.when, a.atomic, a.values.len());
    let (first, second) = (g.linear(a.at), g.linear(b.at));
    let halves =
        g.scalar(a.buffer) == Scalar::F16 && a.atomic && a.values.len() == 1 && of(a) == of(b);
    let even = first.constant % 2 == 0 && first.terms.iter().all(|t| t.1 % 2 == 0);
    halves && even && second.terms == first.terms && second.constant == first.constant + 1
}

/// Joins writes to one buffer, in order: each takes as many neighbours as its
/// widest aligned write holds.
fn joined(g: &Graph, buffer: Id, run: Vec<Statement>, out: &mut Vec<Statement>) {
    let unit = g.unit_bytes(buffer);
    let plain = |v: Id| {
        g[v].dtype.lanes == 1 && g.scalar(v) == g.scalar(buffer) && matches!(unit, 1 | 2 | 4)
    };
    let parts: Vec<(Id, Id)> = run
        .iter()
        .filter_map(|s| {
            if let Statement::Write(_, at, v) = s {
                Some((*at, *v))
            } else {
                None
            }
        })
        .collect();
    let sums: Vec<_> = parts.iter().map(|p| g.linear(p.0)).collect();
    let mut done = vec![false; parts.len()];
    for i in 0..parts.len() {
        if done[i] {
            continue;
        }
        let aligned = |width: i64| {
            sums[i].constant * unit % width == 0
                && sums[i].terms.iter().all(|&(_, c)| c * unit % width == 0)
        };
        let wide = WIDTHS
            .into_iter()
            .chain([BYTES_OF_REGISTER])
            .filter(|&w| w > unit && aligned(w))
            .find_map(|width| {
                (0..width / unit)
                    .map(|n| {
                        let is_it = |j: &usize| {
                            let same = sums[*j].terms == sums[i].terms
                                && sums[*j].constant == sums[i].constant + n;
                            !done[*j] && plain(parts[*j].1) && same
                        };
                        (0..parts.len()).find(is_it)
                    })
                    .collect::<Option<Vec<usize>>>()
                    .map(|all| (width, all))
            });
        match wide {
            Some((width, all)) => {
                all.iter().for_each(|&j| done[j] = true);
                let values = all.iter().map(|&j| parts[j].1).collect();
                out.push(Statement::WideWrite(
                    buffer,
                    parts[i].0,
                    width as usize,
                    values,
                ));
            }
            None => {
                done[i] = true;
                out.push(run[i].clone());
            }
        }
    }
}

/// Emits straight-line code: coalesces its loads, and hoists loads from memory to the front, as
/// many as registers may wait for.
fn straight(g: &Graph, run: Vec<Statement>, in_flight: i64, out: &mut Vec<Statement>) {
    let groups = groups(g, &run);
    let mut of: FxHashMap<Id, usize> = FxHashMap::default();
    for (i, group) in groups.iter().enumerate() {
        of.extend(group.parts.iter().map(|p| (p.0, i)));
    }
    let here: FxHashSet<Id> = run
        .iter()
        .filter_map(|s| {
            if let Statement::Define(id) = s {
                Some(*id)
            } else {
                None
            }
        })
        .collect();
    let mut o = Order {
        g,
        groups: &groups,
        of: &of,
        here: &here,
        in_flight,
        done: FxHashSet::default(),
        out,
    };
    o.loads_first(&run);
    for (i, s) in run.iter().enumerate() {
        match s {
            Statement::Define(id) if o.done.contains(id) => {}
            Statement::Define(id) => {
                o.define(*id);
                // A subgroup reduction may feed an address.
                if g[*id].op == Op::Fold {
                    o.loads_first(&run[i + 1..]);
                }
            }
            s => o.out.push(s.clone()),
        }
    }
}

/// Loads that are coalesced into one.
struct Group {
    width: i64,
    /// The load with the group's address.
    first: Id,
    parts: Vec<(Id, usize)>,
}

/// A buffer, and the variable terms of an address in it.
type Base = (Id, Vec<(Id, i64)>);

fn groups(g: &Graph, run: &[Statement]) -> Vec<Group> {
    let mut by: FxHashMap<Base, Vec<Place>> = FxHashMap::default();
    let mut order = Vec::new();
    for s in run {
        let Statement::Define(id) = s else { continue };
        if let Some(p) = place(g, *id) {
            let key = (p.buffer, p.terms.clone());
            if !by.contains_key(&key) {
                order.push(key.clone());
            }
            by.entry(key).or_default().push(p);
        }
    }
    let mut out = Vec::new();
    for key in order {
        let mut places = by.remove(&key).unwrap_or_default();
        places.sort_by_key(|p| p.at);
        for width in WIDTHS {
            if !key.1.iter().all(|&(_, c)| c % width == 0) {
                continue;
            }
            let mut left = Vec::new();
            let mut rest = places.into_iter().peekable();
            while let Some(first) = rest.next() {
                if first.at.rem_euclid(width) != 0 {
                    left.push(first);
                    continue;
                }
                let mut parts = vec![(first.load, 0)];
                let mut covered = first.bytes;
                let begin = first.at;
                while let Some(next) =
                    rest.next_if(|p| p.at < begin + width && p.at + p.bytes <= begin + width)
                {
                    covered = covered.max(next.at + next.bytes - begin);
                    parts.push((next.load, (next.at - begin) as usize));
                }
                // Every byte must be read by some load, so that the wide load stays within the
                // buffer.
                if parts.len() > 1 && covered == width && first.bytes < width {
                    out.push(Group {
                        width,
                        first: first.load,
                        parts,
                    });
                } else {
                    left.push(first);
                    left.extend(parts[1..].iter().filter_map(|p| place(g, p.0)));
                }
            }
            places = left;
        }
    }
    out
}

/// Emits definitions, each after its operands.
struct Order<'a> {
    g: &'a Graph,
    groups: &'a [Group],
    of: &'a FxHashMap<Id, usize>,
    /// Values that this code defines.
    here: &'a FxHashSet<Id>,
    /// Maximum registers with loads in flight.
    in_flight: i64,
    done: FxHashSet<Id>,
    out: &'a mut Vec<Statement>,
}

impl Order<'_> {
    /// Returns whether the load's address needs only arithmetic and stage loads of this code.
    /// Accumulators are not known before their own position.
    fn is_early(&self, load: Id) -> bool {
        let mut stack = vec![self.of.get(&load).map_or(load, |&i| self.groups[i].first)];
        let mut first = true;
        while let Some(n) = stack.pop() {
            let node = &self.g[n];
            let waits = match node.op {
                Op::Load => self.here.contains(&n) && self.g[node.src[0]].op != Op::Local,
                op => matches!(op, Op::Reduce | Op::Fold | Op::Acc | Op::Mma | Op::MmaHalf),
            };
            if !first && waits {
                return false;
            }
            first = false;
            stack.extend(
                node.src
                    .iter()
                    .copied()
                    .filter(|s| self.here.contains(s) && !self.done.contains(s)),
            );
        }
        true
    }
    /// Defines the loads from memory among `run` that are ready.
    fn loads_first(&mut self, run: &[Statement]) {
        let mut waiting = 0;
        for s in run {
            let Statement::Define(id) = s else { continue };
            let n = &self.g[*id];
            let far = n.op == Op::Load && self.g[n.src[0]].op == Op::Param;
            if far && !self.done.contains(id) && self.is_early(*id) {
                waiting += self.of.get(id).map_or(1, |&i| self.groups[i].width / 4);
                if waiting > self.in_flight {
                    break;
                }
                self.define(*id);
            }
        }
    }
    fn define(&mut self, id: Id) {
        let group = self.of.get(&id).map(|&i| &self.groups[i]);
        // The address first: its definition may come later in the code.
        let needs = group.map_or(id, |group| group.first);
        for &s in &self.g[needs].src {
            if self.here.contains(&s) && !self.done.contains(&s) {
                self.define(s);
            }
        }
        match group {
            Some(group) => {
                self.done.extend(group.parts.iter().map(|p| p.0));
                let n = &self.g[group.first];
                self.out.push(Statement::Wide(
                    n.src[0],
                    n.src[1],
                    group.width as usize,
                    group.parts.clone(),
                ));
            }
            None => {
                self.done.insert(id);
                self.out.push(Statement::Define(id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::{RangeKind, Scalar};

    /// Bytes and values of each wide write, for four byte writes at consecutive offsets from `step`
    /// times a range; `None` for narrow writes.
    fn written(step: i64) -> Vec<Option<(usize, usize)>> {
        let mut g = Graph::new();
        let (bound, step) = (g.int(64), g.int(step));
        let (r, value) = (
            g.range(bound, 1, RangeKind::Loop),
            g.constant(Scalar::I8, 1.0),
        );
        let (buffer, at) = (g.param(0, &[], Scalar::I8), g.mul(r, step));
        let mut all = Vec::new();
        for i in 0..4 {
            let i = g.int(i);
            all.push(Statement::Write(buffer, g.add(at, i), value));
        }
        let wide = |s: &Statement| match s {
            Statement::WideWrite(_, _, bytes, values) => Some((*bytes, values.len())),
            _ => None,
        };
        writes(&g, all).iter().map(wide).collect()
    }

    #[test]
    fn neighbouring_bytes_fill_a_word_where_it_is_aligned() {
        assert_eq!(written(4), [Some((4, 4))]);
        assert_eq!(written(6), [None; 4]);
    }
}
