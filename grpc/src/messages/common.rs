//! Messages of `smg.grpc.common`: KV events.

use prost::{Message, Oneof};

/// Request for KV events.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct SubscribeKvEventsRequest {
    /// Sequence number of the last batch that the client has; 0 for none.
    #[prost(uint64, tag = "1")]
    pub start_sequence_number: u64,
}

/// A numbered batch of events.
#[derive(Clone, PartialEq, Message)]
pub struct KvEventBatch {
    /// Sequence number; consecutive within a stream.
    #[prost(uint64, tag = "1")]
    pub sequence_number: u64,
    /// Time in seconds since the Unix epoch.
    #[prost(double, tag = "2")]
    pub timestamp: f64,
    /// The events in their order.
    #[prost(message, repeated, tag = "3")]
    pub events: Vec<KvCacheEvent>,
    /// Data-parallel rank; replicas of this server are one rank.
    #[prost(int32, optional, tag = "4")]
    pub dp_rank: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct KvCacheEvent {
    /// Number of the event in its batch.
    #[prost(uint64, tag = "1")]
    pub event_id: u64,
    /// Kind of the event.
    #[prost(oneof = "KvCacheEventData", tags = "2, 3, 4")]
    pub data: Option<KvCacheEventData>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum KvCacheEventData {
    #[prost(message, tag = "2")]
    Stored(KvBlocksStored),
    #[prost(message, tag = "3")]
    Removed(KvBlocksRemoved),
    /// All blocks were removed.
    #[prost(message, tag = "4")]
    Cleared(KvCacheCleared),
}

/// Blocks that follow one another.
#[derive(Clone, PartialEq, Message)]
pub struct KvBlocksStored {
    /// The blocks in their order.
    #[prost(message, repeated, tag = "1")]
    pub blocks: Vec<KvBlock>,
    /// Hash of the block before them; `None` for a sequence's first block.
    #[prost(int64, optional, tag = "2")]
    pub parent_block_hash: Option<i64>,
}

/// A block of the KV cache.
#[derive(Clone, PartialEq, Message)]
pub struct KvBlock {
    /// Hash of all tokens up to its end.
    #[prost(int64, tag = "1")]
    pub block_hash: i64,
    #[prost(uint32, repeated, tag = "2")]
    pub token_ids: Vec<u32>,
    /// Number of its tokens.
    #[prost(int32, tag = "3")]
    pub block_size: i32,
}

/// Blocks that were removed.
#[derive(Clone, PartialEq, Message)]
pub struct KvBlocksRemoved {
    #[prost(int64, repeated, tag = "1")]
    pub block_hashes: Vec<i64>,
}

/// All blocks were removed.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct KvCacheCleared {}
