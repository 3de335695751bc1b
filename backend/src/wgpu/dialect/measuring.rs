//! Kernels that measure an adapter's costs.

/// Operations of a thread in one round of [`COMPUTE`]: eight multiply-adds of four floats.
pub const OPERATIONS_PER_ROUND: usize = 64;
/// Statements of a compute round.
pub const COMPUTE: &str = "a = fma(a, c, b); b = fma(b, c, a); a = fma(a, c, b); b = fma(b, c, a); \
     a = fma(a, c, b); b = fma(b, c, a); a = fma(a, c, b); b = fma(b, c, a);";
/// Statement of a reading round: each thread loads 16 bytes, the next round follows contiguously.
pub const READ: &str = "a += p0[at.x + i * groups.x * threads];";

/// Returns the kernel of these rounds; its result is unused but cannot be optimised away.
pub fn text(name: &str, threads: usize, round: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read_write> p0: array<vec4<f32>>;\n@group(0) @binding(1) var<uniform> rounds: u32;\n\
         const threads = {threads}u;\n@compute @workgroup_size(threads)\n\
         fn {name}(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{\n\
         var a = vec4<f32>(f32(at.x)); var b = a + 1.0f; let c = b * 0.001f;\n\
         for (var i = 0u; i < rounds; i += 1u) {{ {round} }}\nif (dot(a, b) == 0.5f) {{ p0[0] = a; }}\n}}\n"
    )
}
