//! The fake CUDA driver and NVRTC of this folder.
//!
//! They are built with `cc` and loaded under the names of the real libraries, so that a search
//! for those finds them.

use gristmill_backend::libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_long};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// `CUDA_ERROR_LAUNCH_FAILED`, which makes the context unusable.
pub const LAUNCH_FAILED: c_int = 719;
/// `CUDA_ERROR_MPS_CLIENT_TERMINATED`: the MPS server has terminated this client.
pub const CLIENT_TERMINATED: c_int = 810;
/// `CUDA_ERROR_NOT_READY`: the queried work has not ended.
pub const NOT_READY: c_int = 600;
pub const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_OPERATING_SYSTEM`, which implies nothing about the context.
pub const SYSTEM: c_int = 304;

/// Access to the fakes, exclusive to one test at a time.
pub struct Fake {
    driver: &'static Library,
    nvrtc: &'static Library,
    _alone: MutexGuard<'static, ()>,
}

/// Builds and loads one of the C files, with `name` as its soname so that later searches find it.
fn library(source: &str, name: &str, options: &[&str]) -> Library {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cuda")
        .join(source);
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    cc.args([
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-pthread",
    ])
    .args(options);
    cc.arg(format!("-Wl,-soname,{name}"))
        .arg("-o")
        .arg(&path)
        .arg(&source);
    assert!(
        cc.status().expect("a C compiler").success(),
        "{}",
        source.display()
    );
    // SAFETY: it has no constructors.
    let library = unsafe { Library::new(&path) }.unwrap();
    std::fs::remove_file(path).unwrap();
    library
}

/// Loads only the fake NVRTC, without a driver.
pub fn nvrtc(options: &[&str]) -> Library {
    library("fake_nvrtc.c", "libnvrtc.so", options)
}

impl Fake {
    /// Loads the fakes without any failure set.
    pub fn new() -> Fake {
        static LIBRARIES: OnceLock<[Library; 2]> = OnceLock::new();
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let [driver, nvrtc] =
            LIBRARIES.get_or_init(|| [library("fake_driver.c", "libcuda.so", &[]), nvrtc(&[])]);
        let fake = Fake {
            driver,
            nvrtc,
            _alone: alone,
        };
        fake.reset();
        fake
    }
    /// Clears all state, so that nothing fails.
    pub fn reset(&self) {
        // SAFETY: the type of the function in the C file, as in all calls below.
        unsafe {
            self.driver
                .get::<unsafe extern "C" fn()>(b"fake_reset")
                .unwrap()();
            self.nvrtc
                .get::<unsafe extern "C" fn(c_long)>(b"fake_fail")
                .unwrap()(0);
            self.nvrtc
                .get::<unsafe extern "C" fn(c_int)>(b"fake_architectures")
                .unwrap()(3);
        }
    }
    /// Makes the `n`-th call from now fail with this code; if `sticky`, all later calls
    /// in its context, too.
    pub fn fail(&self, n: usize, code: c_int, sticky: bool) {
        // SAFETY: as above.
        unsafe {
            let fail = self
                .driver
                .get::<unsafe extern "C" fn(c_long, c_int, c_int)>(b"fake_fail")
                .unwrap();
            fail(n as c_long, code, sticky.into());
        }
    }
    /// Makes the `n`-th call of the compiler from now fail.
    pub fn fail_compiler(&self, n: usize) {
        // SAFETY: as above.
        unsafe {
            self.nvrtc
                .get::<unsafe extern "C" fn(c_long)>(b"fake_fail")
                .unwrap()(n as c_long)
        }
    }
    /// Makes the query of supported architectures fail.
    pub fn hide_architectures(&self) {
        // SAFETY: as above.
        unsafe {
            self.nvrtc
                .get::<unsafe extern "C" fn(c_int)>(b"fake_architectures")
                .unwrap()(-1)
        }
    }
    /// Returns the number of compiled texts.
    pub fn compilations(&self) -> i64 {
        // SAFETY: as above.
        unsafe {
            self.nvrtc
                .get::<unsafe extern "C" fn() -> c_long>(b"fake_compilations")
                .unwrap()()
        }
    }
    /// Makes calls of that function fail after the next `after` calls.
    pub fn refuse(&self, name: &CStr, after: usize, code: c_int) {
        // SAFETY: as above.
        unsafe {
            let refuse = self
                .driver
                .get::<unsafe extern "C" fn(*const c_char, c_long, c_int)>(b"fake_refuse")
                .unwrap();
            refuse(name.as_ptr(), after as c_long, code);
        }
    }
    /// Sets the number of multiprocessors, so that devices match no known machine.
    pub fn units(&self, count: c_int) {
        // SAFETY: as above.
        unsafe {
            self.driver
                .get::<unsafe extern "C" fn(c_int)>(b"fake_units")
                .unwrap()(count)
        }
    }
    /// Sets the duration in ns of kernels with this text: `fixed`, plus `each`
    /// times the first variable.
    pub fn takes(&self, text: &CStr, fixed: u64, each: u64) {
        // SAFETY: as above.
        unsafe {
            let takes = self
                .driver
                .get::<unsafe extern "C" fn(*const c_char, u64, u64)>(b"fake_takes")
                .unwrap();
            takes(text.as_ptr(), fixed, each);
        }
    }
    /// Makes kernels run forever from now on.
    pub fn hang(&self) {
        // SAFETY: as above.
        unsafe {
            self.driver
                .get::<unsafe extern "C" fn(c_int)>(b"fake_hang")
                .unwrap()(1)
        }
    }
    /// Makes the context of that device current on this thread, as another library in the process
    /// might. Returns its address.
    pub fn enter(&self, device: c_int) -> usize {
        // SAFETY: as above; the context is never released.
        unsafe {
            let mut context = std::ptr::null_mut();
            let retain = self
                .driver
                .get::<unsafe extern "C" fn(*mut *mut (), c_int) -> c_int>(
                    b"cuDevicePrimaryCtxRetain",
                );
            assert_eq!(retain.unwrap()(&mut context, device), 0);
            let set = self
                .driver
                .get::<unsafe extern "C" fn(*mut ()) -> c_int>(b"cuCtxSetCurrent")
                .unwrap();
            assert_eq!(set(context), 0);
            context.addr()
        }
    }
    /// Returns the address of this thread's current context.
    pub fn current(&self) -> usize {
        let mut context = std::ptr::null_mut::<()>();
        // SAFETY: as above.
        unsafe {
            let get = self
                .driver
                .get::<unsafe extern "C" fn(*mut *mut ()) -> c_int>(b"cuCtxGetCurrent")
                .unwrap();
            assert_eq!(get(&mut context), 0);
        }
        context.addr()
    }
    /// Returns the function that was made to fail; empty if none was called.
    pub fn failed(&self) -> String {
        self.text(b"fake_failed")
    }
    /// Returns violations of the driver's rules, a line each.
    pub fn report(&self) -> String {
        self.text(b"fake_report")
    }
    fn text(&self, name: &[u8]) -> String {
        // SAFETY: as above; a NUL-terminated text, and no other thread calls the driver now.
        unsafe {
            let get = self
                .driver
                .get::<unsafe extern "C" fn() -> *const c_char>(name)
                .unwrap();
            CStr::from_ptr(get()).to_string_lossy().into_owned()
        }
    }
    /// Returns the kinds of the driver's objects that were not destroyed.
    pub fn live(&self) -> String {
        self.filled(b"fake_live")
    }
    /// Returns the functions called since the last query.
    pub fn names(&self) -> Vec<String> {
        self.filled(b"fake_names")
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }
    fn filled(&self, name: &[u8]) -> String {
        let mut text = vec![0u8; 1 << 16];
        // SAFETY: as above; the buffer has the stated length.
        unsafe {
            let fill = self
                .driver
                .get::<unsafe extern "C" fn(*mut c_char, usize)>(name)
                .unwrap();
            fill(text.as_mut_ptr().cast(), text.len());
        }
        CStr::from_bytes_until_nul(&text)
            .unwrap()
            .to_string_lossy()
            .into_owned()
    }
}
