//! What a device's language is to the compiler.

use crate::lower::{KernelCode, Statement};
use gristmill_uop::custom::{CustomRef, Language};
use gristmill_uop::program::Access;
use gristmill_uop::{Graph, Id, Scalar};
use std::sync::Arc;

/// Turns linear code into a device's text. What differs between devices is here; everything before is shared.
pub trait Dialect: Send + Sync {
    /// The text of a kernel named `name`, which runs the bodies of `code` side by side over the launch. All that there is to decide stands in `code`.
    fn render(&self, name: &str, graph: &Graph, code: &KernelCode, signature: &Signature) -> String;
    /// What makes kernels of users' own texts, where the dialect takes any.
    fn custom(&self) -> Option<&dyn CustomDialect> {
        None
    }
}

/// Makes kernels of users' own texts.
pub trait CustomDialect {
    /// What such texts are written in.
    fn language(&self) -> Language;
    /// The text of a kernel named `name` around a user's.
    fn render(&self, name: &str, graph: &Graph, code: &CustomCode, signature: &Signature) -> String;
}

/// A kernel of the user's own, on its way to text.
#[derive(Clone, Debug)]
pub struct CustomCode {
    /// Which.
    pub kernel: CustomRef,
    /// The parameter that it writes.
    pub output: Id,
    /// The value that stands for it: what it reads are the sources, loads of parameters and variables; the last is its number of workgroups.
    pub value: Id,
    /// Threads of a workgroup.
    pub threads: usize,
    /// The functions by which it reads and writes tensors.
    pub accessors: Vec<Accessor>,
}

/// A function that a user's text calls: with an index, and where it stores with a value too.
#[derive(Clone, Debug)]
pub struct Accessor {
    /// What the text calls it.
    pub name: &'static str,
    /// Its index, a range; of a tensor of one element it has none.
    pub index: Option<Id>,
    /// What it computes, defined value by value; one that stores ends with that.
    pub statements: Vec<Statement>,
    /// What it gives for an index; of one that stores, the value that it is given.
    pub value: Id,
    /// Does it store?
    pub stores: bool,
}

/// The arguments of a kernel.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Slots in the order of the buffer arguments, with how each is used and the node that stands for it.
    pub params: Vec<(u32, Access, Id)>,
    /// Of how many buffers each of them is made, one behind the other.
    pub pieces: Vec<usize>,
    /// Bytes of such a piece, but for the last.
    pub piece: usize,
    /// Variables in the order of the scalar arguments, with the nodes that stand for them.
    pub vars: Vec<(Arc<str>, Id)>,
    /// Number of workgroups of each body.
    pub groups: Vec<Id>,
    /// Offset of each workgroup buffer in a worker's scratch.
    pub scratch: Vec<(Id, usize)>,
    /// Bytes of scratch.
    pub scratch_bytes: usize,
    /// What the parameters are arrays of, where the machine loads words alone.
    pub elements: Vec<Element>,
    /// And what its workgroups' memory is.
    pub arrays: Vec<Array>,
    /// In which of these each stage lies, and from which word of it on.
    pub stages: Vec<(Id, usize, usize)>,
    /// Where stages end that parts of words are written to, and behind these stages of whole words: others are those that subgroups load matrices from. Of machines that load single bytes nobody asks.
    pub stage_ends: [usize; 2],
    /// Words of an element of scratch, where its type has some.
    pub stage_words: usize,
}

/// An element of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    /// So many words, which are loaded at once.
    Words(usize),
    /// A word of which parts are written, or to which threads add.
    Parts,
    /// A number of a matrix that subgroups load, or write.
    Number(Scalar),
    /// Two of them, as all who write there write two at once. A matrix of eight rows is loaded from single ones; and where two threads write halves of one pair each may undo what the other has written.
    Pair(Scalar),
}

/// An array of a workgroup's memory.
#[derive(Clone, Debug)]
pub struct Array {
    /// Of what.
    pub element: Element,
    /// The byte of the workgroup's memory where it begins.
    pub begin: usize,
    /// How many elements.
    pub length: usize,
}
