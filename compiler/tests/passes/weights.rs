//! Weight layouts: elements read in a layout, and the repacking kernel.

use crate::case::Case;
use crate::context::{encoding, layout};
use crate::judge::{Applied, Claim, Meaning};
use crate::kernels::{Kernels, LaidOut, ranges};
use gristmill_compiler::testing::{self, Packing};
use gristmill_uop::{Graph, Id, RangeKind, text};

/// Elements of a weight in a layout, at the row and column of the two roots.
pub fn layout_of(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let &[row, k] = &p.roots[..] else {
        return Err("two roots: a row and an element of it".into());
    };
    let mut g = p.graph;
    let (after, claim) = same_elements(case, &mut g, row, k)?;
    Ok(Applied {
        text: text::print(&g, &[after]),
        claim,
    })
}

/// The element as read in the layout, and the claim that it equals the file's.
fn same_elements(case: &Case, g: &mut Graph, row: Id, k: Id) -> Result<(Id, Claim), String> {
    let (e, layout) = (
        encoding(case)?,
        layout(case.get("layout").ok_or("no `layout`")?)?,
    );
    let columns = case.parsed::<i64>("columns")?.ok_or("no `columns`")?;
    let packing = Packing::for_encoding(e).ok_or("a format that is not taken apart")?;
    let file = g.packed(0, &[columns], e);
    let (elements, bytes) = (g.int(e.elements as i64), g.int(e.bytes as i64));
    let row_bytes = g.int(columns / e.elements as i64 * e.bytes as i64);
    let (block, within) = (g.idiv(k, elements), g.modulo(k, elements));
    let (start, block) = (g.mul(row, row_bytes), g.mul(block, bytes));
    let base = g.add(start, block);
    let before = e.decode(g, file, base, within);
    let packed = g.intern(gristmill_uop::Node {
        src: Default::default(),
        ..g[file].clone()
    });
    let place = packing.place(g, layout, row, k, columns);
    let after = packing.decode(g, packed, &place);
    let rows = g.max_of(row) + 1;
    let dims = vec![
        (rows as u64).next_multiple_of(layout.lanes() as u64) as i64,
        columns,
    ];
    let laid_out = LaidOut {
        slot: 0,
        encoding: e,
        layout,
        dims,
    };
    let all = ranges(g, &[row, k]);
    let old = Kernels::of_values(g.clone(), &[before], &all);
    let new = Kernels {
        layouts: vec![laid_out],
        ..Kernels::of_values(g.clone(), &[after], &all)
    };
    Ok((
        after,
        Claim::same(Meaning::Kernels(old), Meaning::Kernels(new)),
    ))
}

/// The repacking kernel: elements read in the new layout must equal those of the file.
pub fn prepack(case: &Case) -> Result<Applied, String> {
    let (e, target) = (encoding(case)?, case.target()?);
    let layout = layout(case.get("layout").ok_or("no `layout`")?)?;
    let columns = case.parsed::<i64>("columns")?.ok_or("no `columns`")?;
    let packing = Packing::for_encoding(e).ok_or("a format that is not taken apart")?;
    let rows = testing::PackedRows {
        encoding: e,
        packing: &packing,
        from: testing::Layout::File,
        layout,
        columns: columns as usize,
        part: None,
    };
    let program = testing::prepack(&rows, &target, None);
    let mut g = Graph::new();
    let [rows, all] = [3 * layout.lanes(), columns].map(|n| g.int(n));
    let (row, k) = (
        g.range(rows, 1, RangeKind::Loop),
        g.range(all, 2, RangeKind::Loop),
    );
    let (_, claim) = same_elements(case, &mut g, row, k)?;
    let bodies = program.graph[program.root].src.clone();
    let nests: Vec<Id> = bodies
        .iter()
        .flat_map(|&b| program.graph[b].src.to_vec())
        .collect();
    Ok(Applied {
        text: text::print(&program.graph, &nests),
        claim,
    })
}
