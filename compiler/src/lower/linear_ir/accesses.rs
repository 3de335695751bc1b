//! Summarises how a kernel's statements access its buffers and stages, which determines the element
//! types of their arrays.

use super::Statement;
use gristmill_uop::{DType, Graph, Id, Op, Scalar};
use rustc_hash::FxHashMap;

/// How one buffer or stage is accessed.
#[derive(Clone, Copy, Default, Debug)]
pub struct Accesses {
    /// Words of the narrowest wide load; `None` without wide loads.
    pub words: Option<usize>,
    /// Whether a statement writes it.
    pub written: bool,
    /// Whether parts of words are written separately, or threads add atomically.
    pub parts: bool,
    /// Whether single 16-bit floats are written, not both halves of a word.
    pub halves: bool,
    /// Element type of the cooperative matrices that subgroups load from it or write to it.
    pub matrices: Option<DType>,
}

/// Accesses of each buffer.
#[derive(Default)]
pub struct AllAccesses(FxHashMap<Id, Accesses>);

impl AllAccesses {
    /// Returns the accesses of a buffer; the default is loads of single words.
    pub fn for_buffer(&self, buffer: Id) -> Accesses {
        self.0.get(&buffer).copied().unwrap_or_default()
    }
}

/// Collects the accesses of these statements by buffer.
pub fn accesses<'a>(g: &Graph, statements: impl Iterator<Item = &'a Statement>) -> AllAccesses {
    let mut all: FxHashMap<Id, Accesses> = FxHashMap::default();
    for s in statements {
        match s {
            Statement::Define(id) if g[*id].op == Op::TileLoad => {
                all.entry(g[*id].src[0]).or_default().matrices = Some(g[*id].dtype);
            }
            Statement::WriteTile(buffer, _, _, tile) => {
                all.entry(*buffer).or_default().matrices = Some(g[*tile].dtype)
            }
            Statement::Wide(buffer, _, bytes, _) => {
                let of = all.entry(*buffer).or_default();
                of.words = Some(of.words.map_or(bytes / 4, |words| words.min(bytes / 4)));
            }
            Statement::Write(buffer, _, value) => {
                let of = all.entry(*buffer).or_default();
                of.written = true;
                of.parts |= g.scalar(*value).bytes() < 4;
                of.halves |= g.scalar(*value) != Scalar::U32;
            }
            Statement::WideWrite(buffer, ..) => {
                let of = all.entry(*buffer).or_default();
                (of.written, of.halves) = (true, true);
            }
            Statement::Add(a) => {
                let of = all.entry(a.buffer).or_default();
                of.written = true;
                of.parts |= a.atomic || g.scalar(a.buffer).bytes() < 4;
            }
            Statement::Update(u) => {
                let of = all.entry(u.buffer).or_default();
                (of.written, of.parts) = (true, of.parts | u.atomic);
            }
            _ => {}
        }
    }
    AllAccesses(all)
}
