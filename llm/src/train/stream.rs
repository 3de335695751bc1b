//! Rows of training batches in an order that a seed fixes.

use super::data::Example;
use super::trainer::TrainingBatch;
use crate::sampling::PositionRng;

/// How examples become rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamOptions {
    /// Tokens of a row.
    pub length: usize,
    /// Rows of a pass.
    pub sequences: usize,
    /// Passes of a step.
    pub accumulate: usize,
    /// Seed of the order; `None` for that of the file.
    pub seed: Option<u64>,
    /// Puts several short examples in one row.
    pub pack: bool,
    /// Token that fills rows.
    pub padding: u32,
}

/// An endless stream of batches: epoch after epoch, each in an order of its own.
pub struct Stream {
    options: StreamOptions,
    examples: Vec<Example>,
    epoch: u64,
    /// Rows of the epoch that are not used yet, last first: indices of examples.
    rows: Vec<Vec<usize>>,
}

/// One row: tokens, targets, and the position of each token in its example.
struct Row {
    tokens: Vec<u32>,
    is_target: Vec<bool>,
    positions: Vec<u32>,
}

impl Stream {
    /// Creates a stream; texts longer than a row are cut into several examples.
    ///
    /// # Panics
    /// If there are no examples.
    pub fn new(examples: Vec<Example>, options: StreamOptions) -> Stream {
        assert!(!examples.is_empty(), "a stream of no examples");
        let length = options.length;
        let examples = examples
            .into_iter()
            .flat_map(|example| cut(example, length))
            .collect();
        let mut stream = Stream {
            options,
            examples,
            epoch: 0,
            rows: Vec::new(),
        };
        stream.rows = stream.epoch_rows();
        stream
    }
    /// Rows of an epoch.
    pub fn rows_of_epoch(&self) -> usize {
        self.epoch_rows().len()
    }
    /// Epoch of the next row, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
    /// Leaves out the rows of `steps` steps, which were used before.
    pub fn skip_steps(&mut self, steps: u64) {
        for _ in 0..steps * (self.options.sequences * self.options.accumulate) as u64 {
            self.next_row();
        }
    }
    /// Returns the batches of one step. Weights are 1 / number of targets of all of them.
    pub fn next_step(&mut self) -> Vec<TrainingBatch> {
        let StreamOptions {
            sequences,
            accumulate,
            ..
        } = self.options;
        let rows: Vec<Row> = (0..sequences * accumulate)
            .map(|_| {
                let row = self.next_row();
                self.row(&row)
            })
            .collect();
        let targets = |row: &Row| row.is_target.iter().filter(|&&t| t).count();
        let weight = 1.0 / rows.iter().map(targets).sum::<usize>().max(1) as f32;
        rows.chunks(sequences)
            .map(|rows| batch(rows, weight))
            .collect()
    }
    /// Returns all examples once as batches, and the number of targets of each; the last batch may
    /// repeat a row without weight. Weights are 1.
    pub fn all_once(&self) -> Vec<(TrainingBatch, usize)> {
        let mut rows: Vec<Row> = self
            .epoch_rows()
            .iter()
            .rev()
            .map(|row| self.row(row))
            .collect();
        let sequences = self.options.sequences;
        while !rows.len().is_multiple_of(sequences) {
            let mut row = self.row(&[0]);
            row.is_target.fill(false);
            rows.push(row);
        }
        let count = |rows: &[Row]| {
            let of = rows.iter().flat_map(|row| &row.is_target);
            of.filter(|&&t| t).count()
        };
        rows.chunks(sequences)
            .map(|rows| (batch(rows, 1.0), count(rows)))
            .collect()
    }
    fn next_row(&mut self) -> Vec<usize> {
        loop {
            if let Some(row) = self.rows.pop() {
                return row;
            }
            self.epoch += 1;
            self.rows = self.epoch_rows();
        }
    }
    /// Rows of the current epoch, last first.
    fn epoch_rows(&self) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..self.examples.len()).collect();
        if let Some(seed) = self.options.seed {
            shuffle(&mut order, seed.wrapping_add(self.epoch));
        }
        let mut rows: Vec<Vec<usize>> = Vec::new();
        let mut left = 0;
        for at in order {
            let length = self.examples[at].tokens.len().min(self.options.length);
            match rows
                .last_mut()
                .filter(|_| self.options.pack && length <= left)
            {
                Some(row) => row.push(at),
                None => {
                    rows.push(vec![at]);
                    left = self.options.length;
                }
            }
            left -= length;
        }
        rows.reverse();
        rows
    }
    fn row(&self, examples: &[usize]) -> Row {
        let length = self.options.length;
        let mut row = Row {
            tokens: Vec::with_capacity(length),
            is_target: Vec::with_capacity(length),
            positions: Vec::with_capacity(length),
        };
        for &at in examples {
            let example = &self.examples[at];
            let count = example.tokens.len().min(length - row.tokens.len());
            row.tokens.extend(&example.tokens[..count]);
            row.is_target.extend(&example.is_target[..count]);
            row.positions.extend(0..count as u32);
        }
        let missing = (length - row.tokens.len()) as u32;
        row.tokens.resize(length, self.options.padding);
        row.is_target.resize(length, false);
        row.positions.extend(0..missing);
        row
    }
}

/// Cuts a long text into pieces of `length` tokens. Each piece after the first begins with the last
/// token of the one before, so that every token is predicted once.
fn cut(example: Example, length: usize) -> Vec<Example> {
    if !example.is_text || example.tokens.len() <= length || length < 2 {
        return vec![example];
    }
    let mut out = Vec::new();
    let mut begin = 0;
    while begin + 1 < example.tokens.len() {
        let end = (begin + length).min(example.tokens.len());
        let mut is_target = example.is_target[begin..end].to_vec();
        is_target[0] = false;
        out.push(Example {
            tokens: example.tokens[begin..end].to_vec(),
            is_target,
            is_text: true,
            ..Example::default()
        });
        begin = end - 1;
    }
    out
}

/// Rows side by side, each token with the next one as its target.
fn batch(rows: &[Row], weight: f32) -> TrainingBatch {
    let mut out = TrainingBatch::default();
    for row in rows {
        out.tokens.extend(&row.tokens);
        out.positions.extend(&row.positions);
        out.targets
            .extend(row.tokens[1..].iter().chain([&row.tokens[0]]));
        let weights = row.is_target[1..]
            .iter()
            .map(|&t| if t { weight } else { 0.0 });
        out.weights.extend(weights.chain([0.0]));
    }
    out
}

/// Fisher-Yates shuffle, the same on every machine.
fn shuffle(order: &mut [usize], seed: u64) {
    let random = PositionRng::new(seed);
    for i in (1..order.len()).rev() {
        order.swap(i, random.at(i) as usize % (i + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(tokens: std::ops::Range<u32>) -> Example {
        let tokens: Vec<u32> = tokens.collect();
        Example {
            is_target: (0..tokens.len()).map(|i| i > 0).collect(),
            tokens,
            ..Example::default()
        }
    }
    const OPTIONS: StreamOptions = StreamOptions {
        length: 8,
        sequences: 2,
        accumulate: 1,
        seed: None,
        pack: false,
        padding: 99,
    };

    #[test]
    fn rows_follow_the_file_and_begin_again() {
        let mut stream = Stream::new(
            vec![example(0..3), example(10..20), example(20..22)],
            OPTIONS,
        );
        let first = &stream.next_step()[0];
        assert_eq!(
            first.tokens,
            [0, 1, 2, 99, 99, 99, 99, 99, 10, 11, 12, 13, 14, 15, 16, 17]
        );
        assert_eq!(first.targets[..2], [1, 2]);
        assert_eq!(first.weights[..4], [1.0 / 9.0, 1.0 / 9.0, 0.0, 0.0]);
        assert_eq!(stream.next_step()[0].tokens[8..11], [0, 1, 2]);
        assert_eq!(stream.epoch(), 1);
    }
    #[test]
    fn packed_examples_have_positions_of_their_own() {
        let options = StreamOptions {
            pack: true,
            sequences: 1,
            ..OPTIONS
        };
        let mut stream = Stream::new(
            vec![example(0..3), example(10..15), example(20..22)],
            options,
        );
        assert_eq!(stream.rows_of_epoch(), 2);
        let row = &stream.next_step()[0];
        assert_eq!(row.tokens, [0, 1, 2, 10, 11, 12, 13, 14]);
        assert_eq!(row.positions, [0, 1, 2, 0, 1, 2, 3, 4]);
        // The first token of an example is no target.
        assert_eq!(
            row.weights.iter().map(|&w| w > 0.0).collect::<Vec<_>>(),
            [true, true, false, true, true, true, true, false]
        );
    }
    #[test]
    fn a_seed_fixes_the_order_and_skipping_continues_it() {
        let options = StreamOptions {
            seed: Some(7),
            ..OPTIONS
        };
        let stream = || {
            Stream::new(
                (0..30).map(|i| example(10 * i..10 * i + 4)).collect(),
                options,
            )
        };
        let (mut all, mut later) = (stream(), stream());
        let steps: Vec<_> = (0..6).map(|_| all.next_step()).collect();
        later.skip_steps(4);
        assert_eq!(later.next_step(), steps[4]);
        let mut in_order = Stream::new(all.examples, OPTIONS);
        let unshuffled: Vec<_> = (0..6).map(|_| in_order.next_step()).collect();
        assert_ne!(steps, unshuffled);
    }
    #[test]
    fn long_texts_are_cut_and_every_token_is_predicted_once() {
        let text = Example {
            is_text: true,
            ..example(0..20)
        };
        let parts = cut(text, 8);
        let predicted: Vec<u32> = parts
            .iter()
            .flat_map(|p| p.tokens.iter().zip(&p.is_target))
            .filter(|(_, t)| **t)
            .map(|(t, _)| *t)
            .collect();
        assert_eq!(predicted, (1..20).collect::<Vec<u32>>());
    }
}
