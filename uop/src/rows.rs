//! Rows in eight bits: of `x [.., n]`, two planes of ordinary nodes.
//!
//! - `q [.., n]`, whole numbers from −127 to 127, as i8;
//! - `d [.., n/group]`, a scale for every group of elements, their largest magnitude over 127.
//!
//! `float(q)·d` stands for `x`. Activations of contractions in integers and caches of bytes are both this.

use crate::dtype::Scalar;
use crate::graph::Graph;
use crate::id::Id;
use crate::op::{Op, ReduceOp};

/// Most elements that share a scale.
pub const GROUP: i64 = 32;

/// Elements that share a scale in rows of `n`: [`GROUP`], or of rows that it does not divide the largest power of two that does.
pub fn group_of(n: usize) -> usize {
    1 << n.trailing_zeros().min(GROUP.trailing_zeros())
}

impl Graph {
    /// `x [.., n]` reduced over groups of its last axis: `[.., n/group]`.
    pub fn by_groups(&mut self, x: Id, group: i64, op: ReduceOp) -> Id {
        let mut dims = self.shape(x);
        let n = dims.pop().map_or(0, |d| self.max_of(d));
        let (count, size) = (self.int(n / group), self.int(group));
        dims.extend([count, size]);
        let x = self.reshape(x, &dims);
        self.reduce(x, &[dims.len() - 1], op)
    }
    /// `x [.., n/group]`, each element `group` times, as `dims`.
    fn repeated(&mut self, x: Id, group: i64, dims: &[Id]) -> Id {
        let size = self.int(group);
        let x = self.broadcast_back(x, size);
        self.reshape(x, dims)
    }
    /// The planes `q` and `d` (f32) of `x [.., n]`, f32. Where a group has a NaN or an infinity, its scale is not finite: `float(q)·d` is NaN
    /// in that group.
    pub fn encode_rows(&mut self, x: Id, group: i64) -> (Id, Id) {
        let dims = self.shape(x);
        // Magnitudes are compared as whole numbers, by their bits: NaN is the largest of them. As a float it loses to any number in a
        // maximum, and a row with it would become one of numbers.
        let (bits, all_but_sign) = (self.bitcast(x, Scalar::I32), self.int_of(Scalar::I32, i64::from(i32::MAX)));
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
    /// `float(q)·d` of planes: f32.
    pub fn decode_rows(&mut self, q: Id, d: Id, group: i64) -> Id {
        let dims = self.shape(q);
        let wide = self.cast(q, Scalar::F32);
        let d = self.cast(d, Scalar::F32);
        let d = self.repeated(d, group, &dims);
        self.mul(wide, d)
    }
    /// What [`Graph::decode_rows`] made `x` of: `q`, `d` (f32) and the group.
    pub fn decoded(&self, x: Id) -> Option<(Id, Id, i64)> {
        let n = &self[x];
        let &[a, b] = &n.src[..] else { return None };
        let planes = |wide: Id, repeated: Id| {
            let (wide, repeated) = (&self[wide], &self[repeated]);
            let q = *wide.src.first().filter(|&&q| wide.op == Op::Cast && self.scalar(q).is_int())?;
            let spread = *repeated.src.first().filter(|_| repeated.op == Op::Reshape)?;
            let column = *self[spread].src.first().filter(|_| self[spread].op == Op::Expand)?;
            let d = *self[column].src.first().filter(|_| self[column].op == Op::Reshape)?;
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
