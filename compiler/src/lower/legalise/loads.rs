//! Legalises loads: replaces loads of types that a machine lacks by loads of words.
//!
//! A machine with a narrowest type of two or four bytes reads a byte as part of a word; one that
//! computes with 32-bit words only also accumulates narrow values in words.
//!
//! Only loads are rewritten. Writing a byte would rewrite a word that other threads may write at
//! the same time. Kernels write bytes only on machines that can write parts of words
//! (`spec/widths.rs` checks it), and the dialect prints those writes.

use super::types::sum_in_words;
use gristmill_uop::linear::Linear;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

const BITS: i64 = 8;

/// Replaces the loads, and the reductions, of types that the machine lacks. Returns `nest`
/// unchanged if there are none.
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
        if let Some(word) =
            word.filter(|_| scalar.bytes() <= 4 && !is_whole(g, buffer, at, scalar, least))
        {
            let value = word.value(g, at, scalar);
            map.insert(id, value);
        }
    }
    g.substitute(nest, &mut map)
}

/// Returns whether the machine has the load: at least as wide as its narrowest type, at a
/// multiple of its size.
pub fn is_whole(g: &Graph, buffer: Id, at: Id, scalar: Scalar, least: i64) -> bool {
    let bytes = scalar.bytes() as i64;
    bytes >= least && is_multiple(g, at, g.unit_bytes(buffer), bytes)
}

/// Returns whether the offset, in units of `unit` bytes, is a multiple of `bytes` for all
/// values of its indices.
pub fn is_multiple(g: &Graph, at: Id, unit: i64, bytes: i64) -> bool {
    let sum = offset(g, at);
    std::iter::once(sum.constant)
        .chain(sum.terms.iter().map(|t| t.1))
        .all(|c| c * unit % bytes == 0)
}

/// Returns the offset as a linear sum, looking through casts from 32 to 64 bits.
pub fn offset(g: &Graph, at: Id) -> Linear {
    let sum = g.linear(at);
    let mut out = Linear {
        constant: sum.constant,
        ..Linear::default()
    };
    for &(term, times) in &sum.terms {
        match g[term].op {
            Op::Cast if g.scalar(g[term].src[0]) == Scalar::I32 => {
                out.add_scaled(&offset(g, g[term].src[0]), times)
            }
            _ => out.add_scaled(
                &Linear {
                    terms: smallvec![(term, 1)],
                    constant: 0,
                },
                times,
            ),
        }
    }
    out
}

/// Words through which a buffer's bytes are read. A word may extend past the buffer's last byte:
/// allocations are rounded up.
struct Words {
    buffer: Id,
    /// Bytes per element of the buffer, the unit of offsets.
    unit: i64,
    bytes: i64,
    scalar: Scalar,
}

impl Words {
    /// Returns the words of a buffer; `None` if its elements are already words.
    fn for_buffer(g: &Graph, buffer: Id, least: i64) -> Option<Words> {
        let (unit, packed) = (
            g.unit_bytes(buffer),
            matches!(g[buffer].arg, Arg::Packed(..)),
        );
        let (bytes, scalar) = match (packed, unit < least, least) {
            (false, false, _) => return None,
            (true, _, 2) => (2, Scalar::U16),
            // Unpacked bytes and 16-bit floats can only be read through 32-bit words.
            _ => (4, Scalar::U32),
        };
        Some(Words {
            buffer,
            unit,
            bytes,
            scalar,
        })
    }

    /// Returns the value at an offset, assembled from its bytes.
    fn value(&self, g: &mut Graph, at: Id, scalar: Scalar) -> Id {
        let bytes = scalar.bytes() as i64;
        let unit = g.int(self.unit);
        let first = g.mul(at, unit);
        // Reads whole words, or the whole value, where the alignment is known, and single bytes
        // otherwise.
        let step = if bytes > self.bytes && is_multiple(g, first, 1, self.bytes) {
            self.bytes
        } else {
            1
        };
        let step = if bytes < self.bytes && is_multiple(g, first, 1, bytes) {
            bytes
        } else {
            step
        };
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

    /// Returns `bytes` bytes at byte offset `place`, a multiple of `bytes`, in the low
    /// bits of a u32.
    fn part(&self, g: &mut Graph, place: Id, bytes: i64) -> Id {
        let (size, unit) = (g.int(self.bytes), g.int(self.unit));
        let number = g.idiv(place, size);
        let start = g.mul(number, size);
        // Exact: the unit divides the word size.
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

/// Reinterprets the low bits of a u32 as a value of the type.
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
    if same_size == scalar {
        bits
    } else {
        g.bitcast(bits, scalar)
    }
}
