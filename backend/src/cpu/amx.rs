//! AMX support: bf16 tiles of the processor, and permission to use them.
//!
//! Linux grants a process the 8 KiB of tile state only on request
//! (Documentation/arch/x86/xstate.rst), once for all threads, including running ones.

use std::sync::OnceLock;

/// Returns whether the process may use AMX tiles with bf16 products, and AVX512-BF16 conversions.
pub(super) fn permitted() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| has_tiles() && ask())
}

/// Checks the feature bits of `CPUID` leaf 7.
fn has_tiles() -> bool {
    use std::arch::x86_64::__cpuid_count as leaf;
    let (features, more) = (leaf(7, 0), leaf(7, 1));
    let (bf16, tile, avx512_bf16) = (
        features.edx >> 22 & 1,
        features.edx >> 24 & 1,
        more.eax >> 5 & 1,
    );
    features.eax >= 1 && (bf16 & tile & avx512_bf16) == 1
}

/// Requests permission from the kernel.
#[cfg(target_os = "linux")]
fn ask() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers and accesses no memory of the process.
    unsafe {
        libc::syscall(
            libc::SYS_arch_prctl,
            ARCH_REQ_XCOMP_PERM,
            XFEATURE_XTILEDATA,
        ) == 0
    }
}

/// No other system is known to support it.
#[cfg(not(target_os = "linux"))]
fn ask() -> bool {
    false
}
