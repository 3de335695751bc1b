//! The kernels that measure an adapter.

/// Operations of a thread in one of the rounds of [`COMPUTE`]: eight products and sums of four floats.
pub const OPERATIONS_PER_ROUND: usize = 64;
/// What a thread does in a round that computes.
pub const COMPUTE: &str = "a = fma(a, c, b); b = fma(b, c, a); a = fma(a, c, b); b = fma(b, c, a); \
     a = fma(a, c, b); b = fma(b, c, a); a = fma(a, c, b); b = fma(b, c, a);";
/// And in one that reads: 16 bytes behind those of all others.
pub const READ: &str = "a += p0[at.x + i * groups.x * threads];";

/// The kernel of these rounds. What it computes nobody reads, and no compiler can leave out.
pub fn text(name: &str, threads: usize, round: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read_write> p0: array<vec4<f32>>;\n@group(0) @binding(1) var<uniform> rounds: u32;\n\
         const threads = {threads}u;\n@compute @workgroup_size(threads)\n\
         fn {name}(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{\n\
         var a = vec4<f32>(f32(at.x)); var b = a + 1.0f; let c = b * 0.001f;\n\
         for (var i = 0u; i < rounds; i += 1u) {{ {round} }}\nif (dot(a, b) == 0.5f) {{ p0[0] = a; }}\n}}\n"
    )
}
