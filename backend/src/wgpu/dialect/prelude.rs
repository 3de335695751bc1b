//! What every kernel's module begins with.

/// Numbers that no literal is. A product of four bytes is a function, as naga writes its operands for Metal as variables that are named by them: two in one block with an operand
/// in common would declare one twice.
pub const PRELUDE: &str = r"
var<private> special: vec2<u32> = vec2<u32>(0x7f800000u, 0x7fc00000u);
fn infinity() -> f32 { return bitcast<f32>(special.x); }
fn not_a_number() -> f32 { return bitcast<f32>(special.y); }
fn dot4_signed(a: u32, b: u32, c: i32) -> i32 { return dot4I8Packed(a, b) + c; }
";
