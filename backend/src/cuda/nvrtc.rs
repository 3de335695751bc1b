//! NVRTC, the compiler of kernels: loaded at run time, works without a GPU.

use super::driver::lacking;
use crate::installation;
use cudarc::nvrtc::sys::{self, nvrtcResult};
use gristmill_runtime::Error;
use gristmill_runtime::store::{Key, Store};
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::PathBuf;

/// Compiler options besides the architecture. Kernels include no headers.
const OPTIONS: &[&str] = &["--fmad=false", "--std=c++17", "--no-source-include"];
const INSTALL: &str = "`pip install nvidia-cuda-nvrtc` in the Python environment that has gristmill, or with LD_LIBRARY_PATH=<site-packages>/nvidia/cu13/lib, or the CUDA toolkit";

/// Functions that are called; `cudarc` panics where one is missing.
const FUNCTIONS: &[&str] = &[
    "nvrtcVersion",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
    "nvrtcGetErrorString",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
];

/// The NVRTC library with its version and architectures.
pub struct Nvrtc {
    version: (i32, i32),
    /// Supported compute capabilities: 90 for 9.0.
    supported: Vec<u32>,
}

/// Result of a compilation.
pub struct Cubin {
    /// Machine code for one architecture.
    pub cubin: Vec<u8>,
    /// Compiler warnings, and the assembler's output if an option requests it.
    pub log: String,
}

/// Returns the name of an architecture, with the suffix for its specific features where used.
pub fn architecture(sm: u32) -> String {
    format!("sm_{sm}{}", if sm == 90 { "a" } else { "" })
}

impl Nvrtc {
    /// Finds the library by its usual names, else in the [installation].
    pub fn find() -> Result<Nvrtc, Error> {
        // SAFETY: only looks for a library.
        let present = || unsafe { sys::is_culib_present() };
        if !present() {
            preload();
        }
        if !present() {
            return Err(lacking(
                "there is no NVRTC (libnvrtc), which compiles its kernels",
                INSTALL,
            ));
        }
        // SAFETY: only looks up names; the functions found are not called here.
        let lacks = |name: &&&str| {
            unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err()
        };
        if let Some(name) = FUNCTIONS.iter().find(lacks) {
            return Err(lacking(
                format!("this NVRTC (libnvrtc) is too old: it has no {name}"),
                format!("install NVRTC 12.8 or later: {INSTALL}"),
            ));
        }
        let broken =
            |said: String| lacking(format!("NVRTC (libnvrtc) does not work: {said}"), INSTALL);
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: writes two numbers.
        check_result("nvrtcVersion", unsafe {
            sys::nvrtcVersion(&mut major, &mut minor)
        })
        .map_err(broken)?;
        // SAFETY: writes a number.
        check_result("nvrtcGetNumSupportedArchs", unsafe {
            sys::nvrtcGetNumSupportedArchs(&mut count)
        })
        .map_err(broken)?;
        let mut supported = vec![0 as c_int; count.max(0) as usize];
        // SAFETY: space for the returned number of values.
        check_result("nvrtcGetSupportedArchs", unsafe {
            sys::nvrtcGetSupportedArchs(supported.as_mut_ptr())
        })
        .map_err(broken)?;
        Ok(Nvrtc {
            version: (major, minor),
            supported: supported.into_iter().map(|n| n as u32).collect(),
        })
    }

    /// Returns an error with advice unless it compiles for that architecture.
    pub fn check(&self, sm: u32) -> Result<(), Error> {
        if self.supported.contains(&sm) {
            return Ok(());
        }
        let knows: Vec<String> = self.supported.iter().map(|sm| format!("sm_{sm}")).collect();
        Err(lacking(
            format!(
                "{} does not support the GPU's sm_{sm}, only {}",
                self.describe(),
                knows.join(", ")
            ),
            format!("install a version that does: {INSTALL}"),
        ))
    }

    /// Formats name and version: `NVRTC 13.0`.
    pub fn describe(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    /// Returns the store's key of a text's code.
    pub fn key(&self, source: &str, sm: u32) -> Key {
        let options = OPTIONS.join(" ");
        Key::from_parts([
            self.describe().as_str(),
            &architecture(sm),
            &options,
            source,
        ])
    }

    /// Returns the code of a text, from the store or compiled, and whether it was compiled.
    ///
    /// A store that cannot be read counts as empty.
    pub fn load(
        &self,
        name: &str,
        source: &str,
        sm: u32,
        store: &Store,
    ) -> Result<(Vec<u8>, bool), Error> {
        match store.get(&self.key(source, sm)) {
            Ok(Some(cubin)) => Ok((cubin, false)),
            _ => Ok((self.renew(name, source, sm, store)?, true)),
        }
    }

    /// Compiles a text and replaces its entry in the store.
    pub fn renew(
        &self,
        name: &str,
        source: &str,
        sm: u32,
        store: &Store,
    ) -> Result<Vec<u8>, Error> {
        let compiled = self.compile(name, source, sm, &[])?;
        store.put_or_warn(&self.key(source, sm), &compiled.cubin);
        Ok(compiled.cubin)
    }

    /// Compiles the source of kernel `name`, with additional options.
    pub fn compile(
        &self,
        name: &str,
        source: &str,
        sm: u32,
        options: &[&str],
    ) -> Result<Cubin, Error> {
        let failed = |message: String| Error::Compile {
            kernel: name.into(),
            message,
        };
        let terminated =
            |text: &str| CString::new(text).map_err(|_| failed("its source contains a NUL".into()));
        let (source, file) = (terminated(source)?, terminated(&format!("{name}.cu"))?);
        let architecture = format!("--gpu-architecture={}", architecture(sm));
        let all = std::iter::once(architecture.as_str())
            .chain(OPTIONS.iter().copied())
            .chain(options.iter().copied());
        let all = all
            .map(terminated)
            .collect::<Result<Vec<CString>, Error>>()?;
        let addresses: Vec<*const c_char> = all.iter().map(|o| o.as_ptr()).collect();
        let none = std::ptr::null();
        let mut program = Program(std::ptr::null_mut());
        // SAFETY: NUL-terminated texts that live until the program is created; no headers.
        let made = unsafe {
            sys::nvrtcCreateProgram(
                &mut program.0,
                source.as_ptr(),
                file.as_ptr(),
                0,
                none,
                none,
            )
        };
        check_result("nvrtcCreateProgram", made).map_err(failed)?;
        // SAFETY: a program, and the stated number of options.
        let result = unsafe {
            sys::nvrtcCompileProgram(program.0, addresses.len() as c_int, addresses.as_ptr())
        };
        let log = program
            .bytes(sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog)
            .unwrap_or_default();
        let log = String::from_utf8_lossy(&log)
            .trim_end_matches(['\0', '\n'])
            .to_owned();
        check_result("nvrtcCompileProgram", result)
            .map_err(|said| failed(if log.is_empty() { said } else { log.clone() }))?;
        let cubin = program
            .bytes(sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN)
            .map_err(failed)?;
        Ok(Cubin { cubin, log })
    }
}

/// Loads the NVRTC of the installation, which a later load by name then finds.
fn preload() {
    for folder in installation::nvidia_libraries() {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                // `libnvrtc.alt.so` and its functions are another library of the same name.
                name.starts_with("libnvrtc") && !name.contains(".alt")
            })
            .collect();
        // `libnvrtc-builtins`, which the other loads by name, sorts first.
        files.sort();
        for file in files {
            // SAFETY: NVIDIA's libraries have no initialisers that depend on the caller. They stay
            // loaded.
            if let Ok(library) = unsafe { libloading::Library::new(&file) } {
                std::mem::forget(library);
            }
        }
    }
}

/// A program object of NVRTC.
struct Program(sys::nvrtcProgram);

impl Program {
    /// Calls a pair of functions that return a size and bytes.
    fn bytes(
        &self,
        size: unsafe fn(sys::nvrtcProgram, *mut usize) -> nvrtcResult,
        get: unsafe fn(sys::nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: a live program; the size is written.
        check_result("querying a size", unsafe { size(self.0, &mut len) })?;
        let mut bytes = vec![0u8; len];
        // SAFETY: as many bytes as the reported size.
        check_result("reading the compiled code", unsafe {
            get(self.0, bytes.as_mut_ptr().cast())
        })?;
        Ok(bytes)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: created once, destroyed once.
            unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
        }
    }
}

/// Converts a result to NVRTC's error text.
fn check_result(what: &str, result: nvrtcResult) -> Result<(), String> {
    if result == nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: a NUL-terminated text that is never freed.
    let words = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    Err(format!("{what}: {}", words.to_string_lossy()))
}
