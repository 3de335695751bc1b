//! Plans the next step: which tokens of which sequences run. It uses no device and no clock, so
//! that it can be tested alone.
//!
//! A batch has one token of every decoding sequence and a prefill chunk of one prompt, in a
//! mixed batch or in a step of its own; prompts take turns. Sequences are admitted in order
//! of arrival when there are pages for all of their tokens. When pages run out, the
//! youngest sequence is preempted and later recomputed, before any that arrived after it,
//! so the oldest always progresses.

mod admission;
mod decode_rows;
mod drafts;

use super::batch::{Batch, Borrowed, Decode, Load, PrefillChunk, SchedulerConfig};
use super::pages::{PagePool, PartialPage, Swap};
use super::prefix_log::PrefixEvent;
use super::prefix_node::{PrefixNode, root_of};
use super::reuse::{BLOCK, Reuse};
use super::sequence::{Sequence, SequenceId, SequenceOptions};
use crate::engine::{PageCopy, Pages, StateCopy};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the end of the whole blocks that the prefix tree knew at admission; a state snapshot is
/// taken there, as other sequences share that prefix.
fn branch_point(s: &Sequence) -> usize {
    s.matched / BLOCK * BLOCK
}

/// Returns the source of a copy, which is retained until the copy is made.
fn copy_source(copy: &PageCopy) -> PartialPage {
    PartialPage {
        page: copy.from,
        window: copy.windows.map(|windows| windows[0]),
        positions: 0,
    }
}

/// Sequences and the page pool that they share.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    pool: PagePool,
    /// Sequences without pages, in order of arrival.
    waiting: BTreeMap<SequenceId, Sequence>,
    /// Sequences with pages, in order of arrival: the last is the youngest.
    running: BTreeMap<SequenceId, Sequence>,
    /// Copies to make before the next step, and pages retained for the step in flight.
    copies: Vec<PageCopy>,
    states: Vec<StateCopy>,
    held: HeldPages,
    /// Pages of the pool, and of the window pool, that may hold NaN or infinity.
    distrusted: [BTreeSet<u32>; 2],
    turns: u64,
    last_id: u64,
    preempted: u64,
}

/// Pages and states that an in-flight step reads, retained until [`Scheduler::release_in_flight`]
/// even if its sequences end.
#[derive(Debug, Default)]
struct HeldPages {
    pages: Vec<u32>,
    /// Pages with their sliding-window pages.
    windows: Vec<[u32; 2]>,
    /// Rows of recurrent states.
    states: Vec<u32>,
}

impl Scheduler {
    /// Creates a scheduler without sequences.
    pub fn new(config: SchedulerConfig) -> Scheduler {
        Scheduler {
            config,
            pool: PagePool::new(config.pages, config.page_size, config.host_slots)
                .with_windows(config.window_pool)
                .with_states(config.state_rows),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            copies: Vec::new(),
            states: Vec::new(),
            held: HeldPages::default(),
            distrusted: Default::default(),
            turns: 0,
            last_id: 0,
            preempted: 0,
        }
    }
    /// Queues a sequence with this prompt, of at least one token.
    pub fn add(&mut self, prompt: Vec<u32>, options: SequenceOptions) -> SequenceId {
        self.last_id += 1;
        let id = SequenceId(self.last_id);
        let prompt_tokens = prompt.len();
        let SequenceOptions {
            reuse,
            batch_invariant,
            adapters,
            speculates,
            hidden,
        } = options;
        let reuse = if batch_invariant { Reuse::Exact } else { reuse };
        let sequence = Sequence {
            id,
            tokens: prompt,
            prompt: prompt_tokens,
            computed: 0,
            exact: 0,
            reuse,
            batch_invariant,
            adapters,
            speculates,
            hidden,
            exact_blocks: false,
            pages: Vec::new(),
            windows: Default::default(),
            state: None,
            matched: 0,
            node: PrefixNode::new(0, root_of(&adapters)),
            reused: None,
            turn: 0,
        };
        self.waiting.insert(id, sequence);
        id
    }
    fn find(&self, id: SequenceId) -> Option<&Sequence> {
        self.running.get(&id).or_else(|| self.waiting.get(&id))
    }
    fn find_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        self.running
            .get_mut(&id)
            .or_else(|| self.waiting.get_mut(&id))
    }
    /// Returns the tokens of a sequence; empty if it was removed.
    pub fn tokens(&self, id: SequenceId) -> &[u32] {
        self.find(id).map_or(&[], |s| &s.tokens)
    }
    /// Returns whether the hidden row of a sequence's last token is read.
    pub(super) fn reads_hidden(&self, id: SequenceId) -> bool {
        self.find(id).is_some_and(|s| s.hidden)
    }
    /// Returns the pages of a sequence up to that position.
    pub fn pages(&self, id: SequenceId, position: usize) -> Pages<'_> {
        let Some(s) = self.find(id) else {
            return Pages::default();
        };
        let to = |numbers: &'_ Vec<u32>| numbers.len().min(position / self.config.page_size + 1);
        let windows = &s.windows.numbers[..to(&s.windows.numbers)];
        Pages {
            all: &s.pages[..to(&s.pages)],
            windows,
            state: s.state.unwrap_or(0),
            adapters: s.adapters,
        }
    }
    /// Returns the prompt tokens reused at the first admission; `None` before it.
    pub fn reused_tokens(&self, id: SequenceId) -> Option<usize> {
        self.find(id)?.reused
    }
    /// Returns the number of tokens of a sequence that were run or reused.
    pub fn computed(&self, id: SequenceId) -> usize {
        self.find(id).map_or(0, |s| s.computed)
    }
    /// Appends the token chosen after a sequence's last one.
    pub fn push(&mut self, id: SequenceId, token: u32) {
        if let Some(sequence) = self.find_mut(id) {
            sequence.tokens.push(token);
        }
        self.trust(id);
    }
    /// Trusts the whole pages of a sequence after a token was chosen for it: its logits were
    /// finite, and so are all rows that they depend on.
    fn trust(&mut self, id: SequenceId) {
        let [distrusted, distrusted_windows] = &mut self.distrusted;
        let Some(s) = self
            .running
            .get(&id)
            .filter(|_| !(distrusted.is_empty() && distrusted_windows.is_empty()))
        else {
            return;
        };
        let whole = s.computed / self.config.page_size;
        s.pages
            .iter()
            .take(whole)
            .for_each(|page| _ = distrusted.remove(page));
        let windows = s.windows.numbers.iter().take(whole).skip(s.windows.first);
        windows.for_each(|number| _ = distrusted_windows.remove(number));
    }
    /// Distrusts the pages of a sequence: they may hold NaN or infinity.
    fn distrust(&mut self, id: SequenceId) {
        let Some(s) = self.running.get(&id) else {
            return;
        };
        self.distrusted[0].extend(&s.pages);
        self.distrusted[1].extend(s.windows.numbers.get(s.windows.first..).unwrap_or_default());
    }
    /// Removes a sequence and releases its pages; computed rows stay in the prefix cache.
    pub fn remove(&mut self, id: SequenceId) {
        // A prompt that was cancelled has had no logits checked.
        if self
            .running
            .get(&id)
            .is_some_and(|s| s.tokens.len() == s.prompt)
        {
            self.distrust(id);
        }
        if let Some(sequence) = self.running.remove(&id) {
            self.release(sequence);
        }
        self.waiting.remove(&id);
    }
    /// Ends the sequences of a failed batch and discards their rows. Returns the sequences.
    pub fn fail_batch(&mut self, batch: &Batch) -> Vec<SequenceId> {
        self.finish_copies(batch);
        batch
            .snapshot
            .iter()
            .for_each(|copy| self.pool.release_state(copy.to));
        self.pool.invalidate_swaps(&batch.swaps);
        let decodes = batch.decodes.iter().map(|d| d.sequence);
        let all: Vec<SequenceId> = decodes
            .chain(batch.chunk.iter().map(|p| p.sequence))
            .collect();
        all.iter().for_each(|&id| self.discard(id));
        // Sequences that wait for a copy that was not made are ended too.
        let back =
            |of: &Swap, s: &Sequence| matches!(of, Swap::In { page, .. } if s.pages.contains(page));
        let made = |s: &Sequence| {
            let copied = batch.copies.iter().all(|copy| !s.pages.contains(&copy.to))
                && batch.states.iter().all(|copy| s.state != Some(copy.to));
            copied && !batch.swaps.iter().any(|of| back(of, s))
        };
        let others: Vec<SequenceId> = self
            .running
            .values()
            .filter(|s| !made(s))
            .map(|s| s.id)
            .collect();
        others.iter().for_each(|&id| self.discard(id));
        all.into_iter().chain(others).collect()
    }
    /// Removes a sequence and removes its pages from the prefix tree.
    pub fn discard(&mut self, id: SequenceId) {
        let pages = self.find(id).map(|s| s.pages.clone()).unwrap_or_default();
        self.distrust(id);
        if let Some(sequence) = self.find_mut(id) {
            sequence.computed = 0;
        }
        self.pool.invalidate(&pages);
        self.remove(id);
    }
    /// Releases a sequence's pages and resets its progress.
    fn release(&mut self, mut sequence: Sequence) -> Sequence {
        let Sequence {
            node,
            pages,
            windows,
            state,
            tokens,
            computed,
            exact,
            ..
        } = &mut sequence;
        // A page with a pending copy was retained for that copy, and holds no rows
        // of this sequence yet.
        let (own, others): (Vec<_>, Vec<_>) = self
            .copies
            .iter()
            .partition(|copy| pages.contains(&copy.to));
        self.copies = others;
        own.iter()
            .for_each(|copy| self.pool.release_partial(&copy_source(copy)));
        let whole = if own.is_empty() {
            *computed
        } else {
            *computed / self.config.page_size * self.config.page_size
        };
        if whole > 0 {
            self.pool
                .insert(node, pages, &tokens[..whole], *exact, true);
        }
        self.pool.release_windows(windows, pages);
        if let Some(row) = state.take() {
            self.release_state(row, node, &tokens[..*computed], *exact == *computed);
        }
        self.pool.release(pages);
        pages.clear();
        let root = PrefixNode::new(0, root_of(&sequence.adapters));
        (sequence.computed, sequence.exact, sequence.node) = (0, 0, root);
        sequence
    }
    /// Releases a sequence's state row as the snapshot after `computed`; `node` is the node of
    /// the last whole page.
    fn release_state(&mut self, row: u32, node: &PrefixNode, computed: &[u32], exact: bool) {
        // A row that is the target of a pending copy holds no state of this sequence yet.
        match self.states.iter().position(|copy| copy.to == row) {
            Some(at) => {
                self.pool.release_state(self.states[at].from);
                self.states.swap_remove(at);
                self.pool.release_state(row);
            }
            None => self.pool.release_as_snapshot(row, node, computed, exact),
        }
    }
    /// Releases the sources of a batch's copies, made or not.
    fn finish_copies(&mut self, batch: &Batch) {
        batch
            .copies
            .iter()
            .for_each(|copy| self.pool.release_partial(&copy_source(copy)));
        batch
            .states
            .iter()
            .for_each(|copy| self.pool.release_state(copy.from));
    }
    /// Preempts a running sequence without a snapshot of its state, which is unknown. It is
    /// admitted again with the rows in the prefix cache.
    pub fn requeue(&mut self, id: SequenceId) {
        if let Some(row) = self.find_mut(id).and_then(|s| s.state.take()) {
            self.pool.release_state(row);
        }
        self.preempt(id);
    }
    /// Returns whether another sequence could be admitted without waiting.
    pub fn has_room(&self) -> bool {
        self.waiting.is_empty() && self.running.len() < self.config.max_sequences
    }
    /// Returns whether there are no sequences.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }
    /// Borrows pages for `tokens` tokens that belong to no sequence and run in steps of at most
    /// `most`. `None` if there are too few now. Return them with [`Scheduler::return_borrowed`].
    pub fn borrow(&mut self, tokens: usize, most: usize) -> Option<Borrowed> {
        let pages = tokens.div_ceil(self.config.page_size);
        if pages > self.pool.free() {
            return None;
        }
        let state = self.pool.take_state();
        if state.is_none() && self.config.state_rows > 0 {
            return None;
        }
        let Some(windows) = self.pool.borrow_windows(pages, most) else {
            state.iter().for_each(|&row| self.pool.release_state(row));
            return None;
        };
        let mut all = Vec::with_capacity(pages);
        for _ in 0..pages {
            all.push(self.pool.take(all.last().copied())?);
        }
        let pages = all;
        Some(Borrowed {
            pages,
            windows,
            state,
        })
    }
    /// Returns a scheduler without sequences that distrusts every page used by this one.
    pub fn emptied(&self) -> Scheduler {
        let [mut pages, mut windows] = self.distrusted.clone();
        pages.extend(self.pool.used());
        windows.extend(self.pool.used_windows());
        let mut emptied = Scheduler {
            distrusted: [pages, windows],
            ..Scheduler::new(self.config)
        };
        if self.pool.is_watched() {
            emptied.pool.watch_prefixes(true);
        }
        emptied
    }
    /// Records changes of the prefix cache from now on.
    pub fn watch_prefixes(&mut self) {
        self.pool.watch_prefixes(false);
    }
    /// Takes the recorded changes of the prefix cache.
    pub fn take_prefix_events(&mut self) -> Vec<PrefixEvent> {
        self.pool.take_prefix_events()
    }
    /// Takes the free pages that may hold NaN or infinity, to be cleared: of the pool, then of the
    /// window pool. Steps are not contiguous while others are left.
    pub fn take_distrusted(&mut self) -> [Vec<u32>; 2] {
        if !self.has_distrusted() {
            return Default::default();
        }
        let pool = &self.pool;
        let [pages, windows] = &mut self.distrusted;
        let free = [
            pages
                .iter()
                .copied()
                .filter(|&page| pool.is_free(page))
                .collect::<Vec<u32>>(),
            windows
                .iter()
                .copied()
                .filter(|&page| pool.is_window_free(page))
                .collect(),
        ];
        pages.retain(|&page| !pool.is_free(page));
        windows.retain(|&page| !pool.is_window_free(page));
        free
    }
    /// Returns whether there are pages that may hold NaN or infinity.
    pub fn has_distrusted(&self) -> bool {
        self.distrusted.iter().any(|pages| !pages.is_empty())
    }
    /// Returns whether at most one sequence has pages, and may read them without a block table.
    /// Sequences with exact reuse always use the block table: the two kinds of kernels sum in
    /// different orders, and the location of pages must not change the text.
    pub fn is_contiguous(&self) -> bool {
        self.running.len() <= 1 && self.running.values().all(|s| s.reuse == Reuse::Any)
    }
    /// Removes the targets of failed swaps from the prefix tree.
    pub fn invalidate_swaps(&mut self, moves: &[Swap]) {
        self.pool.invalidate_swaps(moves);
    }
    /// Takes the swaps that must run before borrowed pages are used.
    pub fn take_swaps(&mut self) -> Vec<Swap> {
        self.pool.take_swaps()
    }
    /// Releases borrowed pages. Their rows may hold NaN or infinity.
    pub fn return_borrowed(&mut self, borrowed: &Borrowed) {
        self.distrusted[0].extend(&borrowed.pages);
        self.distrusted[1].extend(&borrowed.windows);
        self.pool.release(&borrowed.pages);
        self.pool.return_windows(&borrowed.windows);
        borrowed
            .state
            .iter()
            .for_each(|&row| self.pool.release_state(row));
    }
    /// Returns the current load.
    pub fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            pages: self.pool.held(),
            total_pages: self.pool.total(),
            cached_pages: self.pool.cached(),
            cached_window_pages: self.pool.cached_windows(),
            cached_states: self.pool.cached_states(),
            host_pages: self.pool.host_pages(),
            leaked: self.is_idle().then(|| self.pool.total_held()),
            tokens: self.running.values().map(|s| s.computed).sum(),
            preempted: self.preempted,
        }
    }
    /// Plans the next batch. `beside` bounds the prefill chunk if there are decode rows. Report the
    /// batch to [`Scheduler::finish_batch`] before calling this again.
    pub fn next_batch(&mut self, beside: usize) -> Batch {
        self.admit();
        let decodes = self.decode_rows();
        self.extend_resumed();
        // At least a block: the tokens after a prompt's last whole block run in one step whatever
        // else is in the batch, as other kinds of steps sum in another order.
        let beside = beside.max(BLOCK).min(self.config.max_chunk);
        let chunk = self.next_chunk(if decodes.is_empty() {
            self.config.max_chunk
        } else {
            beside
        });
        let batch_invariant = decodes.iter().any(|d| self.is_batch_invariant(d.sequence));
        // A chunk writes the same KV cache in either kind of step; its logits, and
        // the other rows, differ.
        let apart =
            |chunk: &PrefillChunk| chunk.needs_logits && self.is_batch_invariant(chunk.sequence);
        let mixed = self.config.mixed
            && !decodes.is_empty()
            && !batch_invariant
            && chunk.as_ref().is_some_and(|chunk| !apart(chunk));
        let snapshot = chunk.as_ref().and_then(|chunk| self.snapshot(chunk));
        let (copies, states) = (
            std::mem::take(&mut self.copies),
            std::mem::take(&mut self.states),
        );
        Batch {
            swaps: self.pool.take_swaps(),
            copies,
            states,
            decodes,
            drafts: Vec::new(),
            chunk,
            snapshot,
            batch_invariant,
            verifies: false,
            mixed,
        }
    }
    fn is_batch_invariant(&self, id: SequenceId) -> bool {
        self.find(id).is_some_and(|s| s.batch_invariant)
    }
    /// Plans the batch after one in flight, for those of its sequences that continue. Their tokens
    /// are not known yet. `goes_on` returns whether a sequence may have a token at a position.
    ///
    /// `None` if the next batch depends on the result of that one.
    pub fn next_in_flight(
        &mut self,
        batch: &Batch,
        goes_on: &mut dyn FnMut(SequenceId, usize) -> bool,
    ) -> Option<Batch> {
        let admits = !self.waiting.is_empty() && self.running.len() < self.config.max_sequences;
        let all = self.running.keys().all(|&id| {
            batch
                .row(id)
                .is_some_and(|row| batch.decodes[row].needs_logits)
        });
        if batch.chunk.is_some() || admits || !all {
            return None;
        }
        let mut decodes = Vec::new();
        for &Decode {
            sequence, position, ..
        } in &batch.decodes
        {
            let next = position + 1;
            let Some(s) = self.running.get_mut(&sequence) else {
                continue;
            };
            if !goes_on(sequence, next) {
                continue;
            }
            if next / self.config.page_size >= s.pages.len() {
                s.pages
                    .push(self.pool.take_without_swap(s.pages.last().copied())?);
            }
            self.pool.ensure_windows(&mut s.windows, &s.pages, next + 1);
            decodes.push(Decode {
                sequence,
                position: next,
                needs_logits: true,
            });
        }
        let batch_invariant = decodes.iter().any(|d| self.is_batch_invariant(d.sequence));
        let batch = Batch {
            decodes,
            batch_invariant,
            ..Batch::default()
        };
        (!batch.is_empty()).then_some(batch)
    }
    /// Retains the pages and states that an in-flight batch reads until
    /// [`Scheduler::release_in_flight`], since its sequences may end before.
    pub fn hold_in_flight(&mut self, batch: &Batch) {
        for &Decode {
            sequence, position, ..
        } in &batch.decodes
        {
            let Some(s) = self.running.get(&sequence) else {
                continue;
            };
            s.pages.iter().for_each(|&page| self.pool.retain(page));
            self.held.pages.extend(&s.pages);
            self.held
                .windows
                .extend(self.pool.retain_visible(&s.windows, &s.pages, position));
            s.state.iter().for_each(|&row| self.pool.retain_state(row));
            self.held.states.extend(s.state);
        }
    }
    /// Releases everything that was retained for an in-flight batch.
    pub fn release_in_flight(&mut self) {
        let HeldPages {
            pages,
            windows,
            states,
        } = std::mem::take(&mut self.held);
        windows
            .into_iter()
            .for_each(|[page, number]| self.pool.release_window(page, number, true));
        states
            .into_iter()
            .for_each(|row| self.pool.release_state(row));
        self.pool.release(&pages);
    }
    /// Returns the position of the next token to run; `None` if all tokens were run, or the
    /// sequence has no pages.
    pub fn next_position(&self, id: SequenceId) -> Option<usize> {
        let running = self.running.get(&id)?;
        (running.computed < running.tokens.len()).then_some(running.computed)
    }
    /// Records that a batch has run.
    pub fn finish_batch(&mut self, batch: &Batch) {
        self.finish_copies(batch);
        for decode in &batch.decodes {
            self.advance(decode.sequence, decode.position + 1, false);
        }
        if let Some(chunk) = &batch.chunk {
            self.advance(chunk.sequence, chunk.tokens.end, chunk.exact);
            batch
                .snapshot
                .iter()
                .for_each(|copy| self.store_snapshot(copy, chunk));
        }
    }
    /// Stores the state snapshot that was copied after a chunk.
    fn store_snapshot(&mut self, copy: &StateCopy, chunk: &PrefillChunk) {
        let Some(s) = self.running.get(&chunk.sequence) else {
            return self.pool.release_state(copy.to);
        };
        self.pool.release_as_snapshot(
            copy.to,
            &s.node,
            &s.tokens[..s.computed],
            s.exact == s.computed,
        );
    }
    fn advance(&mut self, id: SequenceId, end: usize, exact: bool) {
        let Some(sequence) = self.running.get_mut(&id) else {
            return;
        };
        if exact && sequence.exact == sequence.computed {
            sequence.exact = end;
        }
        sequence.computed = end;
        let Sequence {
            node,
            pages,
            windows,
            matched: known,
            tokens,
            computed,
            exact,
            prompt,
            ..
        } = sequence;
        // The same prompt will be continued at its end.
        let part = *computed == *prompt;
        self.pool
            .insert(node, pages, &tokens[..*computed], *exact, part);
        self.pool.release_past_windows(
            windows,
            pages,
            *computed,
            &[*prompt, (*prompt - 1) / BLOCK * BLOCK, *known],
        );
    }
    /// Preempts a sequence: releases its pages and queues it again in order of arrival.
    fn preempt(&mut self, id: SequenceId) {
        let Some(sequence) = self.running.remove(&id) else {
            return;
        };
        let sequence = self.release(sequence);
        self.waiting.insert(id, sequence);
        self.preempted += 1;
    }
    /// Returns a chunk of the prompt that has waited longest since its last turn.
    fn next_chunk(&mut self, most: usize) -> Option<PrefillChunk> {
        let states = self.config.state_rows > 0;
        let left = |s: &&mut Sequence| !s.decodes() && s.computed < s.prefill_end();
        let sequence = self
            .running
            .values_mut()
            .filter(left)
            .min_by_key(|s| s.turn)?;
        self.turns += 1;
        sequence.turn = self.turns;
        let (begin, end) = (sequence.computed, sequence.prefill_end());
        // The last tokens are never part of an exact block, so that a later
        // chunk produces the logits.
        let border = (sequence.prompt - 1) / BLOCK * BLOCK;
        let exact = sequence.exact_blocks && begin < border && sequence.exact == begin;
        // Exact chunks end at a block boundary, so that a sequence that reuses them continues
        // with the same chunks.
        let whole = Some((begin + most) / BLOCK * BLOCK).filter(|&whole| exact && whole > begin);
        let end = if exact { border } else { end }.min(whole.unwrap_or(begin + most));
        // A recurrent state cannot be truncated, so a chunk ends where a snapshot is taken.
        let end = [border, branch_point(sequence)]
            .into_iter()
            .filter(|&at| states && at > begin)
            .fold(end, usize::min);
        let ends = end == sequence.tokens.len();
        let page = self.config.page_size;
        assert!(
            end <= sequence.pages.len() * page,
            "a sequence is admitted with pages for its tokens"
        );
        self.pool
            .ensure_windows(&mut sequence.windows, &sequence.pages, end);
        Some(PrefillChunk {
            sequence: sequence.id,
            tokens: begin..end,
            exact,
            needs_logits: ends,
        })
    }
    /// Returns the snapshot to copy after a chunk: at the end of a prompt's exact blocks, for the
    /// same prompt, and at the branch point of other sequences.
    fn snapshot(&mut self, chunk: &PrefillChunk) -> Option<StateCopy> {
        let s = self.running.get(&chunk.sequence)?;
        let border = (s.prompt - 1) / BLOCK * BLOCK;
        let from = s
            .state
            .filter(|_| [border, branch_point(s)].contains(&chunk.tokens.end))?;
        Some(StateCopy {
            from,
            to: self.pool.take_state()?,
        })
    }
    /// Checks the invariants that hold between steps.
    #[cfg(test)]
    pub fn check(&self) {
        self.pool.check();
        let mut held = std::collections::BTreeMap::new();
        let of_sequences = self
            .running
            .values()
            .flat_map(|s| &s.pages)
            .chain(self.copies.iter().map(|copy| &copy.from));
        let of_sequences = of_sequences.chain(&self.held.pages);
        of_sequences.for_each(|page| *held.entry(*page).or_insert(0) += 1);
        assert_eq!(
            held.len(),
            self.pool.held(),
            "pages that nobody has and that are not free"
        );
        let of_sequences = self
            .running
            .values()
            .flat_map(|s| s.windows.numbers[s.windows.first..].iter().copied());
        let windows = of_sequences.chain(
            self.copies
                .iter()
                .filter_map(|copy| copy.windows.map(|windows| windows[0])),
        );
        let windows = windows.chain(self.held.windows.iter().map(|of| of[1]));
        let windows: std::collections::BTreeSet<u32> = windows.collect();
        assert_eq!(
            windows.len(),
            self.pool.held_windows(),
            "windows that nobody has and that are not free"
        );
        let rows = self
            .running
            .values()
            .filter_map(|s| s.state)
            .chain(self.states.iter().map(|copy| copy.from));
        let rows: std::collections::BTreeSet<u32> =
            rows.chain(self.held.states.iter().copied()).collect();
        assert_eq!(
            rows.len(),
            self.pool.held_states(),
            "rows of states that nobody has and that are not free"
        );
        assert!(
            self.waiting
                .values()
                .all(|s| s.pages.is_empty() && s.windows.numbers.is_empty() && s.state.is_none())
        );
        assert!(self.running.len() <= self.config.max_sequences);
    }
}
