//! Bit-field helpers shared by several formats.
//!
//! Within a run of 16 elements every expression here is uniform except for the byte that it loads:
//! groups, halves and bit planes are functions of `k / 16`. A device that unrolls over them is left
//! with a constant shift or one side of a select. No expression reads outside the block, whichever
//! side of a select is taken.

use gristmill_uop::encoding::{Block, Expr};

/// Values of the four-bit codes of iq4_nl and iq4_xs.
pub(crate) const IQ4: &[i32] = &[
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Twice the value of each e2m1 code. Code 8 is a plain zero, as in ggml.
pub(crate) const E2M1: &[i32] = &[0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Returns four-bit number `k` of 32, stored in 16 bytes from `at`, low nibbles first.
pub(crate) fn nibble<'b>(b: &'b Block, at: i64) -> Expr<'b> {
    (b.u8(b.k() % 16 + at) >> (b.k() / 16 * 4)) & 15
}

/// Returns five-bit number `k` of 32: low nibble from `at`, fifth bit from the 32 bits at `high`.
pub(crate) fn five_bits<'b>(b: &'b Block, at: i64, high: i64) -> Expr<'b> {
    nibble(b, at) | (((b.u32(high) >> b.k()) & 1) << 4)
}

/// Returns four-bit number `k` of 256, stored in 128 bytes from `at`. Each 32 bytes hold 32 low
/// nibbles, then 32 high nibbles.
pub(crate) fn nibble_of_256<'b>(b: &'b Block, at: i64) -> Expr<'b> {
    (b.u8(b.k() / 64 * 32 + b.k() % 32 + at) >> (b.k() / 32 % 2 * 4)) & 15
}

/// Returns two-bit number `k` of 256, stored in 64 bytes from `at`. Each 32 bytes hold
/// four planes of 32.
pub(crate) fn two_bits<'b>(b: &'b Block, at: i64) -> Expr<'b> {
    (b.u8(b.k() / 128 * 32 + b.k() % 32 + at) >> (b.k() / 32 % 4 * 2)) & 3
}

/// Returns the four-bit scale of the group of `of` elements (16 or 32) that contains `k`. Scales
/// start at `at`, low nibbles first.
pub(crate) fn nibble_scale<'b>(b: &'b Block, at: i64, of: i64) -> Expr<'b> {
    (b.u8(b.k() / (2 * of) + at) >> (b.k() / of % 2 * 4)) & 15
}

/// Returns the six-bit scale and minimum of the group of 32 that contains `k`.
///
/// Eight of each are stored in 12 bytes from `at`. The first four scales and the first four minima
/// have a byte each; the low four bits of the others share the last four bytes, and their high two
/// bits are the top bits of the first eight bytes.
pub(crate) fn six_bit_pair<'b>(b: &'b Block, at: i64) -> (Expr<'b>, Expr<'b>) {
    let group = b.k() / 32;
    let (scale, minimum) = (b.u8(group % 4 + at), b.u8(group % 4 + (at + 4)));
    let both = b.u8(group % 4 + (at + 8));
    let late_scale = (both & 15) | ((scale >> 6) << 4);
    let late_minimum = (both >> 4) | ((minimum >> 6) << 4);
    (
        group.less_than(4, scale & 63, late_scale),
        group.less_than(4, minimum & 63, late_minimum),
    )
}
