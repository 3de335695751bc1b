//! Immutable file images of byte strings, for loaders that require a path.

use crate::Error;
use crate::store::{Store, Temporary};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Verified bytes accessible through a path.
///
/// A shared library that is verified and then opened by path could be replaced in between. These
/// bytes lie in an anonymous, sealed file instead. Keep the `Image` as long as the library loaded
/// from it: the loader identifies libraries by path, and this path names a file descriptor,
/// which may be reused once closed.
pub struct Image {
    path: PathBuf,
    _place: Place,
}

/// Owner of the file.
#[expect(dead_code, reason = "held for their drop")]
enum Place {
    Sealed(File),
    Private(Temporary),
}

impl Image {
    /// Stores `bytes` in a sealed memory file (Linux), or in a private temporary file that
    /// is removed on drop.
    pub fn new(bytes: &[u8], store: &Store) -> Result<Image, Error> {
        #[cfg(target_os = "linux")]
        if let Some(file) = sealed(bytes) {
            use std::os::fd::AsRawFd;
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            // Without /proc the descriptor has no path.
            if path.exists() {
                return Ok(Image {
                    path,
                    _place: Place::Sealed(file),
                });
            }
        }
        Image::private(bytes, store)
    }

    fn private(bytes: &[u8], store: &Store) -> Result<Image, Error> {
        let place = store.temporary()?;
        let path = place.path().join("image.so");
        std::fs::write(&path, bytes).map_err(Error::io(format!("writing {}", path.display())))?;
        Ok(Image {
            path,
            _place: Place::Private(place),
        })
    }

    /// Path to pass to the loader.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns an anonymous file with these bytes, sealed against changes; `None` if the kernel
/// does not support it.
#[cfg(target_os = "linux")]
fn sealed(bytes: &[u8]) -> Option<File> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use std::io::Write;
    let base = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let make = |flags| memfd_create("gristmill-kernels", flags);
    // Linux before 6.3 rejects EXEC; later kernels may be configured to require it.
    let mut file = File::from(make(base | MemfdFlags::EXEC).or_else(|_| make(base)).ok()?);
    file.write_all(bytes).ok()?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&file, seals).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_its_bytes_and_takes_no_others() {
        let place = std::env::temp_dir().join(format!("gristmill-image-{}", std::process::id()));
        let store = Store::open(&place, 0).unwrap();
        for image in [Image::new(b"abc", &store), Image::private(b"abc", &store)] {
            let image = image.unwrap();
            assert_eq!(std::fs::read(image.path()).unwrap(), b"abc");
            if let Place::Sealed(_) = image._place {
                assert!(std::fs::write(image.path(), b"xyz").is_err());
            }
        }
        std::fs::remove_dir(&place).unwrap(); // also checks that the store left no files in it
    }
}
