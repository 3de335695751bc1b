//! The fake driver and compiler beside this file: built with `cc`, and loaded under the names that the real ones have, so that whoever looks for those
//! finds these.

use gristmill_backend::libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_long};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// `CUDA_ERROR_LAUNCH_FAILED`: nothing in the context survives it.
pub const LAUNCH_FAILED: c_int = 719;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_OPERATING_SYSTEM`: says nothing of the context.
pub const SYSTEM: c_int = 304;

/// The fakes; one test has them at a time.
pub struct Fake {
    driver: &'static Library,
    nvrtc: &'static Library,
    _alone: MutexGuard<'static, ()>,
}

/// Builds a library of one of the C files here, which calls itself `name` and so is what a later search for that name finds.
fn library(source: &str, name: &str, options: &[&str]) -> Library {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda").join(source);
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]).args(options);
    cc.arg(format!("-Wl,-soname,{name}")).arg("-o").arg(&path).arg(&source);
    assert!(cc.status().expect("a C compiler").success(), "{}", source.display());
    // SAFETY: it has no constructors.
    let library = unsafe { Library::new(&path) }.unwrap();
    std::fs::remove_file(path).unwrap();
    library
}

/// As [`Fake::new`], without a driver, and with this fake for a compiler.
pub fn nvrtc(options: &[&str]) -> Library {
    library("fake_nvrtc.c", "libnvrtc.so", options)
}

impl Fake {
    /// With nothing in it that fails.
    pub fn new() -> Fake {
        static LIBRARIES: OnceLock<[Library; 2]> = OnceLock::new();
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let [driver, nvrtc] = LIBRARIES.get_or_init(|| [library("fake_driver.c", "libcuda.so", &[]), nvrtc(&[])]);
        let fake = Fake { driver, nvrtc, _alone: alone };
        fake.reset();
        fake
    }
    /// Everything is forgotten, and nothing fails.
    pub fn reset(&self) {
        // SAFETY: the type of the function in the C file, as everywhere below.
        unsafe {
            self.driver.get::<unsafe extern "C" fn()>(b"fake_reset").unwrap()();
            self.nvrtc.get::<unsafe extern "C" fn(c_long)>(b"fake_fail").unwrap()(0);
        }
    }
    /// The call number `n` from now on fails with this code, `sticky` all later ones in its context, too.
    pub fn fail(&self, n: usize, code: c_int, sticky: bool) {
        // SAFETY: as above.
        unsafe {
            let fail = self.driver.get::<unsafe extern "C" fn(c_long, c_int, c_int)>(b"fake_fail").unwrap();
            fail(n as c_long, code, sticky.into());
        }
    }
    /// The function that was made to fail; empty while none was.
    pub fn failed(&self) -> String {
        self.text(b"fake_failed")
    }
    /// What no correct caller does, a line each.
    pub fn report(&self) -> String {
        self.text(b"fake_report")
    }
    fn text(&self, name: &[u8]) -> String {
        // SAFETY: as above; a text that ends with NUL, and nobody else calls the driver now.
        unsafe {
            let get = self.driver.get::<unsafe extern "C" fn() -> *const c_char>(name).unwrap();
            CStr::from_ptr(get()).to_string_lossy().into_owned()
        }
    }
    /// Objects of the driver's that nobody destroyed.
    pub fn live(&self) -> String {
        self.filled(b"fake_live")
    }
    /// The functions called since this was asked last.
    pub fn names(&self) -> Vec<String> {
        self.filled(b"fake_names").split_whitespace().map(str::to_owned).collect()
    }
    fn filled(&self, name: &[u8]) -> String {
        let mut text = vec![0u8; 1 << 16];
        // SAFETY: as above; as many bytes as are said. What it returns beside them is a number, or nothing.
        unsafe {
            let fill = self.driver.get::<unsafe extern "C" fn(*mut c_char, usize)>(name).unwrap();
            fill(text.as_mut_ptr().cast(), text.len());
        }
        CStr::from_bytes_until_nul(&text).unwrap().to_string_lossy().into_owned()
    }
}
