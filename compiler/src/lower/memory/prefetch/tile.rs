//! Prefetches the next tile of a KV cache on CPUs while the current one is processed.
//!
//! Consecutive workgroups read the same tile (groups of heads) or the next one. Each prefetches its
//! share of the next tile, a few lines per iteration of the loops around its sums, so that memory
//! is read continuously and no line twice.

use crate::lower::linear_ir::{Code, Statement, TilePrefetch};
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};

/// Minimum bytes of a tile. A smaller one was just written by an earlier kernel, or is loaded by
/// the first misses. Not measured.
const MIN_BYTES_OF_TILE: i64 = 32 << 10;
const LINE: i64 = 64;
/// Maximum lines prefetched per iteration. Not measured: more than a core's miss queue holds would
/// delay its demand loads.
const MAX_LINES_OF_TURN: i64 = 32;

/// Maximum number of workgroups between prefetch and use for the lines to stay cached. The
/// number was not measured; in a prompt, where all tokens share the tile between, prefetch did
/// not pay (`docs/experiments/010`).
pub(super) const MAX_WORKGROUPS_BETWEEN: i64 = 8;

/// Prefetch plan of one tile.
pub(super) struct CacheTile {
    pub lines: TilePrefetch,
    /// Loops, outermost first; the innermost issues the prefetches.
    loops: Vec<Id>,
    /// Workgroup indices that share the tile.
    sharing: Vec<Id>,
    /// Bytes that the loops read.
    read: i64,
}

impl CacheTile {
    /// Returns the loop that issues the prefetches in each iteration.
    pub fn innermost(&self) -> Option<Id> {
        self.loops.last().copied()
    }
}

/// Plans the prefetch of the next tile for every cache that a body reads in tiles. The nest that
/// reads most of a cache prefetches it.
pub(super) fn plan(g: &Graph, code: &Code) -> Vec<CacheTile> {
    let mut out: Vec<CacheTile> = Vec::new();
    let mut open: Vec<Option<Id>> = Vec::new();
    // Workgroup indices of the open stage's nest, which is skipped when none of them has changed.
    let mut depends: Option<&[Id]> = None;
    for s in &code.statements {
        match s {
            Statement::Nest {
                staged, globals, ..
            } => {
                open.push(None);
                depends = staged.then_some(globals);
            }
            Statement::Loop { range, .. } => {
                open.push(Some(*range).filter(|&r| g.range_kind(r) == Some(RangeKind::Loop)));
            }
            Statement::End => drop(open.pop()),
            Statement::Define(id) => {
                let loops: Vec<Id> = open.iter().flatten().copied().collect();
                let Some(new) = tile(g, code, *id, loops) else {
                    continue;
                };
                // A stage shared by workgroups is filled by the first one only; the others would
                // not prefetch their share.
                if depends.is_some_and(|d| !new.sharing.iter().all(|r| d.contains(r))) {
                    continue;
                }
                match out
                    .iter_mut()
                    .find(|a| a.lines.buffer == new.lines.buffer && a.loops == new.loops)
                {
                    Some(a) => a.read += new.read,
                    None => out.push(new),
                }
            }
            _ => {}
        }
    }
    out.sort_by_key(|a| (a.lines.buffer, -a.read));
    out.dedup_by_key(|a| a.lines.buffer);
    out
}

/// Returns the plan for one load.
fn tile(g: &Graph, code: &Code, load: Id, loops: Vec<Id>) -> Option<CacheTile> {
    let n = &g[load];
    let narrow = n.dtype.scalar.bytes() <= 2;
    if n.op != Op::Load
        || n.dtype.lanes == 1
        || !narrow
        || !matches!(g[n.src[0]].arg, Arg::Param(_))
    {
        return None;
    }
    let size = n.dtype.scalar.bytes() as i64;
    let known = |r: Id| g.int_value(g[r].src[0]);
    let mut inside = g.linear(n.src[1]);
    let at = code
        .globals
        .iter()
        .rposition(|&r| inside.coefficient(r) != 0)?;
    let (last, sharing) = (code.globals[at], code.globals[at + 1..].to_vec());
    let stride = inside.coefficient(last);
    let mut terms = Vec::new();
    inside.terms.retain(|&mut (t, c)| {
        let outside = g.free_ranges(t).iter().all(|r| code.globals.contains(r));
        if outside {
            terms.push((t, c));
        }
        !outside
    });
    // Consecutive tiles: the reads lie within one stride.
    let (low, high) = g.linear_bounds(&inside)?;
    if inside.terms.iter().any(|&(t, _)| g[t].op != Op::Range)
        || high - low >= stride
        || stride * size < MIN_BYTES_OF_TILE
    {
        return None;
    }
    let turns = |ranges: &[Id]| {
        ranges
            .iter()
            .try_fold(1i64, |n, &r| n.checked_mul(known(r)?))
    };
    let shares = turns(&sharing)?;
    let line = LINE / size;
    let lines = (stride + line * shares * turns(&loops)? - 1) / (line * shares * turns(&loops)?);
    if loops.is_empty() || shares > MAX_WORKGROUPS_BETWEEN || lines > MAX_LINES_OF_TURN {
        return None;
    }
    let read = inside
        .terms
        .iter()
        .try_fold(size, |n, &(r, _)| n.checked_mul(known(r)?))?;
    let turn = sharing.iter().chain(&loops).copied().collect();
    let lines = TilePrefetch {
        buffer: n.src[0],
        terms,
        from: low + stride,
        turn,
        line,
        lines,
    };
    Some(CacheTile {
        lines,
        loops,
        sharing,
        read,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::Scalar;
    use gristmill_uop::dtype::DType;

    /// Plans for workgroups (8 chunks × 4 head groups) that each read `rows` rows of 576 f16
    /// values. The reads are in a stage that depends on `staged` of the two indices, or in no
    /// stage.
    fn plans(rows: i64, staged: Option<usize>) -> Vec<(usize, i64, i64)> {
        let mut g = Graph::new();
        let mut number = 0;
        let mut range = |g: &mut Graph, bound: i64, kind| {
            number += 1;
            let bound = g.int(bound);
            g.range(bound, number, kind)
        };
        let (chunk, heads) = (
            range(&mut g, 8, RangeKind::Global),
            range(&mut g, 4, RangeKind::Global),
        );
        let (row, word) = (
            range(&mut g, rows, RangeKind::Loop),
            range(&mut g, 36, RangeKind::Reduce),
        );
        let cache = g.param(0, &[], Scalar::F16);
        let mut at = g.int(0);
        for (r, step) in [(chunk, rows * 576), (row, 576), (word, 16)] {
            let step = g.int(step);
            let part = g.mul(r, step);
            at = g.add(at, part);
        }
        let load = g.load(
            cache,
            at,
            DType {
                scalar: Scalar::F16,
                lanes: 16,
            },
        );
        let globals = vec![chunk, heads];
        let depends = globals[..staged.unwrap_or(2)].to_vec();
        let nest = Statement::Nest {
            buffer: cache,
            staged: staged.is_some(),
            globals: depends,
            threads: vec![],
        };
        let open = |range| Statement::Loop {
            range,
            step: 1,
            unroll: None,
        };
        let body = [nest, open(row), open(word), Statement::Define(load)];
        let ends = [Statement::End, Statement::End, Statement::End];
        let code = Code {
            globals,
            statements: body.into_iter().chain(ends).collect(),
            ..Code::default()
        };
        plan(&g, &code)
            .iter()
            .map(|a| (a.sharing.len(), a.lines.line, a.lines.lines))
            .collect()
    }

    #[test]
    fn workgroups_that_share_a_tile_share_the_asking() {
        // 73,728 f16 values are 2,304 lines, for 4 head groups with 128 iterations each.
        assert_eq!(plans(128, None), [(1, 32, 5)]);
        assert_eq!(plans(128, Some(2)), [(1, 32, 5)]);
        // The first head group fills the stage for all; the others skip the nest.
        assert!(plans(128, Some(1)).is_empty());
        // 18 KB are loaded by the first misses.
        assert!(plans(16, None).is_empty());
    }
}
