use super::*;
use crate::sampling::{Sampler, SamplingParams};
use crate::sched::SequenceOptions;
use crate::sched::batch::SchedulerConfig;

const CONFIG: SchedulerConfig = SchedulerConfig {
    pages: 64,
    page_size: 16,
    window_pool: None,
    state_rows: 0,
    host_slots: 0,
    max_sequences: 8,
    max_chunk: 512,
    mixed: false,
};

/// A scheduler whose sequences have run their prompts and have a token to run, with drafts.
fn scheduler(sequences: usize) -> (Scheduler, Batch) {
    let mut scheduler = Scheduler::new(CONFIG);
    let prompt: Vec<u32> = (0..60).map(|i| i % 20).collect();
    let ids: Vec<SequenceId> = (0..sequences)
        .map(|_| scheduler.add(prompt.clone(), SequenceOptions::default()))
        .collect();
    for _ in 0..2 * sequences {
        let batch = scheduler.next_batch(512);
        scheduler.finish_batch(&batch);
        if let Some(chunk) = batch.chunk.filter(|chunk| chunk.needs_logits) {
            scheduler.push(chunk.sequence, 0);
        }
        for decode in batch.decodes {
            let next = scheduler.tokens(decode.sequence).len() as u32 % 20;
            scheduler.push(decode.sequence, next);
        }
    }
    let batch = scheduler.next_batch(512);
    assert_eq!(batch.decodes.len(), ids.len());
    (scheduler, batch)
}
/// The rows of drafts of a batch, with their pages.
fn planned_rows(
    speculation: &mut Speculation,
    scheduler: &mut Scheduler,
    batch: &Batch,
    context: usize,
) -> Vec<DraftRow> {
    let mut drafts = speculation.choose(scheduler, batch, (context, false));
    for draft in &mut drafts {
        draft.count = scheduler.extend_for_drafts(draft.decode.sequence, draft.count);
    }
    speculation.rows(batch.decodes.len(), drafts)
}
/// Speculation with a known time of steps by rows.
fn with_times(rows: usize, time: impl Fn(usize) -> f64) -> Speculation {
    let mut speculation = Speculation::new(rows, DraftSources::ngrams());
    for rows in [1, 2, 4, 8, 16, 32].into_iter().filter(|&n| n <= rows) {
        speculation.times.record(rows, time(rows));
    }
    speculation
}

#[test]
fn drafts_run_where_their_time_is_worth_it() {
    let planned = |sequences: usize, rows: usize, time: &dyn Fn(usize) -> f64| {
        let (mut scheduler, batch) = scheduler(sequences);
        let mut speculation = with_times(rows, time);
        planned_rows(&mut speculation, &mut scheduler, &batch, 1000).len()
    };
    assert_eq!(
        planned(1, 16, &|_| 1.0),
        15,
        "rows that cost nothing are all used"
    );
    assert_eq!(
        planned(1, 16, &|rows| rows as f64),
        0,
        "rows that cost as much as steps"
    );
    assert_eq!(planned(4, 4, &|_| 1.0), 0, "a full batch");
    assert_eq!(planned(1, 1, &|_| 1.0), 0, "no rows for drafts");
    // Eight rows take as long as one, sixteen four times as long.
    let steep = |rows: usize| if rows > 8 { 4.0 } else { 1.0 };
    assert_eq!(planned(1, 16, &steep), 7);
    assert_eq!(planned(2, 16, &steep), 6, "of both sequences");
}

#[test]
fn a_step_that_was_slow_once_is_tried_again() {
    let (mut scheduler, batch) = scheduler(1);
    let mut speculation = with_times(8, |rows| if rows > 1 { 20.0 } else { 1.0 });
    assert!(planned_rows(&mut speculation, &mut scheduler, &batch, 1000).is_empty());
    for _ in 0..1500 {
        speculation.times.record(1, 1.0);
    }
    assert!(!planned_rows(&mut speculation, &mut scheduler, &batch, 1000).is_empty());
}

/// A time that has not been used for long is right again after one step.
#[test]
fn an_old_time_is_tried_and_not_lost() {
    let mut times = StepTimes::new(8);
    times.record(2, 3.0);
    (0..2000).for_each(|_| times.record(1, 1.0));
    assert!(times.time(2).is_some_and(|time| time < 0.1));
    times.record(2, 3.0);
    assert_eq!(times.time(2), Some(3.0));
}

#[test]
fn times_outlive_a_start() {
    let mut times = StepTimes::new(8);
    times.record(1, 2.0);
    times.record(4, 5.0);
    times.record(4, 3.0);
    let mut next = StepTimes::new(4);
    next.restore(times.known().into_iter().chain([(64, f64::NAN)]).collect());
    assert_eq!(next.known(), times.known());
    next.record(1, 4.0);
    assert!(next.time(1) > times.time(1), "measured again");
}

#[test]
fn rejected_drafts_become_rare_and_cost_no_rows() {
    let (mut scheduler, mut batch) = scheduler(1);
    let mut speculation = with_times(8, |rows| 1.0 + 0.1 * rows as f64);
    let id = batch.decodes[0].sequence;
    let mut counts = Vec::new();
    for _ in 0..40 {
        let drafts = planned_rows(&mut speculation, &mut scheduler, &batch, 10_000);
        counts.push(drafts.len());
        scheduler.finish_batch(&batch);
        // A repeated text that never continues as before, after a match of nine tokens.
        let other = 1000 + counts.len() as u32;
        scheduler.push(id, other);
        assert_eq!(speculation.verified(&mut scheduler), []);
        for token in 0..9 {
            let between = scheduler.next_batch(512);
            scheduler.finish_batch(&between);
            scheduler.push(id, token);
        }
        scheduler.check();
        batch = scheduler.next_batch(512);
    }
    assert!(counts[0] > 0, "{counts:?}");
    assert_eq!(counts[39], 0, "{counts:?}");
}

#[test]
fn a_kept_draft_returns_its_row_and_a_rejected_one_ends_them() {
    let (mut scheduler, batch) = scheduler(1);
    let id = batch.decodes[0].sequence;
    let mut speculation = with_times(8, |_| 1.0);
    let drafts = planned_rows(&mut speculation, &mut scheduler, &batch, 1000);
    assert_eq!(drafts.len(), 7);
    scheduler.finish_batch(&batch);
    for (i, draft) in drafts.iter().take(3).enumerate() {
        scheduler.push(id, draft.token);
        assert_eq!(speculation.verified(&mut scheduler), [(id, 1 + i)]);
        assert_eq!(scheduler.computed(id), draft.position + 1);
        scheduler.check();
    }
    scheduler.push(id, drafts[3].token + 1);
    assert_eq!(speculation.verified(&mut scheduler), []);
    scheduler.push(id, drafts[4].token);
    assert_eq!(speculation.verified(&mut scheduler), [], "all were dropped");
    let stats = speculation.stats;
    assert_eq!((stats.drafted(), stats.accepted()), (7, 3));
}

/// Tokens of the vocabulary of [`logits_after`].
const VOCABULARY: u32 = 12;

/// Logits behind a token, from -3 to 3.
fn logits_after(token: u32) -> Vec<f32> {
    let logit = |next: u32| {
        let mixed = (token * VOCABULARY + next + 1).wrapping_mul(0x9e37_79b9);
        (mixed >> 8) as f32 / (1 << 24) as f32 * 6.0 - 3.0
    };
    (0..VOCABULARY).map(logit).collect()
}

/// The distribution behind a token, by the definition of the parameters: the largest logits, of
/// these the fewest with a sum of probabilities, of these the ones near the largest, at a
/// temperature.
fn distribution(token: u32, params: &SamplingParams) -> Vec<f64> {
    let logits = logits_after(token);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(params.top_k);
    let softmax = |order: &[usize], temperature: f64| {
        let of = |&i: &usize| (f64::from(logits[i]) / temperature).exp();
        let all: Vec<f64> = order.iter().map(of).collect();
        let sum: f64 = all.iter().sum();
        all.into_iter().map(|x| x / sum).collect::<Vec<f64>>()
    };
    let shares = softmax(&order, 1.0);
    let mut sum = 0.0;
    let kept = shares.iter().take_while(|&&share| {
        let is_kept = sum < f64::from(params.top_p);
        sum += share;
        is_kept
    });
    let kept = kept.count();
    let is_near = |share: &&f64| **share >= f64::from(params.min_p) * shares[0];
    order.truncate(shares[..kept].iter().take_while(is_near).count());
    let mut all = vec![0.0; logits.len()];
    let shares = softmax(&order, f64::from(params.temperature));
    order
        .iter()
        .zip(shares)
        .for_each(|(&i, share)| all[i] = share);
    all
}

/// Counts the tokens behind each token in texts of `count` tokens in total. Each step runs a
/// sequence's last token and two drafts, the most probable tokens.
fn counted(params: &SamplingParams, count: usize) -> (Vec<Vec<u64>>, SpeculationStats) {
    let mut counts = vec![vec![0; VOCABULARY as usize]; VOCABULARY as usize];
    let mut speculation = Speculation::new(8, DraftSources::ngrams());
    let likely = |token: u32| {
        let logits = logits_after(token);
        (0..VOCABULARY).max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize]))
    };
    let mut done = 0;
    let mut scheduler = Scheduler::new(CONFIG);
    for seed in 0.. {
        let params = SamplingParams {
            seed,
            ..params.clone()
        };
        let mut sampler = Sampler::new(params).expect("parameters");
        let id = scheduler.add(vec![seed as u32 % VOCABULARY], SequenceOptions::default());
        let mut sample = |scheduler: &mut Scheduler| {
            let tokens = scheduler.tokens(id);
            let last = tokens[tokens.len() - 1];
            let next = sampler
                .sample(&logits_after(last), tokens)
                .expect("a token");
            counts[last as usize][next as usize] += 1;
            scheduler.push(id, next);
        };
        let batch = scheduler.next_batch(512);
        scheduler.finish_batch(&batch);
        sample(&mut scheduler);
        while scheduler.tokens(id).len() < 200 {
            let batch = scheduler.next_batch(512);
            let decode = batch.decodes[0];
            let first = likely(scheduler.tokens(id)[decode.position]).expect("a token");
            let mut draft = ChosenDraft {
                decode,
                origin: DraftOrigin::Model,
                tokens: vec![first, likely(first).expect("a token")],
                count: 2,
                is_long: false,
            };
            draft.count = scheduler.extend_for_drafts(id, draft.count);
            speculation.rows(1, vec![draft]);
            scheduler.finish_batch(&batch);
            sample(&mut scheduler);
            while !speculation.verified(&mut scheduler).is_empty() {
                sample(&mut scheduler);
            }
        }
        done += scheduler.tokens(id).len();
        scheduler.remove(id);
        if done >= count {
            break;
        }
    }
    (counts, speculation.stats)
}

#[test]
fn drafts_leave_the_distribution_of_tokens() {
    for temperature in [0.7, 1.3] {
        for (top_k, top_p, min_p) in [
            (12, 1.0, 0.0),
            (5, 1.0, 0.0),
            (12, 0.8, 0.0),
            (12, 1.0, 0.1),
        ] {
            let params = SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                ..SamplingParams::default()
            };
            let (counts, stats) = counted(&params, 100_000);
            assert!(stats.accepted() > 10_000 && stats.drafted() > stats.accepted() + 10_000);
            for (token, counts) in (0..).zip(&counts) {
                let expected = distribution(token, &params);
                let total = counts.iter().sum::<u64>() as f64;
                let mut chi = 0.0;
                for (&count, &share) in counts.iter().zip(&expected) {
                    let mean = share * total;
                    if share == 0.0 {
                        assert_eq!(count, 0, "{params:?}: a token that is left out");
                        continue;
                    }
                    chi += (count as f64 - mean).powi(2) / mean;
                }
                let freedom = expected.iter().filter(|&&share| share > 0.0).count() as f64 - 1.0;
                // Six standard deviations above the mean of the distribution.
                let most = freedom + 6.0 * (2.0 * freedom).sqrt();
                assert!(
                    chi <= most,
                    "{params:?} behind {token}: {chi} of {most}, {counts:?}"
                );
            }
        }
    }
}
