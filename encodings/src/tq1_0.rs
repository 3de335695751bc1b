//! tq1_0: 256 ternary elements, five per byte, one f16 scale.

use gristmill_uop::encoding::Encoding;

/// 256 ternary elements, five per byte, one f16 scale.
pub static TQ1_0: Encoding = Encoding { name: "tq1_0", elements: 256, bytes: 54, value: |b| {
    // 32 bytes with five base-3 digits each, 16 with five, 4 with four. Each group stores the first
    // digits of all its bytes, then the second digits, and so on.
    let k = b.k();
    let at = k.less_than(160, k % 32, k.less_than(240, k % 16 + 32, k % 4 + 48));
    let digit = k.less_than(160, k / 32 % 5, k.less_than(240, k / 16 % 5, k / 4 % 4));
    // A byte is a fraction of 256 in base 3. Multiplying by 3^digit modulo 256 drops the digits
    // before the wanted one.
    let fraction = (b.u8(at) * digit.of_table(&[1, 3, 9, 27, 81])) & 255;
    (((fraction * 3) >> 8) - 1) * b.f16(52)
} };
