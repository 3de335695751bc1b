//! Quantisation of rows `x [.., n]` to two tensors of ordinary nodes: integers `q`, and a scale
//! `d [.., n/group]` per group of elements.
//!
//! - 8 bits: `q [.., n]` i8, from −127 to 127; `d` is the group's largest magnitude divided by
//!   127, and `float(q)·d` approximates `x`. Used for the activations of integer contractions and
//!   for q8_0 KV caches.
//! - 4 bits, as ggml's q4_0: `q [.., n/2]` u8, with the codes 0 to 15 of a group's first half in
//!   the low bits and of its second half in the high bits; `d` is the group's element of largest
//!   magnitude divided by −8, and `(float(code) − 8)·d` approximates `x`. Used for KV caches.
//!
//! The third form has no scales: e4m3, a float of one byte. Used for fp8 KV caches.

use crate::dtype::Scalar;
use crate::graph::Graph;
use crate::id::Id;
use crate::op::{Op, ReduceOp};

/// Largest number of elements that share a scale.
pub const GROUP: i64 = 32;
/// Number of elements that share a scale where activations are to be rounded less: on published
/// models the divergence from float arithmetic is 0.28 times that of [`GROUP`]
/// (docs/experiments/142-activation-groups.md).
pub const FINE_GROUP: i64 = 8;

/// Group size for rows of `n` elements: [`GROUP`], or the largest power of two that divides `n`
/// if that is smaller.
pub fn group_of(n: usize) -> usize {
    1 << n.trailing_zeros().min(GROUP.trailing_zeros())
}

impl Graph {
    /// Reduces `x [.., n]` over groups of its last axis, to `[.., n/group]`.
    pub fn by_groups(&mut self, x: Id, group: i64, op: ReduceOp) -> Id {
        let mut dims = self.shape(x);
        let n = dims.pop().map_or(0, |d| self.max_of(d));
        let (count, size) = (self.int(n / group), self.int(group));
        dims.extend([count, size]);
        let x = self.reshape(x, &dims);
        self.reduce(x, &[dims.len() - 1], op)
    }
    /// Repeats each element of `x [.., n/group]` `group` times, with shape `dims`.
    fn repeated(&mut self, x: Id, group: i64, dims: &[Id]) -> Id {
        let size = self.int(group);
        let x = self.broadcast_back(x, size);
        self.reshape(x, dims)
    }
    /// Quantises `x [.., n]` (f32) to `q` and `d` (f32). A group with a NaN or an infinity has a
    /// non-finite scale, so that `float(q)·d` is NaN in that group.
    pub fn encode_rows(&mut self, x: Id, group: i64) -> (Id, Id) {
        let dims = self.shape(x);
        // Magnitudes are compared as integers, by their bits: NaN is then the largest. In a float
        // maximum NaN loses to any number, and its row would be quantised as if it were finite.
        let (bits, all_but_sign) = (
            self.bitcast(x, Scalar::I32),
            self.int_of(Scalar::I32, i64::from(i32::MAX)),
        );
        let magnitude = self.binary(Op::And, bits, all_but_sign);
        let most = self.by_groups(magnitude, group, ReduceOp::Max);
        let most = self.bitcast(most, Scalar::F32);
        let part = self.f32(1.0 / 127.0);
        let d = self.mul(most, part);
        let (zero, all) = (self.f32(0.0), self.f32(127.0));
        let any = self.lt(zero, most);
        let inverse = self.div(all, most);
        let inverse = self.select(any, inverse, zero);
        let inverse = self.repeated(inverse, group, &dims);
        let scaled = self.mul(x, inverse);
        let rounded = self.round(scaled);
        (self.cast(rounded, Scalar::I8), d)
    }
    /// Dequantises: `float(q)·d`, f32.
    pub fn decode_rows(&mut self, q: Id, d: Id, group: i64) -> Id {
        let dims = self.shape(q);
        let wide = self.cast(q, Scalar::F32);
        let d = self.cast(d, Scalar::F32);
        let d = self.repeated(d, group, &dims);
        self.mul(wide, d)
    }
    /// Quantises `x [.., n]` (f32) to packed 4-bit codes `q [.., n/2]` (u8) and `d` (f32).
    /// `group` must be even. A group with a NaN or an infinity has a non-finite scale.
    pub fn encode_rows4(&mut self, x: Id, group: i64) -> (Id, Id) {
        let dims = self.shape(x);
        let (bits, all_but_sign) = (
            self.bitcast(x, Scalar::I32),
            self.int_of(Scalar::I32, i64::from(i32::MAX)),
        );
        let magnitude = self.binary(Op::And, bits, all_but_sign);
        let most = self.by_groups(magnitude, group, ReduceOp::Max);
        let most = self.bitcast(most, Scalar::F32);
        let highest = self.by_groups(x, group, ReduceOp::Max);
        // The element of largest magnitude gets code 0, whichever its sign.
        let (eighth, minus_eighth) = (self.f32(0.125), self.f32(-0.125));
        let is_negative = self.lt(highest, most);
        let part = self.select(is_negative, eighth, minus_eighth);
        let d = self.mul(most, part);
        let (zero, one) = (self.f32(0.0), self.f32(1.0));
        let any = self.lt(zero, most);
        let inverse = self.div(one, d);
        let inverse = self.select(any, inverse, zero);
        let inverse = self.repeated(inverse, group, &dims);
        let scaled = self.mul(x, inverse);
        let rounded = self.round(scaled);
        let code = self.cast(rounded, Scalar::I32);
        let (middle, last, low) = (
            self.int_of(Scalar::I32, 8),
            self.int_of(Scalar::I32, 15),
            self.int_of(Scalar::I32, 0),
        );
        let code = self.add(code, middle);
        let code = self.min(code, last);
        let code = self.max(code, low);
        (self.packed_halves(code, group), d)
    }
    /// Packs 4-bit codes `[.., n]` (i32) to bytes `[.., n/2]`: both halves of a group.
    fn packed_halves(&mut self, code: Id, group: i64) -> Id {
        let mut dims = self.shape(code);
        let n = dims.pop().map_or(0, |d| self.max_of(d));
        let (axis, half) = (dims.len() + 1, group / 2);
        let mut split = dims.clone();
        split.extend([n / group, 2, half].map(|n| self.int(n)));
        let code = self.reshape(code, &split);
        let (low, high) = (self.slice(code, axis, 0, 1), self.slice(code, axis, 1, 1));
        let sixteen = self.int_of(Scalar::I32, 16);
        let high = self.mul(high, sixteen);
        let byte = self.add(low, high);
        dims.push(self.int(n / 2));
        let byte = self.reshape(byte, &dims);
        self.cast(byte, Scalar::U8)
    }
    /// Dequantises the output of [`Graph::encode_rows4`], f32 `[.., n]`.
    pub fn decode_rows4(&mut self, q: Id, d: Id, group: i64) -> Id {
        let mut dims = self.shape(q);
        let bytes = dims.pop().map_or(0, |d| self.max_of(d));
        let (rank, half) = (dims.len(), group / 2);
        let (groups, one, two, half) = (
            self.int(bytes / half),
            self.int(1),
            self.int(2),
            self.int(half),
        );
        let with = |more: [Id; 3]| -> Vec<Id> { dims.iter().copied().chain(more).collect() };
        let byte = self.cast(q, Scalar::I32);
        let byte = self.reshape(byte, &with([groups, one, half]));
        let byte = self.expand(byte, &with([groups, two, half]));
        let which = self.iota(&with([groups, two, half]), rank + 1);
        let which = self.cast(which, Scalar::I32);
        let (four, mask) = (self.int_of(Scalar::I32, 4), self.int_of(Scalar::I32, 15));
        let shift = self.mul(which, four);
        let code = self.binary(Op::Shr, byte, shift);
        let code = self.binary(Op::And, code, mask);
        dims.push(self.int(2 * bytes));
        let code = self.reshape(code, &dims);
        let (wide, middle) = (self.cast(code, Scalar::F32), self.f32(8.0));
        let wide = self.sub(wide, middle);
        let d = self.cast(d, Scalar::F32);
        let d = self.repeated(d, group, &dims);
        self.mul(wide, d)
    }
    /// Rounds `x` (f32) to the nearest e4m3 value, as its code (u8): sign, 4 bits of exponent with
    /// bias 7, 3 bits of fraction. Ties go to even codes; magnitudes above 448 become 448, NaN 127.
    pub fn encode_e4m3(&mut self, x: Id) -> Id {
        let int = |g: &mut Graph, n: i64| g.int_of(Scalar::I32, n);
        let bits = self.bitcast(x, Scalar::I32);
        let all_but_sign = int(self, i64::from(i32::MAX));
        let magnitude = self.binary(Op::And, bits, all_but_sign);
        // 448, the largest value, and infinity.
        let (most, infinity) = (int(self, 0x43e0_0000), int(self, 0x7f80_0000));
        let bounded = self.min(magnitude, most);
        // From 2^-6 on: the upper 3 bits of the fraction, rounded, and the exponent less its bias.
        let (twenty, one, half) = (int(self, 20), int(self, 1), int(self, 0x7_ffff));
        let low = self.binary(Op::Shr, bounded, twenty);
        let odd = self.binary(Op::And, low, one);
        let carry = self.add(half, odd);
        let up = self.add(bounded, carry);
        let up = self.binary(Op::Shr, up, twenty);
        let bias = int(self, -(120 << 3));
        let normal = self.add(up, bias);
        // Below: a multiple of 2^-9.
        let value = self.bitcast(bounded, Scalar::F32);
        let unit = self.f32(512.0);
        let multiple = self.mul(value, unit);
        let multiple = self.round(multiple);
        let multiple = self.cast(multiple, Scalar::I32);
        let least = int(self, 0x3c80_0000);
        let is_small = self.lt(bounded, least);
        let code = self.select(is_small, multiple, normal);
        let (is_nan, nan) = (self.lt(infinity, magnitude), int(self, 127));
        let code = self.select(is_nan, nan, code);
        let (zero, sign) = (int(self, 0), int(self, 128));
        let is_negative = self.lt(bits, zero);
        let sign = self.select(is_negative, sign, zero);
        let code = self.add(code, sign);
        self.cast(code, Scalar::U8)
    }
    /// Returns the values of e4m3 codes (u8), f32. They are exact.
    ///
    /// The code's bits, shifted, are those of an f16 with another bias: its value times 2⁸.
    pub fn decode_e4m3(&mut self, code: Id) -> Id {
        let int = |g: &mut Graph, n: i64| g.int_of(Scalar::I32, n);
        let code = self.cast(code, Scalar::I32);
        let all_but_sign = int(self, 127);
        let magnitude = self.binary(Op::And, code, all_but_sign);
        let sign = self.sub(code, magnitude);
        let (seven, eight) = (int(self, 1 << 7), int(self, 1 << 8));
        let (sign, shifted) = (self.mul(sign, eight), self.mul(magnitude, seven));
        // The one NaN of each sign has the exponent of f16's.
        let (last, exponent, zero) = (int(self, 126), int(self, 0x7c00), int(self, 0));
        let is_nan = self.lt(last, magnitude);
        let nan = self.select(is_nan, exponent, zero);
        let bits = self.add(sign, shifted);
        let bits = self.binary(Op::Or, bits, nan);
        let bits = self.cast(bits, Scalar::U16);
        let half = self.bitcast(bits, Scalar::F16);
        let value = self.cast(half, Scalar::F32);
        let unit = self.f32(256.0);
        self.mul(value, unit)
    }
    /// Matches the output of [`Graph::decode_rows`]; returns `q`, `d` (f32) and the group size.
    pub fn decoded(&self, x: Id) -> Option<(Id, Id, i64)> {
        let n = &self[x];
        let &[a, b] = &n.src[..] else { return None };
        let planes = |wide: Id, repeated: Id| {
            let (wide, repeated) = (&self[wide], &self[repeated]);
            let q = *wide
                .src
                .first()
                .filter(|&&q| wide.op == Op::Cast && self.scalar(q).is_int())?;
            let spread = *repeated
                .src
                .first()
                .filter(|_| repeated.op == Op::Reshape)?;
            let column = *self[spread]
                .src
                .first()
                .filter(|_| self[spread].op == Op::Expand)?;
            let d = *self[column]
                .src
                .first()
                .filter(|_| self[column].op == Op::Reshape)?;
            let group = self.int_value(*self.dims(spread).last()?)?;
            (self.dims(d).len() == self.dims(x).len()).then_some((q, d, group))
        };
        if n.op != Op::Mul {
            return None;
        }
        planes(a, b).or_else(|| planes(b, a))
    }
}

#[cfg(test)]
mod tests {
    use super::group_of;
    use crate::{Graph, Scalar};

    #[test]
    fn a_group_divides_its_row() {
        for (n, group) in [(576, 32), (32, 32), (48, 16), (20, 4), (7, 1)] {
            assert_eq!(group_of(n), group, "{n}");
        }
    }

    #[test]
    fn packed_rows_have_half_the_bytes() {
        let mut g = Graph::new();
        let dims = [3, 64].map(|n| g.int(n));
        let x = g.param(0, &dims, Scalar::F32);
        let (q, d) = g.encode_rows4(x, 32);
        let rows = g.decode_rows4(q, d, 32);
        let size = |x| g.dims(x).iter().map(|&d| g.max_of(d)).collect::<Vec<_>>();
        assert_eq!(
            (size(q), size(d), size(rows)),
            (vec![3, 32], vec![3, 2], vec![3, 64])
        );
        assert_eq!((g.scalar(q), g.scalar(rows)), (Scalar::U8, Scalar::F32));
        assert_eq!(g.decoded(rows), None);
    }

    #[test]
    fn rows_are_known_by_what_they_are_made_of() {
        let mut g = Graph::new();
        let dims = [3, 64].map(|n| g.int(n));
        let x = g.param(0, &dims, Scalar::F32);
        let (q, d) = g.encode_rows(x, 16);
        let rows = g.decode_rows(q, d, 16);
        assert_eq!(g.decoded(rows), Some((q, d, 16)));
        let twice = g.mul(rows, rows);
        assert_eq!((g.decoded(twice), g.decoded(x)), (None, None));
    }
}
