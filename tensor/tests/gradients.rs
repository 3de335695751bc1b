//! Compares gradients with central differences of the f64 evaluator, op by op.

use gristmill_tensor::dims;
use gristmill_tensor::evaluate::{Env, evaluate};
use gristmill_tensor::function::Capture;
use gristmill_tensor::grad::{Derivative, derivative, grad, pullback};
use gristmill_tensor::nn::{self, Glu, Pairing};
use gristmill_tensor::tensor::{Recurrence, Tensor};
use gristmill_uop::function::SlotKind;
use gristmill_uop::op::Class;
use gristmill_uop::shape::Scoring;
use gristmill_uop::{Op, Scalar};
use std::collections::BTreeSet;

/// Writes a value from float inputs, of which gradients are compared.
type Body = for<'g> fn(&'g Capture, &[Tensor<'g>]) -> Tensor<'g>;

/// A function of float inputs of these dims.
struct Case {
    name: &'static str,
    inputs: &'static [&'static [usize]],
    body: Body,
}

const fn case(name: &'static str, inputs: &'static [&'static [usize]], body: Body) -> Case {
    Case { name, inputs, body }
}

/// Integers as an i32 tensor that depends on no input.
fn numbers<'g>(c: &'g Capture, values: &[usize]) -> Tensor<'g> {
    let at = c.iota(dims![values.len()], 0);
    let of = |(i, &v): (usize, &usize)| {
        at.equals(i as i64)
            .select(c.constant(v as f64, Scalar::I32), 0)
    };
    let terms = values.iter().enumerate().map(of);
    terms.reduce(|a, b| a + b).expect("some integers")
}

fn positive(x: Tensor<'_>) -> Tensor<'_> {
    x * x + 0.5
}

fn attention<'g>(
    c: &'g Capture,
    x: &[Tensor<'g>],
    first: usize,
    scores: Scoring,
    window: Option<usize>,
) -> Tensor<'g> {
    let length = first + 4;
    x[0].attention_within(
        [x[1], x[2]],
        [c.int(first), c.int(length)],
        scores,
        window,
        x.get(3).copied(),
    )
}

fn scan<'g>(x: &[Tensor<'g>], rates: bool) -> (Tensor<'g>, Tensor<'g>) {
    let of = Recurrence {
        queries: x[1],
        keys: x[2],
        values: x[3],
        gates: -positive(x[4]),
        rates: rates.then(|| x[5].sigmoid()),
    };
    of.scan(x[0])
}

const SCAN: &[&[usize]] = &[
    &[2, 3, 4],
    &[5, 2, 4],
    &[5, 2, 4],
    &[5, 2, 3],
    &[5, 2],
    &[5, 2],
];
const HEADS: &[&[usize]] = &[&[4, 4, 3], &[6, 2, 3], &[6, 2, 5]];

const CASES: &[Case] = &[
    case("reshape", &[&[4, 6]], |_, x| {
        x[0].reshape(dims![3, 8]).exp()
    }),
    case("permute", &[&[2, 3, 4]], |_, x| {
        x[0].permute(&[2, 0, 1]).exp()
    }),
    case("expand", &[&[3, 1]], |_, x| {
        x[0].expand(dims![2, 3, 4]).exp()
    }),
    case("one window", &[&[3, 6]], |_, x| x[0].slice(1, 2, 3).exp()),
    case("windows side by side, and a gap", &[&[3, 7]], |_, x| {
        x[0].slice(1, 4, 2).exp() + x[0].slice(1, 1, 2) * x[0].slice(1, 5, 2)
    }),
    case("windows of two axes", &[&[4, 5]], |_, x| {
        x[0].slice(0, 1, 2).slice(1, 2, 3).exp()
    }),
    case("a window at a variable", &[&[6, 3]], |c, x| {
        x[0].slice(0, c.var("begin", 0, 3), 2).exp()
    }),
    case("cat", &[&[2, 3], &[2, 1], &[2, 3]], |_, x| {
        Tensor::cat(&[x[0], x[1], x[2]], 1).exp() * x[0].sum(&[0, 1])
    }),
    case("cast", &[&[4]], |_, x| (x[0] * x[0]).cast(Scalar::F32)),
    case("neg", &[&[4]], |_, x| (-x[0]).exp()),
    case("exp", &[&[4]], |_, x| x[0].exp().exp()),
    case("log", &[&[4]], |_, x| positive(x[0]).log()),
    case("sqrt", &[&[4]], |_, x| positive(x[0]).sqrt()),
    case("recip", &[&[4]], |_, x| positive(x[0]).recip()),
    case(
        "add, with a scalar and broadcasts",
        &[&[4, 3], &[3], &[]],
        |_, x| (x[0] + x[1]).exp() + x[2] * x[0],
    ),
    case("sub", &[&[4], &[4]], |_, x| (x[0] - x[1]).exp()),
    case("mul", &[&[4], &[4], &[]], |_, x| x[0] * x[1] * x[2]),
    case("div", &[&[4], &[4]], |_, x| x[0] / positive(x[1])),
    case("max and min", &[&[9], &[9]], |_, x| {
        x[0].maximum(x[1]).exp() + x[0].minimum(x[1] * 0.7)
    }),
    case("where", &[&[9], &[9]], |_, x| {
        x[0].lt(0.1).select(x[0].exp(), x[1] * x[1])
    }),
    case("sums and products", &[&[3, 4], &[5, 4]], |_, x| {
        x[0].linear(x[1]).exp().sum(&[1])
    }),
    case("largest", &[&[3, 5]], |_, x| x[0].max(&[1]).exp()),
    case("gather", &[&[5, 3]], |c, x| {
        x[0].gather(numbers(c, &[3, 0, 3, 4])).exp()
    }),
    case("scatter_add", &[&[5, 3], &[4, 3]], |c, x| {
        x[0].scatter_add(x[1], numbers(c, &[3, 0, 3, 4])).exp()
    }),
    case("rows assigned", &[&[5, 3], &[2, 3]], |c, x| {
        x[0].exp().assign(x[1].exp(), c.int(1)) * x[0]
    }),
    case("rows assigned by number", &[&[5, 3], &[2, 3]], |c, x| {
        x[0].exp().scatter(x[1].exp(), numbers(c, &[4, 1])) * x[0]
    }),
    case("attention", HEADS, |c, x| {
        attention(c, x, 2, Scoring::from(0.6), None)
    }),
    case(
        "attention from the first position, unused keys",
        HEADS,
        |c, x| attention(c, x, 0, Scoring::from(0.6), None),
    ),
    case("attention in a window", HEADS, |c, x| {
        attention(c, x, 2, Scoring::from(0.6), Some(3))
    }),
    case(
        "attention with a cap and sinks",
        &[&[4, 4, 3], &[6, 2, 3], &[6, 2, 5], &[4]],
        |c, x| {
            let scores = Scoring {
                scale: 2.0,
                cap: Some(1.5),
            };
            attention(c, x, 2, scores, None)
        },
    ),
    case("outputs of a scan", SCAN, |_, x| {
        scan(x, false).0 + x[5].sum(&[0, 1])
    }),
    case("last state of a scan", SCAN, |_, x| {
        scan(x, false).1 + x[5].sum(&[0, 1])
    }),
    case("outputs of a scan with rates", SCAN, |_, x| scan(x, true).0),
    case("last state of a scan with rates", SCAN, |_, x| {
        scan(x, true).1
    }),
    case("a norm", &[&[3, 8], &[8]], |_, x| {
        nn::rms_norm(x[0], x[1], 1e-5)
    }),
    case("softmax", &[&[3, 5]], |_, x| nn::softmax(x[0])),
    case("rope", &[&[3, 2, 8], &[3, 4, 2]], |_, x| {
        nn::rope(x[0], x[1], Pairing::Halves) + nn::rope(x[0], x[1], Pairing::Interleaved)
    }),
    case("gated units", &[&[3, 4], &[3, 4]], |_, x| {
        Glu::Swiglu.apply(x[0], x[1]) + Glu::Geglu.apply(x[0], x[1])
    }),
    case("chosen scores", &[&[3, 6]], |_, x| {
        nn::top_k(x[0], 2).select(nn::softmax(x[0]))
    }),
    case(
        "experts in tiles",
        &[&[6, 4], &[3, 5, 4], &[6, 2]],
        |c, x| {
            let index = numbers(c, &[0, 2, 1, 2, 2, 0, 0, 1, 2, 1, 0, 2]).reshape(dims![6, 2]);
            let sent = nn::Dispatch::new(index, c.int(6), 6, 3, Some(2));
            let y = sent.spread(x[0]).contract(sent.of_experts(x[1]));
            sent.combine(y.exp(), x[2])
        },
    ),
    case(
        "experts in order",
        &[&[6, 4], &[3, 5, 4], &[6, 2]],
        |c, x| {
            let index = numbers(c, &[0, 2, 1, 2, 2, 0, 0, 1, 2, 1, 0, 2]).reshape(dims![6, 2]);
            let sent = nn::Dispatch::new(index, c.int(6), 6, 3, None);
            let y = sent.spread(x[0]).contract(sent.of_experts(x[1]));
            sent.combine(y.exp(), x[2])
        },
    ),
];

/// Numbers without a pattern between -0.5 and 0.5, all different.
fn values(n: usize, seed: usize) -> Vec<f64> {
    let mut state = seed as u64 * 2_654_435_761 + 12_345;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
        })
        .collect()
}

/// The captured loss `Σ value·seed` and its gradients, with input values.
struct Problem {
    function: gristmill_uop::function::Function,
    inputs: Vec<Vec<f64>>,
}

impl Problem {
    fn new(case: &Case) -> Problem {
        let c = Capture::new(case.name);
        let inputs: Vec<Tensor<'_>> = case
            .inputs
            .iter()
            .map(|dims| {
                let dims: Vec<_> = dims.iter().map(|&d| d.into()).collect();
                c.input("x", &dims, Scalar::F32)
            })
            .collect();
        let y = (case.body)(&c, &inputs);
        let dims: Vec<_> = y.dims().into_iter().map(Into::into).collect();
        let seed = c.input("seed", &dims, Scalar::F32);
        let axes: Vec<usize> = (0..y.rank()).collect();
        let loss = (y * seed).sum(&axes);
        c.output("loss", loss);
        for dx in grad(loss, &inputs) {
            c.output("dx", dx);
        }
        let function = c.finish();
        let inputs = function
            .slots
            .iter()
            .filter(|s| s.kind == SlotKind::Input)
            .enumerate()
            .map(|(i, s)| values(s.dims.iter().product::<i64>() as usize, i + 1))
            .collect();
        Problem { function, inputs }
    }
    fn output(&self, number: usize, inputs: &[Vec<f64>]) -> Vec<f64> {
        let mut env = Env::new().var("begin", 2);
        for (slot, values) in inputs.iter().enumerate() {
            env = env.values(slot as u32, values);
        }
        evaluate(&self.function.graph, self.function.outputs[number].1, &env).data
    }
    fn loss_at(&self, input: usize, element: usize, by: f64) -> f64 {
        let mut inputs = self.inputs.clone();
        inputs[input][element] += by;
        self.output(0, &inputs)[0]
    }
}

#[test]
fn gradients_are_central_differences() {
    const STEP: f64 = 1e-5;
    let mut wrong = Vec::new();
    for case in CASES {
        let problem = Problem::new(case);
        for input in 0..case.inputs.len() {
            let got = problem.output(1 + input, &problem.inputs);
            assert_eq!(got.len(), problem.inputs[input].len(), "{}", case.name);
            for (element, got) in got.iter().enumerate() {
                let [up, down] = [STEP, -STEP].map(|by| problem.loss_at(input, element, by));
                let want = (up - down) / (2.0 * STEP);
                if (got - want).abs() > 1e-7 * want.abs().max(1.0) {
                    let name = case.name;
                    wrong.push(format!(
                        "{name}, input {input}[{element}]: {got}, not {want}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Ops that tensors of a model have; the table of rules has no row without a case.
#[test]
fn every_rule_has_a_case() {
    let mut covered = BTreeSet::new();
    for case in CASES {
        let problem = Problem::new(case);
        // Scans are expanded and the loss no longer has them; the value itself does.
        let graph = &problem.function.graph;
        for id in graph.toposort(
            &problem
                .function
                .outputs
                .iter()
                .map(|o| o.1)
                .collect::<Vec<_>>(),
        ) {
            covered.insert(graph[id].op);
        }
    }
    // No handle makes these: rewrites of later levels do. They have cases of their own below.
    covered.extend([Op::Exp2, Op::Fma, Op::Copy, Op::Call]);
    let missing: Vec<&str> = Op::TABLE
        .iter()
        .filter(|row| !matches!(row.class, Class::Kernel | Class::Linear))
        .filter(|row| derivative(row.op) == Derivative::Rule && !covered.contains(&row.op))
        .map(|row| row.name)
        .collect();
    assert!(missing.is_empty(), "rules without a case: {missing:?}");
}

#[test]
fn a_tensor_that_the_loss_ignores_has_gradient_zero() {
    let c = Capture::new("unused");
    let [x, y] = ["x", "y"].map(|name| c.input(name, dims![3], Scalar::F32));
    let dy = grad(x.exp().sum(&[0]), &[y])[0];
    assert_eq!(dy.dims(), y.dims());
    c.output("dy", dy);
    let f = c.finish();
    let zeros = evaluate(&f.graph, f.outputs[0].1, &Env::new());
    assert_eq!(zeros.data, [0.0; 3]);
}

#[test]
fn equal_maxima_share_the_gradient() {
    let c = Capture::new("ties");
    let x = c.input("x", dims![4], Scalar::F32);
    c.output("dx", grad(x.max(&[0]), &[x])[0]);
    let f = c.finish();
    let dx = evaluate(
        &f.graph,
        f.outputs[0].1,
        &Env::new().values(0, &[1.0, 2.0, 2.0, 0.0]),
    );
    assert_eq!(dx.data, [0.0, 0.5, 0.5, 0.0]);
}

#[test]
#[should_panic(expected = "PagedAttention has no gradient: a paged cache is for inference")]
fn paged_attention_is_refused_with_the_reason() {
    use gristmill_tensor::tensor::PagedRows;
    let c = Capture::new("paged");
    let q = c.input("q", dims![1, 2, 4], Scalar::F32);
    let k = c.input("k", dims![2, 16, 2, 4], Scalar::F32);
    let at = PagedRows {
        positions: c.input("positions", dims![1], Scalar::I32),
        length: c.int(16),
        table: c.input("table", dims![1, 1], Scalar::I32),
        page: 16,
    };
    let y = q.paged_attention([k, k], &at, 1.0, None, None);
    pullback(&[(y, y)], &[q], Scalar::F32);
}
