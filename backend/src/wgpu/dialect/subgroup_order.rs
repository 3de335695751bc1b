//! Kernel that tests the order of a subgroup's threads.

/// Returns a kernel that stores 1 for each thread if its shuffles return the expected neighbours.
///
/// It tests each power-of-two distance within the narrowest subgroup.
pub fn text(threads: usize, narrowest: i64) -> String {
    let distances: String = (0..narrowest.max(1).ilog2())
        .map(|bit| {
            format!(
                "right = right && subgroupShuffleXor(thread, {0}u) == (thread ^ {0}u);\n",
                1 << bit
            )
        })
        .collect();
    format!(
        "@group(0) @binding(0) var<storage, read_write> p0: array<u32>;\n@compute @workgroup_size({threads})\n\
         fn order(@builtin(local_invocation_index) thread: u32) {{\nvar right = true;\n{distances}p0[thread] = u32(right);\n}}\n"
    )
}
