//! Kernels that a user writes: texts for the dialects of devices, and what the compiler has to know of them.

/// A kernel of a user's own. Two with equal fields are one.
///
/// It computes what its reference says, a tensor of the function it is called in: devices for which it has no text compute that, and what the text computes is judged by it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CustomKernel {
    /// What it is called, for people.
    pub name: &'static str,
    /// The body of the kernel by dialect (`c`, `cuda`). In it the names of [`output`](Self::output) and [`arguments`](Self::arguments) are pointers to the elements of tensors, row-major with the
    /// largest value of every dim, and numbers (`i64`) of variables.
    ///
    /// - `c`: runs the workgroups from `first` to before `end`; `scratch` has nothing.
    /// - `cuda`: runs the workgroup `w`, on `threads` threads of which this is number `thread`; those of surplus workgroups have left.
    pub texts: &'static [(&'static str, &'static str)],
    /// What the text calls the tensor that it writes, all elements of it.
    pub output: &'static str,
    /// What the text calls what it reads, in the order of the call: buffers that it does not write, and variables.
    pub arguments: &'static [&'static str],
    /// Multiplications and additions for each element that it writes: its price, with each byte of its buffers once.
    pub operations: u32,
}

/// A kernel that lives as long as the program.
pub type CustomRef = &'static CustomKernel;

impl CustomKernel {
    /// Its body in that dialect.
    pub fn text(&self, dialect: &str) -> Option<&'static str> {
        self.texts.iter().find(|text| text.0 == dialect).map(|text| text.1)
    }
}
