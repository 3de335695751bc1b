//! Code of a kernel that an engine has loaded.

/// A loaded kernel: the number of its function, and the bytes of scratch memory that it needs.
pub(super) struct WasmCode {
    pub function: u32,
    pub scratch: usize,
}
