use super::sampler::{Candidate, largest};
use super::*;

fn sampler(params: SamplingParams) -> Sampler {
    Sampler::new(params).unwrap()
}

fn off() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..SamplingParams::default()
    }
}

/// Returns the tokens of the first `n` positions, with the same logits at each.
fn draws(s: &mut Sampler, logits: &[f32], n: usize) -> Vec<u32> {
    let history = vec![0; n];
    (0..n)
        .map(|position| s.sample(logits, &history[..position]).unwrap())
        .collect()
}

/// Returns the tokens that can be drawn.
fn support(params: SamplingParams, logits: &[f32]) -> Vec<u32> {
    let mut seen = draws(&mut sampler(params), logits, 4000);
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[test]
fn largest_is_a_sorted_prefix() {
    let random = PositionRng::new(5);
    for n in [1usize, 2, 7, 100, 1000] {
        let logits: Vec<f32> = (0..n).map(|i| (random.at(i) % 50) as f32 - 25.0).collect();
        let mut sorted: Vec<Candidate> = (0u32..).zip(logits.iter().copied()).collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        for k in [1, 2, 3, 40, 999, 5000] {
            let mut out = Vec::new();
            largest(&logits, k, &mut out);
            assert_eq!(out, sorted[..k.min(n)], "{k} of {n}");
        }
    }
}

#[test]
fn each_truncation_keeps_what_it_says() {
    // Probabilities .4 .3 .2 .1.
    let logits = [
        0.2f32.ln(),
        0.4f32.ln(),
        0.1f32.ln(),
        f32::NEG_INFINITY,
        0.3f32.ln(),
    ];
    assert_eq!(support(off(), &logits), [0, 1, 2, 4]);
    assert_eq!(
        support(SamplingParams { top_k: 2, ..off() }, &logits),
        [1, 4]
    );
    assert_eq!(
        support(SamplingParams { top_k: 4, ..off() }, &logits),
        [0, 1, 2, 4]
    );
    assert_eq!(
        support(
            SamplingParams {
                top_p: 0.65,
                ..off()
            },
            &logits
        ),
        [1, 4]
    );
    assert_eq!(
        support(
            SamplingParams {
                top_p: 0.72,
                ..off()
            },
            &logits
        ),
        [0, 1, 4]
    );
    assert_eq!(
        support(
            SamplingParams {
                top_p: 1e-6,
                ..off()
            },
            &logits
        ),
        [1]
    );
    // Among the two largest the probabilities are 4/7 and 3/7: one suffices for 0.5.
    assert_eq!(
        support(
            SamplingParams {
                top_k: 2,
                top_p: 0.5,
                ..off()
            },
            &logits
        ),
        [1]
    );
    assert_eq!(
        support(
            SamplingParams {
                min_p: 0.45,
                ..off()
            },
            &logits
        ),
        [0, 1, 4]
    );
    assert_eq!(
        support(
            SamplingParams {
                min_p: 1.0,
                ..off()
            },
            &logits
        ),
        [1]
    );
    // Temperature comes after truncation: it does not change which tokens remain.
    assert_eq!(
        support(
            SamplingParams {
                top_p: 0.65,
                temperature: 100.0,
                ..off()
            },
            &logits
        ),
        [1, 4]
    );
}

#[test]
fn a_wide_nucleus_is_found() {
    let logits = vec![0.0; 10_000];
    let mut s = sampler(SamplingParams {
        top_p: 0.5,
        ..off()
    });
    s.sample(&logits, &[]).unwrap();
    assert_eq!(s.candidates.len(), 5000);
}

#[test]
fn frequencies_follow_the_softmax() {
    let logits = [0.0f32, 1.0, 2.0, -1.0, 0.5];
    for temperature in [0.5f32, 1.0, 2.0] {
        let mut s = sampler(SamplingParams {
            temperature,
            seed: 11,
            ..off()
        });
        const DRAWS: usize = 100_000;
        let mut counts = [0usize; 5];
        for id in draws(&mut s, &logits, DRAWS) {
            counts[id as usize] += 1;
        }
        let weights = logits.map(|l| f64::from(l / temperature).exp());
        let total: f64 = weights.iter().sum();
        // Pearson's chi-squared with 4 degrees of freedom: above 18.47 once in a thousand seeds.
        let chi: f64 = counts
            .iter()
            .zip(weights)
            .map(|(&n, w)| {
                let expected = DRAWS as f64 * w / total;
                (n as f64 - expected).powi(2) / expected
            })
            .sum();
        assert!(
            chi < 18.47,
            "chi squared {chi} at temperature {temperature}: {counts:?}"
        );
    }
}

#[test]
fn a_seed_gives_this_sequence() {
    let logits: Vec<f32> = (0..100).map(|i| (i * 37 % 100) as f32 / 16.0).collect();
    let mut s = sampler(SamplingParams {
        seed: 42,
        ..SamplingParams::default()
    });
    assert_eq!(draws(&mut s, &logits, 12), GOLDEN);
    // A position's random number does not depend on earlier calls.
    assert_eq!(s.sample(&logits, &[0; 3]), Ok(GOLDEN[3]));
}

/// Computed by an independent implementation of the chain (in floats) and of
/// the generator, in Python.
const GOLDEN: [u32; 12] = [97, 64, 13, 5, 35, 35, 81, 62, 70, 8, 43, 35];

#[test]
fn greedy_takes_the_first_maximum() {
    for temperature in [0.0, -1.0] {
        let mut s = sampler(SamplingParams {
            temperature,
            ..SamplingParams::default()
        });
        assert_eq!(s.sample(&[1.0, 3.0, 3.0, f32::NEG_INFINITY], &[]), Ok(1));
        assert_eq!(s.sample(&[-0.0, 0.0], &[]), Ok(0));
    }
}

#[test]
fn penalties_follow_their_formulas() {
    let mut s = sampler(SamplingParams {
        repeat_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        penalty_last_n: 3,
        ..SamplingParams::greedy()
    });
    s.sample(
        &[4.0, -1.0, 0.0, 3.0, f32::NEG_INFINITY],
        &[3, 0, 0, 1, 4, 99][1..],
    )
    .unwrap();
    // The last three are 1, 4 and 99: only token 1 is penalised, 4 stays masked, 99 has no logit.
    assert_eq!(s.logits, [4.0, -2.75, 0.0, 3.0, f32::NEG_INFINITY]);
    s.sample(&[4.0, -1.0, 0.0, 3.0, 0.0], &[0, 0, 2]).unwrap();
    assert_eq!(s.logits, [0.75, -1.0, -0.75, 3.0, 0.0]);
}

#[test]
fn bad_logits_and_parameters_are_errors() {
    for params in [SamplingParams::default(), SamplingParams::greedy(), off()] {
        let mut s = sampler(params);
        assert!(matches!(
            s.sample(&[0.0, f32::NAN], &[]),
            Err(SamplingError::BadLogit { token: 1, .. })
        ));
        assert!(matches!(
            s.sample(&[f32::INFINITY], &[]),
            Err(SamplingError::BadLogit { token: 0, .. })
        ));
        assert_eq!(
            s.sample(&[f32::NEG_INFINITY; 3], &[]),
            Err(SamplingError::NoCandidate { logits: 3 })
        );
        assert_eq!(
            s.sample(&[], &[]),
            Err(SamplingError::NoCandidate { logits: 0 })
        );
        assert_eq!(s.sample(&[f32::MIN, f32::MAX], &[]), Ok(1));
    }
    let d = SamplingParams::default;
    for bad in [
        SamplingParams {
            temperature: f32::NAN,
            ..d()
        },
        SamplingParams {
            temperature: f32::INFINITY,
            ..d()
        },
        SamplingParams { top_p: 0.0, ..d() },
        SamplingParams { top_p: 1.01, ..d() },
        SamplingParams {
            top_p: f32::NAN,
            ..d()
        },
        SamplingParams { min_p: -0.1, ..d() },
        SamplingParams {
            min_p: f32::NAN,
            ..d()
        },
        SamplingParams {
            repeat_penalty: 0.0,
            ..d()
        },
        SamplingParams {
            repeat_penalty: f32::INFINITY,
            ..d()
        },
        SamplingParams {
            frequency_penalty: f32::NAN,
            ..d()
        },
        SamplingParams {
            presence_penalty: f32::NEG_INFINITY,
            ..d()
        },
    ] {
        let error = Sampler::new(bad.clone()).unwrap_err();
        assert!(error.hint().is_some(), "{bad:?}");
    }
}

#[test]
fn extreme_temperatures_do_not_break_the_draw() {
    for temperature in [f32::MIN_POSITIVE, 1e-6, f32::MAX] {
        let mut s = sampler(SamplingParams {
            temperature,
            ..off()
        });
        let id = s.sample(&[-1e30, 5.0, 1e30], &[]).unwrap();
        assert!(temperature > 1.0 || id == 2);
    }
}
