//! Bound of a reply's reasoning: behind its last token, the text that closes reasoning is forced
//! token by token.
//!
//! Forced tokens replace the choice of the sampler, so they run through drafts, grammars and
//! batches as any other token. The device may sample ahead only as many tokens as are free.

use crate::chat::ReasoningTexts;

/// Where a reply is with respect to its reasoning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Before the opening text.
    Before,
    /// Between the opening and the closing text.
    Within,
    /// Within the closing text: the number of its next token.
    Closing(usize),
    /// Behind the only reasoning of a reply.
    Over,
}

/// Bytes that a token adds to a reply.
type TokenBytes<'a> = dyn Fn(u32, &mut Vec<u8>) + 'a;

/// Budget of one reply.
pub struct ReasoningBudget<'a> {
    texts: ReasoningTexts,
    /// Tokens of reasoning that are left.
    left: usize,
    /// Tokens of reasoning so far, with those of the closing text.
    used: usize,
    /// Tokens of the closing text.
    closing: Vec<u32>,
    bytes: Box<TokenBytes<'a>>,
    state: State,
    /// End of the reply so far, in which delimiters are searched.
    tail: Vec<u8>,
}

impl<'a> ReasoningBudget<'a> {
    /// Creates a budget of `tokens` tokens; `begun` if the prompt has opened reasoning. `closing`
    /// is forced behind them, and must contain the text that closes reasoning. `bytes` appends the
    /// bytes of a token.
    pub fn new(
        texts: ReasoningTexts,
        tokens: usize,
        begun: bool,
        closing: Vec<u32>,
        bytes: impl Fn(u32, &mut Vec<u8>) + 'a,
    ) -> ReasoningBudget<'a> {
        let mut budget = ReasoningBudget {
            texts,
            left: tokens,
            used: 0,
            closing,
            bytes: Box::new(bytes),
            state: if begun { State::Within } else { State::Before },
            tail: Vec::new(),
        };
        budget.close_if_used();
        budget
    }
    /// Number of tokens of reasoning so far.
    pub fn used(&self) -> usize {
        self.used
    }
    /// The token that must come next; `None` if the sampler chooses.
    pub fn forced(&self) -> Option<u32> {
        match self.state {
            State::Closing(at) => self.closing.get(at).copied(),
            _ => None,
        }
    }
    /// Number of next tokens that are free whatever they are; `None` without a bound.
    pub fn free(&self) -> Option<usize> {
        match self.state {
            // The next token may open reasoning.
            State::Before => Some(self.left.saturating_add(1)),
            State::Within => Some(self.left),
            State::Closing(_) => Some(0),
            State::Over => None,
        }
    }
    /// Advances by a token.
    pub fn accept(&mut self, token: u32) {
        self.used += usize::from(matches!(self.state, State::Within | State::Closing(_)));
        match self.state {
            State::Over => return,
            State::Closing(at) if at + 1 < self.closing.len() => {
                self.state = State::Closing(at + 1);
                return;
            }
            State::Closing(_) => return self.leave(),
            State::Before | State::Within => (self.bytes)(token, &mut self.tail),
        }
        if self.state == State::Before {
            return self.enter_if_open();
        }
        self.left = self.left.saturating_sub(1);
        if self.found(self.texts.close) {
            return self.leave();
        }
        // A text that has begun to close the reasoning ends it.
        if !self.is_closing() {
            self.close_if_used();
        }
    }
    /// Whether the reply ends with a part of the text that closes reasoning.
    fn is_closing(&self) -> bool {
        let close = self.texts.close.as_bytes();
        (1..close.len()).any(|length| self.tail.ends_with(&close[..length]))
    }
    /// Whether the end of the reply contains a text. Bytes that cannot begin it are dropped.
    fn found(&mut self, text: &str) -> bool {
        let text = text.as_bytes();
        let found = self
            .tail
            .windows(text.len().max(1))
            .any(|bytes| bytes == text);
        let kept = self.tail.len().min(text.len());
        self.tail.drain(..self.tail.len() - kept);
        found
    }
    fn enter_if_open(&mut self) {
        let open = self.texts.open;
        if self.texts.repeats {
            if self.found(open) {
                self.enter();
            }
            return;
        }
        let begun = self.tail.trim_ascii_start();
        if begun.starts_with(open.as_bytes()) {
            self.enter();
        } else if !open.as_bytes().starts_with(begun) {
            self.state = State::Over;
        }
    }
    fn enter(&mut self) {
        self.tail.clear();
        self.state = State::Within;
        self.close_if_used();
    }
    fn leave(&mut self) {
        self.tail.clear();
        self.state = match self.texts.repeats {
            true => State::Before,
            false => State::Over,
        };
    }
    fn close_if_used(&mut self) {
        if self.state == State::Within && self.left == 0 && !self.closing.is_empty() {
            self.state = State::Closing(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: ReasoningTexts = ReasoningTexts {
        open: "<t>",
        close: "</t>",
        repeats: false,
    };
    const CLOSING: [u32; 5] = [
        b'.' as u32,
        b'<' as u32,
        b'/' as u32,
        b't' as u32,
        b'>' as u32,
    ];

    /// Takes a text of which each byte is a token; forced tokens replace those of the text.
    fn reply(texts: ReasoningTexts, tokens: usize, begun: bool, text: &str) -> String {
        let closing = CLOSING.to_vec();
        let bytes = |token: u32, out: &mut Vec<u8>| out.push(token as u8);
        let mut budget = ReasoningBudget::new(texts, tokens, begun, closing, bytes);
        let mut out = String::new();
        let mut rest = text.bytes();
        loop {
            let free = budget.free();
            let token = match budget.forced() {
                Some(token) => {
                    assert_eq!(free, Some(0));
                    token
                }
                None => match rest.next() {
                    Some(byte) => u32::from(byte),
                    None => return out,
                },
            };
            out.push(token as u8 as char);
            let used =
                budget.used() + usize::from(!matches!(budget.state, State::Before | State::Over));
            budget.accept(token);
            assert_eq!(budget.used(), used);
        }
    }

    #[test]
    fn reasoning_is_closed_behind_its_last_token() {
        assert_eq!(reply(TEXTS, 3, true, "aaaaaaab"), "aaa.</t>aaaab");
        assert_eq!(reply(TEXTS, 3, false, " <t>aaaab"), " <t>aaa.</t>ab");
        assert_eq!(reply(TEXTS, 0, true, "ab"), ".</t>ab");
        assert_eq!(reply(TEXTS, 0, false, "<t>ab"), "<t>.</t>ab");
    }

    #[test]
    fn replies_within_the_budget_are_left_alone() {
        for (tokens, begun, text) in [
            (9, true, "aaa</t>aaaaaaaaaaaaaaaa"),
            (9, false, "<t>aaa</t>aaaaaaaaaaaaaaaa"),
            (0, false, "no reasoning: <t>aaa"),
            (usize::MAX, true, "aaaaaaaaaaaaaa"),
        ] {
            assert_eq!(reply(TEXTS, tokens, begun, text), text);
        }
    }

    #[test]
    fn every_reasoning_of_a_reply_counts() {
        let texts = ReasoningTexts {
            repeats: true,
            ..TEXTS
        };
        assert_eq!(
            reply(texts, 3, false, "x<t>aa</t>y<t>aaaa"),
            "x<t>aa</t>y<t>.</t>aaaa",
            "two tokens and the closing text"
        );
        assert_eq!(
            reply(texts, 7, false, "x<t>aa</t>y<t>aaaa"),
            "x<t>aa</t>y<t>a.</t>aaa"
        );
    }

    #[test]
    fn tokens_are_free_until_the_budget_is_used() {
        let free = |tokens, begun| {
            ReasoningBudget::new(TEXTS, tokens, begun, CLOSING.to_vec(), |_, _| ()).free()
        };
        assert_eq!(free(5, true), Some(5));
        assert_eq!(free(5, false), Some(6));
        assert_eq!(free(0, true), Some(0));
        let mut over =
            ReasoningBudget::new(TEXTS, 5, false, CLOSING.to_vec(), |_, out| out.push(b'x'));
        over.accept(0);
        assert_eq!((over.free(), over.forced(), over.used()), (None, None, 0));
    }
}
