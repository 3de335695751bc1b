//! How a kernel's statements access its buffers and stages, as far as that decides what their elements are.

use super::Statement;
use gristmill_uop::{DType, Graph, Id, Op, Scalar};
use rustc_hash::FxHashMap;

/// How a buffer or a stage is accessed.
#[derive(Clone, Copy, Default, Debug)]
pub struct Accesses {
    /// Words of the narrowest of the wide loads from it.
    pub words: Option<usize>,
    /// Is it written?
    pub written: bool,
    /// Are parts of words written by themselves, or do threads add to one word?
    pub parts: bool,
    /// Are halves written that are no two of one word?
    pub halves: bool,
    /// What subgroups load from it, or write there, as whole matrices.
    pub matrices: Option<DType>,
}

/// How statements access each buffer.
#[derive(Default)]
pub struct AllAccesses(FxHashMap<Id, Accesses>);

impl AllAccesses {
    /// How they access that one: by loads of single words where nothing else is known.
    pub fn of(&self, buffer: Id) -> Accesses {
        self.0.get(&buffer).copied().unwrap_or_default()
    }
}

/// How these statements access what.
pub fn accesses<'a>(g: &Graph, statements: impl Iterator<Item = &'a Statement>) -> AllAccesses {
    let mut all: FxHashMap<Id, Accesses> = FxHashMap::default();
    for s in statements {
        match s {
            Statement::Define(id) if g[*id].op == Op::TileLoad => {
                all.entry(g[*id].src[0]).or_default().matrices = Some(g[*id].dtype);
            }
            Statement::WriteTile(buffer, _, _, tile) => all.entry(*buffer).or_default().matrices = Some(g[*tile].dtype),
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
