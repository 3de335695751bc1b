//! Nearest point of a set of points that are no product of levels.

/// Most different halves of points.
const MAX_HALVES: usize = 176;

/// Space for the distances of halves.
pub(super) type Scratch = [[f32; MAX_HALVES]; 2];
/// Scratch space before its first use.
pub(super) const SCRATCH: Scratch = [[0.0; MAX_HALVES]; 2];

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

/// Different vectors, their elements apart.
#[derive(Clone, Debug)]
struct Halves {
    count: usize,
    /// Element-major: `[element, vector]`, so that distances are sums of vectors.
    values: Vec<f32>,
}

impl Halves {
    fn new(vectors: &[Vec<f32>], len: usize) -> Option<Halves> {
        let values = (0..len).flat_map(|i| vectors.iter().map(move |vector| vector[i]));
        (vectors.len() <= MAX_HALVES).then(|| Halves {
            count: vectors.len(),
            values: values.collect(),
        })
    }
    /// Weighted squared distance of each vector.
    fn costs<'c>(&self, x: &[f32], weights: &[f32], costs: &'c mut [f32]) -> &'c [f32] {
        let costs = &mut costs[..self.count];
        costs.fill(0.0);
        let elements = self
            .values
            .chunks_exact(self.count)
            .zip(x.iter().zip(weights));
        for (values, (&x, &weight)) in elements {
            for (cost, value) in costs.iter_mut().zip(values) {
                let difference = x - value;
                *cost += weight * difference * difference;
            }
        }
        costs
    }
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
        let least = |costs: &[f32]| {
            costs
                .iter()
                .fold(f32::INFINITY, |a, &b| if b < a { b } else { a })
        };
        let (least_first, bound) = (least(first), least(second));
        let start = first
            .iter()
            .position(|cost| *cost == least_first)
            .unwrap_or(0);
        let mut best = (f32::INFINITY, 0);
        // The points of the nearest first half bound those of the others.
        let others = (0..first.len()).filter(|half| *half != start);
        for half in std::iter::once(start).chain(others) {
            if first[half] + bound >= best.0 {
                continue;
            }
            for &(rest, code) in &self.points[self.starts[half]..self.starts[half + 1]] {
                let cost = first[half] + second[usize::from(rest)];
                if cost < best.0 {
                    best = (cost, usize::from(code));
                }
            }
        }
        best
    }
}
