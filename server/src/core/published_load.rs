//! Publication of a batcher's load as metrics, at intervals, as it costs as much as a step of a
//! small model.

use crate::core::models::entry::ModelEntry;
use gristmill_llm::engine::ExpertCacheStats;
use gristmill_llm::sched::{Batcher, SpeculationStats, StepCounts};
use std::time::{Duration, Instant};

/// Minimum time between two publications while requests run: routers and Prometheus poll seconds
/// apart.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);

/// Counts at the last publication.
#[derive(Default)]
pub struct PublishedLoad {
    at: Option<Instant>,
    preempted: u64,
    steps: StepCounts,
    experts: ExpertCacheStats,
    drafts: SpeculationStats,
}

impl PublishedLoad {
    /// Returns whether the last publication is older than the interval.
    pub fn is_due(&self) -> bool {
        self.at.is_none_or(|at| at.elapsed() >= PUBLISH_INTERVAL)
    }
    /// Sets the gauges of a model's replica and increments the model's counters by the change since
    /// the last publication.
    pub fn publish(&mut self, batcher: &Batcher, model: &ModelEntry, replica: usize) {
        self.at = Some(Instant::now());
        let (load, metrics) = (batcher.load(), &model.metrics);
        let own = &model.replicas[replica].metrics;
        own.kept_bytes.set(batcher.cached_bytes() as i64);
        own.pages.set(load.pages as i64);
        own.pages_total.set(load.total_pages as i64);
        load.leaked
            .into_iter()
            .for_each(|pages| _ = own.pages_leaked.set(pages as i64));
        own.slots.set(batcher.engine().max_sequences() as i64);
        // A reset of the batcher restarts the scheduler's count.
        metrics.preempted.inc_by(
            load.preempted
                .checked_sub(self.preempted)
                .unwrap_or(load.preempted),
        );
        self.preempted = load.preempted;
        let (steps, before) = (
            batcher.steps(),
            std::mem::replace(&mut self.steps, batcher.steps()),
        );
        own.pages_away.set(load.host_pages as i64);
        metrics
            .pages_swapped_in
            .inc_by(steps.kv_pages_swapped_in - before.kv_pages_swapped_in);
        let counted = [
            steps.all - before.all,
            steps.mixed - before.mixed,
            steps.asynchronous - before.asynchronous,
        ];
        metrics
            .steps
            .iter()
            .zip(counted)
            .for_each(|(counter, n)| _ = counter.inc_by(n));
        let drafts = batcher.speculation();
        let before = std::mem::replace(&mut self.drafts, drafts);
        metrics.drafts.add(&drafts.since(&before));
        if let Some(experts) = batcher.engine().expert_cache() {
            let before = std::mem::replace(&mut self.experts, experts);
            let counted = [
                experts.hits - before.hits,
                experts.misses - before.misses,
                experts.copied - before.copied,
            ];
            for (counter, n) in metrics.experts.iter().zip(counted) {
                counter.inc_by(n);
            }
        }
    }
}
