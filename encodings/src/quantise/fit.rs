//! Least-squares lines: the real scale and offset that represent a group's numbers best.

use super::group::Weighted;
use super::joint::Joint;
use super::levels::{LANES, Lanes, Levels};

/// The values to which the numbers of a group are rounded.
#[derive(Clone, Copy)]
pub(super) struct Codes<'l> {
    /// Values of single elements.
    pub levels: &'l Levels,
    /// The points of a grid, if elements do not have every combination of levels.
    pub grid: Option<&'l Joint>,
}

impl Codes<'_> {
    /// Calls `each` with the numbers, the weights and the nearest values of every chunk of a group.
    pub fn visit(
        self,
        group: Weighted<'_>,
        line: Line,
        mut each: impl FnMut(&Lanes, &Lanes, Lanes),
    ) {
        let scaled = line.to_levels();
        if let Some(grid) = self.grid {
            return grid.visit(group, scaled, each);
        }
        for (x, weights) in group.lanes() {
            each(x, weights, self.levels.round(scaled(x)));
        }
    }
}

/// Numbers are `scale · level + offset`.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Line {
    pub scale: f64,
    pub offset: f64,
}

/// Which lines a format has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// No offset, and a scale of any sign (`true`) or a positive one.
    Scale(bool),
    /// An offset of either sign.
    Line,
    /// Offsets up to 0.
    LineBelow,
}

/// Weighted sums over the numbers `x` of a group, and their extremes.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    n: f64,
    sum: f64,
    squares: f64,
    ends: Extremes,
}

/// The least and the largest of finite numbers.
#[derive(Clone, Copy)]
pub(super) struct Extremes {
    pub low: f64,
    pub high: f64,
}

impl Extremes {
    pub fn new(x: &[f32]) -> Extremes {
        let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
        for chunk in x.as_chunks::<LANES>().0 {
            for (i, &x) in chunk.iter().enumerate() {
                low[i] = if x < low[i] { x } else { low[i] };
                high[i] = if x > high[i] { x } else { high[i] };
            }
        }
        Extremes {
            low: low.into_iter().fold(f32::INFINITY, f32::min).into(),
            high: high.into_iter().fold(f32::NEG_INFINITY, f32::max).into(),
        }
    }
    /// The number of largest magnitude.
    pub fn largest(&self) -> f64 {
        if -self.low > self.high {
            self.low
        } else {
            self.high
        }
    }
}

impl Numbers {
    /// Sums and extremes of finite numbers.
    pub fn new(group: Weighted<'_>) -> Numbers {
        let (mut n, mut sum, mut squares) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for (x, weights) in group.lanes() {
            for i in 0..LANES {
                let weighted = weights[i] * x[i];
                n[i] += weights[i];
                sum[i] += weighted;
                squares[i] += weighted * x[i];
            }
        }
        Numbers {
            n: total(n),
            sum: total(sum),
            squares: total(squares),
            ends: Extremes::new(group.x),
        }
    }
}

/// Weighted sums over the numbers `x` of a group and their levels `l`.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    pub n: f64,
    pub l: f64,
    pub ll: f64,
    pub x: f64,
    pub xl: f64,
    pub xx: f64,
}

fn total(lanes: Lanes) -> f64 {
    lanes.iter().map(|&v| f64::from(v)).sum()
}

impl Sums {
    /// Sums of numbers and their nearest levels on a line.
    pub fn new(codes: Codes<'_>, group: Weighted<'_>, numbers: &Numbers, line: Line) -> Sums {
        let (mut l, mut ll, mut xl) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        codes.visit(group, line, |x, weights, level| {
            for i in 0..LANES {
                let weighted = weights[i] * level[i];
                l[i] += weighted;
                ll[i] += weighted * level[i];
                xl[i] += x[i] * weighted;
            }
        });
        Sums {
            n: numbers.n,
            l: total(l),
            ll: total(ll),
            x: numbers.sum,
            xl: total(xl),
            xx: numbers.squares,
        }
    }
    /// Squared error of a line with these levels.
    pub fn error(&self, line: Line) -> f64 {
        let Line {
            scale: a,
            offset: o,
        } = line;
        let squares = self.xx + a * a * self.ll + o * o * self.n;
        squares - 2.0 * (a * self.xl + o * self.x - a * o * self.l)
    }
    /// Line with the least error for these levels.
    fn best(&self, form: Form) -> Line {
        let scale = if self.ll > 0.0 {
            self.xl / self.ll
        } else {
            0.0
        };
        let without = Line { scale, offset: 0.0 };
        let determinant = self.n * self.ll - self.l * self.l;
        if matches!(form, Form::Scale(_)) || determinant <= 0.0 {
            return without;
        }
        let scale = (self.n * self.xl - self.x * self.l) / determinant;
        let offset = (self.x - scale * self.l) / self.n;
        match form == Form::LineBelow && offset > 0.0 {
            true => without,
            false => Line { scale, offset },
        }
    }
}

impl Line {
    /// Maps numbers to multiples of the scale. A scale of 0, or too small a one, has every number
    /// at its offset.
    pub fn to_levels(self) -> impl Fn(&Lanes) -> Lanes {
        let inverse = (1.0 / self.scale) as f32;
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        let offset = self.offset as f32;
        move |x| x.map(|x| (x - offset) * inverse)
    }
}

/// Whether `is_so` holds for every number of a group and its nearest level.
pub(super) fn all_levels(
    levels: &Levels,
    x: &[f32],
    line: Line,
    mut is_so: impl FnMut(f32, f32) -> bool,
) -> bool {
    let scaled = line.to_levels();
    x.as_chunks().0.iter().all(|chunk| {
        let level = levels.round(scaled(chunk));
        chunk.iter().zip(level).all(|(&x, level)| is_so(x, level))
    })
}

/// Whether the numbers of a group are what a line's nearest levels decode to.
pub(super) fn represents(codes: Codes<'_>, group: Weighted<'_>, line: Line) -> bool {
    let mut represents = true;
    codes.visit(group, line, |x, _, level| {
        for (&x, level) in x.iter().zip(level) {
            let near = line.scale * f64::from(level) + line.offset;
            let error = (f64::from(x) - near).abs();
            represents &= error <= 1e-3 * line.scale.abs() + 1e-5 * f64::from(x.abs());
        }
    });
    represents
}

/// Weighted squared error of the nearest levels.
pub(super) fn error(codes: Codes<'_>, group: Weighted<'_>, line: Line) -> f64 {
    let (scale, offset) = (line.scale as f32, line.offset as f32);
    let mut sums = [0.0; LANES];
    codes.visit(group, line, |x, weights, level| {
        for i in 0..LANES {
            let difference = x[i] - (scale * level[i] + offset);
            sums[i] += weights[i] * difference * difference;
        }
    });
    total(sums)
}

/// Widths of the levels that are tried: this step in units of the mean distance of two levels, so
/// many times inwards and outwards.
const STRETCH: f64 = 0.7;
const STRETCHES: std::ops::Range<i32> = -2..6;
/// Most steps outwards, for groups with few numbers far from the others.
const LAST_STRETCH: i32 = 12;
/// Most times that the best line is fitted again to its own levels.
const REFINEMENTS: usize = 3;

/// The lines that map the extremes of the numbers to the ends of the levels: the levels are
/// `stretch` times as wide, in `anchors` of three ways around an offset that is not fixed.
fn plain_lines(
    levels: &Levels,
    ends: &Extremes,
    form: Form,
    (stretch, anchors): (f64, usize),
) -> impl Iterator<Item = Line> + use<> {
    let &Extremes { low, high } = ends;
    let [first, last] = levels.ends().map(f64::from);
    let below = form == Form::LineBelow;
    let low = if below { low.min(0.0) } else { low };
    let scale = (high - low) / (last - first) / stretch;
    let middle = (high + low) / 2.0 - scale * (last + first) / 2.0;
    let around = move |offset: f64| Line {
        scale,
        offset: if below { offset.min(0.0) } else { offset },
    };
    let lines = [middle, low - scale * first, high - scale * last].map(around);
    let largest = ends.largest();
    let ends = [last, first].map(|end| Line {
        scale: largest / (end * stretch),
        offset: 0.0,
    });
    let candidates = match form {
        Form::Scale(_) => [Some(ends[0]), Some(ends[1]), None],
        Form::Line | Form::LineBelow => lines.map(Some),
    };
    let count = if matches!(form, Form::Scale(_)) {
        2
    } else {
        anchors
    };
    let is_possible = move |line: &Line| {
        line.scale.is_finite() && (line.scale > 0.0 || form == Form::Scale(true))
    };
    candidates
        .into_iter()
        .take(count)
        .flatten()
        .filter(is_possible)
}

/// The lines of round-to-nearest with the extremes at the ends of the levels.
pub(super) fn plain(codes: Codes<'_>, x: &[f32], form: Form) -> impl Iterator<Item = Line> {
    plain_lines(codes.levels, &Extremes::new(x), form, (1.0, 1))
}

/// Finds a line with a small squared error.
pub(super) fn fit(codes: Codes<'_>, group: Weighted<'_>, form: Form) -> Line {
    let levels = codes.levels;
    let unit = STRETCH / levels.values().len() as f64;
    let numbers = Numbers::new(group);
    let mut best = (f64::INFINITY, Line::default());
    // Weights are not symmetric around the middle.
    let anchors = if group.is_uniform { 1 } else { 3 };
    let mut step = STRETCHES.start;
    let mut last_improvement = step;
    // Beyond the usual steps as long as these improve.
    while step < STRETCHES.end || last_improvement + 1 == step && step < LAST_STRETCH {
        let stretch = 1.0 + f64::from(step) * unit;
        for line in plain_lines(levels, &numbers.ends, form, (stretch, anchors)) {
            if improve(codes, group, form, (&numbers, line), &mut best) {
                last_improvement = step;
            }
        }
        step += 1;
    }
    // Levels of the best line's neighbourhood.
    for _ in 0..REFINEMENTS {
        let line = best.1;
        if !improve(codes, group, form, (&numbers, line), &mut best) {
            break;
        }
    }
    best.1
}

/// Fits a line to the levels that are nearest on another; whether it is better than `best`, which
/// it replaces then.
fn improve(
    codes: Codes<'_>,
    group: Weighted<'_>,
    form: Form,
    (numbers, line): (&Numbers, Line),
    best: &mut (f64, Line),
) -> bool {
    let sums = Sums::new(codes, group, numbers, line);
    let refined = sums.best(form);
    let error = sums.error(refined);
    let is_possible = refined.scale > 0.0 || form == Form::Scale(true);
    let is_better = is_possible && error < best.0;
    if is_better {
        *best = (error, refined);
    }
    is_better
}
