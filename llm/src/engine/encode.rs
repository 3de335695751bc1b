//! Steps of text encoders: several whole texts, without a KV cache.

use super::executor::Engine;
use super::graph_key::GraphKey;
use super::graphs::Variables;
use super::step::Step;
use crate::arch::{Logits, MAX_TEXTS};
use crate::error::Error;

/// Token of the row of padding that ends a step; any token of a vocabulary.
const PADDING: u32 = 0;

impl Engine {
    /// Returns how many of these texts, from the first on, one step encodes: at least one.
    pub fn texts_of_step(&self, texts: &[Vec<u32>]) -> usize {
        let mut rows = 1;
        let fits = |text: &&Vec<u32>| {
            rows += text.len();
            rows <= self.chunk()
        };
        let count = texts.iter().take(MAX_TEXTS).take_while(fits).count();
        count.max(1)
    }
    /// Runs texts through a text encoder, and passes `each` the hidden rows of every text, with its
    /// index: the last layer's output before a final norm, row-major `[n, width]`.
    ///
    /// # Errors
    /// When the model is no encoder, a text is empty, too long or has ids outside the vocabulary,
    /// or the device fails.
    pub fn encode(
        &mut self,
        texts: &[Vec<u32>],
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        texts.iter().try_for_each(|text| self.check_text(text))?;
        self.finish()?;
        let (mut first, width) = (0, self.model.width());
        while first < texts.len() {
            let end = first + self.texts_of_step(&texts[first..]);
            let tokens = self.run_texts(&texts[first..end])?;
            let mut rows = vec![0f32; tokens * width];
            self.read_hidden(0, bytemuck::cast_slice_mut(&mut rows))?;
            let mut rest = &rows[..];
            for (number, text) in (first..).zip(&texts[first..end]) {
                let (own, behind) = rest.split_at(text.len() * width);
                each(number, own);
                rest = behind;
            }
            first = end;
        }
        Ok(())
    }
    fn check_text(&self, text: &[u32]) -> Result<(), Error> {
        if !self.model.is_encoder() {
            return Err(Error::NoEncoder);
        }
        self.check_tokens(text)?;
        match text.len() > self.context {
            true => Err(Error::Text {
                tokens: text.len(),
                context: self.context,
            }),
            false => Ok(()),
        }
    }
    /// Runs a step with these texts; returns the number of their tokens.
    fn run_texts(&mut self, texts: &[Vec<u32>]) -> Result<usize, Error> {
        let tokens: usize = texts.iter().map(Vec::len).sum();
        let graph = GraphKey {
            tokens: self.limit.bucket(tokens + 1),
            batch: false,
            others: 0,
            logits: Logits::None,
            depth: self.rows(),
            contiguous: true,
            draft: None,
        };
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        self.fill_rope(longest)?;
        let key = self.plain(graph, None);
        self.prepare(&key, &|_| ())?;
        let rows = texts.iter().zip(0u32..).flat_map(|(text, number)| {
            let tokens = text.iter().copied().zip(0usize..);
            tokens.map(move |(token, position)| (token, position, number))
        });
        let padding = (PADDING, 0, MAX_TEXTS as u32);
        let rows: Vec<(u32, usize, u32)> = rows.chain([padding]).collect();
        for (number, on) in self.on.iter().enumerate() {
            let (device, inputs) = (&**self.graphs.on(number), &on.inputs[key.set]);
            inputs.write_tokens(device, rows.iter().map(|row| row.0))?;
            inputs.write_positions(device, rows.iter().map(|row| row.1))?;
            inputs.write_texts(device, rows.iter().map(|row| row.2))?;
        }
        let variables: Variables = vec![("n", rows.len() as i64)];
        self.replay(&Step::default(), key, &variables)?;
        self.wait()?;
        Ok(tokens)
    }
}
