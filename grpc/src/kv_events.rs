//! KV events as messages.

use crate::messages::common::{
    KvBlock, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvCacheEventData,
    KvEventBatch,
};
use gristmill_server::worker::{self, PrefixEvent, StoredPage};

/// Returns the message of a batch.
pub fn message(batch: &worker::KvEventBatch) -> KvEventBatch {
    let mut events: Vec<KvCacheEvent> = Vec::new();
    for event in batch.events.iter() {
        add(&mut events, event);
    }
    KvEventBatch {
        sequence_number: batch.number,
        timestamp: batch.time,
        events,
        dp_rank: None,
    }
}

/// Adds an event; one that continues the last one becomes part of it.
fn add(events: &mut Vec<KvCacheEvent>, event: &PrefixEvent) {
    let last = events.last_mut().and_then(|event| event.data.as_mut());
    let data = match (event, last) {
        (PrefixEvent::Stored(page), Some(KvCacheEventData::Stored(stored)))
            if stored.blocks.last().map(|block| block.block_hash) == page.parent.map(signed) =>
        {
            return stored.blocks.push(block(page));
        }
        (PrefixEvent::Removed(hash), Some(KvCacheEventData::Removed(removed))) => {
            return removed.block_hashes.push(signed(*hash));
        }
        (PrefixEvent::Stored(page), _) => KvCacheEventData::Stored(KvBlocksStored {
            blocks: vec![block(page)],
            parent_block_hash: page.parent.map(signed),
        }),
        (PrefixEvent::Removed(hash), _) => KvCacheEventData::Removed(KvBlocksRemoved {
            block_hashes: vec![signed(*hash)],
        }),
        (PrefixEvent::Cleared, _) => KvCacheEventData::Cleared(KvCacheCleared {}),
    };
    events.push(KvCacheEvent {
        event_id: events.len() as u64,
        data: Some(data),
    });
}

/// Returns the bits of a hash as the protocol's type.
fn signed(hash: u64) -> i64 {
    hash.cast_signed()
}

fn block(page: &StoredPage) -> KvBlock {
    KvBlock {
        block_hash: signed(page.hash),
        token_ids: page.tokens.to_vec(),
        block_size: page.tokens.len() as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(hash: u64, parent: Option<u64>) -> PrefixEvent {
        PrefixEvent::Stored(StoredPage {
            hash,
            parent,
            tokens: [1, 2].into(),
        })
    }

    #[test]
    fn chains_and_removals_become_one_event_each() {
        let batch = worker::KvEventBatch {
            number: 7,
            time: 1.5,
            events: [
                PrefixEvent::Cleared,
                stored(1, None),
                stored(u64::MAX, Some(1)),
                stored(3, Some(1)),
                stored(4, None),
                PrefixEvent::Removed(1),
                PrefixEvent::Removed(u64::MAX),
            ]
            .into(),
        };
        let told = message(&batch);
        assert_eq!((told.sequence_number, told.events.len()), (7, 5));
        let datas: Vec<_> = told
            .events
            .iter()
            .filter_map(|it| it.data.as_ref())
            .collect();
        let chains: Vec<(Option<i64>, Vec<i64>)> = datas
            .iter()
            .filter_map(|data| match data {
                KvCacheEventData::Stored(stored) => Some((
                    stored.parent_block_hash,
                    stored.blocks.iter().map(|block| block.block_hash).collect(),
                )),
                _ => None,
            })
            .collect();
        let expected = [(None, vec![1, -1]), (Some(1), vec![3]), (None, vec![4])];
        assert_eq!(chains, expected);
        let removed = KvBlocksRemoved {
            block_hashes: vec![1, -1],
        };
        assert_eq!(datas[4], &KvCacheEventData::Removed(removed));
    }
}
