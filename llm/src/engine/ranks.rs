//! What a step of several sequences tells the host of each row besides, so that the host can choose without all of its logits.
//!
//! What is asked depends on what may come next, which is computed while the step runs; so telling is a step of its own behind it.

use super::class::Class;
use super::error::{Error, Progress};
use super::executor::Engine;
use super::inputs::Row;
use super::pool::Ranks;
use crate::sampling::{self, Ask, Ranked, Rows};
use gristmill_runtime::Buffer;
use gristmill_tensor::jit::Call;
use rustc_hash::FxHashMap;

impl Engine {
    /// Compiles and captures what tells of steps of at most so many rows.
    fn prepare_ranks(&mut self, most: usize, progress: &dyn Fn(Progress)) -> Result<(), Error> {
        let (vocabulary, device) = (self.model.vocabulary(), self.device().clone());
        let pool = self.pool()?;
        if pool.ranks.is_none() {
            let rows = Rows::new(&*device, vocabulary, pool.sequences)?;
            pool.ranks = Some(Ranks { rows, captured: FxHashMap::default() });
        }
        let Some(ranks) = pool.ranks.as_ref().filter(|ranks| !ranks.captured.contains_key(&most)) else {
            return Ok(());
        };
        let told: Vec<Buffer> = ranks.rows.buffers().into_iter().cloned().collect();
        let function = self.functions.share(sampling::ranks_function(vocabulary, most));
        let function = self.ready(&[&function], progress)?.remove(0);
        let args = std::iter::once(self.logits.clone()).chain(told).collect();
        let captured = self.capture(&[Call { function, args }])?;
        if let Some(ranks) = self.ranks() {
            ranks.captured.insert(most, captured);
        }
        Ok(())
    }
    fn ranks(&mut self) -> Option<&mut Ranks> {
        self.pool.as_mut()?.ranks.as_mut()
    }
    /// As [`Engine::step_rows`], or [`Engine::step_rows_alike`], and what is asked of each row while the step runs is told.
    ///
    /// # Errors
    /// As for [`Engine::step_rows`].
    pub fn step_rows_ranked(
        &mut self,
        rows: &[Row],
        alike: bool,
        ask: &mut dyn FnMut() -> Vec<Option<Ask>>,
    ) -> Result<Vec<Option<Ranked>>, Error> {
        let least = if alike { self.most_sequences() } else { 1 };
        let (class, vars) = self.ready_rows(rows, least)?;
        self.run_rows(&class, &vars, Some(ask))
    }
    /// Runs a step that was made ready, and tells what is asked of each of its rows of logits while it runs; nothing where nobody asks.
    pub(super) fn run_rows(
        &mut self,
        class: &Class,
        vars: &[(&str, i64)],
        ask: Option<&mut dyn FnMut() -> Vec<Option<Ask>>>,
    ) -> Result<Vec<Option<Ranked>>, Error> {
        let Some(ask) = ask else {
            self.captured_rows(class)?.replay.replay(vars)?;
            return Ok(Vec::new());
        };
        // Behind a piece of one sequence its own last token and one of each other have logits.
        let most = if class.others > 0 { class.others + 1 } else { class.tokens };
        self.prepare_ranks(most, &|_| ())?;
        self.captured_rows(class)?.replay.start(vars)?;
        let asks = ask();
        let told = self.start_ranks(most, &asks);
        // Whatever became of it, the step is waited for.
        let ended = self.captured_rows(class)?.replay.wait();
        let told = told.and_then(|()| self.wait_for_ranks(most, &asks));
        ended?;
        told
    }
    fn start_ranks(&mut self, most: usize, asks: &[Option<Ask>]) -> Result<(), Error> {
        let device = self.device().clone();
        let Some(ranks) = self.ranks().filter(|_| asks.iter().any(Option::is_some)) else { return Ok(()) };
        ranks.rows.write(&*device, asks)?;
        if let Some(captured) = ranks.captured.get_mut(&most) {
            captured.replay.start(&[("n", asks.len() as i64)])?;
        }
        Ok(())
    }
    fn wait_for_ranks(&mut self, most: usize, asks: &[Option<Ask>]) -> Result<Vec<Option<Ranked>>, Error> {
        let device = self.device().clone();
        let Some(ranks) = self.ranks().filter(|_| asks.iter().any(Option::is_some)) else {
            return Ok(asks.iter().map(|_| None).collect());
        };
        if let Some(captured) = ranks.captured.get_mut(&most) {
            captured.replay.wait()?;
        }
        Ok(ranks.rows.read(&*device, asks)?)
    }
}
