//! Signs of Hadamard matrices, which spread outliers before a KV cache is quantised.

/// Largest block that is transformed at once. A larger one spreads outliers further, and costs
/// as many products per element.
pub const BLOCK: usize = 64;

/// Returns the block size for heads of `width` elements: [`BLOCK`], or the largest power of
/// two that divides `width` if that is smaller.
pub fn block_of(width: usize) -> usize {
    1 << width.trailing_zeros().min(BLOCK.trailing_zeros())
}

/// Returns the signs of Sylvester's Hadamard matrix, `[BLOCK, BLOCK]`, as bytes of f16:
/// −1 where the common bits of row and column are odd in number.
///
/// The first `b` rows and columns are the matrix of size `b`, for powers of two. The matrix is
/// symmetric, and its square is `b` times the identity.
pub fn signs() -> Vec<u8> {
    let sign = |i: usize, j: usize| {
        if (i & j).count_ones().is_multiple_of(2) {
            1.0
        } else {
            -1.0
        }
    };
    (0..BLOCK * BLOCK)
        .flat_map(|at| half::f16::from_f32(sign(at / BLOCK, at % BLOCK)).to_le_bytes())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, block_of, signs};

    #[test]
    fn blocks_divide_heads() {
        for (width, block) in [(64, 64), (128, 64), (80, 16), (96, 32), (7, 1)] {
            assert_eq!(block_of(width), block, "{width}");
        }
    }

    #[test]
    fn every_leading_block_is_its_own_inverse_but_for_a_factor() {
        let signs: Vec<f32> = signs()
            .chunks(2)
            .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect();
        for block in [1, 2, 16, BLOCK] {
            for (i, j) in (0..block * block).map(|at| (at / block, at % block)) {
                let product: f32 = (0..block)
                    .map(|k| signs[i * BLOCK + k] * signs[k * BLOCK + j])
                    .sum();
                let expected = if i == j { block as f32 } else { 0.0 };
                assert_eq!(product, expected, "{block}: {i}, {j}");
            }
        }
    }
}
