//! Where the numbers of a block are, found in the encoding's expression.
//!
//! The expression of element `k` is `scale · level(code)` or `scale · level(code) ± offset`, where
//! scale and offset are products of an f16 of the block and a number of the element's group. Those
//! numbers and the code are *fields*: some bits of the block and a table of their values. The bits
//! are those that change the value, and the table is the value of each setting of them, so a
//! format needs no description of its packing. Elements may share the bits of a code: see
//! [`super::cells`].

use super::cells::{self, CodeFactor};
use super::evaluate::Element;
use super::fit::Codes;
use super::joint::Joint;
use super::levels::{LANES, Levels};
use gristmill_uop::Id;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::op::Op;
use half::f16;
use std::collections::HashMap;
use std::ops::Range;

/// Most bits of a field: its table has a value for every setting.
const MAX_BITS: usize = 8;
/// Most bytes that a field's expression may read.
const MAX_BYTES: usize = 8;

/// Neighbouring bits of a byte as a part of a code.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Piece {
    byte: u16,
    /// First bit in the byte.
    shift: u8,
    /// As many low bits as the piece has.
    mask: u8,
    /// First bit in the code.
    to: u8,
}

/// A code in at most two bytes of a block.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Place([Piece; 2]);

impl Place {
    /// Returns the place of a code whose bits are these, as numbers of bits of the block, the
    /// lowest first; `None` for bits of more than two runs.
    fn new(bits: &[usize]) -> Option<Place> {
        let (mut pieces, mut count) = ([Piece::default(); 2], 0);
        for (to, &bit) in bits.iter().enumerate() {
            let follows = to > 0 && bits[to - 1] + 1 == bit && bit % 8 != 0;
            if !follows {
                *pieces.get_mut(count)? = Piece {
                    byte: u16::try_from(bit / 8).ok()?,
                    shift: (bit % 8) as u8,
                    mask: 0,
                    to: to as u8,
                };
                count += 1;
            }
            let piece = &mut pieces[count - 1];
            piece.mask = piece.mask << 1 | 1;
        }
        Some(Place(pieces))
    }
    /// Reads the code, below two to the number of its bits.
    #[inline]
    pub fn get(&self, block: &[u8]) -> usize {
        let part = |p: Piece| usize::from((block[usize::from(p.byte)] >> p.shift) & p.mask) << p.to;
        part(self.0[0]) | part(self.0[1])
    }
    /// Writes the code into zero bits.
    #[inline]
    pub fn set(&self, block: &mut [u8], code: u16) {
        for p in self.0 {
            block[usize::from(p.byte)] |= ((code >> p.to) as u8 & p.mask) << p.shift;
        }
    }
}

/// A number of a group: place and values.
#[derive(Clone, Debug)]
pub(super) struct Field {
    place: Place,
    /// Value of each code.
    values: Vec<f32>,
    /// Values that are written, and their codes.
    pub levels: Levels,
}

impl Field {
    fn value(&self, block: &[u8]) -> f32 {
        self.values[self.place.get(block)]
    }
    /// Writes entry `index` of the levels.
    pub fn set(&self, block: &mut [u8], index: usize) {
        self.place.set(block, self.levels.code(index));
    }
}

/// Where the 16 bits of an f16 are.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Half {
    /// In two bytes from this one.
    Bytes(usize),
    /// In these bits of the block, the lowest first.
    Bits(Vec<usize>),
}

impl Half {
    fn get(&self, block: &[u8]) -> f32 {
        let bit = |bit: &usize| u16::from(block[bit / 8] >> (bit % 8) & 1);
        match self {
            Half::Bytes(at) => f16::from_le_bytes([block[*at], block[*at + 1]]),
            Half::Bits(bits) => {
                let bits = bits.iter().enumerate();
                f16::from_bits(bits.fold(0, |half, (i, of)| half | bit(of) << i))
            }
        }
        .to_f32()
    }
    /// Writes the nearest f16 into zero bits.
    pub fn set(&self, block: &mut [u8], v: f32) {
        let half = f16::from_f32(v);
        match self {
            Half::Bytes(at) => block[*at..at + 2].copy_from_slice(&half.to_le_bytes()),
            Half::Bits(bits) => {
                for (i, bit) in bits.iter().enumerate() {
                    block[bit / 8] |= ((half.to_bits() >> i & 1) as u8) << (bit % 8);
                }
            }
        }
    }
}

/// A scale or an offset: an f16 of the block, a field of each group, or the product of both.
#[derive(Clone, Debug)]
pub(super) struct Factor {
    /// Place of the f16, if there is one.
    pub half: Option<Half>,
    /// -1 for an offset that is subtracted.
    pub sign: f32,
    /// A field for each group, or none.
    pub fields: Vec<Field>,
}

impl Factor {
    fn value(&self, block: &[u8], group: usize) -> f32 {
        let half = self.half.as_ref().map(|half| half.get(block));
        let field = self.fields.get(group).map(|field| field.value(block));
        match (half, field) {
            (Some(half), Some(field)) => half * field,
            (half, field) => half.or(field).unwrap_or(1.0),
        }
    }
}

/// The codes of a block's elements.
#[derive(Clone, Debug)]
pub(super) enum ElementCodes {
    /// Place of the code of each element, and the value of each code.
    Single(Vec<Place>, Vec<f32>),
    Joint(Joint),
}

/// Layout of a block.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub codes: ElementCodes,
    /// Values of an element's codes.
    pub levels: Levels,
    /// Elements of each group.
    pub groups: Vec<Range<usize>>,
    /// Factor of the levels.
    pub scale: Factor,
    /// What is added to the scaled levels, if anything.
    pub offset: Option<Factor>,
}

/// An element's code, and the factors of its group: scale and offset.
type Split = (Found, [Option<Product>; 2]);

impl Layout {
    /// Derives the layout of an encoding; `None` for one of another form.
    pub fn new(encoding: EncodingRef) -> Option<Layout> {
        let elements = (0..encoding.elements).map(|k| parts_of(encoding, k));
        let elements: Vec<Parts> = elements.collect::<Option<_>>()?;
        let mut uses: HashMap<usize, usize> = HashMap::new();
        let all_bits = elements.iter().flat_map(|parts| &parts.scale.fields);
        for &bit in all_bits.flat_map(|field| &field.bits) {
            *uses.entry(bit).or_default() += 1;
        }
        // Groups are larger than the cells of elements that share a code.
        let is_code = |field: &Found| field.bits.iter().any(|bit| uses[bit] <= LANES);
        let split = |parts: &Parts| {
            let of_scale = &parts.scale.fields;
            let code = of_scale.iter().find(|field| is_code(field))?.clone();
            let rest = of_scale.iter().filter(|field| **field != code).cloned();
            let scale = Product {
                fields: rest.collect(),
                ..parts.scale.clone()
            };
            Some((code, [Some(scale), parts.offset.clone()]))
        };
        let split: Vec<Split> = elements.iter().map(split).collect::<Option<_>>()?;
        let groups: Vec<Range<usize>> = runs(&split);
        let (codes, levels) = codes_of(encoding, &split, &uses)?;
        let is_whole = |group: &Range<usize>| group.len().is_multiple_of(LANES);
        if !groups.iter().all(is_whole) {
            return None;
        }
        let factor = |side: usize| {
            let of_group = groups
                .iter()
                .map(|group| split[group.start].1[side].as_ref());
            factor_of(of_group.collect::<Option<Vec<_>>>()?, levels.extent())
        };
        let offset = match split[0].1[1] {
            Some(_) if levels.is_linear() => Some(factor(1)?),
            Some(_) => return None,
            None => None,
        };
        Some(Layout {
            codes,
            scale: factor(0)?,
            offset,
            levels,
            groups,
        })
    }
    /// The values to which numbers are rounded.
    pub fn rounding(&self) -> Codes<'_> {
        let grid = match &self.codes {
            ElementCodes::Joint(joint) if !joint.is_free => Some(joint),
            _ => None,
        };
        Codes {
            levels: &self.levels,
            grid,
        }
    }
    /// Decodes one block, bit for bit as the encoding's expression.
    pub fn decode(&self, block: &[u8], out: &mut [f32]) {
        match &self.codes {
            ElementCodes::Single(places, values) => {
                let levels = places.iter().map(|place| values[place.get(block)]);
                out.iter_mut()
                    .zip(levels)
                    .for_each(|(out, level)| *out = level);
            }
            ElementCodes::Joint(joint) => joint.levels(block, out),
        }
        for (number, group) in self.groups.iter().enumerate() {
            let scale = self.scale.value(block, number);
            let out = &mut out[group.clone()];
            out.iter_mut().for_each(|out| *out *= scale);
            if let Some(offset) = &self.offset {
                let added = offset.sign * offset.value(block, number);
                out.iter_mut().for_each(|out| *out += added);
            }
        }
    }
}

/// Derives the codes of all elements, and the values that an element may have.
fn codes_of(
    encoding: EncodingRef,
    split: &[Split],
    uses: &HashMap<usize, usize>,
) -> Option<(ElementCodes, Levels)> {
    let all_bits = split.iter().flat_map(|(code, _)| &code.bits);
    let is_single = all_bits.clone().all(|bit| uses[bit] == 1);
    if is_single {
        let values = split[0].0.values.clone();
        if split.iter().any(|(code, _)| code.values != values) {
            return None;
        }
        let places = split.iter().map(|(code, _)| Place::new(&code.bits));
        let codes = ElementCodes::Single(places.collect::<Option<_>>()?, values);
        return Some((codes, split[0].0.levels()?));
    }
    let factor = |(code, _): &Split| CodeFactor {
        node: code.node,
        bits: code.bits.clone(),
    };
    let codes: Vec<CodeFactor> = split.iter().map(factor).collect();
    let joint = cells::find(encoding, &codes, uses)?;
    let levels = Levels::new(joint.values().map(|value| (value, 0)).collect())?;
    Some((ElementCodes::Joint(joint), levels))
}

/// Returns the runs of elements with equal factors.
fn runs(elements: &[Split]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for k in 0..elements.len() {
        match runs.last_mut() {
            Some(run) if elements[run.start].1 == elements[k].1 => run.end = k + 1,
            _ => runs.push(k..k + 1),
        }
    }
    runs
}

/// Combines the factors of all groups; `None` if they are not of one form. `extent` is the
/// largest magnitude of a level.
fn factor_of(groups: Vec<&Product>, extent: f32) -> Option<Factor> {
    let first = groups[0];
    if groups
        .iter()
        .any(|g| g.half != first.half || g.fields.len() != first.fields.len())
    {
        return None;
    }
    let fields: Vec<Field> = match &first.fields[..] {
        [] if first.constant == 1.0 && first.half.is_some() && groups.len() == 1 => Vec::new(),
        [_] => {
            // Without an f16, a large value times a level may be infinite.
            let limit = if first.half.is_some() {
                f32::MAX
            } else {
                f32::MAX / extent
            };
            let field = |group: &&Product| group.fields[0].scaled(group.constant).field(limit);
            groups.iter().map(field).collect::<Option<_>>()?
        }
        _ => return None,
    };
    Some(Factor {
        half: first.half.clone(),
        sign: first.sign,
        fields,
    })
}

/// A field as it was found: the numbers of its bits and the value of each setting, if these are not
/// too many.
#[derive(Clone, Debug)]
struct Found {
    /// Node of the element's graph.
    node: Id,
    bits: Vec<usize>,
    values: Vec<f32>,
}

impl PartialEq for Found {
    /// Fields of different elements are equal if the same bits mean the same.
    fn eq(&self, other: &Found) -> bool {
        self.bits == other.bits && self.values == other.values
    }
}

impl Found {
    /// Returns the field with its values multiplied by a constant of the expression.
    fn scaled(&self, by: f32) -> Found {
        let values = self.values.iter().map(|v| v * by).collect();
        Found {
            node: self.node,
            bits: self.bits.clone(),
            values,
        }
    }
    /// Bits that decide over values: a bit that matters for few settings of the others, such as an
    /// ignored sign, is written as zero.
    fn written(&self) -> usize {
        let matters = |bit: &usize| {
            let differs = |code: &usize| {
                let other = code ^ 1 << bit;
                self.values[*code] != self.values[other]
            };
            2 * (0..self.values.len()).filter(differs).count() >= self.values.len()
        };
        (0..self.bits.len())
            .filter(matters)
            .map(|bit| 1 << bit)
            .sum()
    }
    fn levels(&self) -> Option<Levels> {
        self.levels_within(f32::MAX)
    }
    fn levels_within(&self, limit: f32) -> Option<Levels> {
        let written = self.written();
        let codes = (0..self.values.len()).filter(|code| code & !written == 0);
        let finite = codes.filter(|&code| self.values[code].abs() <= limit);
        Levels::new(
            finite
                .map(|code| (self.values[code], code as u16))
                .collect(),
        )
    }
    fn field(&self, limit: f32) -> Option<Field> {
        if self.values.is_empty() {
            return None;
        }
        Some(Field {
            place: Place::new(&self.bits)?,
            levels: self.levels_within(limit)?,
            values: self.values.clone(),
        })
    }
}

/// A product of an f16 of the block, constants and fields.
#[derive(Clone, PartialEq, Debug)]
struct Product {
    half: Option<Half>,
    constant: f32,
    sign: f32,
    fields: Vec<Found>,
}

/// The value of an element: a product, and another that is added.
struct Parts {
    scale: Product,
    offset: Option<Product>,
}

fn parts_of(encoding: EncodingRef, k: usize) -> Option<Parts> {
    let element = Element::new(encoding, k);
    let node = &element.graph[element.root];
    let product = |id, sign| product_of(&element, id, sign, encoding.bytes);
    match node.op {
        Op::Add => Some(Parts {
            scale: product(node.src[0], 1.0)?,
            offset: Some(product(node.src[1], 1.0)?),
        }),
        Op::Sub => Some(Parts {
            scale: product(node.src[0], 1.0)?,
            offset: Some(product(node.src[1], -1.0)?),
        }),
        _ => Some(Parts {
            scale: product(element.root, 1.0)?,
            offset: None,
        }),
    }
}

fn product_of(element: &Element, id: Id, sign: f32, bytes: usize) -> Option<Product> {
    let mut product = Product {
        half: None,
        constant: 1.0,
        sign,
        fields: Vec::new(),
    };
    let mut left = vec![id];
    while let Some(id) = left.pop() {
        let node = &element.graph[id];
        if node.op == Op::Mul && node.dtype.scalar == Scalar::F32 {
            left.extend(&node.src);
        } else if let Some(value) = element.graph.float_value(id) {
            product.constant *= value as f32;
        } else if let Some((at, Scalar::F16)) =
            node.src.first().and_then(|&load| element.load_at(load))
        {
            if node.op != Op::Cast || product.half.replace(Half::Bytes(at)).is_some() {
                return None;
            }
        } else {
            let field = found(element, id, bytes)?;
            match is_half(element, &field, bytes) {
                true if product.half.is_some() => return None,
                true => product.half = Some(Half::Bits(field.bits)),
                false => product.fields.push(field),
            }
        }
    }
    Some(product)
}

/// Finds the bits that a node depends on, and its value for each setting of them.
fn found(element: &Element, id: Id, bytes: usize) -> Option<Found> {
    let order = element.graph.toposort(&[id]);
    let loads = order.iter().filter_map(|&id| element.load_at(id));
    let mut read: Vec<usize> = loads.flat_map(|(at, s)| at..at + s.bytes()).collect();
    read.sort_unstable();
    read.dedup();
    if read.is_empty() || read.len() > MAX_BYTES {
        return None;
    }
    let mut block = vec![0; bytes];
    let mut bits = Vec::new();
    for bit in read.iter().flat_map(|byte| byte * 8..byte * 8 + 8) {
        let mut differs = false;
        for fill in FILLS {
            read.iter()
                .zip(fill)
                .for_each(|(&at, fill)| block[at] = fill);
            let before = element.value(&order, &block)?;
            block[bit / 8] ^= 1 << (bit % 8);
            differs |= before.to_bits() != element.value(&order, &block)?.to_bits();
        }
        if differs {
            bits.push(bit);
        }
    }
    let mut found = Found {
        node: id,
        values: Vec::new(),
        bits,
    };
    if found.bits.len() <= MAX_BITS {
        let mut value = |code| value_of(element, &order, &found.bits, code, bytes);
        found.values = (0..1 << found.bits.len())
            .map(&mut value)
            .collect::<Option<_>>()?;
    }
    Some(found)
}

/// Value of a node with these bits of the block set as in `code`, all others zero.
fn value_of(
    element: &Element,
    order: &[Id],
    bits: &[usize],
    code: usize,
    bytes: usize,
) -> Option<f32> {
    let mut block = vec![0; bytes];
    for (i, bit) in bits.iter().enumerate() {
        block[bit / 8] |= ((code >> i & 1) as u8) << (bit % 8);
    }
    element.value(order, &block)
}

/// Whether a field is the f16 of its bits.
fn is_half(element: &Element, field: &Found, bytes: usize) -> bool {
    let order = element.graph.toposort(&[field.node]);
    let value = |half: f16| {
        let code = usize::from(half.to_bits());
        value_of(element, &order, &field.bits, code, bytes)
    };
    let samples = (0..256u16).map(|i| f16::from_bits((i * 257) ^ 0x1234));
    field.bits.len() == 16
        && samples
            .filter(|half| half.is_finite())
            .all(|half| value(half) == Some(half.to_f32()))
}

/// Settings of the bytes that a field's expression reads, in which each bit is tried.
const FILLS: [[u8; MAX_BYTES]; 6] = [
    [0; MAX_BYTES],
    [255; MAX_BYTES],
    [0x55, 0x33, 0x0f, 0xc6, 0x71, 0x2b, 0xd8, 0x94],
    [0xaa, 0xcc, 0xf0, 0x39, 0x8e, 0xd4, 0x27, 0x6b],
    [0x9d, 0x62, 0x7e, 0x81, 0x3c, 0xb5, 0x4a, 0xe6],
    [0x17, 0xe4, 0x5b, 0xd2, 0x90, 0x6f, 0xa3, 0x08],
];
