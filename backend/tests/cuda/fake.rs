//! The fake driver and compiler beside this file: built with `cc`, and loaded under the names that the real ones have, so that whoever looks for those
//! finds these.

use gristmill_backend::libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_long};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// `CUDA_ERROR_LAUNCH_FAILED`: nothing in the context survives it.
pub const LAUNCH_FAILED: c_int = 719;
/// `CUDA_ERROR_MPS_CLIENT_TERMINATED`: the service that shares the GPU has ended this process's use of it.
pub const CLIENT_TERMINATED: c_int = 810;
/// `CUDA_ERROR_NOT_READY`: the work that is asked for has not ended.
pub const NOT_READY: c_int = 600;
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
            self.nvrtc.get::<unsafe extern "C" fn(c_int)>(b"fake_architectures").unwrap()(3);
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
    /// The call number `n` of the compiler from now on fails.
    pub fn fail_compiler(&self, n: usize) {
        // SAFETY: as above.
        unsafe { self.nvrtc.get::<unsafe extern "C" fn(c_long)>(b"fake_fail").unwrap()(n as c_long) }
    }
    /// The compiler no longer says how many architectures it knows.
    pub fn hide_architectures(&self) {
        // SAFETY: as above.
        unsafe { self.nvrtc.get::<unsafe extern "C" fn(c_int)>(b"fake_architectures").unwrap()(-1) }
    }
    /// How many texts have been compiled.
    pub fn compilations(&self) -> i64 {
        // SAFETY: as above.
        unsafe { self.nvrtc.get::<unsafe extern "C" fn() -> c_long>(b"fake_compilations").unwrap()() }
    }
    /// Calls of that function fail after the next `after` of them.
    pub fn refuse(&self, name: &CStr, after: usize, code: c_int) {
        // SAFETY: as above.
        unsafe {
            let refuse = self.driver.get::<unsafe extern "C" fn(*const c_char, c_long, c_int)>(b"fake_refuse").unwrap();
            refuse(name.as_ptr(), after as c_long, code);
        }
    }
    /// Devices are of no known machine: they have so many multiprocessors.
    pub fn units(&self, count: c_int) {
        // SAFETY: as above.
        unsafe { self.driver.get::<unsafe extern "C" fn(c_int)>(b"fake_units").unwrap()(count) }
    }
    /// Kernels whose text has this in it take so many nanoseconds, and so many more for each of their first variable.
    pub fn takes(&self, text: &CStr, fixed: u64, each: u64) {
        // SAFETY: as above.
        unsafe {
            let takes = self.driver.get::<unsafe extern "C" fn(*const c_char, u64, u64)>(b"fake_takes").unwrap();
            takes(text.as_ptr(), fixed, each);
        }
    }
    /// From now on kernels do not end.
    pub fn hang(&self) {
        // SAFETY: as above.
        unsafe { self.driver.get::<unsafe extern "C" fn(c_int)>(b"fake_hang").unwrap()(1) }
    }
    /// Makes the context of that device the current one of this thread, as another library in the process might; its address.
    pub fn enter(&self, device: c_int) -> usize {
        // SAFETY: as above; the context is never released.
        unsafe {
            let mut context = std::ptr::null_mut();
            let retain =
                self.driver.get::<unsafe extern "C" fn(*mut *mut (), c_int) -> c_int>(b"cuDevicePrimaryCtxRetain");
            assert_eq!(retain.unwrap()(&mut context, device), 0);
            let set = self.driver.get::<unsafe extern "C" fn(*mut ()) -> c_int>(b"cuCtxSetCurrent").unwrap();
            assert_eq!(set(context), 0);
            context.addr()
        }
    }
    /// The address of this thread's current context.
    pub fn current(&self) -> usize {
        let mut context = std::ptr::null_mut::<()>();
        // SAFETY: as above.
        unsafe {
            let get = self.driver.get::<unsafe extern "C" fn(*mut *mut ()) -> c_int>(b"cuCtxGetCurrent").unwrap();
            assert_eq!(get(&mut context), 0);
        }
        context.addr()
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
        // SAFETY: as above; as many bytes as are said.
        unsafe {
            let fill = self.driver.get::<unsafe extern "C" fn(*mut c_char, usize)>(name).unwrap();
            fill(text.as_mut_ptr().cast(), text.len());
        }
        CStr::from_bytes_until_nul(&text).unwrap().to_string_lossy().into_owned()
    }
}
