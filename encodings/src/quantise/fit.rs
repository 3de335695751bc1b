//! Least-squares lines: the real scale and offset that represent a group's numbers best.

use super::levels::{LANES, Lanes, Levels};

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

/// Sums over the numbers `x` of a group, and their extremes.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    n: f64,
    sum: f64,
    squares: f64,
    pub low: f64,
    pub high: f64,
}

impl Numbers {
    /// Sums and extremes of finite numbers.
    pub fn new(x: &[f32]) -> Numbers {
        let (mut sum, mut squares) = ([0.0; LANES], [0.0; LANES]);
        let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
        for chunk in lanes(x) {
            for (i, &x) in chunk.iter().enumerate() {
                sum[i] += x;
                squares[i] += x * x;
                low[i] = if x < low[i] { x } else { low[i] };
                high[i] = if x > high[i] { x } else { high[i] };
            }
        }
        Numbers {
            n: x.len() as f64,
            sum: total(sum),
            squares: total(squares),
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

/// Sums over the numbers `x` of a group and their levels `l`.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    pub n: f64,
    pub l: f64,
    pub ll: f64,
    pub x: f64,
    pub xl: f64,
    pub xx: f64,
}

/// Whole chunks of a group.
fn lanes(x: &[f32]) -> &[Lanes] {
    x.as_chunks().0
}

fn total(lanes: Lanes) -> f64 {
    lanes.iter().map(|&v| f64::from(v)).sum()
}

impl Sums {
    /// Sums of numbers and their nearest levels on a line.
    pub fn new(levels: &Levels, x: &[f32], numbers: &Numbers, line: Line) -> Sums {
        let scaled = line.to_levels();
        let (mut l, mut ll, mut xl) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for chunk in lanes(x) {
            let level = levels.round(scaled(chunk));
            for i in 0..LANES {
                l[i] += level[i];
                ll[i] += level[i] * level[i];
                xl[i] += chunk[i] * level[i];
            }
        }
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
    fn to_levels(self) -> impl Fn(&Lanes) -> Lanes {
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
    lanes(x).iter().all(|chunk| {
        let level = levels.round(scaled(chunk));
        chunk.iter().zip(level).all(|(&x, level)| is_so(x, level))
    })
}

/// Calls `each` with the position of every number of a group and its nearest level.
pub(super) fn for_levels(levels: &Levels, x: &[f32], line: Line, mut each: impl FnMut(usize, f32)) {
    let scaled = line.to_levels();
    for (number, chunk) in lanes(x).iter().enumerate() {
        let level = levels.round(scaled(chunk));
        level
            .iter()
            .enumerate()
            .for_each(|(i, &level)| each(number * LANES + i, level));
    }
}

/// Squared error of the nearest levels.
pub(super) fn error(levels: &Levels, x: &[f32], line: Line) -> f64 {
    let scaled = line.to_levels();
    let (scale, offset) = (line.scale as f32, line.offset as f32);
    let mut sums = [0.0; LANES];
    for chunk in lanes(x) {
        let level = levels.round(scaled(chunk));
        for i in 0..LANES {
            let difference = chunk[i] - (scale * level[i] + offset);
            sums[i] += difference * difference;
        }
    }
    total(sums)
}

/// Widths of the levels that are tried: this step in units of the mean distance of two levels, so
/// many times inwards and outwards.
const STRETCH: f64 = 0.7;
const STRETCHES: std::ops::RangeInclusive<i32> = -2..=5;

/// The lines that map the extremes of the numbers to the ends of the levels.
fn plain_lines(
    levels: &Levels,
    numbers: &Numbers,
    form: Form,
    stretch: f64,
) -> impl Iterator<Item = Line> + use<> {
    let &Numbers { low, high, .. } = numbers;
    let [first, last] = levels.ends().map(f64::from);
    let below = form == Form::LineBelow;
    let low = if below { low.min(0.0) } else { low };
    let scale = (high - low) / (last - first) / stretch;
    let middle = (high + low) / 2.0 - scale * (last + first) / 2.0;
    let line = Line {
        scale,
        offset: if below { middle.min(0.0) } else { middle },
    };
    let largest = numbers.largest();
    let ends = [last, first].map(|end| Line {
        scale: largest / (end * stretch),
        offset: 0.0,
    });
    let candidates = match form {
        Form::Scale(_) => [Some(ends[0]), Some(ends[1])],
        Form::Line | Form::LineBelow => [Some(line), None],
    };
    let is_possible = move |line: &Line| {
        line.scale.is_finite() && (line.scale > 0.0 || form == Form::Scale(true))
    };
    candidates.into_iter().flatten().filter(is_possible)
}

/// The lines of round-to-nearest with the extremes at the ends of the levels.
pub(super) fn plain(levels: &Levels, x: &[f32], form: Form) -> impl Iterator<Item = Line> {
    plain_lines(levels, &Numbers::new(x), form, 1.0)
}

/// Finds a line with a small squared error.
pub(super) fn fit(levels: &Levels, x: &[f32], form: Form) -> Line {
    let unit = STRETCH / levels.values().len() as f64;
    let numbers = Numbers::new(x);
    let mut best = (f64::INFINITY, Line::default());
    for stretch in STRETCHES.map(|i| 1.0 + f64::from(i) * unit) {
        for line in plain_lines(levels, &numbers, form, stretch) {
            let sums = Sums::new(levels, x, &numbers, line);
            let refined = sums.best(form);
            let error = sums.error(refined);
            let is_possible = refined.scale > 0.0 || form == Form::Scale(true);
            if is_possible && error < best.0 {
                best = (error, refined);
            }
        }
    }
    best.1
}
