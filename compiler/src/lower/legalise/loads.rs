//! Legalise: loads that a machine has not, from those that it has. A machine whose least type has two or four bytes reads a byte as part of a word; one that computes with words alone adds up narrow
//! numbers in words.
//!
//! Loads alone: a byte that is written needs a word that other threads may write at the same time, so kernels write one only where the machine can
//! write parts of words (`spec/widths.rs` says so), and their dialect has the text.

use super::types::sum_in_words;
use gristmill_uop::linear::Linear;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// Bits of a byte.
const BITS: i64 = 8;

/// A nest, or a value, with loads, and sums, of the machine's types alone. As it was where all are.
pub fn loads(g: &mut Graph, nest: Id, target: &Target) -> Id {
    let least = target.machine.least_bytes as i64;
    if least == 1 && !target.machine.words_alone {
        return nest;
    }
    let mut map = FxHashMap::default();
    for id in g.toposort(&[nest]) {
        if target.machine.words_alone && g[id].op == Op::Reduce {
            let terms = g.substitute(g[id].src[0], &mut map);
            let sum = sum_in_words(g, id, terms);
            map.extend(sum.map(|sum| (id, sum)));
        }
        if g[id].op != Op::Load {
            continue;
        }
        let (buffer, at, scalar) = (g[id].src[0], g[id].src[1], g[id].dtype.scalar);
        let at = g.substitute(at, &mut map);
        let word = Words::for_buffer(g, buffer, least);
        if let Some(word) = word.filter(|_| scalar.bytes() <= 4 && !is_whole(g, buffer, at, scalar, least)) {
            let value = word.value(g, at, scalar);
            map.insert(id, value);
        }
    }
    g.substitute(nest, &mut map)
}

/// Is that a load that the machine has: as wide as its least type, at a multiple of its size?
pub fn is_whole(g: &Graph, buffer: Id, at: Id, scalar: Scalar, least: i64) -> bool {
    let bytes = scalar.bytes() as i64;
    bytes >= least && is_multiple(g, at, g.unit_bytes(buffer), bytes)
}

/// Is the address of an offset in such units a multiple of so many bytes, whatever its indices are?
pub fn is_multiple(g: &Graph, at: Id, unit: i64, bytes: i64) -> bool {
    let sum = offset(g, at);
    std::iter::once(sum.constant).chain(sum.terms.iter().map(|t| t.1)).all(|c| c * unit % bytes == 0)
}

/// The sum that an offset is. Parts of one in 64 bits that fit in 32 are sums in these.
pub fn offset(g: &Graph, at: Id) -> Linear {
    let sum = g.linear(at);
    let mut out = Linear { constant: sum.constant, ..Linear::default() };
    for &(term, times) in &sum.terms {
        match g[term].op {
            Op::Cast if g.scalar(g[term].src[0]) == Scalar::I32 => out.add_scaled(&offset(g, g[term].src[0]), times),
            _ => out.add_scaled(&Linear { terms: smallvec![(term, 1)], constant: 0 }, times),
        }
    }
    out
}

/// The words through which a buffer's bytes are read. A word may reach beyond the buffer's last byte: memory comes in larger pieces.
struct Words {
    buffer: Id,
    /// Bytes of the buffer's own elements, in which offsets count.
    unit: i64,
    bytes: i64,
    scalar: Scalar,
}

impl Words {
    /// Of a buffer; none where its elements are words themselves.
    fn for_buffer(g: &Graph, buffer: Id, least: i64) -> Option<Words> {
        let (unit, packed) = (g.unit_bytes(buffer), matches!(g[buffer].arg, Arg::Packed(..)));
        let (bytes, scalar) = match (packed, unit < least, least) {
            (false, false, _) => return None,
            (true, _, 2) => (2, Scalar::U16),
            // Of bytes that are not packed, and of halves, one reads words of 32 bits or none.
            _ => (4, Scalar::U32),
        };
        Some(Words { buffer, unit, bytes, scalar })
    }

    /// A value, whose bytes are put together, at an offset.
    fn value(&self, g: &mut Graph, at: Id, scalar: Scalar) -> Id {
        let bytes = scalar.bytes() as i64;
        let unit = g.int(self.unit);
        let first = g.mul(at, unit);
        // Whole words of a value that is wider, single bytes where that cannot be known.
        let step = if bytes > self.bytes && is_multiple(g, first, 1, self.bytes) { self.bytes } else { 1 };
        let step = if bytes < self.bytes && is_multiple(g, first, 1, bytes) { bytes } else { step };
        let mut bits = g.int_of(Scalar::U32, 0);
        for i in (0..bytes).step_by(step as usize) {
            let offset = g.int(i);
            let place = g.add(first, offset);
            let part = self.part(g, place, step);
            let by = g.int_of(Scalar::U32, i * BITS);
            let part = g.shl(part, by);
            bits = g.or(bits, part);
        }
        from_bits(g, bits, scalar)
    }

    /// So many bytes of a word, at a byte of the buffer which is a multiple of them, as the low bits of a u32.
    fn part(&self, g: &mut Graph, place: Id, bytes: i64) -> Id {
        let (size, unit) = (g.int(self.bytes), g.int(self.unit));
        let number = g.idiv(place, size);
        let start = g.mul(number, size);
        // Whole: units divide words.
        let at = g.idiv(start, unit);
        let word = g.load(self.buffer, at, self.scalar);
        let word = g.cast(word, Scalar::U32);
        if bytes == self.bytes {
            return word;
        }
        let (within, eight) = (g.modulo(place, size), g.int(BITS));
        let by = g.mul(within, eight);
        let by = g.cast(by, Scalar::U32);
        let low = g.shr(word, by);
        let mask = g.int_of(Scalar::U32, (1 << (bytes * BITS)) - 1);
        g.and(low, mask)
    }
}

/// The value whose bits those are, in the low ones of a u32.
fn from_bits(g: &mut Graph, bits: Id, scalar: Scalar) -> Id {
    if scalar == Scalar::Bool {
        let zero = g.int_of(Scalar::U32, 0);
        return g.lt(zero, bits);
    }
    let same_size = match scalar.bytes() {
        1 => Scalar::U8,
        2 => Scalar::U16,
        _ => Scalar::U32,
    };
    let bits = g.cast(bits, same_size);
    if same_size == scalar { bits } else { g.bitcast(bits, scalar) }
}
