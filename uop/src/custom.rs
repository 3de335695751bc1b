//! Kernels that a user writes: texts for the dialects of devices, and what the compiler has to know of them.

/// A kernel of a user's own. Two with equal fields are one.
///
/// It computes what its reference says, a tensor of the function it is called in: devices for which it has no text compute that, and what the text computes is judged by it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CustomKernel {
    /// What it is called, for people.
    pub name: &'static str,
    /// The body of the kernel by dialect (`c`, `cuda`, `wgsl`). In it the names of [`output`](Self::output) and [`arguments`](Self::arguments) are pointers to the elements of tensors, row-major with the
    /// largest value of every dim, numbers (`i64`) of variables, or functions, as [`accessors`](Self::accessors) says.
    ///
    /// - `c`: runs the workgroups from `first` to before `end`; `scratch` has nothing.
    /// - `cuda`: runs the workgroup `w`, on `threads` threads of which this is number `thread`; those of surplus workgroups have left.
    /// - `wgsl`: as `cuda`, with whole numbers of type `i32`. There are no pointers: where a tensor has no function the device computes the reference. A half is its bits in a `u32`.
    pub texts: &'static [(&'static str, &'static str)],
    /// What the text calls the tensor that it writes, all elements of it.
    pub output: &'static str,
    /// What the text calls what it reads, in the order of the call: buffers that it does not write, and variables.
    pub arguments: &'static [&'static str],
    /// Which tensors the text reads and writes by functions instead of pointers, each with the number of calls for one of its elements. Of an argument `NAME(i)` is element `i`, a half or a bool as it
    /// is stored; of the output `NAME(i, value)` stores it, once for each element. What such an argument is computed from by elementwise operations, packed weights included, and what is computed so
    /// from the output may then be computed by these functions, where that is cheaper than a buffer.
    pub accessors: &'static [(&'static str, u32)],
    /// Multiplications and additions for each element that it writes: its price, with each byte of its buffers once.
    pub operations: u32,
}

/// A language that devices take such texts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Language {
    /// What its texts are found by.
    pub name: &'static str,
    /// Has it pointers? In one without them texts read and write by functions alone.
    pub has_pointers: bool,
}

/// A kernel that lives as long as the program.
pub type CustomRef = &'static CustomKernel;

impl CustomKernel {
    /// Its body in that dialect.
    pub fn text(&self, dialect: &str) -> Option<&'static str> {
        self.texts.iter().find(|text| text.0 == dialect).map(|text| text.1)
    }
    /// How many times its text calls the function of that name for one element; none where the name is no function's.
    pub fn calls(&self, name: &str) -> Option<u32> {
        self.accessors.iter().find(|accessor| accessor.0 == name).map(|accessor| accessor.1)
    }
}
