//! Finds the block that numbers were decoded from, if they were, so that encoding them again loses
//! nothing.

use super::choice::Choice;
use super::fit::{Extremes, Line, all_levels, represents};
use super::group::Weighted;
use super::layout::{Factor, Field, Layout};
use super::levels::Levels;
use half::f16;
use std::ops::Range;

/// Largest distance of a number from its level, as a part of the scale.
const NEAR: f64 = 5e-4;
/// Rounding errors of decoded numbers, relative to the largest.
const ROUNDING: f64 = 1e-6;
/// Most f16 scales of a block whose offsets are looked for.
const TRIES: usize = 4;

/// A possible factor of a group, and by how much it may be wrong.
#[derive(Clone, Copy, Debug)]
struct Possible {
    value: f64,
    error: f64,
    /// Index of the scale's field that it belongs to, for offsets.
    scale: usize,
}

/// Finds the numbers of the block that the numbers of its groups were decoded from, which are
/// divided by `unit`.
pub(super) fn find<'x>(
    layout: &Layout,
    group: impl Fn(&Range<usize>) -> Weighted<'x>,
    unit: f64,
) -> Option<Choice> {
    let weighted: Vec<Weighted<'x>> = layout.groups.iter().map(group).collect();
    let groups: Vec<&[f32]> = weighted.iter().map(|group| group.x).collect();
    let codes = layout.rounding();
    let has_offset = layout.offset.is_some();
    let mut scales = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        // Without a field or without an f16, few factors exist.
        let exists = |possible: &Possible| match (
            layout.scale.half.as_ref(),
            layout.scale.fields.get(number),
        ) {
            (Some(_), None) => half_near(*possible, unit).is_some(),
            (None, field) => field_near(field, *possible, (1.0, unit)).is_some(),
            (Some(_), Some(_)) => true,
        };
        let mut possible = match has_offset {
            false => scales_of(&layout.levels, group, exists),
            true => scales_with_offset(&layout.levels, group, exists),
        };
        if let (Some(possible), Some(_)) = (&mut possible, codes.grid) {
            possible.retain(|possible| {
                let (scale, offset) = (possible.value, 0.0);
                represents(codes, weighted[number], Line { scale, offset })
            });
        }
        // Nothing fits this group.
        if possible.as_ref().is_some_and(Vec::is_empty) {
            return None;
        }
        scales.push(possible);
    }
    let mut tries = 0;
    common(&layout.scale, &scales, unit, |half, fields| {
        let Some(factor) = &layout.offset else {
            return Some(Some(Choice::new([half, 0.0], fields.to_vec(), Vec::new())));
        };
        tries += 1;
        let found = offsets(layout, factor, &groups, &scales, (half, unit));
        found.map(Some).or((tries >= TRIES).then_some(None))
    })?
}

/// Finds the offsets of all groups, for an f16 of the scales and their possible values.
fn offsets(
    layout: &Layout,
    factor: &Factor,
    groups: &[&[f32]],
    scales: &[Option<Vec<Possible>>],
    (half, unit): (f32, f64),
) -> Option<Choice> {
    let of_group = |number: usize| {
        let field = layout.scale.fields.get(number);
        let indices: Vec<usize> = match &scales[number] {
            Some(all) => {
                let index = |possible: &Possible| field_near(field, *possible, (half, unit));
                all.iter().filter_map(index).collect()
            }
            // Equal numbers have any scale.
            None => (0..field.map_or(1, |field| field.levels.values().len())).collect(),
        };
        let scale = |index: usize| {
            let value = field.map_or(1.0, |field| field.levels.values()[index]);
            (index, f64::from(half * value) / unit)
        };
        let lines = indices.into_iter().map(scale);
        lines
            .flat_map(|line| offsets_of(&layout.levels, groups[number], line))
            .collect()
    };
    let possible: Vec<Option<Vec<Possible>>> =
        (0..groups.len()).map(|g| Some(of_group(g))).collect();
    let mut chosen: Vec<usize> = Vec::new();
    let found = common_of(factor, &possible, unit, &mut chosen, |offset, fields| {
        Some((offset, fields.to_vec()))
    });
    let (offset, fields) = found?;
    let scale_of = |(group, &at): (usize, &usize)| {
        possible[group]
            .as_ref()
            .map_or(0, |possible| possible[at].scale)
    };
    let scales = match layout.scale.fields.is_empty() {
        true => Vec::new(),
        false => chosen.iter().enumerate().map(scale_of).collect(),
    };
    Some(Choice::new([half, offset], scales, fields))
}

/// Offsets with which all numbers of a group are levels, for one scale with its field's index.
fn offsets_of(levels: &Levels, x: &[f32], (index, scale): (usize, f64)) -> Vec<Possible> {
    let numbers = Extremes::new(x);
    let error = ROUNDING * numbers.largest().abs();
    let anchor = if scale > 0.0 {
        numbers.low
    } else {
        numbers.high
    };
    let values = levels
        .values()
        .iter()
        .map(|&level| anchor - scale * f64::from(level));
    let is_constant = is_constant(&numbers);
    let fits = |&offset: &f64| is_constant || is_near(levels, x, Line { scale, offset });
    let possible = |value| Possible {
        value,
        error,
        scale: index,
    };
    values.filter(fits).map(possible).collect()
}

/// Whether numbers differ by no more than their rounding.
fn is_constant(numbers: &Extremes) -> bool {
    numbers.high - numbers.low <= ROUNDING * numbers.largest().abs()
}

/// Whether all numbers are on a line's levels.
fn is_near(levels: &Levels, x: &[f32], line: Line) -> bool {
    let (scale, offset) = (line.scale as f32, line.offset as f32);
    let near = (NEAR * line.scale.abs()) as f32;
    all_levels(levels, x, line, |x, level| {
        (x - (scale * level + offset)).abs() <= near + ROUNDING as f32 * x.abs()
    })
}

/// Scales with which all numbers of a group are levels; `None` for zeros, which any scale has.
fn scales_of(
    levels: &Levels,
    x: &[f32],
    exists: impl Fn(&Possible) -> bool,
) -> Option<Vec<Possible>> {
    let largest = Extremes::new(x).largest();
    if largest == 0.0 && levels.values().contains(&0.0) {
        return None;
    }
    let possible = |&level: &f32| {
        let value = largest / f64::from(level);
        Possible {
            value,
            error: ROUNDING * value.abs(),
            scale: 0,
        }
    };
    let all = levels
        .values()
        .iter()
        .filter(|level| **level != 0.0)
        .map(possible);
    let fits = |p: &Possible| {
        is_near(
            levels,
            x,
            Line {
                scale: p.value,
                offset: 0.0,
            },
        )
    };
    Some(all.filter(exists).filter(fits).collect())
}

/// As [`scales_of`] for lines with an offset; `None` for equal numbers.
fn scales_with_offset(
    levels: &Levels,
    x: &[f32],
    exists: impl Fn(&Possible) -> bool,
) -> Option<Vec<Possible>> {
    let numbers = Extremes::new(x);
    if is_constant(&numbers) {
        return None;
    }
    let Extremes { low, high } = numbers;
    let [first, last] = levels.ends().map(f64::from);
    let error = ROUNDING * numbers.largest().abs();
    let possible = (1..=(last - first) as usize).flat_map(|n| {
        let value = (high - low) / n as f64;
        let error = ROUNDING * value + error / n as f64;
        [value, -value].map(|value| Possible {
            value,
            error,
            scale: 0,
        })
    });
    let fits = |possible: &Possible| {
        let scale = possible.value;
        let anchor = if scale > 0.0 { low } else { high };
        is_near(
            levels,
            x,
            Line {
                scale,
                offset: anchor - scale * first,
            },
        )
    };
    Some(possible.filter(exists).filter(fits).collect())
}

/// Calls `each` with f16s and field indices that give each group one of its possible factors,
/// until it returns something.
fn common<T>(
    factor: &Factor,
    groups: &[Option<Vec<Possible>>],
    unit: f64,
    each: impl FnMut(f32, &[usize]) -> Option<T>,
) -> Option<T> {
    common_of(factor, groups, unit, &mut Vec::new(), each)
}

/// As [`common`]; leaves the number of each group's possible factor in `chosen`.
fn common_of<T>(
    factor: &Factor,
    groups: &[Option<Vec<Possible>>],
    unit: f64,
    chosen: &mut Vec<usize>,
    mut each: impl FnMut(f32, &[usize]) -> Option<T>,
) -> Option<T> {
    let unit = unit * f64::from(factor.sign);
    let mut attempt = |half: f32| {
        let fields = fields_of(factor, groups, (half, unit), chosen)?;
        each(half, &fields)
    };
    if factor.half.is_none() {
        return attempt(1.0);
    }
    let is_free = |possible: &Possible| possible.value.abs() <= possible.error;
    let constrained = groups
        .iter()
        .flatten()
        .filter(|all| !all.iter().any(is_free));
    // The group that leaves the fewest possibilities.
    let Some(pivot) = constrained.min_by_key(|all| all.len()) else {
        return attempt(0.0);
    };
    let field = factor
        .fields
        .first()
        .map_or(&[1.0][..], |field| field.levels.values());
    let possible = pivot.iter().flat_map(|possible| {
        let divisors = field.iter().filter(|value| **value != 0.0);
        divisors.filter_map(|&by| half_near(*possible, unit / f64::from(by)))
    });
    possible.into_iter().find_map(attempt)
}

/// The f16 that a possible factor is, times `by`; `None` if none is near.
fn half_near(possible: Possible, by: f64) -> Option<f32> {
    let exact = possible.value * by;
    // The conversion from f32 is an instruction; that from f64 is not.
    let half = f16::from_f32(exact as f32).to_f32();
    let error = (f64::from(half) - exact).abs();
    (half.is_finite() && half != 0.0 && error <= possible.error * by.abs()).then_some(half)
}

/// Index of a field of each group, so that `half · field` is one of the group's possible factors.
fn fields_of(
    factor: &Factor,
    groups: &[Option<Vec<Possible>>],
    (half, unit): (f32, f64),
    chosen: &mut Vec<usize>,
) -> Option<Vec<usize>> {
    chosen.clear();
    let mut indices = Vec::new();
    for (number, possible) in groups.iter().enumerate() {
        let field = factor.fields.get(number);
        let (at, index) = match possible {
            None => (0, field.map_or(0, |field| field.levels.nearest(0.0))),
            Some(all) => all.iter().enumerate().find_map(|(at, possible)| {
                Some((at, field_near(field, *possible, (half, unit))?))
            })?,
        };
        chosen.push(at);
        if field.is_some() {
            indices.push(index);
        }
    }
    Some(indices)
}

fn field_near(
    field: Option<&Field>,
    possible: Possible,
    (half, unit): (f32, f64),
) -> Option<usize> {
    let (exact, half) = (possible.value * unit, f64::from(half));
    let index = match field {
        Some(field) if half != 0.0 => field.levels.nearest(exact / half),
        Some(field) => field.levels.nearest(0.0),
        None => 0,
    };
    let value = field.map_or(1.0, |field| f64::from(field.levels.values()[index]));
    // The f16 was rounded to a value within the error, and a possible factor may be as wrong.
    let error = 4.0 * possible.error * unit.abs();
    ((half * value - exact).abs() <= error).then_some(index)
}
