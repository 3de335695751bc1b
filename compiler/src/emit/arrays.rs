//! What buffers and stages are arrays of, for a machine that loads words: words, of several where the widest loads take so many, words of which parts are written, and numbers of matrices.

use super::dialect::{Array, Element, Signature};
use crate::lower::AllAccesses;
use gristmill_uop::fragment::COOPERATIVE_8;
use gristmill_uop::{Graph, Id, Op};

impl Signature {
    /// What the buffers and stages of a kernel are arrays of, whose statements access them so. Bodies of a launch have stages at the same place.
    pub(super) fn lay_out(&mut self, g: &Graph, accesses: &AllAccesses) {
        self.elements = self.params.iter().map(|p| element(g, p.2, accesses)).collect();
        let [parts, words] = self.stage_ends;
        for &(stage, at) in &self.scratch {
            let (element, begin, length) = match element(g, stage, accesses) {
                one @ Element::Number(_) => (one, at, g.max_of(g[stage].src[0]) as usize),
                pair @ Element::Pair(_) => (pair, at, (g.max_of(g[stage].src[0]) as usize).div_ceil(2)),
                _ if at < parts => (Element::Parts, 0, parts / 4),
                _ => (Element::Words(self.stage_words), parts, (words - parts) / 4 / self.stage_words),
            };
            let known = self.arrays.iter().position(|of| of.element == element && of.begin == begin);
            let array = known.unwrap_or(self.arrays.len());
            if known.is_none() {
                self.arrays.push(Array { element, begin, length });
            }
            self.arrays[array].length = self.arrays[array].length.max(length);
            self.stages.push((stage, array, (at - begin) / 4));
        }
    }
}

/// What a buffer, or a stage, is an array of by itself.
fn element(g: &Graph, buffer: Id, accesses: &AllAccesses) -> Element {
    let (a, scalar) = (accesses.of(buffer), g.scalar(buffer));
    match (a.matrices, a.words) {
        (Some(tile), _) if g[buffer].op == Op::Local && !a.halves && tile != COOPERATIVE_8.tile() => {
            Element::Pair(scalar)
        }
        (Some(_), _) => Element::Number(scalar),
        _ if a.parts => Element::Parts,
        (None, Some(words)) if !a.written => Element::Words(words),
        _ => Element::Words(1),
    }
}
