//! 256 elements of three values, five to a byte, one f16 scale.

use gristmill_uop::encoding::Encoding;

/// 256 elements of three values, five to a byte, one f16 scale.
pub static TQ1_0: Encoding = Encoding { name: "tq1_0", elements: 256, bytes: 54, value: |b| {
    // 32 bytes of five digits, 16 of five, 4 of four: of each the first digits of all its bytes, then the second ones.
    let k = b.k();
    let at = k.less_than(160, k % 32, k.less_than(240, k % 16 + 32, k % 4 + 48));
    let digit = k.less_than(160, k / 32 % 5, k.less_than(240, k / 16 % 5, k / 4 % 4));
    // A byte is a fraction of 256 in base 3: the digits before the one asked for go over the top.
    let fraction = (b.u8(at) * digit.of_table(&[1, 3, 9, 27, 81])) & 255;
    (((fraction * 3) >> 8) - 1) * b.f16(52)
} };
