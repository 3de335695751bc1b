//! Compares tokens sampled on a device for rows of a step with those of the host, and tests how the
//! next step reads them.

use super::device_tests::{Chooser, logits, off};
use super::*;

/// Maximum rows of a step.
const MOST: usize = 3;

fn ways() -> Vec<SamplingParams> {
    vec![
        SamplingParams::default(),
        SamplingParams {
            top_k: 20,
            top_p: 0.4,
            temperature: 1.7,
            ..off()
        },
        SamplingParams::greedy(),
        SamplingParams {
            top_k: 64,
            min_p: 0.2,
            temperature: 3.0,
            ..off()
        },
        SamplingParams { top_k: 1, ..off() },
        off(),
        SamplingParams {
            min_p: 0.1,
            temperature: 2.0,
            ..off()
        },
        SamplingParams {
            temperature: 1e30,
            ..off()
        },
    ]
}

/// Sampling functions of a device, by candidate set.
struct Choosers(Vec<(CandidateSet, Chooser)>);

impl Choosers {
    fn new(device: &str, n: usize) -> Choosers {
        let all = [
            CandidateSet::SmallTopK,
            CandidateSet::All,
            CandidateSet::Mixed,
        ];
        Choosers(
            all.into_iter()
                .map(|among| {
                    (
                        among,
                        Chooser::for_function(device, row_sampling_function(n, MOST, among)),
                    )
                })
                .collect(),
        )
    }
}

/// Returns the tokens sampled for these rows at these positions.
fn drawn(
    Choosers(all): &mut Choosers,
    rows: &[Vec<f32>],
    samplers: &[Sampler],
    at: usize,
) -> Vec<i32> {
    let draws: Vec<RowSampling> = samplers
        .iter()
        .map(|sampler| RowSampling::new(sampler).expect("drawn"))
        .collect();
    let among = draws
        .iter()
        .map(RowSampling::candidate_set)
        .reduce(CandidateSet::and)
        .expect("rows")
        .and(CandidateSet::SmallTopK);
    let among = if draws
        .iter()
        .all(|draws| draws.candidate_set() == CandidateSet::All)
    {
        CandidateSet::All
    } else {
        among
    };
    let (_, chooser) = all
        .iter_mut()
        .find(|one| one.0 == among)
        .expect("one of them");
    let numbers: Vec<f32> = draws.iter().flat_map(|draws| draws.numbers).collect();
    let random: Vec<u32> = draws
        .iter()
        .enumerate()
        .map(|(row, draws)| draws.random.at(at + row))
        .collect();
    let logits = rows.concat();
    let parts: [&[u8]; 3] = [
        bytemuck::cast_slice(&logits),
        bytemuck::cast_slice(&numbers),
        bytemuck::cast_slice(&random),
    ];
    for (buffer, data) in chooser.args.iter().zip(parts) {
        chooser.device.write(buffer, 0, data).expect("written");
    }
    chooser
        .step
        .replay(&[("n", rows.len() as i64)])
        .expect("a step");
    let mut ids = vec![0i32; rows.len()];
    chooser
        .device
        .read(&chooser.args[3], 0, bytemuck::cast_slice_mut(&mut ids))
        .expect("read");
    ids
}

#[test]
fn rows_with_numbers_of_their_own_have_the_hosts_tokens() {
    for (device, n, seeds) in [("interp", 300, 1), ("cpu", 300, 20), ("cpu", 3003, 20)] {
        let mut chooser = Choosers::new(device, n);
        for seed in 0..seeds {
            for (at, _) in ways().iter().enumerate() {
                let of = |row: usize| SamplingParams {
                    seed,
                    ..ways()[(at + row * 2) % ways().len()].clone()
                };
                let count = 1 + at % MOST;
                let mut samplers: Vec<Sampler> = (0..count)
                    .map(|row| Sampler::new(of(row)).expect("parameters in range"))
                    .collect();
                let rows: Vec<Vec<f32>> = (0..count)
                    .map(|row| logits(n, seed * 10 + row as u64))
                    .collect();
                let found = drawn(&mut chooser, &rows, &samplers, 9);
                for (row, sampler) in samplers.iter_mut().enumerate() {
                    let wanted = sampler
                        .sample(&rows[row], &vec![0; 9 + row])
                        .expect("a token");
                    assert_eq!(
                        found[row],
                        wanted as i32,
                        "{device}, {n}, {:?}, row {row}",
                        sampler.params()
                    );
                }
            }
        }
        let sampler = |params| Sampler::new(params).expect("parameters in range");
        let both = [SamplingParams::default(), off()].map(sampler);
        let faults = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter();
        for (bad, sampler) in faults.flat_map(|bad| both.iter().map(move |sampler| (bad, sampler)))
        {
            let mut rows = vec![logits(n, 1), logits(n, 2)];
            rows[1][n / 2] = bad;
            if bad == f32::NEG_INFINITY {
                rows[1].fill(bad);
            }
            let found = drawn(&mut chooser, &rows, &[sampler.clone(), sampler.clone()], 3);
            assert!(
                found[0] >= 0 && found[1] == -1,
                "{device}, {n}, {bad}: {found:?}"
            );
        }
    }
}

#[test]
fn a_step_takes_what_another_has_chosen() {
    for device in ["interp", "cpu"] {
        let mut chooser = Chooser::for_function(device, next_function(4));
        let inputs: [&[i32]; 3] = [&[10, 11, 12, 13], &[3, -1, 0], &[7, 8, 9]];
        for (buffer, numbers) in chooser.args.iter().zip(inputs) {
            chooser
                .device
                .write(buffer, 0, bytemuck::cast_slice(numbers))
                .expect("written");
        }
        chooser.step.replay(&[("n", 3)]).expect("a step");
        let mut tokens = [0i32; 3];
        chooser
            .device
            .read(&chooser.args[3], 0, bytemuck::cast_slice_mut(&mut tokens))
            .expect("read");
        assert_eq!(tokens, [13, 8, 10], "{device}");
    }
}
