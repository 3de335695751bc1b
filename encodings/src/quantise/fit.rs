//! Least-squares lines: the real scale and offset that represent a group's numbers best.

use super::levels::Levels;

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
    /// Any offset.
    Line,
    /// Offsets up to 0.
    LineBelow,
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

/// Partial sums, so that additions are independent.
const LANES: usize = 8;

impl Sums {
    /// Sums of numbers and their levels.
    pub fn new(x: &[f32], levels: &[f32]) -> Sums {
        let mut sums = [[0f32; LANES]; 5];
        for (x, l) in x.chunks(LANES).zip(levels.chunks(LANES)) {
            for (lane, (&x, &l)) in x.iter().zip(l).enumerate() {
                let terms = [l, l * l, x, x * l, x * x];
                sums.iter_mut()
                    .zip(terms)
                    .for_each(|(sum, term)| sum[lane] += term);
            }
        }
        let [l, ll, x_, xl, xx] = sums.map(|lanes| lanes.iter().map(|&v| f64::from(v)).sum());
        Sums {
            n: x.len() as f64,
            l,
            ll,
            x: x_,
            xl,
            xx,
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

/// Writes the level of each number to `out`.
pub(super) fn round(levels: &Levels, x: &[f32], line: Line, out: &mut [f32]) {
    let inverse = 1.0 / line.scale;
    // A scale of 0, or too small a one, has every number at its offset.
    let inverse = if inverse.is_finite() {
        inverse as f32
    } else {
        0.0
    };
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let offset = line.offset as f32;
    for (out, &x) in out.iter_mut().zip(x) {
        *out = (x - offset) * inverse;
    }
    levels.round(out);
}

/// Squared error of the nearest levels, which are left in `out`.
pub(super) fn error(levels: &Levels, x: &[f32], line: Line, out: &mut [f32]) -> f64 {
    round(levels, x, line, out);
    let (scale, offset) = (line.scale as f32, line.offset as f32);
    let mut sums = [0f32; LANES];
    for (x, l) in x.chunks(LANES).zip(out.chunks(LANES)) {
        for (sum, (&x, &l)) in sums.iter_mut().zip(x.iter().zip(l)) {
            let difference = x - (scale * l + offset);
            *sum += difference * difference;
        }
    }
    sums.iter().map(|&sum| f64::from(sum)).sum()
}

/// Widths of the levels that are tried: this step in units of the mean distance of two levels, so
/// many times inwards and outwards.
const STRETCH: f64 = 0.7;
const STRETCHES: std::ops::RangeInclusive<i32> = -2..=6;

/// Returns the smallest number, the largest, and the one of largest magnitude.
pub(super) fn extremes(x: &[f32]) -> [f64; 3] {
    let low = x.iter().copied().fold(f32::INFINITY, f32::min);
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let largest = if -low > high { low } else { high };
    [low, high, largest].map(f64::from)
}

/// The lines that map the extremes of the numbers to the ends of the levels.
fn plain_lines(levels: &Levels, x: &[f32], form: Form, stretch: f64) -> impl Iterator<Item = Line> {
    let [low, high, largest] = extremes(x);
    let [first, last] = levels.ends().map(f64::from);
    let below = form == Form::LineBelow;
    let low = if below { low.min(0.0) } else { low };
    let scale = (high - low) / (last - first) / stretch;
    let middle = (high + low) / 2.0 - scale * (last + first) / 2.0;
    let line = Line {
        scale,
        offset: if below { middle.min(0.0) } else { middle },
    };
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
    plain_lines(levels, x, form, 1.0)
}

/// Finds a line with a small squared error. `out` is scratch space of the length of `x`.
pub(super) fn fit(levels: &Levels, x: &[f32], form: Form, out: &mut [f32]) -> Line {
    let unit = STRETCH / levels.values().len() as f64;
    let mut best = (f64::INFINITY, Line::default());
    for stretch in STRETCHES.map(|i| 1.0 + f64::from(i) * unit) {
        for line in plain_lines(levels, x, form, stretch) {
            round(levels, x, line, out);
            let sums = Sums::new(x, out);
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
