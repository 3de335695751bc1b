//! Draws functions from bytes, with a bound on the error of f32 arithmetic.
//!
//! Every value carries bounds on its magnitude and its error, propagated from the operands by a
//! rule for each op. An op that would exceed either limit is not drawn. Discontinuous ops
//! (comparisons, casts to integers) apply only to exact values, so every difference beyond the
//! bound is a bug. The bound on gradients is how far random errors of all ops move them.

mod gradient;
mod movement;

use super::harness::{Case, Fill, Random, Within, blocks};
use crate::bytes::FuzzInput;
use gristmill_encodings::TABLE;
use gristmill_tensor::evaluate::decode;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::{Dim, Tensor};
use gristmill_uop::Scalar;
use gristmill_uop::encoding::EncodingRef;
use std::sync::LazyLock;

/// A case, and whether its contractions may use int8 arithmetic.
pub struct Drawn {
    pub case: Case,
    pub int8: bool,
}

/// Maximum elements of a value: the interpreter takes microseconds for each.
const ELEMENTS: usize = 1024;
/// Maximum multiplications of a contraction, for the same reason.
const PRODUCTS: usize = 16 << 10;
/// Maximum number of axes.
const RANK: usize = 4;
/// Maximum ops of a function.
const OPS: usize = 20;
/// Relative error bound: twice that of one rounding to f32, to cover rewritten expressions.
const ROUNDING: f64 = 1.2e-7;
/// Limits on magnitude and on f32 error; beyond them a comparison is not meaningful.
const LARGEST: f64 = 1e4;
const WORST: f64 = 1e-2;
/// Limit on integers: sums and products must remain exactly representable in f32.
const WHOLE: i64 = 1 << 20;
/// Maximum of the step variable `n`, a number of rows.
const ROWS: usize = 5;
/// Maximum of the step variable `pos`, a position.
const POSITION: usize = 8;

/// An axis: its length, or the maximum length if it is `n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Axis {
    size: usize,
    varies: bool,
}

fn fixed(size: usize) -> Axis {
    Axis {
        size,
        varies: false,
    }
}

/// Element type and value bounds.
#[derive(Clone, Copy, Debug)]
enum Elements {
    /// f32: largest magnitude, largest error.
    Float { most: f64, error: f64 },
    /// i32 in this range, exact.
    Whole { least: i64, most: i64 },
}

#[derive(Clone)]
struct Value<'g> {
    tensor: Tensor<'g>,
    axes: Vec<Axis>,
    elements: Elements,
}

struct Builder<'g, 'b> {
    capture: &'g Capture,
    bytes: &'g mut FuzzInput<'b>,
    values: Vec<Value<'g>>,
    /// Fills of slots that do not use the harness's default.
    fills: Vec<(usize, Fill)>,
    /// Largest error of an output.
    error: f64,
    vary: bool,
    moves: bool,
    /// Inputs of floats, and whether gradients with respect to them are the outputs.
    inputs: Vec<Tensor<'g>>,
    gradients: bool,
}

/// Upper bound on the magnitude of the harness's random blocks, by encoding.
fn most_of(encoding: EncodingRef) -> f64 {
    static MOST: LazyLock<Vec<f64>> = LazyLock::new(|| {
        let most = |e: &EncodingRef| {
            let values = decode(e, &blocks(e, 64, &mut Random::from_name(e.name)));
            // Twice the maximum of a sample: scales and codes are uniformly distributed.
            2.0 * values
                .into_iter()
                .fold(0.0, |most: f64, v| most.max(v.abs()))
        };
        TABLE.iter().map(most).collect()
    });
    TABLE
        .iter()
        .position(|&e| e == encoding)
        .map_or(LARGEST, |at| MOST[at])
}

/// Draws a function from bytes.
pub fn draw(bytes: &mut FuzzInput) -> Drawn {
    let kind = bytes.below(8);
    if kind == 7 {
        return contraction(bytes);
    }
    let gradients = kind >= 5;
    let (mut error, mut fills, mut vary, mut moves) = (0.0, Vec::new(), false, false);
    let steps: Vec<i64> = (0..2).map(|_| 1 + bytes.below(ROWS) as i64).collect();
    let position = bytes.below(POSITION + 1) as i64;
    let mut case = Case::new(format!("drawn {}", bytes.byte()), |capture| {
        let mut b = Builder {
            capture,
            bytes,
            values: vec![],
            fills: vec![],
            error: 0.0,
            vary: false,
            moves: false,
            inputs: vec![],
            gradients,
        };
        b.all();
        (error, fills, vary, moves) = (b.error, b.fills, b.vary, b.moves);
    });
    for (slot, fill) in fills {
        case = case.fill(slot, fill);
    }
    let vars: Vec<Vec<(&'static str, i64)>> = steps
        .iter()
        .take(if vary { 2 } else { 1 })
        .map(|&n| {
            [("n", n, vary), ("pos", position, moves)]
                .into_iter()
                .filter(|v| v.2)
                .map(|v| (v.0, v.1))
                .collect()
        })
        .collect();
    let vars: Vec<&[(&'static str, i64)]> = vars.iter().map(Vec::as_slice).collect();
    let case = case.vars(&vars);
    // Functions without any rounding must match exactly.
    let within = if gradients {
        Within::Absolute(Builder::gradient_error(&case))
    } else if error == 0.0 {
        Within::Exact
    } else {
        Within::Absolute(error)
    };
    Drawn {
        case: case.within(within),
        int8: false,
    }
}

/// Draws a quantised matrix times activations, as in the conformance suite; in int8 where
/// the machine supports it.
fn contraction(bytes: &mut FuzzInput) -> Drawn {
    let encoding = bytes.pick(TABLE);
    let rows = 16 + bytes.below(33);
    let columns = (1 + bytes.below(2)) * encoding.elements.max(32);
    let many = bytes.below(2) == 1;
    let steps: Vec<[(&'static str, i64); 1]> = (0..2)
        .map(|_| [("n", 1 + bytes.below(13) as i64)])
        .collect();
    let case = Case::new(
        format!(
            "{rows} rows of {columns} of {}, {}",
            encoding.name,
            bytes.byte()
        ),
        |c| {
            let n = if many { c.var("n", 1, 13) } else { c.int(1) };
            let x = c.input("x", &[Dim::from(n), Dim::Size(columns)], Scalar::F32);
            c.output("y", x.linear(c.weight("w", &[rows, columns], encoding)));
        },
    );
    let vars: Vec<&[(&'static str, i64)]> = steps.iter().map(|s| &s[..]).collect();
    Drawn {
        case: if many { case.vars(&vars) } else { case },
        int8: true,
    }
}

impl<'g> Builder<'g, '_> {
    fn all(&mut self) {
        self.input();
        for _ in 0..OPS {
            if self.bytes.is_empty() {
                break;
            }
            // An op that does not fit is not drawn.
            let _ = self.op();
        }
        if self.gradients {
            return self.gradients_of_sum();
        }
        let last = self.values.len() - 1;
        let others = [self.bytes.below(4), self.bytes.below(4)];
        let mut wanted = vec![last];
        wanted.extend(others.iter().filter_map(|back| last.checked_sub(back + 1)));
        wanted.dedup();
        for at in wanted {
            let value = self.values[at].clone();
            self.capture.output("y", value.tensor);
            if let Elements::Float { error, .. } = value.elements {
                self.error = self.error.max(error);
            }
        }
    }
    fn op(&mut self) -> Option<()> {
        match self.bytes.below(20) {
            0 => self.input(),
            1 => return self.weight(),
            2 => self.whole_input(),
            3 => return self.reshape(),
            4 => return self.permute(),
            5 => return self.slice(),
            6 => return self.expand(),
            7 => return self.cat(),
            8..=10 => return self.binary(),
            11 | 12 => return self.unary(),
            13 | 14 => return self.reduce(),
            15 => return self.linear(),
            16 => return self.select(),
            17 => {
                return if self.bytes.below(2) == 0 {
                    self.gather()
                } else {
                    self.scatter()
                };
            }
            18 => return self.cast(),
            _ => {
                return if self.bytes.below(2) == 0 {
                    self.assign()
                } else {
                    self.attention()
                };
            }
        }
        Some(())
    }
    /// Adds a value, unless its bounds, element count or rank exceed the limits.
    fn keep(&mut self, tensor: Tensor<'g>, axes: Vec<Axis>, elements: Elements) -> Option<()> {
        let count: usize = axes.iter().map(|a| a.size).product();
        let good = match elements {
            Elements::Float { most, error } => most <= LARGEST && error <= WORST,
            Elements::Whole { least, most } => -WHOLE <= least && most <= WHOLE,
        };
        (good && count <= ELEMENTS && axes.len() <= RANK).then(|| {
            self.values.push(Value {
                tensor,
                axes,
                elements,
            })
        })
    }
    fn float(&mut self, tensor: Tensor<'g>, axes: Vec<Axis>, most: f64, error: f64) -> Option<()> {
        self.keep(tensor, axes, Elements::Float { most, error })
    }
    fn any(&mut self) -> Value<'g> {
        let at = self.bytes.below(self.values.len());
        self.values[self.values.len() - 1 - at].clone()
    }
    fn any_float(&mut self) -> Option<(Value<'g>, f64, f64)> {
        let value = self.any();
        match value.elements {
            Elements::Float { most, error } => Some((value, most, error)),
            Elements::Whole { .. } => None,
        }
    }
    fn n(&mut self) -> Dim {
        self.vary = true;
        Dim::from(self.capture.var("n", 1, ROWS))
    }
    fn dims(&mut self, axes: &[Axis]) -> Vec<Dim> {
        axes.iter()
            .map(|axis| {
                if axis.varies {
                    self.n()
                } else {
                    Dim::Size(axis.size)
                }
            })
            .collect()
    }
    /// Draws one to three axes; the first may have length `n`.
    fn shape(&mut self) -> Vec<Axis> {
        let rank = 1 + self.bytes.below(3);
        (0..rank)
            .map(|i| match self.bytes.below(12) {
                0 if i == 0 => Axis {
                    size: ROWS,
                    varies: true,
                },
                size => fixed([8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33][size]),
            })
            .collect()
    }
    fn input(&mut self) {
        let axes = self.shape();
        let tensor = self.floats("x", &axes);
        let _ = self.float(tensor, axes, 1.0, 0.0);
        if self.values.is_empty() {
            let tensor = self.floats("x", &[fixed(4)]);
            let _ = self.float(tensor, vec![fixed(4)], 1.0, 0.0);
        }
    }
    /// A new input of floats.
    fn floats(&mut self, name: &str, axes: &[Axis]) -> Tensor<'g> {
        let dims = self.dims(axes);
        let tensor = self.capture.input(name, &dims, Scalar::F32);
        self.inputs.push(tensor);
        tensor
    }
    fn whole_input(&mut self) {
        let axes = self.shape();
        let dims = self.dims(&axes);
        let slot = self.capture.slot_count();
        let tensor = self.capture.input("i", &dims, Scalar::I32);
        self.fills.push((slot, Fill::Whole(-3, 20)));
        let _ = self.keep(
            tensor,
            axes,
            Elements::Whole {
                least: -3,
                most: 19,
            },
        );
    }
    fn weight(&mut self) -> Option<()> {
        let encoding = self.bytes.pick(TABLE);
        let rows = 1 + self.bytes.below(6);
        let columns = encoding.elements
            * if encoding.elements == 1 {
                1 + self.bytes.below(40)
            } else {
                1
            };
        let tensor = self.capture.weight("w", &[rows, columns], encoding);
        self.float(
            tensor,
            vec![fixed(rows), fixed(columns)],
            most_of(encoding),
            0.0,
        )
    }
    /// Broadcasts shapes against each other; `None` if they do not match.
    fn beside(shapes: &[&[Axis]]) -> Option<Vec<Axis>> {
        let rank = shapes.iter().map(|s| s.len()).max()?;
        let axis = |back: usize| {
            let mut length = fixed(1);
            for shape in shapes {
                let Some(&axis) = shape.len().checked_sub(back).and_then(|i| shape.get(i)) else {
                    continue;
                };
                if length == fixed(1) {
                    length = axis;
                } else if axis != fixed(1) && axis != length {
                    return None;
                }
            }
            Some(length)
        };
        (1..=rank).rev().map(axis).collect()
    }
    fn binary(&mut self) -> Option<()> {
        let (a, b) = (self.any(), self.any());
        let kind = self.bytes.below(6);
        let axes = Self::beside(&[&a.axes, &b.axes])?;
        if axes.iter().map(|a| a.size).product::<usize>() > ELEMENTS {
            return None;
        }
        if matches!(kind, 3 | 4) && (self.jumps(a.elements) || self.jumps(b.elements)) {
            return None;
        }
        let (x, y) = (a.tensor, b.tensor);
        match (a.elements, b.elements) {
            (Elements::Float { most: p, error: e }, Elements::Float { most: q, error: f }) => {
                let rounded = |most: f64, error: f64| (most, error + ROUNDING * most);
                let (tensor, (most, error)) = match kind {
                    0 => (x + y, rounded(p + q, e + f)),
                    1 => (x - y, rounded(p + q, e + f)),
                    2 => (x * y, rounded(p * q, e * q + f * p + e * f)),
                    3 => (x.maximum(y), (p.max(q), e.max(f))),
                    4 => (x.minimum(y), (p.max(q), e.max(f))),
                    // The divisor is at least a half, and the slope of its reciprocal is below two.
                    _ => (
                        x / (y * y + 0.5),
                        rounded(2.0 * p, 2.0 * e + 2.0 * p * f + 8.0 * ROUNDING * p),
                    ),
                };
                self.float(tensor, axes, most, error)
            }
            (Elements::Whole { least: a, most: b }, Elements::Whole { least: c, most: d }) => {
                let products = [a * c, a * d, b * c, b * d];
                let bits = |n: i64| (n as u64).next_power_of_two() as i64;
                let (tensor, least, most) = match kind {
                    0 => (x + y, a + c, b + d),
                    1 => (x - y, a - d, b - c),
                    2 => (
                        x * y,
                        products.into_iter().min()?,
                        products.into_iter().max()?,
                    ),
                    3 => (x.maximum(y), a.max(c), b.max(d)),
                    4 if a >= 0 && c >= 0 => (x ^ y, 0, bits(b.max(d) + 1) - 1),
                    4 => (x.minimum(y), a.min(c), b.min(d)),
                    _ => (x / 7i64, a.div_euclid(7), b.div_euclid(7)),
                };
                let axes = if kind == 5 { self.axes_of(x) } else { axes };
                self.keep(tensor, axes, Elements::Whole { least, most })
            }
            _ => None,
        }
    }
    /// Returns the axes of a tensor that is among the values.
    fn axes_of(&self, tensor: Tensor<'g>) -> Vec<Axis> {
        let found = self.values.iter().find(|v| v.tensor.id() == tensor.id());
        found
            .map(|v| v.axes.clone())
            .unwrap_or_else(|| unreachable!("{tensor:?} is not among the values"))
    }
    fn unary(&mut self) -> Option<()> {
        let kind = self.bytes.below(9);
        let (value, most, error) = self.any_float()?;
        if matches!(kind, 0 | 8) && self.jumps(value.elements) {
            return None;
        }
        let (x, axes) = (value.tensor, value.axes);
        let slight = 8.0 * ROUNDING;
        let (tensor, most, error) = match kind {
            // e³ is 20.1; the error grows with the slope at the upper end.
            0 if error < 0.01 => (
                x.maximum(-3.0).minimum(3.0).exp(),
                21.0,
                21.0 * error * 1.01 + slight * 21.0,
            ),
            1 => (x.sigmoid(), 1.0, error / 4.0 + slight),
            2 => (x.silu(), most, error * 1.1 + slight * most.max(1.0)),
            3 => (x.softplus(), most + 1.0, error + slight * (most + 1.0)),
            // The slopes of these are at most 1, 2 and 1.5.
            4 => (
                (x * x + 0.25).sqrt(),
                most + 0.5,
                error + slight * (most + 1.0),
            ),
            5 => ((x * x + 0.5).recip(), 2.0, 2.0 * error + slight * 2.0),
            6 => (
                (x * x + 0.5).log(),
                (most * most + 0.5).ln().max(1.0),
                1.5 * error + slight * 10.0,
            ),
            7 => (-x, most, error),
            _ => (x.maximum(-x), most, error),
        };
        // The sigmoid's e^-x must not overflow.
        if matches!(kind, 1 | 2) && value_exceeds(value.elements, 60.0) {
            return None;
        }
        self.float(tensor, axes, most, error)
    }
    fn reduce(&mut self) -> Option<()> {
        let value = self.any();
        let mask = self.bytes.byte();
        let gone: Vec<usize> = (0..value.axes.len())
            .filter(|a| mask >> a & 1 == 1)
            .collect();
        if gone.is_empty() {
            return None;
        }
        let terms: usize = gone.iter().map(|&a| value.axes[a].size).product();
        let axes: Vec<Axis> = (0..value.axes.len())
            .filter(|a| !gone.contains(a))
            .map(|a| value.axes[a])
            .collect();
        let n = terms as f64;
        match (value.elements, mask & 0x80 != 0) {
            (Elements::Float { most, error }, false) => self.float(
                value.tensor.sum(&gone),
                axes,
                n * most,
                n * error + ROUNDING * n * n * most,
            ),
            (Elements::Whole { least, most }, false) => {
                let (n, tensor) = (terms as i64, value.tensor.sum(&gone));
                self.keep(
                    tensor,
                    axes,
                    Elements::Whole {
                        least: (n * least).min(least),
                        most: (n * most).max(most),
                    },
                )
            }
            (elements, true) if self.jumps(elements) => None,
            (elements, true) => self.keep(value.tensor.max(&gone), axes, elements),
        }
    }
    fn linear(&mut self) -> Option<()> {
        let encoding = self.bytes.pick(TABLE);
        let rows = 1 + self.bytes.below(40);
        let fits = |v: &Value<'g>| matches!(v.axes.last(), Some(a) if !a.varies && a.size.is_multiple_of(encoding.elements));
        let (value, most, error) = match self.any_float() {
            Some(found) if fits(&found.0) => found,
            _ => {
                let axes = vec![
                    if self.bytes.below(3) == 0 {
                        Axis {
                            size: ROWS,
                            varies: true,
                        }
                    } else {
                        fixed(1)
                    },
                    fixed(encoding.elements.max(32)),
                ];
                let tensor = self.floats("x", &axes);
                (
                    Value {
                        tensor,
                        axes,
                        elements: Elements::Float {
                            most: 1.0,
                            error: 0.0,
                        },
                    },
                    1.0,
                    0.0,
                )
            }
        };
        if self.jumps(value.elements) {
            return None;
        }
        let columns = value.axes.last()?.size;
        if rows * value.axes.iter().map(|a| a.size).product::<usize>() > PRODUCTS {
            return None;
        }
        let weight = self.capture.weight("w", &[rows, columns], encoding);
        // For an f16 weight, activations are rounded to f16; an inexact activation may round either
        // way.
        let error = if error > 0.0 {
            error + most / 1024.0
        } else {
            0.0
        };
        let (n, w) = (columns as f64, most_of(encoding));
        let mut axes = value.axes.clone();
        axes.pop();
        axes.push(fixed(rows));
        self.float(
            value.tensor.linear(weight),
            axes,
            n * most * w,
            n * error * w + ROUNDING * n * n * most * w,
        )
    }
    fn select(&mut self) -> Option<()> {
        let (c, d, a, b) = (self.any(), self.any(), self.any(), self.any());
        let exact = |v: &Value<'g>| {
            matches!(
                v.elements,
                Elements::Whole { .. } | Elements::Float { error: 0.0, .. }
            )
        };
        if !exact(&c) || !exact(&d) || c.tensor.scalar() != d.tensor.scalar() {
            return None;
        }
        let axes = Self::beside(&[&c.axes, &d.axes, &a.axes, &b.axes])?;
        let (Elements::Float { most: p, error: e }, Elements::Float { most: q, error: f }) =
            (a.elements, b.elements)
        else {
            return None;
        };
        if axes.iter().map(|a| a.size).product::<usize>() > ELEMENTS {
            return None;
        }
        let condition = if self.bytes.below(2) == 0 {
            c.tensor.lt(d.tensor)
        } else {
            c.tensor.equals(d.tensor)
        };
        self.float(
            condition.select(a.tensor, b.tensor),
            axes,
            p.max(q),
            e.max(f),
        )
    }
    fn gather(&mut self) -> Option<()> {
        let value = self.any();
        let &first = value.axes.first()?;
        if first.varies {
            return None;
        }
        let axis = if self.bytes.below(3) == 0 {
            Axis {
                size: ROWS,
                varies: true,
            }
        } else {
            fixed(1 + self.bytes.below(6))
        };
        let dims = self.dims(&[axis]);
        let slot = self.capture.slot_count();
        let index = self.capture.input("i", &dims, Scalar::I32);
        self.fills
            .push((slot, Fill::Whole(-2, first.size as i64 + 2)));
        let axes = [axis]
            .into_iter()
            .chain(value.axes[1..].iter().copied())
            .collect();
        self.keep(
            value.tensor.gather(index.clamp_index(first.size - 1)),
            axes,
            value.elements,
        )
    }
    /// Draws a scatter-add of the rows of one value into random rows of
    /// another. Indices may collide.
    fn scatter(&mut self) -> Option<()> {
        let value = self.any();
        let (&first, rest) = value.axes.split_first()?;
        if first.varies || rest.iter().any(|a| a.varies) {
            return None;
        }
        let (rows, scalar) = (1 + self.bytes.below(9), value.tensor.scalar());
        let slot = self.capture.slot_count();
        let index = self
            .capture
            .input("i", &[Dim::Size(first.size)], Scalar::I32);
        self.fills.push((slot, Fill::Whole(-1, rows as i64 + 1)));
        let axes: Vec<Axis> = [fixed(rows)]
            .into_iter()
            .chain(rest.iter().copied())
            .collect();
        let none = self.capture.constant(0.0, scalar).expand(&self.dims(&axes));
        let sum = none.scatter_add(value.tensor, index.clamp_index(rows - 1));
        let count = first.size as f64;
        let elements = match value.elements {
            Elements::Float { most, error } => Elements::Float {
                most: most * count,
                error: error * count + ROUNDING * count * count * most,
            },
            Elements::Whole { least, most } => {
                let count = first.size as i64;
                Elements::Whole {
                    least: least.min(0) * count,
                    most: most.max(0) * count,
                }
            }
        };
        self.keep(sum, axes, elements)
    }
    fn cast(&mut self) -> Option<()> {
        let value = self.any();
        let kind = self.bytes.below(3);
        match value.elements {
            Elements::Whole { least, most } => {
                let largest = least.abs().max(most.abs()) as f64;
                self.float(value.tensor.cast(Scalar::F32), value.axes, largest, 0.0)
            }
            Elements::Float { most, error: 0.0 } if kind == 2 && most <= 1000.0 => {
                let whole = (value.tensor * 8.0).cast(Scalar::I32);
                let most = 8 * most.ceil() as i64;
                self.keep(whole, value.axes, Elements::Whole { least: -most, most })
            }
            elements if self.jumps(elements) => None,
            Elements::Float { most, error } => {
                let (scalar, step) = if kind == 0 {
                    (Scalar::F16, 1024.0)
                } else {
                    (Scalar::BF16, 128.0)
                };
                let error = if error > 0.0 {
                    error + most / step
                } else {
                    0.0
                };
                self.float(
                    value.tensor.cast(scalar).cast(Scalar::F32),
                    value.axes,
                    most * 1.01,
                    error,
                )
            }
        }
    }
    /// Draws an assignment of rows to a state, which is read afterwards.
    fn assign(&mut self) -> Option<()> {
        let (value, most, error) = self.any_float()?;
        let [rows, width] = value.axes[..] else {
            return None;
        };
        if self.gradients || rows.size > 8 || width.varies {
            return None;
        }
        let half = self.bytes.below(2) == 1;
        let scalar = if half { Scalar::F16 } else { Scalar::F32 };
        let error = if half && error > 0.0 {
            error + most / 1024.0
        } else {
            error
        };
        self.moves = true;
        let position = self.capture.var("pos", 0, POSITION);
        let axes = vec![fixed(POSITION + 8), width];
        let dims = self.dims(&axes);
        if axes[0].size * width.size > ELEMENTS || error > WORST {
            return None;
        }
        let state = self
            .capture
            .state("state", &dims, scalar)
            .assign(value.tensor.cast(scalar), position);
        self.capture.output_state(state);
        self.error = self.error.max(error);
        self.float(state.cast(Scalar::F32), axes, most.max(1.0) * 1.01, error)
    }
    /// Draws attention over exact inputs.
    fn attention(&mut self) -> Option<()> {
        let (groups, shared) = (1 + self.bytes.below(3), 1 + self.bytes.below(3));
        let (depth, out) = (
            self.bytes.pick(&[4, 8, 12, 32]),
            self.bytes.pick(&[4, 5, 8, 16]),
        );
        let tokens = if self.bytes.below(2) == 0 {
            Axis {
                size: ROWS,
                varies: true,
            }
        } else {
            fixed(1)
        };
        let heads = groups * shared;
        let rows = POSITION + ROWS + 3;
        self.moves = true;
        let position = self.capture.var("pos", 0, POSITION);
        let q = self.floats("q", &[tokens, fixed(heads), fixed(depth)]);
        let k = self.floats("k", &[fixed(rows), fixed(groups), fixed(depth)]);
        let v = self.floats("v", &[fixed(rows), fixed(groups), fixed(out)]);
        let n = if tokens.varies {
            self.capture.var("n", 1, ROWS)
        } else {
            self.capture.int(1)
        };
        let y = q.attention(k, v, position, position + n, 0.5);
        self.float(y, vec![tokens, fixed(heads), fixed(out)], 1.0, 1e-5)
    }
}

fn value_exceeds(elements: Elements, limit: f64) -> bool {
    matches!(elements, Elements::Float { most, .. } if most > limit)
}
