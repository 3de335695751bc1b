//! Memory layouts of packed weights: as in the file, with interleaved rows, or with rows as planes.
//!
//! The latter two are derived from the format's description. A block is decomposed into *leaves*:
//! codes, one for each element, and scales, one for each group of elements. Codes are stored
//! unsigned and split into parts with power-of-two widths; elements are paired so that the
//! lanes of one vector operation use the same shift and mask. Scales keep their type, or take a
//! byte if the file packs them more tightly. The interleaved layout stores `lanes` consecutive rows
//! together, block by block:
//!
//! ```text
//! scales of the block, of each row · then for every unit of 32 elements:
//!   scales of the unit, of each row · codes of elements 0..4 of each row (4 bytes a row) ·
//!   codes of elements 4..8 of each row · …
//! ```
//!
//! so that one vector load yields four elements of as many rows as a vector has lanes, and a kernel
//! reads its rows as one sequential stream.
//!
//! Threads that share a row need contiguous codes instead. In the planes layout each row stores one
//! leaf after the other, its values in element order, each plane aligned for the widest load. Codes
//! are split and paired in units as above.

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

/// Memory layout of a packed weight's rows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Layout {
    /// As in the file.
    #[default]
    File,
    /// That many rows interleaved.
    Rows(u16),
    /// Each row as planes, one per leaf.
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
        let Some(rest) = text.trim().strip_prefix("layout:") else {
            return bad(text);
        };
        match rest.split_whitespace().collect::<Vec<_>>()[..] {
            ["file"] => Ok(Layout::File),
            ["planes"] => Ok(Layout::Planes),
            ["rows", n] => count(n)
                .and_then(|_| n.parse().or_else(|_| bad(n)))
                .map(Layout::Rows),
            _ => bad(rest),
        }
    }
}

impl Layout {
    /// Number of interleaved rows; 1 for the other layouts.
    pub fn lanes(self) -> i64 {
        match self {
            Layout::Rows(n) => n as i64,
            Layout::File | Layout::Planes => 1,
        }
    }

    /// Bytes of a weight with these dims; `None` if this layout cannot hold it.
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

/// Bytes of the widest load, the alignment of planes.
const WIDEST: i64 = 16;

/// A part of a code; its width is a power of two.
#[derive(Clone, Copy, Debug)]
pub struct CodePart {
    /// Width of the part in bits.
    pub bits: i64,
    /// Number of its bits that a code may set.
    kept: i64,
    /// Bit position in the code.
    pub shift: i64,
    /// Byte offset in a row's unit.
    pub offset: i64,
    /// Index of its plane.
    plane: usize,
}

/// Kind of a leaf, and its storage.
#[derive(Clone, Debug)]
pub enum Kind {
    /// One number for each group of elements.
    Scale {
        /// Elements that share one number.
        every: i64,
        /// Scalar type in memory.
        stored: Scalar,
        /// Byte offset in a row's unit, or in its block if it serves more than a unit.
        offset: i64,
        /// Index of its plane.
        plane: usize,
    },
    /// One unsigned integer for each element.
    Code {
        /// Parts of the code, lowest bits first.
        parts: Vec<CodePart>,
    },
}

/// A number in a block that an element's value is computed from.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Placeholder for it in [`Packing::value`].
    hole: Id,
    /// Expression that reads it from the file's block.
    source: Id,
    /// Kind of the number, and its storage.
    pub kind: Kind,
}

/// An encoding decomposed into leaves.
#[derive(Clone, Debug)]
pub struct Packing {
    graph: Graph,
    /// Index of the element in its block, in `graph`.
    element: Id,
    /// Address of the block in the file layout.
    base: Id,
    /// The file's bytes, in `graph`.
    buffer: Id,
    value: Id,
    /// Codes and scales of a block.
    pub leaves: Vec<Leaf>,
    /// Elements of a block.
    pub elements: i64,
    /// Bytes of one row's block.
    pub bytes: i64,
    /// Bytes of a block before its units; bytes of a unit.
    head: i64,
    unit_bytes: i64,
    /// Planes of a row, each as elements and bytes of a group.
    planes: Vec<(i64, i64)>,
    /// Elements whose codes share vectors.
    pub unit: i64,
    /// Elements that share every scale, both their own and the activations'.
    pub group: i64,
}

struct Parts<'a> {
    p: &'a mut Packing,
    memo: FxHashMap<Id, Option<Id>>,
}

impl Packing {
    /// The constant added to every code, if it is the only addition. For a table it is the least
    /// entry, if negative, which is subtracted from all entries.
    pub fn zero(&self) -> Option<i64> {
        let g = &self.graph;
        let all = g.toposort(&[self.value]);
        if all
            .iter()
            .any(|&id| matches!(g[id].op, Op::Add | Op::Sub) && !g.scalar(id).is_int())
        {
            return None;
        }
        all.into_iter().find_map(|id| match (g[id].op, &g[id].arg) {
            (Op::Add, _) => g.int_value(g[id].src[1]),
            (Op::Table, Arg::Ints(entries)) => entries
                .iter()
                .min()
                .filter(|&&least| least < 0)
                .map(|&n| n.into()),
            _ => None,
        })
    }
    /// Type of a scale that is assembled from bits and may thus have any magnitude,
    /// if there is one.
    pub fn scales_of_bits(&self) -> Option<Scalar> {
        let all = self.graph.toposort(&[self.value]);
        all.into_iter()
            .find(|&id| self.graph[id].op == Op::Bitcast)
            .map(|id| self.graph.scalar(id))
    }
    /// Returns [`Packing::for_encoding`], cached per format for the process.
    pub fn known(e: EncodingRef) -> Option<Arc<Packing>> {
        static KNOWN: LazyLock<Mutex<FxHashMap<EncodingRef, Option<Arc<Packing>>>>> =
            LazyLock::new(Mutex::default);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .entry(e)
            .or_insert_with(|| Packing::for_encoding(e).map(Arc::new))
            .clone()
    }
    /// Decomposes a format; `None` unless its elements are integers of at most
    /// eight bits with scales.
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
        let mut parts = Parts {
            p: &mut p,
            memo: FxHashMap::default(),
        };
        let value = parts.strip(whole)?;
        p.value = value;
        // Scales precede codes, and wide scales precede narrow ones, so that scales are known when
        // the codes are read.
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

    /// Assigns a leaf the next free offset. Leaves that serve more than a unit come first, then the
    /// others unit by unit, so that a kernel reads everything as one stream.
    fn give_place(&mut self, i: usize) {
        match &mut self.leaves[i].kind {
            Kind::Scale {
                every,
                stored,
                offset,
                plane,
            } => {
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
            Kind::Code { parts } => {
                for part in parts {
                    part.offset = self.unit_bytes;
                    part.plane = self.planes.len();
                    self.planes.push((self.unit, self.unit * part.bits / 8));
                    self.unit_bytes += self.unit * part.bits / 8;
                }
            }
        }
    }

    /// Bytes of a row in that layout.
    fn row_bytes(&self, layout: Layout, columns: i64) -> i64 {
        match layout {
            Layout::Planes => self.plane_at(self.planes.len(), columns),
            _ => columns / self.elements * self.bytes,
        }
    }
    /// Byte offset of a plane in its row.
    fn plane_at(&self, number: usize, columns: i64) -> i64 {
        let bytes = |&(elements, bytes): &(i64, i64)| {
            ((columns / elements * bytes) as u64).next_multiple_of(WIDEST as u64)
        };
        self.planes[..number].iter().map(bytes).sum::<u64>() as i64
    }

    /// The value of the element at `place`, bit-identical to the format's own description.
    pub fn decode(&self, g: &mut Graph, buffer: Id, place: &Place) -> Id {
        let mut map = FxHashMap::from_iter([(self.element, place.element)]);
        for leaf in &self.leaves {
            let v = self.read(g, buffer, leaf, place);
            map.insert(leaf.hole, v);
        }
        g.import(&self.graph, self.value, &mut map)
    }

    /// The expression of a leaf in file layout, for element `within` of the block at
    /// address `base` of `buffer`.
    pub fn source(&self, g: &mut Graph, leaf: &Leaf, buffer: Id, base: Id, within: Id) -> Id {
        let mut map = FxHashMap::from_iter([
            (self.element, within),
            (self.base, base),
            (self.buffer, buffer),
        ]);
        g.import(&self.graph, leaf.source, &mut map)
    }

    /// Location of element `k` of row `row`.
    pub fn place(&self, g: &mut Graph, layout: Layout, row: Id, k: Id, columns: i64) -> Place {
        let lanes = layout.lanes();
        let e = g.int(self.elements);
        let (block, element) = (g.idiv(k, e), g.modulo(k, e));
        if layout == Layout::Planes {
            let bytes = g.int(self.row_bytes(layout, columns));
            let (base, lane) = (g.mul(row, bytes), g.int(0));
            return Place {
                base,
                lane,
                element,
                lanes,
                planes: Some(OfRow {
                    element: k,
                    columns,
                }),
            };
        }
        let [l, blocks, bytes] =
            [lanes, columns / self.elements, lanes * self.bytes].map(|v| g.int(v));
        let (group, lane) = (g.idiv(row, l), g.modulo(row, l));
        let at = g.mul(group, blocks);
        let at = g.add(at, block);
        let base = g.mul(at, bytes);
        Place {
            base,
            lane,
            element,
            lanes,
            planes: None,
        }
    }

    /// Address of the element's group in a plane, and the element's index in that group.
    fn in_plane(&self, g: &mut Graph, place: &Place, of: OfRow, plane: usize) -> (Id, Id) {
        let (elements, bytes) = self.planes[plane];
        let [elements, bytes, start] =
            [elements, bytes, self.plane_at(plane, of.columns)].map(|v| g.int(v));
        let (number, within) = (g.idiv(of.element, elements), g.modulo(of.element, elements));
        let number = g.mul(number, bytes);
        let at = g.add(place.base, start);
        (g.add(at, number), within)
    }

    /// Address of a scale.
    pub fn scale_at(&self, g: &mut Graph, place: &Place, kind: &Kind) -> Id {
        let &Kind::Scale {
            every,
            stored,
            offset,
            plane,
        } = kind
        else {
            unreachable!("a scale")
        };
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

    /// Address at byte `offset` of a row's part of the element's unit, and the element's
    /// index in that unit.
    fn unit_at(&self, g: &mut Graph, place: &Place, offset: i64) -> (Id, Id) {
        let [unit, step, start] = [
            self.unit,
            self.unit_bytes * place.lanes,
            (self.head + offset) * place.lanes,
        ]
        .map(|v| g.int(v));
        let (number, within) = (g.idiv(place.element, unit), g.modulo(place.element, unit));
        let number = g.mul(number, step);
        let at = g.add(place.base, start);
        (g.add(at, number), within)
    }

    /// Address of the byte that holds a part of a code, and the part's shift in that byte.
    pub fn part_at(&self, g: &mut Graph, place: &Place, part: &CodePart) -> (Id, Id) {
        // Vectors of a unit: each holds as many quads of elements as parts fit into a byte.
        let vectors = self.unit * part.bits / 32;
        let quad = 4 * place.lanes;
        let [four, vs] = [4, vectors].map(|v| g.int(v));
        let (start, within) = match place.planes {
            Some(of) => self.in_plane(g, place, of, part.plane),
            None => self.unit_at(g, place, part.offset),
        };
        let (q, byte) = (g.idiv(within, four), g.modulo(within, four));
        let (slot, vector) = (g.idiv(q, vs), g.modulo(q, vs));
        let [of_vector, bits] = [quad, part.bits].map(|v| g.int(v));
        let mut at = start;
        for (term, step) in [(vector, of_vector), (place.lane, four)] {
            let term = g.mul(term, step);
            at = g.add(at, term);
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
            Kind::Code { parts } => {
                let mut code = g.int_of(Scalar::I32, 0);
                for part in parts {
                    let (at, shift) = self.part_at(g, place, part);
                    let raw = g.load(buffer, at, Scalar::U8);
                    let byte = g.cast(raw, Scalar::I32);
                    let bits = g.shr(byte, shift);
                    let (mask, up) = (
                        g.int_of(Scalar::I32, (1 << part.kept) - 1),
                        g.int(part.shift),
                    );
                    let bits = g.and(bits, mask);
                    let bits = g.shl(bits, up);
                    code = g.or(code, bits);
                }
                code
            }
        }
    }
}

/// Location of an element: block address, index of the interleaved row, index in the block.
pub struct Place {
    base: Id,
    lane: Id,
    element: Id,
    lanes: i64,
    /// Location in the row, for rows as planes.
    planes: Option<OfRow>,
}

/// Location of an element in its row.
#[derive(Clone, Copy)]
struct OfRow {
    element: Id,
    /// Elements of the row.
    columns: i64,
}
