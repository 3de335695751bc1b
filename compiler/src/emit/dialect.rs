//! Interface between the compiler and a device's source language.

use crate::lower::{KernelCode, Statement};
use gristmill_uop::custom::{CustomRef, Language};
use gristmill_uop::program::Access;
use gristmill_uop::{Graph, Id, Scalar};
use std::sync::Arc;

/// Prints linear code as a device's source text. All device-specific code generation is here; all
/// earlier passes are shared.
pub trait Dialect: Send + Sync {
    /// Returns the text of a kernel named `name`, which runs the bodies of `code` side by side over
    /// the launch. `code` already contains every decision.
    fn render(&self, name: &str, graph: &Graph, code: &KernelCode, signature: &Signature)
    -> String;
    /// Returns the renderer of custom kernels, or `None` if the dialect takes none.
    fn custom(&self) -> Option<&dyn CustomDialect> {
        None
    }
}

/// Prints kernels around source text that a user has written.
pub trait CustomDialect {
    /// Returns the language of the user's text.
    fn language(&self) -> Language;
    /// Returns the text of a kernel named `name` around the user's text.
    fn render(&self, name: &str, graph: &Graph, code: &CustomCode, signature: &Signature)
    -> String;
}

/// A user's custom kernel, ready to be printed.
#[derive(Clone, Debug)]
pub struct CustomCode {
    /// The user's kernel: its text and the names that the text uses.
    pub kernel: CustomRef,
    /// Parameter that the kernel writes.
    pub output: Id,
    /// Node of the kernel's result. Its sources are loads of parameters and variables; the last is
    /// the number of workgroups.
    pub value: Id,
    /// Number of threads per workgroup.
    pub threads: usize,
    /// Functions by which the text reads and writes tensors.
    pub accessors: Vec<Accessor>,
}

/// Function that a user's text calls with an index and, for a store, a value.
#[derive(Clone, Debug)]
pub struct Accessor {
    /// Name of the function in the user's text.
    pub name: &'static str,
    /// Range that stands for the index; `None` for a tensor of one element.
    pub index: Option<Id>,
    /// Statements of the body, each value defined before its use; a store ends with the write.
    pub statements: Vec<Statement>,
    /// The value returned for the index; for a store, the value passed in.
    pub value: Id,
    /// Whether the function stores a value instead of returning one.
    pub stores: bool,
}

/// Arguments of a kernel and layout of its workgroup memory.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Slot, access and parameter node of each buffer argument, in order.
    pub params: Vec<(u32, Access, Id)>,
    /// Number of consecutive device buffers that make up each parameter.
    pub pieces: Vec<usize>,
    /// Bytes of each such buffer except the last.
    pub piece: usize,
    /// Name and node of each variable, in the order of the scalar arguments.
    pub vars: Vec<(Arc<str>, Id)>,
    /// Workgroup count of each body, as an expression.
    pub groups: Vec<Id>,
    /// Byte offset of each workgroup buffer in the scratch memory.
    pub scratch: Vec<(Id, usize)>,
    /// Total bytes of scratch memory per workgroup.
    pub scratch_bytes: usize,
    /// Element type of each parameter's array, on machines that load whole
    /// words only; otherwise empty.
    pub elements: Vec<Element>,
    /// Arrays that make up the workgroup memory, on such machines.
    pub arrays: Vec<Array>,
    /// Stage, index of its array, and first word within that array.
    pub stages: Vec<(Id, usize, usize)>,
    /// Byte offsets where two classes of stages end: stages written in parts of words,
    /// then stages of whole words. Stages with matrix accesses follow. Unused on machines
    /// that load single bytes.
    pub stage_ends: [usize; 2],
    /// Words per element of the scratch arrays, where a stage is loaded in vectors of words.
    pub stage_words: usize,
}

/// Element type of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    /// A vector of this many 32-bit words, loaded at once.
    Words(usize),
    /// A word that is written in parts, or that threads add to atomically.
    Parts,
    /// One element of a matrix that subgroups load or write.
    Number(Scalar),
    /// Two matrix elements, when every write covers a pair.
    ///
    /// Not used for matrices of eight rows, which are loaded from single elements, nor when two
    /// threads write the halves of one pair, since each could overwrite the other's half.
    Pair(Scalar),
}

/// One array of a workgroup's memory.
#[derive(Clone, Debug)]
pub struct Array {
    /// Type of the array's elements.
    pub element: Element,
    /// First byte of the array in the workgroup's memory.
    pub begin: usize,
    /// Length of the array in elements.
    pub length: usize,
}
