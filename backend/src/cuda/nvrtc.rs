//! NVRTC, the compiler of kernels: found at run time, needs no GPU.

use super::driver::lacking;
use cudarc::nvrtc::sys::{self, nvrtcResult};
use gristmill_runtime::Error;
use gristmill_runtime::store::{Key, Store};
use std::ffi::{CStr, CString, c_char, c_int};

/// What else it is told: kernels include nothing.
const OPTIONS: &[&str] = &["--fmad=false", "--std=c++17", "--no-source-include"];
const INSTALL: &str =
    "`pip install nvidia-cuda-nvrtc` and LD_LIBRARY_PATH=<site-packages>/nvidia/cu13/lib, or the CUDA toolkit";

/// What is called of it: `cudarc` panics where one is not there.
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

/// NVRTC.
pub struct Nvrtc {
    version: (i32, i32),
    /// Architectures that it knows: 90 for 9.0.
    supported: Vec<u32>,
}

/// What a compilation gives.
pub struct Cubin {
    /// The code, for one architecture.
    pub cubin: Vec<u8>,
    /// Remarks, and what the assembler says when it is asked to.
    pub log: String,
}

/// The name of an architecture: with what is special to it where the kernels use that.
pub fn architecture(sm: u32) -> String {
    format!("sm_{sm}{}", if sm == 90 { "a" } else { "" })
}

impl Nvrtc {
    /// Finds it by its usual names.
    pub fn find() -> Result<Nvrtc, Error> {
        // SAFETY: looks for a library.
        if !unsafe { sys::is_culib_present() } {
            return Err(lacking("there is no NVRTC (libnvrtc), which compiles its kernels", INSTALL));
        }
        // SAFETY: looks for names in the library; what is found is not called here.
        let lacks = |name: &&&str| unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err();
        if let Some(name) = FUNCTIONS.iter().find(lacks) {
            return Err(lacking(
                format!("this NVRTC (libnvrtc) is too old: it has no {name}"),
                format!("install CUDA 12.8's or a later one: {INSTALL}"),
            ));
        }
        let broken = |said: String| lacking(format!("NVRTC (libnvrtc) does not work: {said}"), INSTALL);
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: writes two numbers.
        said("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) }).map_err(broken)?;
        // SAFETY: writes a number.
        said("nvrtcGetNumSupportedArchs", unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }).map_err(broken)?;
        let mut supported = vec![0 as c_int; count.max(0) as usize];
        // SAFETY: as many numbers as it said.
        said("nvrtcGetSupportedArchs", unsafe { sys::nvrtcGetSupportedArchs(supported.as_mut_ptr()) })
            .map_err(broken)?;
        Ok(Nvrtc { version: (major, minor), supported: supported.into_iter().map(|n| n as u32).collect() })
    }

    /// Does it compile for that architecture? As an error with what to do.
    pub fn check(&self, sm: u32) -> Result<(), Error> {
        if self.supported.contains(&sm) {
            return Ok(());
        }
        let knows: Vec<String> = self.supported.iter().map(|sm| format!("sm_{sm}")).collect();
        Err(lacking(
            format!("{} does not compile for the GPU's sm_{sm}, only for {}", self.describe(), knows.join(", ")),
            format!("install a version that does: {INSTALL}"),
        ))
    }

    /// `NVRTC 13.0`.
    pub fn describe(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    /// The key in a store of what this text compiles to.
    pub fn key(&self, source: &str, sm: u32) -> Key {
        let options = OPTIONS.join(" ");
        Key::of([self.describe().as_str(), &architecture(sm), &options, source])
    }

    /// The code of this text for that architecture, from the store or compiled; whether it was compiled. A store that cannot be read has nothing.
    pub fn load(&self, name: &str, source: &str, sm: u32, store: &Store) -> Result<(Vec<u8>, bool), Error> {
        match store.get(&self.key(source, sm)) {
            Ok(Some(cubin)) => Ok((cubin, false)),
            _ => Ok((self.renew(name, source, sm, store)?, true)),
        }
    }

    /// The same code, compiled, in place of whatever the store has.
    pub fn renew(&self, name: &str, source: &str, sm: u32, store: &Store) -> Result<Vec<u8>, Error> {
        let compiled = self.compile(name, source, sm, &[])?;
        store.keep(&self.key(source, sm), &compiled.cubin);
        Ok(compiled.cubin)
    }

    /// Compiles a text that has a kernel of that name, with these options besides the usual ones.
    pub fn compile(&self, name: &str, source: &str, sm: u32, options: &[&str]) -> Result<Cubin, Error> {
        let failed = |message: String| Error::Compile { kernel: name.into(), message };
        let terminated = |text: &str| CString::new(text).map_err(|_| failed("there is a NUL in its text".into()));
        let (source, file) = (terminated(source)?, terminated(&format!("{name}.cu"))?);
        let architecture = format!("--gpu-architecture={}", architecture(sm));
        let all = std::iter::once(architecture.as_str()).chain(OPTIONS.iter().copied()).chain(options.iter().copied());
        let all = all.map(terminated).collect::<Result<Vec<CString>, Error>>()?;
        let addresses: Vec<*const c_char> = all.iter().map(|o| o.as_ptr()).collect();
        let none = std::ptr::null();
        let mut program = Program(std::ptr::null_mut());
        // SAFETY: texts that end with NUL and live until the program is made; no headers.
        let made = unsafe { sys::nvrtcCreateProgram(&mut program.0, source.as_ptr(), file.as_ptr(), 0, none, none) };
        said("nvrtcCreateProgram", made).map_err(failed)?;
        // SAFETY: a program, and as many options as are said.
        let result = unsafe { sys::nvrtcCompileProgram(program.0, addresses.len() as c_int, addresses.as_ptr()) };
        let log = program.bytes(sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned();
        said("nvrtcCompileProgram", result).map_err(|said| failed(if log.is_empty() { said } else { log.clone() }))?;
        let cubin = program.bytes(sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN).map_err(failed)?;
        Ok(Cubin { cubin, log })
    }
}

/// A program of NVRTC's.
struct Program(sys::nvrtcProgram);

impl Program {
    /// Something that it gives as bytes.
    fn bytes(
        &self,
        size: unsafe fn(sys::nvrtcProgram, *mut usize) -> nvrtcResult,
        get: unsafe fn(sys::nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program lives; the size is written.
        said("asking for a size", unsafe { size(self.0, &mut len) })?;
        let mut bytes = vec![0u8; len];
        // SAFETY: as many bytes as it said.
        said("asking for what was compiled", unsafe { get(self.0, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made once, destroyed once.
            unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
        }
    }
}

/// Success, or NVRTC's words for the error.
fn said(what: &str, result: nvrtcResult) -> Result<(), String> {
    if result == nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: a text that ends with NUL and is never freed.
    let words = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    Err(format!("{what}: {}", words.to_string_lossy()))
}
