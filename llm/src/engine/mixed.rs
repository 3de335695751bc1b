//! Steps of a piece of one sequence with a token each of others behind it: all products have both kinds of rows, so that weights are read once. The cache is a pool of pages.
//!
//! A piece is in such a class of step whether or not there are others: so what its tokens leave in the cache is the same to the bit in either case.

use super::class::{Class, FEW};
use super::error::{Error, Progress};
use super::executor::{Engine, Steps};
use super::inputs::{Row, bytes};
use super::pages::Pages;
use crate::arch::{Logits, Options};
use crate::sampling::{self, Ask, Ranked};
use gristmill_tensor::jit::Call;

/// Neighbouring tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Their ids.
    pub tokens: &'a [u32],
    /// Where the first stands in its sequence.
    pub position: usize,
    /// The sequence's pages up to the last.
    pub pages: Pages<'a>,
    /// In the class of chunks, however few they are? See [`Engine::forward_chunks`].
    pub exact: bool,
    /// Are the logits after the last wanted?
    pub ends: bool,
}

/// What a step of a piece leaves.
#[derive(Debug, Default)]
pub struct Left {
    /// The logits after the piece's last token, where they are wanted and nothing was behind it. Else they are the first row's.
    pub logits: Option<Vec<f32>>,
    /// Where there were other sequences, what was asked of the rows: of the piece's last token, then of theirs.
    pub ranked: Vec<Option<Ranked>>,
}

/// The values of a step's variables.
type Variables = [(&'static str, i64); 5];

impl Engine {
    /// Runs a piece of a sequence, and in the same step a token of each of `others`, of whom none is that sequence. Where there are some, the piece's last token is the first row and
    /// theirs are those behind it, in the eyes of [`Engine::most_probable`] and [`Engine::row_logits`], and with `ask`, what is asked of each of these is told.
    ///
    /// # Errors
    /// When there is no pool, there are no tokens or too many rows, a token or a position is none, or the device fails. What the step has written is not to be used then.
    pub fn step_piece(
        &mut self,
        piece: Piece,
        others: &[Row],
        ask: Option<&mut dyn FnMut() -> Vec<Option<Ask>>>,
    ) -> Result<Left, Error> {
        self.check_piece(&piece, others)?;
        self.finish()?;
        if !self.mixes() {
            return self.step_of_one(&piece, others);
        }
        let steps = if piece.exact { Steps::Chunks } else { Steps::Fitting };
        let (mut rest, mut left) = (piece, Left::default());
        loop {
            let n = rest.tokens.len().min(self.step_limit(rest.position, steps)).min(self.settings.chunk);
            if n == rest.tokens.len() {
                break;
            }
            let part = Piece { tokens: &rest.tokens[..n], ends: false, ..rest };
            let (class, vars) = self.ready_piece(&part, &[], Logits::None)?;
            self.prepared(&class).replay.replay(&vars)?;
            rest = Piece { tokens: &rest.tokens[n..], position: rest.position + n, ..rest };
        }
        let logits = match (others.is_empty(), rest.ends) {
            (false, _) => Logits::Ends,
            (true, true) => Logits::Last,
            (true, false) => Logits::None,
        };
        let (class, vars) = self.ready_piece(&rest, others, logits)?;
        if logits == Logits::Ends {
            left.ranked = self.run_rows(&class, &vars, ask)?;
            return Ok(left);
        }
        self.prepared(&class).replay.replay(&vars)?;
        if logits == Logits::Last {
            self.logits_host.clear();
            self.read_logits(1)?;
            left.logits = Some(std::mem::take(&mut self.logits_host));
        }
        Ok(left)
    }
    /// Do pieces have tokens of other sequences in their steps?
    pub fn mixes(&self) -> bool {
        self.settings.others().is_some()
    }
    /// The same where they have not.
    fn step_of_one(&mut self, piece: &Piece, others: &[Row]) -> Result<Left, Error> {
        if !others.is_empty() {
            return Err(Error::Sequences { rows: others.len() + 1, most: 1 });
        }
        self.select(piece.pages)?;
        let logits = if piece.ends { Logits::Last } else { Logits::None };
        let logits = match piece.exact {
            true => self.forward_chunks(piece.tokens, piece.position, logits)?,
            false => self.forward_with(piece.tokens, piece.position, logits)?,
        };
        Ok(Left { logits: piece.ends.then(|| logits.to_vec()), ranked: Vec::new() })
    }
    fn check_piece(&mut self, piece: &Piece, others: &[Row]) -> Result<(), Error> {
        self.check(piece.tokens)?;
        self.check_rows(others)?;
        if let Some(most) = self.settings.others().filter(|&most| others.len() > most) {
            return Err(Error::Sequences { rows: others.len() + 1, most: most + 1 });
        }
        let context = self.context;
        if piece.position.checked_add(piece.tokens.len()).is_none_or(|end| end > context) {
            return Err(Error::Full(context));
        }
        let pool = self.pool()?;
        pool.check(piece.pages)?;
        if piece.pages.all.len() * Options::PAGE < piece.position + piece.tokens.len() {
            return Err(Error::Pages);
        }
        Ok(())
    }
    /// Compiles and captures steps of that class, with the choice of a token for each row that has logits where others are behind a piece.
    fn prepare_piece(&mut self, class: Class, progress: &dyn Fn(Progress)) -> Result<(), Error> {
        if class.logits != Logits::Ends {
            return self.prepare(&[class], progress);
        }
        if self.pool()?.captured.contains_key(&class) {
            return Ok(());
        }
        let plan = self.model.plan(&self.options(class), &mut self.functions);
        let choice = sampling::rows_function(self.model.vocabulary(), class.others + 1);
        let choice = self.functions.share(choice);
        let choice = self.ready(&[&choice], progress)?.remove(0);
        let mut calls = self.calls(&plan, progress)?;
        calls.push(Call { function: choice, args: vec![self.logits.clone(), self.pool()?.chosen.clone()] });
        let captured = self.capture(&calls)?;
        self.pool()?.captured.insert(class, captured);
        Ok(())
    }
    /// Writes what a step of these tokens reads, and makes its class ready.
    fn ready_piece(&mut self, piece: &Piece, others: &[Row], logits: Logits) -> Result<(Class, Variables), Error> {
        let few = FEW.min(self.settings.chunk);
        let tokens = if piece.exact || piece.tokens.len() > few { self.settings.chunk } else { few };
        let most = self.settings.others().unwrap_or(0);
        let class = Class { tokens, batch: false, others: most, logits, depth: self.cache.rows };
        let end = piece.position + piece.tokens.len();
        let last = Row { token: piece.tokens[piece.tokens.len() - 1], position: end - 1, pages: piece.pages };
        let rows: Vec<Row> = std::iter::once(last).chain(others.iter().copied()).collect();
        self.select(piece.pages)?;
        self.write_table(&rows)?;
        // There is no pool of windows: see `Settings::over`.
        let place = |pages: Pages, position: usize| {
            pages.all[position / Options::PAGE] * Options::PAGE as u32 + (position % Options::PAGE) as u32
        };
        let all = (piece.position..end).map(|position| (position, piece.pages));
        let all: Vec<_> = all.chain(others.iter().map(|row| (row.position, row.pages))).collect();
        let device = self.device().clone();
        let pool = self.pool()?;
        device.write(&pool.inputs.positions, 0, &bytes(all.iter().map(|one| one.0 as u32)))?;
        device.write(&pool.inputs.slots, 0, &bytes(all.iter().map(|&(position, pages)| place(pages, position))))?;
        let ids: Vec<u32> = piece.tokens.iter().copied().chain(others.iter().map(|row| row.token)).collect();
        self.set_tokens(&ids)?;
        // What the piece's last token comes to among the rows is read by nobody: it need not see all that is before it, which may be much longer than what the others see.
        let length = others.iter().map(|row| row.position + 1).max().unwrap_or(1);
        self.fill_rope(end.max(length))?;
        self.prepare_piece(class, &|_| ())?;
        let [first, tokens, rows, length] = [piece.position, piece.tokens.len(), rows.len(), length].map(|n| n as i64);
        Ok((class, [("pos", first), ("piece", tokens), ("rows", rows), ("n", rows), ("length", length)]))
    }
}
