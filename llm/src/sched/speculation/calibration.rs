//! Times of steps by their rows, measured before the first request where no earlier start has.

use super::{Drafter, Speculation};
use crate::engine::{DecodeRow, Engine, Step, TokenSource, WholePool};
use crate::error::Error;
use gristmill_uop::clock::Instant;
use std::collections::BTreeMap;

/// Most rows of a measured step: a single sequence has no more. Times of further rows follow from
/// the growth of these.
const MOST_ROWS: usize = 16;
/// Most rows of a measured step of a model that drafts for a single sequence.
const MOST_DRAFTING: usize = 4;
/// Context depth of measured steps, where the context allows it.
const DEPTH: usize = 256;
/// Repetitions of a step after the first one, which may compile it; the shortest time counts.
const REPETITIONS: usize = 3;
/// Seconds after which no further number of rows is measured. On an H200 a step of GLM-4.7-Flash
/// compiles in 3 to 5 s.
const BUDGET: f64 = 30.0;

/// Steps of one sequence in the pages of an engine without sequences.
struct Measuring<'a> {
    engine: &'a mut Engine,
    pool: WholePool,
    first: usize,
    begun: Instant,
}

impl Measuring<'_> {
    /// Returns the token at a place of a step: far apart, so that they choose different experts.
    fn token(&self, at: usize) -> u32 {
        (at * (self.engine.model().vocabulary() / (MOST_ROWS + 1))) as u32
    }
    /// Returns the shortest time of a step that was run before.
    fn time(&mut self, run: &mut dyn FnMut(&mut Self) -> Result<(), Error>) -> Result<f64, Error> {
        run(self)?;
        let mut best = f64::INFINITY;
        for _ in 0..REPETITIONS {
            let begun = Instant::now();
            run(self)?;
            best = best.min(begun.elapsed().as_secs_f64());
        }
        Ok(best)
    }
    /// Runs a step that verifies `rows` − 1 drafts.
    fn verify(&mut self, rows: usize) -> Result<(), Error> {
        let tokens: Vec<u32> = (0..rows).map(|at| self.token(at)).collect();
        if rows > 1 && self.engine.cache().state_rows() > 0 {
            let step = Step {
                drafted: Some(rows - 1),
                ..self.pool.step(&tokens, self.first)
            };
            return self.engine.run(&step).map(|_| ());
        }
        let rows = rows_of(&self.pool, self.first, &tokens);
        let step = Step {
            rows: &rows,
            contiguous: rows.len() == 1,
            ..Step::default()
        };
        self.engine.run(&step).map(|_| ())
    }
    /// Runs a step of the model that drafts.
    fn draft(&mut self, drafter: &mut Drafter, rows: usize, is_first: bool) -> Result<(), Error> {
        let tokens: Vec<u32> = (0..rows).map(|at| self.token(at)).collect();
        let rows = rows_of(&self.pool, self.first, &tokens);
        let from = vec![Some(0); rows.len()];
        drafter
            .run(self.engine, &rows, (&from, is_first))
            .map(|_| ())
    }
    fn is_over(&self) -> bool {
        self.begun.elapsed().as_secs_f64() > BUDGET
    }
}

/// Returns rows of one sequence from a position on.
fn rows_of<'p>(pool: &'p WholePool, first: usize, tokens: &[u32]) -> Vec<DecodeRow<'p>> {
    let each = tokens.iter().enumerate();
    each.map(|(at, &token)| pool.row(TokenSource::Token(token), first + at))
        .collect()
}

/// Returns the powers of two up to a number.
fn powers(most: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1usize), |rows| rows.checked_mul(2)).take_while(move |&n| n <= most)
}

impl Speculation {
    /// Measures the times of steps that are not known yet; the engine has no sequences.
    ///
    /// Kernels are compiled here, and not in the middle of an answer. An error is left to the
    /// first request.
    pub fn calibrated(mut self, engine: &mut Engine) -> Speculation {
        let most = self.rows.min(MOST_ROWS);
        let known = self.times.known();
        let is_known = powers(most).all(|rows| known.contains_key(&rows));
        let room = engine.context().saturating_sub(most + 1);
        if self.assumes_times || is_known || room == 0 {
            return self;
        }
        let mut of = Measuring {
            pool: WholePool::new(engine),
            engine,
            first: room.min(DEPTH),
            begun: Instant::now(),
        };
        let mut drafter = self.drafter.take();
        let measured = measure(&mut of, drafter.as_mut(), most);
        self.captures = of.engine.captures();
        self.drafter = drafter;
        if let Ok([steps, drafting]) = measured {
            self.times.restore(steps);
            self.draft_times.restore(drafting);
            self.keep_times();
        }
        self
    }
}

/// Returns the times of steps by rows, and of steps of the model that drafts.
fn measure(
    of: &mut Measuring<'_>,
    drafter: Option<&mut Drafter>,
    most: usize,
) -> Result<[BTreeMap<usize, f64>; 2], Error> {
    let [mut steps, mut drafting] = [BTreeMap::new(), BTreeMap::new()];
    for rows in powers(most) {
        if of.is_over() {
            break;
        }
        steps.insert(rows, of.time(&mut |of| of.verify(rows))?);
    }
    let Some(drafter) = drafter else {
        return Ok([steps, drafting]);
    };
    let most = match drafter.shares_cache(of.engine) {
        true => 1,
        false => most.min(MOST_DRAFTING),
    };
    for rows in powers(most) {
        if of.is_over() {
            break;
        }
        let seconds = of.time(&mut |of| of.draft(drafter, rows, true))?;
        drafting.insert(rows, seconds);
    }
    if drafter.reads_hidden() {
        of.draft(drafter, 1, false)?;
    }
    Ok([steps, drafting])
}
