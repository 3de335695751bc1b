//! Prepack kernels: repack a weight into the layout its compute kernels read, from its file layout
//! or from the layout of another device.
//!
//! Slot 0 holds the rows in the first layout, slot 1 receives the packed rows. The variable
//! `groups` is the number of groups of interleaved rows. Kernels that fill a part of slot 1 have a
//! fixed number of groups instead, and the variable `first` is the group at which the part begins.

use crate::cost::Cost;
use crate::decision::{Cheapest, Decider};
use crate::emit::{self, Dialect, Emission, Slots};
use crate::ir::layout::{CodePart, Kind, Layout, Leaf, Packing};
use crate::ir::nest::Ranges;
use crate::plan::{KernelPlan, TilePlan};
use crate::schedule::{self, Body, Launch};
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::function::{Function, Slot, SlotKind, Storage};
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::program::{Extent, Program, When};
use gristmill_uop::rules::index::gcd;
use gristmill_uop::rules::lift;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Scalar};
use smallvec::smallvec;

/// Largest value of the variable `groups`.
const MAX_GROUPS: i64 = 1 << 31;
/// Variable that holds the number of row groups.
const GROUPS: &str = "groups";
/// Variable that holds the first row group of a part.
const FIRST: &str = "first";

/// Rows of a weight to be repacked.
pub struct PackedRows<'a> {
    /// Format of the file.
    pub encoding: EncodingRef,
    /// Decomposition of the format into leaves.
    pub packing: &'a Packing,
    /// Layout of the rows.
    pub from: Layout,
    /// Layout of the result.
    pub layout: Layout,
    /// Elements of a row.
    pub columns: usize,
    /// Rows to repack, and those of the result; `None` for as many as a step has.
    pub part: Option<[usize; 2]>,
}

impl PackedRows<'_> {
    /// Rows that are repacked together: a group of interleaved rows in both layouts.
    pub fn group(from: Layout, layout: Layout) -> i64 {
        let [a, b] = [from.lanes(), layout.lanes()];
        a / gcd(a, b) * b
    }
}

/// Builds the repacking program for these rows.
pub fn prepack(of: &PackedRows, target: &Target, dialect: Option<&dyn Dialect>) -> Program {
    let mut p = Prepack::new(of);
    let nests = p.nests(target);
    let Prepack {
        mut g,
        e,
        layouts,
        lanes,
        columns,
        part,
        ..
    } = p;
    let slot = |name: &str, kind| Slot {
        name: name.into(),
        kind,
        dims: vec![lanes, columns],
        storage: Storage::Packed(e),
    };
    let slots = vec![
        slot("file", SlotKind::Weight),
        slot("packed", SlotKind::Output),
    ];
    let function = Function {
        name: "prepack".into(),
        graph: Graph::new(),
        slots,
        outputs: vec![],
    };
    let mut launch = launch(nests, &function.name);
    // Bytes of a group of interleaved rows, before and after. A layout that cannot hold them gets
    // no program.
    let extent = |slot: u32| {
        let layout = layouts[slot as usize];
        let bytes = layout.bytes(e, &[lanes, columns]).unwrap_or(usize::MAX);
        match part {
            Some(groups) => Extent::Fixed(bytes.saturating_mul(groups[slot as usize] as usize)),
            None => Extent::Per {
                variable: GROUPS.into(),
                bytes,
            },
        }
    };
    let slots = Slots {
        function: &function,
        streams: vec![],
        extent: &extent,
    };
    let mut decider = Decider {
        policy: &mut Cheapest,
        plans: &target.plans,
        log: vec![],
    };
    schedule::select_plan(&g, &mut launch, &function, target, &mut decider);
    let with = Emission {
        slots: &slots,
        target,
        dialect,
    };
    let mapped = emit::map(&mut g, &launch, target);
    emit::program(&g, &launch, &mapped, &with)
}

/// The launch of these nests in one body.
fn launch(nests: Vec<Id>, title: &str) -> Launch {
    let body = Body {
        nests,
        when: When::default(),
        root: None,
        kernel: None,
        title: title.into(),
        seconds: 0.0,
    };
    Launch {
        bodies: vec![body],
        level: 0,
        cost: Cost::default(),
        plan: KernelPlan {
            bodies: vec![TilePlan::default()],
            launch: LaunchPlan::default(),
        },
    }
}

struct Prepack<'a> {
    g: Graph,
    packing: &'a Packing,
    e: EncodingRef,
    /// Layouts of both slots.
    layouts: [Layout; 2],
    /// Rows of a group.
    lanes: i64,
    columns: i64,
    /// Groups of a part, and of the result.
    part: Option<[i64; 2]>,
    source: Id,
    out: Id,
    ranges: Ranges,
}

impl<'a> Prepack<'a> {
    fn new(of: &PackedRows<'a>) -> Prepack<'a> {
        let &PackedRows {
            encoding: e,
            packing,
            from,
            layout,
            columns,
            part,
        } = of;
        let mut g = Graph::new();
        let (lanes, columns) = (PackedRows::group(from, layout), columns as i64);
        let mut packed = |slot| {
            g.intern(Node {
                op: Op::Param,
                dtype: Scalar::U8.one(),
                src: smallvec![],
                arg: Arg::Packed(slot, e),
            })
        };
        let (source, out) = (packed(0), packed(1));
        Prepack {
            g,
            packing,
            e,
            layouts: [from, layout],
            lanes,
            columns,
            part: part.map(|rows| rows.map(|n| n as i64 / lanes)),
            source,
            out,
            ranges: Ranges::after(0),
        }
    }
    /// The nests of all leaves, in groups of rows that fit the target's largest binding.
    fn nests(&mut self, target: &Target) -> Vec<Id> {
        let (e, dims) = (self.e, [self.lanes, self.columns]);
        let of_rows = |layout: Layout| layout.bytes(e, &dims).unwrap_or(usize::MAX);
        let [from, to] = self.layouts.map(of_rows);
        let bound = target.machine.largest_binding / from.max(to);
        let groups = match self.part {
            Some([groups, _]) => self.g.int(groups),
            None => self.g.var(GROUPS, 1, MAX_GROUPS.min(bound as i64).max(1)),
        };
        let group = self.range(groups, RangeKind::Global);
        let mut nests = Vec::new();
        let packing = self.packing;
        for leaf in &packing.leaves {
            match &leaf.kind {
                Kind::Scale { every, stored, .. } => {
                    nests.push(self.scale(group, leaf, *every, *stored))
                }
                Kind::Code { parts } => nests.extend(
                    (0..parts.len())
                        .map(|i| self.code(group, leaf, i))
                        .collect::<Vec<_>>(),
                ),
            }
        }
        nests
    }
    fn range(&mut self, bound: Id, kind: RangeKind) -> Id {
        self.ranges.range(&mut self.g, bound, kind)
    }
    fn looped(&mut self, n: i64) -> Id {
        self.ranges.fixed(&mut self.g, n, RangeKind::Loop)
    }
    /// Builds the index `a·step + b` as a node.
    fn at(&mut self, a: Id, step: i64, b: Id) -> Id {
        let step = self.g.int(step);
        let a = self.g.mul(a, step);
        self.g.add(a, b)
    }
    /// The row of the result that has row `lane` of a group.
    fn result_row(&mut self, group: Id, lane: Id) -> Id {
        let group = match self.part {
            Some([groups, all]) => {
                let first = self.g.var(FIRST, 0, all - groups);
                self.g.add(first, group)
            }
            None => group,
        };
        self.at(group, self.lanes, lane)
    }
    /// Byte address of a block in the file.
    fn block(&mut self, row: Id, block: Id) -> Id {
        let row_bytes = self.columns / self.packing.elements * self.e.bytes as i64;
        let zero = self.g.int(0);
        let block = self.at(block, self.e.bytes as i64, zero);
        self.at(row, row_bytes, block)
    }
    fn store(&mut self, at: Id, value: Id, ranges: &[Id]) -> Id {
        let ranges: Vec<Id> = ranges
            .iter()
            .copied()
            .filter(|&r| self.g[r].op == Op::Range)
            .collect();
        self.g.store(self.out, at, value, &ranges)
    }
    /// The nest that copies one scale leaf, for every row and every group of elements.
    fn scale(&mut self, group: Id, leaf: &Leaf, every: i64, stored: Scalar) -> Id {
        let p = self.packing;
        let (block, lane) = (
            self.looped(self.columns / p.elements),
            self.looped(self.lanes),
        );
        let number = self.looped(p.elements / every);
        let row = self.at(group, self.lanes, lane);
        let zero = self.g.int(0);
        let element = self.at(number, every, zero);
        let k = self.at(block, p.elements, element);
        let [from, layout] = self.layouts;
        let result = self.result_row(group, lane);
        let place = p.place(&mut self.g, layout, result, k, self.columns);
        let to = p.scale_at(&mut self.g, &place, &leaf.kind);
        let value = match from {
            Layout::File => {
                let from = self.block(row, block);
                p.source(&mut self.g, leaf, self.source, from, element)
            }
            _ => {
                let place = p.place(&mut self.g, from, row, k, self.columns);
                let from = p.scale_at(&mut self.g, &place, &leaf.kind);
                self.g.load(self.source, from, stored)
            }
        };
        let value = self.g.cast(value, stored);
        self.store(to, value, &[block, lane, number])
    }
    /// The nest that packs one part of the codes: each byte holds that part of as
    /// many elements as fit.
    fn code(&mut self, group: Id, leaf: &Leaf, index: usize) -> Id {
        let p = self.packing;
        let Kind::Code { parts } = &leaf.kind else {
            unreachable!("a code")
        };
        let part = &parts[index];
        let vectors = p.unit * part.bits / 32;
        let (block, lane) = (
            self.looped(self.columns / p.elements),
            self.looped(self.lanes),
        );
        let (unit, vector) = (self.looped(p.elements / p.unit), self.looped(vectors));
        let four = self.g.int(4);
        let byte = self.range(four, RangeKind::Unroll);
        let row = self.at(group, self.lanes, lane);
        let [from, layout] = self.layouts;
        let within = self.at(vector, 4, byte);
        let within = self.at(unit, p.unit, within);
        let k = self.at(block, p.elements, within);
        let bytes = match from {
            Layout::File => {
                let from = self.block(row, block);
                self.file_codes(leaf, part, from, [unit, vector, byte])
            }
            // Codes share bytes in the same way in all other layouts.
            _ => {
                let place = p.place(&mut self.g, from, row, k, self.columns);
                let (from, _) = p.part_at(&mut self.g, &place, part);
                let loaded = self.g.load(self.source, from, Scalar::U8);
                self.g.cast(loaded, Scalar::I32)
            }
        };
        let word = lift::word(&mut self.g, bytes, byte);
        let result = self.result_row(group, lane);
        let place = p.place(&mut self.g, layout, result, k, self.columns);
        let (to, _) = p.part_at(&mut self.g, &place, part);
        let zero = self.g.int(0);
        let to = self
            .g
            .substitute(to, &mut [(byte, zero)].into_iter().collect());
        self.store(to, word, &[block, unit, vector, lane])
    }
    /// The byte with parts of the codes of a block of the file at address `from`.
    fn file_codes(
        &mut self,
        leaf: &Leaf,
        part: &CodePart,
        from: Id,
        [unit, vector, byte]: [Id; 3],
    ) -> Id {
        let p = self.packing;
        let vectors = p.unit * part.bits / 32;
        let mut all = self.g.int_of(Scalar::I32, 0);
        for slot in 0..8 / part.bits {
            let slots = self.g.int(slot * vectors);
            let quad = self.g.add(vector, slots);
            let within = self.at(quad, 4, byte);
            let within = self.at(unit, p.unit, within);
            let code = p.source(&mut self.g, leaf, self.source, from, within);
            let (down, mask, up) = (
                self.g.int(part.shift),
                self.g.int_of(Scalar::I32, (1 << part.bits) - 1),
                self.g.int(slot * part.bits),
            );
            let bits = self.g.cast(code, Scalar::I32);
            let bits = self.g.shr(bits, down);
            let bits = self.g.and(bits, mask);
            let bits = self.g.shl(bits, up);
            all = self.g.or(all, bits);
        }
        all
    }
}
