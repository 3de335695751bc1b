//! What the engine's thread tells, until it is read: never more than so many bytes of it.
//!
//! The thread does not wait for a reader, whose pace would be everybody's. A reader that is so far behind that the bytes are used up is
//! told so in place of the rest, and its answer ends as one that nobody waits for.

use crate::core::error::RequestError;
use crate::core::event::{Chosen, Delta, Event};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The thread's side.
pub struct Sender {
    events: UnboundedSender<Event>,
    unread: Arc<AtomicUsize>,
    most: usize,
    /// The reader fell behind; nothing is told any more.
    overrun: AtomicBool,
}

/// The reader's side.
pub struct Receiver {
    events: UnboundedReceiver<Event>,
    unread: Arc<AtomicUsize>,
}

/// Nobody reads, or not fast enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReaderTooSlow;

/// Both sides of a channel that holds at most about so many bytes.
pub fn channel(most: usize) -> (Sender, Receiver) {
    let (sender, receiver) = unbounded_channel();
    let unread = Arc::new(AtomicUsize::new(0));
    let sender = Sender { events: sender, unread: unread.clone(), most, overrun: AtomicBool::new(false) };
    (sender, Receiver { events: receiver, unread })
}

impl Sender {
    /// Tells an event, if it is still read.
    ///
    /// # Errors
    /// When it is not.
    pub fn send(&self, event: Event) -> Result<(), ReaderTooSlow> {
        if self.overrun.load(Ordering::Relaxed) {
            return Err(ReaderTooSlow);
        }
        let bytes = bytes(&event);
        if self.unread.fetch_add(bytes, Ordering::Relaxed) + bytes > self.most {
            self.overrun.store(true, Ordering::Relaxed);
            // Whoever is gone need not know.
            let _ = self.events.send(Event::Failed(RequestError::unread()));
            return Err(ReaderTooSlow);
        }
        self.events.send(event).map_err(|_| ReaderTooSlow)
    }
    /// Does nobody read any more, or not fast enough?
    pub fn is_closed(&self) -> bool {
        self.overrun.load(Ordering::Relaxed) || self.events.is_closed()
    }
}

impl Receiver {
    /// The next event; none where the other side is gone.
    pub async fn recv(&mut self) -> Option<Event> {
        let event = self.events.recv().await?;
        // The last one, which says that there were too many, was not counted.
        let _ = self
            .unread
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |unread| Some(unread.saturating_sub(bytes(&event))));
        Some(event)
    }
}

/// What an event takes in memory.
fn bytes(event: &Event) -> usize {
    let chosen = |chosen: &Chosen| size_of::<Chosen>() + size_of_val(chosen.top.as_slice());
    let told = match event {
        Event::Delta(Delta { text, tokens, .. }) => text.len() + tokens.iter().map(chosen).sum::<usize>(),
        Event::PromptLogprobs { tokens, .. } => tokens.iter().map(chosen).sum(),
        Event::Embedding { values, .. } => size_of_val(values.as_slice()),
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
        Event::Delta(Delta { text: "x".repeat(bytes), ..Delta::default() })
    }

    #[test]
    fn a_reader_that_keeps_up_reads_everything() {
        let (sender, mut receiver) = channel(1000);
        for _ in 0..100 {
            sender.send(delta(600)).unwrap();
            assert!(matches!(receiver.recv().now_or_never(), Some(Some(Event::Delta(_)))));
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
        assert_eq!(sender.send(Event::End(Usage::default())), Err(ReaderTooSlow));
        assert!(matches!(receiver.recv().now_or_never(), Some(Some(Event::Delta(_)))));
        let Some(Some(Event::Failed(error))) = receiver.recv().now_or_never() else { panic!("no failure") };
        assert_eq!(error, RequestError::unread());
    }

    #[test]
    fn probabilities_count() {
        let chosen = Chosen { token: 0, logprob: Some(0.0), top: vec![(0, 0.0); 20] };
        let tokens = vec![chosen; 100];
        let (sender, _receiver) = channel(20_000);
        assert!(sender.send(Event::Delta(Delta { tokens: tokens[..50].to_vec(), ..Delta::default() })).is_ok());
        assert_eq!(sender.send(Event::Delta(Delta { tokens, ..Delta::default() })), Err(ReaderTooSlow));
    }
}
