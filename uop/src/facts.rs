//! Facts of machines that no description says: rates that are reached, costs of operations, and the
//! sizes at which plans change.
//!
//! Measurements found them. The values, and what each was measured with, are in `facts/cpu.txt` and
//! `facts/gpu.txt`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Defines a table of facts, one field for each line of its file.
macro_rules! facts {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug)]
        pub struct $name { $($(#[$of])* pub $field: $type,)* }

        impl $name {
            /// Names of the facts.
            #[cfg(test)]
            const NAMES: &[&str] = &[$(stringify!($field)),*];

            fn from_text(text: &str) -> $name {
                let values = values(text);
                $name { $($field: values[stringify!($field)] as $type,)* }
            }
        }
    };
}

/// Names and values of a table in text: a line each, the value after the last space. Lines that
/// begin with `#` are comments.
///
/// # Panics
/// If a line has no number. Tables are part of the program.
pub fn values(text: &str) -> BTreeMap<&str, f64> {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let value = |line: &'_ str| line.rsplit_once(' ').and_then(|(_, n)| n.parse().ok());
    let of = |line| match value(line) {
        Some(number) => (&line[..line.rfind(' ').unwrap_or(0)], number),
        None => panic!("no number in `{line}`"),
    };
    lines.map(of).collect()
}

facts! {
    /// Facts of CPUs, by which their kernels are planned.
    CpuFacts {
        /// Clock of a core, Hz.
        clock: f64,
        /// Vector f32 operations of a core per cycle; a multiply-add counts as two.
        vectors_per_cycle: f64,
        /// Memory bandwidth per core, bytes/s.
        bandwidth_per_core: f64,
        /// Bandwidth per core of the caches after the first level, bytes/s.
        cache_bandwidth_per_core: f64,
        /// Part of a core's cache for stages, bytes.
        stage_bytes: usize,
        /// Size of the cache shared by cores, bytes.
        shared_cache_bytes: usize,
        /// Seconds that a core loses at a data-dependent jump to another address.
        jump_seconds: f64,
        /// Seconds per additional dependent launch.
        launch_seconds: f64,
        /// Seconds of an atomic addition to one element, serialised with others.
        atomic_seconds: f64,
        /// Full-vector operations that the product of a single word takes.
        lone_word_operations: f64,
        /// f32 operations to dequantise an element.
        dequantise_operations: f64,
        /// Seconds in which a core adds a vector of a row and finds the next row.
        scatter_row_seconds: f64,
        /// Part of the peak rate of byte products that experts reach.
        expert_rate_reached: f64,
        /// Fewest tokens, in a step of variable size, for products in bf16 tiles.
        tile_tokens: i64,
        /// Tokens that a core multiplies with two vectors of rows at once.
        two_vector_tokens: i64,
        /// Tokens up to which a core takes one vector of rows at a time, to read rows as one
        /// stream.
        one_vector_tokens: i64,
        /// Minimum panels of rows per core if each panel is read once.
        panels_read_once: i64,
        /// Minimum panels of rows per core if data selects the weight of a token tile: no weight is
        /// read again, but tokens are, with every panel.
        expert_panels: i64,
        /// Bytes prefetched ahead per iteration for contiguous rows, shared by all weights of a
        /// sum.
        stream_bytes_ahead: i64,
        /// Bytes prefetched ahead for rows that several token tiles read one after another; all but
        /// the first read them from the second-level cache.
        panel_bytes_ahead: i64,
        /// Tiles of tokens of one expert for which its weight is dequantised once.
        tiles_per_expert: usize,
    }
}

facts! {
    /// Facts of GPUs, by which their kernels are planned.
    GpuFacts {
        /// Part of the nominal memory bandwidth that kernels reach.
        bandwidth_reached: f64,
        /// Part of the nominal f32 operations per second that kernels reach.
        operations_reached: f64,
        /// Bandwidth per unit from the cache shared by all, bytes/s.
        cache_bandwidth_per_unit: f64,
        /// Seconds per dependent launch with programmatic dependent launch.
        dependent_launch_seconds: f64,
        /// Seconds per dependent launch without.
        launch_seconds: f64,
        /// Seconds of a load from memory when nothing overlaps it.
        latency_seconds: f64,
        /// Seconds per dependent step inside a kernel.
        barrier_seconds: f64,
        /// Memory bandwidth by microbenchmark, bytes/s.
        measured_bandwidth: f64,
        /// Seconds per launch by microbenchmark.
        measured_launch_seconds: f64,
        /// Seconds per barrier by microbenchmark.
        measured_barrier_seconds: f64,
        /// Seconds per dependent load by microbenchmark.
        measured_latency_seconds: f64,
        /// Operations per term for threads that dequantise a packed weight one element at a time to
        /// multiply it in half precision.
        unpacked_term_operations: f64,
        /// Operations per term for threads that dequantise and add one element at a time.
        lone_term_operations: f64,
        /// Peak operations (a multiply-add counts as two) per operation in a stage.
        staged_operations: f64,
        /// f32 operations per score of attention.
        score_operations: i64,
        /// Load latencies on the critical path of a row's sum of squares.
        row_sum_latencies: f64,
        /// Subgroups per scheduler in a workgroup, so that one computes while another waits.
        subgroups_per_scheduler: usize,
        /// Workgroups per unit for which registers are planned.
        resident_workgroups: usize,
        /// Registers of a thread besides its accumulators.
        thread_registers: i64,
        /// Registers of a thread per register with a load in flight.
        registers_per_loaded_word: i64,
        /// Registers per sum, with its words and temporaries.
        registers_per_sum: i64,
        /// Part of the accumulators of products that dequantise a weight that is live beside the
        /// words of a step.
        accumulators_beside_words: f64,
        /// Maximum registers with loads in flight before the first is used.
        registers_in_flight: i64,
        /// Maximum registers for carried narrow loads.
        carried_registers: i64,
        /// Words, per word of the plan's budget, that a few iterations of a sum load together; only
        /// weights count.
        words_together: i64,
        /// Values of a head per workgroup of the combine kernel.
        combined_values: i64,
        /// Positions per chunk of attention where a chunk is a workgroup's; a short context should
        /// still occupy several units.
        chunk_positions: i64,
        /// The same for a cache too long to have all such chunks resident at once.
        long_chunk_positions: i64,
        /// The same for one token without fragments, if the cache has at most half a chunk per
        /// unit.
        plain_chunk_positions: i64,
        /// The same for a prompt: a workgroup then has room for more tokens and reads the cache
        /// less often.
        prompt_chunk_positions: i64,
        /// Rows of a batched decode that keep the chunk count of one row before chunks grow.
        rows_of_one_chunk_count: i64,
        /// Largest number of partial results per token that the readers combine; more get a combine
        /// kernel, because each of a head's workgroups would combine them again.
        results_combined_by_readers: i64,
        /// Tokens of a step above which f16 queries are materialised and keys may be computed per
        /// head.
        long_step_tokens: i64,
        /// The same on machines with warpgroup MMA and staged rows.
        long_step_tokens_of_warpgroups: i64,
        /// Positions per iteration of the online loop of attention.
        loop_positions: i64,
        /// Fewest tokens that share a dequantised weight in f16 fragments.
        fragment_tokens: i64,
        /// The same for rows with many steps in an odd number, which warps cannot split.
        fragment_tokens_of_odd_rows: i64,
        /// Most steps of a row that one warp processes about as fast as several would.
        steps_of_one_warp: i64,
        /// Rows of an output tile of warpgroup MMA.
        warpgroup_tile_rows: i64,
        /// Tokens of an output tile of warpgroup MMA.
        warpgroup_tile_tokens: i64,
        /// Fewest tokens of a tile with a data-dependent weight for warpgroup MMA.
        warpgroup_expert_tokens: i64,
        /// Maximum registers of sums per thread in products of several warps.
        warpgroup_sum_registers: i64,
        /// Maximum tiles per warp, of four registers each.
        warp_tiles: i64,
        /// Maximum accumulator tiles of a warp that dequantises to half precision.
        dequantising_warp_tiles: i64,
        /// Waves from which on two warps, instead of four, share a row's terms in products of a few
        /// tokens; shorter workgroups shorten the tail wave.
        waves_of_two_warps: i64,
        /// Minimum steps per thread of a row that several subgroups share through shared memory.
        subgroup_steps: i64,
        /// Iterations to copy ahead (software pipelining).
        iterations_copied_ahead: i64,
        /// Edge of the larger output tile for operands that are rounded as a whole.
        operand_tile: i64,
        /// Columns of fragments of one expert's tokens for which its weight is dequantised once.
        columns_per_expert: usize,
        /// The same in tiles of machines with opaque tiles.
        tiles_per_expert: usize,
        /// Part of the peak rate of matrix products that kernels reach.
        product_rate_reached: f64,
        /// Maximum workgroups per unit of an element-wise kernel.
        plain_waves: i64,
        /// Steps of a reduction that are unrolled, with their loads in flight together.
        unrolled_steps: i64,
        /// The same at most for a reduction of data-dependent length in a nest that does not fill
        /// the machine.
        unrolled_steps_of_few: i64,
        /// Maximum accumulators per thread: more save operand loads, but leave fewer workgroups
        /// resident.
        thread_sums: i64,
        /// Seconds of a training pass in f32 below which launches take the time.
        training_pass_seconds: f64,
    }
}

const CPU: &str = include_str!("facts/cpu.txt");
const GPU: &str = include_str!("facts/gpu.txt");

/// The facts of all CPUs, from their file.
pub static OF_CPUS: LazyLock<CpuFacts> = LazyLock::new(|| CpuFacts::from_text(CPU));
/// The facts of all GPUs, from their file.
pub static OF_GPUS: LazyLock<GpuFacts> = LazyLock::new(|| GpuFacts::from_text(GPU));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_fact_and_every_fact_has_a_line() {
        for (text, names) in [(CPU, CpuFacts::NAMES), (GPU, GpuFacts::NAMES)] {
            let lines = text
                .lines()
                .filter(|line| !line.is_empty() && !line.starts_with('#'));
            let found = values(text);
            assert_eq!(found.len(), lines.count());
            let mut names = names.to_vec();
            names.sort_unstable();
            assert_eq!(found.into_keys().collect::<Vec<_>>(), names);
        }
    }

    #[test]
    fn a_fact_has_evidence_before_it() {
        for text in [CPU, GPU] {
            let mut evidence = false;
            for line in text.lines() {
                assert!(
                    evidence || line.is_empty() || line.starts_with('#'),
                    "{line}"
                );
                evidence = !line.is_empty();
            }
        }
    }
}
