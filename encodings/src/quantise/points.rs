//! Nearest point of a set of points that are no product of levels.

use super::levels::{LANES, Lanes};

/// Most different halves of points.
const MAX_HALVES: usize = 176;

/// Space for the distances of halves, some together.
pub(super) type Scratch = [[Lanes; MAX_HALVES / LANES]; 2];
/// Scratch space before its first use.
pub(super) const SCRATCH: Scratch = [[[0.0; LANES]; MAX_HALVES / LANES]; 2];

/// Points with up to eight elements, by their first halves.
#[derive(Clone, Debug)]
pub(super) struct Points {
    /// Different first and second halves.
    halves: [Halves; 2],
    /// For each first half, where its points begin in `points`; then the number of points.
    starts: Vec<usize>,
    /// Second half and code of each point.
    points: Vec<(u16, u16)>,
}

/// Different vectors, some together and their elements apart.
#[derive(Clone, Debug)]
struct Halves {
    count: usize,
    /// Elements of a vector.
    len: usize,
    /// `[vector / LANES, element, vector % LANES]`, so that distances are sums of lanes.
    values: Vec<Lanes>,
}

impl Halves {
    fn new(vectors: &[Vec<f32>], len: usize) -> Option<Halves> {
        let element = |i: usize, vectors: &[Vec<f32>]| {
            let mut lanes = [0.0; LANES];
            for (lane, vector) in lanes.iter_mut().zip(vectors) {
                *lane = vector[i];
            }
            lanes
        };
        let together = vectors.chunks(LANES);
        let values = together.flat_map(|vectors| (0..len).map(move |i| element(i, vectors)));
        (vectors.len() <= MAX_HALVES).then(|| Halves {
            count: vectors.len(),
            len,
            values: values.collect(),
        })
    }
    /// Weighted squared distance of each vector; infinite beyond the last one.
    #[inline(always)]
    fn costs<'c>(&self, x: &[f32], weights: &[f32], costs: &'c mut [Lanes]) -> &'c [Lanes] {
        let costs = &mut costs[..self.count.div_ceil(LANES)];
        for (nth, cost) in costs.iter_mut().enumerate() {
            let values = &self.values[nth * self.len..][..self.len];
            let mut sums = [0.0; LANES];
            for (values, (&x, &weight)) in values.iter().zip(x.iter().zip(weights)) {
                for (sum, value) in sums.iter_mut().zip(values) {
                    let difference = x - value;
                    *sum += weight * difference * difference;
                }
            }
            *cost = sums;
        }
        if let Some(last) = costs.last_mut() {
            let used = (self.count + LANES - 1) % LANES + 1;
            last[used..].fill(f32::INFINITY);
        }
        costs
    }
}

/// The least of some distances.
#[inline(always)]
fn least(costs: &[Lanes]) -> f32 {
    let mut lanes = [f32::INFINITY; LANES];
    for costs in costs {
        for (least, &cost) in lanes.iter_mut().zip(costs) {
            *least = if cost < *least { cost } else { *least };
        }
    }
    lanes.into_iter().fold(f32::INFINITY, f32::min)
}

/// Index of a vector in a list, which it is added to.
fn index_in(list: &mut Vec<Vec<f32>>, vector: &[f32]) -> usize {
    let found = list.iter().position(|other| other == vector);
    found.unwrap_or_else(|| {
        list.push(vector.to_vec());
        list.len() - 1
    })
}

impl Points {
    /// Creates the set from the values `[code, element]` of points of `len` elements; of equal
    /// points the first code is kept. `None` if there are too many halves.
    pub fn new(values: &[f32], len: usize) -> Option<Points> {
        let split = len / 2;
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let mut points = Vec::new();
        for (code, point) in values.chunks_exact(len).enumerate() {
            let (a, b) = point.split_at(split);
            let halves = [index_in(&mut first, a), index_in(&mut second, b)];
            points.push((halves, u16::try_from(code).ok()?));
        }
        points.sort();
        points.dedup_by_key(|point| point.0);
        let start = |half: usize| points.partition_point(|point| point.0[0] < half);
        Some(Points {
            starts: (0..=first.len()).map(start).collect(),
            halves: [
                Halves::new(&first, split)?,
                Halves::new(&second, len - split)?,
            ],
            points: points
                .iter()
                .map(|(halves, code)| (halves[1] as u16, *code))
                .collect(),
        })
    }
    /// Number of different points.
    pub fn len(&self) -> usize {
        self.points.len()
    }
    /// Weighted squared distance and code of the nearest point.
    pub fn nearest(&self, x: &[f32], weights: &[f32], scratch: &mut Scratch) -> (f32, usize) {
        let split = x.len() / 2;
        let [first, second] = scratch;
        let first = self.halves[0].costs(&x[..split], &weights[..split], first);
        let second = self.halves[1].costs(&x[split..], &weights[split..], second);
        let (least_first, bound) = (least(first), least(second));
        // The points of the nearest first half bound those of the others.
        let is_least = |costs: &Lanes| costs.iter().fold(false, |is, c| is | (*c == least_first));
        let nth = first.iter().position(is_least).unwrap_or(0);
        let lane = first[nth].iter().position(|cost| *cost == least_first);
        let start = nth * LANES + lane.unwrap_or(0);
        let (firsts, seconds) = (first.as_flattened(), second.as_flattened());
        let mut best = (f32::INFINITY, 0);
        let compare = |half: usize, best: &mut (f32, usize)| {
            let from = firsts[half];
            for &(rest, code) in &self.points[self.starts[half]..self.starts[half + 1]] {
                let cost = from + seconds[usize::from(rest)];
                if cost < best.0 {
                    *best = (cost, usize::from(code));
                }
            }
        };
        compare(start, &mut best);
        for (nth, costs) in first.iter().enumerate() {
            let mut is_any = false;
            for cost in costs {
                is_any |= cost + bound < best.0;
            }
            if !is_any {
                continue;
            }
            for (i, cost) in costs.iter().enumerate() {
                let half = nth * LANES + i;
                if cost + bound < best.0 && half != start {
                    compare(half, &mut best);
                }
            }
        }
        best
    }
}
