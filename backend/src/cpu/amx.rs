//! AMX: whether the processor has tiles of bf16, and the system's permission to use them. Linux gives a process their 8 KiB of state only when asked
//! (Documentation/arch/x86/xstate.rst), once for all of its threads, those that run already too.

use std::sync::OnceLock;

/// Does the processor have AMX's tiles, their products of bf16 and AVX512's conversions to it, and may this process use them?
pub(super) fn permitted() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| has_tiles() && ask())
}

/// What `CPUID` says, of leaf 7.
fn has_tiles() -> bool {
    use std::arch::x86_64::__cpuid_count as leaf;
    let (features, more) = (leaf(7, 0), leaf(7, 1));
    let (bf16, tile, avx512_bf16) = (features.edx >> 22 & 1, features.edx >> 24 & 1, more.eax >> 5 & 1);
    features.eax >= 1 && (bf16 & tile & avx512_bf16) == 1
}

/// Asks the system.
#[cfg(target_os = "linux")]
fn ask() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: this call takes two numbers and touches no memory of the process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Other systems are not known to give it.
#[cfg(not(target_os = "linux"))]
fn ask() -> bool {
    false
}
