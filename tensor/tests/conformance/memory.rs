//! Allocator settings of this test binary.

/// Makes glibc's malloc use one heap and keep freed memory.
///
/// The evaluator allocates arrays of megabytes for a short time. By default glibc maps and unmaps
/// fresh pages for each, a fifth of the evaluator's time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[used]
// SAFETY: the loader calls entries of `.init_array` as functions of this type before `main`, and
// this one needs nothing of the standard library.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn one_heap() {
        // SAFETY: allocator parameters, set while there is one thread.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
            libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        }
    }
    one_heap
};
