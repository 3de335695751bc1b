//! What every kernel's module begins with.

/// Functions that have no word in WGSL, or one that says less than the graph means: conversions that saturate and round to the nearest even, exponentials
/// and logarithms to a few units in the last place (polynomials of the Cephes library, as in the dialect of the processor). The larger part of
/// `n·ln 2`, n·355/512, is a product of whole numbers: drivers may join two products of `n`, and have lost its last bits then.
/// A product of four bytes is a function, as naga writes its operands for Metal as variables that are named by them: two in one block with an operand
/// in common would declare one twice.
pub const PRELUDE: &str = r"
var<private> special: vec2<u32> = vec2<u32>(0x7f800000u, 0x7fc00000u);
fn infinity() -> f32 { return bitcast<f32>(special.x); }
fn not_a_number() -> f32 { return bitcast<f32>(special.y); }
fn f16_to_f32(x: u32) -> f32 { return unpack2x16float(x).x; }
fn bf16_to_f32(x: u32) -> f32 { return bitcast<f32>(x << 16u); }
fn f32_to_bf16(f: f32) -> u32 {
  let x = bitcast<u32>(f);
  return select((x + 0x7fffu + ((x >> 16u) & 1u)) >> 16u, (x >> 16u) | 64u, (x & 0x7fffffffu) > 0x7f800000u);
}
fn f32_to_f16(f: f32) -> u32 {
  let x = bitcast<u32>(f);
  let a = x & 0x7fffffffu;
  let sign = (x >> 16u) & 0x8000u;
  let normal = (a + 0xc8000fffu + ((a >> 13u) & 1u)) >> 13u;
  let shift = 126u - min(a >> 23u, 126u);
  let fraction = (a & 0x7fffffu) | 0x800000u;
  let kept = fraction >> min(shift, 31u);
  let lost = fraction & ((1u << min(shift, 31u)) - 1u);
  let half = 1u << (max(min(shift, 31u), 1u) - 1u);
  let small = kept + u32(lost > half || (lost == half && (kept & 1u) == 1u));
  let finite = select(select(small, 0u, shift > 24u), normal, a >= 0x38800000u);
  let large = select(0x7c00u, 0x7e00u, a > 0x7f800000u);
  return sign | select(finite, large, a >= 0x477ff000u);
}
fn f32_to_i32(x: f32) -> i32 {
  let inside = i32(clamp(x, -2147483648.0f, 2147483520.0f));
  return select(select(0, inside, x == x), 2147483647, x >= 2147483648.0f);
}
fn f32_to_u32(x: f32) -> u32 {
  let inside = u32(clamp(x, 0.0f, 4294967040.0f));
  return select(select(0u, inside, x == x), 4294967295u, x >= 4294967296.0f);
}
fn f32_to_i8(x: f32) -> i32 { return select(0, i32(clamp(x, -128.0f, 127.0f)), x == x); }
fn f32_to_i16(x: f32) -> i32 { return select(0, i32(clamp(x, -32768.0f, 32767.0f)), x == x); }
fn f32_to_u8(x: f32) -> u32 { return select(0u, u32(clamp(x, 0.0f, 255.0f)), x == x); }
fn f32_to_u16(x: f32) -> u32 { return select(0u, u32(clamp(x, 0.0f, 65535.0f)), x == x); }
// e^r times 2^n, of |r| to half of ln 2.
fn scaled(r: f32, n: f32) -> f32 {
  var p = 1.9875691500e-4f;
  p = fma(p, r, 1.3981999507e-3f);
  p = fma(p, r, 8.3334519073e-3f);
  p = fma(p, r, 4.1665795894e-2f);
  p = fma(p, r, 1.6666665459e-1f);
  p = fma(p, r, 5.0000001201e-1f);
  p = fma(p, r * r, r + 1.0f);
  let k = i32(n);
  let half = k >> 1u;
  return p * bitcast<f32>((half + 127) << 23u) * bitcast<f32>((k - half + 127) << 23u);
}
fn exponential(y: f32) -> f32 {
  let x = clamp(y, -104.0f, 89.0f);
  let n = round(x * 1.4426950408889634f);
  let r = fma(n, 2.12194440e-4f, x - f32(i32(n) * 355) * 0.001953125f);
  return select(y, scaled(r, n), y == y);
}
fn power_of_two(y: f32) -> f32 {
  let x = clamp(y, -150.0f, 129.0f);
  let n = round(x);
  return select(y, scaled((x - n) * 0.6931471805599453f, n), y == y);
}
fn logarithm(x: f32) -> f32 {
  let low = x < 1.1754943508e-38f;
  let b = bitcast<i32>(select(x, x * 8388608.0f, low));
  let e = (b - 0x3f3504f3) >> 23u;
  let m = bitcast<f32>(b - (e << 23u));
  let f = (m - 1.0f) / (m + 1.0f);
  let z = f * f;
  var p = 0.2222222222f;
  p = fma(p, z, 0.2857142857f);
  p = fma(p, z, 0.4f);
  p = fma(p, z, 0.6666666667f);
  p = fma(p, z, 2.0f);
  let n = f32(e - select(0, 23, low));
  let inside = fma(n, 0.6931471806f, f * p);
  let outside = select(select(not_a_number(), infinity(), x > 0.0f), -infinity(), x == 0.0f);
  return select(outside, inside, x > 0.0f && x < infinity());
}
fn dot4_signed(a: u32, b: u32, c: i32) -> i32 { return dot4I8Packed(a, b) + c; }
fn dot4_unsigned(a: u32, b: u32, c: i32) -> i32 {
  return dot4_signed(a ^ 0x80808080u, b, c) + 128 * dot4_signed(0x01010101u, b, 0);
}
fn table4(table: vec4<u32>, x: u32) -> u32 {
  var out = 0u;
  for (var i = 0u; i < 32u; i += 8u) {
    let at = (x >> i) & 15u;
    out |= ((table[at >> 2u] >> ((at & 3u) * 8u)) & 255u) << i;
  }
  return out;
}
";

/// What stands there besides where a kernel makes a whole number of 64 bits of a float: not every adapter has those.
pub const LONG: &str = r"
fn f32_to_i64(x: f32) -> i64 {
  let inside = i64(clamp(x, -9223372036854775808.0f, 9223371487098961920.0f));
  return select(select(0li, inside, x == x), 9223372036854775807li, x >= 9223372036854775808.0f);
}
";
