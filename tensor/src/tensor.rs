//! The lazy tensor: a handle on a node of the function being captured.
//!
//! Operations build a graph and compute nothing. Elementwise operators broadcast as NumPy does:
//! scalars fit any shape, missing leading axes are added, axes of length 1 are repeated. A shape
//! mismatch is an error in a model's description, never in a user's file, and panics with the
//! shapes.

use crate::capture::Capture;
pub use crate::capture::Dim;
use gristmill_uop::custom::CustomRef;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::op::{Op, ReduceOp};
use gristmill_uop::shape::{Dims, PagedSources, ScanSources, Scoring};
use gristmill_uop::{Arg, Id};

/// A tensor of the function being captured; copies denote the same node.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    pub(crate) capture: &'g Capture,
    pub(crate) id: Id,
}

impl From<Tensor<'_>> for Dim {
    fn from(t: Tensor<'_>) -> Dim {
        assert!(
            t.dims().is_empty() && t.scalar() == Scalar::I64,
            "a dim is a scalar i64, not {t:?}"
        );
        Dim::Of(t.id)
    }
}

/// Builds dims from constants and scalar tensors: `dims![n, heads, 64]`.
#[macro_export]
macro_rules! dims { ($($d:expr),* $(,)?) => { &[$($crate::tensor::Dim::from($d)),*] } }

/// Second operand of a binary op: a tensor, or a number that takes the first operand's type.
pub trait Operand<'g> {
    /// Converts the operand to a tensor of the type of `like`.
    fn beside(self, like: Tensor<'g>) -> Tensor<'g>;
}
impl<'g> Operand<'g> for Tensor<'g> {
    fn beside(self, _: Tensor<'g>) -> Tensor<'g> {
        self
    }
}
impl<'g> Operand<'g> for f64 {
    fn beside(self, like: Tensor<'g>) -> Tensor<'g> {
        like.capture.constant(self, like.scalar())
    }
}
impl<'g> Operand<'g> for i64 {
    fn beside(self, like: Tensor<'g>) -> Tensor<'g> {
        like.capture.constant(self as f64, like.scalar())
    }
}

macro_rules! unary { ($($name:ident $doc:literal;)*) => { $(
    #[doc = $doc]
    pub fn $name(self) -> Tensor<'g> {
        let id = self.capture.graph.borrow_mut().$name(self.id);
        self.with(id).shaped(&self.dims())
    }
)* } }

impl<'g> Tensor<'g> {
    /// The capture that this tensor's node was added to.
    pub fn capture(self) -> &'g Capture {
        self.capture
    }
    /// The tensor's node in the captured graph.
    pub fn id(self) -> Id {
        self.id
    }
    /// Length of each axis, as graph nodes; empty for a scalar.
    pub fn dims(self) -> Dims {
        self.capture.graph.borrow().shape(self.id)
    }
    /// Length of the given axis.
    pub fn dim(self, axis: usize) -> Dim {
        Dim::Of(self.dims()[axis])
    }
    /// Number of axes; 0 for a scalar.
    pub fn rank(self) -> usize {
        self.dims().len()
    }
    /// Element type of the tensor.
    pub fn scalar(self) -> Scalar {
        self.capture.graph.borrow().scalar(self.id)
    }
    /// Value of a scalar integer that is known at capture, such as a constant length.
    pub fn known(self) -> Option<usize> {
        let value = self.capture.graph.borrow().int_value(self.id);
        value.and_then(|v| usize::try_from(v).ok())
    }
    fn with(self, id: Id) -> Tensor<'g> {
        Tensor {
            capture: self.capture,
            id,
        }
    }
    fn show(self) -> String {
        self.capture.graph.borrow().show_dims(&self.dims())
    }
    /// Restores the dims if graph rules simplified the value to a scalar constant.
    fn shaped(self, dims: &[Id]) -> Tensor<'g> {
        if dims.is_empty() || !self.dims().is_empty() {
            return self;
        }
        self.repeated(dims)
    }
    /// Broadcasts to `dims`: leading axes are added, axes of length 1 are repeated.
    fn repeated(self, dims: &[Id]) -> Tensor<'g> {
        let mut g = self.capture.graph.borrow_mut();
        let one = g.int(1);
        let mut padded: Dims = (0..dims.len() - g.shape(self.id).len())
            .map(|_| one)
            .collect();
        padded.extend(g.shape(self.id));
        let id = g.reshape(self.id, &padded);
        let id = g.expand(id, dims);
        drop(g);
        self.with(id)
    }
    /// The broadcast dims of several tensors; panics if they do not fit.
    fn common_dims(tensors: &[Tensor<'g>]) -> Dims {
        let one = tensors[0].capture.graph.borrow_mut().int(1);
        let rank = tensors.iter().map(|t| t.rank()).max().unwrap_or(0);
        let axis = |back: usize| {
            let mut length = one;
            for t in tensors {
                let dims = t.dims();
                let Some(&d) = dims.len().checked_sub(back).and_then(|i| dims.get(i)) else {
                    continue;
                };
                assert!(
                    length == one || d == one || d == length,
                    "dims do not fit: {}",
                    tensors
                        .iter()
                        .map(|t| t.show())
                        .collect::<Vec<_>>()
                        .join(" beside ")
                );
                if d != one {
                    length = d;
                }
            }
            length
        };
        (1..=rank).rev().map(axis).collect()
    }
    fn beside(self, dims: &[Id]) -> Tensor<'g> {
        if self.dims().is_empty() {
            self
        } else {
            self.repeated(dims)
        }
    }
    fn binary(self, op: Op, other: impl Operand<'g>) -> Tensor<'g> {
        let other = other.beside(self);
        assert_eq!(
            self.scalar(),
            other.scalar(),
            "{op:?} of {self:?} and {other:?}"
        );
        let dims = Self::common_dims(&[self, other]);
        let (a, b) = (self.beside(&dims), other.beside(&dims));
        let mut g = self.capture.graph.borrow_mut();
        let id = if op == Op::Sub {
            g.sub(a.id, b.id)
        } else {
            g.binary(op, a.id, b.id)
        };
        drop(g);
        self.with(id).shaped(&dims)
    }
    /// Elementwise maximum of two operands.
    pub fn maximum(self, other: impl Operand<'g>) -> Tensor<'g> {
        self.binary(Op::Max, other)
    }
    /// Elementwise minimum of two operands.
    pub fn minimum(self, other: impl Operand<'g>) -> Tensor<'g> {
        self.binary(Op::Min, other)
    }
    /// Clamps integers to `0..=last`, so that any value is a valid index.
    pub fn clamp_index(self, last: usize) -> Tensor<'g> {
        self.minimum(last as i64).maximum(0)
    }
    /// `self < other`, as bool.
    pub fn lt(self, other: impl Operand<'g>) -> Tensor<'g> {
        self.binary(Op::Lt, other)
    }
    /// `self > other`, as bool.
    pub fn gt(self, other: impl Operand<'g>) -> Tensor<'g> {
        other.beside(self).lt(self)
    }
    /// `self == other`, as bool.
    pub fn equals(self, other: impl Operand<'g>) -> Tensor<'g> {
        self.binary(Op::Eq, other)
    }
    /// Elementwise `self ? a : b`, for a bool tensor.
    pub fn select(self, a: Tensor<'g>, b: impl Operand<'g>) -> Tensor<'g> {
        let b = b.beside(a);
        assert!(
            self.scalar() == Scalar::Bool && a.scalar() == b.scalar(),
            "select of {self:?}, {a:?} and {b:?}"
        );
        let dims = Self::common_dims(&[self, a, b]);
        let (c, a, b) = (self.beside(&dims), a.beside(&dims), b.beside(&dims));
        let id = self.capture.graph.borrow_mut().select(c.id, a.id, b.id);
        self.with(id).shaped(&dims)
    }
    unary! {
        exp "e^x";
        log "Natural logarithm.";
        sqrt "Square root.";
        recip "1/x";
    }
    /// Converts the elements to another type.
    pub fn cast(self, to: Scalar) -> Tensor<'g> {
        let id = self.capture.graph.borrow_mut().cast(self.id, to);
        self.with(id).shaped(&self.dims())
    }
    /// Reinterprets the bits as another type of the same size.
    pub fn bitcast(self, to: Scalar) -> Tensor<'g> {
        let id = self.capture.graph.borrow_mut().bitcast(self.id, to);
        self.with(id).shaped(&self.dims())
    }
    /// 1/(1 + e^-x)
    pub fn sigmoid(self) -> Tensor<'g> {
        ((-self).exp() + 1.0).recip()
    }
    /// x/(1 + e^-x)
    pub fn silu(self) -> Tensor<'g> {
        self * self.sigmoid()
    }
    /// log(1 + e^x), without overflow.
    pub fn softplus(self) -> Tensor<'g> {
        let magnitude = self.maximum(-self);
        self.maximum(0.0) + ((-magnitude).exp() + 1.0).log()
    }
    /// Views the same elements, in row-major order, with other dims.
    pub fn reshape(self, dims: &[Dim]) -> Tensor<'g> {
        let dims = self.capture.ids(dims);
        let id = self.capture.graph.borrow_mut().reshape(self.id, &dims);
        self.with(id)
    }
    /// Inserts an axis of length 1 before `axis`.
    pub fn unsqueeze(self, axis: usize) -> Tensor<'g> {
        let mut dims: Vec<Dim> = self.dims().into_iter().map(Dim::Of).collect();
        dims.insert(axis, Dim::Size(1));
        self.reshape(&dims)
    }
    /// Removes `axis`, which must have length 1.
    pub fn squeeze(self, axis: usize) -> Tensor<'g> {
        let mut dims: Vec<Dim> = self.dims().into_iter().map(Dim::Of).collect();
        dims.remove(axis);
        self.reshape(&dims)
    }
    /// Reorders the axes: axis `i` of the result is axis `order[i]` of this tensor.
    pub fn permute(self, order: &[usize]) -> Tensor<'g> {
        let mut g = self.capture.graph.borrow_mut();
        let before = match (g[self.id].op, &g[self.id].arg) {
            (Op::Permute, Arg::Axes(inner)) => {
                Some(order.iter().map(|&a| inner[a] as usize).collect::<Vec<_>>())
            }
            _ => None,
        };
        // A permute of a permute is one permute in the combined order, or none if that is the
        // identity.
        let id = match before {
            Some(both) => {
                let from = g[self.id].src[0];
                g.permute(from, &both)
            }
            None => g.permute(self.id, order),
        };
        drop(g);
        self.with(id)
    }
    /// Broadcasts to these dims: leading axes are added, axes of length 1 are repeated.
    pub fn expand(self, dims: &[Dim]) -> Tensor<'g> {
        let dims = self.capture.ids(dims);
        self.repeated(&dims)
    }
    /// Takes elements `begin..begin + length` of one axis.
    pub fn slice(self, axis: usize, begin: impl Into<Dim>, length: impl Into<Dim>) -> Tensor<'g> {
        let (begin, length) = (
            self.capture.id_of(begin.into()),
            self.capture.id_of(length.into()),
        );
        let mut g = self.capture.graph.borrow_mut();
        let zero = g.int(0);
        let mut window: Vec<(Id, Id)> = g.shape(self.id).into_iter().map(|d| (zero, d)).collect();
        window[axis] = (begin, length);
        let id = g.shrink(self.id, &window);
        drop(g);
        self.with(id)
    }
    /// Concatenates tensors along one axis; all other dims must be equal.
    pub fn cat(parts: &[Tensor<'g>], axis: usize) -> Tensor<'g> {
        let (first, ids) = (parts[0], parts.iter().map(|p| p.id).collect::<Vec<_>>());
        for p in parts {
            let same = p
                .dims()
                .iter()
                .zip(&first.dims())
                .enumerate()
                .all(|(i, (a, b))| i == axis || a == b);
            assert!(
                same && p.rank() == first.rank() && p.scalar() == first.scalar(),
                "cat of {parts:?} at {axis}"
            );
        }
        let id = first.capture.graph.borrow_mut().cat(&ids, axis);
        first.with(id)
    }
    /// Sums over axes, which are removed.
    pub fn sum(self, axes: &[usize]) -> Tensor<'g> {
        self.reduce(axes, ReduceOp::Add)
    }
    /// Takes the maximum over axes, which are removed.
    pub fn max(self, axes: &[usize]) -> Tensor<'g> {
        self.reduce(axes, ReduceOp::Max)
    }
    fn reduce(self, axes: &[usize], op: ReduceOp) -> Tensor<'g> {
        assert!(
            axes.iter().all(|&a| a < self.rank()),
            "reduce of {self:?} over {axes:?}"
        );
        let id = self.capture.graph.borrow_mut().reduce(self.id, axes, op);
        self.with(id)
    }
    /// Gathers rows (first axis) by index: `[i.., rest..]` of `x [rows, rest..]` and `index [i..]`.
    pub fn gather(self, index: Tensor<'g>) -> Tensor<'g> {
        assert!(index.scalar().is_int(), "gather by {index:?}");
        let id = self.capture.graph.borrow_mut().gather(self.id, index.id);
        self.with(id)
    }
    /// Adds rows of `value [i.., rest..]` at `index [i..]` to rows of this tensor `[rows, rest..]`.
    ///
    /// Indices are below `rows`; values with equal indices are all added. It is the gradient of
    /// [`gather`](Tensor::gather), and its own gradient is a `gather`. Types: f32, f16 and i32.
    ///
    /// ```
    /// use gristmill_tensor::{dims, function::Capture};
    /// use gristmill_uop::Scalar;
    /// let c = Capture::new("histogram");
    /// let bytes = c.input("bytes", dims![100], Scalar::I32).clamp_index(255);
    /// let (none, one) = (c.constant(0.0, Scalar::I32), c.constant(1.0, Scalar::I32));
    /// c.output("counts", none.expand(dims![256]).scatter_add(one.expand(dims![100]), bytes));
    /// ```
    pub fn scatter_add(self, value: Tensor<'g>, index: Tensor<'g>) -> Tensor<'g> {
        let (own, new, numbers) = (self.dims(), value.dims(), index.dims());
        let (front, rest) = new.split_at(numbers.len().min(new.len()));
        let fit = front == &numbers[..]
            && rest == &own[1..]
            && value.scalar() == self.scalar()
            && index.scalar().is_int();
        assert!(fit, "{value:?} added to {self:?} at {index:?}");
        let mut g = self.capture.graph.borrow_mut();
        let one = g.int(1);
        let count = front.iter().fold(one, |product, &d| g.mul(product, d));
        let index = g.reshape(index.id, &[count]);
        let rows: Vec<Id> = std::iter::once(count).chain(rest.iter().copied()).collect();
        let value = g.reshape(value.id, &rows);
        let id = g.scatter_add(self.id, value, index);
        drop(g);
        self.with(id)
    }
    /// Applies a weight: `y[.., o] = Σ_i w[o, i]·x[.., i]` of `x [.., in]` and `w [out, in]`.
    pub fn linear(self, w: Tensor<'g>) -> Tensor<'g> {
        assert_eq!(w.rank(), 2, "linear of {self:?} by {w:?}");
        self.contract(w)
    }
    /// Contracts the last axes, `y[b.., o] = Σ_i w[b.., o, i]·x[b.., i]`, with `b` broadcast.
    ///
    /// The shapes are `x [b.., in]` and `w [b.., out, in]`.
    ///
    /// For a weight stored as plain f16, activations are rounded to f16, as in ggml and on tensor
    /// cores: such files were made for engines that do so, and near ties between experts resolve
    /// the same way. Bf16 has only 8 significant bits against 11 of f16, so activations are not
    /// rounded for a bf16 weight.
    pub fn contract(self, w: Tensor<'g>) -> Tensor<'g> {
        let x = if w.is_stored_f16() {
            self.cast(Scalar::F16).cast(Scalar::F32)
        } else {
            self
        };
        x.contract_in_f32(w)
    }
    /// Contracts as [`contract`](Tensor::contract) does, without rounding to the weight's type.
    pub fn contract_in_f32(self, w: Tensor<'g>) -> Tensor<'g> {
        let product = w * self.unsqueeze(self.rank() - 1);
        product.sum(&[product.rank() - 1])
    }
    /// Matrix product `y[b.., m, n] = Σ_k x[b.., m, k]·w[b.., k, n]` in f32, with `b` broadcast.
    ///
    /// The shapes are `x [b.., m, k]` and `w [b.., k, n]`, of any types.
    pub fn matmul(self, w: Tensor<'g>) -> Tensor<'g> {
        assert!(
            self.rank() >= 2 && w.rank() >= 2,
            "a product of matrices {self:?} and {w:?}"
        );
        let (front, last) = (w.rank() - 2, w.rank() - 1);
        let order: Vec<usize> = (0..front).chain([last, front]).collect();
        self.matmul_transposed(w.permute(&order))
    }
    /// Matrix product `y[b.., m, n] = Σ_k x[b.., m, k]·w[b.., n, k]` in f32, with `b` broadcast.
    ///
    /// The shapes are `x [b.., m, k]` and `w [b.., n, k]`, of any types.
    pub fn matmul_transposed(self, w: Tensor<'g>) -> Tensor<'g> {
        let [x, w] = [self, w].map(|side| side.cast(Scalar::F32));
        x.contract(w.unsqueeze(w.rank() - 2))
    }
    /// Rounds values to f16 or bf16 and returns them in f32; f32 values for `F32`. Products of such
    /// factors run on matrix units, which add in f32.
    pub fn rounded(self, to: Scalar) -> Tensor<'g> {
        match to {
            Scalar::F32 => self.cast(to),
            to => self.cast(to).cast(Scalar::F32),
        }
    }
    /// True for a packed weight, possibly moved or gathered.
    pub fn is_packed(self) -> bool {
        self.packed().is_some()
    }
    /// The packed bytes below movements and gathers, and their encoding.
    fn packed(self) -> Option<(Id, EncodingRef)> {
        let g = self.capture.graph.borrow();
        let mut at = self.id;
        while g[at].op.is_movement() || matches!(g[at].op, Op::Gather | Op::Decode) {
            at = g[at].src[0];
        }
        match g[at].arg {
            Arg::Packed(_, encoding) => Some((at, encoding)),
            _ => None,
        }
    }
    /// True for a packed weight with plain f16 values, possibly moved or gathered.
    fn is_stored_f16(self) -> bool {
        let Some((at, encoding)) = self.packed() else {
            return false;
        };
        let mut g = self.capture.graph.borrow_mut();
        let zero = g.int(0);
        let value = encoding.decode(&mut g, at, zero, zero);
        g[value].op == Op::Cast
            && g[g[value].src[0]].op == Op::Load
            && g.scalar(g[value].src[0]) == Scalar::F16
    }
    /// Makes a new version of this state with rows of `value` written from row `start` on.
    pub fn assign(self, value: Tensor<'g>, start: Tensor<'g>) -> Tensor<'g> {
        let id = self
            .capture
            .graph
            .borrow_mut()
            .assign(self.id, value.id, start.id);
        self.with(id)
    }
    /// Makes a new version of this state with rows `numbers [n]` replaced by `value [n, ..]`.
    ///
    /// Row numbers index the first axis and must be distinct.
    pub fn scatter(self, value: Tensor<'g>, numbers: Tensor<'g>) -> Tensor<'g> {
        let (own, new) = (self.dims(), value.dims());
        let fit =
            own[1..] == new[1..] && numbers.dims()[..] == new[..1] && numbers.scalar().is_int();
        assert!(fit, "{value:?} into {self:?} at {numbers:?}");
        self.assign(value, numbers)
    }
    /// Maps positions of one sequence to rows of a paged pool, by its block table `self [blocks]`.
    ///
    /// The pool has `pages` pages of `page` positions each. Results are i64 and lie inside the pool
    /// for any page numbers; every position must lie within the table's blocks.
    pub fn slots_of(self, positions: Tensor<'g>, [pages, page]: [usize; 2]) -> Tensor<'g> {
        let mut g = self.capture.graph.borrow_mut();
        let positions = g.cast(positions.id, Scalar::I64);
        let id = g.slots_of_one(positions, self.id, [pages as i64, page as i64]);
        drop(g);
        self.with(id)
    }
    /// Quantises rows to 8 bits, with one f32 scale per `group` elements of the last axis.
    ///
    /// Returns the bytes and the scales. See [`gristmill_uop::rows`].
    pub fn encode_rows(self, group: usize) -> (Tensor<'g>, Tensor<'g>) {
        let (q, d) = self
            .capture
            .graph
            .borrow_mut()
            .encode_rows(self.id, group as i64);
        (self.with(q), self.with(d))
    }
    /// Dequantises bytes of [`Tensor::encode_rows`] with their scales to f32.
    pub fn decode_rows(self, scales: Tensor<'g>, group: usize) -> Tensor<'g> {
        let id = self
            .capture
            .graph
            .borrow_mut()
            .decode_rows(self.id, scales.id, group as i64);
        self.with(id)
    }
    /// Quantises rows to 4 bits, with one f32 scale per `group` elements of the last axis.
    ///
    /// Returns the bytes, with two elements each, and the scales. See [`gristmill_uop::rows`].
    pub fn encode_rows4(self, group: usize) -> (Tensor<'g>, Tensor<'g>) {
        let (q, d) = self
            .capture
            .graph
            .borrow_mut()
            .encode_rows4(self.id, group as i64);
        (self.with(q), self.with(d))
    }
    /// Dequantises bytes of [`Tensor::encode_rows4`] with their scales to f32.
    pub fn decode_rows4(self, scales: Tensor<'g>, group: usize) -> Tensor<'g> {
        let id = self
            .capture
            .graph
            .borrow_mut()
            .decode_rows4(self.id, scales.id, group as i64);
        self.with(id)
    }
    /// Rounds to e4m3 codes (u8), without scales. See [`gristmill_uop::rows`].
    pub fn encode_e4m3(self) -> Tensor<'g> {
        let id = self.capture.graph.borrow_mut().encode_e4m3(self.id);
        self.with(id)
    }
    /// Returns the values of e4m3 codes, f32.
    pub fn decode_e4m3(self) -> Tensor<'g> {
        let id = self.capture.graph.borrow_mut().decode_e4m3(self.id);
        self.with(id)
    }
    /// Replaces this expression by a custom kernel with `groups` workgroups (i64, a scalar).
    ///
    /// `arguments` are tensors and variables in the order of the kernel's argument names. The
    /// kernel is a launch of its own; the graph around it is fused as usual. Elementwise producers
    /// of arguments that it reads by functions, and elementwise consumers of an output that it
    /// writes by a function (`accessors`), may be fused into its launch if that costs less. Devices
    /// without a text for the kernel compute this expression itself. It is also the reference that
    /// texts are tested against.
    pub fn computed_by(
        self,
        kernel: CustomRef,
        groups: Tensor<'g>,
        arguments: &[Tensor<'g>],
    ) -> Tensor<'g> {
        assert_eq!(
            kernel.arguments.len(),
            arguments.len(),
            "{} takes {:?}",
            kernel.name,
            kernel.arguments
        );
        let arguments: Vec<Id> = arguments.iter().map(|t| t.id).collect();
        let id = self
            .capture
            .graph
            .borrow_mut()
            .call(kernel, self.id, groups.id, &arguments);
        self.with(id)
    }
    /// Causal attention of queries `[tokens, heads, d]`.
    ///
    /// See [`gristmill_uop::graph::Graph::attention`].
    pub fn attention(
        self,
        k: Tensor<'g>,
        v: Tensor<'g>,
        first: Tensor<'g>,
        length: Tensor<'g>,
        scale: f64,
    ) -> Tensor<'g> {
        let mut g = self.capture.graph.borrow_mut();
        let id = g.attention(self.id, k.id, v.id, first.id, length.id, scale);
        drop(g);
        self.with(id)
    }
    /// Causal attention with optional score cap, sliding window and sinks `[heads]`.
    ///
    /// See [`gristmill_uop::graph::Graph::attention_within`].
    pub fn attention_within(
        self,
        [k, v]: [Tensor<'g>; 2],
        [first, length]: [Tensor<'g>; 2],
        scores: impl Into<Scoring>,
        window: Option<usize>,
        sinks: Option<Tensor<'g>>,
    ) -> Tensor<'g> {
        let scores = scores.into();
        if window.is_none() && sinks.is_none() && scores.cap.is_none() {
            return self.attention(k, v, first, length, scores.scale);
        }
        let window = window.map_or(0, |w| w as i64);
        let mut g = self.capture.graph.borrow_mut();
        let id = g.attention_within(
            [self.id, k.id, v.id],
            [first.id, length.id],
            scores,
            window,
            sinks.map(|s| s.id),
        );
        drop(g);
        self.with(id)
    }
    /// Causal attention of queries `[rows, heads, d]` of several sequences over a paged KV cache.
    ///
    /// Keys and values are `[pages, page, kv heads, ..]`; a score cap, a sliding window and sinks
    /// `[heads]` are optional. See [`gristmill_uop::graph::Graph::paged_attention`].
    pub fn paged_attention(
        self,
        [k, v]: [Tensor<'g>; 2],
        at: &PagedRows<'g>,
        scores: impl Into<Scoring>,
        window: Option<usize>,
        sinks: Option<Tensor<'g>>,
    ) -> Tensor<'g> {
        let of = PagedSources {
            queries: self.id,
            keys: k.id,
            values: v.id,
            positions: at.positions.id,
            length: at.length.id,
            table: at.table.id,
            window: window.map_or(0, |w| w as i64),
            sinks: sinks.map(|s| s.id),
        };
        let id = self.capture.graph.borrow_mut().paged_attention(&of, scores);
        self.with(id)
    }
}

/// Positions and block tables of rows of several sequences.
#[derive(Clone, Copy)]
pub struct PagedRows<'g> {
    /// Position of each row in its sequence: `[rows]`, i32.
    pub positions: Tensor<'g>,
    /// Exclusive upper bound of the positions: a scalar.
    pub length: Tensor<'g>,
    /// Block table of each row's sequence: `[rows, blocks]`, i32; `blocks` is a constant.
    pub table: Tensor<'g>,
    /// Positions in a page.
    pub page: usize,
}

impl<'g> PagedRows<'g> {
    /// The positions as i64, clamped to those that the block table covers.
    pub fn positions(&self) -> Tensor<'g> {
        let mut g = self.table.capture.graph.borrow_mut();
        let blocks = g.shape(self.table.id)[1];
        let last = g.max_of(blocks) * self.page as i64 - 1;
        let id = g.within_positions(self.positions.id, last);
        drop(g);
        self.positions.with(id)
    }
    /// Views the rows of a pool `[pages·page, rest..]` as pages, `[pages, page, rest..]`.
    pub fn in_pages(&self, x: Tensor<'g>) -> Tensor<'g> {
        let mut dims: Vec<Dim> = x.dims().into_iter().map(Dim::Of).collect();
        let rows = x.capture.graph.borrow().max_of(x.dims()[0]) as usize;
        dims.splice(..1, [rows / self.page, self.page].map(Dim::Size));
        x.reshape(&dims)
    }
    /// The pool row of each row's own position: `[rows]`, i64.
    ///
    /// It lies inside a pool of `pages` pages for any positions and block table.
    pub fn slots(&self, pages: usize) -> Tensor<'g> {
        let positions = self.positions();
        let mut g = self.table.capture.graph.borrow_mut();
        let rows = g.shape(positions.id);
        let row = g.iota(&rows, 0);
        let id = g.slots(
            row,
            positions.id,
            self.table.id,
            [pages as i64, self.page as i64],
        );
        drop(g);
        self.table.with(id)
    }
}

/// Inputs of a linear recurrence with a matrix state per head.
///
/// See [`Recurrence::scan`], and [`ScanSources`] for dims.
#[derive(Clone, Copy)]
pub struct Recurrence<'g> {
    /// Vectors that the state is multiplied with after each token.
    pub queries: Tensor<'g>,
    /// Keys of the rank-1 updates, one per token and head.
    pub keys: Tensor<'g>,
    /// Values of the rank-1 updates, one per token and head.
    pub values: Tensor<'g>,
    /// Natural logarithms of the state's decay, per token and head.
    pub gates: Tensor<'g>,
    /// Step sizes of the delta rule, `rate · (value − state·key)` with the decayed state.
    ///
    /// `None` adds the values themselves.
    pub rates: Option<Tensor<'g>>,
}

impl<'g> Recurrence<'g> {
    /// Runs the recurrence over all tokens from `state`; returns the outputs and the last state.
    ///
    /// See [`gristmill_uop::graph::Graph::scan`].
    pub fn scan(&self, state: Tensor<'g>) -> (Tensor<'g>, Tensor<'g>) {
        let [queries, keys, values, gates] =
            [self.queries, self.keys, self.values, self.gates].map(|t| t.id);
        let of = ScanSources {
            state: state.id,
            queries,
            keys,
            values,
            gates,
            rates: self.rates.map(|t| t.id),
        };
        let (read, left) = state.capture.graph.borrow_mut().scan(&of);
        (state.with(read), state.with(left))
    }
}

macro_rules! operators { ($($trait:ident $method:ident $op:ident;)*) => { $(
    impl<'g, O: Operand<'g>> std::ops::$trait<O> for Tensor<'g> {
        type Output = Tensor<'g>;
        fn $method(self, other: O) -> Tensor<'g> { self.binary(Op::$op, other) }
    }
)* } }
operators! { Add add Add; Sub sub Sub; Mul mul Mul; Rem rem Mod; BitAnd bitand And; BitOr bitor Or; BitXor bitxor Xor; Shr shr Shr; }

impl<'g, O: Operand<'g>> std::ops::Div<O> for Tensor<'g> {
    type Output = Tensor<'g>;
    /// Quotient of floats; floor of the quotient of integers.
    fn div(self, other: O) -> Tensor<'g> {
        self.binary(
            if self.scalar().is_float() {
                Op::Div
            } else {
                Op::IDiv
            },
            other,
        )
    }
}

impl<'g> std::ops::Neg for Tensor<'g> {
    type Output = Tensor<'g>;
    fn neg(self) -> Tensor<'g> {
        let id = self.capture.graph.borrow_mut().neg(self.id);
        self.with(id).shaped(&self.dims())
    }
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.scalar().name(), self.show())
    }
}
