//! Kernels that measure an adapter. What they compute nobody reads, and no compiler can leave out.

/// Threads of a workgroup.
pub const THREADS: usize = 256;
/// Operations of a thread in each of the rounds of [`COMPUTE`]: eight products and sums of four floats.
pub const OF_A_ROUND: usize = 64;

/// Reads words of 16 bytes.
pub const READ: &str = r"
@group(0) @binding(0) var<storage, read_write> p0: array<u32>;
@group(0) @binding(1) var<storage, read_write> p1: array<vec4<u32>>;
@group(0) @binding(2) var<uniform> words: u32;
@compute @workgroup_size(256)
fn measure_read(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  var sum = vec4<u32>();
  for (var i = at.x; i < words; i += 256u * groups.x) { sum += p1[i]; }
  if (all(sum == vec4<u32>(0x5bd1e995u))) { p0[0] = 1u; }
}
";

/// Computes.
pub const COMPUTE: &str = r"
@group(0) @binding(0) var<storage, read_write> p0: array<u32>;
@group(0) @binding(1) var<uniform> rounds: i32;
@compute @workgroup_size(256)
fn measure_compute(@builtin(global_invocation_id) at: vec3<u32>) {
  var a = vec4<f32>(f32(at.x));
  var b = a + 1.0f;
  let c = b * 0.001f;
  for (var i = 0; i < rounds; i += 1) {
    a = fma(a, c, b); b = fma(b, c, a); a = fma(a, c, b); b = fma(b, c, a);
    a = fma(a, c, b); b = fma(b, c, a); a = fma(a, c, b); b = fma(b, c, a);
  }
  if (dot(a, b) == 0.5f) { p0[0] = 1u; }
}
";
