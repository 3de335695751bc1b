//! A tensor-level evaluator in f64 for tiny functions: one loop an op, no schedule, no rounding but a cast's.

use gristmill_uop::dtype::Scalar;
use gristmill_uop::fold::{self, Value};
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::graph::{Arg, Graph, Id};
use gristmill_uop::op::{Op, ReduceOp};
use std::collections::HashMap;

/// Values in row-major order.
#[derive(Clone, Debug)]
pub struct Array {
    pub dims: Vec<usize>,
    pub data: Vec<f64>,
}

impl Array {
    fn filled(dims: Vec<usize>, mut f: impl FnMut(&[usize]) -> f64) -> Array {
        let mut index = vec![0; dims.len()];
        let n = dims.iter().product();
        let mut data = Vec::with_capacity(n);
        for _ in 0..n {
            data.push(f(&index));
            for axis in (0..dims.len()).rev() {
                index[axis] += 1;
                if index[axis] < dims[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        Array { dims, data }
    }
    fn at(&self, index: &[usize]) -> f64 {
        if self.dims.is_empty() {
            return self.data[0];
        }
        let offset = index.iter().zip(&self.dims).fold(0, |o, (i, d)| {
            assert!(i < d, "index {index:?} of {:?}", self.dims);
            o * d + i
        });
        self.data[offset]
    }
}

/// Runs `function`: `slots` hold the values of inputs, weights (logical) and states; outputs and states are replaced.
/// Returns the value of every node.
pub fn evaluate(function: &Function, vars: &[(&str, i64)], slots: &mut [Vec<f64>]) -> HashMap<Id, Array> {
    let g = &function.graph;
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let mut values: HashMap<Id, Array> = HashMap::new();
    for id in g.toposort(&roots) {
        let value = one(g, id, vars, slots, &values);
        let dims: Vec<usize> = g.shape(id).iter().map(|d| size(&values, g, *d)).collect();
        assert_eq!(value.dims, dims, "{:?}", g[id]);
        if let Some((lo, hi)) = g.bounds(id).filter(|_| !matches!(g[id].arg, Arg::Packed(..))) {
            let inside = |v: &f64| *v >= lo as f64 && *v <= hi as f64;
            assert!(value.data.iter().all(inside), "not in {lo}..={hi}: {:?}", g[id]);
        }
        values.insert(id, value);
    }
    for &(slot, id) in &function.outputs {
        assert!(matches!(function.slots[slot as usize].kind, SlotKind::Output | SlotKind::State));
        slots[slot as usize] = values[&id].data.clone();
    }
    values
}

fn size(values: &HashMap<Id, Array>, g: &Graph, id: Id) -> usize {
    g.int_value(id).unwrap_or_else(|| values[&id].data[0] as i64) as usize
}

fn one(g: &Graph, id: Id, vars: &[(&str, i64)], slots: &[Vec<f64>], values: &HashMap<Id, Array>) -> Array {
    let node = &g[id];
    let src = |i: usize| &values[&node.src[i]];
    let dims: Vec<usize> = g.shape(id).iter().map(|d| size(values, g, *d)).collect();
    let scalar = |v: f64| Array { dims: vec![], data: vec![v] };
    match (node.op, &node.arg) {
        (Op::Const, Arg::Int(v)) => scalar(*v as f64),
        (Op::Const, Arg::Float(v)) => scalar(f64::from_bits(*v)),
        (Op::Var, Arg::Var(name, lo, hi)) => {
            let v = vars.iter().find(|v| v.0 == &**name).unwrap_or_else(|| panic!("no variable {name}")).1;
            assert!((*lo..=*hi).contains(&v), "{name} = {v}");
            scalar(v as f64)
        }
        (Op::Param, Arg::Param(slot) | Arg::Packed(slot, _)) => {
            let n: usize = dims.iter().product();
            Array { data: slots[*slot as usize][..n].to_vec(), dims }
        }
        (Op::Decode, _) => src(0).clone(),
        (Op::Iota, Arg::Axes(a)) => Array::filled(dims, |i| i[a[0] as usize] as f64),
        (Op::Reshape, _) => Array { dims, data: src(0).data.clone() },
        (Op::Expand, _) => {
            let x = src(0);
            Array::filled(dims, |i| {
                let j: Vec<usize> = i.iter().zip(&x.dims).map(|(&i, &d)| if d == 1 { 0 } else { i }).collect();
                x.at(&j)
            })
        }
        (Op::Permute, Arg::Axes(p)) => Array::filled(dims, |i| {
            let mut j = vec![0; i.len()];
            p.iter().zip(i).for_each(|(&a, &i)| j[a as usize] = i);
            src(0).at(&j)
        }),
        (Op::Shrink, _) => {
            let begin: Vec<usize> = node.src[1..].iter().step_by(2).map(|b| size(values, g, *b)).collect();
            Array::filled(dims, |i| src(0).at(&i.iter().zip(&begin).map(|(i, b)| i + b).collect::<Vec<_>>()))
        }
        (Op::Cat, Arg::Axes(a)) => {
            let axis = a[0] as usize;
            Array::filled(dims, |i| {
                let (mut part, mut j) = (0, i.to_vec());
                while j[axis] >= src(part).dims[axis] {
                    j[axis] -= src(part).dims[axis];
                    part += 1;
                }
                src(part).at(&j)
            })
        }
        (Op::Reduce, Arg::Reduce(op, axes)) => {
            let x = src(0);
            let kept: Vec<usize> = (0..x.dims.len()).filter(|a| !axes.contains(&(*a as u8))).collect();
            let over: Vec<usize> = axes.iter().map(|&a| x.dims[a as usize]).collect();
            let mut j = vec![0; x.dims.len()];
            Array::filled(dims, |i| {
                kept.iter().zip(i).for_each(|(&a, &i)| j[a] = i);
                let all = Array::filled(over.clone(), |r| {
                    axes.iter().zip(r).for_each(|(&a, &r)| j[a as usize] = r);
                    x.at(&j)
                });
                match op {
                    ReduceOp::Add => all.data.iter().sum(),
                    ReduceOp::Max => all.data.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                }
            })
        }
        (Op::Gather, _) => {
            let (x, index) = (src(0), src(1));
            Array::filled(dims, |i| {
                let (front, back) = i.split_at(index.dims.len());
                let row = index.at(front) as usize;
                x.at(&[&[row], back].concat())
            })
        }
        (Op::Assign, _) => {
            let (mut state, value) = (src(0).clone(), src(1));
            let width: usize = state.dims[1..].iter().product();
            let start = src(2).data[0] as usize * width;
            state.data[start..start + value.data.len()].copy_from_slice(&value.data);
            state
        }
        (Op::Attention, Arg::Float(scale)) => {
            let (q, k, v, scale) = (src(0), src(1), src(2), f64::from_bits(*scale));
            let (first, length) = (src(3).data[0] as usize, src(4).data[0] as usize);
            let shared = q.dims[1] / k.dims[1];
            let mut out = Array::filled(dims.clone(), |_| 0.0);
            for t in 0..q.dims[0] {
                for h in 0..q.dims[1] {
                    let seen = length.min(first + t + 1);
                    let score = |s: usize| -> f64 {
                        (0..q.dims[2]).map(|i| q.at(&[t, h, i]) * k.at(&[s, h / shared, i])).sum::<f64>() * scale
                    };
                    let scores: Vec<f64> = (0..seen).map(score).collect();
                    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                    for i in 0..dims[2] {
                        let mix = |(s, x): (usize, &f64)| (x - top).exp() / total * v.at(&[s, h / shared, i]);
                        out.data[(t * dims[1] + h) * dims[2] + i] = scores.iter().enumerate().map(mix).sum();
                    }
                }
            }
            out
        }
        (op, _) if op.is_elementwise() => Array::filled(dims, |i| {
            let x: Vec<f64> = (0..node.src.len()).map(|s| src(s).at(i)).collect();
            elementwise(op, &x, node.dtype.scalar, g.scalar(node.src[0]))
        }),
        (op, arg) => panic!("no meaning for {op:?} {arg:?}"),
    }
}

/// Floats stay f64, whatever their type, so that two forms of one computation agree to f64's precision.
fn elementwise(op: Op, x: &[f64], out: Scalar, from: Scalar) -> f64 {
    let wide = |s: Scalar| if s.is_float() { Scalar::F64 } else { s };
    let out = if op == Op::Cast { out } else { wide(out) };
    let value = |v: f64| if from.is_float() { Value::Float(v) } else { Value::Int(v as i64) };
    match op {
        Op::Where => [x[2], x[1]][(x[0] != 0.0) as usize],
        Op::Cast if out == Scalar::F32 => x[0],
        _ => {
            let args: Vec<Value> = x.iter().map(|&v| value(v)).collect();
            fold::apply(op, &args, out).unwrap_or_else(|| panic!("{op:?} of {x:?}")).float()
        }
    }
}
