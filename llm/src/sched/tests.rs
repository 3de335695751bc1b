//! The scheduler with an executor that computes nothing but keeps account: which token stands where in the pool, and what each step sees of it.

use super::pages::PagePool;
use super::{Batch, Bounds, Scheduler, SequenceId};
use crate::arch::Pools;
use crate::prefix::{BLOCK, Reuse};
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGE: usize = 64;

/// What lies in a row of the pool: the token, and how it was computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cell {
    token: u32,
    exact: bool,
}

/// Sequences that are answered by arithmetic on what the pool holds for them.
struct Model {
    scheduler: Scheduler,
    pool: Vec<Option<Cell>>,
    /// What the pool of windows holds, and positions that a token sees of it, if there is one.
    windows: Vec<Option<Cell>>,
    seen: Option<usize>,
    /// Of each: how many tokens it is to have in all, whether its text must not depend on others, and the tokens of its prompt.
    wanted: BTreeMap<SequenceId, (usize, Reuse, usize)>,
    ended: BTreeMap<SequenceId, Vec<u32>>,
    most: usize,
    /// Most tokens of a piece beside answers: they change from step to step.
    beside: Vec<usize>,
    steps: usize,
}

/// The token after these.
fn next(tokens: &[u32]) -> u32 {
    tokens.iter().fold(17u32, |hash, &token| hash.wrapping_mul(31).wrapping_add(token)) % 5
}

/// The answer that a prompt has alone.
fn alone(prompt: &[u32], answer: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    (0..answer).for_each(|_| tokens.push(next(&tokens)));
    tokens
}

impl Model {
    fn new(pages: usize, sequences: usize) -> Model {
        Model::with_windows(pages, sequences, None)
    }
    /// With a pool of windows in which there is room for what sequences have at most at a time, and for nothing else.
    fn with_windows(pages: usize, sequences: usize, seen: Option<usize>) -> Model {
        let of = |seen| sequences * (Pools::blocks(seen, 1) + 1) + Pools::blocks(seen, 96);
        let windows = seen.map(|seen| [of(seen), seen]);
        let bounds = Bounds { pages, page: PAGE, windows, sequences, piece: 96, batch_invariant: true };
        Model {
            scheduler: Scheduler::new(bounds),
            pool: vec![None; pages * PAGE],
            windows: vec![None; windows.map_or(0, |[windows, _]| windows * PAGE)],
            seen,
            wanted: BTreeMap::new(),
            ended: BTreeMap::new(),
            most: sequences,
            beside: vec![48],
            steps: 0,
        }
    }
    fn add(&mut self, prompt: Vec<u32>, answer: usize, reuse: Reuse) -> SequenceId {
        let (all, length) = (prompt.len() + answer, prompt.len());
        let id = self.scheduler.add(prompt, reuse);
        self.wanted.insert(id, (all, reuse, length));
        id
    }
    fn slot(&self, id: SequenceId, position: usize) -> usize {
        let pages = self.scheduler.pages(id, position).all;
        assert_eq!(pages.len(), position / PAGE + 1, "a page for position {position}");
        pages[position / PAGE] as usize * PAGE + position % PAGE
    }
    /// The same in the pool of windows.
    fn window_slot(&self, id: SequenceId, position: usize) -> usize {
        let pages = self.scheduler.pages(id, position).windows;
        assert_eq!(pages.len(), position / PAGE + 1, "a page of windows for position {position}");
        pages[position / PAGE] as usize * PAGE + position % PAGE
    }
    /// The first position that the token at that position sees of windows.
    fn first_seen(&self, position: usize) -> usize {
        self.seen.map_or(position + 1, |seen| (position + 1).saturating_sub(seen))
    }
    fn write(&mut self, id: SequenceId, position: usize, cell: Option<Cell>) {
        let slot = self.slot(id, position);
        self.pool[slot] = cell;
        if self.seen.is_some() {
            let slot = self.window_slot(id, position);
            self.windows[slot] = cell;
        }
    }
    /// Runs a batch: what is written, and that each sequence finds its own tokens before its position.
    fn run(&mut self, batch: &Batch) {
        for copy in &batch.copies {
            let [from, to] = [copy.from, copy.to].map(|page| page as usize * PAGE);
            self.pool.copy_within(from..from + PAGE, to);
            assert_eq!(copy.windows.is_some(), self.seen.is_some());
            if let Some(windows) = copy.windows {
                let [from, to] = windows.map(|page| page as usize * PAGE);
                self.windows.copy_within(from..from + PAGE, to);
            }
        }
        let pieces = batch.piece.iter().map(|p| (p.sequence, p.tokens.clone(), p.exact));
        let decodes = batch.decodes.iter().map(|d| (d.sequence, d.position..d.position + 1, false));
        let all: Vec<_> = pieces.chain(decodes).collect();
        for (at, (id, ..)) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other.0 != *id), "{id:?} has one place in a batch");
        }
        assert!(batch.decodes.len() <= self.most);
        for (id, tokens, exact) in &all {
            for position in tokens.clone() {
                let token = self.scheduler.tokens(*id)[position];
                self.write(*id, position, Some(Cell { token, exact: *exact }));
            }
        }
        for (id, tokens, _) in all {
            for position in 0..tokens.end {
                let found = self.pool[self.slot(id, position)];
                let own = self.scheduler.tokens(id)[position];
                assert_eq!(found.map(|cell| cell.token), Some(own), "{id:?} at {position}");
            }
            for position in self.first_seen(tokens.start)..tokens.end {
                let found = self.seen.and_then(|_| self.windows[self.window_slot(id, position)]);
                let own = self.seen.map(|_| self.scheduler.tokens(id)[position]);
                assert_eq!(found.map(|cell| cell.token), own, "{id:?} at {position} of its window");
            }
        }
        self.check_exact(batch);
    }
    /// Who wants the same text again sees rows that were computed as they would have been alone.
    fn check_exact(&self, batch: &Batch) {
        for id in batch.ends().filter(|id| self.wanted[id].1 == Reuse::Exact) {
            let tokens = self.scheduler.tokens(id).len();
            let prompt = self.wanted[&id].2;
            for position in 0..tokens {
                let cell = self.pool[self.slot(id, position)].expect("a computed row");
                let border = (prompt - 1) / BLOCK * BLOCK;
                assert_eq!(cell.exact, position < border, "{id:?} at {position} of a prompt of {prompt}");
                if self.seen.is_some() && position >= self.first_seen(tokens - 1) {
                    assert_eq!(self.windows[self.window_slot(id, position)], Some(cell), "{id:?} at {position}");
                }
            }
        }
    }
    fn next_batch(&mut self) -> Batch {
        let beside = self.beside[self.steps % self.beside.len()];
        self.steps += 1;
        let batch = self.scheduler.next_batch(beside);
        if let Some(piece) = &batch.piece {
            let most = if batch.decodes.is_empty() { 96 } else { beside.max(BLOCK) };
            assert!(piece.tokens.len() <= most, "{batch:?}");
            let (_, reuse, prompt) = self.wanted[&piece.sequence];
            let rest = (prompt - 1) / BLOCK * BLOCK..prompt;
            assert!(
                reuse == Reuse::Any || piece.exact || piece.tokens == rest,
                "{batch:?}: the rest of {prompt} is whole"
            );
        }
        batch
    }
    /// One step. Did it do anything?
    fn step(&mut self) -> bool {
        let batch = self.next_batch();
        if batch.is_empty() {
            return false;
        }
        self.run(&batch);
        self.scheduler.ran(&batch);
        for id in batch.ends().collect::<Vec<_>>() {
            let tokens = self.scheduler.tokens(id).to_vec();
            match tokens.len() < self.wanted[&id].0 {
                true => self.scheduler.push(id, next(&tokens)),
                false => {
                    self.scheduler.remove(id);
                    self.ended.insert(id, tokens);
                }
            }
        }
        self.scheduler.check();
        true
    }
    fn run_to_the_end(&mut self) {
        let mut steps = 0;
        while !self.scheduler.is_idle() {
            assert!(self.step(), "somebody is here, and nothing is done: {:?}", self.scheduler.load());
            steps += 1;
            assert!(steps < 100_000, "no end: {:?}", self.scheduler.load());
        }
        let load = self.scheduler.load();
        assert_eq!((load.running, load.waiting, load.pages, load.tokens), (0, 0, 0, 0), "nobody has a page");
    }
}

fn prompt(seed: u32, length: usize) -> Vec<u32> {
    // Few tokens, so that prompts begin alike.
    (0..length as u32).map(|i| if i < 70 { i % 3 } else { (i * seed) % 5 }).collect()
}

#[test]
fn one_alone_is_answered() {
    let mut model = Model::new(8, 2);
    let asked = prompt(3, 200);
    let id = model.add(asked.clone(), 30, Reuse::Any);
    model.run_to_the_end();
    assert_eq!(model.ended[&id], alone(&asked, 30));
}

#[test]
fn a_prefix_is_shared() {
    let mut model = Model::new(16, 4);
    let asked = prompt(3, 200);
    for reuse in [Reuse::Any, Reuse::Exact] {
        model.add(asked.clone(), 5, reuse);
        model.run_to_the_end();
    }
    let again = model.add(asked.clone(), 5, Reuse::Exact);
    model.step();
    // Blocks of 32, the last token not counted.
    assert_eq!(model.scheduler.found(again), Some(192));
    assert!(model.scheduler.load().pages <= 5, "{:?}", model.scheduler.load());
    model.run_to_the_end();
    // Another's answer as well, where nobody minds.
    let longer = alone(&asked, 5);
    let follows = model.add([&longer[..], &[1, 2, 3]].concat(), 5, Reuse::Any);
    model.step();
    assert_eq!(model.scheduler.found(follows), Some(205));
    model.run_to_the_end();
}

#[test]
fn where_pages_run_out_the_youngest_waits() {
    // Two pages each at first, three each later, of five.
    let mut model = Model::new(5, 4);
    let [first, second] = [1, 2].map(|seed| model.add(prompt(seed, 100), 60, Reuse::Exact));
    model.run_to_the_end();
    assert!(model.scheduler.load().preempted > 0);
    assert_eq!(model.ended[&first], alone(&prompt(1, 100), 60));
    assert_eq!(model.ended[&second], alone(&prompt(2, 100), 60));
}

#[test]
fn prompts_take_turns_and_answers_go_on() {
    let mut model = Model::new(64, 4);
    let long = model.add(prompt(1, 3000), 1, Reuse::Any);
    let short = model.add(prompt(2, 100), 20, Reuse::Any);
    let mut steps = 0;
    while !model.ended.contains_key(&short) {
        model.step();
        steps += 1;
    }
    assert!(!model.ended.contains_key(&long), "a long prompt keeps nobody waiting");
    assert!(steps < 30, "{steps}");
    model.run_to_the_end();
}

/// Tokens that nobody else has.
fn own(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| 5 + seed * 1000 + i).collect()
}

#[test]
fn who_goes_on_finds_the_windows_of_its_end() {
    let mut model = Model::with_windows(64, 2, Some(100));
    let asked = own(1, 1000);
    let first = model.add(asked.clone(), 40, Reuse::Any);
    model.run_to_the_end();
    // Its end, and where its prompt ends, whose rows it has left behind.
    let answered = model.ended[&first].clone();
    let next = model.add([&answered[..], &own(2, 20)].concat(), 5, Reuse::Any);
    model.step();
    assert_eq!(model.scheduler.found(next), Some(1040));
    model.run_to_the_end();
    let again = model.add(asked.clone(), 5, Reuse::Any);
    model.step();
    assert_eq!(model.scheduler.found(again), Some(999));
    model.run_to_the_end();
    // Where nobody has been, windows are gone first.
    let middle = model.add([&asked[..130], &own(3, 20)].concat(), 5, Reuse::Any);
    model.step();
    assert_eq!(model.scheduler.found(middle), Some(0));
    model.run_to_the_end();
}

#[test]
fn who_branches_off_leaves_the_windows_for_others() {
    let mut model = Model::with_windows(64, 2, Some(64));
    let common = own(1, 64 * 5);
    let mut ask = |seed: u32| {
        // A long prompt behind it, so that what it has in common with others is left behind.
        let id = model.add([&common[..], &own(seed, 600)].concat(), 2, Reuse::Any);
        model.step();
        let found = model.scheduler.found(id);
        model.run_to_the_end();
        found
    };
    // The second computes again what the first has left behind, and is seen to branch off there.
    assert_eq!([2, 3, 4].map(&mut ask), [Some(0), Some(0), Some(320)]);
}

#[test]
fn pages_of_nobody_have_windows_in_turn() {
    let mut model = Model::with_windows(64, 2, Some(100));
    model.add(own(1, 300), 40, Reuse::Any);
    (0..20).for_each(|_| _ = model.step());
    let borrowed = model.scheduler.borrow(1000, 96).expect("pages");
    let windows = borrowed.pages().windows.to_vec();
    assert_eq!((borrowed.pages().all.len(), windows.len()), (16, 16));
    // No two positions that a step sees lie in one row.
    for begin in (0..1000usize).step_by(96) {
        let seen = begin.saturating_sub(99) / PAGE..(begin + 96).min(1000).div_ceil(PAGE);
        let mut of = windows[seen.clone()].to_vec();
        of.sort_unstable();
        of.dedup();
        assert_eq!(of.len(), seen.len(), "{begin}: {windows:?}");
    }
    model.scheduler.give_back(&borrowed);
    model.scheduler.check();
    model.run_to_the_end();
}

/// What comes while others run.
#[derive(Clone, Debug)]
enum Act {
    Add { seed: u32, length: usize, answer: usize, exact: bool },
    Cancel(usize),
    Fail,
    Steps(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let add = (1u32..4, 1usize..300, 1usize..90, any::<bool>()).prop_map(|(seed, length, answer, exact)| Act::Add {
        seed,
        length,
        answer,
        exact,
    });
    let act = prop_oneof![4 => add, 1 => (0usize..8).prop_map(Act::Cancel), 1 => Just(Act::Fail), 4 => (1usize..12).prop_map(Act::Steps)];
    proptest::collection::vec(act, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    /// Whoever comes and goes, every answer is the one that its prompt has alone, each comes to its end, and no page is lost.
    #[test]
    fn whatever_comes(acts in acts(), pages in 7usize..24, sequences in 1usize..6, beside in proptest::collection::vec(1usize..97, 1..9), seen in proptest::option::of(1usize..200)) {
        let mut model = Model::with_windows(pages, sequences, seen);
        model.beside = beside;
        let mut asked = BTreeMap::new();
        for act in acts {
            match act {
                Act::Add { seed, length, answer, exact } => {
                    let prompt = prompt(seed, length);
                    let reuse = if exact { Reuse::Exact } else { Reuse::Any };
                    asked.insert(model.add(prompt.clone(), answer, reuse), (prompt, answer));
                }
                Act::Cancel(nth) => {
                    let here: Vec<SequenceId> = asked.keys().copied().filter(|id| !model.ended.contains_key(id)).collect();
                    if let Some(&id) = here.get(nth) {
                        model.scheduler.remove(id);
                        asked.remove(&id);
                        model.scheduler.check();
                    }
                }
                Act::Fail => {
                    let batch = model.next_batch();
                    // Part of it may have been written.
                    batch.copies.iter().for_each(|copy| model.pool[copy.to as usize * PAGE] = None);
                    batch.decodes.iter().for_each(|decode| model.write(decode.sequence, decode.position, None));
                    for id in model.scheduler.failed(&batch) {
                        asked.remove(&id);
                    }
                    model.scheduler.check();
                }
                Act::Steps(n) => (0..n).for_each(|_| _ = model.step()),
            }
        }
        model.run_to_the_end();
        prop_assert_eq!(model.ended.keys().filter(|id| asked.contains_key(id)).count(), asked.len());
        for (id, (prompt, answer)) in asked {
            prop_assert_eq!(&model.ended[&id], &alone(&prompt, answer), "{:?}", id);
        }
    }

    /// Pages that are found hold what was learnt of them.
    #[test]
    fn the_tree_finds_what_it_was_told(lengths in proptest::collection::vec((1u32..4, 1usize..400), 1..12)) {
        let mut pool = PagePool::new(12, PAGE);
        let mut holds: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (seed, length) in lengths {
            let tokens = prompt(seed, length);
            let mut found = pool.find(&tokens, Reuse::Any, true);
            for (page, block) in found.pages.iter().zip(tokens.chunks(PAGE)) {
                prop_assert_eq!(&holds[page][..], block);
            }
            if let Some(part) = found.part {
                let begin = found.pages.len() * PAGE;
                prop_assert_eq!(&holds[&part.page][..part.positions], &tokens[begin..begin + part.positions]);
                pool.copied(&part);
            }
            while found.pages.len() < length.div_ceil(PAGE) {
                let Some(page) = pool.take() else { break };
                let begin = found.pages.len() * PAGE;
                holds.insert(page, tokens[begin..length.min(begin + PAGE)].to_vec());
                found.pages.push(page);
            }
            let known = length.min(found.pages.len() * PAGE);
            pool.learn(&mut found.place, &found.pages, &tokens[..known], 0, true);
            pool.release(&found.pages);
            pool.check();
            prop_assert_eq!(pool.held(), 0);
        }
    }
}
