//! Loads kernels as modules, compiled or from the store.

use super::context::{CudaContext, Current};
use super::handle::Handle;
use super::nvrtc::Nvrtc;
use cudarc::driver::sys;
use gristmill_runtime::Error;
use gristmill_runtime::store::Store;
use std::ffi::CString;
use std::sync::Arc;

/// A module of compiled code on a device.
pub type Module = Handle<sys::CUmodule>;

/// A function and the module that contains it.
#[derive(Clone)]
pub struct LoadedModule {
    pub(super) function: sys::CUfunction,
    /// Keeps the function loaded.
    _module: Arc<Module>,
}

// SAFETY: a function belongs to its module, which belongs to a context, not to a thread.
unsafe impl Send for LoadedModule {}
// SAFETY: as above; it is immutable.
unsafe impl Sync for LoadedModule {}

impl LoadedModule {
    /// Looks up the kernel function `symbol` in a loaded module.
    pub fn new(
        current: &Current,
        module: Arc<Module>,
        symbol: &str,
    ) -> Result<LoadedModule, Error> {
        let symbol = CString::new(symbol).unwrap_or_default();
        // SAFETY: a live module and a NUL-terminated text; writes a function.
        let function = unsafe {
            current.get("cuModuleGetFunction", |out| {
                sys::cuModuleGetFunction(out, module.raw(), symbol.as_ptr())
            })
        }?;
        Ok(LoadedModule {
            function,
            _module: module,
        })
    }
}

/// Compiler, store and context for loading modules.
pub struct ModuleLoader {
    pub(super) context: Arc<CudaContext>,
    pub(super) compiler: Nvrtc,
    pub(super) store: Store,
}

impl ModuleLoader {
    /// Returns the code of a text and whether it was compiled now.
    pub fn code(&self, name: &str, source: &str) -> Result<(Vec<u8>, bool), Error> {
        self.compiler
            .load(name, source, self.context.sm, &self.store)
    }

    /// Loads the module of a text's code.
    ///
    /// Code from the store that does not load is compiled again: another driver
    /// may have written it.
    pub fn module(
        &self,
        current: &Current,
        name: &str,
        source: &str,
        (cubin, compiled): (Vec<u8>, bool),
    ) -> Result<Module, Error> {
        match module(current, &cubin) {
            Err(error) if !compiled && !error.is_lost() => {
                self.store
                    .remove(&self.compiler.key(source, self.context.sm));
                module(
                    current,
                    &self
                        .compiler
                        .renew(name, source, self.context.sm, &self.store)?,
                )
            }
            loaded => loaded,
        }
    }
}

fn module(current: &Current, cubin: &[u8]) -> Result<Module, Error> {
    // SAFETY: code from NVRTC, by this process or another of this user that can write to the
    // private store; writes a new module.
    unsafe {
        Handle::new(current, "cuModuleLoadData", sys::cuModuleUnload, |out| {
            sys::cuModuleLoadData(out, cubin.as_ptr().cast())
        })
    }
}
