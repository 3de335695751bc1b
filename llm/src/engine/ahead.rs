//! Steps of several sequences that are started before the one before is read: tokens are chosen on the device, where the next step takes them.
//!
//! What the host writes for such a step, and what it chooses, lies in one of two sets of buffers in turn, as the step before may still use the other.

use super::class::batch_class;
use super::error::Error;
use super::executor::Engine;
use super::inputs::{Row, bytes};
use super::pages::Pages;
use super::sets::{Ahead, Key, STARTED};
use crate::sampling::{self, Among, Draws, Random};
use gristmill_runtime::Buffer;
use gristmill_tensor::jit::Call;

/// A token's row of such a step.
#[derive(Clone, Copy, Debug)]
pub struct AheadRow<'a> {
    /// Which token is run.
    pub token: Source,
    /// Where it stands in its sequence.
    pub position: usize,
    /// The sequence's pages up to there. That of this position is no other row's.
    pub pages: Pages<'a>,
    /// How the next one is chosen.
    pub draws: Draws,
}

/// Where a token is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Here.
    Token(u32),
    /// On the device: it is what was chosen for that row of the step that was started before.
    Row(usize),
}

impl Engine {
    /// Starts a step of a token of each of these sequences, of whom one at most is under way, in a class of the most rows where what a row gives may not depend on how many there are. Their next tokens are
    /// chosen on the device. False where that cannot be done before all that is under way has been waited for; nothing is started then.
    ///
    /// # Errors
    /// When there is no pool, there are no rows or too many, a token or a position is none, or the device fails.
    pub fn start_rows(&mut self, rows: &[AheadRow], alike: bool) -> Result<bool, Error> {
        let most = self.most_sequences();
        let class = batch_class(if alike { most } else { rows.len() }, most, self.cache.rows);
        let plain: Vec<Row> =
            rows.iter().map(|row| Row { token: 0, position: row.position, pages: row.pages }).collect();
        self.check_rows(&plain)?;
        let given: Vec<u32> = rows.iter().filter_map(|row| token(row.token)).collect();
        if !given.is_empty() {
            self.check(&given)?;
        }
        let length = rows.iter().map(|row| row.position + 1).max().ok_or(Error::Empty)?;
        let among = rows.iter().map(|row| row.draws.among()).reduce(Among::and).ok_or(Error::Empty)?;
        let ahead = self.ahead()?;
        if ahead.started.len() >= STARTED {
            return Ok(false);
        }
        let key = (class, ahead.next, among);
        let ready = ahead.captured.contains_key(&key);
        if !self.started_rows() {
            // Whatever else is under way ends first.
            self.finish()?;
            self.fill_rope(length)?;
            if !ready {
                self.prepare_ahead(key)?;
            }
        } else if length > self.rope_filled || !ready {
            return Ok(false);
        }
        self.write_ahead(key.1, rows, &plain)?;
        let vars = [("n", rows.len() as i64), ("length", length as i64)];
        let ahead = self.ahead()?;
        let Some(captured) = ahead.captured.get_mut(&key) else { unreachable!("{key:?} was prepared") };
        captured.replay.start(&vars)?;
        ahead.started.push_back((key, rows.len()));
        ahead.next = (ahead.next + 1) % STARTED;
        Ok(true)
    }
    /// Waits for the earliest step that was started so: the token after each of its rows, none where none can be chosen.
    ///
    /// # Errors
    /// When none is under way, or the device fails.
    pub fn wait_for_rows(&mut self) -> Result<Vec<Option<u32>>, Error> {
        let device = self.device().clone();
        let ahead = self.ahead()?;
        let Some((key, rows)) = ahead.started.pop_front() else { return Err(Error::NoGeneration) };
        if let Some(captured) = ahead.captured.get_mut(&key) {
            captured.replay.wait()?;
        }
        let mut ids = vec![0i32; rows];
        device.read(&ahead.sets[key.1].chosen, 0, bytemuck::cast_slice_mut(&mut ids))?;
        Ok(ids.into_iter().map(|id| u32::try_from(id).ok()).collect())
    }
    /// Is such a step under way?
    pub fn started_rows(&self) -> bool {
        self.pool.as_ref().and_then(|pool| pool.ahead.as_ref()).is_some_and(|ahead| !ahead.started.is_empty())
    }
    /// Waits for all of them; what they chose is lost.
    pub(super) fn finish_rows(&mut self) -> Result<(), Error> {
        let mut ended = Ok(());
        while self.started_rows() {
            ended = ended.and(self.wait_for_rows().map(|_| ()));
        }
        ended
    }
    fn ahead(&mut self) -> Result<&mut Ahead, Error> {
        let device = self.device().clone();
        let pool = self.pool()?;
        if pool.ahead.is_none() {
            pool.ahead = Some(Ahead::new(&*device, pool.pools, pool.blocks, pool.sequences)?);
        }
        match &mut pool.ahead {
            Some(ahead) => Ok(ahead),
            None => Err(Error::NoPool),
        }
    }
    /// Compiles and captures: the tokens, the step, and their choice.
    fn prepare_ahead(&mut self, key: Key) -> Result<(), Error> {
        let (class, set, among) = key;
        let (vocabulary, sequences) = (self.model.vocabulary(), self.most_sequences());
        let plan = self.model.plan(&self.options(class), &mut self.functions);
        let choice = [sampling::next_function(sequences), among.function(vocabulary, class.tokens)];
        let [next, choice] = choice.map(|f| self.functions.share(f));
        let [next, choice]: [_; 2] = match self.ready(&[&next, &choice], &|_| ())?.try_into() {
            Ok(both) => both,
            Err(_) => unreachable!("two were asked for"),
        };
        let own = self.ahead()?.sets[set].inputs.clone();
        let steps = self.calls_with(&plan, Some(&own), &|_| ())?;
        let (tokens, logits) = (self.tokens.clone(), self.logits.clone());
        let sets = &self.ahead()?.sets;
        let (of, before) = (&sets[set], sets[(set + STARTED - 1) % STARTED].chosen.clone());
        let mut args = vec![logits];
        if among != Among::One {
            args.extend([of.numbers.clone(), of.random.clone()]);
        }
        args.push(of.chosen.clone());
        let first = Call { function: next, args: vec![before, of.from.clone(), of.given.clone(), tokens] };
        let calls: Vec<Call> = std::iter::once(first).chain(steps).chain([Call { function: choice, args }]).collect();
        let captured = self.capture(&calls)?;
        self.ahead()?.captured.insert(key, captured);
        Ok(())
    }
    fn write_ahead(&mut self, set: usize, rows: &[AheadRow], plain: &[Row]) -> Result<(), Error> {
        let device = self.device().clone();
        let set = &mut self.ahead()?.sets[set];
        set.inputs.write_table(&*device, plain)?;
        let write = |to: &Buffer, numbers: Vec<u8>| device.write(to, 0, &numbers);
        write(&set.inputs.positions, bytes(rows.iter().map(|row| row.position as u32)))?;
        let from = |source| if let Source::Row(row) = source { row as u32 } else { u32::MAX };
        write(&set.from, bytes(rows.iter().map(|row| from(row.token))))?;
        write(&set.given, bytes(rows.iter().map(|row| token(row.token).unwrap_or(0))))?;
        let numbers: Vec<f32> = rows.iter().flat_map(|row| row.draws.numbers).collect();
        device.write(&set.numbers, 0, bytemuck::cast_slice(&numbers))?;
        // What a step chooses stands one position after the token that it runs.
        let random = |row: &AheadRow| Random::at(row.draws.random, row.position + 1);
        write(&set.random, bytes(rows.iter().map(random)))?;
        Ok(())
    }
}

fn token(source: Source) -> Option<u32> {
    if let Source::Token(token) = source { Some(token) } else { None }
}
