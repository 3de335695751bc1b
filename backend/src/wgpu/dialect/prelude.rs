//! What every kernel's module begins with.

/// Functions that have no word in WGSL, or one that says less than the graph means: conversions that saturate, and round to the nearest even.
/// A product of four bytes is a function, as naga writes its operands for Metal as variables that are named by them: two in one block with an operand
/// in common would declare one twice.
pub const PRELUDE: &str = r"
var<private> special: vec2<u32> = vec2<u32>(0x7f800000u, 0x7fc00000u);
fn infinity() -> f32 { return bitcast<f32>(special.x); }
fn not_a_number() -> f32 { return bitcast<f32>(special.y); }
fn f16_to_f32(x: u32) -> f32 { return unpack2x16float(x).x; }
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
fn dot4_signed(a: u32, b: u32, c: i32) -> i32 { return dot4I8Packed(a, b) + c; }
";

/// What stands there besides where a kernel makes a whole number of 64 bits of a float: not every adapter has those.
pub const LONG: &str = r"
fn f32_to_i64(x: f32) -> i64 {
  let inside = i64(clamp(x, -9223372036854775808.0f, 9223371487098961920.0f));
  return select(select(0li, inside, x == x), 9223372036854775807li, x >= 9223372036854775808.0f);
}
";
