//! Prelude of each WGSL module: helper functions and constants.

/// Infinity, NaN and the int8 dot product.
///
/// WGSL has no literals for the first two. The dot product is a function because naga declares its
/// operands for Metal as variables named after them: two calls in one block with a common operand
/// would declare a name twice.
pub const PRELUDE: &str = r"
var<private> special: vec2<u32> = vec2<u32>(0x7f800000u, 0x7fc00000u);
fn infinity() -> f32 { return bitcast<f32>(special.x); }
fn not_a_number() -> f32 { return bitcast<f32>(special.y); }
fn dot4_signed(a: u32, b: u32, c: i32) -> i32 { return dot4I8Packed(a, b) + c; }
";
