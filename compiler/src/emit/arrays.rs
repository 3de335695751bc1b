//! Chooses the array types of buffers and stages on machines that load whole words: arrays of
//! words, of vectors of words where the widest loads allow it, of words that are written in parts,
//! and of matrix elements.

use super::dialect::{Array, Element, Signature};
use crate::lower::AllAccesses;
use gristmill_uop::fragment::COOPERATIVE_8;
use gristmill_uop::{Graph, Id, Op};

impl Signature {
    /// Sets the array types of a kernel's buffers and stages from the accesses of its statements.
    /// Stages of different bodies may share an array.
    pub(super) fn lay_out(&mut self, g: &Graph, accesses: &AllAccesses) {
        self.elements = self
            .params
            .iter()
            .map(|p| element(g, p.2, accesses))
            .collect();
        let [parts, words] = self.stage_ends;
        for &(stage, at) in &self.scratch {
            let (element, begin, length) = match element(g, stage, accesses) {
                one @ Element::Number(_) => (one, at, g.max_of(g[stage].src[0]) as usize),
                pair @ Element::Pair(_) => {
                    (pair, at, (g.max_of(g[stage].src[0]) as usize).div_ceil(2))
                }
                _ if at < parts => (Element::Parts, 0, parts / 4),
                _ => (
                    Element::Words(self.stage_words),
                    parts,
                    (words - parts) / 4 / self.stage_words,
                ),
            };
            let known = self
                .arrays
                .iter()
                .position(|of| of.element == element && of.begin == begin);
            let array = known.unwrap_or(self.arrays.len());
            if known.is_none() {
                self.arrays.push(Array {
                    element,
                    begin,
                    length,
                });
            }
            self.arrays[array].length = self.arrays[array].length.max(length);
            self.stages.push((stage, array, (at - begin) / 4));
        }
    }
}

/// Returns the element type that a buffer's or stage's own accesses require.
fn element(g: &Graph, buffer: Id, accesses: &AllAccesses) -> Element {
    let (a, scalar) = (accesses.for_buffer(buffer), g.scalar(buffer));
    match (a.matrices, a.words) {
        (Some(tile), _)
            if g[buffer].op == Op::Local && !a.halves && tile != COOPERATIVE_8.tile() =>
        {
            Element::Pair(scalar)
        }
        (Some(_), _) => Element::Number(scalar),
        _ if a.parts => Element::Parts,
        (None, Some(words)) if !a.written => Element::Words(words),
        _ => Element::Words(1),
    }
}
