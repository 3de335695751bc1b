//! Proposes GPU launch plans from the machine's registers and the kernel's resource
//! needs (`lower/pressure.rs`).

use crate::cost::occupancy::{each, held, held_with};
use crate::lower::memory::early_loads;
use crate::lower::pressure::Pressure;
use crate::lower::{Code, pressure};
use crate::plan::{Proposal, proposals};
use gristmill_uop::Graph;
use gristmill_uop::launch::{Dependents, LaunchPlan};
use gristmill_uop::machine::RESERVED_SHARED;
use gristmill_uop::target::Target;

/// Words of the widest load. A loop is unrolled by as many iterations as have one such load each in
/// the registers for loads.
const WORDS_OF_WIDEST_LOAD: i64 = 4;
/// Registers per sum, with its words and temporaries, if words are loaded one by one: eight sums
/// then fit in 85 registers without spills, which a test checks on common models' kernels.
const MIN_REGISTERS_OF_SUM: i64 = 5;
/// Shared memory carve-outs to request from the driver, in percent (docs/experiments/054).
const SHARED_PERCENT: [(&str, i64); 3] = [
    ("a quarter shared", 25),
    ("half shared", 50),
    ("all shared", 100),
];

/// Iterations to copy ahead for products of several warps (wgmma), which compute an iteration
/// faster than memory answers, as far as shared memory has room. One, two and three were not
/// compared.
const ITERATIONS_AHEAD_OF_GROUPS: i64 = 3;

/// Properties of a launch that its plan depends on.
pub struct Launched<'a> {
    /// Graph of the statements.
    pub g: &'a Graph,
    /// Linearised bodies of the launch.
    pub bodies: &'a [Code],
    /// Maximum workgroups per unit.
    pub workgroups_per_unit: i64,
    /// Shared memory of a workgroup in bytes.
    pub scratch: usize,
    /// Whether this is the first launch of its function.
    pub first: bool,
    /// Machine and flags to compile for.
    pub target: &'a Target,
}

/// Candidate launch plans, the heuristic's first; only that one unless `all` is set.
pub fn launch(of: &Launched, all: bool) -> Vec<Proposal<LaunchPlan>> {
    let (pressure, target) = (Pressure::for_bodies(of.g, of.bodies, of.target), of.target);
    let words =
        (target.registers as i64 / target.machine.gpu_facts().registers_per_loaded_word).max(1);
    let (resident, ahead) = copied_ahead(of, pressure)
        .unwrap_or_else(|| (resident(pressure, of.workgroups_per_unit, target), 0));
    let first = LaunchPlan {
        resident,
        words,
        iterations: (words / WORDS_OF_WIDEST_LOAD).max(1),
        hoisted: hoisted(of, room_for_loads(of, resident)),
        asynchronous: target.machine.early,
        ahead,
        dependents: dependents(of),
        shared: None,
    };
    if !all {
        return proposals(first, []);
    }
    let mut others = of_occupancy(of, pressure, first);
    others.extend(of_copies(of, pressure, first));
    if target.early_launch {
        let at = |dependents| LaunchPlan {
            dependents,
            ..first
        };
        others.push(("dependents at once", at(Dependents::Entry)));
        others.push(("dependents at its turn", at(Dependents::Turn)));
        others.push(("dependents at its end", at(Dependents::End)));
    }
    others.extend(of_shared_memory(of, first));
    proposals(first, others)
}

/// A plan and its name.
type Named = (&'static str, LaunchPlan);

/// Variants of `first` in resident workgroups and in iterations at once.
fn of_occupancy(of: &Launched, pressure: Pressure, first: LaunchPlan) -> Vec<Named> {
    let target = of.target;
    let half = |n: i64| (n / 2).max(1);
    let with = |words: i64, iterations: i64| LaunchPlan {
        words,
        iterations,
        ..first
    };
    let mut others = vec![
        (
            "fewer iterations at once",
            with(half(first.words), half(first.iterations)),
        ),
        ("one iteration at once", with(1, 1)),
    ];
    // Products hold the operands of all iterations at once, beyond the words in flight.
    if !pressure.products {
        let more = with(2 * first.words, 2 * first.iterations);
        others.push(("more iterations at once", more));
    }
    // Within one wave the free registers are for the next kernel, which the cost does not see.
    if of.workgroups_per_unit > first.resident {
        let alone = LaunchPlan {
            resident: 1,
            ..first
        };
        others.push(("one workgroup at once", alone));
    }
    let more = first.resident + 1;
    if target.threads as i64 * more <= target.machine.threads_per_unit as i64
        && least(pressure, target) <= each(more, target)
    {
        let hoisted = hoisted(of, room_for_loads(of, more));
        others.push((
            "more workgroups at once",
            LaunchPlan {
                resident: more,
                hoisted,
                ..first
            },
        ));
    }
    others
}

/// Variants of `first` in copies to shared memory and in early loads.
fn of_copies(of: &Launched, pressure: Pressure, first: LaunchPlan) -> Vec<Named> {
    let target = of.target;
    let mut others = vec![];
    if pressure.ahead.is_some() && target.machine.early {
        let at = |ahead| LaunchPlan { ahead, ..first };
        if first.ahead > 0 {
            let resident = resident(pressure, of.workgroups_per_unit, target);
            let plain = LaunchPlan { resident, ..at(0) };
            // The cost does not see how much longer several waves of fewer workgroups take: gate
            // and up of GLM's experts, 512 tokens, were 20 % slower on an H200
            // (docs/experiments/151).
            let is_one_wave = of.workgroups_per_unit <= first.resident;
            if resident >= first.resident || is_one_wave {
                others.push(("nothing copied ahead", plain));
            }
        } else {
            let further = target.machine.gpu_facts().iterations_copied_ahead;
            others.push(("copied ahead", at(further)));
        }
        others.push(("copied further ahead", at(first.ahead + 1)));
    }
    let fewer = hoisted(of, first.hoisted / 2);
    others.extend(
        [("nothing hoisted", 0), ("fewer words hoisted", fewer)]
            .map(|(name, hoisted)| (name, LaunchPlan { hoisted, ..first })),
    );
    if target.machine.early && pressure::can_copy(of.g, of.bodies) {
        others.push((
            "copies through registers",
            LaunchPlan {
                asynchronous: false,
                ..first
            },
        ));
    }
    others
}

/// Variants of `first` in the shared memory carve-out: those that hold at least one workgroup.
///
/// Only drivers of machines with an `sm` accept a carve-out.
fn of_shared_memory(of: &Launched, first: LaunchPlan) -> Vec<Named> {
    let target = of.target;
    let fits =
        |percent: i64| of.scratch as i64 * 100 <= percent * target.machine.shared_per_unit as i64;
    let shares = SHARED_PERCENT
        .into_iter()
        .filter(|s| target.machine.sm.is_some() && fits(s.1));
    let of_share = |(name, percent)| {
        (
            name,
            LaunchPlan {
                shared: Some(percent),
                ..first
            },
        )
    };
    shares.map(of_share).collect()
}

/// Resident workgroups and iterations to copy ahead (multistage buffer), if a loop and shared
/// memory allow it: as many workgroups as registers allow, each with room for the next iteration.
///
/// Copies only add work if each dequantised fragment is multiplied once, since memory bandwidth
/// then decides, or if all workgroups run in one wave, which is short. GLM on an H200: queries of
/// 512 tokens, 96 workgroups, 11.7 us without and 18.5 with copies; gate and up of experts, 1,512
/// workgroups, 239 and 171 (docs/experiments/081).
fn copied_ahead(of: &Launched, pressure: Pressure) -> Option<(i64, i64)> {
    let (wanted, target) = (pressure.ahead?, of.target);
    let machine = &target.machine;
    if !machine.early
        || !target.copy_ahead
        || !wanted.needed && (!wanted.reused || of.workgroups_per_unit <= target.resident())
    {
        return None;
    }
    // Half as many registers as the tiles use are for operands; products of several warps only have
    // row operands. Carried values exist for two iterations.
    let operands = if wanted.needed {
        0
    } else {
        pressure.unpacked / 2
    };
    let own = machine.gpu_facts().thread_registers;
    let registers = own + pressure.unpacked + operands + 2 * wanted.carried + WORDS_OF_WIDEST_LOAD;
    let iterations = |resident: i64| {
        let of_unit = machine.shared_per_unit as i64 / resident - RESERVED_SHARED as i64;
        let room = of_unit.min(machine.shared_per_workgroup as i64) - of.scratch as i64;
        (room / wanted.bytes - 1)
            .min(wanted.longest - 1)
            .min(if wanted.needed {
                ITERATIONS_AHEAD_OF_GROUPS
            } else {
                machine.gpu_facts().iterations_copied_ahead
            })
    };
    // Bodies without dequantisation in the same launch need registers for their sums, too.
    let held = (1..=held_with(registers, target).min(held(pressure.others, target))).rev();
    held.map(|n| (n, iterations(n)))
        .find(|&(_, ahead)| ahead > 0)
}

/// Words that threads may hold for early loads, such that a unit has registers for one additional
/// workgroup, of the next kernel. GLM's attention output on an H200, two workgroups per unit: 4.0
/// us with 48 words (45 fit), 3.5 with 32 (docs/experiments/116).
fn room_for_loads(of: &Launched, resident: i64) -> i64 {
    let own = of.target.machine.gpu_facts().thread_registers;
    each(of.workgroups_per_unit.clamp(1, resident) + 1, of.target) - own
}

/// Words that threads load before their nests start, at most `words`.
fn hoisted(of: &Launched, words: i64) -> i64 {
    let bodies = of.bodies.iter().filter(|_| of.target.hoist);
    bodies
        .map(|b| early_loads::words_hoisted(of.g, &b.statements, words))
        .max()
        .unwrap_or(0)
}

/// Registers below which a thread would spill: its sums, or the words that a loop loads at once,
/// beside the accumulators of products that dequantise a weight. With 85 registers, Qwen3 8B
/// Q4_K_M's down projection, which loads 164 words, spills 50 values on an RTX 3060 or L4.
fn least(of: Pressure, target: &Target) -> i64 {
    let facts = target.machine.gpu_facts();
    let beside = facts.accumulators_beside_words * of.unpacked as f64;
    facts.thread_registers + of.words.max(MIN_REGISTERS_OF_SUM * of.sums) + beside as i64
}

/// Workgroups per unit to reserve registers for: as many as planned, or fewer if
/// sums need more registers.
///
/// One more if that fits all workgroups into a single wave, which takes half as long as two.
pub fn resident(of: Pressure, workgroups_per_unit: i64, target: &Target) -> i64 {
    let planned = target.resident();
    // Dequantised operands are loaded a step at a time.
    let unpacked = target.machine.gpu_facts().thread_registers + of.unpacked + of.asked;
    let held = if of.unpacked > 0 {
        held_with(unpacked, target).min(held(of.others, target))
    } else {
        held(of.sums, target)
    };
    if held < planned {
        return held;
    }
    let all = workgroups_per_unit == planned + 1
        && !of.products
        && least(of, target) <= each(planned + 1, target);
    if all { planned + 1 } else { planned }
}

/// When dependent kernels may start (programmatic dependent launch): at entry, so that they load
/// weights while they wait.
///
/// The first kernel of a function triggers them only at its own turn: early starters take
/// occupancy and bandwidth from kernels that are due, and an endless chain of them too
/// much (docs/experiments/053).
fn dependents(of: &Launched) -> Dependents {
    match (of.target.early_launch, of.first) {
        (false, _) => Dependents::End,
        (true, true) => Dependents::Turn,
        (true, false) => Dependents::Entry,
    }
}
