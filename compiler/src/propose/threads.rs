//! Proposes how the threads of a workgroup share a nest (`map/simt.rs`).

use crate::cost::occupancy::resident_workgroups_by_threads;
use crate::decompose::f16_mma::QUAD;
use crate::ir::nest::{Nest, floor_power, outermost_reductions, workgroups};
use crate::plan::nest_view::{
    NestView, along, divided, fixed, is, loads, most, reductions, walked, widest,
};
use crate::plan::{Along, Counted, NestPlan, Proposal, ThreadSum, Threads, proposals};
use gristmill_uop::facts::GpuFacts;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind};

/// Minimum lanes for loads of whole sectors: 32 bytes, in words of 4.
const LANES_OF_SECTOR: i64 = 8;
/// Terms of a step that has enough loads of its own, so that unrolling would only add code.
const TERMS_OF_WIDE_STEP: i64 = 64;
/// Maximum output elements per thread that share an operand. More save loads but leave fewer
/// threads for the rest. Not measured.
const MAX_REPEATED_OUTPUTS: i64 = 8;
/// Elements per thread and iteration of a shared loop from which on a thread takes adjacent ones,
/// if the nest only reads stages and has no sum. Attention weights of a prefill then take 8 instead
/// of 18 instructions (docs/experiments/095). With fewer elements, threads must hide latency.
const ELEMENTS_OF_NEIGHBOURS: i64 = 16;

/// Candidate mappings of a nest with fused reduction loops, the heuristic's first; only that one
/// unless `all` is set.
pub fn threads(g: &Graph, nest: &Nest, target: &Target, all: bool) -> Vec<Proposal<NestPlan>> {
    if nest.closed.iter().any(|&r| is(g, r, RangeKind::Vector)) {
        return counted(g, nest, target);
    }
    let threads = target.threads as i64;
    let (subgroup, registers) = (target.machine.subgroup, target.registers as i64);
    let fills = workgroups(g, &[nest.value, nest.offset]) > resident_workgroups_by_threads(target);
    let least = target.machine.least_bytes as i64;
    let of = Sharing {
        g,
        nest,
        view: NestView::new(g, nest, threads),
        threads,
        subgroup,
        registers,
        least,
        fills,
        facts: target.machine.gpu_facts(),
    };
    let first = of.plan(of.along(), of.limits());
    if !all {
        return proposals(NestPlan::Threads(first), []);
    }
    let others = of.others(&first);
    let of_threads = |plan| NestPlan::Threads(plan);
    proposals(
        of_threads(first),
        others
            .into_iter()
            .map(|(name, plan)| (name, of_threads(plan))),
    )
}

/// Mappings for a nest with threads assigned by the workgroup plan: takes several reduction steps
/// at once where that widens loads, and divides steps among remaining threads.
fn counted(g: &Graph, nest: &Nest, target: &Target) -> Vec<Proposal<NestPlan>> {
    let counted: i64 = nest
        .closed
        .iter()
        .filter(|&&r| is(g, r, RangeKind::Vector))
        .map(|&r| most(g, r))
        .product();
    let longest = |n: Id| walked(g, n).into_iter().max_by_key(|&r| most(g, r));
    let outermost: Vec<Id> = outermost_reductions(g, nest.value)
        .into_iter()
        .filter_map(longest)
        .collect();
    let shared = |lanes: i64| {
        outermost
            .iter()
            .all(|&r| fixed(g, r).is_some_and(|b| b % lanes == 0))
    };
    let idle = floor_power((target.threads as i64 / counted).max(1));
    let lanes = (0..=idle.ilog2())
        .rev()
        .map(|i| 1 << i)
        .find(|&lanes| shared(lanes))
        .unwrap_or(1);
    let steps = |lanes: i64, at_once: i64| {
        let of = |&n: &Id| {
            let longest = longest(n)?;
            let lanes = if outermost.contains(&longest) {
                lanes
            } else {
                1
            };
            // A step with many unrolled terms is already wide.
            let wide = g[n].src[1..]
                .iter()
                .filter(|&&r| is(g, r, RangeKind::Unroll))
                .map(|&r| most(g, r))
                .product::<i64>();
            Some(
                if wide < TERMS_OF_WIDE_STEP
                    && fixed(g, longest).is_some_and(|b| b % (lanes * at_once) == 0)
                {
                    at_once
                } else {
                    1
                },
            )
        };
        let steps = reductions(g, nest.value).iter().filter_map(of).collect();
        NestPlan::Counted(Counted { lanes, steps })
    };
    let unrolled = target.machine.gpu_facts().unrolled_steps;
    let others = [
        ("one step at a time", steps(lanes, 1)),
        ("two steps at a time", steps(lanes, 2)),
        ("sums apart", steps(1, unrolled)),
    ];
    proposals(steps(lanes, unrolled), others)
}

/// Limits on a proposal.
#[derive(Clone, Copy)]
struct Limits {
    /// Lanes of a group; `None` for the heuristic's.
    lanes: Option<i64>,
    /// Adjacent elements of a thread.
    width: i64,
    /// Elements of a thread that share an operand.
    repeated: i64,
    /// Adjacent terms of a lane.
    terms: i64,
    /// Steps at once, for constant lengths and, in some nests, data-dependent ones.
    steps: i64,
}

/// A nest and the resources of its threads.
struct Sharing<'a> {
    g: &'a Graph,
    nest: &'a Nest,
    view: NestView,
    threads: i64,
    /// Lanes that reduce without a barrier.
    subgroup: i64,
    /// Registers of a thread.
    registers: i64,
    /// Bytes of the machine's narrowest type.
    least: i64,
    /// Whether the nest has more workgroups than the machine can hold threads for at once.
    fills: bool,
    /// Facts of the machine: sums and unrolled steps of a thread.
    facts: &'a GpuFacts,
}

impl Sharing<'_> {
    /// Limits of the heuristic's mapping.
    fn limits(&self) -> Limits {
        Limits {
            lanes: None,
            width: self.facts.thread_sums,
            repeated: MAX_REPEATED_OUTPUTS,
            terms: i64::MAX,
            steps: self.facts.unrolled_steps,
        }
    }
    /// Mappings with other limits than those of `first`, by name.
    fn others(&self, first: &Threads) -> Vec<(&'static str, Threads)> {
        let (idle, turned) = (first.lanes, self.turned(first.along));
        let with = |limits: Limits| self.plan(first.along, limits);
        let lanes = |lanes: i64| Limits {
            lanes: Some(lanes),
            ..self.limits()
        };
        let one_step = Limits {
            steps: 1,
            ..self.limits()
        };
        let narrow = Limits {
            width: 1,
            terms: 1,
            ..self.limits()
        };
        let one_element = Limits {
            width: 1,
            repeated: 1,
            ..self.limits()
        };
        let none = Limits {
            width: 1,
            repeated: 1,
            terms: 1,
            steps: 1,
            ..self.limits()
        };
        let mut others = vec![
            ("fewer lanes", with(lanes((idle / 2).max(1)))),
            ("one step at a time", with(one_step)),
            ("narrow loads", with(narrow)),
            ("an element a thread", with(one_element)),
            ("plain", with(none)),
        ];
        if !self.view.own.is_empty() {
            let more = lanes((2 * idle).min(self.threads));
            others.insert(1, ("more lanes", with(more)));
            others.push(("other neighbours", self.plan(turned, self.limits())));
        }
        others
    }
    fn along(&self) -> Along {
        let elements: i64 = self.view.shared.iter().map(|&r| most(self.g, r)).product();
        let sums = self.view.own.len() + self.view.common.len();
        if self.unpacks() || sums == 0 && self.elements_of_word() > 1 {
            return Along::Output;
        }
        let of_stages = sums == 0 && loads(self.g, self.nest.value).is_empty();
        if of_stages
            && self.is_in_shared_loop()
            && elements >= ELEMENTS_OF_NEIGHBOURS * self.threads
        {
            return Along::Output;
        }
        along(self.g, self.nest.value, &self.view.own, &self.view.shared)
    }
    /// Whether it runs in each iteration of a loop that nests share.
    fn is_in_shared_loop(&self) -> bool {
        let ranges = self.g.free_ranges(self.nest.value);
        ranges
            .iter()
            .any(|&r| self.g.range_kind(r) == Some(RangeKind::Fused))
    }
    /// Whether it dequantises a weight in each iteration of such a loop, with enough elements that
    /// each thread can take those with codes in one word.
    ///
    /// Not if elements have sums of their own. A sum common to all elements, such as the count that
    /// selects the weight, does not matter (docs/experiments/126).
    fn unpacks(&self) -> bool {
        let g = self.g;
        let packed = |n: &Node| {
            n.op == Op::Load && matches!(g[n.src[0]].arg, Arg::Packed(_, e) if e.elements > 1)
        };
        let elements: i64 = self.view.shared.iter().map(|&r| most(g, r)).product();
        self.view.own.is_empty()
            && elements >= QUAD * self.threads
            && self.is_in_shared_loop()
            && g.any(self.nest.value, |_, n| packed(n))
    }
    fn turned(&self, along: Along) -> Along {
        if along == Along::Output {
            Along::Reduction
        } else {
            Along::Output
        }
    }
    fn plan(&self, along: Along, limits: Limits) -> Threads {
        let g = self.g;
        let all: i64 = self.view.shared.iter().map(|&r| most(g, r)).product();
        let (width, (copies, outputs)) = match along {
            Along::Output => {
                let width = self.width(limits);
                (width, (vec![], all / width))
            }
            Along::Reduction => (1, self.copies(all, limits)),
        };
        let most_lanes = self.lanes(&self.view.own, outputs, along);
        let lanes = limits
            .lanes
            .filter(|_| !self.view.own.is_empty())
            .unwrap_or(most_lanes);
        let of_sum = |&n: &Id| {
            let common = self
                .view
                .common
                .contains(&n)
                .then(|| self.lanes(&[n], 1, Along::Reduction));
            self.sum(n, common, common.unwrap_or(lanes), limits)
        };
        let sums = self
            .view
            .sums(g, self.nest.value)
            .iter()
            .map(of_sum)
            .collect();
        Threads {
            along,
            lanes,
            width,
            copies,
            sums,
        }
    }
    fn upcasts(&self) -> i64 {
        self.copied().map(|r| most(self.g, r)).product()
    }
    /// Loops over a thread's output elements.
    fn copied(&self) -> impl Iterator<Item = Id> + '_ {
        self.nest
            .closed
            .iter()
            .copied()
            .filter(|&r| is(self.g, r, RangeKind::Upcast))
    }
    /// Steps of that many terms whose loads all fit in registers next to the accumulators.
    fn steps_in_registers(&self, terms: i64) -> i64 {
        let loads = loads(self.g, self.nest.value).into_iter().map(|(at, _)| {
            let ranges = self.g.free_ranges(at);
            self.copied()
                .filter(|r| ranges.contains(r))
                .map(|r| most(self.g, r))
                .product::<i64>()
        });
        let words = terms * loads.sum::<i64>();
        ((self.registers - self.upcasts()) / words.max(1)).max(1)
    }
    /// Adjacent output elements of a thread, if operands are contiguous along them.
    fn width(&self, limits: Limits) -> i64 {
        let Some(&last) = self.view.shared.last() else {
            return 1;
        };
        // Threads come before width: reducing partial results across threads costs
        // more than narrow loads.
        let each = self
            .view
            .shared
            .iter()
            .map(|&r| most(self.g, r))
            .product::<i64>()
            / self.threads;
        let wide = if self.unpacks() {
            QUAD
        } else {
            widest(self.g, self.nest.value, last)
        };
        let most = wide
            .min(self.facts.thread_sums / self.upcasts().max(1))
            .min(each);
        let most = most.max(self.elements_of_word()).min(limits.width);
        let Some(bound) = fixed(self.g, last) else {
            return 1;
        };
        (2..=most).rev().find(|w| bound % w == 0).unwrap_or(1)
    }
    /// Adjacent elements that fill a word, if the nest writes elements narrower than the machine's
    /// types. A thread with all of them stores the word; one with a part of it needs two atomic
    /// operations, since other threads may write the rest.
    fn elements_of_word(&self) -> i64 {
        let (g, unit) = (self.g, self.g.unit_bytes(self.nest.buffer));
        let Some(&last) = self.view.shared.last() else {
            return 1;
        };
        if self.nest.adds || unit >= self.least {
            return 1;
        }
        let (of_word, sum) = (self.least / unit, g.linear(self.nest.offset));
        let begins = sum.constant % of_word == 0;
        let others = sum
            .terms
            .iter()
            .all(|&(t, c)| t == last || c % of_word == 0 && !g.any(t, |n, _| n == last));
        let whole = fixed(g, last).is_some_and(|bound| bound % of_word == 0);
        if sum.coefficient(last) == 1 && begins && others && whole {
            of_word
        } else {
            1
        }
    }
    /// Loops over output elements that share an operand, which is loaded once if they are copies in
    /// a thread; and the remaining number of elements.
    fn copies(&self, mut outputs: i64, limits: Limits) -> (Vec<usize>, i64) {
        let g = self.g;
        let walked: Vec<Id> = self.view.own.iter().flat_map(|&n| walked(g, n)).collect();
        let (mut copies, mut found) = (self.upcasts(), vec![]);
        let loads = loads(g, self.nest.value);
        for &r in &self.view.shared {
            let Some(n) = fixed(g, r) else { continue };
            let walks = |at: Id| walked.iter().any(|w| g.free_ranges(at).contains(w));
            let again = loads
                .iter()
                .any(|&(at, _)| walks(at) && !g.free_ranges(at).contains(&r));
            if !again || n * copies > limits.repeated || outputs / n * self.subgroup < self.threads
            {
                continue;
            }
            found.extend(self.nest.closed.iter().position(|&c| c == r));
            copies *= n;
            outputs /= n;
        }
        (found, outputs)
    }
    /// Lanes of a group: threads that outputs leave idle, if there are enough terms, and at least a
    /// warp if adjacent threads read along a sufficiently long reduction.
    fn lanes(&self, reductions: &[Id], outputs: i64, along: Along) -> i64 {
        let g = self.g;
        let walks = reductions
            .iter()
            .flat_map(|&n| walked(g, n).into_iter().map(move |r| (n, r)));
        let Some((n, r)) = walks.max_by_key(|x| most(g, x.1)) else {
            return 1;
        };
        let idle = floor_power(self.threads / outputs.clamp(1, self.threads));
        let wanted = match along {
            Along::Output => idle,
            Along::Reduction => idle.max(self.subgroup.min(self.threads)),
        };
        // A lane count by which wide loads, or at least single ones, divide the terms.
        let divisor = |each: i64| {
            let bound = fixed(g, r)?;
            let enough = wanted.min(LANES_OF_SECTOR.max(idle)).min(bound / each);
            (0..=wanted.ilog2())
                .rev()
                .map(|i| 1 << i)
                .find(|l| bound % (l * each) == 0)
                .filter(|&l| l >= enough)
        };
        let wide = widest(g, g[n].src[0], r);
        let limit = || {
            let half = floor_power(most(g, r) / 2);
            if idle < LANES_OF_SECTOR {
                return wanted.min(half);
            }
            // Threads of a subgroup that outputs leave idle would only repeat the last output. A
            // sum with data-dependent length may have few terms.
            let all = fixed(g, r).map_or(1, floor_power);
            idle.min(half.max(all.min(self.subgroup)))
        };
        divisor(wide).or_else(|| divisor(1)).unwrap_or_else(limit)
    }
    /// Division of a reduction among that many lanes.
    fn sum(&self, n: Id, common: Option<i64>, lanes: i64, limits: Limits) -> ThreadSum {
        let g = self.g;
        let alone = ThreadSum {
            common,
            terms: 1,
            steps: 1,
        };
        let Some(r) = divided(g, &walked(g, n), lanes).filter(|_| lanes > 1) else {
            return alone;
        };
        // Adjacent terms that a lane takes at once: a wide load, if the terms divide evenly.
        let wide = widest(g, g[n].src[0], r).min(limits.terms);
        let divides = |bound: i64| (1..=wide).rev().find(|w| bound % (w * lanes) == 0);
        let terms = fixed(g, r).and_then(divides).unwrap_or(1);
        let steps = (most(g, r) + lanes * terms - 1) / (lanes * terms);
        // Unrolled steps, with their loads in flight together. A data-dependent number of steps is
        // rounded up to whole rounds.
        let at_once = match fixed(g, r) {
            _ if limits.steps == 1 => 1,
            Some(_) if steps <= limits.steps => steps.max(1),
            Some(_) => (1..=limits.steps.min(self.steps_in_registers(terms)))
                .rev()
                .find(|c| steps % c == 0)
                .unwrap_or(1),
            None => {
                // Steps past the end are wasted work if other workgroups could compute meanwhile,
                // or if outputs leave few threads per sum (`elements` in `plain.rs`). Sums over 5
                // of 96 chunks, 8 rows of GLM on an H100: 7.3 us before, 6.3 with this limit.
                let most = if self.fills || lanes < LANES_OF_SECTOR {
                    limits.steps
                } else {
                    self.facts.unrolled_steps_of_few
                };
                let rounds = (steps.max(1) + most - 1) / most;
                (steps.max(1) + rounds - 1) / rounds
            }
        };
        ThreadSum {
            common,
            terms,
            steps: at_once,
        }
    }
}
