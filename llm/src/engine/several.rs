//! Steps of several sequences: one token each, whose rows of the cache lie in pages of a pool. And which pages a step of one sequence has.

use super::captured::{Captured, Variables};
use super::class::{Class, batch_class};
use super::error::{Error, Progress};
use super::executor::Engine;
use super::inputs::{Row, bytes, write_pages};
use super::pages::Pages;
use super::pool::Pool;
use crate::arch::Options;
use crate::sampling;
use gristmill_runtime::Span;
use gristmill_tensor::jit::{Call, Ready};
use std::sync::Arc;

impl Engine {
    /// Most sequences of a step; 1 where its cache is one sequence's.
    pub fn most_sequences(&self) -> usize {
        self.pool.as_ref().map_or(1, |pool| pool.sequences)
    }
    pub(super) fn pool(&mut self) -> Result<&mut Pool, Error> {
        self.pool.as_mut().ok_or(Error::NoPool)
    }
    /// Makes these pages, in the order of its positions, those of the sequence that steps of one sequence are of from now on. Their positions must lie in them.
    ///
    /// # Errors
    /// When there is no pool, a page is none of it, or the device fails.
    pub fn select(&mut self, pages: Pages) -> Result<(), Error> {
        self.finish()?;
        let device = self.device().clone();
        let pool = self.pool()?;
        pool.check(pages)?;
        device.write(&pool.own_state, 0, &bytes(std::iter::once(pages.state)))?;
        write_pages(&*device, &pool.own, 0, &mut pool.own_written, pages)
    }
    /// Compiles and captures the steps of so many sequences at most; else that happens when the first runs.
    ///
    /// # Errors
    /// When there is no pool, or the device fails.
    pub fn prepare_rows(&mut self, sequences: usize, progress: &dyn Fn(Progress)) -> Result<(), Error> {
        let rows = self.cache.rows;
        let most = self.pool()?.sequences;
        let class = batch_class(sequences.clamp(1, most), most, rows);
        if self.pool()?.captured.contains_key(&class) {
            return Ok(());
        }
        let vocabulary = self.model.vocabulary();
        let plan = self.model.plan(&self.options(class), &mut self.functions);
        let choice = self.functions.share(sampling::rows_function(vocabulary, class.tokens));
        let choice = self.ready(&[&choice], progress)?.remove(0);
        let mut calls = self.calls(&plan, progress)?;
        let args = vec![self.logits.clone(), self.pool()?.chosen.clone()];
        calls.push(Call { function: choice, args });
        let captured = self.capture(&calls)?;
        self.pool()?.captured.insert(class, captured);
        Ok(())
    }
    /// Runs one token of each of these sequences. [`Engine::most_probable`] and [`Engine::row_logits`] tell what follows.
    ///
    /// # Errors
    /// When there is no pool, there are no rows or too many, a token or a position is none, or the device fails. What the step has written is not to be used then.
    pub fn step_rows(&mut self, rows: &[Row]) -> Result<(), Error> {
        self.step_in(rows, 1)
    }
    /// The same in a class of several rows, however few these are: what a row gives is then the same to the bit whichever rows are beside it.
    ///
    /// # Errors
    /// As for [`Engine::step_rows`].
    pub fn step_rows_alike(&mut self, rows: &[Row]) -> Result<(), Error> {
        // Kernels of different classes sum in different orders: all such rows are in the largest class.
        let least = self.most_sequences();
        self.step_in(rows, least)
    }
    fn step_in(&mut self, rows: &[Row], least: usize) -> Result<(), Error> {
        let (class, vars) = self.ready_rows(rows, least)?;
        Ok(self.captured_rows(&class)?.replay.replay(&vars)?)
    }
    /// As [`Engine::step_rows`], with when each worker was at each launch, and the most probable tokens read as they are for a caller.
    ///
    /// # Errors
    /// As for [`Engine::step_rows`].
    pub fn traced_rows(&mut self, rows: &[Row]) -> Result<Vec<Span>, Error> {
        let (class, vars) = self.ready_rows(rows, 1)?;
        let spans = self.captured_rows(&class)?.replay.replay_traced(&vars)?;
        self.most_probable(rows.len())?;
        Ok(spans)
    }
    pub(super) fn captured_rows(&mut self, class: &Class) -> Result<&mut Captured, Error> {
        match self.pool()?.captured.get_mut(class) {
            Some(captured) => Ok(captured),
            None => unreachable!("{class:?} was prepared"),
        }
    }
    /// Writes what a step of these rows reads, and makes its class, of `least` rows or more, ready.
    pub(super) fn ready_rows(&mut self, rows: &[Row], least: usize) -> Result<(Class, Variables), Error> {
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        self.check(&tokens)?;
        self.check_rows(rows)?;
        self.finish()?;
        self.write_table(rows)?;
        let device = self.device().clone();
        let pool = self.pool()?;
        device.write(&pool.inputs.positions, 0, &bytes(rows.iter().map(|row| row.position as u32)))?;
        let most = pool.sequences;
        let length = rows.iter().map(|row| row.position + 1).max().unwrap_or(1);
        self.set_tokens(&tokens)?;
        self.fill_rope(length)?;
        let sequences = rows.len().max(least);
        self.prepare_rows(sequences, &|_| ())?;
        let class = batch_class(sequences, most, self.cache.rows);
        Ok((class, [("n", rows.len() as i64), ("length", length as i64)]))
    }
    /// Are these rows of a step, though there may be none?
    pub(super) fn check_rows(&mut self, rows: &[Row]) -> Result<(), Error> {
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        if !tokens.is_empty() {
            self.check(&tokens)?;
        }
        let context = self.context;
        let pool = self.pool()?;
        for row in rows {
            pool.check(row.pages)?;
            if row.position >= context {
                return Err(Error::Full(context));
            }
            if row.pages.all.len() * Options::PAGE <= row.position {
                return Err(Error::Pages);
            }
        }
        match rows.len() > pool.sequences {
            true => Err(Error::Sequences { rows: rows.len(), most: pool.sequences }),
            false => Ok(()),
        }
    }
    /// Makes the pages of these rows those of the table's.
    pub(super) fn write_table(&mut self, rows: &[Row]) -> Result<(), Error> {
        let device = self.device().clone();
        self.pool()?.inputs.write_table(&*device, rows)
    }
    /// The most probable token after each of the first `rows` of the last step; none where a logit is no number or infinite, or all are −∞.
    ///
    /// # Errors
    /// When there is no pool, or the device fails.
    pub fn most_probable(&mut self, rows: usize) -> Result<Vec<Option<u32>>, Error> {
        let device = self.device().clone();
        let mut ids = vec![0i32; rows];
        device.read(&self.pool()?.chosen, 0, bytemuck::cast_slice_mut(&mut ids))?;
        Ok(ids.into_iter().map(|id| u32::try_from(id).ok()).collect())
    }
    /// The logits after that row of the last step, in place of what `logits` has.
    ///
    /// # Errors
    /// When the device fails.
    pub fn row_logits(&self, row: usize, logits: &mut Vec<f32>) -> Result<(), Error> {
        let vocabulary = self.model.vocabulary();
        logits.resize(vocabulary, 0.0);
        let place = row * vocabulary * size_of::<f32>();
        Ok(self.device().read(&self.logits, place, bytemuck::cast_slice_mut(logits))?)
    }
    /// The function and program number of every launch of a step of so many sequences, in order; none before the first such step.
    pub fn row_launches(&self, sequences: usize) -> &[(Arc<Ready>, usize)] {
        let Some(pool) = &self.pool else { return &[] };
        let class = batch_class(sequences, pool.sequences, self.cache.rows);
        pool.captured.get(&class).map_or(&[], |captured| &captured.launches)
    }
}
