//! Wide loads: neighbouring loads of a thread become one of 8 or 16 bytes, where the address is known to be aligned.

use super::linear::Statement;
use gristmill_uop::{Arg, Graph, Id, Op};
use rustc_hash::{FxHashMap, FxHashSet};

/// Bytes of a wide load, the widest first.
const WIDTHS: [i64; 2] = [16, 8];

/// A load's address in bytes: what varies, and a constant.
struct Place {
    load: Id,
    buffer: Id,
    terms: Vec<(Id, i64)>,
    at: i64,
    bytes: i64,
}

fn place(g: &Graph, load: Id) -> Option<Place> {
    let n = &g[load];
    // Parts are taken from words.
    if n.op != Op::Load || n.dtype.lanes != 1 || n.dtype.scalar.bytes() > 4 {
        return None;
    }
    let buffer = n.src[0];
    let unit = match g[buffer].arg {
        Arg::Packed(..) => 1,
        _ => g.scalar(buffer).bytes() as i64,
    };
    let sum = g.linear(n.src[1]);
    let terms = sum.terms.iter().map(|&(t, c)| (t, c * unit)).collect();
    Some(Place { load, buffer, terms, at: sum.constant * unit, bytes: n.dtype.scalar.bytes() as i64 })
}

/// `statements` with neighbouring loads of straight code joined.
pub fn loads(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let mut out = Vec::new();
    let mut run: Vec<Statement> = Vec::new();
    for s in statements {
        // A write may be to what is read after it.
        if matches!(s, Statement::Loop(_) | Statement::End | Statement::Write(..)) {
            straight(g, std::mem::take(&mut run), &mut out);
            out.push(s);
        } else {
            run.push(s);
        }
    }
    straight(g, run, &mut out);
    out
}

/// One stretch without loops.
fn straight(g: &Graph, run: Vec<Statement>, out: &mut Vec<Statement>) {
    let groups = groups(g, &run);
    if groups.is_empty() {
        out.extend(run);
        return;
    }
    let mut of: FxHashMap<Id, usize> = FxHashMap::default();
    for (i, group) in groups.iter().enumerate() {
        of.extend(group.parts.iter().map(|p| (p.0, i)));
    }
    let defined_here: FxHashSet<Id> =
        run.iter().filter_map(|s| if let Statement::Define(id) = s { Some(*id) } else { None }).collect();
    let mut done: FxHashSet<Id> = FxHashSet::default();
    for s in run {
        let Statement::Define(id) = s else {
            out.push(s);
            continue;
        };
        if !done.contains(&id) {
            define(g, id, &groups, &of, &defined_here, &mut done, out);
        }
    }
}

/// Loads that become one.
struct Group {
    width: i64,
    /// The load whose address is the group's.
    first: Id,
    parts: Vec<(Id, usize)>,
}

fn groups(g: &Graph, run: &[Statement]) -> Vec<Group> {
    let mut by: FxHashMap<(Id, Vec<(Id, i64)>), Vec<Place>> = FxHashMap::default();
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
                while let Some(next) = rest.next_if(|p| p.at < begin + width && p.at + p.bytes <= begin + width) {
                    covered = covered.max(next.at + next.bytes - begin);
                    parts.push((next.load, (next.at - begin) as usize));
                }
                // All of it is read, so that nothing outside the buffer is.
                if parts.len() > 1 && covered == width && first.bytes < width {
                    out.push(Group { width, first: first.load, parts });
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

fn define(
    g: &Graph,
    id: Id,
    groups: &[Group],
    of: &FxHashMap<Id, usize>,
    here: &FxHashSet<Id>,
    done: &mut FxHashSet<Id>,
    out: &mut Vec<Statement>,
) {
    let group = of.get(&id).map(|&i| &groups[i]);
    // The address first: it may come later in the stretch.
    let needs = group.map_or(id, |group| group.first);
    for &s in &g[needs].src {
        if here.contains(&s) && !done.contains(&s) {
            define(g, s, groups, of, here, done, out);
        }
    }
    match group {
        Some(group) => {
            done.extend(group.parts.iter().map(|p| p.0));
            let n = &g[group.first];
            out.push(Statement::Wide(n.src[0], n.src[1], group.width as usize, group.parts.clone()));
        }
        None => {
            done.insert(id);
            out.push(Statement::Define(id));
        }
    }
}
