//! Cost model of attention plans, applied before kernels exist. It combines machine parameters with
//! the plan's bytes, operations, workgroups and partial results.

use super::plan::{Attended, AttentionPlan};
use gristmill_uop::Scalar;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;

/// Work of a workgroup on one chunk: bytes it reads, and seconds of a processor unit.
struct ChunkWork {
    /// Whether the chunk's tile is staged.
    staged: bool,
    bytes: f64,
    read: f64,
    products: f64,
    softmax: f64,
    /// Cost of one term of a product, in f32 operations.
    weight: f64,
}

impl ChunkWork {
    fn new(of: &Attended, plan: &AttentionPlan, target: &Target) -> ChunkWork {
        let machine = &target.machine;
        let units = units(target);
        let staged = plan.fragments.is_some_and(|f| f.staged);
        // A staged tile is read once, for scores and for values, and its workgroup occupies
        // a processor unit alone.
        let [key, value] = of.depth;
        let row = if staged && of.shared {
            key
        } else {
            key + value
        };
        let rows = if of.own {
            1
        } else {
            up(plan.sharing, of.heads / of.kv_heads)
        };
        let bytes = (plan.chunk * rows * row * of.bytes) as f64;
        let weight = plan
            .fragments
            .and(machine.fragment(Scalar::F16))
            .map_or(1.0, |fragment| machine.term_of(fragment));
        let operations = weight * (plan.chunk * plan.sharing * (key + value)) as f64;
        let (read, products) = (
            bytes / (machine.cache_bandwidth / units),
            operations / (machine.operations / units),
        );
        let scores = machine.gpu_facts().score_operations * plan.chunk * plan.sharing;
        let softmax = scores as f64 / (machine.operations / units);
        ChunkWork {
            staged,
            bytes,
            read,
            products,
            softmax,
            weight,
        }
    }
    /// Seconds of all `groups` workgroups, one chunk each.
    fn waves(&self, groups: f64, plan: &AttentionPlan, target: &Target) -> f64 {
        let (machine, units) = (&target.machine, units(target));
        // MMA fragments read from memory: each product waits for its own loads, and the softmax for
        // the first product. Two workgroups per unit hide little of this latency.
        let in_turn = plan.fragments.is_some_and(|f| !f.staged) && machine.kind == MachineKind::Gpu;
        let own = if in_turn {
            self.read + self.products + self.softmax
        } else {
            self.read.max(self.products)
        };
        let at_once = if self.staged {
            1.0
        } else {
            target.resident() as f64
        };
        match machine.kind {
            MachineKind::Gpu => {
                (groups / (units * at_once)).ceil()
                    * (machine.latency + machine.barrier + at_once * own)
            }
            MachineKind::Cpu => (groups / units).ceil() * own,
        }
    }
}

/// Units of the machine, at least one.
fn units(target: &Target) -> f64 {
    target.machine.units.max(1) as f64
}

/// Returns the number of groups of `by` that hold `n` elements.
fn up(n: i64, by: i64) -> i64 {
    (n + by - 1) / by.max(1)
}

/// Estimated seconds of the attention under `plan`, including the combination of partial results.
pub fn seconds(of: &Attended, plan: &AttentionPlan, target: &Target) -> f64 {
    let machine = &target.machine;
    let (sharers, alone) = if of.own {
        (of.tokens, of.heads)
    } else {
        (of.heads, of.tokens)
    };
    // If the tokens of a prefill share tiles, a tile of tokens computes the chunks that its windows
    // overlap; the others are skipped.
    let together = if of.own {
        plan.sharing.min(of.tokens)
    } else {
        of.tokens
    };
    let [chunks, met] = of.chunks(plan.chunk, together);
    let work = ChunkWork::new(of, plan, target);
    if plan.online && machine.kind == MachineKind::Gpu {
        let workgroups = (up(sharers, plan.sharing) * alone) as f64;
        return seconds_online(of, plan, target, &work, [workgroups, met as f64]);
    }
    let groups = (met * up(sharers, plan.sharing) * alone) as f64;
    let waves = work.waves(groups, plan, target);
    // Early copies leave only the latency of the kernel's first load.
    let ahead = if plan.ahead {
        work.bytes.min(machine.shared_per_unit as f64) / (machine.cache_bandwidth / units(target))
    } else {
        0.0
    };
    let [key, value] = of.depth;
    let positions = of.positions.min(chunks * plan.chunk);
    let cache =
        (positions * of.kv_heads * if of.shared { key } else { key + value } * of.bytes) as f64;
    let main = (waves - ahead).max(cache / machine.bandwidth);
    // A partial result has, per chunk, token and head, a value for each column, a maximum and a
    // sum. It is written and read again.
    let partial = if plan.online {
        0.0
    } else {
        (chunks * of.tokens * of.heads * (value + 4) * 4) as f64
    };
    let launches = if plan.combine_kernel { 2.0 } else { 1.0 };
    launches * machine.launch + main + 2.0 * partial / machine.cache_bandwidth
}

/// Seconds of the online loop on a GPU: a workgroup processes its `met` chunks in sequence, with
/// barriers around the scores and the softmax between the two products.
fn seconds_online(
    of: &Attended,
    plan: &AttentionPlan,
    target: &Target,
    work: &ChunkWork,
    [workgroups, met]: [f64; 2],
) -> f64 {
    let (machine, units) = (&target.machine, units(target));
    let &ChunkWork {
        staged,
        read,
        softmax,
        weight,
        ..
    } = work;
    let [key, value] = of.depth;
    let products = machine
        .fragments
        .iter()
        .find(|of| staged && of.is_of_group());
    let weight = products.map_or(weight, |fragment| machine.term_of(fragment));
    let products =
        weight * (plan.chunk * plan.sharing * (key + value)) as f64 / (machine.operations / units);
    // Unstaged rows are read before each product, which waits for them.
    let chunk = if staged {
        (products + softmax).max(read)
    } else {
        products + softmax + read + 2.0 * machine.latency
    };
    let rounds = (workgroups / units).ceil().max(1.0);
    machine.launch + machine.latency + rounds * met * (chunk + 3.0 * machine.barrier)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decompose::attention::plan::Fragments;

    /// GLM's latent KV cache (MLA) at this number of positions.
    fn glm(positions: i64) -> Attended {
        let (window, depth) = (None, [576, 512]);
        Attended {
            tokens: 1,
            heads: 20,
            kv_heads: 1,
            positions,
            window,
            depth,
            bytes: 2,
            shared: true,
            own: false,
            in_pages: false,
        }
    }

    #[test]
    fn costs_differ_between_two_machines() {
        let plan = |chunk, sharing| AttentionPlan {
            chunk,
            sharing,
            fragments: Some(Fragments {
                cut: 1,
                staged: true,
            }),
            ahead: false,
            online: false,
            combine_kernel: false,
        };
        let (many, few) = (Target::named("h200"), Target::named("rtx3060"));
        // Chunks of 64 keep 132 units busy; chunks of 256 leave most of them idle. 28 units are
        // memory-bound either way, and pay for partial results.
        let better = |on: &Target| {
            seconds(&glm(4096), &plan(64, 20), on) < seconds(&glm(4096), &plan(256, 20), on)
        };
        assert!(better(&many) && !better(&few));
        // Longer caches cost more, and so does reading rows twice.
        let apart = AttentionPlan {
            fragments: Some(Fragments {
                cut: 1,
                staged: false,
            }),
            ..plan(64, 20)
        };
        assert!(
            seconds(&glm(16384), &plan(128, 20), &many)
                > seconds(&glm(4096), &plan(128, 20), &many)
        );
        assert!(seconds(&glm(2048), &apart, &many) > seconds(&glm(2048), &plan(64, 20), &many));
        // With a window, the cost does not grow with the context depth; positions outside are free.
        let within = |positions, window| {
            seconds(
                &Attended {
                    window: Some(window),
                    ..glm(positions)
                },
                &plan(64, 20),
                &many,
            )
        };
        assert_eq!(within(65_536, 1024), within(16_384, 1024));
        assert!(within(16_384, 4096) > within(16_384, 1024));
    }

    #[test]
    fn a_loop_over_rows_in_stages_beats_chunks_of_a_prompt() {
        // 512 tokens of GLM with heads of 256 at context depth 1,536 on an H100: 24 us instead of
        // 88 (docs/experiments/105).
        let of = Attended {
            tokens: 512,
            heads: 20,
            kv_heads: 20,
            depth: [256, 256],
            shared: false,
            own: true,
            ..glm(2048)
        };
        let plan = |chunk, sharing, staged, online| AttentionPlan {
            chunk,
            sharing,
            fragments: Some(Fragments { cut: 1, staged }),
            ahead: false,
            online,
            combine_kernel: false,
        };
        let (hopper, other) = (Target::named("h200"), Target::named("a100"));
        let on = |target: &Target, plan| seconds(&of, &plan, target);
        assert!(
            on(&hopper, plan(64, 128, true, true)) < 0.7 * on(&hopper, plan(128, 64, false, false))
        );
        // From memory, a loop saves less than the margin.
        assert!(
            on(&other, plan(64, 32, false, true)) > 0.5 * on(&other, plan(128, 32, false, false))
        );
    }
}
