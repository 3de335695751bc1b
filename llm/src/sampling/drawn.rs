//! The choice of a token for each row of a step of several sequences, each with its own numbers, as a function of the device: one of the first few ids, as
//! [`Choice::Best`](super::Choice::Best) has it. The most probable one is the first of one.

use super::choose::{BEST, Choice, NUMBERS};
use super::grid::{COLUMNS, at_least, parts_of_rows, plain};
use super::order::{Rows, first_ids};
use super::rng::Random;
use super::sampler::Sampler;
use super::weight::{part_of, probability, target_of, weight_of};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;

/// What a device draws a sequence's tokens with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Draws {
    /// The numbers of its request.
    pub numbers: [f32; NUMBERS],
    /// The random numbers of its seed: each token has that of the position it is chosen for.
    pub random: Random,
}

impl Draws {
    /// As that sampler chooses; none where that is not one of the first few.
    pub fn of(sampler: &Sampler) -> Option<Draws> {
        let numbers = match sampler.choice()? {
            Choice::Greedy => return Some(Draws::greedy()),
            Choice::Best => sampler.numbers(),
            Choice::First | Choice::Nucleus | Choice::All => return None,
        };
        Some(Draws { numbers, random: sampler.random() })
    }
    /// The most probable.
    pub fn greedy() -> Draws {
        Draws { numbers: [0.0, 1.0, probability(1.0), f32::MIN], random: Random::new(0) }
    }
    /// Is it always the most probable?
    pub fn is_greedy(&self) -> bool {
        self.numbers[1] == 1.0
    }
}

/// The function `sample.best.rows` for `n` rows of logits over a vocabulary, `n` from 1 to `most`. Its slots: logits `[n, vocabulary]` f32; the numbers of each request `[n, 4]` f32, of which the
/// second is at most [`BEST`]; the random number of each `[n]` i32; the ids `[n]` i32, or −1 where none can be chosen: a logit is no number, or infinite, or none is above −∞.
pub fn drawn_function(vocabulary: usize, most: usize) -> Function {
    let c = Capture::new(format!("sample.best.rows{most}"));
    let n = if most == 1 { c.int(1) } else { c.var("n", 1, most) };
    let (parts, columns) = (vocabulary.div_ceil(COLUMNS), COLUMNS);
    let logits = c.input("logits", dims![n, vocabulary], Scalar::F32);
    let numbers = c.input("requests", dims![n, NUMBERS], Scalar::F32);
    let random = c.input("random", dims![n], Scalar::I32);
    // Of each row a number beside all that it has.
    let number = |i: usize| numbers.slice(1, i, 1);
    let (scale, top_k, top_p, min_p) = (number(0), number(1), number(2).reshape(dims![n]), number(3));
    let x = parts_of_rows(logits, n, vocabulary);
    let of_row = x.max(&[2]);
    let largest = of_row.max(&[1]);
    let (best, id) = first_ids(&Rows { x, of_row, n, rows: parts, columns }, BEST);
    let below = best - largest.unsqueeze(1);
    let (among, none) = (c.iota(dims![n, BEST], 1).lt(top_k.cast(Scalar::I32)), c.constant(0.0, Scalar::I64));
    // Probabilities are those among the first k; an id stays while those before it have not enough together.
    let mass = among.select(weight_of(below, plain(below)), none);
    let wanted = part_of(mass.sum(&[1]), top_p).unsqueeze(1);
    let inside = id.lt(vocabulary as i64);
    let stays = among & inside & sums(mass, 0).lt(wanted) & at_least(best, largest.unsqueeze(1) + min_p);
    let weight = stays.select(weight_of(below, scale), none);
    let target = target_of(weight.sum(&[1]), random).unsqueeze(1);
    // The first whose sum is above the target.
    let reached = target.lt(sums(weight, 1)).cast(Scalar::I32).sum(&[1]);
    let place = (reached * -1i64 + BEST as i64).clamp_index(BEST - 1) + c.iota(dims![n], 0) * BEST as i64;
    let id = id.reshape(dims![n * BEST as i64]).gather(place).clamp_index(vocabulary - 1);
    // Comparisons with what is no number are false.
    let numbers = x.lt(f64::from(f32::MAX)).cast(Scalar::I32).sum(&[2]).sum(&[1]);
    let sound = numbers.equals((parts * columns) as i64) & largest.gt(f64::from(f32::MIN));
    c.output("tokens", sound.select(id, c.constant(-1.0, Scalar::I32)));
    c.finish()
}

/// Of each place of rows `[n, BEST]` the sum of those before it, and of so many from it on.
fn sums(values: Tensor<'_>, own: i64) -> Tensor<'_> {
    let square = dims![BEST, BEST];
    let c = values.capture();
    let counts = c.iota(square, 1).lt(c.iota(square, 0) + own);
    counts.unsqueeze(0).select(values.unsqueeze(1), 0i64).sum(&[2])
}

/// The function `sample.next` for the tokens of a step of `n` rows, `n` from 1 to `most`. Its slots: the ids that were chosen for the rows of another step `[most]` i32; of each row which of them it is, or −1
/// `[n]` i32; what it is then `[n]` i32; the tokens `[n]` i32.
pub fn next_function(most: usize) -> Function {
    let c = Capture::new(format!("sample.next{most}"));
    let n = if most == 1 { c.int(1) } else { c.var("n", 1, most) };
    let chosen = c.input("chosen", dims![most], Scalar::I32);
    let (from, given) = (c.input("from", dims![n], Scalar::I32), c.input("given", dims![n], Scalar::I32));
    let before = chosen.gather(from.clamp_index(most - 1));
    c.output("tokens", from.lt(0).select(given, before));
    c.finish()
}
