//! Derive: contractions of packed weights with activations take their integer form. At this level that is a choice of layout for each weight
//! and of what stands in for the activations: their encoding in eight bits, as ordinary nodes, *planes*: `q` and `d` of `uop/src/rows.rs`,
//! and `s`, sums of `q` over as many elements as share their scales, times the weight's zero if it has one for all codes.
//!
//! So do contractions of such planes with other rows in eight bits, as attention makes them of a cache of bytes: with a zero of their own where
//! one side of a product of bytes has to be unsigned.
//!
//! The contraction then is of `float(q)·d`. That the sum of products is one of integers follows from rules (`uop/src/rules/dot.rs`),
//! which are applied when the contraction's ranges are known (`kernel/rangeify.rs`).

use super::dequantise_transposed::{self, DequantiseTransposed};
use super::matmul_variant::{MatmulVariant, MatmulVariants};
use super::operands::{Operands, Suits};
use super::{bf16, cooperative, f16_mma};
use crate::ir::hints::{CausalSkip, FusedSum, Hint, StagedTile};
use crate::ir::layout::{Layout, Packing};
use crate::ir::nest::flatten;
use gristmill_uop::function::{Function, Slot, Storage};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::rows::GROUP;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar, Sources};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A contraction in integers.
#[derive(Clone, Debug)]
pub struct Dot {
    /// Activations as whole numbers.
    pub q: Id,
    /// Their sums, where what they meet has a zero, and the factor that is in them.
    pub s: Option<(Id, i64)>,
    /// Elements of a block, of a unit, whose codes share vectors, and of a group, which share every scale.
    pub sizes: [i64; 3],
}

/// Layouts of weights that are not as in their file, by slot, each with its format taken apart.
pub type Layouts = FxHashMap<u32, (Layout, Arc<Packing>)>;

/// What the derivation chose.
#[derive(Clone, Debug, Default)]
pub struct Derived {
    /// Layout of every weight that is not as in its file.
    pub layouts: Layouts,
    /// Contractions in integers: reductions, by node.
    pub dots: FxHashMap<Id, Dot>,
    /// Contractions of tiles of bf16: reductions, by node, with the elements of a block and of a unit of their weight.
    pub tiled: FxHashMap<Id, [i64; 2]>,
    /// Contractions of a subgroup's tiles: reductions, by node, with the halves of their weight, which are unpacked into stages.
    pub staged: FxHashMap<Id, Id>,
    /// Contractions of a warp's fragments of halves: reductions, by node, with the order of their activations.
    pub of_halves: FxHashMap<Id, f16_mma::Order>,
    /// Activations of these, in the order in which lanes read them.
    pub rounded: FxHashMap<Id, f16_mma::Order>,
    /// Contractions of plain halves, of weights that are read across their rows: reductions.
    pub across: Vec<Id>,
    /// Terms of a tile of bf16, if the machine multiplies these.
    pub tiles: Option<i64>,
    /// Planes: nodes that have a place of their own, with how many neighbours along a row belong together.
    pub planes: FxHashMap<Id, i64>,
    /// Do codes of weights have their zero taken off before they are multiplied (`Machine::signed_codes`)?
    pub signed_codes: bool,
    /// Do planes lie group by group, as threads that are neighbours read them?
    pub by_groups: bool,
}

impl Derived {
    /// Where an element of a node lies in its buffer: row by row; of planes that neighbouring threads read, of which a matrix product takes a few elements of many rows at
    /// once, group by group, and in each group row by row.
    pub fn place(&self, g: &mut Graph, node: Id, dims: &[Id], index: &[Id]) -> Id {
        if let Some(&order) = self.rounded.get(&node)
            && let (Some((_, front)), Some((&last, leading))) = (dims.split_last(), index.split_last())
        {
            let rows: i64 = front.iter().map(|&d| g.max_of(d)).product();
            let row = flatten(g, front, leading);
            return f16_mma::place(g, order, rows, row, last);
        }
        let (Some(&together), true) = (self.planes.get(&node), self.by_groups) else { return flatten(g, dims, index) };
        let (Some((_, front)), Some((&last, leading))) = (dims.split_last(), index.split_last()) else {
            return flatten(g, dims, index);
        };
        let rows: i64 = front.iter().map(|&d| g.max_of(d)).product();
        let row = flatten(g, front, leading);
        let (t, all) = (g.int(together), g.int(rows * together));
        let (group, within) = (g.idiv(last, t), g.modulo(last, t));
        let (group, row) = (g.mul(group, all), g.mul(row, t));
        let at = g.add(group, row);
        g.add(at, within)
    }
    /// Is that node a product of tiles?
    pub fn is_tiled(&self, node: Id) -> bool {
        self.tiled.contains_key(&node) || self.staged.contains_key(&node)
    }
    /// The sum of a warp's fragments.
    fn of_warps(&mut self, product: &f16_mma::F16Product) -> Id {
        // All who read them take one order.
        let order = self.rounded.entry(product.rounded).or_insert(product.order);
        *order = order.and(product.order);
        self.of_halves.insert(product.sum, product.order);
        product.sum
    }
    /// What a node is computed from: its sources, and of a contraction in integers the sums of its activations.
    pub fn sources(&self, g: &Graph, id: Id) -> impl Iterator<Item = Id> {
        let sums = self.dots.get(&id).and_then(|d| d.s).map(|s| s.0);
        g[id].src.clone().into_iter().chain(sums)
    }
}

/// The slot of the packed parameter whose rows `id` moves: the last axis is the row's.
fn packed_rows(g: &Graph, mut id: Id) -> Option<u32> {
    loop {
        let n = &g[id];
        if n.op == Op::Decode {
            let Arg::Packed(slot, _) = g[n.src[0]].arg else { return None };
            return Some(slot);
        }
        id = below(g, id)?;
    }
}

/// The source of a movement that leaves the last axis as it is.
fn below(g: &Graph, id: Id) -> Option<Id> {
    let n = &g[id];
    let (&from, new) = (n.src.first()?, g.dims(id));
    let old = g.dims(from);
    let (last, kept) = (old.last()?, old.last() == new.last());
    let same = match n.op {
        Op::Reshape | Op::Expand => kept,
        Op::Permute => matches!(&n.arg, Arg::Axes(a) if a.last() == Some(&(a.len() as u8 - 1))),
        Op::Shrink => kept && g.int_value(n.src[n.src.len() - 2]) == Some(0),
        Op::Gather => old.len() > 1,
        _ => false,
    };
    (same && g.int_value(*last).is_some()).then_some(from)
}

/// The layout of each packed slot of a function with these outputs: for vectors with rows interleaved, if they divide their number, for threads as planes; where every
/// use reads along rows.
pub fn layouts(g: &Graph, slots: &[Slot], roots: &[Id], target: &Target) -> Layouts {
    if !integers(target) {
        return Layouts::default();
    }
    let mut out = FxHashMap::default();
    let (lanes, layout) = match target.machine.kind {
        MachineKind::Cpu if target.interleave => (target.machine.lanes, Layout::Rows(target.machine.lanes as u16)),
        MachineKind::Cpu => (target.machine.lanes, Layout::Planes),
        MachineKind::Gpu => (1, Layout::Planes),
    };
    for (slot, info) in slots.iter().enumerate() {
        let (Storage::Packed(e), [.., rows, columns]) = (info.storage, &info.dims[..]) else { continue };
        if let Some(p) = Packing::known(e)
            && rows % lanes as i64 == 0
            && columns % GROUP == 0
        {
            out.insert(slot as u32, (layout, p));
        }
    }
    // A weight that is read along another axis stays as it is, unless that is done once, for a copy.
    let copied = dequantise_transposed::copied(g, roots, target);
    for id in g.toposort(roots) {
        if g[id].op == Op::Permute
            && !copied.contains(&id)
            && below(g, id).is_none()
            && let Some(slot) = packed_rows(g, g[id].src[0])
        {
            out.remove(&slot);
        }
    }
    out
}

/// Does the machine multiply whole numbers, and may it?
pub fn integers(target: &Target) -> bool {
    target.int8 && target.machine.dot4
}

/// The layouts that the rule gives the weights of a function.
pub fn layouts_of(function: &Function, target: &Target) -> Layouts {
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    layouts(&function.graph, &function.slots, &roots, target)
}

/// Rewrites the contractions below `roots`, of weights that lie so, in the forms that are decided on.
pub fn derive(
    g: &mut Graph,
    roots: &mut [Id],
    hints: &mut FxHashMap<Id, Hint>,
    layouts: Layouts,
    forms: &mut MatmulVariants,
) -> Derived {
    let target = forms.target();
    if !integers(target) {
        return Derived::default();
    }
    let machine = &target.machine;
    let derived = Derived {
        layouts,
        signed_codes: machine.signed_codes,
        by_groups: machine.kind == MachineKind::Gpu,
        tiles: machine.tile_fragment().map(|tile| tile.terms),
        ..Derived::default()
    };
    let mut of = Derivation { forms, derived, known: Known::default(), buffers: vec![] };
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for id in g.toposort(roots) {
        let n = g[id].clone();
        let src: Sources = n.src.iter().map(|s| map[s]).collect();
        let new = if src == n.src { id } else { g.build(n.op, n.dtype, src, n.arg) };
        map.insert(id, of.contracted(g, new, roots.contains(&id)));
    }
    for r in roots {
        *r = map[r];
    }
    rename(hints, &map);
    let Derivation { derived, buffers, .. } = of;
    for (&sum, &half) in &derived.staged {
        hints.insert(sum, Hint { staged: vec![half], looped: true, ..Hint::buffer(vec![half]) });
    }
    for node in buffers {
        hints.entry(node).or_insert_with(|| Hint::buffer(vec![]));
    }
    derived
}

/// A function's contractions while they take their forms.
struct Derivation<'f, 'a, 'd> {
    forms: &'f mut MatmulVariants<'a, 'd>,
    derived: Derived,
    known: Known,
    /// Nodes that have buffers.
    buffers: Vec<Id>,
}

/// Planes that there are.
#[derive(Default)]
struct Known {
    /// Of activations: whole numbers, and what they stand for.
    encoded: FxHashMap<Id, (Id, Id)>,
    sums: Sums,
}

impl Derivation<'_, '_, '_> {
    /// What a node becomes: itself, where it is no contraction with a form. Of an output no form writes rows behind the last token.
    fn contracted(&mut self, g: &mut Graph, id: Id, is_output: bool) -> Id {
        match contraction(g, id, &self.derived) {
            Some(Contraction::Rows { q, d, group, zero }) => {
                self.derived.planes.extend([(q, group), (d, 1)]);
                let s = zero.map(|zero| group_sums(g, &mut self.derived, &mut self.known.sums, q, group, zero));
                self.derived.dots.insert(id, Dot { q, s, sizes: [group; 3] });
                id
            }
            Some(Contraction::Weight(of)) => self.of_weight(g, id, &of, is_output),
            Some(Contraction::Stored { of, terms }) => {
                let stored = !is_output && bf16::is_stored(g, of.weight);
                let tiles = if stored { bf16::suits(g, of, terms, self.forms.target()) } else { Suits::Not };
                // Floats are what it stays where there are too few tokens for tiles.
                if tiles == Suits::Not {
                    return id;
                }
                match self.forms.decide(
                    g,
                    of,
                    &[(MatmulVariant::Tiles, tiles), (MatmulVariant::Floats, Suits::Preferred)],
                    is_output,
                ) {
                    MatmulVariant::Tiles => self.in_tiles(g, of, [terms; 2]),
                    _ => id,
                }
            }
            None => self.across(g, id),
        }
    }
    /// The contraction of a weight that does not lie as in its file, in the form that is decided on.
    fn of_weight(&mut self, g: &mut Graph, id: Id, of: &Weight, is_output: bool) -> Id {
        let target = self.forms.target();
        let Weight { operands, layout, packing } = of;
        // Rows behind the last token are written too: not into an output.
        let [tiles, staged] = match is_output {
            true => [Suits::Not; 2],
            false => {
                [bf16::suits(g, *operands, packing.unit, target), cooperative::suits(g, *operands, packing, target)]
            }
        };
        let suits = [
            (MatmulVariant::Tiles, tiles),
            (MatmulVariant::Staged, staged),
            (MatmulVariant::Fragments, f16_mma::suits(g, *operands, *layout, packing, &target.machine)),
            (MatmulVariant::Integers, Suits::Preferred),
            (MatmulVariant::Floats, Suits::Legal),
        ];
        match self.forms.decide(g, *operands, &suits, is_output) {
            MatmulVariant::Tiles => self.in_tiles(g, *operands, [packing.elements, packing.unit]),
            MatmulVariant::Staged => {
                let staged = cooperative::product(g, *operands, target);
                self.buffers.extend(staged.product.buffers);
                self.derived.staged.insert(staged.product.sum, staged.half);
                staged.product.sum
            }
            MatmulVariant::Fragments => {
                let product = f16_mma::product(g, *operands, *layout, packing, &target.machine);
                self.buffers.push(product.rounded);
                self.derived.of_warps(&product)
            }
            MatmulVariant::Integers => self.in_integers(g, of),
            MatmulVariant::Unpacked | MatmulVariant::Floats => id,
        }
    }
    /// The contraction as one of tiles, of a weight with blocks and units of these sizes.
    fn in_tiles(&mut self, g: &mut Graph, of: Operands, sizes: [i64; 2]) -> Id {
        let tiles = bf16::product(g, of);
        self.buffers.extend(tiles.buffers.into_iter().chain([tiles.sum]));
        self.derived.tiled.insert(tiles.sum, sizes);
        tiles.sum
    }
    /// The contraction in its integer form.
    fn in_integers(&mut self, g: &mut Graph, of: &Weight) -> Id {
        let Weight { operands: Operands { weight, x, base }, layout, packing } = of;
        let derived = &mut self.derived;
        let (q, decoded) = *self.known.encoded.entry(*base).or_insert_with(|| {
            let (q, d) = g.encode_rows(*base, GROUP);
            derived.planes.extend([(q, GROUP), (d, 1)]);
            (q, g.decode_rows(q, d, GROUP))
        });
        let zero = packing.zero().unwrap_or(1);
        let s = group_sums(g, derived, &mut self.known.sums, q, packing.group, zero);
        let x = moved(g, *x, *base, decoded);
        let product = g.mul(*weight, x);
        let last = g.dims(product).len() - 1;
        let sum = g.reduce(product, &[last], ReduceOp::Add);
        // Of rows as planes, units follow one another.
        let block = if *layout == Layout::Planes { packing.unit } else { packing.elements };
        derived.dots.insert(sum, Dot { q, s: Some(s), sizes: [block, packing.unit, packing.group] });
        sum
    }
    /// The contraction of plain halves that a node is whose weight is read across its rows; else the node.
    fn across(&mut self, g: &mut Graph, id: Id) -> Id {
        let (layouts, target) = (&self.derived.layouts, self.forms.target());
        let Some(across) = DequantiseTransposed::of_copy(g, id, |slot| layouts.contains_key(&slot), target) else {
            return id;
        };
        let suits = [(MatmulVariant::Unpacked, Suits::Preferred), (MatmulVariant::Floats, Suits::Legal)];
        if self.forms.decide(g, across.of, &suits, false) == MatmulVariant::Floats {
            return id;
        }
        let (sum, half) = across.product(g);
        self.buffers.push(half);
        self.derived.across.push(sum);
        sum
    }
}

/// Hints of nodes that have others in their place.
pub fn rename(hints: &mut FxHashMap<Id, Hint>, map: &FxHashMap<Id, Id>) {
    let new = |id: Id| map.get(&id).copied().unwrap_or(id);
    *hints = hints
        .drain()
        .map(|(id, hint)| {
            let inside = hint.inside.iter().map(|&n| new(n)).collect();
            let staged = hint.staged.iter().map(|&n| new(n)).collect();
            let future = hint.future.map(|f| CausalSkip { first: new(f.first), ..f });
            let resident = hint.resident.map(|r| StagedTile {
                node: new(r.node),
                settled: r.settled.map(&new),
                tokens: new(r.tokens),
                ..r
            });
            let fused = hint.fused.map(|r| FusedSum {
                sums: r.sums.map(&new),
                most: new(r.most),
                base: new(r.base),
                first: new(r.first),
                ..r
            });
            (new(id), Hint { inside, staged, future, resident, fused, ..hint })
        })
        .collect();
}

/// Sums of `q` over groups times `zero`, a plane: what a weight's zero adds is read, not computed again for every row.
fn group_sums(g: &mut Graph, derived: &mut Derived, known: &mut Sums, q: Id, group: i64, zero: i64) -> (Id, i64) {
    let s = *known.entry((q, group, zero)).or_insert_with(|| {
        let wide = g.cast(q, Scalar::I32);
        let sum = g.by_groups(wide, group, ReduceOp::Add);
        let zero = g.int_of(Scalar::I32, zero);
        let s = g.mul(sum, zero);
        derived.planes.insert(s, 1);
        s
    });
    (s, zero)
}

/// Sums that there are: of what, of how many, times what.
type Sums = FxHashMap<(Id, i64, i64), Id>;

/// A contraction of a packed weight that does not lie as in its file.
struct Weight {
    operands: Operands,
    layout: Layout,
    packing: Arc<Packing>,
}

/// A contraction that can be one of integers.
enum Contraction {
    /// Of a packed weight with activations.
    Weight(Weight),
    /// Of a weight that keeps its file's layout with activations, where the machine multiplies tiles of so many terms.
    Stored { of: Operands, terms: i64 },
    /// Of rows in eight bits, with a zero of their own or without, and the planes of activations.
    Rows { q: Id, d: Id, group: i64, zero: Option<i64> },
}

/// The planes of activations, encoded here, that meet rows `float(code)·d` or `float(code + zero)·d` in as large groups.
fn rows(g: &Graph, a: Id, b: Id) -> Option<Contraction> {
    let encoded = |q: Id| g[q].op == Op::Cast && g.scalar(q) == Scalar::I8;
    let [a, b] = [a, b].map(|x| g.decoded(base_of(g, x)));
    let (a, b) = (a?, b?);
    let ((codes, ..), (q, d, group)) = if encoded(b.0) { (a, b) } else { (b, a) };
    let zero = (g[codes].op == Op::Add).then(|| g.int_value(g[codes].src[1])).flatten();
    let fits = a.2 == b.2 && group % 4 == 0 && encoded(q) && (zero.is_some() || g.scalar(codes) == Scalar::I8);
    fits.then_some(Contraction::Rows { q, d, group, zero })
}

/// What of a sum can be one of integers.
fn contraction(g: &Graph, id: Id, derived: &Derived) -> Option<Contraction> {
    let n = &g[id];
    let Arg::Reduce(ReduceOp::Add, axes) = &n.arg else { return None };
    let product = &g[n.src[0]];
    let last = g.dims(n.src[0]).len().checked_sub(1)?;
    if product.op != Op::Mul || axes[..] != [last as u8] || g.scalar(id) != Scalar::F32 {
        return None;
    }
    let sides = [(product.src[0], product.src[1]), (product.src[1], product.src[0])];
    let Some((weight, x, slot)) = sides.into_iter().find_map(|(w, x)| Some((w, x, packed_rows(g, w)?))) else {
        return rows(g, product.src[0], product.src[1]);
    };
    let columns = g.int_value(*g.dims(n.src[0]).last()?)?;
    // Activations of one dim too few are a constant.
    let whole = |terms: i64| columns % terms == 0 && g.dims(x).len() == last + 1;
    let of = Operands { weight, x, base: base_of(g, x) };
    if packed_rows(g, x).is_some() {
        return None;
    }
    let Some((layout, packing)) = derived.layouts.get(&slot) else {
        let terms = derived.tiles.filter(|&terms| whole(terms))?;
        return Some(Contraction::Stored { of, terms });
    };
    let fits = whole(GROUP) && whole(packing.elements);
    fits.then(|| Contraction::Weight(Weight { operands: of, layout: *layout, packing: packing.clone() }))
}

/// What the activations are made of by moving whole rows.
pub fn base_of(g: &Graph, mut x: Id) -> Id {
    while let Some(from) = below(g, x) {
        x = from;
    }
    x
}

/// `x` with `new` in place of `base`, of which it moves the rows.
fn moved(g: &mut Graph, x: Id, base: Id, new: Id) -> Id {
    if x == base {
        return new;
    }
    let n = g[x].clone();
    let mut src = n.src;
    src[0] = moved(g, src[0], base, new);
    g.build(n.op, n.dtype, src, n.arg)
}
