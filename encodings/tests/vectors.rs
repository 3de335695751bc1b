//! Checks the shape of decode expressions that vector code generation relies on. For a fixed group
//! of 16, only two things may depend on the lane: byte loads at consecutive offsets, and shifts of
//! one 32-bit field.

use gristmill_encodings::TABLE;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::op::{Op, RangeKind};
use gristmill_uop::{Arg, Graph, Id, Node};

/// Decodes element `32*a + 16*u + lane` of a block, where `a` is a constant or a range.
fn decoded(e: EncodingRef, a: Option<i64>, u: i64) -> (Graph, Id, Id) {
    let mut g = Graph::new();
    let g_ = &mut g;
    let buffer = g_.intern(Node {
        op: Op::Param,
        dtype: Scalar::F32.one(),
        src: Default::default(),
        arg: Arg::Packed(0, e),
    });
    let (many, sixteen) = (g_.int(1000), g_.int(16));
    let block = g_.range(many, 0, RangeKind::Loop);
    let lane = g_.range(sixteen, 1, RangeKind::VectorReduce);
    let bytes = g_.int(e.bytes as i64);
    let base = g_.mul(block, bytes);
    let groups = g_.int(e.elements as i64 / 32);
    let a = match a {
        Some(a) => g_.int(a),
        None => g_.range(groups, 2, RangeKind::Reduce),
    };
    let thirty_two = g_.int(32);
    let mut k = g_.mul(a, thirty_two);
    let u = g_.int(16 * u);
    k = g_.add(k, u);
    k = g_.add(k, lane);
    let value = e.decode(&mut g, buffer, base, k);
    (g, value, lane)
}

fn check(e: EncodingRef, a: Option<i64>, u: i64) -> Result<(), String> {
    let (g, value, lane) = decoded(e, a, u);
    for id in g.toposort(&[value]) {
        let node = &g[id];
        let on_lane = g.any(id, |n, _| n == lane);
        match node.op {
            Op::Load if on_lane => {
                let offset = g.linear(node.src[1]);
                let rest = offset
                    .terms
                    .iter()
                    .any(|&(t, _)| t != lane && g.any(t, |n, _| n == lane));
                if offset.coefficient(lane) != 1 || rest {
                    return Err(format!("{} {a:?} {u}: offset {offset:?}", e.name));
                }
            }
            Op::IDiv | Op::Mod | Op::Lt if on_lane => {
                return Err(format!("{} {a:?} {u}: {node:?}", e.name));
            }
            Op::Where | Op::IDiv | Op::Mod | Op::Lt if a.is_some() && e.name != "mxfp4" => {
                return Err(format!("{} {a:?} {u}: {node:?} does not fold", e.name));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Formats that group elements by fewer than 16: by grid point, by eight, or finally by four.
///
/// In the file layout a quantity that varies within a vector is packed lane by lane, once for all
/// lanes that share it. The interleaved layout stores their codes like those of the other formats.
const NARROW: &[&str] = &[
    "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m", "tq1_0", "nvfp4",
];

fn of_sixteen() -> impl Iterator<Item = EncodingRef> {
    TABLE
        .iter()
        .copied()
        .filter(|e| e.elements > 1 && !NARROW.contains(&e.name))
}

#[test]
fn given_group() {
    for e in of_sixteen() {
        for a in 0..e.elements as i64 / 32 {
            for u in 0..2 {
                check(e, Some(a), u).unwrap();
            }
        }
    }
}

#[test]
fn any_group() {
    for e in of_sixteen() {
        for u in 0..2 {
            check(e, None, u).unwrap();
        }
    }
}
