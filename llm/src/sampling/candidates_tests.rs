//! Compares tokens chosen from a device's candidates with those chosen from whole rows.

use super::device_tests::{Chooser, logits, off};
use super::*;
use crate::generation::{Constraint, Generation, ModelOutput};
use crate::sched::ConstraintError;

/// Maximum rows of a step.
const MOST: usize = 3;
/// Tokens of each answer.
const ANSWER: usize = 6;

/// A constraint that allows two of three tokens, changing each time, or only a few.
struct Only {
    few: bool,
    step: u32,
}

impl Constraint for Only {
    fn mask(&mut self, tokens: &mut TokenSet) -> Result<(), ConstraintError> {
        let out = |id: &u32| match self.few {
            true => *id != 0 && id % 61 != self.step % 61,
            false => id % 3 == self.step % 3,
        };
        tokens
            .iter()
            .filter(out)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|id| tokens.remove(id));
        Ok(())
    }
    fn accept(&mut self, _: u32) -> Result<bool, ConstraintError> {
        self.step += 1;
        Ok(false)
    }
}

/// Sampling parameters, biases and constraint of a test case.
#[derive(Clone, Debug, Default)]
struct Way {
    params: SamplingParams,
    bias: Vec<(u32, f32)>,
    constraint: Option<bool>,
    /// Whether the candidates may be insufficient.
    open: bool,
}

fn generation(way: &Way) -> Generation<'static> {
    let sampler = Sampler::new(way.params.clone()).expect("parameters in range");
    let generation = Generation::new(sampler, 1000, |_| false).with_bias(way.bias.clone());
    match way.constraint {
        Some(few) => generation.with_constraint(Box::new(Only { few, step: 0 })),
        None => generation,
    }
}

fn ways() -> Vec<Way> {
    let penalties = SamplingParams {
        repeat_penalty: 1.3,
        frequency_penalty: 0.4,
        presence_penalty: 0.7,
        ..off()
    };
    let closed = |params| Way {
        params,
        ..Way::default()
    };
    let open = |params| Way {
        params,
        open: true,
        ..Way::default()
    };
    let bias: Vec<(u32, f32)> = (0..40)
        .map(|i| (i * 7, if i % 2 == 0 { 1.5 } else { -100.0 }))
        .collect();
    vec![
        closed(SamplingParams::default()),
        closed(SamplingParams {
            top_k: 64,
            top_p: 0.8,
            min_p: 0.0,
            temperature: 1.7,
            ..off()
        }),
        closed(SamplingParams { top_k: 1, ..off() }),
        closed(SamplingParams {
            repeat_penalty: 2.0,
            ..SamplingParams::greedy()
        }),
        closed(SamplingParams {
            top_k: 40,
            ..penalties.clone()
        }),
        closed(SamplingParams {
            top_k: 30,
            top_p: 0.7,
            penalty_last_n: usize::MAX,
            ..penalties.clone()
        }),
        Way {
            bias: bias.clone(),
            ..closed(SamplingParams {
                top_k: 20,
                top_p: 0.9,
                ..off()
            })
        },
        Way {
            constraint: Some(false),
            ..closed(SamplingParams::default())
        },
        Way {
            constraint: Some(false),
            bias: bias.clone(),
            ..closed(SamplingParams {
                top_k: 40,
                ..penalties.clone()
            })
        },
        Way {
            constraint: Some(true),
            ..closed(SamplingParams::greedy())
        },
        Way {
            constraint: Some(true),
            ..closed(off())
        },
        closed(SamplingParams {
            min_p: 0.3,
            ..off()
        }),
        open(SamplingParams {
            top_p: 0.3,
            ..off()
        }),
        open(SamplingParams {
            top_p: 0.9,
            min_p: 0.2,
            temperature: 1.3,
            ..off()
        }),
        open(SamplingParams {
            top_p: 0.5,
            ..penalties
        }),
        Way {
            bias,
            ..open(SamplingParams {
                top_p: 0.4,
                ..off()
            })
        },
        open(SamplingParams {
            top_k: 100,
            top_p: 0.5,
            ..off()
        }),
        open(SamplingParams {
            top_k: 500,
            min_p: 0.2,
            temperature: 3.0,
            ..off()
        }),
        closed(off()),
        closed(SamplingParams {
            temperature: 1e-3,
            ..off()
        }),
        closed(SamplingParams {
            temperature: 1e30,
            ..off()
        }),
        Way {
            bias: vec![(3, 2.0)],
            ..open(off())
        },
    ]
}

/// A device sampler and the function that fills it.
struct Ranking {
    chooser: Chooser,
    rows: DeviceSampler,
}

impl Ranking {
    fn new(device: &str, vocabulary: usize) -> Ranking {
        let chooser = Chooser::for_function(device, candidates_function(vocabulary, MOST));
        let buffers = chooser.args[1..]
            .to_vec()
            .try_into()
            .expect("a buffer for each slot");
        Ranking {
            chooser,
            rows: DeviceSampler::from_buffers(buffers, vocabulary, MOST),
        }
    }
    fn ask(&mut self, logits: &[Vec<f32>], asks: &[Option<RowParams>]) -> Vec<Option<Candidates>> {
        let Ranking {
            chooser: Chooser { device, step, args },
            rows,
        } = self;
        device
            .write(&args[0], 0, bytemuck::cast_slice(&logits.concat()))
            .expect("written");
        rows.write(&**device, asks).expect("written");
        step.replay(&[("n", asks.len() as i64)]).expect("a step");
        rows.read(&**device, asks).expect("read")
    }
}

/// Returns logits of one of four kinds: plain, many equal, all equal, or some at −∞.
fn some_logits(n: usize, seed: u64) -> Vec<f32> {
    let mut x = logits(n, seed);
    match seed % 4 {
        0 => {}
        1 => x.iter_mut().for_each(|x| *x = x.round() * 2.0),
        2 => x.fill(-3.25),
        _ => x
            .iter_mut()
            .step_by(3)
            .for_each(|x| *x = if *x > 0.0 { f32::NEG_INFINITY } else { -1e38 }),
    }
    x
}

/// Checks that every row of a batch gets the token that is chosen from its whole row. Returns how
/// often the candidates were insufficient.
fn check(ranking: &mut Ranking, vocabulary: usize, ways: &[Way], seed: u64) -> usize {
    let mut told: Vec<_> = ways.iter().map(generation).collect();
    let mut whole: Vec<_> = ways.iter().map(generation).collect();
    let mut histories: Vec<Vec<u32>> = ways
        .iter()
        .map(|_| (0..9).map(|i| i * 5 % vocabulary as u32).collect())
        .collect();
    let mut open = 0;
    for step in 0..ANSWER {
        let rows: Vec<_> = (0..ways.len())
            .map(|i| some_logits(vocabulary, seed + (step * MOST + i) as u64))
            .collect();
        let asks: Vec<_> = told
            .iter_mut()
            .zip(&histories)
            .map(|(one, history)| one.row_params(history, vocabulary))
            .collect();
        let ranked = ranking.ask(&rows, &asks);
        for (i, (way, history)) in ways.iter().zip(&mut histories).enumerate() {
            let wanted = whole[i].take(ModelOutput::Logits(&rows[i]), history, usize::MAX);
            let found = ranked[i]
                .as_ref()
                .and_then(|ranked| told[i].choose_from_candidates(ranked, history));
            // If few ids are allowed, all may be at −∞.
            let Ok(wanted) = wanted.map(|step| step.token) else {
                assert_eq!(found, None, "{vocabulary}, {way:?}, at {step}");
                continue;
            };
            let small = vocabulary <= MAX_CANDIDATES;
            assert!(
                found.is_some() || way.open && !small,
                "{way:?}: not enough was told, at {step}"
            );
            open += usize::from(found.is_none());
            let given = found.map_or(ModelOutput::Logits(&rows[i]), ModelOutput::Token);
            let token = told[i]
                .take(given, history, usize::MAX)
                .expect("a token")
                .token;
            assert_eq!(token, wanted, "{vocabulary}, {way:?}, at {step}");
            history.extend(token);
        }
    }
    open
}

#[test]
fn candidates_of_a_row_give_its_token() {
    // On the first CUDA device of a machine with one, also for the largest vocabulary
    // of a supported model.
    let devices: &[(&str, &[usize])] = if cfg!(feature = "cuda-tests") {
        &[("cuda", &[5, 300, 3003, 154_880])]
    } else {
        &[("interp", &[70]), ("cpu", &[5, 256, 3003])]
    };
    let ways = ways();
    for &(device, sizes) in devices {
        for &n in sizes {
            let mut ranking = Ranking::new(device, n);
            let seeds = if device == "interp" { 1 } else { 8 };
            let mut open = 0;
            for seed in 0..seeds {
                // Rows of a step differ in all parameters, and each case is
                // combined with different ones.
                for (at, _) in ways.iter().enumerate() {
                    let of = |i: usize| ways[(at + i * (seed as usize + 1)) % ways.len()].clone();
                    open += check(
                        &mut ranking,
                        n,
                        &(0..1 + at % MOST).map(of).collect::<Vec<_>>(),
                        100 * seed,
                    );
                }
            }
            println!("{device}, {n}: {open} rows were wanted whole");
        }
    }
}

#[test]
fn faults_of_a_row_are_found_where_it_may_be_chosen_from() {
    let n = 300;
    let mut ranking = Ranking::new("cpu", n);
    for (value, fault) in [
        (f32::NAN, true),
        (f32::INFINITY, true),
        (f32::NEG_INFINITY, false),
    ] {
        for (id, way) in [
            (7, Way::default()),
            // Changed: its penalty comes from the history.
            (
                9,
                Way {
                    params: SamplingParams {
                        presence_penalty: 1.0,
                        ..off()
                    },
                    ..Way::default()
                },
            ),
            // Excluded by the constraint.
            (
                0,
                Way {
                    constraint: Some(false),
                    ..Way::default()
                },
            ),
        ] {
            let mut row = logits(n, 3);
            row[id] = value;
            let mut one = generation(&way);
            let ask = one.row_params(&[9, 9], n);
            let ranked = ranking
                .ask(std::slice::from_ref(&row), &[ask])
                .remove(0)
                .expect("asked");
            let found = one.choose_from_candidates(&ranked, &[9, 9]);
            let wanted = one.take(ModelOutput::Logits(&row), &[9, 9], usize::MAX);
            match found {
                Some(token) => assert_eq!(
                    wanted.expect("a token").token,
                    Some(token),
                    "{value} of {id}"
                ),
                None => assert_eq!(wanted.is_err(), fault, "{value} of {id}"),
            }
            assert!(!fault || found.is_none() || id == 0, "{value} of {id}");
        }
    }
    // Without allowed ids there is no token.
    let mut allowed = TokenSet::all(n);
    allowed.keep(&[]);
    let ask = RowParams {
        allowed: Some(allowed),
        changed: Vec::new(),
        sampling: RowSampling::greedy(),
        position: 0,
    };
    let ranked = ranking
        .ask(&[logits(n, 1)], &[Some(ask)])
        .remove(0)
        .expect("asked");
    assert!(ranked.complete && ranked.first.is_empty());
    assert_eq!(
        Sampler::new(off())
            .expect("a sampler")
            .sample_candidates(&ranked, &[], &[]),
        None
    );
}
