//! Pure parts of building a step: the layout of its variables and the launched workgroup counts.

/// Layout of a step's variables on the device; equal lists of variables share an offset.
#[derive(Default)]
pub struct VariableLayout {
    /// Variable of each eight bytes.
    cells: Vec<usize>,
    /// Start and length of each list, in cells.
    lists: Vec<(usize, usize)>,
}

impl VariableLayout {
    /// Returns the offset of a list in bytes, appending it if it is new.
    pub fn place(&mut self, list: &[usize]) -> usize {
        let found = self
            .lists
            .iter()
            .find(|(at, len)| self.cells[*at..at + len] == *list);
        let at = found.map_or(self.cells.len(), |l| l.0);
        if found.is_none() {
            self.cells.extend(list);
            self.lists.push((at, list.len()));
        }
        at * 8
    }
    /// Returns the variable of each eight bytes.
    pub fn cells(&self) -> &[usize] {
        &self.cells
    }
}

/// Constant of the rounding of counts: a growing count changes 64 times until it has doubled.
const STEPS_PER_DOUBLING: u64 = 128;

/// Rounds a workgroup count up, so that a large count rarely changes the graph.
///
/// `most` bounds the result. Surplus workgroups return at once, but each waits for a free
/// multiprocessor, and the next kernel waits for all of them.
pub fn bucket(count: i64, most: Option<i64>) -> u64 {
    let count = count.max(1) as u64;
    let unit = (count.checked_next_power_of_two().unwrap_or(count) / STEPS_PER_DOUBLING).max(1);
    let wide = count.checked_next_multiple_of(unit).unwrap_or(count);
    match most {
        Some(most) if most > 0 => wide.min(most as u64).max(count),
        _ => wide,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_one_place() {
        let mut regions = VariableLayout::default();
        let places: Vec<usize> = [&[0][..], &[1, 0], &[], &[0], &[1], &[0, 1], &[1, 0]]
            .iter()
            .map(|list| regions.place(list))
            .collect();
        assert_eq!(places, [0, 8, 24, 0, 24, 32, 8]);
        assert_eq!(regions.cells(), [0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn a_bucket_is_little_more_than_its_count_and_changes_seldom() {
        for most in [1, 7, 64, 1000, 5000] {
            let buckets: Vec<u64> = (0..=most).map(|n| bucket(n, Some(most))).collect();
            let near = |n: u64, b: u64| b >= n.max(1) && b <= most as u64 && b - n.max(1) <= n / 64;
            assert!(buckets.iter().enumerate().all(|(n, &b)| near(n as u64, b)));
            let changes = buckets.windows(2).filter(|w| w[0] != w[1]).count();
            assert!(
                changes <= 64 * (most as f64).log2().ceil() as usize,
                "{changes} of {most}"
            );
        }
        // A wrong bound, smaller than the count.
        assert_eq!(
            (
                bucket(9, Some(3)),
                bucket(9, None),
                bucket(0, Some(0)),
                bucket(-1, None)
            ),
            (9, 9, 1, 1)
        );
        assert_eq!(bucket(i64::MAX, None), 1 << 63);
    }
}
