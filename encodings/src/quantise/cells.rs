//! Finds cells in a format's expression: elements that share a code.

use super::evaluate::Element;
use super::joint::{Cell, Joint, Kind, MAX_PARTS, Part, Signs};
use super::levels::LANES;
use super::points::Points;
use gristmill_uop::Id;
use gristmill_uop::encoding::EncodingRef;
use std::collections::HashMap;

/// Most bits of a part's code, with those that cells share.
const MAX_CODE_BITS: usize = 12;
/// Random settings of a cell's bits that are compared.
const SAMPLES: usize = 24;

/// The factor of an element that depends on its code: a node of the element's graph, and the bits
/// of the block that it depends on.
pub(super) struct CodeFactor {
    pub node: Id,
    pub bits: Vec<usize>,
}

/// The expressions of a cell's elements.
struct Expressions {
    elements: Vec<(Element, Vec<Id>)>,
    block: Vec<u8>,
}

impl Expressions {
    fn new(encoding: EncodingRef, codes: &[CodeFactor], elements: &[usize]) -> Expressions {
        let expression = |&k: &usize| {
            let element = Element::new(encoding, k);
            let order = element.graph.toposort(&[codes[k].node]);
            (element, order)
        };
        Expressions {
            elements: elements.iter().map(expression).collect(),
            block: vec![0; encoding.bytes],
        }
    }
    /// Values of the elements with these bits set as in `setting`.
    fn values(&mut self, bits: &[usize], setting: usize) -> Option<Vec<f32>> {
        for (i, bit) in bits.iter().enumerate() {
            self.block[bit / 8] &= !(1 << (bit % 8));
            self.block[bit / 8] |= ((setting >> i & 1) as u8) << (bit % 8);
        }
        let value = |(element, order): &(Element, Vec<Id>)| element.value(order, &self.block);
        self.elements.iter().map(value).collect()
    }
}

/// Settings of `bits` bits that look random.
fn samples(bits: usize) -> impl Iterator<Item = usize> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..SAMPLES).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize & ((1 << bits) - 1)
    })
}

/// Groups numbers below `count` that are in a common list, in the order of their least ones.
fn connected<'l>(count: usize, lists: impl Iterator<Item = &'l Vec<usize>>) -> Vec<Vec<usize>> {
    let mut of: Vec<usize> = (0..count).collect();
    for list in lists {
        let Some(least) = list.iter().map(|&i| of[i]).min() else {
            continue;
        };
        let merged: Vec<usize> = list.iter().map(|&i| of[i]).collect();
        of.iter_mut()
            .filter(|of| merged.contains(of))
            .for_each(|of| *of = least);
    }
    let mut groups: Vec<Vec<usize>> = vec![Vec::new(); count];
    of.iter()
        .enumerate()
        .for_each(|(i, &of)| groups[of].push(i));
    groups.retain(|group| !group.is_empty());
    groups
}

/// Finds the cells; `None` if they are of a form that has no search. `codes` are the factors of all
/// elements, `uses` the number of elements that depend on each bit.
pub(super) fn find(
    encoding: EncodingRef,
    codes: &[CodeFactor],
    uses: &HashMap<usize, usize>,
) -> Option<Joint> {
    let mut users: HashMap<usize, Vec<usize>> = HashMap::new();
    for (k, code) in codes.iter().enumerate() {
        for &bit in code.bits.iter().filter(|bit| uses[*bit] <= LANES) {
            users.entry(bit).or_default().push(k);
        }
    }
    let (mut cells, mut kinds) = (Vec::new(), Vec::new());
    let mut variants = 1;
    for elements in connected(codes.len(), users.values()) {
        let mut bits: Vec<usize> = elements
            .iter()
            .flat_map(|&k| codes[k].bits.clone())
            .collect();
        bits.sort_unstable();
        bits.dedup();
        let (own, shared): (Vec<usize>, Vec<usize>) =
            bits.into_iter().partition(|bit| uses[bit] <= LANES);
        if elements.len() > LANES || own.len() + shared.len() > 24 {
            return None;
        }
        variants = 1 << shared.len();
        let expressions = &mut Expressions::new(encoding, codes, &elements);
        let is_like = |known: &(Kind, Vec<usize>), expressions: &mut Expressions| {
            is_of_kind(&known.0, &ordered(&known.1, &own, &shared), expressions)
        };
        let known = kinds.iter().position(|known| is_like(known, expressions));
        let kind = match known {
            Some(kind) => kind,
            None => {
                kinds.push(kind_of(expressions, &own, &shared)?);
                let new = kinds.len() - 1;
                is_like(&kinds[new], expressions).then_some(new)?
            }
        };
        cells.push(Cell {
            kind,
            elements,
            bits: ordered(&kinds[kind].1, &own, &shared),
        });
    }
    let kinds: Vec<Kind> = kinds.into_iter().map(|(kind, _)| kind).collect();
    let is_free = kinds.iter().all(is_free);
    let are_runs = cells.iter().all(|cell| {
        let [first, last] = [cell.elements[0], cell.elements[cell.elements.len() - 1]];
        last - first + 1 == cell.elements.len() && first % cell.elements.len() == 0
    });
    let is_grid = are_runs && kinds.len() == 1 && LANES.is_multiple_of(kinds[0].len);
    (is_free && variants == 1 || is_grid).then_some(Joint {
        cells,
        kinds,
        variants,
        is_free,
    })
}

/// The own bits in an order, then the shared bits.
fn ordered(order: &[usize], own: &[usize], shared: &[usize]) -> Vec<usize> {
    let in_order = order.iter().filter_map(|&i| own.get(i));
    in_order.chain(shared).copied().collect()
}

/// Whether a cell with these bits, in the order of a [`Cell`], has the values of a kind.
fn is_of_kind(kind: &Kind, bits: &[usize], expressions: &mut Expressions) -> bool {
    let of_parts: usize = kind.parts.iter().map(|part| part.bits).sum();
    let own = kind.signs.bits(kind.len) + of_parts;
    let shared = kind.parts[0].points.len().ilog2() as usize;
    if expressions.elements.len() != kind.len || bits.len() != own + shared {
        return false;
    }
    // A joint code of one cell with its bits at the positions of the setting.
    let joint = Joint {
        cells: vec![Cell {
            kind: 0,
            elements: (0..kind.len).collect(),
            bits: (0..bits.len()).collect(),
        }],
        kinds: vec![kind.clone()],
        variants: 1 << shared,
        is_free: false,
    };
    samples(bits.len()).all(|setting| {
        let mut expected = vec![0.0; kind.len];
        joint.levels(&(setting as u32).to_le_bytes(), &mut expected);
        expressions.values(bits, setting) == Some(expected)
    })
}

/// Derives the meaning of a cell's bits, and the order in which its own bits are written.
fn kind_of(
    expressions: &mut Expressions,
    own: &[usize],
    shared: &[usize],
) -> Option<(Kind, Vec<usize>)> {
    let len = expressions.elements.len();
    let bits: Vec<usize> = own.iter().chain(shared).copied().collect();
    let (mut sign_bits, mut masks, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..own.len() {
        let effect = effect_of(expressions, &bits, i)?;
        if effect.negated != 0 {
            sign_bits.push(i);
            masks.push(effect.negated);
        } else {
            changed.push((i, effect.changed));
        }
    }
    let last = 1 << (len - 1);
    let signs = match masks.len() {
        0 => Signs::None,
        n if n == len && masks.iter().enumerate().all(|(i, mask)| *mask == 1 << i) => Signs::Each,
        n if n + 1 == len
            && masks
                .iter()
                .enumerate()
                .all(|(i, mask)| *mask == 1 << i | last) =>
        {
            Signs::Even
        }
        _ => return None,
    };
    let lists: Vec<Vec<usize>> = changed
        .iter()
        .map(|(_, elements)| elements.clone())
        .collect();
    let runs = connected(len, lists.iter());
    let mut order = sign_bits;
    let mut parts = Vec::new();
    for run in &runs {
        let of_run = changed
            .iter()
            .filter(|(_, elements)| run.contains(&elements[0]));
        let own_bits: Vec<usize> = of_run.map(|(i, _)| *i).collect();
        parts.push(part_of(expressions, [own, shared], run, &own_bits, signs)?);
        order.extend(own_bits);
    }
    let kind = Kind { len, signs, parts };
    (kind.parts.len() <= MAX_PARTS).then_some((kind, order))
}

/// Effect of a bit on the values of a cell.
struct Effect {
    /// Elements that it negates, as a mask, if it does nothing else.
    negated: usize,
    /// Elements that it changes.
    changed: Vec<usize>,
}

fn effect_of(expressions: &mut Expressions, bits: &[usize], i: usize) -> Option<Effect> {
    let len = expressions.elements.len();
    let (mut is_same, mut is_negated) = (vec![true; len], vec![true; len]);
    for setting in samples(bits.len()) {
        let before = expressions.values(bits, setting)?;
        let after = expressions.values(bits, setting ^ 1 << i)?;
        for (k, (before, after)) in before.iter().zip(&after).enumerate() {
            is_same[k] &= before == after;
            is_negated[k] &= *before == -after && *before != 0.0;
        }
    }
    let is_sign = (0..len).all(|k| is_same[k] || is_negated[k]);
    let negated = (0..len)
        .filter(|&k| is_negated[k] && is_sign)
        .map(|k| 1 << k)
        .sum();
    let changed: Vec<usize> = (0..len).filter(|&k| !is_same[k]).collect();
    (!changed.is_empty()).then_some(Effect { negated, changed })
}

/// Lists the values of a part: elements `run` of the cell, and which of its own bits are theirs.
fn part_of(
    expressions: &mut Expressions,
    [own, shared]: [&[usize]; 2],
    run: &[usize],
    own_bits: &[usize],
    signs: Signs,
) -> Option<Part> {
    let (first, len) = (run[0], run.len());
    if run[len - 1] - first + 1 != len || own_bits.len() + shared.len() > MAX_CODE_BITS {
        return None;
    }
    let bits: Vec<usize> = own_bits
        .iter()
        .map(|&i| own[i])
        .chain(shared.iter().copied())
        .collect();
    // All others, signs among them, are zero.
    expressions.block.fill(0);
    let mut values = Vec::new();
    for setting in 0..1 << bits.len() {
        values.extend_from_slice(&expressions.values(&bits, setting)?[first..first + len]);
    }
    let is_valid = |v: &f32| v.is_finite() && (signs == Signs::None || *v > 0.0);
    if !values.iter().all(is_valid) {
        return None;
    }
    let of_variant = values.chunks_exact(len << own_bits.len());
    let points = of_variant
        .map(|values| Points::new(values, len))
        .collect::<Option<_>>()?;
    Some(Part {
        first,
        len,
        bits: own_bits.len(),
        values,
        points,
    })
}

/// Whether a kind's elements have every combination of their values.
fn is_free(kind: &Kind) -> bool {
    let is_product = |part: &Part| {
        let distinct = |element: usize| {
            let mut of: Vec<u32> = part
                .values
                .chunks_exact(part.len)
                .map(|v| v[element].to_bits())
                .collect();
            of.sort_unstable();
            of.dedup();
            of.len()
        };
        let all: usize = (0..part.len).map(distinct).product();
        part.points.iter().all(|points| points.len() == all)
    };
    kind.signs == Signs::None && kind.parts.iter().all(is_product)
}
