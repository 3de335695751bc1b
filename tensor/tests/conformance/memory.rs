//! How this program asks the system for memory: seldom.

/// The evaluator's arrays have megabytes and live for a moment. glibc gives each thread a heap of its own, which holds no such array, and so takes fresh pages for each and gives
/// them back: a fifth of the evaluator's time. In one heap they lie where those before them did.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[used]
// SAFETY: what the loader calls before `main` is a function of that type, and this one needs nothing of the standard library.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn one_heap() {
        // SAFETY: parameters of the allocator, before there are other threads.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
            libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        }
    }
    one_heap
};
