//! Property tests of the scheduler over random events, and of the prefix tree.

use super::super::pages::PagePool;
use super::super::prefix_node::ROOT;
use super::super::reuse::Reuse;
use super::super::{Batch, Decode, PrefixEvent, SequenceId, SequenceOptions, Swap, prefix_hashes};
use super::{Besides, Model, PAGE, alone, prompt};
use crate::arch::AdapterScales;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// An event while sequences run.
#[derive(Clone, Debug)]
enum Act {
    Add {
        seed: u32,
        length: usize,
        answer: usize,
        exact: bool,
        invariant: bool,
    },
    Cancel(usize),
    /// The state of a sequence becomes unknown while no step is in flight.
    Again(usize),
    Fail,
    Steps(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let add = (
        1u32..4,
        1usize..300,
        1usize..90,
        any::<bool>(),
        any::<bool>(),
    );
    let add = add.prop_map(|(seed, length, answer, exact, invariant)| Act::Add {
        seed,
        length,
        answer,
        exact,
        invariant,
    });
    let act = prop_oneof![4 => add, 1 => (0usize..8).prop_map(Act::Cancel), 1 => (0usize..8).prop_map(Act::Again), 1 => Just(Act::Fail), 4 => (1usize..12).prop_map(Act::Steps)];
    proptest::collection::vec(act, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    /// For any sequence of events every answer equals that of its prompt alone, each ends,
    /// and no page leaks.
    #[test]
    fn any_sequence_of_events(acts in acts(), pages in 7usize..24, sequences in 1usize..6, ahead in any::<bool>(), seen in proptest::option::of(1usize..200), copies in proptest::option::of(1usize..12), slots in 0usize..20, beside in proptest::collection::vec(1usize..97, 1..9)) {
        // There are no host slots with a window pool or recurrent states.
        let slots = if seen.is_some() || copies.is_some() { 0 } else { slots };
        let mut model = Model::with(pages, sequences, Besides { seen, slots, copies });
        model.ahead = ahead;
        model.beside = beside;
        let mut asked = BTreeMap::new();
        for act in acts {
            match act {
                Act::Add { seed, length, answer, exact, invariant } => {
                    let prompt = prompt(seed, length);
                    let reuse = if exact { Reuse::Exact } else { Reuse::Any };
                    let options = SequenceOptions { reuse, batch_invariant: invariant, ..SequenceOptions::default() };
                    asked.insert(model.add_with(prompt.clone(), answer, options), (prompt, answer));
                }
                Act::Cancel(nth) => {
                    let here: Vec<SequenceId> = asked.keys().copied().filter(|id| !model.ended.contains_key(id)).collect();
                    if let Some(&id) = here.get(nth) {
                        model.scheduler.remove(id);
                        model.drop_in_flight_if_idle();
                        asked.remove(&id);
                        model.scheduler.check();
                    }
                }
                Act::Again(nth) => {
                    let running: Vec<SequenceId> = asked.keys().copied().filter(|&id| model.scheduler.next_position(id).is_some()).collect();
                    if let (Some(&id), None) = (running.get(nth), &model.under_way) {
                        model.scheduler.requeue(id);
                        model.scheduler.check();
                    }
                }
                Act::Fail => {
                    model.scheduler.release_in_flight();
                    let batch = model.under_way.take().map_or_else(|| model.next_batch(), |both| both.0);
                    let here = |d: &Decode| model.scheduler.next_position(d.sequence) == Some(d.position);
                    let batch = Batch { decodes: batch.decodes.iter().copied().filter(here).collect(), ..batch };
                    for of in &batch.swaps {
                        match of {
                            Swap::Out { slot, .. } => model.host[*slot as usize] = vec![None; PAGE],
                            Swap::In { page, .. } => model.pool[*page as usize * PAGE] = None,
                        }
                    }
                    // A part of it may have been written.
                    batch.copies.iter().for_each(|copy| model.pool[copy.to as usize * PAGE] = None);
                    batch.decodes.iter().for_each(|decode| model.write(decode.sequence, decode.position, None));
                    let of_sequences = batch.decodes.iter().map(|d| d.sequence).chain(batch.chunk.iter().map(|p| p.sequence));
                    let of_sequences = of_sequences.map(|id| model.scheduler.pages(id, 0).state);
                    let rows: Vec<u32> = of_sequences.chain(batch.states.iter().chain(&batch.snapshot).map(|copy| copy.to)).collect();
                    for row in rows {
                        model.states.get_mut(row as usize).into_iter().for_each(|state| *state = None);
                    }
                    for id in model.scheduler.fail_batch(&batch) {
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

    /// Pages of a prefix hit hold the tokens that were inserted.
    #[test]
    fn the_tree_finds_what_it_was_told(lengths in proptest::collection::vec((1u32..4, 1usize..400), 1..12)) {
        let mut pool = PagePool::new(12, PAGE, 0);
        pool.watch_prefixes(false);
        let mut stored = BTreeMap::<u64, usize>::new();
        let mut holds: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (seed, length) in lengths {
            let tokens = prompt(seed, length);
            let mut found = pool.find(ROOT, &tokens, Reuse::Any, true);
            // The events tell the same as the tree.
            let hashes = prefix_hashes(&tokens, &AdapterScales::default());
            let known = |hash: &&u64| stored.get(hash).is_some_and(|&times| times > 0);
            prop_assert_eq!(hashes.iter().take_while(known).count(), found.pages.len());
            for (page, block) in found.pages.iter().zip(tokens.chunks(PAGE)) {
                prop_assert_eq!(&holds[page][..], block);
            }
            if let Some(part) = found.partial {
                let begin = found.pages.len() * PAGE;
                prop_assert_eq!(&holds[&part.page][..part.positions], &tokens[begin..begin + part.positions]);
                pool.release_partial(&part);
            }
            while found.pages.len() < length.div_ceil(PAGE) {
                let Some(page) = pool.take(None) else { break };
                let begin = found.pages.len() * PAGE;
                holds.insert(page, tokens[begin..length.min(begin + PAGE)].to_vec());
                found.pages.push(page);
            }
            let known = length.min(found.pages.len() * PAGE);
            pool.insert(&mut found.node, &found.pages, &tokens[..known], 0, true);
            pool.release(&found.pages);
            pool.check();
            for event in pool.take_prefix_events() {
                match event {
                    PrefixEvent::Stored(page) => {
                        let before = page.parent.is_none_or(|parent| stored.contains_key(&parent));
                        prop_assert!(before && page.tokens.len() == PAGE);
                        *stored.entry(page.hash).or_default() += 1;
                    }
                    PrefixEvent::Removed(hash) => *stored.get_mut(&hash).unwrap() -= 1,
                    PrefixEvent::Cleared => stored.clear(),
                }
            }
            prop_assert_eq!(pool.held(), 0);
        }
    }
}
