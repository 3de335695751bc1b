//! Event channel from the engine's thread to a response, bounded by bytes.
//!
//! The engine never waits for a reader, as that would delay all requests. When the unread bytes
//! exceed the bound, the reader gets an error in place of further events, and the request is
//! cancelled.

use crate::core::error::RequestError;
use crate::core::event::{Chosen, Delta, Event};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The engine's end of the channel.
pub struct Sender {
    events: UnboundedSender<Event>,
    unread: Arc<AtomicUsize>,
    most: usize,
    /// Whether the byte bound was exceeded; no further events are sent.
    overrun: AtomicBool,
}

/// The response's end of the channel.
pub struct Receiver {
    events: UnboundedReceiver<Event>,
    unread: Arc<AtomicUsize>,
}

/// The reader is gone or too slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReaderTooSlow;

/// Creates a channel that holds approximately `most` bytes of unread events.
pub fn channel(most: usize) -> (Sender, Receiver) {
    let (sender, receiver) = unbounded_channel();
    let unread = Arc::new(AtomicUsize::new(0));
    let sender = Sender {
        events: sender,
        unread: unread.clone(),
        most,
        overrun: AtomicBool::new(false),
    };
    (
        sender,
        Receiver {
            events: receiver,
            unread,
        },
    )
}

impl Sender {
    /// Sends an event to the reader.
    ///
    /// # Errors
    /// When the reader is gone or too slow.
    pub fn send(&self, event: Event) -> Result<(), ReaderTooSlow> {
        if self.overrun.load(Ordering::Relaxed) {
            return Err(ReaderTooSlow);
        }
        let bytes = bytes(&event);
        if self.unread.fetch_add(bytes, Ordering::Relaxed) + bytes > self.most {
            self.overrun.store(true, Ordering::Relaxed);
            // The reader may be gone.
            let _ = self.events.send(Event::Failed(RequestError::unread()));
            return Err(ReaderTooSlow);
        }
        self.events.send(event).map_err(|_| ReaderTooSlow)
    }
    /// Returns whether the reader is gone or too slow.
    pub fn is_closed(&self) -> bool {
        self.overrun.load(Ordering::Relaxed) || self.events.is_closed()
    }
}

impl Receiver {
    /// Receives the next event; `None` once the sender is dropped.
    pub async fn recv(&mut self) -> Option<Event> {
        let event = self.events.recv().await?;
        // The final error event of an overrun was not counted.
        let _ = self
            .unread
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |unread| {
                Some(unread.saturating_sub(bytes(&event)))
            });
        Some(event)
    }
}

/// Returns an event's approximate size in memory, in bytes.
fn bytes(event: &Event) -> usize {
    let chosen = |chosen: &Chosen| size_of::<Chosen>() + size_of_val(chosen.top.as_slice());
    let told = match event {
        Event::Delta(Delta { text, tokens, .. }) => {
            text.len() + tokens.iter().map(chosen).sum::<usize>()
        }
        Event::PromptLogprobs { tokens, .. } => tokens.iter().map(chosen).sum(),
        Event::Pooled { values, .. } => size_of_val(values.as_slice()),
        _ => 0,
    };
    size_of::<Event>() + told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::event::Usage;
    use futures_util::FutureExt;

    fn delta(bytes: usize) -> Event {
        Event::Delta(Delta {
            text: "x".repeat(bytes),
            ..Delta::default()
        })
    }

    #[test]
    fn a_reader_that_keeps_up_reads_everything() {
        let (sender, mut receiver) = channel(1000);
        for _ in 0..100 {
            sender.send(delta(600)).unwrap();
            assert!(matches!(
                receiver.recv().now_or_never(),
                Some(Some(Event::Delta(_)))
            ));
        }
        assert!(!sender.is_closed());
        drop(sender);
        assert!(matches!(receiver.recv().now_or_never(), Some(None)));
    }

    #[test]
    fn a_reader_that_falls_behind_is_told_so() {
        let (sender, mut receiver) = channel(1000);
        sender.send(delta(600)).unwrap();
        assert_eq!(sender.send(delta(600)), Err(ReaderTooSlow));
        assert!(sender.is_closed());
        assert_eq!(
            sender.send(Event::End(Usage::default())),
            Err(ReaderTooSlow)
        );
        assert!(matches!(
            receiver.recv().now_or_never(),
            Some(Some(Event::Delta(_)))
        ));
        let Some(Some(Event::Failed(error))) = receiver.recv().now_or_never() else {
            panic!("no failure")
        };
        assert_eq!(error, RequestError::unread());
    }

    #[test]
    fn probabilities_count() {
        let chosen = Chosen {
            token: 0,
            logprob: Some(0.0),
            top: vec![(0, 0.0); 20],
        };
        let tokens = vec![chosen; 100];
        let (sender, _receiver) = channel(20_000);
        assert!(
            sender
                .send(Event::Delta(Delta {
                    tokens: tokens[..50].to_vec(),
                    ..Delta::default()
                }))
                .is_ok()
        );
        assert_eq!(
            sender.send(Event::Delta(Delta {
                tokens,
                ..Delta::default()
            })),
            Err(ReaderTooSlow)
        );
    }
}
