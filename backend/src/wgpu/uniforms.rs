//! Layout of the uniform buffer of variables, and the grid of a dispatch.
//!
//! Nothing here needs an adapter, so its tests run without the feature.

use super::dialect::GROUPS_X;

/// Bytes of a variable.
pub const VARIABLE_BYTES: usize = 4;

/// Offsets of lists of variables; equal lists share one.
#[derive(Default)]
pub struct UniformLayout {
    /// Variable of each word; None for padding.
    pub cells: Vec<Option<usize>>,
    known: Vec<(Vec<usize>, usize)>,
}

impl UniformLayout {
    /// Returns the offset of a list in bytes, a multiple of `alignment`.
    pub fn offset_of(&mut self, list: &[usize], alignment: usize) -> usize {
        if let Some((_, at)) = self.known.iter().find(|(known, _)| known == list) {
            return *at;
        }
        let at = (self.cells.len() * VARIABLE_BYTES).next_multiple_of(alignment);
        self.cells.resize(at / VARIABLE_BYTES, None);
        self.cells.extend(list.iter().copied().map(Some));
        // The size of a struct in a uniform buffer is a multiple of 16 bytes.
        self.cells
            .resize(self.cells.len().next_multiple_of(16 / VARIABLE_BYTES), None);
        self.known.push((list.to_vec(), at));
        at
    }
}

/// Returns the columns and rows of the grid for a number of workgroups.
///
/// With several rows all are full, and kernels skip workgroups beyond their count.
pub fn grid(count: i64) -> [u32; 2] {
    match u32::try_from(count) {
        Ok(count) if count <= 0xffff => [count, 1],
        Ok(count) => [GROUPS_X, count.div_ceil(GROUPS_X)],
        Err(_) => [0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_every_workgroup() {
        for count in [0, 1, 65_535, 65_536, 1 << 20, (1 << 20) + 1] {
            let [x, y] = grid(count);
            assert!(
                i64::from(x) * i64::from(y) >= count
                    && x <= 0xffff
                    && y <= 0xffff
                    && (y <= 1 || x == GROUPS_X)
            );
        }
    }

    #[test]
    fn a_list_of_variables_has_one_place_where_a_buffer_may_begin() {
        let mut lists = UniformLayout::default();
        let places: Vec<usize> = [&[0][..], &[1, 0], &[0]]
            .iter()
            .map(|list| lists.offset_of(list, 256))
            .collect();
        assert_eq!(places, [0, 256, 0]);
        assert_eq!(
            (lists.cells[64], lists.cells[65], lists.cells.len()),
            (Some(1), Some(0), 68)
        );
    }
}
