//! Rewrites contractions of packed weights into int8 or MMA form.
//!
//! For the integer form, each weight gets a layout, and activations are quantised to int8. The
//! quantised activations are ordinary nodes, one for each component: values `q`, scales `d`
//! (`uop/src/rows.rs`), and `s`, sums of `q` over groups with common weight scales, times the
//! weight's zero point if all codes have the same one.
//!
//! Contractions of quantised activations with other int8 rows, as in attention over an int8 KV
//! cache, take the same form. Their zero point is explicit where the byte dot product needs an
//! unsigned operand.
//!
//! The rewritten contraction is of `float(q)·d`. Rules (`uop/src/rules/dot.rs`), which are
//! applied once the ranges of the contraction are known (`kernel/rangeify.rs`), turn it into
//! an integer dot product.

use super::dequantise_transposed::{self, DequantiseTransposed};
use super::matmul_variant::{MatmulVariant, MatmulVariants};
use super::operands::{Operands, Suits};
use super::{bf16, cooperative, f16_mma, half_products};
use crate::ir::hints::{CausalSkip, FusedSum, Hint, StagedTile};
use crate::ir::layout::{Layout, Packing};
use crate::ir::nest::flatten;
use gristmill_uop::function::{Function, Slot, Storage};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::rows::{FINE_GROUP, GROUP};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar, Sources};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A contraction by integer dot products.
#[derive(Clone, Debug)]
pub struct Dot {
    /// Quantised activations of type i8.
    pub q: Id,
    /// Group sums of `q` and the factor multiplied into them: the weight's zero point, or 1 if it
    /// varies. `None` if the other operand has no zero point.
    pub s: Option<(Id, i64)>,
    /// Elements of a block, of a unit (codes that share vectors) and of a group (elements
    /// that share every scale).
    pub sizes: [i64; 3],
}

/// Layout and parsed format of each weight that is not stored as in its file, by slot.
pub type Layouts = FxHashMap<u32, (Layout, Arc<Packing>)>;

/// Result of the derivation.
#[derive(Clone, Debug, Default)]
pub struct Derived {
    /// Layouts of weights that are not stored as in their file.
    pub layouts: Layouts,
    /// Integer contractions, by reduction node.
    pub dots: FxHashMap<Id, Dot>,
    /// bf16 tile contractions by reduction node, with the block and unit size of their weight.
    pub tiled: FxHashMap<Id, [i64; 2]>,
    /// Cooperative-matrix contractions by reduction node, with their staged f16 weight.
    pub staged: FxHashMap<Id, Id>,
    /// Warp or warpgroup MMA contractions by reduction node, with the order of their activations.
    pub of_halves: FxHashMap<Id, f16_mma::Order>,
    /// Activations of MMA contractions, with their memory order.
    pub rounded: FxHashMap<Id, f16_mma::Order>,
    /// Reduction nodes of f16 contractions of weights that are read across their rows.
    pub across: Vec<Id>,
    /// Terms of a bf16 tile, if the machine has one.
    pub tiles: Option<i64>,
    /// Components of quantised activations: materialised nodes, with the number of elements along a
    /// row that belong together.
    pub planes: FxHashMap<Id, i64>,
    /// Whether the zero point is subtracted from weight codes
    /// before multiplication (`Machine::signed_codes`).
    pub signed_codes: bool,
    /// Whether quantised activations are stored group by group, as adjacent threads read them.
    pub by_groups: bool,
}

impl Derived {
    /// Returns the buffer index of a node's element; row-major by default.
    ///
    /// Planes of a GPU are stored group by group, and row-major within a group, because a matrix
    /// product takes a few elements of many rows at once. MMA activations have their own order.
    pub fn place(&self, g: &mut Graph, node: Id, dims: &[Id], index: &[Id]) -> Id {
        if let Some(&order) = self.rounded.get(&node)
            && let (Some((_, front)), Some((&last, leading))) =
                (dims.split_last(), index.split_last())
        {
            let rows: i64 = front.iter().map(|&d| g.max_of(d)).product();
            let row = flatten(g, front, leading);
            return f16_mma::place(g, order, rows, row, last);
        }
        let (Some(&together), true) = (self.planes.get(&node), self.by_groups) else {
            return flatten(g, dims, index);
        };
        let (Some((_, front)), Some((&last, leading))) = (dims.split_last(), index.split_last())
        else {
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
    /// Whether a node is a contraction by tiles or cooperative matrices.
    pub fn is_tiled(&self, node: Id) -> bool {
        self.tiled.contains_key(&node) || self.staged.contains_key(&node)
    }
    /// Records an MMA product; returns its sum.
    fn of_warps(&mut self, product: &f16_mma::F16Product) -> Id {
        // All readers of the activations share one order.
        let order = self.rounded.entry(product.rounded).or_insert(product.order);
        *order = order.and(product.order);
        self.of_halves.insert(product.sum, product.order);
        product.sum
    }
    /// Returns the nodes that a node is computed from, including the activation sums
    /// of an integer contraction.
    pub fn sources(&self, g: &Graph, id: Id) -> impl Iterator<Item = Id> {
        let sums = self.dots.get(&id).and_then(|d| d.s).map(|s| s.0);
        g[id].src.clone().into_iter().chain(sums)
    }
}

/// Finds the slot of the packed weight below `id`, through movements that keep whole rows.
fn packed_rows(g: &Graph, mut id: Id) -> Option<u32> {
    loop {
        let n = &g[id];
        if n.op == Op::Decode {
            let Arg::Packed(slot, _) = g[n.src[0]].arg else {
                return None;
            };
            return Some(slot);
        }
        id = below(g, id)?;
    }
}

/// Source of a movement that keeps the last axis.
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

/// Returns the layout of each packed slot: interleaved rows for CPU vectors, one plane per
/// component for GPU threads.
///
/// Only slots with whole lanes and groups, and with no use that reads across rows, are included.
pub fn layouts(g: &Graph, slots: &[Slot], roots: &[Id], target: &Target) -> Layouts {
    if !integers(target) {
        return Layouts::default();
    }
    let mut out = FxHashMap::default();
    let (lanes, layout) = match target.machine.kind {
        MachineKind::Cpu if target.interleave => (
            target.machine.lanes,
            Layout::Rows(target.machine.lanes as u16),
        ),
        MachineKind::Cpu => (target.machine.lanes, Layout::Planes),
        MachineKind::Gpu => (1, Layout::Planes),
    };
    for (slot, info) in slots.iter().enumerate() {
        let (Storage::Packed(e), [.., rows, columns]) = (info.storage, &info.dims[..]) else {
            continue;
        };
        if let Some(p) = Packing::known(e)
            && rows % lanes as i64 == 0
            && columns % GROUP == 0
        {
            out.insert(slot as u32, (layout, p));
        }
    }
    // With halves the many products along rows decide.
    if target.has_halves() {
        return out;
    }
    // A weight that is read along another axis keeps its file's layout, unless only a dequantised
    // copy is read so.
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

/// Whether the target may use integer dot products.
pub fn integers(target: &Target) -> bool {
    target.int8 && target.machine.dot4
}

/// Layouts that [`layouts`] gives the weights of a function.
pub fn layouts_of(function: &Function, target: &Target) -> Layouts {
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    layouts(&function.graph, &function.slots, &roots, target)
}

/// Rewrites the contractions below `roots` into the variants that are decided on.
///
/// `layouts` gives the weights' storage. Hints are updated to the new nodes.
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
    let mut of = Derivation {
        forms,
        derived,
        known: Known::default(),
        buffers: vec![],
    };
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for id in g.toposort(roots) {
        let n = g[id].clone();
        let src: Sources = n.src.iter().map(|s| map[s]).collect();
        let new = if src == n.src {
            id
        } else {
            g.build(n.op, n.dtype, src, n.arg)
        };
        map.insert(id, of.contracted(g, new, roots.contains(&id)));
    }
    for r in roots {
        *r = map[r];
    }
    rename(hints, &map);
    let Derivation {
        derived, buffers, ..
    } = of;
    for (&sum, &half) in &derived.staged {
        hints.insert(
            sum,
            Hint {
                staged: vec![half],
                looped: true,
                ..Hint::buffer(vec![half])
            },
        );
    }
    for node in buffers {
        hints.entry(node).or_insert_with(|| Hint::buffer(vec![]));
    }
    derived
}

/// State of the rewrite over a function's contractions.
struct Derivation<'f, 'a, 'd> {
    forms: &'f mut MatmulVariants<'a, 'd>,
    derived: Derived,
    known: Known,
    /// Nodes that are to be materialised.
    buffers: Vec<Id>,
}

/// Quantised activations and sums created so far.
#[derive(Default)]
struct Known {
    /// By activations and elements per scale: the int8 values, and the dequantised value of them.
    encoded: FxHashMap<(Id, i64), (Id, Id)>,
    sums: Sums,
}

impl Derivation<'_, '_, '_> {
    /// Rewrites a contraction; returns other nodes unchanged.
    ///
    /// Variants that write rows after the last token are not used for outputs.
    fn contracted(&mut self, g: &mut Graph, id: Id, is_output: bool) -> Id {
        match contraction(g, id, &self.derived) {
            Some(Contraction::Rows { q, d, group, zero }) => {
                self.derived.planes.extend([(q, group), (d, 1)]);
                let s = zero.map(|zero| {
                    group_sums(g, &mut self.derived, &mut self.known.sums, q, group, zero)
                });
                self.derived.dots.insert(
                    id,
                    Dot {
                        q,
                        s,
                        sizes: [group; 3],
                    },
                );
                id
            }
            Some(Contraction::Weight(of)) => self.of_weight(g, id, &of, is_output),
            Some(Contraction::Stored { of, terms }) => {
                let stored = !is_output && bf16::is_stored(g, of.weight);
                let tiles = if stored {
                    bf16::suits(g, of, terms, self.forms.target())
                } else {
                    Suits::Not
                };
                // With too few tokens for tiles it stays in f32.
                if tiles == Suits::Not {
                    return id;
                }
                match self.forms.decide(
                    g,
                    of,
                    &[
                        (MatmulVariant::Tiles, tiles),
                        (MatmulVariant::Floats, Suits::Preferred),
                    ],
                    is_output,
                ) {
                    MatmulVariant::Tiles => self.in_tiles(g, of, [terms; 2]),
                    _ => id,
                }
            }
            None => self.across(g, id),
        }
    }
    /// Rewrites the contraction of a repacked weight in the variant that is decided on.
    fn of_weight(&mut self, g: &mut Graph, id: Id, of: &Weight, is_output: bool) -> Id {
        let target = self.forms.target();
        let Weight {
            operands,
            layout,
            packing,
        } = of;
        // Tiles also write rows after the last token, which an output must not have.
        let [tiles, staged] = match is_output {
            true => [Suits::Not; 2],
            false => [
                bf16::suits(g, *operands, packing.unit, target),
                cooperative::suits(g, *operands, packing, target),
            ],
        };
        let [coarse, fine] = match target.activation_group {
            _ if target.has_halves() => [Suits::Not; 2],
            FINE_GROUP => [Suits::Not, Suits::Preferred],
            _ => [Suits::Preferred, Suits::Legal],
        };
        let suits = [
            (MatmulVariant::Tiles, tiles),
            (MatmulVariant::Staged, staged),
            (
                MatmulVariant::Fragments,
                f16_mma::suits(g, *operands, *layout, packing, &target.machine),
            ),
            (MatmulVariant::Integers, coarse),
            (MatmulVariant::FineIntegers, fine),
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
            MatmulVariant::Integers => self.in_integers(g, of, GROUP),
            MatmulVariant::FineIntegers => self.in_integers(g, of, FINE_GROUP),
            MatmulVariant::Unpacked | MatmulVariant::Floats => id,
        }
    }
    /// Rewrites the contraction as bf16 tiles, with these block and unit sizes of the weight.
    fn in_tiles(&mut self, g: &mut Graph, of: Operands, sizes: [i64; 2]) -> Id {
        let tiles = bf16::product(g, of);
        self.buffers
            .extend(tiles.buffers.into_iter().chain([tiles.sum]));
        self.derived.tiled.insert(tiles.sum, sizes);
        tiles.sum
    }
    /// Rewrites the contraction in integers, with a scale per `group` elements of activations.
    fn in_integers(&mut self, g: &mut Graph, of: &Weight, group: i64) -> Id {
        let Weight {
            operands: Operands { weight, x, base },
            layout,
            packing,
        } = of;
        let derived = &mut self.derived;
        let encoded = self.known.encoded.entry((*base, group));
        let (q, decoded) = *encoded.or_insert_with(|| {
            let (q, d) = g.encode_rows(*base, group);
            derived.planes.extend([(q, group), (d, 1)]);
            (q, g.decode_rows(q, d, group))
        });
        let zero = packing.zero().unwrap_or(1);
        let group = packing.group.min(group);
        let s = group_sums(g, derived, &mut self.known.sums, q, group, zero);
        let x = moved(g, *x, *base, decoded);
        let product = g.mul(*weight, x);
        let last = g.dims(product).len() - 1;
        let sum = g.reduce(product, &[last], ReduceOp::Add);
        // In a planar layout units are consecutive.
        let block = if *layout == Layout::Planes {
            packing.unit
        } else {
            packing.elements
        };
        derived.dots.insert(
            sum,
            Dot {
                q,
                s: Some(s),
                sizes: [block, packing.unit, group],
            },
        );
        sum
    }
    /// Rewrites a contraction of a weight read across its rows as a product of halves, and
    /// materialises the factors of other such products; returns other nodes unchanged.
    fn across(&mut self, g: &mut Graph, id: Id) -> Id {
        let (layouts, target) = (&self.derived.layouts, self.forms.target());
        let Some(across) =
            DequantiseTransposed::of_copy(g, id, |slot| layouts.contains_key(&slot), target)
        else {
            if let Some(factors) = half_products::factors(g, id, target) {
                self.buffers.extend(factors.into_iter().chain([id]));
            }
            return id;
        };
        let suits = [
            (MatmulVariant::Unpacked, Suits::Preferred),
            (MatmulVariant::Floats, Suits::Legal),
        ];
        if self.forms.decide(g, across.of, &suits, false) == MatmulVariant::Floats {
            return id;
        }
        let (sum, half) = across.product(g);
        self.buffers.push(half);
        if let Some(factors) = half_products::factors(g, sum, target) {
            self.buffers.extend(factors.into_iter().chain([sum]));
        }
        self.derived.across.push(sum);
        sum
    }
}

/// Updates hints after nodes were replaced according to `map`.
pub fn rename(hints: &mut FxHashMap<Id, Hint>, map: &FxHashMap<Id, Id>) {
    let new = |id: Id| map.get(&id).copied().unwrap_or(id);
    *hints = hints
        .drain()
        .map(|(id, hint)| {
            let inside = hint.inside.iter().map(|&n| new(n)).collect();
            let staged = hint.staged.iter().map(|&n| new(n)).collect();
            let future = hint.future.map(|f| CausalSkip {
                first: new(f.first),
                ..f
            });
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
            (
                new(id),
                Hint {
                    inside,
                    staged,
                    future,
                    resident,
                    fused,
                    ..hint
                },
            )
        })
        .collect();
}

/// Sums of `q` over groups, times `zero`, as a materialised node: the zero point's contribution is
/// read instead of recomputed for every row.
fn group_sums(
    g: &mut Graph,
    derived: &mut Derived,
    known: &mut Sums,
    q: Id,
    group: i64,
    zero: i64,
) -> (Id, i64) {
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

/// Group sums created so far, by values, group size and zero point.
type Sums = FxHashMap<(Id, i64, i64), Id>;

/// A contraction of a weight that is repacked from its file's layout.
struct Weight {
    operands: Operands,
    layout: Layout,
    packing: Arc<Packing>,
}

/// A contraction that can be rewritten.
enum Contraction {
    /// A repacked weight times activations.
    Weight(Weight),
    /// A weight in its file's layout times activations, on a machine with tiles of `terms` terms.
    Stored { of: Operands, terms: i64 },
    /// int8 rows, with or without an explicit zero point, times quantised activations.
    Rows {
        q: Id,
        d: Id,
        group: i64,
        zero: Option<i64>,
    },
}

/// Matches a product of rows `float(code)·d` or `float(code + zero)·d` with activations quantised
/// in groups of the same size.
fn rows(g: &Graph, a: Id, b: Id) -> Option<Contraction> {
    let encoded = |q: Id| g[q].op == Op::Cast && g.scalar(q) == Scalar::I8;
    let [a, b] = [a, b].map(|x| g.decoded(base_of(g, x)));
    let (a, b) = (a?, b?);
    let ((codes, ..), (q, d, group)) = if encoded(b.0) { (a, b) } else { (b, a) };
    let zero = (g[codes].op == Op::Add)
        .then(|| g.int_value(g[codes].src[1]))
        .flatten();
    let fits = a.2 == b.2
        && group % 4 == 0
        && encoded(q)
        && (zero.is_some() || g.scalar(codes) == Scalar::I8);
    fits.then_some(Contraction::Rows { q, d, group, zero })
}

/// Classifies a sum of products; `None` if it cannot be rewritten.
fn contraction(g: &Graph, id: Id, derived: &Derived) -> Option<Contraction> {
    let n = &g[id];
    let Arg::Reduce(ReduceOp::Add, axes) = &n.arg else {
        return None;
    };
    let product = &g[n.src[0]];
    let last = g.dims(n.src[0]).len().checked_sub(1)?;
    if product.op != Op::Mul || axes[..] != [last as u8] || g.scalar(id) != Scalar::F32 {
        return None;
    }
    let sides = [
        (product.src[0], product.src[1]),
        (product.src[1], product.src[0]),
    ];
    let Some((weight, x, slot)) = sides
        .into_iter()
        .find_map(|(w, x)| Some((w, x, packed_rows(g, w)?)))
    else {
        return rows(g, product.src[0], product.src[1]);
    };
    let columns = g.int_value(*g.dims(n.src[0]).last()?)?;
    // Activations with a dimension less are a constant.
    let whole = |terms: i64| columns % terms == 0 && g.dims(x).len() == last + 1;
    let of = Operands {
        weight,
        x,
        base: base_of(g, x),
    };
    if packed_rows(g, x).is_some() {
        return None;
    }
    let Some((layout, packing)) = derived.layouts.get(&slot) else {
        let terms = derived.tiles.filter(|&terms| whole(terms))?;
        return Some(Contraction::Stored { of, terms });
    };
    let fits = whole(GROUP) && whole(packing.elements);
    fits.then(|| {
        Contraction::Weight(Weight {
            operands: of,
            layout: *layout,
            packing: packing.clone(),
        })
    })
}

/// Source of the activations below movements of whole rows.
pub fn base_of(g: &Graph, mut x: Id) -> Id {
    while let Some(from) = below(g, x) {
        x = from;
    }
    x
}

/// Rebuilds `x`, which moves rows of `base`, on top of `new`.
fn moved(g: &mut Graph, x: Id, base: Id, new: Id) -> Id {
    if x == base {
        return new;
    }
    let n = g[x].clone();
    let mut src = n.src;
    src[0] = moved(g, src[0], base, new);
    g.build(n.op, n.dtype, src, n.arg)
}
