//! Legalises writes and additions to memory: packs narrow values into words, and updates parts of
//! words while other threads may write the rest.

use super::Words;
use super::conversions::{cast, retyped};
use super::word_types::made;
use crate::lower::linear_ir::{Addition, Statement, Update};
use gristmill_uop::Scalar::{self, F16, F32, I32, I64, U32};
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::FxHashSet;

const BYTES: i64 = 4;

/// A part of a word: the word, and the bit where the part begins.
struct Part {
    buffer: Id,
    /// Offset of the word's first element.
    at: Id,
    by: Id,
}

impl Words<'_> {
    /// Writes values to consecutive elements.
    pub(super) fn write(&mut self, buffer: Id, at: Id, values: &[Id]) {
        let own = self.r.g.scalar(values[0]);
        let place = self.defined(at);
        let words: Vec<Id> = match own {
            F16 if self.accesses.for_buffer(buffer).matrices.is_some() => {
                values.iter().map(|&v| self.half(v)).collect()
            }
            own => {
                let values: Vec<Id> = values.iter().map(|&v| self.word(v)).collect();
                values
                    .chunks((BYTES as usize / own.bytes()).max(1))
                    .flat_map(|of| packed(self.r.g, own, of))
                    .collect()
            }
        };
        let (g, bytes) = (&*self.r.g, own.bytes() * values.len());
        if bytes < BYTES as usize && g.scalar(words[0]) == U32 {
            let part = self.part(buffer, place, false);
            return self.write_part(&part, words[0], bytes);
        }
        words.iter().for_each(|&word| self.r.define(word));
        self.r.push(match words[..] {
            [value] => Statement::Write(buffer, place, value),
            _ => Statement::WideWrite(buffer, place, bytes, words),
        });
    }
    /// Returns the value as a true f16, for an array of f16 elements.
    fn half(&mut self, value: Id) -> Id {
        let n = &self.r.g[value];
        let float = match (n.op, n.src.first().copied()) {
            (Op::Cast, Some(float)) if self.r.g.scalar(float) == F32 => self.word(float),
            _ => {
                let bits = self.word(value);
                cast(self.r.g, bits, F16, F32)
            }
        };
        made(self.r.g, Op::Cast, F16, &[float])
    }
    /// Clears a part of a word, then sets it. Both are atomic updates, as other threads may write
    /// the rest of the word meanwhile.
    fn write_part(&mut self, part: &Part, bits: Id, bytes: usize) {
        let keep = outside(self.r.g, part.by, bytes);
        let bits = made(self.r.g, Op::Shl, U32, &[bits, part.by]);
        for (op, with) in [(Op::And, keep), (Op::Or, bits)] {
            self.update(part, U32, None, true, |g, old| {
                made(g, op, U32, &[old, with])
            });
        }
    }
    /// Adds values to memory: to a word, or to the halves of a word that other threads
    /// may add to meanwhile.
    pub(super) fn add(&mut self, a: &Addition) {
        let (own, place) = (self.r.g.scalar(a.buffer), self.defined(a.at));
        let when = a.when.map(|when| self.defined(when));
        let values: Vec<Id> = a.values.iter().map(|&v| self.word(v)).collect();
        if own != F16 {
            let part = Part {
                buffer: a.buffer,
                at: place,
                by: place,
            };
            return self.update(&part, own, when, a.atomic, |g, old| {
                made(g, Op::Add, own, &[old, values[0]])
            });
        }
        let part = self.part(a.buffer, place, values.len() > 1);
        self.update(&part, U32, when, true, |g, old| {
            let mut word = old;
            for (i, &value) in values.iter().enumerate() {
                let by = if i == 0 { part.by } else { g.int_of(U32, 16) };
                let (before, keep) = (
                    made(g, Op::Shr, U32, &[old, by]),
                    outside(g, by, F16.bytes()),
                );
                let [before, value] = [before, value].map(|bits| cast(g, bits, F16, F32));
                let sum = made(g, Op::Add, F32, &[before, value]);
                let sum = cast(g, sum, F32, F16);
                let sum = made(g, Op::Shl, U32, &[sum, by]);
                word = made(g, Op::And, U32, &[word, keep]);
                word = made(g, Op::Or, U32, &[word, sum]);
            }
            word
        });
    }
    /// Returns the part of a word at an offset; with `whole`, the part begins at bit 0.
    fn part(&mut self, buffer: Id, at: Id, whole: bool) -> Part {
        let g = &mut *self.r.g;
        let (scalar, unit) = (g.scalar(at), g.unit_bytes(buffer));
        if whole {
            return Part {
                buffer,
                at,
                by: g.int_of(U32, 0),
            };
        }
        let [each, bits] = [BYTES / unit, 8 * unit].map(|v| g.int_of(scalar, v));
        let number = g.idiv(at, each);
        let first = g.mul(number, each);
        let within = g.modulo(at, each);
        let by = g.mul(within, bits);
        Part {
            buffer,
            at: first,
            by: retyped(g, by, U32),
        }
    }
    /// Emits an update of a word, loaded as `scalar`, to the value that `new` computes
    /// from the old one.
    fn update(
        &mut self,
        part: &Part,
        scalar: Scalar,
        when: Option<Id>,
        atomic: bool,
        new: impl FnOnce(&mut Graph, Id) -> Id,
    ) {
        let (buffer, at) = (part.buffer, part.at);
        let old = self.r.g.load(buffer, at, scalar);
        let new = new(self.r.g, old);
        let (mut of_old, mut values) = (FxHashSet::from_iter([old]), vec![]);
        self.r.define(at);
        for id in self.r.g.toposort(&[new]) {
            let depends = id != old && self.r.g[id].src.iter().any(|s| of_old.contains(s));
            if depends {
                of_old.insert(id);
                values.push(id);
                let needs: Vec<Id> = self.r.g[id]
                    .src
                    .iter()
                    .copied()
                    .filter(|s| !of_old.contains(s))
                    .collect();
                needs.into_iter().for_each(|s| self.r.define(s));
            }
        }
        self.r.push(Statement::Update(Update {
            buffer,
            at,
            old,
            values,
            when,
            atomic,
        }));
    }
}

/// Returns a mask of all bits of a word except `bytes` bytes from bit `by` on.
fn outside(g: &mut Graph, by: Id, bytes: usize) -> Id {
    let [mask, all] = [(1 << (8 * bytes)) - 1, u32::MAX.into()].map(|v| g.int_of(U32, v));
    let part = made(g, Op::Shl, U32, &[mask, by]);
    made(g, Op::Xor, U32, &[part, all])
}

/// Packs values of one type into one word, or splits a 64-bit value into two.
fn packed(g: &mut Graph, own: Scalar, values: &[Id]) -> Vec<Id> {
    let bits = 8 * own.bytes() as i64;
    match own {
        I64 => {
            // For a 64-bit value known to fit in 32 bits, the high word is its sign.
            let last = g.int_of(U32, if g.scalar(values[0]) == I32 { 31 } else { 32 });
            let scalar = g.scalar(values[0]);
            let high = made(g, Op::Shr, scalar, &[values[0], last]);
            [values[0], high].map(|x| retyped(g, x, U32)).to_vec()
        }
        _ if bits == 32 => values.to_vec(),
        _ => {
            let mut word = None;
            for (i, &value) in values.iter().enumerate() {
                let mask = g.int_of(U32, (1 << bits) - 1);
                let part = retyped(g, value, U32);
                let part = if g.scalar(value) == I32 {
                    made(g, Op::And, U32, &[part, mask])
                } else {
                    part
                };
                let by = g.int_of(U32, bits * i as i64);
                let part = if i == 0 {
                    part
                } else {
                    made(g, Op::Shl, U32, &[part, by])
                };
                word = Some(word.map_or(part, |word| made(g, Op::Or, U32, &[word, part])));
            }
            word.into_iter().collect()
        }
    }
}
