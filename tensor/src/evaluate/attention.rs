//! Attention over contiguous and paged KV caches, and the recurrence of linear attention.

use super::{Data, Step, Tensor};
use gristmill_uop::Arg;
use gristmill_uop::shape::Scoring;
use std::rc::Rc;

impl Step<'_> {
    /// Scale and optional cap of an attention node's scores.
    pub(super) fn scoring(&self, arg: &Arg) -> Scoring {
        Scoring::from_arg(arg).unwrap_or_else(|| self.fail("needs a scale"))
    }

    /// `softmax(scores) v` over positions `0..=first + t` in use, or those of them in the window.
    pub(super) fn attention(&self, of: Scoring) -> Tensor {
        let [q, k, v, ..] = self.src else {
            self.fail("needs q, k, v")
        };
        let three = q.dims.len() == 3 && k.dims.len() == 3 && v.dims.len() == 3;
        self.ensure(three, "q, k and v have three axes");
        let positions = k.dims[0];
        let first = self.size(3);
        let length = if self.src.len() > 4 {
            self.size(4)
        } else {
            positions
        };
        self.ensure(length <= positions, "more positions in use than there are");
        let window = if self.src.len() > 5 { self.size(5) } else { 0 };
        let seen = |t: usize| {
            let seen = length.min(first + t + 1);
            let begin = if window > 0 {
                seen.min((first + t + 1).saturating_sub(window))
            } else {
                0
            };
            (begin..seen).collect()
        };
        self.attend(of, self.src.get(6), &seen)
    }

    /// Attention for rows with a position each, over the pages in their block-table rows.
    pub(super) fn paged_attention(&self, of: Scoring) -> Tensor {
        let [q, k, v, positions, _, table, ..] = self.src else {
            self.fail("needs q, k, v, positions, length and table")
        };
        let axes = [q.dims.len(), k.dims.len(), v.dims.len(), table.dims.len()] == [3, 4, 4, 2];
        self.ensure(
            axes && positions.dims == q.dims[..1] && table.dims[0] == q.dims[0],
            "rows do not fit",
        );
        let (pages, page, blocks) = (k.dims[0], k.dims[1], table.dims[1]);
        let length = self.size(4);
        let window = if self.src.len() > 6 { self.size(6) } else { 0 };
        let seen = |t: usize| {
            let own = usize::try_from(positions.get(t).int()).unwrap_or(usize::MAX);
            self.ensure(
                own < length && own < blocks * page,
                "a position outside the length",
            );
            let begin = if window > 0 {
                (own + 1).saturating_sub(window)
            } else {
                0
            };
            let row = |p: usize| {
                let number = table.get(t * blocks + p / page).int();
                let number = usize::try_from(number).ok().filter(|&n| n < pages);
                number.unwrap_or_else(|| self.fail("there is no such page")) * page + p % page
            };
            (begin..=own).map(row).collect()
        };
        self.attend(of, self.src.get(7), &seen)
    }

    /// Computes `softmax(scores) v` per token over the KV rows in `seen`, in order of positions.
    ///
    /// The largest score is subtracted. A head's sink is a score without a value.
    fn attend(
        &self,
        of: Scoring,
        sinks: Option<&Rc<Tensor>>,
        seen: &dyn Fn(usize) -> Vec<usize>,
    ) -> Tensor {
        let [q, k, v, ..] = self.src else {
            self.fail("needs q, k, v")
        };
        let (tokens, heads, d) = (q.dims[0], q.dims[1], q.dims[2]);
        let [.., groups, of_key] = k.dims[..] else {
            self.fail("keys have heads")
        };
        let [.., of_value, dv] = v.dims[..] else {
            self.fail("values have heads")
        };
        let rows = k.dims[..k.dims.len() - 2] == v.dims[..v.dims.len() - 2];
        let agree = rows && of_key == d && of_value == groups && groups > 0 && heads % groups == 0;
        self.ensure(agree, "q, k and v do not fit");
        self.ensure(
            sinks.is_none_or(|s| s.dims == [heads]),
            "a sink for every head",
        );
        let mut out = Vec::with_capacity(tokens * heads * dv);
        for t in 0..tokens {
            let seen = seen(t);
            for h in 0..heads {
                let group = h / (heads / groups);
                let score = |&row: &usize| {
                    let products = (0..d).map(|i| {
                        q.get((t * heads + h) * d + i).float()
                            * k.get((row * groups + group) * d + i).float()
                    });
                    let score = of.scale * products.sum::<f64>();
                    of.cap.map_or(score, |cap| cap * (score / cap).tanh())
                };
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let sink = sinks.map_or(f64::NEG_INFINITY, |s| s.get(h).float());
                let largest = scores.iter().copied().fold(sink, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let total: f64 = weights.iter().sum::<f64>() + (sink - largest).exp();
                for i in 0..dv {
                    let value = |row: usize| v.get((row * groups + group) * dv + i).float();
                    out.push(
                        seen.iter()
                            .zip(&weights)
                            .map(|(&row, w)| w * value(row))
                            .sum::<f64>()
                            / total,
                    );
                }
            }
        }
        Tensor {
            dims: vec![tokens, heads, dv],
            data: Data::Float(out),
        }
    }

    /// Runs the recurrence per token and head: decay the matrix, add `u kᵀ`, multiply by the query.
    ///
    /// Returns the last state if `left`, else the outputs.
    pub(super) fn scan(&self, left: bool) -> Tensor {
        let [state, q, k, v, gates, rates @ ..] = self.src else {
            self.fail("needs a state, q, k, v and gates")
        };
        let (&[heads, depth, width], &[tokens, ..]) = (&state.dims[..], &q.dims[..]) else {
            self.fail("three axes")
        };
        let fits = q.dims == [tokens, heads, width]
            && k.dims == q.dims
            && v.dims == [tokens, heads, depth];
        self.ensure(
            fits && gates.dims == [tokens, heads],
            "state, queries, keys, values and gates do not fit",
        );
        let mut s: Vec<f64> = (0..state.len()).map(|i| state.get(i).float()).collect();
        let mut read = Vec::with_capacity(v.len());
        for at in 0..tokens * heads {
            let row = |x: &Tensor, n: usize| {
                (0..n)
                    .map(|i| x.get(at * n + i).float())
                    .collect::<Vec<f64>>()
            };
            let (query, key, value) = (row(q, width), row(k, width), row(v, depth));
            let decay = gates.get(at).float().exp();
            let matrix = &mut s[at % heads * depth * width..][..depth * width];
            for (line, value) in matrix.chunks_mut(width).zip(value) {
                line.iter_mut().for_each(|x| *x *= decay);
                let found: f64 = line.iter().zip(&key).map(|(x, k)| x * k).sum();
                let u = rates
                    .first()
                    .map_or(value, |rate| rate.get(at).float() * (value - found));
                line.iter_mut().zip(&key).for_each(|(x, k)| *x += u * k);
                read.push(line.iter().zip(&query).map(|(x, q)| x * q).sum());
            }
        }
        if left {
            Tensor {
                dims: state.dims.clone(),
                data: Data::Float(s),
            }
        } else {
            Tensor {
                dims: v.dims.clone(),
                data: Data::Float(read),
            }
        }
    }
}
