//! User-written kernels: source texts by dialect, and the properties that the compiler needs.

/// A user-written kernel. Kernels with equal fields are identical.
///
/// It computes the same as its reference, a tensor of the calling function. Devices without a text
/// for it compute the reference, and tests compare the text's result with it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CustomKernel {
    /// Name of the kernel, for messages.
    pub name: &'static str,
    /// Body of the kernel by dialect (`c`, `cuda`, `wgsl`). The names of
    /// [`output`](Self::output) and [`arguments`](Self::arguments) are pointers to tensor
    /// elements (row-major, with the largest value of every dim), numbers (`i64`) for variables,
    /// or functions as declared in [`accessors`](Self::accessors).
    ///
    /// - `c`: runs the workgroups from `first` up to but excluding `end`; `scratch` is empty.
    /// - `cuda`: runs workgroup `w` on `threads` threads, of which this is number `thread`;
    ///   surplus workgroups have returned.
    /// - `wgsl`: like `cuda`, with integers of type `i32`. There are no pointers: if a tensor
    ///   has no accessor function, the device computes the reference. An f16 is passed as its
    ///   bits in a `u32`.
    pub texts: &'static [(&'static str, &'static str)],
    /// Name in the text of the tensor that it writes completely.
    pub output: &'static str,
    /// Names in the text of its inputs, in the order of the call: read-only buffers and variables.
    pub arguments: &'static [&'static str],
    /// Tensors that the text accesses by functions instead of pointers, with the number
    /// of calls per element.
    ///
    /// For an argument, `NAME(i)` returns element `i`, an f16 or bool in its stored form. For the
    /// output, `NAME(i, value)` stores an element, exactly once each. Elementwise producers of such
    /// arguments (packed weights included) and elementwise consumers of the output can then be
    /// fused into these functions, if that is cheaper than a buffer.
    pub accessors: &'static [(&'static str, u32)],
    /// Multiplications and additions per written element; its cost, together with one access to
    /// each byte of its buffers.
    pub operations: u32,
}

/// A dialect that accepts user-written kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Language {
    /// Name by which texts are looked up.
    pub name: &'static str,
    /// Whether the dialect has pointers. Without them, texts access tensors only through functions.
    pub has_pointers: bool,
}

/// Reference to a kernel with static lifetime.
pub type CustomRef = &'static CustomKernel;

impl CustomKernel {
    /// Returns its body in that dialect.
    pub fn text(&self, dialect: &str) -> Option<&'static str> {
        self.texts
            .iter()
            .find(|text| text.0 == dialect)
            .map(|text| text.1)
    }
    /// Returns the number of calls per element of the accessor `name`; `None` if it
    /// is not an accessor.
    pub fn calls(&self, name: &str) -> Option<u32> {
        self.accessors
            .iter()
            .find(|accessor| accessor.0 == name)
            .map(|accessor| accessor.1)
    }
}
