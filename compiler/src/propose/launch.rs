//! Proposals for how a GPU runs a launch, by the machine's registers and by what the kernel asks for (`lower/pressure.rs`).

use crate::cost::occupancy::{REGISTERS, REGISTERS_PER_LOADED_WORD, each, held, held_with};
use crate::lower::memory::early_loads;
use crate::lower::pressure::Pressure;
use crate::lower::{Code, pressure};
use crate::plan::{Proposal, proposals};
use gristmill_uop::Graph;
use gristmill_uop::launch::{Dependents, LaunchPlan};
use gristmill_uop::machine::RESERVED_SHARED;
use gristmill_uop::target::Target;

/// Words of the widest load: so many iterations are written out as have one each in those registers.
const WORDS_OF_WIDEST_LOAD: i64 = 4;
/// Registers that a sum takes, with its words and what is made of them, where words wait one after the other: with eight sums and 85 registers nothing
/// spills there, which a test of the usual models' kernels looks at.
const LEAST_REGISTERS_OF_SUM: i64 = 5;
/// Parts of a unit's memory that drivers may be asked to share, percent (experiments, 54).
const SHARED_PERCENT: [(&str, i64); 3] = [("a quarter shared", 25), ("half shared", 50), ("all shared", 100)];

/// Iterations that are copied ahead: what more copies take of a unit's memory its first-level cache lacks, and scales are read again from further away (GLM's gate
/// and up of 64 sequences on an H100, without copies: 129 us, and 176 with a fifth of the first-level cache).
const ITERATIONS_AHEAD: i64 = 1;
/// The same of products of several warps, of which an iteration takes a fraction of the time that memory needs to answer, as far as
/// shared memory has room (one, two and three were not measured apart).
const ITERATIONS_AHEAD_OF_GROUPS: i64 = 3;

/// What a launch's plan follows from.
pub struct Launched<'a> {
    /// The graph of the statements.
    pub g: &'a Graph,
    /// The bodies, linearised.
    pub bodies: &'a [Code],
    /// Workgroups that come to each unit, at most.
    pub workgroups_per_unit: i64,
    /// Bytes that threads of a workgroup share.
    pub scratch: usize,
    /// Does nothing of its function come before it?
    pub first: bool,
    /// For whom.
    pub target: &'a Target,
}

/// How a launch could be run, the heuristic's choice first, and alone unless `all` are wanted.
pub fn launch(of: &Launched, all: bool) -> Vec<Proposal<LaunchPlan>> {
    let (pressure, target) = (Pressure::for_bodies(of.g, of.bodies, of.target.threads as i64), of.target);
    let words = (target.registers as i64 / REGISTERS_PER_LOADED_WORD).max(1);
    let (resident, ahead) =
        copied_ahead(of, pressure).unwrap_or_else(|| (resident(pressure, of.workgroups_per_unit, target), 0));
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
    let half = |n: i64| (n / 2).max(1);
    let with = |words: i64, iterations: i64| LaunchPlan { words, iterations, ..first };
    let mut others = vec![
        ("one workgroup at once", LaunchPlan { resident: 1, ..first }),
        ("fewer iterations at once", with(half(first.words), half(first.iterations))),
        ("more iterations at once", with(2 * first.words, 2 * first.iterations)),
        ("one iteration at once", with(1, 1)),
    ];
    let more = first.resident + 1;
    if target.threads as i64 * more <= target.machine.threads_per_unit as i64 && least(pressure) <= each(more, target) {
        let hoisted = hoisted(of, room_for_loads(of, more));
        others.push(("more workgroups at once", LaunchPlan { resident: more, hoisted, ..first }));
    }
    if pressure.ahead.is_some() && target.machine.early {
        let at = |ahead| LaunchPlan { ahead, ..first };
        others.push(if first.ahead > 0 {
            ("nothing copied ahead", at(0))
        } else {
            ("copied ahead", at(ITERATIONS_AHEAD))
        });
        others.push(("copied further ahead", at(first.ahead + 1)));
    }
    let fewer = hoisted(of, first.hoisted / 2);
    others.extend(
        [("nothing hoisted", 0), ("fewer words hoisted", fewer)]
            .map(|(name, hoisted)| (name, LaunchPlan { hoisted, ..first })),
    );
    if target.machine.early && pressure::can_copy(of.g, of.bodies) {
        others.push(("copies through registers", LaunchPlan { asynchronous: false, ..first }));
    }
    if target.early_launch {
        let at = |dependents| LaunchPlan { dependents, ..first };
        others.push(("dependents at once", at(Dependents::Entry)));
        others.push(("dependents at its turn", at(Dependents::Turn)));
        others.push(("dependents at its end", at(Dependents::End)));
    }
    // One workgroup has room in it, at least; other vendors' drivers take no such wish.
    let fits = |percent: i64| of.scratch as i64 * 100 <= percent * target.machine.shared_per_unit as i64;
    let shares = SHARED_PERCENT.into_iter().filter(|s| target.machine.sm.is_some() && fits(s.1));
    others.extend(shares.map(|(name, percent)| (name, LaunchPlan { shared: Some(percent), ..first })));
    proposals(first, others)
}

/// Workgroups that a unit shall have room for, and iterations that are copied ahead, where there are loops for it and memory that is shared: as many workgroups
/// as have registers, if each has room for the next iteration beside its own. Where a fragment that is unpacked is multiplied once, memory's rate decides, and where
/// all workgroups run at once they are short: copies are only more to do (GLM's queries of 512 tokens on an H200, 96 workgroups: 11.7 us without, 18.5 with; gate and
/// up of its experts, 1,512: 239 and 171).
fn copied_ahead(of: &Launched, pressure: Pressure) -> Option<(i64, i64)> {
    let (wanted, target) = (pressure.ahead?, of.target);
    let machine = &target.machine;
    if !machine.early
        || !target.copy_ahead
        || !wanted.needed && (!wanted.reused || of.workgroups_per_unit <= target.resident())
    {
        return None;
    }
    // Half as many as tiles have are for the operands of their products, of which those of several warps have rows alone; what is carried over is there for two
    // iterations.
    let operands = if wanted.needed { 0 } else { pressure.unpacked / 2 };
    let registers = REGISTERS + pressure.unpacked + operands + 2 * wanted.carried + WORDS_OF_WIDEST_LOAD;
    let iterations = |resident: i64| {
        let of_unit = machine.shared_per_unit as i64 / resident - RESERVED_SHARED as i64;
        let room = of_unit.min(machine.shared_per_workgroup as i64) - of.scratch as i64;
        (room / wanted.bytes - 1).min(wanted.longest - 1).min(if wanted.needed {
            ITERATIONS_AHEAD_OF_GROUPS
        } else {
            ITERATIONS_AHEAD
        })
    };
    // Bodies that unpack nothing, beside one that does, have sums that want registers too.
    let held = (1..=held_with(registers, target).min(held(pressure.others, target))).rev();
    held.map(|n| (n, iterations(n))).find(|&(_, ahead)| ahead > 0)
}

/// Words that threads may hold beside what they compute, if a unit shall have registers for one workgroup more than come to it, which is one of the next kernel's. With 48
/// where that leaves 45, GLM's output of attention (two workgroups a multiprocessor of an H200) takes 4.0 us, with 32 3.5.
fn room_for_loads(of: &Launched, resident: i64) -> i64 {
    each(of.workgroups_per_unit.clamp(1, resident) + 1, of.target) - REGISTERS
}

/// Words that threads load before their nests begin, of at most so many.
fn hoisted(of: &Launched, words: i64) -> i64 {
    let bodies = of.bodies.iter().filter(|_| of.target.hoist);
    bodies.map(|b| early_loads::words_hoisted(of.g, &b.statements, words)).max().unwrap_or(0)
}

/// Registers without which a thread would keep some of its values in memory: for its sums, and for the words that a loop asks for at once. With 85 the down projection of
/// Qwen3 8B Q4_K_M, whose loop asks for 164 words, keeps 50 values of an RTX 3060's or an L4's thread there.
fn least(of: Pressure) -> i64 {
    REGISTERS + of.words.max(LEAST_REGISTERS_OF_SUM * of.sums)
}

/// Workgroups that a unit shall have room for, where `workgroups_per_unit` come to each: as many as threads are planned for, or fewer if sums want more registers;
/// one more where that is as many as there are, as one round takes half as long as two.
pub fn resident(of: Pressure, workgroups_per_unit: i64, target: &Target) -> i64 {
    let planned = target.resident();
    // What is unpacked is asked for a step at once.
    let unpacked = REGISTERS + of.unpacked + of.asked;
    let held =
        if of.unpacked > 0 { held_with(unpacked, target).min(held(of.others, target)) } else { held(of.sums, target) };
    if held < planned {
        return held;
    }
    let all = workgroups_per_unit == planned + 1 && !of.products && least(of) <= each(planned + 1, target);
    if all { planned + 1 } else { planned }
}

/// A kernel lets others start at once, so that they wait in turn and ask for their weights meanwhile. The first kernel of a function lets them start no sooner
/// than it is its own turn: all that start early take room and memory's time from those whose turn it is, and of a chain without end too much (experiments, 53).
fn dependents(of: &Launched) -> Dependents {
    match (of.target.early_launch, of.first) {
        (false, _) => Dependents::End,
        (true, true) => Dependents::Turn,
        (true, false) => Dependents::Entry,
    }
}
