//! Host memory: huge pages for weights, lazily committed address space for states.

use gristmill_runtime::lease::{Owner, Uses};
use gristmill_runtime::{Buffer, Error, Memory, RawBuffer, memory};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes of a mapping that small weights share, so that they share huge pages: a tensor of 5 MB
/// alone has a fifth of its bytes in small pages at its ends.
const ARENA_BYTES: usize = 64 << 20;
/// Alignment of allocations within a mapping: a page, more than any vector needs.
const ALIGN: usize = 4 << 10;

/// An anonymous memory mapping.
pub struct Map {
    base: *mut u8,
    len: usize,
}

// SAFETY: a mapping belongs to no thread. Accesses are the responsibility of holders of pointers.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `bytes` of zeros (at least one page), aligned to 2 MiB for weights, else to a page.
    pub fn new(bytes: usize, memory: Memory) -> Result<Map, Error> {
        let refuse = || Error::OutOfMemory {
            what: memory.describe().into(),
            wanted: bytes,
            free: memory::available(),
            device: "cpu".into(),
        };
        // Linux overcommits, and later kills processes. Large requests are checked against
        // available memory; a state is not expected to be touched entirely.
        if memory != Memory::State
            && bytes >= ARENA_BYTES
            && memory::available().is_some_and(|a| bytes as u64 > a)
        {
            return Err(refuse());
        }
        let len = bytes
            .max(1)
            .checked_next_multiple_of(ALIGN)
            .ok_or_else(refuse)?;
        if memory != Memory::Weights {
            let lazily = if memory == Memory::State {
                libc::MAP_NORESERVE
            } else {
                0
            };
            return Ok(Map {
                base: map(len, lazily).ok_or_else(refuse)?,
                len,
            });
        }
        let wide = len.checked_add(HUGE_PAGE_BYTES).ok_or_else(refuse)?;
        let start = map(wide, 0).ok_or_else(refuse)?;
        let before = start.align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `start .. start + wide` was just mapped; the two ends outside `len` bytes from
        // the first multiple of 2 MiB are page-aligned (HUGE_PAGE_BYTES and ALIGN are) and unused.
        // Advice may be ignored.
        unsafe {
            let base = start.add(before);
            if before > 0 {
                libc::munmap(start.cast(), before);
            }
            libc::munmap(base.add(len).cast(), wide - before - len);
            #[cfg(target_os = "linux")]
            libc::madvise(base.cast(), len, libc::MADV_HUGEPAGE);
            Ok(Map { base, len })
        }
    }
    /// Returns the address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }
}

fn map(len: usize, flags: libc::c_int) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANON | flags;
    // SAFETY: an anonymous mapping at an address chosen by the system affects no existing memory.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    (at != libc::MAP_FAILED).then_some(at.cast())
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this mapping, whole, by its only owner.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// A mapping that buffers are ranges of.
struct Shared {
    map: Map,
    /// Requested bytes; the mapping ends at a page boundary.
    len: usize,
    uses: Uses,
}

impl Shared {
    fn new(owner: &Owner, bytes: usize, memory: Memory) -> Result<Shared, Error> {
        // The sanitizer needs a poisoned region after the last byte.
        let map = Map::new(
            if sanitizer().is_some() {
                bytes.saturating_add(ALIGN)
            } else {
                bytes
            },
            memory,
        )?;
        let shared = Shared {
            map,
            len: bytes,
            uses: Uses::new(owner),
        };
        shared.mark(sanitizer().map(|s| s.forbid));
        Ok(shared)
    }
    /// Poisons or unpoisons the region after the buffer.
    fn mark(&self, how: Option<Region>) {
        if let Some(how) = how {
            // SAFETY: the mapping has that many bytes after the first `len`; the call writes only
            // the sanitizer's shadow memory.
            unsafe {
                how(
                    self.map.base().wrapping_add(self.len),
                    self.map.len - self.len,
                )
            };
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A later mapping at these addresses must not be poisoned.
        self.mark(sanitizer().map(|s| s.allow));
    }
}

type Region = unsafe extern "C" fn(*const u8, usize);

/// Functions of AddressSanitizer, if kernels are compiled for it and it is preloaded
/// (CONTRIBUTING.md). It tracks `malloc` by itself, but mappings only by these calls.
#[derive(Clone, Copy)]
struct Sanitizer {
    forbid: Region,
    allow: Region,
}

fn sanitizer() -> Option<Sanitizer> {
    static FOUND: OnceLock<Option<Sanitizer>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let process = libloading::os::unix::Library::this();
        // SAFETY: functions of the sanitizer's interface, which have this type.
        let find = |name: &[u8]| {
            unsafe { process.get::<Region>(name) }
                .ok()
                .map(|found| *found)
        };
        Some(Sanitizer {
            forbid: find(b"__asan_poison_memory_region")?,
            allow: find(b"__asan_unpoison_memory_region")?,
        })
    })
}

// SAFETY: the mapping has at least `len` zeroed bytes; they do not move until it is dropped, and no
// other code knows the address.
unsafe impl RawBuffer for Shared {
    fn len(&self) -> usize {
        self.len
    }
    fn uses(&self) -> &Uses {
        &self.uses
    }
    fn host(&self) -> Option<*mut u8> {
        Some(self.map.base())
    }
}

/// Allocates buffers. Small weights share mappings, which are freed with their last buffer.
pub struct Allocator {
    owner: Owner,
    chunk: Mutex<Option<(Arc<Shared>, usize)>>,
}

impl Allocator {
    /// Creates an allocator for that owner.
    pub fn new(owner: &Owner) -> Allocator {
        Allocator {
            owner: owner.clone(),
            chunk: Mutex::default(),
        }
    }
    /// Allocates a buffer of zeros.
    pub fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        if memory != Memory::Weights || bytes >= ARENA_BYTES / 2 || sanitizer().is_some() {
            return Ok(Buffer::whole(Arc::new(Shared::new(
                &self.owner,
                bytes,
                memory,
            )?)));
        }
        let mut chunk = self.chunk.lock().unwrap_or_else(PoisonError::into_inner);
        let (shared, used) = match chunk.take() {
            Some((shared, used)) if shared.len - used >= bytes => (shared, used),
            _ => (Arc::new(Shared::new(&self.owner, ARENA_BYTES, memory)?), 0),
        };
        let buffer = Buffer::new(shared.clone(), used, bytes)?;
        // A full mapping is owned by its buffers alone.
        let next = (used + bytes).next_multiple_of(ALIGN);
        if next < shared.len {
            *chunk = Some((shared, next));
        }
        Ok(buffer)
    }
}

/// Describes the state of huge pages, for `gristmill devices`.
pub fn huge_pages() -> String {
    if !cfg!(target_os = "linux") {
        return "huge pages: left to the system".into();
    }
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    match text.split(['[', ']']).nth(1) {
        Some("always" | "madvise") => "huge pages: yes, for weights".into(),
        Some(other) => {
            format!(
                "huge pages: {other}; decode may run at half speed (`echo madvise > {path}` as root turns them on)"
            )
        }
        None => "huge pages: not in this kernel; decode may run at half speed".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::mut_from_ref, reason = "a buffer is shared memory")]
    fn bytes(buffer: &Buffer) -> &mut [u8] {
        // SAFETY: the tests use one reference to a buffer at a time.
        unsafe { std::slice::from_raw_parts_mut(buffer.host().unwrap(), buffer.len()) }
    }

    #[test]
    fn every_kind_is_zeros_aligned_and_writable() {
        for memory in [Memory::Weights, Memory::State, Memory::Scratch] {
            for len in [0, 1, 4096, 5_000_001] {
                let map = Map::new(len, memory).unwrap();
                assert!(map.len >= len);
                let to = if memory == Memory::Weights {
                    HUGE_PAGE_BYTES
                } else {
                    ALIGN
                };
                assert_eq!(map.base() as usize % to, 0);
                drop(map);
                let buffer =
                    Buffer::whole(Arc::new(Shared::new(&Owner::new(), len, memory).unwrap()));
                assert!(bytes(&buffer).iter().all(|&b| b == 0));
                bytes(&buffer).fill(7);
            }
        }
    }

    #[test]
    fn weights_share_chunks_without_overlap() {
        let allocator = Allocator::new(&Owner::new());
        let all: Vec<Buffer> = [5_000_000, 0, 64, 30 << 20, 20 << 20, 40 << 20, 8, 31 << 20]
            .into_iter()
            .map(|n| allocator.alloc(n, Memory::Weights).unwrap())
            .collect();
        for (i, buffer) in all.iter().enumerate() {
            let b = bytes(buffer);
            assert!(b.iter().all(|&x| x == 0));
            assert_eq!(b.as_ptr() as usize % ALIGN, 0);
            b.fill(i as u8 + 1);
        }
        for (i, buffer) in all.iter().enumerate() {
            assert!(bytes(buffer).iter().all(|&x| x == i as u8 + 1));
        }
    }

    #[test]
    fn a_state_takes_address_space_only() {
        let map = Map::new(1 << 40, Memory::State).unwrap();
        // SAFETY: inside the mapping.
        unsafe { map.base().add(1 << 39).write(1) };
    }

    #[test]
    fn too_much_is_an_error() {
        for memory in [Memory::Weights, Memory::State, Memory::Scratch] {
            for wanted in [usize::MAX, usize::MAX - HUGE_PAGE_BYTES, 1 << 60] {
                let error = Map::new(wanted, memory).err().unwrap();
                assert!(matches!(error, Error::OutOfMemory { .. }) && error.hint().is_some());
            }
        }
        assert!(
            Map::new(1 << 44, Memory::Weights).is_err(),
            "more than the machine has"
        );
    }

    #[test]
    fn huge_pages_are_described() {
        assert!(huge_pages().starts_with("huge pages"));
    }
}
