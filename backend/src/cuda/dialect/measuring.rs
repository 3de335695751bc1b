//! Kernels that measure a GPU's costs; `NAME` is replaced by their names.
//!
//! Their results are unused but cannot be optimised away.

/// Threads of a workgroup, except in [`CHASE`].
pub const THREADS: usize = 256;
/// Bytes of a page in [`CHASE`].
pub const PAGE: usize = 2 << 20;

/// Reads v[0] words of 16 bytes once, with v[1] workgroups.
pub const READ: &str = "ENTRY(256, 4, NAME)(u32 *p0, const u32x4 *p1, const i64 *v CLOCK) {
  const i32 thread = THREAD_INDEX;
  DEPENDENTS_MAY_START;
  PREDECESSORS_ENDED;
  const i64 count = v[0], groups = v[1], all = groups * 256;
  if (GROUP_INDEX >= groups) return;
  u32 sum = 0;
  for (i64 i = GROUP_INDEX * 256 + thread; i + 7 * all < count; i += 8 * all) {
    u32x4 x[8];
    UNROLL(8) for (int k = 0; k < 8; k++) x[k] = p1[i + k * all];
    UNROLL(8) for (int k = 0; k < 8; k++) sum += x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
  }
  if (sum == 0x5bd1e995u) p0[GROUP_INDEX] = sum;
}
";

/// Copies one word for each of v[0] workgroups from the kernel before.
pub const LINK: &str = "ENTRY(256, 1, NAME)(u32 *p0, const u32 *p1, const i64 *v CLOCK) {
  const i32 thread = THREAD_INDEX;
  DEPENDENTS_MAY_START;
  PREDECESSORS_ENDED;
  if (thread == 0 && GROUP_INDEX < v[0]) p0[GROUP_INDEX] = p1[GROUP_INDEX] + 1;
}
";

/// Executes v[0] barriers in each of v[1] workgroups.
pub const BARRIERS: &str = "ENTRY(256, 1, NAME)(const i64 *v CLOCK) {
  const i32 thread = THREAD_INDEX;
  DEPENDENTS_MAY_START;
  PREDECESSORS_ENDED;
  const i64 count = v[0];
  if (GROUP_INDEX >= v[1]) return;
  for (i64 i = 0; i < count; i++) BARRIER;
}
";

/// Executes v[0] dependent loads in one thread.
///
/// They visit 32 lines of a 2 MiB page in pseudorandom order, then as many of the next
/// of v[1] pages.
pub const CHASE: &str = "ENTRY(32, 1, NAME)(u32 *p0, const u32 *p1, const i64 *v CLOCK) {
  const i32 thread = THREAD_INDEX;
  DEPENDENTS_MAY_START;
  PREDECESSORS_ENDED;
  const i64 loads = v[0], pages = v[1];
  if (thread != 0 || GROUP_INDEX != 0) return;
  u32 line = 1, last = 0;
  i64 page = 0;
  for (i64 i = 0; i < loads; i++) {
    line = (line * 1664525u + 1013904223u + (last == 0x5bd1e995u)) & 16383u;
    last = p1[(page * 16384 + line) * 32];
    if ((i & 31) == 31) page = page + 1 < pages ? page + 1 : 0;
  }
  if (last == 0x5bd1e995u) p0[0] = last;
}
";
