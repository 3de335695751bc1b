//! How a packed weight lies in memory: as in its file, with the rows of a vector interleaved, or with its rows as planes.
//!
//! The others are derived from the format's description. What a block holds is taken apart into *leaves*: codes, one for each element, and
//! scales, one for each group of elements. Codes are stored without their sign and cut into powers of two of bits, and elements are paired so
//! that the lanes of one vector operation share their shift and mask; scales keep their type, or take a byte where the file packs them
//! tighter. Of `lanes` consecutive rows, block after block:
//!
//! ```text
//! scales of the block, of each row · then for every unit of 32 elements:
//!   scales of the unit, of each row · codes of elements 0..4 of each row (4 bytes a row) · codes of 4..8 of each row · …
//! ```
//!
//! so that one vector load gives four elements of as many rows as a vector has lanes, and a kernel reads its rows as one stream.
//!
//! Threads that share a row want their codes side by side instead: of each row, one leaf after the other, its numbers in the order of the
//! elements, each plane aligned for the widest load. Codes are cut and paired in units as above.

mod parts;

use crate::ir::parse::{ParseError, bad, count};
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::function::Storage;
use gristmill_uop::rows::group_of;
use gristmill_uop::rules::index::gcd;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use rustc_hash::FxHashMap;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// How the rows of a packed weight lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Layout {
    /// As in the file.
    #[default]
    File,
    /// So many rows interleaved.
    Rows(u16),
    /// Each row as planes.
    Planes,
}

impl Display for Layout {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Layout::File => f.write_str("layout: file"),
            Layout::Rows(n) => write!(f, "layout: rows {n}"),
            Layout::Planes => f.write_str("layout: planes"),
        }
    }
}

impl FromStr for Layout {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Layout, ParseError> {
        let Some(rest) = text.trim().strip_prefix("layout:") else { return bad(text) };
        match rest.split_whitespace().collect::<Vec<_>>()[..] {
            ["file"] => Ok(Layout::File),
            ["planes"] => Ok(Layout::Planes),
            ["rows", n] => count(n).and_then(|_| n.parse().or_else(|_| bad(n))).map(Layout::Rows),
            _ => bad(rest),
        }
    }
}

impl Layout {
    /// Rows that are interleaved.
    pub fn lanes(self) -> i64 {
        match self {
            Layout::Rows(n) => n as i64,
            Layout::File | Layout::Planes => 1,
        }
    }

    /// Bytes of a weight of these dims; `None` if it cannot be laid out so.
    pub fn bytes(self, e: EncodingRef, dims: &[i64]) -> Option<usize> {
        if self == Layout::File {
            return Storage::Packed(e).bytes(dims);
        }
        let (&columns, front) = dims.split_last()?;
        let rows: i64 = front.iter().product();
        let packing = Packing::known(e)?;
        (rows % self.lanes() == 0 && columns % packing.elements == 0)
            .then(|| (rows * packing.row_bytes(self, columns)) as usize)
    }
}

/// Bytes of the widest load, to which planes are aligned.
const WIDEST: i64 = 16;

/// A power of two of bits of a code.
#[derive(Clone, Copy, Debug)]
pub struct CodePart {
    /// Its bits.
    pub bits: i64,
    /// Of these, those that the code may have set.
    kept: i64,
    /// Its place in the code.
    pub shift: i64,
    /// Bytes of a row's unit before it.
    pub offset: i64,
    /// Its number among the planes.
    plane: usize,
}

/// What is stored for the elements of a block.
#[derive(Clone, Debug)]
pub enum Kind {
    /// One number for so many elements.
    Scale {
        /// Elements.
        every: i64,
        /// How it is stored.
        stored: Scalar,
        /// Bytes of a row's unit before it; of its block, if it serves more than a unit.
        offset: i64,
        /// Its number among the planes.
        plane: usize,
    },
    /// A whole number for each element, from 0 up.
    Code {
        /// Its parts, the lowest first.
        pieces: Vec<CodePart>,
    },
}

/// A number of the block that the value of an element is computed from.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// What stands for it in [`Packing::value`].
    hole: Id,
    /// The number, from the bytes of the file's block.
    source: Id,
    /// Where it is kept.
    pub kind: Kind,
}

/// An encoding taken apart.
#[derive(Clone, Debug)]
pub struct Packing {
    graph: Graph,
    /// The number of the element in its block, in `graph`.
    element: Id,
    /// Address of the block in the file's layout.
    base: Id,
    /// The file's bytes, in `graph`.
    buffer: Id,
    value: Id,
    /// What is stored.
    pub leaves: Vec<Leaf>,
    /// Elements of a block.
    pub elements: i64,
    /// Bytes of a row's block.
    pub bytes: i64,
    /// Of these, those before its units, and those of a unit.
    head: i64,
    unit_bytes: i64,
    /// Planes of a row: so many bytes for so many elements.
    planes: Vec<(i64, i64)>,
    /// Elements whose codes share vectors.
    pub unit: i64,
    /// Elements that share every scale, their own and the activation's.
    pub group: i64,
}

struct Parts<'a> {
    p: &'a mut Packing,
    memo: FxHashMap<Id, Option<Id>>,
}

impl Packing {
    /// The number that every code has added to it, if it is the same for all and nothing else is added; of a table, its least entry, which is
    /// taken from all.
    pub fn zero(&self) -> Option<i64> {
        let g = &self.graph;
        let all = g.toposort(&[self.value]);
        if all.iter().any(|&id| matches!(g[id].op, Op::Add | Op::Sub) && !g.scalar(id).is_int()) {
            return None;
        }
        all.into_iter().find_map(|id| match (g[id].op, &g[id].arg) {
            (Op::Add, _) => g.int_value(g[id].src[1]),
            (Op::Table, Arg::Ints(entries)) => entries.iter().min().filter(|&&least| least < 0).map(|&n| n.into()),
            _ => None,
        })
    }
    /// What type a scale has that is put together from bits, and may be of any size, if one is.
    pub fn scales_of_bits(&self) -> Option<Scalar> {
        let all = self.graph.toposort(&[self.value]);
        all.into_iter().find(|&id| self.graph[id].op == Op::Bitcast).map(|id| self.graph.scalar(id))
    }
    /// As [`Packing::for_encoding`], once for each format in a process.
    pub fn known(e: EncodingRef) -> Option<Arc<Packing>> {
        static KNOWN: LazyLock<Mutex<FxHashMap<EncodingRef, Option<Arc<Packing>>>>> = LazyLock::new(Mutex::default);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(e).or_insert_with(|| Packing::for_encoding(e).map(Arc::new)).clone()
    }
    /// Takes a format apart; `None` if its elements are no whole numbers of at most eight bits with scales.
    pub fn for_encoding(e: EncodingRef) -> Option<Packing> {
        let elements = e.elements as i64;
        let unit = group_of(e.elements) as i64;
        if unit < 4 {
            return None;
        }
        let mut graph = Graph::new();
        let buffer = graph.packed(0, &[elements], e);
        let base = graph.var("base", 0, 1 << 40);
        let element = graph.var("element", 0, elements - 1);
        let whole = e.decode(&mut graph, buffer, base, element);
        let mut p = Packing {
            graph,
            element,
            base,
            buffer,
            value: whole,
            leaves: vec![],
            elements,
            bytes: 0,
            head: 0,
            unit_bytes: 0,
            planes: vec![],
            unit,
            group: unit,
        };
        let mut parts = Parts { p: &mut p, memo: FxHashMap::default() };
        let value = parts.strip(whole)?;
        p.value = value;
        // Scales first, so that they are known when the codes come; the wide ones before the narrow.
        let mut order: Vec<usize> = (0..p.leaves.len()).collect();
        let wide = |l: &Leaf| match &l.kind {
            Kind::Scale { stored, .. } => -(stored.bytes() as i64),
            Kind::Code { .. } => 1,
        };
        order.sort_by_key(|&i| wide(&p.leaves[i]));
        order.into_iter().for_each(|i| p.give_place(i));
        p.bytes = p.head + elements / unit * p.unit_bytes;
        let codes = p.leaves.iter().any(|l| matches!(l.kind, Kind::Code { .. }));
        (codes && p.group >= 4).then_some(p)
    }

    /// Lays out a leaf behind those before it. What serves more than a unit comes first; then, unit by unit, the rest: a kernel reads all of it as one stream.
    fn give_place(&mut self, i: usize) {
        match &mut self.leaves[i].kind {
            Kind::Scale { every, stored, offset, plane } => {
                *plane = self.planes.len();
                self.planes.push((*every, stored.bytes() as i64));
                self.group = gcd(self.group, *every);
                let (at, of) = if self.unit % *every == 0 {
                    (&mut self.unit_bytes, self.unit)
                } else {
                    (&mut self.head, self.elements)
                };
                *offset = *at;
                *at += of / *every * stored.bytes() as i64;
            }
            Kind::Code { pieces } => {
                for piece in pieces {
                    piece.offset = self.unit_bytes;
                    piece.plane = self.planes.len();
                    self.planes.push((self.unit, self.unit * piece.bits / 8));
                    self.unit_bytes += self.unit * piece.bits / 8;
                }
            }
        }
    }

    /// Bytes of a row.
    fn row_bytes(&self, layout: Layout, columns: i64) -> i64 {
        match layout {
            Layout::Planes => self.plane_at(self.planes.len(), columns),
            _ => columns / self.elements * self.bytes,
        }
    }
    /// Bytes of a row before that plane.
    fn plane_at(&self, number: usize, columns: i64) -> i64 {
        let bytes =
            |&(elements, bytes): &(i64, i64)| ((columns / elements * bytes) as u64).next_multiple_of(WIDEST as u64);
        self.planes[..number].iter().map(bytes).sum::<u64>() as i64
    }

    /// The value of the element there: as the format's own description gives it, bit for bit.
    pub fn decode(&self, g: &mut Graph, buffer: Id, place: &Place) -> Id {
        let mut map = FxHashMap::from_iter([(self.element, place.element)]);
        for leaf in &self.leaves {
            let v = self.read(g, buffer, leaf, place);
            map.insert(leaf.hole, v);
        }
        g.import(&self.graph, self.value, &mut map)
    }

    /// What a leaf is in the file: at element `within` of the block at address `base` of `buffer`.
    pub fn source(&self, g: &mut Graph, leaf: &Leaf, buffer: Id, base: Id, within: Id) -> Id {
        let mut map = FxHashMap::from_iter([(self.element, within), (self.base, base), (self.buffer, buffer)]);
        g.import(&self.graph, leaf.source, &mut map)
    }

    /// Where element `k` of row `row` is.
    pub fn place(&self, g: &mut Graph, layout: Layout, row: Id, k: Id, columns: i64) -> Place {
        let lanes = layout.lanes();
        let e = g.int(self.elements);
        let (block, element) = (g.idiv(k, e), g.modulo(k, e));
        if layout == Layout::Planes {
            let bytes = g.int(self.row_bytes(layout, columns));
            let (base, lane) = (g.mul(row, bytes), g.int(0));
            return Place { base, lane, element, lanes, planes: Some(OfRow { element: k, columns }) };
        }
        let [l, blocks, bytes] = [lanes, columns / self.elements, lanes * self.bytes].map(|v| g.int(v));
        let (group, lane) = (g.idiv(row, l), g.modulo(row, l));
        let at = g.mul(group, blocks);
        let at = g.add(at, block);
        let base = g.mul(at, bytes);
        Place { base, lane, element, lanes, planes: None }
    }

    /// Address of the group of elements with the element in it, in a plane; and the element's number in its group.
    fn in_plane(&self, g: &mut Graph, place: &Place, of: OfRow, plane: usize) -> (Id, Id) {
        let (elements, bytes) = self.planes[plane];
        let [elements, bytes, start] = [elements, bytes, self.plane_at(plane, of.columns)].map(|v| g.int(v));
        let (number, within) = (g.idiv(of.element, elements), g.modulo(of.element, elements));
        let number = g.mul(number, bytes);
        let at = g.add(place.base, start);
        (g.add(at, number), within)
    }

    /// Address of a scale.
    pub fn scale_at(&self, g: &mut Graph, place: &Place, kind: &Kind) -> Id {
        let &Kind::Scale { every, stored, offset, plane } = kind else { unreachable!("a scale") };
        if let Some(of) = place.planes {
            return self.in_plane(g, place, of, plane).0;
        }
        let (size, number) = (stored.bytes() as i64, g.int(every));
        let [row, all] = [size, size * place.lanes].map(|v| g.int(v));
        let (start, within) = match self.unit % every {
            0 => self.unit_at(g, place, offset),
            _ => {
                let start = g.int(offset * place.lanes);
                (g.add(place.base, start), place.element)
            }
        };
        let number = g.idiv(within, number);
        let (number, lane) = (g.mul(number, all), g.mul(place.lane, row));
        let at = g.add(start, number);
        g.add(at, lane)
    }

    /// Address of what is `offset` bytes of a row behind the beginning of the element's unit, and the element's number in it.
    fn unit_at(&self, g: &mut Graph, place: &Place, offset: i64) -> (Id, Id) {
        let [unit, step, start] =
            [self.unit, self.unit_bytes * place.lanes, (self.head + offset) * place.lanes].map(|v| g.int(v));
        let (number, within) = (g.idiv(place.element, unit), g.modulo(place.element, unit));
        let number = g.mul(number, step);
        let at = g.add(place.base, start);
        (g.add(at, number), within)
    }

    /// Address of the byte that holds a piece of a code, and the piece's shift in it.
    pub fn piece_at(&self, g: &mut Graph, place: &Place, piece: &CodePart) -> (Id, Id) {
        // Vectors of a unit: each holds as many quads of elements as pieces fit into a byte.
        let vectors = self.unit * piece.bits / 32;
        let quad = 4 * place.lanes;
        let [four, vs] = [4, vectors].map(|v| g.int(v));
        let (start, within) = match place.planes {
            Some(of) => self.in_plane(g, place, of, piece.plane),
            None => self.unit_at(g, place, piece.offset),
        };
        let (q, byte) = (g.idiv(within, four), g.modulo(within, four));
        let (slot, vector) = (g.idiv(q, vs), g.modulo(q, vs));
        let [of_vector, bits] = [quad, piece.bits].map(|v| g.int(v));
        let mut at = start;
        for (part, step) in [(vector, of_vector), (place.lane, four)] {
            let part = g.mul(part, step);
            at = g.add(at, part);
        }
        (g.add(at, byte), g.mul(slot, bits))
    }

    fn read(&self, g: &mut Graph, buffer: Id, leaf: &Leaf, place: &Place) -> Id {
        match &leaf.kind {
            Kind::Scale { stored, .. } => {
                let at = self.scale_at(g, place, &leaf.kind);
                let raw = g.load(buffer, at, *stored);
                g.cast(raw, self.graph.scalar(leaf.hole))
            }
            Kind::Code { pieces } => {
                let mut code = g.int_of(Scalar::I32, 0);
                for piece in pieces {
                    let (at, shift) = self.piece_at(g, place, piece);
                    let raw = g.load(buffer, at, Scalar::U8);
                    let byte = g.cast(raw, Scalar::I32);
                    let part = g.shr(byte, shift);
                    let (mask, up) = (g.int_of(Scalar::I32, (1 << piece.kept) - 1), g.int(piece.shift));
                    let part = g.and(part, mask);
                    let part = g.shl(part, up);
                    code = g.or(code, part);
                }
                code
            }
        }
    }
}

/// An element's place: the block's address, the row among those interleaved, the element in the block.
pub struct Place {
    base: Id,
    lane: Id,
    element: Id,
    lanes: i64,
    /// With rows as planes, its place in its row.
    planes: Option<OfRow>,
}

/// An element's place in its row.
#[derive(Clone, Copy)]
struct OfRow {
    element: Id,
    /// Elements of the row.
    columns: i64,
}
