//! Breaks each rule of nodes.

use super::super::nodes;
use super::World;
use crate::lower::linear_ir::Statement::Accumulator;
use gristmill_uop::fragment::{AMX_BF16, COOPERATIVE_16, MMA_BF16, WGMMA_16};
use gristmill_uop::{Arg, DType, Id, Op, ReduceOp, Scalar};
use smallvec::SmallVec;

/// A rule, whether the nest has threads, and a node that violates the rule,
/// built from scalar constants.
type Wrong = (&'static str, bool, fn(&mut World) -> Id);

const WRONG: &[Wrong] = &[
    (
        "only scalars and vectors, elementwise ops, loads and linear ops",
        false,
        |w| w.sum,
    ),
    ("operands are values", false, |w| {
        w.node(Op::Neg, Scalar::F32, &[w.x], Arg::None)
    }),
    ("as many lanes as the operands", false, |w| {
        let (word, none) = (w.g.int_of(Scalar::U32, 1), w.g.int_of(Scalar::I32, 0));
        w.node(
            Op::Dot4,
            Scalar::I32.one().with_lanes(4),
            &[word, word, none],
            Arg::Int(15),
        )
    }),
    (
        "an integer index within a table, and a result of i32 or f32",
        false,
        |w| {
            let index = w.g.int(3);
            w.node(
                Op::Table,
                Scalar::I32,
                &[index],
                Arg::Ints([1, 2, 3].into()),
            )
        },
    ),
    (
        "the buffer's type (any if packed), a word of 8- or 16-bit elements, or the low word of an i64, at an offset",
        false,
        |w| w.node(Op::Load, Scalar::F16, &[w.x, w.group], Arg::None),
    ),
    (
        "with threads, only MMA accumulators are vectors",
        true,
        |w| {
            w.node(
                Op::Load,
                Scalar::F32.one().with_lanes(4),
                &[w.x, w.group],
                Arg::None,
            )
        },
    ),
    ("a vector of integers", false, |w| {
        w.node(Op::Lanes, Scalar::I64, &[], Arg::None)
    }),
    ("one value of the vector's type", false, |w| {
        let one = w.g.int(1);
        w.node(
            Op::Splat,
            Scalar::F32.one().with_lanes(4),
            &[one],
            Arg::None,
        )
    }),
    ("a value of the vector's type for each lane", false, |w| {
        let one = w.g.int(1);
        w.node(
            Op::Pack,
            Scalar::I64.one().with_lanes(4),
            &[one, one],
            Arg::None,
        )
    }),
    (
        "reduces a vector, or one value per thread of a range, to a scalar of their type",
        true,
        |w| {
            let one = w.g.f32(1.0);
            w.node(
                Op::Fold,
                Scalar::F32,
                &[one, w.row],
                Arg::Reduce(ReduceOp::Add, SmallVec::new()),
            )
        },
    ),
    (
        "with threads, a lower bound is applied before the upper one",
        true,
        |w| {
            let (last, none) = (w.g.int(6), w.g.int(0));
            let most = w.g.min(w.group, last);
            w.node(Op::Max, Scalar::I64, &[most, none], Arg::None)
        },
    ),
    ("an MMA needs threads", false, |w| {
        let one = w.g.int_of(Scalar::U32, 1);
        w.node(
            Op::Mma,
            Scalar::I32.one().with_lanes(4),
            &[one; 3],
            Arg::None,
        )
    }),
    (
        "words of an int8 MMA fragment, and its accumulators",
        true,
        |w| {
            let one = w.g.int_of(Scalar::U32, 1);
            w.node(
                Op::Mma,
                Scalar::I32.one().with_lanes(4),
                &[one; 4],
                Arg::None,
            )
        },
    ),
    (
        "words of a 16-bit MMA fragment, added to its accumulators",
        true,
        |w| {
            let one = w.g.int_of(Scalar::U32, 1);
            w.node(
                Op::MmaHalf,
                Scalar::F32.one().with_lanes(4),
                &[one; 7],
                Arg::Int(MMA_BF16.number()),
            )
        },
    ),
    (OF_GROUPS, true, |w| {
        // The columns' buffer is memory, of f32.
        let one = w.g.int_of(Scalar::U32, 1);
        let sums = w.g.constant(Scalar::F32.one().with_lanes(8), 0.0);
        let src = [&[one; 8][..], &[w.x, w.group, sums]].concat();
        w.node(
            Op::MmaShared,
            Scalar::F32.one().with_lanes(8),
            &src,
            Arg::Int(WGMMA_16.number()),
        )
    }),
    (OF_GROUPS, true, |w| {
        // The rows' buffer is memory; the columns are in an f16 stage.
        let (sums, size) = (
            w.g.constant(Scalar::F32.one().with_lanes(8), 0.0),
            w.g.int(2048),
        );
        let stage = w.node(Op::Local, Scalar::F16, &[size], Arg::Int(7));
        let src = [w.x, w.group, stage, w.group, sums];
        w.node(
            Op::MmaShared,
            Scalar::F32.one().with_lanes(8),
            &src,
            Arg::Int(WGMMA_16.number()),
        )
    }),
    (
        "two vectors of f32, and a vector of words with as many lanes",
        false,
        |w| {
            let one = w.g.int(1);
            w.node(Op::PairBf16, Scalar::U32, &[one; 2], Arg::None)
        },
    ),
    (
        "a word of bytes, a scale and an optional term; two byte indices and a zero point",
        false,
        |w| {
            let (word, one) = (w.g.int_of(Scalar::U32, 1), w.g.f32(1.0));
            w.node(
                Op::ScaledPair,
                Scalar::U32,
                &[word, one],
                Arg::Ints([0, 4, -8, 0].into()),
            )
        },
    ),
    (OF_A_TILE, false, |w| {
        // The buffer's type is f32.
        w.node(
            Op::TileLoad,
            tile_of(Scalar::U32),
            &[w.x, w.group],
            Arg::Ints([0, 32].into()),
        )
    }),
    (OF_A_TILE, true, |w| {
        // Operand numbers of a subgroup's product are 0 and 1.
        let size = w.g.int(2048);
        let stage = w.node(Op::Local, Scalar::F16, &[size], Arg::Int(7));
        w.node(
            Op::TileLoad,
            COOPERATIVE_16.tile(),
            &[stage, w.group],
            Arg::Ints([2, 32].into()),
        )
    }),
    (
        "a vector of words for each row, into a tile register",
        false,
        |w| {
            let row = w.g.constant(Scalar::U32.one().with_lanes(16), 1.0);
            w.node(
                Op::TileRows,
                tile_of(Scalar::U32),
                &[row; 16],
                Arg::Ints([8].into()),
            )
        },
    ),
    (OF_TILES, false, |w| {
        let row = w.g.constant(Scalar::U32.one().with_lanes(16), 1.0);
        let [a, sums] = [Scalar::U32, Scalar::F32].map(|s| w.g.constant(tile_of(s), 0.0));
        let b = w.node(
            Op::TileRows,
            tile_of(Scalar::U32),
            &[row; 16],
            Arg::Ints([1].into()),
        );
        w.node(
            Op::TileMma,
            tile_of(Scalar::F32),
            &[a, b, sums],
            Arg::Ints([1].into()),
        )
    }),
    (OF_TILES, true, |w| {
        // The operands are swapped.
        let (size, sums) = (w.g.int(2048), w.g.constant(COOPERATIVE_16.sums(), 0.0));
        let stage = w.node(Op::Local, Scalar::F16, &[size], Arg::Int(7));
        let tile = |w: &mut World, number: i32| {
            w.node(
                Op::TileLoad,
                COOPERATIVE_16.tile(),
                &[stage, w.group],
                Arg::Ints([number, 32].into()),
            )
        };
        let (a, b) = (tile(w, 1), tile(w, 0));
        w.node(Op::TileMma, COOPERATIVE_16.sums(), &[a, b, sums], Arg::None)
    }),
    ("a constant lane within a vector of its type", false, |w| {
        let vector = Scalar::F32.one().with_lanes(4);
        let (ones, four) = (w.g.constant(vector, 1.0), w.g.int(4));
        w.node(Op::Part, Scalar::F32, &[ones, four], Arg::None)
    }),
    ("operands have the dtype of the result", false, |w| {
        let one = w.g.int(1);
        w.node(Op::Neg, Scalar::F32, &[one], Arg::None)
    }),
];

/// Rule for asynchronous MMA products.
const OF_GROUPS: &str = "rows in registers or a 16-bit stage, columns in a 16-bit stage or a ring of words, at i64 offsets, added to accumulators";

/// Rules for tile loads, and for tile products.
const OF_A_TILE: &str = "rows of words of an MMA operand, into a tile register or as a subgroup's first or second operand";
const OF_TILES: &str = "two operand tiles and an accumulator tile, in distinct registers or as a subgroup's first and second operand";

/// Returns the tile type with these elements.
fn tile_of(scalar: Scalar) -> DType {
    scalar
        .one()
        .with_lanes((AMX_BF16.rows * AMX_BF16.columns) as u16)
}

#[test]
fn every_rule_of_nodes_can_fail() {
    for (rule, threads, make) in WRONG {
        let mut w = World::new();
        let id = make(&mut w);
        let threads = if *threads { vec![w.thread] } else { vec![] };
        let s = w.define(id, &threads);
        let e = w.check(s).expect_err(rule);
        assert_eq!(e.rule, *rule, "{e}");
        assert!(e.node.contains(w.g[id].op.name()), "{e}");
    }
    let mut w = World::new();
    let first = w.g.f32(0.0);
    let acc = w.node(Op::Acc, Scalar::F32, &[first, w.load], Arg::None);
    let e = w
        .check(vec![w.open(w.y, &[]), Accumulator(acc)])
        .expect_err("no reduction");
    assert_eq!(e.rule, "an initial value and a reduction, of one type");
    for row in nodes::ROWS {
        assert!(
            row.ops == [Op::Acc] || WRONG.iter().any(|b| b.0 == row.name),
            "no case breaks \"{}\"",
            row.name
        );
    }
}
