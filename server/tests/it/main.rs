//! Integration tests of the server over sockets, with the demo model.

mod api;
mod bad;
mod client;
mod clients_like;
mod failed;
#[path = "../../../llm/tests/it/failing_support.rs"]
mod failing_support;
mod interfaces;
mod large;
mod operations;
mod pooling;
mod readers;
mod reasoning;
mod replicas;
mod running;
mod scores;
mod sessions;
mod several;
mod slow;
mod structure;

use client::Client;
use gristmill_server::Config;
use running::{Running, start};
use std::sync::LazyLock;

/// The server that most tests share. It is batch-invariant: they compare texts while other tests
/// run.
fn shared() -> &'static Client {
    static SHARED: LazyLock<Running> = LazyLock::new(|| {
        start(Config {
            batch_invariant: true,
            ..Config::default()
        })
    });
    &SHARED.client
}
