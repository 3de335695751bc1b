//! KV events.

use super::grpc_client::{GrpcClient, greedy};
use super::running::processor;
use super::{long_text, start, start_on, tokens};
use gristmill_grpc::messages::common::{KvBlock, KvCacheEventData, KvEventBatch};
use gristmill_server::Config;
use serde_json::json;
use std::collections::BTreeMap;
use tonic::{Code, Streaming};

/// The blocks of a server, as a router has them.
#[derive(Default)]
struct Blocks {
    last: u64,
    /// Tokens of each block, and the hash of the block before it.
    all: BTreeMap<i64, (Vec<u32>, Option<i64>)>,
    cleared: usize,
    removed: usize,
}

impl Blocks {
    fn take(&mut self, batch: KvEventBatch) {
        assert!(self.last == 0 || batch.sequence_number == self.last + 1);
        assert!(batch.timestamp > 1e9 && !batch.events.is_empty());
        self.last = batch.sequence_number;
        for event in batch.events {
            match event.data.expect("an event") {
                KvCacheEventData::Stored(stored) => {
                    let mut parent = stored.parent_block_hash;
                    for KvBlock {
                        block_hash,
                        token_ids,
                        block_size,
                    } in stored.blocks
                    {
                        assert_eq!((block_size, token_ids.len()), (64, 64));
                        self.all.insert(block_hash, (token_ids, parent));
                        parent = Some(block_hash);
                    }
                }
                KvCacheEventData::Removed(removed) => {
                    self.removed += removed.block_hashes.len();
                    removed
                        .block_hashes
                        .iter()
                        .for_each(|hash| _ = self.all.remove(hash));
                }
                KvCacheEventData::Cleared(_) => {
                    self.cleared += 1;
                    self.all.clear();
                }
            }
        }
    }
    /// Reads until `holds`.
    #[track_caller]
    fn read_until(
        &mut self,
        grpc: &GrpcClient,
        stream: &mut Streaming<KvEventBatch>,
        holds: impl Fn(&Blocks) -> bool,
    ) {
        while !holds(self) {
            let batch = grpc.next(stream).expect("no error").expect("more");
            self.take(batch);
        }
    }
    /// Returns how many leading tokens of a prompt are in the blocks.
    fn matched(&self, prompt: &[u32]) -> usize {
        let mut parent = None;
        let mut matched = 0;
        for page in prompt.chunks_exact(64) {
            let found = self
                .all
                .iter()
                .find(|(_, (tokens, before))| tokens == page && *before == parent);
            let Some((&hash, _)) = found else { break };
            (parent, matched) = (Some(hash), matched + 64);
        }
        matched
    }
}

#[test]
fn blocks_are_stored_replayed_removed_and_cleared() {
    let (server, grpc) = start(Config::default());
    let prompt = tokens(&server, &long_text(1, 40));
    let whole = prompt.len() / 64 * 64;
    assert!(whole >= 192);
    let (mut blocks, mut live) = (Blocks::default(), grpc.subscribe(0).expect("a stream"));
    blocks.read_until(&grpc, &mut live, |blocks| blocks.cleared == 1);
    let generated = grpc.generate(greedy(&prompt, 2)).expect("an output");
    assert_eq!(generated.complete[0].cached_tokens, 0);
    blocks.read_until(&grpc, &mut live, |blocks| blocks.matched(&prompt) == whole);
    let generated = grpc.generate(greedy(&prompt, 2)).expect("an output");
    assert!(generated.complete[0].cached_tokens as usize >= whole - 64);
    drop(live);
    // A subscriber that resumes gets the missed batches, and no present state.
    let other = tokens(&server, &long_text(2, 40));
    grpc.generate(greedy(&other, 2)).expect("an output");
    let mut resumed = grpc.subscribe(blocks.last).expect("a stream");
    let whole_other = other.len() / 64 * 64;
    blocks.read_until(&grpc, &mut resumed, |it| it.matched(&other) == whole_other);
    assert_eq!((blocks.cleared, blocks.matched(&prompt)), (1, whole));
    // One that knows nothing gets the present state.
    let (mut new, mut fresh) = (Blocks::default(), grpc.subscribe(0).expect("a stream"));
    new.read_until(&grpc, &mut fresh, |new| new.all == blocks.all);
    assert_eq!(new.last, blocks.last);
    // The least recently used blocks leave the pool of four contexts.
    for seed in 3..8 {
        let mut long = tokens(&server, &long_text(seed, 400));
        long.truncate(2000);
        grpc.generate(greedy(&long, 1)).expect("an output");
    }
    blocks.read_until(&grpc, &mut resumed, |it| {
        it.removed > 0 && it.matched(&prompt) == 0
    });
    // The KV cache leaves with the model.
    let unload = json!({ "model": "demo", "keep_alive": 0 });
    server.client.post("/api/generate", &unload).ok();
    blocks.read_until(&grpc, &mut resumed, |blocks| blocks.cleared == 2);
    assert!(blocks.all.is_empty());
    // The next request loads the model again.
    grpc.generate(greedy(&prompt, 2)).expect("an output");
    blocks.read_until(&grpc, &mut resumed, |it| it.matched(&prompt) == whole);
}

#[test]
fn hashes_are_those_of_another_server() {
    let hashes = || {
        let (server, grpc) = start(Config::default());
        let prompt = tokens(&server, &long_text(1, 40));
        grpc.generate(greedy(&prompt, 2)).expect("an output");
        let (mut blocks, mut live) = (Blocks::default(), grpc.subscribe(0).expect("a stream"));
        let whole = prompt.len() / 64 * 64;
        blocks.read_until(&grpc, &mut live, |blocks| blocks.matched(&prompt) == whole);
        blocks.all
    };
    assert_eq!(hashes(), hashes());
}

#[test]
fn replicas_have_one_sequence_of_events() {
    let (server, grpc) = start_on(Config::default(), vec![processor(), processor()]);
    super::wait_until("both replicas serve", || {
        let models = server.client.get("/v1/models/demo").ok();
        models["status"]["replicas"][1]["value"] == "loaded"
    });
    let (mut blocks, mut live) = (Blocks::default(), grpc.subscribe(0).expect("a stream"));
    let prompts: Vec<Vec<u32>> = (0..6)
        .map(|seed| tokens(&server, &long_text(seed, 40)))
        .collect();
    // Concurrent requests are spread over the replicas.
    std::thread::scope(|scope| {
        for prompt in &prompts {
            scope.spawn(|| grpc.generate(greedy(prompt, 40)).expect("an output"));
        }
    });
    blocks.read_until(&grpc, &mut live, |blocks| {
        let all = |prompt: &Vec<u32>| blocks.matched(prompt) == prompt.len() / 64 * 64;
        prompts.iter().all(all)
    });
    for replica in 0..2 {
        let metrics = server.client.get("/metrics").body;
        let name =
            format!("gristmill_replica_requests_total{{model=\"demo\",replica=\"{replica}\"");
        let line = metrics
            .lines()
            .find(|line| line.starts_with(&name))
            .expect("a metric");
        assert!(!line.ends_with(" 0"), "{line}");
    }
    let status = grpc.subscribe(u64::MAX).expect_err("out of range");
    assert_eq!(status.code(), Code::InvalidArgument);
    let all: Vec<_> = (0..63).map(|_| grpc.subscribe(0).expect("one")).collect();
    let status = grpc.subscribe(0).expect_err("one too many");
    assert_eq!(status.code(), Code::ResourceExhausted);
    drop(all);
}
