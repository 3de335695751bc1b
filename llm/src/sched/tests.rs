//! Scheduler tests with a simulated executor, which records the token in each pool row and the rows
//! that each step reads.

mod properties;

use super::reuse::{BLOCK, Reuse};
use super::{Batch, Decode, Scheduler, SchedulerConfig, SequenceId, SequenceOptions, Swap};
use crate::arch::Pools;
use crate::engine::StateCopy;
use std::collections::BTreeMap;

const PAGE: usize = 64;

/// Content of a pool row: the token, and how it was computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cell {
    token: u32,
    exact: bool,
}

/// A model that computes each next token from the content of the simulated pool.
struct Model {
    scheduler: Scheduler,
    pool: Vec<Option<Cell>>,
    /// Content of the window pool, and window length, if there is one.
    windows: Vec<Option<Cell>>,
    seen: Option<usize>,
    /// Rows of recurrent states as the list of cells they have seen; empty if the model has none.
    states: Vec<Option<Vec<Cell>>>,
    /// Slots of the host KV cache.
    host: Vec<Vec<Option<Cell>>>,
    /// For each sequence: its final length, its options, and the length of its prompt.
    wanted: BTreeMap<SequenceId, (usize, SequenceOptions, usize)>,
    ended: BTreeMap<SequenceId, Vec<u32>>,
    most: usize,
    /// Maximum tokens of a chunk with decode rows; changes from step to step.
    beside: Vec<usize>,
    steps: usize,
    /// Asynchronous scheduling, and the step in flight with its chosen tokens.
    ahead: bool,
    under_way: Option<(Batch, Vec<u32>)>,
}

/// Resources in addition to the page pool.
#[derive(Clone, Copy, Default)]
struct Besides {
    /// Window length of a pool with exactly as many pages as the sequences can hold at once.
    seen: Option<usize>,
    /// Slots of the host KV cache.
    slots: usize,
    /// Rows of recurrent states in addition to one for each sequence, if the model has any.
    copies: Option<usize>,
}

/// Returns the token after these.
fn next(tokens: &[u32]) -> u32 {
    tokens.iter().fold(17u32, |hash, &token| {
        hash.wrapping_mul(31).wrapping_add(token)
    }) % 5
}

/// Returns the answer that a prompt has alone.
fn alone(prompt: &[u32], answer: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    (0..answer).for_each(|_| tokens.push(next(&tokens)));
    tokens
}

impl Model {
    fn new(pages: usize, sequences: usize) -> Model {
        Model::with(pages, sequences, Besides::default())
    }
    fn with_windows(pages: usize, sequences: usize, seen: usize) -> Model {
        Model::with(
            pages,
            sequences,
            Besides {
                seen: Some(seen),
                ..Besides::default()
            },
        )
    }
    fn with_host(pages: usize, sequences: usize, slots: usize) -> Model {
        Model::with(
            pages,
            sequences,
            Besides {
                slots,
                ..Besides::default()
            },
        )
    }
    fn with_states(pages: usize, sequences: usize, copies: usize) -> Model {
        Model::with(
            pages,
            sequences,
            Besides {
                copies: Some(copies),
                ..Besides::default()
            },
        )
    }
    fn with(
        pages: usize,
        sequences: usize,
        Besides {
            seen,
            slots,
            copies,
        }: Besides,
    ) -> Model {
        let of = |seen| sequences * (Pools::blocks(seen, 1) + 1) + Pools::blocks(seen, 96);
        let windows = seen.map(|seen| [of(seen), seen]);
        let (chunk, mixed) = (96, seen.is_none() && copies.is_none());
        let states = copies.map_or(0, |copies| sequences + copies);
        let config = SchedulerConfig {
            pages,
            page_size: PAGE,
            window_pool: windows,
            state_rows: states,
            host_slots: slots,
            max_sequences: sequences,
            max_chunk: chunk,
            mixed,
        };
        let mut scheduler = Scheduler::new(config);
        scheduler.watch_prefixes();
        Model {
            scheduler,
            pool: vec![None; pages * PAGE],
            windows: vec![None; windows.map_or(0, |[windows, _]| windows * PAGE)],
            seen,
            states: vec![None; states],
            host: vec![Vec::new(); slots],
            wanted: BTreeMap::new(),
            ended: BTreeMap::new(),
            most: sequences,
            beside: vec![48],
            steps: 0,
            ahead: false,
            under_way: None,
        }
    }
    fn add(&mut self, prompt: Vec<u32>, answer: usize, reuse: Reuse) -> SequenceId {
        self.add_with(
            prompt,
            answer,
            SequenceOptions {
                reuse,
                ..SequenceOptions::default()
            },
        )
    }
    fn add_with(
        &mut self,
        prompt: Vec<u32>,
        answer: usize,
        options: SequenceOptions,
    ) -> SequenceId {
        let (all, length) = (prompt.len() + answer, prompt.len());
        let id = self.scheduler.add(prompt, options);
        self.wanted.insert(id, (all, options, length));
        id
    }
    /// Returns whether a sequence may reuse exact rows alone.
    fn is_exact(&self, id: SequenceId) -> bool {
        let options = self.wanted[&id].1;
        options.batch_invariant || options.reuse == Reuse::Exact
    }
    fn slot(&self, id: SequenceId, position: usize) -> usize {
        let pages = self.scheduler.pages(id, position).all;
        assert_eq!(
            pages.len(),
            position / PAGE + 1,
            "a page for position {position}"
        );
        pages[position / PAGE] as usize * PAGE + position % PAGE
    }
    /// Returns the row of a position in the window pool.
    fn window_slot(&self, id: SequenceId, position: usize) -> usize {
        let pages = self.scheduler.pages(id, position).windows;
        assert_eq!(
            pages.len(),
            position / PAGE + 1,
            "a page of windows for position {position}"
        );
        pages[position / PAGE] as usize * PAGE + position % PAGE
    }
    /// Returns the first position that a token sees in sliding-window layers.
    fn first_seen(&self, position: usize) -> usize {
        self.seen
            .map_or(position + 1, |seen| (position + 1).saturating_sub(seen))
    }
    fn write(&mut self, id: SequenceId, position: usize, cell: Option<Cell>) {
        let slot = self.slot(id, position);
        self.pool[slot] = cell;
        if self.seen.is_some() {
            let slot = self.window_slot(id, position);
            self.windows[slot] = cell;
        }
    }
    /// Advances a sequence's recurrent state by the token at a position, and checks that it
    /// has seen all before.
    fn advance(&mut self, id: SequenceId, position: usize) {
        let rows: Vec<_> = (0..=position)
            .map(|at| self.pool[self.slot(id, at)])
            .collect();
        let Some(state) = self
            .states
            .get_mut(self.scheduler.pages(id, position).state as usize)
        else {
            return;
        };
        if position == 0 {
            *state = Some(Vec::new());
        }
        let state = state.as_mut().expect("states that are known");
        let before = rows[..position].iter().flatten().map(|cell| cell.token);
        assert!(
            state.iter().map(|cell| cell.token).eq(before),
            "the states of {id:?} at {position} have seen {}",
            state.len()
        );
        state.extend(rows[position]);
    }
    fn copy_state(&mut self, copy: &StateCopy) {
        assert!(
            self.states[copy.from as usize].is_some(),
            "what is copied is known"
        );
        self.states[copy.to as usize] = self.states[copy.from as usize].clone();
    }
    /// Runs a batch: writes its rows, and checks that each sequence sees its own tokens.
    fn run(&mut self, batch: &Batch) {
        for &of in &batch.swaps {
            let rows = |page: u32| page as usize * PAGE..(page as usize + 1) * PAGE;
            match of {
                Swap::Out { page, slot } => {
                    self.host[slot as usize] = self.pool[rows(page)].to_vec()
                }
                Swap::In { slot, page } => {
                    self.pool[rows(page)].copy_from_slice(&self.host[slot as usize])
                }
            }
        }
        for copy in &batch.copies {
            let [from, to] = [copy.from, copy.to].map(|page| page as usize * PAGE);
            self.pool.copy_within(from..from + PAGE, to);
            assert_eq!(copy.windows.is_some(), self.seen.is_some());
            if let Some(windows) = copy.windows {
                let [from, to] = windows.map(|page| page as usize * PAGE);
                self.windows.copy_within(from..from + PAGE, to);
            }
        }
        batch.states.iter().for_each(|copy| self.copy_state(copy));
        let chunks = batch
            .chunk
            .iter()
            .map(|p| (p.sequence, p.tokens.clone(), p.exact));
        let decodes = batch
            .decodes
            .iter()
            .map(|d| (d.sequence, d.position..d.position + 1, false));
        let all: Vec<_> = chunks.chain(decodes).collect();
        for (at, (id, ..)) in all.iter().enumerate() {
            assert!(
                all[..at].iter().all(|other| other.0 != *id),
                "{id:?} has one row in a batch"
            );
        }
        assert!(batch.decodes.len() <= self.most);
        self.check_mixed(batch);
        for (id, tokens, exact) in &all {
            for position in tokens.clone() {
                let token = self.scheduler.tokens(*id)[position];
                self.write(
                    *id,
                    position,
                    Some(Cell {
                        token,
                        exact: *exact,
                    }),
                );
                self.advance(*id, position);
            }
        }
        batch.snapshot.iter().for_each(|copy| self.copy_state(copy));
        for (id, tokens, _) in all {
            for position in 0..tokens.end {
                let found = self.pool[self.slot(id, position)];
                let own = self.scheduler.tokens(id)[position];
                assert_eq!(
                    found.map(|cell| cell.token),
                    Some(own),
                    "{id:?} at {position}"
                );
            }
            for position in self.first_seen(tokens.start)..tokens.end {
                let found = self
                    .seen
                    .and_then(|_| self.windows[self.window_slot(id, position)]);
                let own = self.seen.map(|_| self.scheduler.tokens(id)[position]);
                assert_eq!(
                    found.map(|cell| cell.token),
                    own,
                    "{id:?} at {position} of its window"
                );
            }
        }
        self.check_exact(batch);
    }
    /// Checks that a chunk and decodes are a mixed batch unless there are windows, states or
    /// a batch-invariant sequence.
    fn check_mixed(&self, batch: &Batch) {
        let invariant = |id| self.wanted[&id].1.batch_invariant;
        let any_invariant = batch.decodes.iter().any(|d| invariant(d.sequence));
        assert_eq!(batch.batch_invariant, any_invariant, "{batch:?}");
        let apart = batch
            .chunk
            .as_ref()
            .is_none_or(|chunk| chunk.needs_logits && invariant(chunk.sequence));
        let apart = apart || self.seen.is_some() || !self.states.is_empty();
        assert_eq!(
            batch.mixed,
            !batch.decodes.is_empty() && !any_invariant && !apart,
            "{batch:?}"
        );
    }
    /// Checks that sequences with exact reuse see rows computed as they would be alone.
    fn check_exact(&self, batch: &Batch) {
        for id in batch
            .sequences_with_logits()
            .filter(|&id| self.is_exact(id))
        {
            let tokens = self.scheduler.tokens(id).len();
            let prompt = self.wanted[&id].2;
            for position in 0..tokens {
                let cell = self.pool[self.slot(id, position)].expect("a computed row");
                let border = (prompt - 1) / BLOCK * BLOCK;
                assert_eq!(
                    cell.exact,
                    position < border,
                    "{id:?} at {position} of a prompt of {prompt}"
                );
                let state = self.states.get(self.scheduler.pages(id, 0).state as usize);
                assert!(
                    state.is_none_or(|state| state.as_ref().expect("states")[position] == cell),
                    "{id:?} at {position}"
                );
                if self.seen.is_some() && position >= self.first_seen(tokens - 1) {
                    assert_eq!(
                        self.windows[self.window_slot(id, position)],
                        Some(cell),
                        "{id:?} at {position}"
                    );
                }
            }
        }
    }
    fn next_batch(&mut self) -> Batch {
        let beside = self.beside[self.steps % self.beside.len()];
        self.steps += 1;
        let batch = self.scheduler.next_batch(beside);
        if let Some(chunk) = &batch.chunk {
            let most = if batch.decodes.is_empty() {
                96
            } else {
                beside.max(BLOCK)
            };
            assert!(chunk.tokens.len() <= most, "{batch:?}");
            let prompt = self.wanted[&chunk.sequence].2;
            let rest = (prompt - 1) / BLOCK * BLOCK..prompt;
            assert!(
                !self.is_exact(chunk.sequence) || chunk.exact || chunk.tokens == rest,
                "{batch:?}: the rest of {prompt} is whole"
            );
        }
        batch
    }
    /// Runs the decode rows of a batch as a device does, with tokens chosen by the batch `before`.
    /// Returns the next tokens.
    fn run_rows(&mut self, batch: &Batch, before: Option<(&Batch, &[u32])>) -> Vec<u32> {
        let row = |model: &mut Model, d: &Decode| {
            let known = model.scheduler.tokens(d.sequence).get(d.position).copied();
            let chosen = before.and_then(|(batch, told)| Some(told[batch.row(d.sequence)?]));
            let cell = Cell {
                token: known.or(chosen).expect("a token"),
                exact: false,
            };
            model.write(d.sequence, d.position, Some(cell));
            model.advance(d.sequence, d.position);
            let found = |at| model.pool[model.slot(d.sequence, at)];
            for at in model.first_seen(d.position)..=d.position {
                assert_eq!(
                    model.windows[model.window_slot(d.sequence, at)],
                    found(at),
                    "{:?} at {at}",
                    d.sequence
                );
            }
            let all = (0..=d.position).map(|at| found(at).expect("a row").token);
            next(&all.collect::<Vec<_>>())
        };
        batch.decodes.iter().map(|d| row(self, d)).collect()
    }
    /// Runs one step and starts the next one before it is read, as far as that is possible.
    fn step_ahead(&mut self) -> bool {
        let (batch, told) = match self.under_way.take() {
            Some(both) => both,
            None => {
                let batch = self.next_batch();
                let moved =
                    !(batch.copies.is_empty() && batch.states.is_empty() && batch.swaps.is_empty());
                if batch.chunk.is_some() || moved || batch.decodes.iter().any(|d| !d.needs_logits) {
                    return self.finish_step(&batch);
                }
                let told = self.run_rows(&batch, None);
                (batch, told)
            }
        };
        if batch.is_empty() {
            return false;
        }
        // Some sequences end unexpectedly.
        let Model {
            scheduler, wanted, ..
        } = self;
        let mut goes_on =
            |id: SequenceId, at: usize| at + 1 < wanted[&id].0 || id.0.is_multiple_of(2);
        let next = scheduler.next_in_flight(&batch, &mut goes_on);
        let next = next.map(|next| {
            let chosen = self.run_rows(&next, Some((&batch, &told)));
            (next, chosen)
        });
        self.scheduler.release_in_flight();
        if let Some((next, _)) = &next {
            self.scheduler.hold_in_flight(next);
        }
        let here = |d: &&Decode| self.scheduler.next_position(d.sequence) == Some(d.position);
        let alive: Vec<Decode> = batch.decodes.iter().filter(here).copied().collect();
        self.scheduler.finish_batch(&Batch {
            decodes: alive.clone(),
            ..Batch::default()
        });
        self.under_way = next;
        for d in alive {
            let row = batch
                .decodes
                .iter()
                .position(|other| *other == d)
                .expect("its row");
            self.goes_on(d.sequence, told[row]);
        }
        self.scheduler.check();
        self.drop_in_flight_if_idle();
        true
    }
    /// Drops the step in flight if there are no sequences.
    fn drop_in_flight_if_idle(&mut self) {
        if self.scheduler.is_idle() {
            self.under_way = None;
            self.scheduler.release_in_flight();
        }
    }
    /// Takes a chosen token for a sequence, which continues or ends.
    fn goes_on(&mut self, id: SequenceId, token: u32) {
        let tokens = self.scheduler.tokens(id).to_vec();
        match tokens.len() < self.wanted[&id].0 {
            true => self.scheduler.push(id, token),
            false => {
                self.scheduler.remove(id);
                self.ended.insert(id, tokens);
            }
        }
    }
    /// Runs one step. Returns whether there was any work.
    fn step(&mut self) -> bool {
        if self.ahead {
            return self.step_ahead();
        }
        let batch = self.next_batch();
        self.finish_step(&batch)
    }
    fn finish_step(&mut self, batch: &Batch) -> bool {
        if batch.is_empty() {
            return false;
        }
        self.run(batch);
        self.scheduler.finish_batch(batch);
        for id in batch.sequences_with_logits().collect::<Vec<_>>() {
            let token = next(self.scheduler.tokens(id));
            self.goes_on(id, token);
        }
        self.scheduler.check();
        true
    }
    fn run_to_the_end(&mut self) {
        let mut steps = 0;
        while !self.scheduler.is_idle() {
            assert!(
                self.step(),
                "somebody is here, and nothing is done: {:?}",
                self.scheduler.load()
            );
            steps += 1;
            assert!(steps < 100_000, "no end: {:?}", self.scheduler.load());
        }
        let load = self.scheduler.load();
        assert_eq!(
            (load.running, load.waiting, load.pages, load.tokens),
            (0, 0, 0, 0),
            "no sequence holds a page"
        );
        assert_eq!(
            load.leaked,
            Some(0),
            "no window page, state row or host slot leaks"
        );
    }
}

fn prompt(seed: u32, length: usize) -> Vec<u32> {
    // Few distinct tokens, so that prompts share prefixes.
    (0..length as u32)
        .map(|i| if i < 70 { i % 3 } else { (i * seed) % 5 })
        .collect()
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
    assert_eq!(model.scheduler.reused_tokens(again), Some(192));
    assert!(
        model.scheduler.load().pages <= 5,
        "{:?}",
        model.scheduler.load()
    );
    model.run_to_the_end();
    // With `Reuse::Any` rows of another sequence's answer are reused as well.
    let longer = alone(&asked, 5);
    let follows = model.add([&longer[..], &[1, 2, 3]].concat(), 5, Reuse::Any);
    model.step();
    assert_eq!(model.scheduler.reused_tokens(follows), Some(205));
    model.run_to_the_end();
}

#[test]
fn a_batch_is_invariant_while_a_sequence_asks_for_it() {
    let mut model = Model::new(16, 4);
    let other = model.add(prompt(1, 40), 20, Reuse::Exact);
    model.step();
    let options = SequenceOptions {
        batch_invariant: true,
        ..SequenceOptions::default()
    };
    let asks = model.add_with(prompt(3, 100), 5, options);
    let mut invariant = 0;
    while !model.ended.contains_key(&other) {
        let batch = model.next_batch();
        assert_eq!(batch.batch_invariant, batch.row(asks).is_some());
        invariant += usize::from(batch.batch_invariant);
        model.finish_step(&batch);
    }
    assert_eq!(invariant, 5, "decode steps of the one that asks");
}

#[test]
fn a_prefix_comes_back_from_the_host() {
    // A prompt and its answer take four of six pages; two others take all of them, so its whole
    // pages are swapped out meanwhile.
    let mut model = Model::with_host(6, 2, 8);
    let asked = prompt(3, 200);
    model.add(asked.clone(), 5, Reuse::Exact);
    model.run_to_the_end();
    let others = [(1, 300), (2, 320)].map(|(seed, length)| {
        let other: Vec<u32> = prompt(seed, length)
            .into_iter()
            .map(|token| (token + seed) % 5)
            .collect();
        model.add(other, 5, Reuse::Exact)
    });
    model.run_to_the_end();
    assert!(
        model.scheduler.load().host_pages > 0,
        "{:?} {others:?}",
        model.scheduler.load()
    );
    let again = model.add(asked.clone(), 5, Reuse::Exact);
    let batch = model.next_batch();
    assert!(
        batch.swaps.iter().any(|of| matches!(of, Swap::In { .. })),
        "{batch:?}"
    );
    model.finish_step(&batch);
    assert!(
        model.scheduler.reused_tokens(again) >= Some(128),
        "{:?}",
        model.scheduler.reused_tokens(again)
    );
    model.run_to_the_end();
    assert_eq!(model.ended[&again], alone(&asked, 5));
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
fn recompute_after_preemption_repeats_the_same_steps() {
    // The last sequence is preempted after its prefill; by then the third, with the same prefix,
    // has exact rows of that whole prompt.
    let mut model = Model::new(8, 3);
    model.beside = vec![1];
    model.add(prompt(1, 1), 1, Reuse::Any);
    model.add(prompt(1, 207), 50, Reuse::Any);
    model.add(prompt(1, 193), 24, Reuse::Any);
    model.add(prompt(3, 173), 20, Reuse::Exact);
    let last = model.add(prompt(3, 128), 21, Reuse::Exact);
    model.run_to_the_end();
    assert_eq!(model.ended[&last], alone(&prompt(3, 128), 21));
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
    assert!(
        !model.ended.contains_key(&long),
        "a long prompt keeps nobody waiting"
    );
    assert!(steps < 30, "{steps}");
    model.run_to_the_end();
}

/// Returns tokens that no other sequence has.
fn own(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| 5 + seed * 1000 + i).collect()
}

#[test]
fn a_continued_prompt_finds_the_windows_of_its_end() {
    let mut model = Model::with_windows(64, 2, 100);
    let asked = own(1, 1000);
    let first = model.add(asked.clone(), 40, Reuse::Any);
    model.run_to_the_end();
    // At its end, and at the end of its prompt: the window pages there were
    // released but not evicted.
    let answered = model.ended[&first].clone();
    let next = model.add([&answered[..], &own(2, 20)].concat(), 5, Reuse::Any);
    model.step();
    assert_eq!(model.scheduler.reused_tokens(next), Some(1040));
    model.run_to_the_end();
    let again = model.add(asked.clone(), 5, Reuse::Any);
    model.step();
    assert_eq!(model.scheduler.reused_tokens(again), Some(999));
    model.run_to_the_end();
    // Window pages at other positions are evicted first.
    let middle = model.add([&asked[..130], &own(3, 20)].concat(), 5, Reuse::Any);
    model.step();
    assert_eq!(model.scheduler.reused_tokens(middle), Some(0));
    model.run_to_the_end();
}

#[test]
fn a_branching_prompt_keeps_the_windows_for_others() {
    let mut model = Model::with_windows(64, 2, 64);
    let common = own(1, 64 * 5);
    let mut ask = |seed: u32| {
        // A long continuation, so that the shared prefix leaves the window.
        let id = model.add([&common[..], &own(seed, 600)].concat(), 2, Reuse::Any);
        model.step();
        let found = model.scheduler.reused_tokens(id);
        model.run_to_the_end();
        found
    };
    // The second recomputes the evicted window pages, which marks the branch point.
    assert_eq!([2, 3, 4].map(&mut ask), [Some(0), Some(0), Some(320)]);
}

#[test]
fn a_continued_prompt_finds_states_at_the_end_of_answers_or_exact_rows() {
    let mut model = Model::with_states(64, 2, 4);
    let asked = own(1, 1000);
    let first = model.add(asked.clone(), 40, Reuse::Exact);
    model.run_to_the_end();
    let answered = model.ended[&first].clone();
    let mut found = |prompt: Vec<u32>, reuse| {
        let id = model.add(prompt, 5, reuse);
        model.step();
        let found = model.scheduler.reused_tokens(id);
        model.run_to_the_end();
        found
    };
    assert_eq!(
        found([&answered[..], &own(2, 20)].concat(), Reuse::Any),
        Some(1040)
    );
    assert_eq!(
        [Reuse::Any, Reuse::Exact].map(|reuse| found(asked.clone(), reuse)),
        [Some(992); 2]
    );
    // The first sequence to branch off here marks the branch point, and the next one reuses it.
    let branches = |seed| [&asked[..330], &own(seed, 200)].concat();
    assert_eq!(
        [3, 4].map(|seed| found(branches(seed), Reuse::Any)),
        [Some(0), Some(320)]
    );
    // Those states are not exact; states of a sequence with exact reuse are.
    assert_eq!(
        [5, 6].map(|seed| found(branches(seed), Reuse::Exact)),
        [Some(0), Some(320)]
    );
}

#[test]
fn copies_of_states_give_way() {
    // One row more than two sequences need: it holds the latest snapshot, and no sequence waits.
    let mut model = Model::with_states(64, 2, 1);
    let ids = [1, 2, 3].map(|seed| model.add(own(seed, 200), 10, Reuse::Any));
    model.run_to_the_end();
    assert!(ids.iter().all(|id| model.ended.contains_key(id)));
    assert_eq!(model.scheduler.load().cached_states, 3);
    let borrowed = model
        .scheduler
        .borrow(100, 96)
        .expect("pages, and a row of states");
    assert_eq!(model.scheduler.load().cached_states, 2);
    model.scheduler.return_borrowed(&borrowed);
    model.scheduler.check();
}

#[test]
fn borrowed_pages_use_window_pages_as_a_ring() {
    let mut model = Model::with_windows(64, 2, 100);
    model.add(own(1, 300), 40, Reuse::Any);
    (0..20).for_each(|_| _ = model.step());
    let borrowed = model.scheduler.borrow(1000, 96).expect("pages");
    let windows = borrowed.pages().windows.to_vec();
    assert_eq!((borrowed.pages().all.len(), windows.len()), (16, 16));
    // No two positions that a step sees share a row.
    for begin in (0..1000usize).step_by(96) {
        let seen = begin.saturating_sub(99) / PAGE..(begin + 96).min(1000).div_ceil(PAGE);
        let mut of = windows[seen.clone()].to_vec();
        of.sort_unstable();
        of.dedup();
        assert_eq!(of.len(), seen.len(), "{begin}: {windows:?}");
    }
    model.scheduler.return_borrowed(&borrowed);
    model.scheduler.check();
    model.run_to_the_end();
}

#[test]
fn pages_held_without_sequences_count_as_leaked() {
    for (mut model, held) in [
        (Model::with_windows(64, 2, 100), 16 + Pools::blocks(100, 96)),
        (Model::with_host(20, 2, 8), 16),
    ] {
        model.add(own(1, 300), 40, Reuse::Any);
        assert_eq!(model.scheduler.load().leaked, None, "a sequence waits");
        model.step();
        assert_eq!(model.scheduler.load().leaked, None, "a sequence has pages");
        model.run_to_the_end();
        let borrowed = model.scheduler.borrow(1000, 96).expect("pages");
        // With a ring buffer of window pages for a step of 96 tokens.
        assert_eq!(model.scheduler.load().leaked, Some(held));
        model.scheduler.return_borrowed(&borrowed);
        assert_eq!(model.scheduler.load().leaked, Some(0));
    }
}
