//! Chooses the numbers of a block: the f16s, the fields of its groups, and the codes.

use super::choice::{Choice, line};
use super::exact;
use super::fit::{Form, Line, Numbers, Sums, error, fit, plain, represents};
use super::group::Weighted;
use super::layout::{ElementCodes, Factor, Layout};
use half::f16;
use std::ops::Range;

/// Least weight of a number, relative to the mean of its block.
const LEAST_WEIGHT: f64 = 1e-6;
/// Most times that the f16s of a block are computed again for the codes found with them.
const ROUNDS: usize = 2;

/// Scratch space of one block.
pub(super) struct Search<'l> {
    layout: &'l Layout,
    form: Form,
    /// Numbers of the block divided by `unit`, so that their squares are in f32's range.
    x: Vec<f32>,
    /// Weights of their squared errors.
    weights: Vec<f32>,
    is_uniform: bool,
    unit: f64,
}

impl<'l> Search<'l> {
    pub fn new(layout: &'l Layout) -> Search<'l> {
        // The f16 has the same sign for all groups.
        let has_sign = |factor: &Factor| match factor.fields.first() {
            Some(field) => field.levels.ends()[0] < 0.0,
            None => factor.half.is_some(),
        };
        let form = match &layout.offset {
            None => Form::Scale(has_sign(&layout.scale)),
            Some(offset) if offset.fields.is_empty() => Form::Line,
            Some(_) => Form::LineBelow,
        };
        let n = layout.groups.last().map_or(0, |group| group.end);
        Search {
            layout,
            form,
            x: vec![0.0; n],
            weights: vec![1.0; n],
            is_uniform: true,
            unit: 1.0,
        }
    }
    /// Encodes one block into zero bytes; `weights` are those of the squared errors, if these are
    /// not alike.
    pub fn encode(&mut self, x: &[f32], weights: Option<&[f32]>, block: &mut [u8]) {
        self.normalise(x);
        if let Some(weights) = weights {
            self.weigh(weights);
        }
        let found = exact::find(self.layout, |range| self.group(range), self.unit);
        let choice = match found.filter(|choice| self.represents(choice)) {
            Some(choice) => choice,
            None => self.best(),
        };
        self.write(&choice, block);
    }
    /// Takes the numbers of a block; those that are no numbers are 0, infinite ones the largest.
    fn normalise(&mut self, x: &[f32]) {
        let defined = |x: f32| {
            if x.is_nan() {
                0.0
            } else {
                x.clamp(f32::MIN, f32::MAX)
            }
        };
        let largest = x.iter().fold(0f32, |most, &x| most.max(defined(x).abs()));
        // A power of two, so that the division is exact.
        self.unit = match largest > 0.0 {
            true => f64::from(largest).log2().floor().exp2(),
            false => 1.0,
        };
        let inverse = 1.0 / self.unit;
        for (out, &x) in self.x.iter_mut().zip(x) {
            *out = (f64::from(defined(x)) * inverse) as f32;
        }
    }
    /// Takes the weights of a block, divided by their mean. Numbers without weight get a small one,
    /// so that they stay what they are where that costs nothing.
    fn weigh(&mut self, weights: &[f32]) {
        self.is_uniform = false;
        let defined = |w: f32| {
            if w > 0.0 {
                f64::from(w.min(f32::MAX))
            } else {
                0.0
            }
        };
        let sum: f64 = weights.iter().map(|&w| defined(w)).sum();
        let inverse = if sum > 0.0 {
            weights.len() as f64 / sum
        } else {
            0.0
        };
        for (out, &w) in self.weights.iter_mut().zip(weights) {
            *out = (defined(w) * inverse).max(LEAST_WEIGHT) as f32;
        }
    }
    /// Numbers of a group with their weights.
    fn group(&self, range: &Range<usize>) -> Weighted<'_> {
        Weighted {
            x: &self.x[range.clone()],
            weights: &self.weights[range.clone()],
            is_uniform: self.is_uniform,
        }
    }
    /// Whether a choice found by `exact` represents the numbers.
    fn represents(&self, choice: &Choice) -> bool {
        let layout = self.layout;
        layout.groups.iter().enumerate().all(|(group, range)| {
            let line = choice.line(layout, group, self.unit);
            represents(layout.rounding(), self.group(range), line)
        })
    }
    /// Finds a choice with a small squared error.
    fn best(&self) -> Choice {
        let layout = self.layout;
        let codes = layout.rounding();
        let fit = |range: &Range<usize>| fit(codes, self.group(range), self.form);
        let mut starts: Vec<Vec<Line>> = vec![layout.groups.iter().map(fit).collect()];
        // With one group, rounding to the nearest with the extremes at the ends is tried too.
        if let [range] = &layout.groups[..] {
            let lines = plain(codes, &self.x[range.clone()], self.form);
            starts.extend(lines.map(|line| vec![line]));
        }
        let mut best: Option<(f64, Choice)> = None;
        for (number, lines) in starts.iter().enumerate() {
            let first = number == 0;
            let halves = self.halves_of(lines);
            let mut candidate = self.fields(halves, lines);
            for _ in 0..if first { ROUNDS } else { 0 } {
                let Some((halves, lines)) = self.refined(&candidate.1) else {
                    break;
                };
                let next = self.fields(halves, &lines);
                if next.0 >= candidate.0 {
                    break;
                }
                candidate = next;
            }
            if best.as_ref().is_none_or(|best| candidate.0 < best.0) {
                best = Some(candidate);
            }
        }
        best.expect("a block has a first start").1
    }
    /// The f16s with which the largest line is represented by the largest field.
    fn halves_of(&self, lines: &[Line]) -> [f32; 2] {
        let half = |factor: &Factor, of: fn(&Line) -> f64| {
            let largest = lines
                .iter()
                .map(of)
                .fold(0.0, |a: f64, b| if b.abs() > a.abs() { b } else { a });
            let field = factor.fields.first().map_or(1.0, |field| {
                let [low, high] = field.levels.ends();
                if -low > high { low } else { high }
            });
            match &factor.half {
                None => 1.0,
                Some(_) => to_half(largest * self.unit / f64::from(field * factor.sign)),
            }
        };
        let offset = self
            .layout
            .offset
            .as_ref()
            .map(|factor| half(factor, |line| line.offset));
        [
            half(&self.layout.scale, |line| line.scale),
            offset.unwrap_or(0.0),
        ]
    }
    /// Chooses the fields of all groups; returns the squared error too.
    fn fields(&self, halves: [f32; 2], lines: &[Line]) -> (f64, Choice) {
        let layout = self.layout;
        let mut choice = Choice::new(halves, Vec::new(), Vec::new());
        let mut total = 0.0;
        for (group, line) in lines.iter().enumerate() {
            let scales = near(
                Some(&layout.scale),
                group,
                line.scale * self.unit,
                halves[0],
            );
            let offset = line.offset * self.unit;
            let offsets = near(layout.offset.as_ref(), group, offset, halves[1]);
            let mut best = (f64::INFINITY, 0, 0);
            for scale in scales {
                for offset in offsets.clone() {
                    let found = self.group_error(&halves, group, [scale, offset]);
                    if found < best.0 {
                        best = (found, scale, offset);
                    }
                }
            }
            total += best.0;
            choice.scales.push(best.1);
            choice.offsets.push(best.2);
        }
        (total, choice)
    }
    /// Squared error of a group with these fields.
    fn group_error(&self, halves: &[f32; 2], group: usize, [scale, offset]: [usize; 2]) -> f64 {
        let line = line(self.layout, *halves, group, [scale, offset], self.unit);
        let range = &self.layout.groups[group];
        error(self.layout.rounding(), self.group(range), line)
    }
    /// The f16s with the least squared error for the codes and fields of a choice, and its lines;
    /// `None` if no f16 would change.
    fn refined(&self, choice: &Choice) -> Option<([f32; 2], Vec<Line>)> {
        let layout = self.layout;
        let mut all = Sums::default();
        let groups: Vec<Line> = (0..layout.groups.len())
            .map(|g| choice.line(layout, g, self.unit))
            .collect();
        for (range, line) in layout.groups.iter().zip(&groups) {
            let group = self.group(range);
            let sums = Sums::new(layout.rounding(), group, &Numbers::new(group), *line);
            let Line {
                scale: a,
                offset: o,
            } = *line;
            // The model is p · a · l + q · o, with p and q around 1.
            all.ll += a * a * sums.ll;
            all.l += a * o * sums.l;
            all.n += o * o * sums.n;
            all.xl += a * sums.xl;
            all.x += o * sums.x;
        }
        let determinant = all.ll * all.n - all.l * all.l;
        let solved = match determinant > 1e-9 * all.ll * all.n {
            true => [
                (all.xl * all.n - all.x * all.l) / determinant,
                (all.x * all.ll - all.xl * all.l) / determinant,
            ],
            false => [if all.ll > 0.0 { all.xl / all.ll } else { 1.0 }, 1.0],
        };
        let factors = [Some(&layout.scale), layout.offset.as_ref()];
        let mut halves = choice.halves;
        for (side, factor) in factors.into_iter().enumerate() {
            if factor.is_some_and(|factor| factor.half.is_some()) && solved[side] > 0.0 {
                halves[side] = to_half(f64::from(halves[side]) * solved[side]);
            }
        }
        (halves != choice.halves).then_some((halves, groups))
    }
    /// Writes the codes of the nearest levels, and all other numbers.
    fn write(&self, choice: &Choice, block: &mut [u8]) {
        let layout = self.layout;
        let factors = [
            (Some(&layout.scale), &choice.scales),
            (layout.offset.as_ref(), &choice.offsets),
        ];
        for ((factor, indices), half) in factors.into_iter().zip(choice.halves) {
            let Some(factor) = factor else { continue };
            if let Some(place) = &factor.half {
                place.set(block, half);
            }
            let fields = factor.fields.iter().zip(indices);
            fields.for_each(|(field, &index)| field.set(block, index));
        }
        for (group, range) in layout.groups.iter().enumerate() {
            let line = choice.line(self.layout, group, self.unit);
            let numbers = self.group(range);
            match &layout.codes {
                ElementCodes::Joint(joint) => {
                    joint.write(range.start, numbers, line.to_levels(), block);
                }
                ElementCodes::Single(places, _) => {
                    let mut places = places[range.clone()].iter();
                    layout.rounding().visit(numbers, line, |_, _, levels| {
                        for (level, place) in levels.into_iter().zip(places.by_ref()) {
                            place.set(block, layout.levels.code(layout.levels.index_of(level)));
                        }
                    });
                }
            }
        }
    }
}

/// Indices of a group's field around that of a factor, the nearest first; 0 without a field.
fn near(
    factor: Option<&Factor>,
    group: usize,
    value: f64,
    half: f32,
) -> impl Iterator<Item = usize> + Clone {
    let field = factor.and_then(|factor| Some((factor.fields.get(group)?, factor.sign)));
    let (at, count) = match field {
        None => (0, 1),
        Some((field, sign)) => {
            let exact = value / f64::from(half * sign);
            let exact = if exact.is_finite() { exact } else { 0.0 };
            (field.levels.nearest(exact), field.levels.values().len())
        }
    };
    let all = [Some(at), at.checked_sub(1), Some(at + 1)];
    all.into_iter().flatten().filter(move |&at| at < count)
}

/// Nearest finite f16; of a number that is not zero, the smallest instead of zero.
fn to_half(v: f64) -> f32 {
    let largest = f64::from(f16::MAX.to_f32());
    let smallest = f64::from(f16::MIN_POSITIVE_SUBNORMAL.to_f32());
    let nearest = f16::from_f64(v.clamp(-largest, largest)).to_f32();
    match v != 0.0 && nearest == 0.0 {
        true => (smallest * v.signum()) as f32,
        false => nearest,
    }
}
