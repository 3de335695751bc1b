//! Shapes at tensor level, and builders that check them.
//!
//! A dim is an index expression: a constant, a variable, or arithmetic on them; its bounds give the
//! required buffer size. Elementwise ops take sources of one shape; a scalar (no axes) combines
//! with any shape. A mismatch is a bug in a model's description, never caused by a user's file, and
//! panics with the shapes in the message.

use crate::custom::CustomRef;
use crate::dtype::Scalar;
use crate::encoding::EncodingRef;
use crate::graph::Graph;
use crate::id::Id;
use crate::node::{Arg, Axes, Node, Sources};
use crate::op::{Op, ReduceOp};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Dims of a tensor, outermost first.
pub type Dims = SmallVec<[Id; 6]>;

/// Infers the dims of a node with sources in `g`; `None` for scalars, nodes of later
/// levels and malformed nodes.
pub(crate) fn infer_shape(g: &Graph, n: &Node) -> Option<Arc<[Id]>> {
    if n.op.is_elementwise() {
        return n.src.iter().find_map(|&s| g.shared_dims(s)).cloned();
    }
    let dims = |i: usize| n.src.get(i).map_or(&[][..], |&s| g.dims(s));
    let dims: Dims = match (n.op, &n.arg) {
        (Op::Param | Op::Iota, _) => n.src.iter().copied().collect(),
        (Op::Reshape | Op::Expand, _) => n.src.iter().skip(1).copied().collect(),
        (Op::Shrink, _) => n.src.iter().skip(2).step_by(2).copied().collect(),
        (Op::Permute, Arg::Axes(p)) => {
            let d = dims(0);
            p.iter()
                .map(|&a| d.get(a as usize).copied())
                .collect::<Option<Dims>>()?
        }
        (Op::Cat, Arg::Axes(a)) => {
            // The joined dim is stored as the last source.
            let mut d = Dims::from_slice(dims(0));
            *d.get_mut(*a.first()? as usize)? = *n.src.last()?;
            d
        }
        (Op::Reduce, Arg::Reduce(_, axes)) if n.src.len() == 1 => dims(0)
            .iter()
            .enumerate()
            .filter(|(i, _)| !axes.iter().any(|&a| a as usize == *i))
            .map(|(_, d)| *d)
            .collect(),
        (Op::Gather, _) => dims(1)
            .iter()
            .chain(dims(0).iter().skip(1))
            .copied()
            .collect(),
        (Op::Decode | Op::Assign | Op::ScatterAdd | Op::Copy | Op::Call, _) => {
            return g.shared_dims(*n.src.first()?).cloned();
        }
        // q [tokens, heads, d], k [positions, kv heads, d], v [positions, kv heads, dv] -> [tokens,
        // heads, dv]
        (Op::Attention, _) => dims(0)
            .iter()
            .take(2)
            .chain(dims(2).get(2))
            .copied()
            .collect(),
        // q [rows, heads, d], k [pages, page, kv heads, d], v [pages, page, kv heads, dv] -> [rows,
        // heads, dv]
        (Op::PagedAttention, _) => dims(0)
            .iter()
            .take(2)
            .chain(dims(2).get(3))
            .copied()
            .collect(),
        // S [heads, values, keys], q and k [tokens, heads, keys], v [tokens, heads, values] ->
        // [tokens, heads, values], or as S
        (Op::Scan, Arg::Int(0)) => dims(3).iter().copied().collect(),
        (Op::Scan, _) => dims(0).iter().copied().collect(),
        _ => return None,
    };
    (!dims.is_empty()).then(|| dims.as_slice().into())
}

/// Sources of a recurrence; see [`Graph::scan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanSources {
    /// State before the first token, `[heads, values, keys]`.
    pub state: Id,
    /// Queries, which read the state after each token, `[tokens, heads, keys]`.
    pub queries: Id,
    /// Keys at which each token writes, `[tokens, heads, keys]`.
    pub keys: Id,
    /// Values to write, `[tokens, heads, values]`.
    pub values: Id,
    /// Logarithms of the decay factors, `[tokens, heads]`.
    pub gates: Id,
    /// Step sizes of the delta rule, `[tokens, heads]`; without them, values are
    /// added to the state.
    pub rates: Option<Id>,
}

impl ScanSources {
    /// Unpacks the sources of a `SCAN` node.
    pub fn from_sources(src: &[Id]) -> ScanSources {
        let &[state, queries, keys, values, gates, ref rates @ ..] = src else {
            unreachable!("a scan takes five sources, or six: {src:?}")
        };
        ScanSources {
            state,
            queries,
            keys,
            values,
            gates,
            rates: rates.first().copied(),
        }
    }
}

/// Scaling of attention scores (products of queries and keys) before the softmax.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scoring {
    /// Factor applied to the products.
    pub scale: f64,
    /// Soft cap, if any: `cap · tanh(scale · product / cap)`.
    pub cap: Option<f64>,
}

impl From<f64> for Scoring {
    fn from(scale: f64) -> Scoring {
        Scoring { scale, cap: None }
    }
}

impl Scoring {
    /// Reads the argument of an attention node; `None` for other arguments.
    pub fn from_arg(arg: &Arg) -> Option<Scoring> {
        match *arg {
            Arg::Float(scale) => Some(Scoring::from(f64::from_bits(scale))),
            Arg::Capped(scale, cap) => Some(Scoring {
                scale: f64::from_bits(scale),
                cap: Some(f64::from_bits(cap)),
            }),
            _ => None,
        }
    }
    fn arg(self) -> Arg {
        self.cap.map_or(Arg::float(self.scale), |cap| {
            Arg::Capped(self.scale.to_bits(), cap.to_bits())
        })
    }
}

/// Sources of attention over a paged KV cache; see [`Graph::paged_attention`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagedSources {
    /// Queries, `[rows, heads, d]`.
    pub queries: Id,
    /// Key pages, `[pages, page, kv heads, d]`; heads is a multiple of kv
    /// heads (grouped-query attention).
    pub keys: Id,
    /// Value pages, `[pages, page, kv heads, dv]`.
    pub values: Id,
    /// Position of each row in its sequence, `[rows]`, integers.
    pub positions: Id,
    /// A scalar greater than every position.
    pub length: Id,
    /// Block table of each row's sequence, `[rows, blocks]`, integers; the number
    /// of blocks is constant.
    pub table: Id,
    /// Sliding window: number of most recent positions that a row attends to, including its
    /// own; 0 for all.
    pub window: i64,
    /// Attention sinks: one score without a value per query head, `[heads]`.
    pub sinks: Option<Id>,
}

impl PagedSources {
    /// Unpacks the sources of a `PAGED_ATTENTION` node `n` of `g`.
    pub fn from_node(g: &Graph, n: &Node) -> PagedSources {
        let &[
            queries,
            keys,
            values,
            positions,
            length,
            table,
            ref rest @ ..,
        ] = &n.src[..]
        else {
            unreachable!("attention over pages takes six sources: {:?}", n.src)
        };
        let window = rest.first().map_or(0, |&w| g.max_of(w));
        PagedSources {
            queries,
            keys,
            values,
            positions,
            length,
            table,
            window,
            sinks: rest.get(1).copied(),
        }
    }
}

impl Graph {
    /// Dims of a tensor-level node.
    pub fn shape(&self, id: Id) -> Dims {
        Dims::from_slice(self.dims(id))
    }
    /// Largest number of elements of a tensor.
    pub fn max_elements(&self, id: Id) -> i64 {
        self.shape(id).iter().map(|&d| self.max_of(d)).product()
    }
    fn fixed(&mut self, dims: &[i64]) -> Dims {
        dims.iter().map(|&d| self.int(d)).collect()
    }
    /// Builds a parameter of a function.
    pub fn param(&mut self, slot: u32, dims: &[Id], scalar: Scalar) -> Id {
        self.build(
            Op::Param,
            scalar.one(),
            Sources::from_slice(dims),
            Arg::Param(slot),
        )
    }
    /// Builds a packed weight parameter with logical dims `[rows.., elements per row]`. Only
    /// `decode` reads its bytes.
    pub fn packed(&mut self, slot: u32, dims: &[i64], encoding: EncodingRef) -> Id {
        let dims = self.fixed(dims);
        self.build(
            Op::Param,
            Scalar::U8.one(),
            Sources::from_slice(&dims),
            Arg::Packed(slot, encoding),
        )
    }
    /// Dequantises a packed weight to f32.
    pub fn decode(&mut self, packed: Id) -> Id {
        self.build(
            Op::Decode,
            Scalar::F32.one(),
            smallvec![packed] as Sources,
            Arg::None,
        )
    }
    /// Builds the index along `axis` of a tensor with these dims, i64.
    pub fn iota(&mut self, dims: &[Id], axis: usize) -> Id {
        self.build(
            Op::Iota,
            Scalar::I64.one(),
            Sources::from_slice(dims),
            Arg::Axes(smallvec![axis as u8]),
        )
    }
    fn with_dims(&mut self, op: Op, x: Id, dims: &[Id]) -> Id {
        let mut src: Sources = smallvec![x];
        src.extend(dims.iter().copied());
        let dtype = self[x].dtype;
        self.build(op, dtype, src, Arg::None)
    }
    /// Reshapes to new dims with an equal product.
    pub fn reshape(&mut self, x: Id, dims: &[Id]) -> Id {
        let old = self.shape(x);
        if old.as_slice() == dims {
            return x;
        }
        let product = |g: &mut Graph, d: &[Id]| {
            let one = g.int(1);
            d.iter().fold(one, |p, &d| g.mul(p, d))
        };
        let (a, b) = (product(self, &old), product(self, dims));
        assert!(
            a == b,
            "reshape {} -> {}",
            self.show_dims(&old),
            self.show_dims(dims)
        );
        self.with_dims(Op::Reshape, x, dims)
    }
    /// Repeats axes of length 1 to the given dims.
    pub fn expand(&mut self, x: Id, dims: &[Id]) -> Id {
        let old = self.shape(x);
        if old.as_slice() == dims {
            return x;
        }
        let one = self.int(1);
        assert!(
            old.len() == dims.len() && old.iter().zip(dims).all(|(a, b)| a == b || *a == one),
            "expand {} -> {}",
            self.show_dims(&old),
            self.show_dims(dims)
        );
        self.with_dims(Op::Expand, x, dims)
    }
    /// Repeats a scalar to the given dims.
    pub fn spread(&mut self, x: Id, dims: &[Id]) -> Id {
        let one = self.int(1);
        let ones: Dims = dims.iter().map(|_| one).collect();
        let x = self.reshape(x, &ones);
        self.expand(x, dims)
    }
    /// Builds a call of a user-written kernel that computes `reference` in `groups` workgroups from
    /// `arguments`: tensors and variables.
    pub fn call(&mut self, kernel: CustomRef, reference: Id, groups: Id, arguments: &[Id]) -> Id {
        let src: Sources = [reference, groups]
            .iter()
            .chain(arguments)
            .copied()
            .collect();
        self.build(Op::Call, self[reference].dtype, src, Arg::Custom(kernel))
    }
    /// Prepends axes of these dims to `x`, repeating it.
    pub fn broadcast_front(&mut self, x: Id, front: &[Id]) -> Id {
        let one = self.int(1);
        let old = self.shape(x);
        let ones: Dims = front
            .iter()
            .map(|_| one)
            .chain(old.iter().copied())
            .collect();
        let full: Dims = front.iter().copied().chain(old.iter().copied()).collect();
        let x = self.reshape(x, &ones);
        self.expand(x, &full)
    }
    /// Appends an axis of that dim to `x`, repeating each element.
    pub fn broadcast_back(&mut self, x: Id, dim: Id) -> Id {
        let one = self.int(1);
        let mut d = self.shape(x);
        d.push(one);
        let x = self.reshape(x, &d);
        *d.last_mut().expect("pushed") = dim;
        self.expand(x, &d)
    }
    /// Permutes the axes of a tensor.
    pub fn permute(&mut self, x: Id, order: &[usize]) -> Id {
        if order.iter().enumerate().all(|(i, &a)| i == a) {
            return x;
        }
        assert_eq!(
            order.len(),
            self.shape(x).len(),
            "permute {order:?} of {}",
            self.show_dims(&self.shape(x))
        );
        let axes: Axes = order.iter().map(|&a| a as u8).collect();
        let dtype = self[x].dtype;
        self.build(Op::Permute, dtype, smallvec![x] as Sources, Arg::Axes(axes))
    }
    /// Selects a window: a begin and a length per axis.
    pub fn shrink(&mut self, x: Id, window: &[(Id, Id)]) -> Id {
        let old = self.shape(x);
        assert_eq!(
            old.len(),
            window.len(),
            "shrink of {}",
            self.show_dims(&old)
        );
        if window
            .iter()
            .zip(&old)
            .all(|(w, d)| self.int_value(w.0) == Some(0) && w.1 == *d)
        {
            return x;
        }
        let mut src: Sources = smallvec![x];
        for w in window {
            src.push(w.0);
            src.push(w.1);
        }
        let dtype = self[x].dtype;
        self.build(Op::Shrink, dtype, src, Arg::None)
    }
    /// Selects elements `begin..begin + len` of one axis.
    pub fn slice(&mut self, x: Id, axis: usize, begin: i64, len: i64) -> Id {
        let dims = self.shape(x);
        let zero = self.int(0);
        let mut window: SmallVec<[(Id, Id); 6]> = dims.iter().map(|&d| (zero, d)).collect();
        window[axis] = (self.int(begin), self.int(len));
        self.shrink(x, &window)
    }
    /// Concatenates `parts` along one axis.
    pub fn cat(&mut self, parts: &[Id], axis: usize) -> Id {
        if parts.len() == 1 {
            return parts[0];
        }
        let zero = self.int(0);
        let total = parts.iter().fold(zero, |sum, &p| {
            let d = self.shape(p)[axis];
            self.add(sum, d)
        });
        let mut src: Sources = parts.iter().copied().collect();
        src.push(total);
        let dtype = self[parts[0]].dtype;
        self.build(Op::Cat, dtype, src, Arg::Axes(smallvec![axis as u8]))
    }
    /// Reduces over axes and removes them.
    pub fn reduce(&mut self, x: Id, axes: &[usize], op: ReduceOp) -> Id {
        let axes: Axes = axes.iter().map(|&a| a as u8).collect();
        let dtype = self[x].dtype;
        self.build(
            Op::Reduce,
            dtype,
            smallvec![x] as Sources,
            Arg::Reduce(op, axes),
        )
    }
    /// Sums over axes and removes them.
    pub fn sum(&mut self, x: Id, axes: &[usize]) -> Id {
        self.reduce(x, axes, ReduceOp::Add)
    }
    /// Gathers rows of `x` (along its first axis) by an integer tensor.
    pub fn gather(&mut self, x: Id, index: Id) -> Id {
        let dtype = self[x].dtype;
        self.build(Op::Gather, dtype, smallvec![x, index] as Sources, Arg::None)
    }
    /// Builds a new version of the state `state` with the rows (first axis) from `start` on
    /// replaced by those of `value`.
    ///
    /// If `start` is an integer tensor with one distinct row number per row of `value`, those
    /// rows are replaced instead.
    pub fn assign(&mut self, state: Id, value: Id, start: Id) -> Id {
        let dtype = self[state].dtype;
        assert_eq!(self[value].dtype, dtype, "assign");
        self.build(
            Op::Assign,
            dtype,
            smallvec![state, value, start] as Sources,
            Arg::None,
        )
    }
    /// Adds the rows of `value [n, rest..]` to the rows of `x [rows, rest..]`
    /// that `index [n]` names.
    ///
    /// Rows with equal indices are all added. Indices must be in range. Types: f32, f16 or i32.
    pub fn scatter_add(&mut self, x: Id, value: Id, index: Id) -> Id {
        let dtype = self[x].dtype;
        assert_eq!(self[value].dtype, dtype, "scatter_add");
        self.build(
            Op::ScatterAdd,
            dtype,
            smallvec![x, value, index] as Sources,
            Arg::None,
        )
    }
    /// Builds causal attention over a contiguous KV cache.
    ///
    /// `q [tokens, heads, d]`, `k [positions, kv heads, d]`, `v [positions, kv heads, dv]`, with
    /// heads a multiple of kv heads. Token `t` attends to positions `0..=first + t`; `length` is
    /// the number of positions in use. Returns `[tokens, heads, dv]`.
    pub fn attention(&mut self, q: Id, k: Id, v: Id, first: Id, length: Id, scale: f64) -> Id {
        let dtype = self[q].dtype;
        self.build(
            Op::Attention,
            dtype,
            smallvec![q, k, v, first, length] as Sources,
            Arg::float(scale),
        )
    }
    /// Builds causal attention with a sliding window, a soft cap and attention sinks.
    ///
    /// A token attends to the last `window` positions, including its own (0: all). With `sinks
    /// [heads]`, the softmax denominator of each query head has an additional term exp(sink), to
    /// which neither scale nor cap applies.
    pub fn attention_within(
        &mut self,
        [q, k, v]: [Id; 3],
        [first, length]: [Id; 2],
        scores: impl Into<Scoring>,
        window: i64,
        sinks: Option<Id>,
    ) -> Id {
        let (dtype, window) = (self[q].dtype, self.int(window));
        let mut src: Sources = smallvec![q, k, v, first, length, window];
        src.extend(sinks);
        self.build(Op::Attention, dtype, src, scores.into().arg())
    }
    /// Builds causal attention over a paged KV cache for rows of several sequences.
    ///
    /// Query row `r` is at `positions[r]` of its sequence and attends to positions up to its own.
    /// Position `p` is in row `p mod page` of page `table[r, p / page]`. No other entries of the
    /// table and rows of the pages are read. Returns `[rows, heads, dv]`.
    pub fn paged_attention(&mut self, of: &PagedSources, scores: impl Into<Scoring>) -> Id {
        let dtype = self[of.queries].dtype;
        let mut src: Sources = smallvec![
            of.queries,
            of.keys,
            of.values,
            of.positions,
            of.length,
            of.table
        ];
        if of.window > 0 || of.sinks.is_some() {
            src.push(self.int(of.window));
            src.extend(of.sinks);
        }
        self.build(Op::PagedAttention, dtype, src, scores.into().arg())
    }
    /// Builds a recurrence over tokens with a state matrix `S [values, keys]` per head, initially
    /// `state [heads, values, keys]`.
    ///
    /// Token `t` updates `S = exp(gate)·S + u kᵀ`, where `u` is its value, or with rates
    /// `rate·(value − exp(gate)·S k)`. `queries` and `keys` are `[tokens, heads, keys]`, `values`
    /// is `[tokens, heads, values]`, `gates` and `rates` are `[tokens, heads]`. Returns the reads
    /// after each token, `S q [tokens, heads, values]`, and the state after the last token.
    ///
    /// Without rates this is linear attention with decay (Mamba-2: values times step size, gates =
    /// step size times `A`); with rates it is the gated delta rule.
    pub fn scan(&mut self, of: &ScanSources) -> (Id, Id) {
        let mut src: Sources = smallvec![of.state, of.queries, of.keys, of.values, of.gates];
        src.extend(of.rates);
        let dtype = self[of.state].dtype;
        let read = self.build(Op::Scan, dtype, src.clone(), Arg::Int(0));
        (read, self.build(Op::Scan, dtype, src, Arg::Int(1)))
    }
    /// Formats dims for messages.
    pub fn show_dims(&self, dims: &[Id]) -> String {
        let one = |&d: &Id| match (self.int_value(d), &self[d].arg) {
            (Some(v), _) => v.to_string(),
            (None, Arg::Var(name, ..)) => name.to_string(),
            _ => format!("<={}", self.bounds(d).map_or(-1, |b| b.1)),
        };
        format!("[{}]", dims.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}
