//! Compares sampling on a device with sampling on the host.

use super::*;
use gristmill_backend::{Options, open};
use gristmill_runtime::{Buffer, Device, Memory, Replay};
use gristmill_tensor::jit::{Call, Jit};

/// A sampling function captured on a device.
pub(super) struct Chooser {
    pub device: std::sync::Arc<dyn Device>,
    pub step: Box<dyn Replay>,
    pub args: Vec<Buffer>,
}

impl Chooser {
    fn new(device: &str, choice: SamplingMethod, vocabulary: usize) -> Chooser {
        Chooser::for_function(device, sampling_function(choice, vocabulary))
    }
    pub fn for_function(device: &str, function: gristmill_uop::function::Function) -> Chooser {
        let mut jit = Jit::new(
            open(
                device,
                &Options {
                    threads: Some(2),
                    quick: true,
                    ..Options::default()
                },
            )
            .unwrap(),
        );
        let device = jit.device().clone();
        let args: Vec<Buffer> = function
            .slots
            .iter()
            .map(|s| {
                device
                    .alloc(s.storage.bytes(&s.dims).unwrap(), Memory::State)
                    .unwrap()
            })
            .collect();
        let ready = jit
            .prepare(&[function.into()], &|_, _| ())
            .unwrap()
            .remove(0);
        let arena = device
            .alloc(
                Jit::arena(std::slice::from_ref(&ready)).max(64),
                Memory::Scratch,
            )
            .unwrap();
        let step = jit
            .capture(
                &[Call {
                    function: ready,
                    args: args.clone(),
                }],
                &arena,
            )
            .unwrap();
        Chooser { device, step, args }
    }
    fn set(&self, logits: &[f32], numbers: &[f32]) {
        let parts: [&[u8]; 2] = [bytemuck::cast_slice(logits), bytemuck::cast_slice(numbers)];
        for (buffer, data) in self.args.iter().zip(parts) {
            self.device.write(buffer, 0, data).unwrap();
        }
    }
    /// Runs the function with that random number.
    fn with(&mut self, random: u32) -> i32 {
        self.device
            .write(&self.args[2], 0, bytemuck::bytes_of(&random))
            .unwrap();
        self.id()
    }
    /// Runs the function and reads the id.
    fn id(&mut self) -> i32 {
        self.step.replay(&[]).unwrap();
        let mut id = [0i32];
        let token = self.args.last().unwrap();
        self.device
            .read(token, 0, bytemuck::cast_slice_mut(&mut id))
            .unwrap();
        id[0]
    }
}

pub(super) fn off() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..SamplingParams::default()
    }
}

/// Returns logits like a model's: a few stand out. Values are on a coarse scale, so
/// that there are ties.
pub(super) fn logits(n: usize, seed: u64) -> Vec<f32> {
    let random = PositionRng::new(seed);
    let uniform = |i: usize| f64::from(random.at(i)) / 2f64.powi(31) - 0.5;
    let normal = |i: usize| (0..6).map(|part| uniform(6 * i + part)).sum::<f64>() * 4.0;
    (0..n)
        .map(|i| (normal(i) * 8.0).round() as f32 / 8.0)
        .collect()
}

/// Returns the probability of every id, computed on the host.
fn probabilities(params: &SamplingParams, logits: &[f32]) -> Vec<f64> {
    let mut s = Sampler::new(params.clone()).unwrap();
    s.sample(logits, &[]).unwrap();
    let total = s.weights.iter().sum::<i64>() as f64;
    let mut out = vec![0.0; logits.len()];
    s.candidates
        .iter()
        .zip(&s.weights)
        .for_each(|(c, w)| out[c.0 as usize] = *w as f64 / total);
    out
}

#[test]
fn the_greatest_is_the_hosts_and_faults_are_told() {
    for device in ["interp", "cpu"] {
        for n in [1, 256, 1000] {
            let mut chooser = Chooser::new(device, SamplingMethod::Greedy, n);
            let mut host = Sampler::new(SamplingParams::greedy()).unwrap();
            for seed in 0..4 {
                let mut x = logits(n, seed);
                if seed == 1 {
                    x[0] = f32::NEG_INFINITY;
                    x[n - 1] = -3e38;
                }
                if seed == 2 {
                    x.fill(-1.0);
                }
                chooser
                    .device
                    .write(&chooser.args[0], 0, bytemuck::cast_slice(&x))
                    .unwrap();
                let want = host.sample(&x, &[]).unwrap();
                assert_eq!(chooser.id(), want as i32, "{device}, {n}, {seed}");
            }
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = logits(n, 9);
                x[n / 2] = bad;
                if bad == f32::NEG_INFINITY {
                    x.fill(bad);
                }
                chooser
                    .device
                    .write(&chooser.args[0], 0, bytemuck::cast_slice(&x))
                    .unwrap();
                assert_eq!(chooser.id(), -1, "{device}, {n}, {bad}");
            }
        }
    }
}

#[test]
fn every_row_has_its_greatest() {
    const MOST: usize = 5;
    for (device, n) in [("interp", 300), ("cpu", 256), ("cpu", 1000)] {
        let mut chooser = Chooser::for_function(device, rows_function(n, MOST));
        let mut host = Sampler::new(SamplingParams::greedy()).unwrap();
        let mut rows: Vec<Vec<f32>> = (0..MOST as u64).map(|seed| logits(n, seed)).collect();
        rows[1].fill(-1.0);
        rows[2][n - 1] = 99.0;
        rows[3][n / 2] = f32::NAN;
        chooser
            .device
            .write(&chooser.args[0], 0, bytemuck::cast_slice(&rows.concat()))
            .unwrap();
        for count in [1, 3, MOST] {
            let mut found = vec![7i32; count];
            chooser.step.replay(&[("n", count as i64)]).unwrap();
            chooser
                .device
                .read(&chooser.args[1], 0, bytemuck::cast_slice_mut(&mut found))
                .unwrap();
            let want = |row: &Vec<f32>| host.sample(row, &[]).map_or(-1, |token| token as i32);
            assert_eq!(
                found,
                rows[..count].iter().map(want).collect::<Vec<_>>(),
                "{device}, {n}"
            );
        }
    }
}

#[test]
fn every_truncation_leaves_the_hosts_distribution_by_the_interpreter() {
    every_truncation_leaves_the_hosts_distribution("interp", 12, &[70]);
}

#[test]
fn every_truncation_leaves_the_hosts_distribution_of_few() {
    every_truncation_leaves_the_hosts_distribution("cpu", 400, &[13, 600]);
}

#[test]
fn every_truncation_leaves_the_hosts_distribution_of_many() {
    every_truncation_leaves_the_hosts_distribution("cpu", 400, &[3003]);
}

/// Uses evenly spaced numbers instead of random ones: every id must be drawn as often
/// as its probability says.
///
/// Ids in contiguous ranges must match to one draw; as truncated ids never occur, a cut at
/// a wrong place shows.
fn every_truncation_leaves_the_hosts_distribution(device: &str, draws: usize, sizes: &[usize]) {
    let d = off;
    let cases = [
        d(),
        SamplingParams {
            temperature: 0.6,
            ..d()
        },
        SamplingParams {
            temperature: 1e-30,
            ..d()
        },
        SamplingParams { min_p: 0.2, ..d() },
        SamplingParams { top_p: 0.7, ..d() },
        SamplingParams {
            top_p: 0.9,
            min_p: 0.05,
            temperature: 1.5,
            ..d()
        },
        SamplingParams { top_k: 100, ..d() },
        SamplingParams {
            top_p: 0.999_999_9,
            ..d()
        },
        SamplingParams { top_k: 40, ..d() },
        SamplingParams {
            top_k: 64,
            top_p: 0.8,
            min_p: 0.02,
            temperature: 0.8,
            ..d()
        },
        SamplingParams {
            top_k: 1,
            temperature: 3.0,
            ..d()
        },
        SamplingParams {
            top_k: 5,
            top_p: 0.5,
            temperature: 100.0,
            ..d()
        },
        SamplingParams::default(),
    ];
    let even: Vec<u32> = (0..draws)
        .map(|i| (((2 * i as u64 + 1) << 30) / draws as u64) as u32)
        .collect();
    for &n in sizes {
        let mut choosers: Vec<(SamplingMethod, Chooser)> = Vec::new();
        for (number, params) in cases.iter().enumerate() {
            let sampler = Sampler::new(params.clone()).unwrap();
            let choice = sampler.choice().unwrap();
            if choosers.iter().all(|c| c.0 != choice) {
                choosers.push((choice, Chooser::new(device, choice, n)));
            }
            let chooser = &mut choosers.iter_mut().find(|c| c.0 == choice).unwrap().1;
            let x = logits(n, number as u64);
            let want = probabilities(params, &x);
            chooser.set(&x, &sampler.numbers());
            let mut counts = vec![0usize; n];
            for &random in &even {
                counts[chooser.with(random) as usize] += 1;
            }
            for (id, (&count, p)) in counts.iter().zip(&want).enumerate() {
                let near = (count as f64 - p * draws as f64).abs() <= 1.001;
                assert!(
                    near && (*p > 0.0 || count == 0),
                    "{device}, {n}, {params:?}: {id} {count} times, {p}"
                );
            }
            // Every remaining id that is probable enough is drawn.
            let missing = (0..n).find(|&i| want[i] * draws as f64 > 1.01 && counts[i] == 0);
            assert_eq!(missing, None, "{device}, {n}, {params:?}");
        }
    }
}

// One test for each size, so that they run in parallel.
#[test]
fn a_seed_gives_what_it_gives_on_the_host_by_the_interpreter() {
    a_seed_gives_what_it_gives_on_the_host("interp", &[70], 6);
}

#[test]
fn a_seed_gives_what_it_gives_on_the_host_of_few() {
    a_seed_gives_what_it_gives_on_the_host("cpu", &[5, 300], 200);
}

#[test]
fn a_seed_gives_what_it_gives_on_the_host_of_many() {
    a_seed_gives_what_it_gives_on_the_host("cpu", &[3000], 200);
}

/// On the first CUDA device, also for the largest vocabulary of a supported model.
#[cfg(feature = "cuda-tests")]
#[test]
fn a_seed_gives_what_it_gives_on_the_host_on_cuda() {
    a_seed_gives_what_it_gives_on_the_host("cuda", &[5, 300, 3000, 154_880], 200);
}

/// Checks that a device chooses the host's token from the same logits and random number for all
/// truncations, including ties, sums that equal a limit exactly, and extremes.
fn a_seed_gives_what_it_gives_on_the_host(device: &str, sizes: &[usize], positions: usize) {
    let d = off;
    let cases = [
        SamplingParams::default(),
        SamplingParams {
            top_k: 64,
            top_p: 0.8,
            min_p: 0.0,
            temperature: 1.7,
            ..d()
        },
        SamplingParams {
            top_k: 3,
            temperature: f32::MAX,
            ..d()
        },
        d(),
        SamplingParams {
            temperature: 0.7,
            min_p: 0.01,
            ..d()
        },
        SamplingParams { top_k: 65, ..d() },
        SamplingParams {
            top_k: 500,
            temperature: 3.0,
            min_p: 0.001,
            ..d()
        },
        SamplingParams {
            top_p: 0.9,
            temperature: 1.3,
            ..d()
        },
        SamplingParams { top_p: 0.5, ..d() },
        SamplingParams {
            top_p: 0.999_999_9,
            temperature: 30.0,
            ..d()
        },
        SamplingParams { top_p: 1e-9, ..d() },
    ];
    for &n in sizes {
        let mut choosers: Vec<(SamplingMethod, Chooser)> = Vec::new();
        for (number, params) in cases.iter().enumerate() {
            let mut host = Sampler::new(SamplingParams {
                seed: number as u64,
                ..params.clone()
            })
            .unwrap();
            let choice = host.choice().unwrap();
            if choosers.iter().all(|c| c.0 != choice) {
                choosers.push((choice, Chooser::new(device, choice, n)));
            }
            let chooser = &mut choosers.iter_mut().find(|c| c.0 == choice).unwrap().1;
            for kind in 0..4 {
                let mut x = logits(n, (number * 4 + kind) as u64);
                match kind {
                    0 => {}
                    // Many equal logits: cuts fall among them.
                    1 => x.iter_mut().for_each(|x| *x = x.round() * 2.0),
                    2 => x.fill(-3.25),
                    _ => x
                        .iter_mut()
                        .step_by(3)
                        .for_each(|x| *x = if *x > 0.0 { f32::NEG_INFINITY } else { -1e38 }),
                }
                chooser.set(&x, &host.numbers());
                let random = host.random();
                let history = vec![0; positions];
                for pos in 0..positions {
                    let want = host.sample(&x, &history[..pos]).unwrap();
                    assert_eq!(
                        chooser.with(random.at(pos)),
                        want as i32,
                        "{device}, {n}, {params:?}, logits {kind}, {pos}"
                    );
                }
            }
        }
    }
}

#[test]
fn penalties_and_two_long_searches_stay_on_the_host() {
    let of = |params| Sampler::new(params).unwrap().choice();
    assert_eq!(of(SamplingParams::greedy()), Some(SamplingMethod::Greedy));
    assert_eq!(
        of(SamplingParams::default()),
        Some(SamplingMethod::SmallTopK)
    );
    assert_eq!(
        of(SamplingParams {
            top_k: MAX_CANDIDATES,
            ..off()
        }),
        Some(SamplingMethod::SmallTopK)
    );
    assert_eq!(
        of(SamplingParams {
            top_k: MAX_CANDIDATES + 1,
            ..off()
        }),
        Some(SamplingMethod::TopK)
    );
    assert_eq!(
        of(SamplingParams {
            top_p: 0.5,
            ..off()
        }),
        Some(SamplingMethod::TopP)
    );
    assert_eq!(of(off()), Some(SamplingMethod::All));
    assert_eq!(
        of(SamplingParams {
            top_k: MAX_CANDIDATES + 1,
            top_p: 0.5,
            ..off()
        }),
        None
    );
    assert_eq!(
        of(SamplingParams {
            repeat_penalty: 1.1,
            ..SamplingParams::default()
        }),
        None
    );
    assert_eq!(
        of(SamplingParams {
            presence_penalty: 0.5,
            ..SamplingParams::greedy()
        }),
        None
    );
}
