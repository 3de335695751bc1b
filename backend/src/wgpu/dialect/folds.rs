//! Sums and maxima over lanes that are threads: neighbours exchange registers, and what lies further apart meets in shared memory.

use gristmill_uop::{ReduceOp, Scalar};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Sums that meet in shared memory at once: each meeting has two barriers. A driver's compiler keeps what threads hold across each of them: a product of 16 sums a thread, without subgroups, took lavapipe 2.9 s
/// to compile.
pub const AT_ONCE: usize = 4;
/// Most threads of a workgroup whose sums do: more have no room for them there (`MEETING` in `adapters.rs`).
pub const THREADS_AT_ONCE: i64 = 256;

/// A sum or a maximum over neighbours: so many lanes, so many threads apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Fold {
    /// Is it a sum?
    pub adds: bool,
    /// Is it of [`AT_ONCE`] values side by side?
    pub at_once: bool,
    /// Of values of 64 bits, of floats, of signed ones, of unsigned ones?
    pub of: u8,
    /// Values.
    pub lanes: i64,
    /// Threads from one to the next.
    pub stride: i64,
}

/// The types that are folded, by [`Fold::of`].
const TYPES: [Scalar; 4] = [Scalar::F32, Scalar::I32, Scalar::U32, Scalar::I64];

impl Fold {
    /// Of values of that type; none if it is no number.
    pub fn new(how: ReduceOp, of: Scalar, lanes: i64, stride: i64) -> Option<Fold> {
        let of = TYPES.iter().position(|&t| t == of)? as u8;
        Some(Fold { adds: how == ReduceOp::Add, at_once: false, of, lanes, stride })
    }
    /// Its function.
    pub fn name(&self) -> String {
        let how = if self.adds { "add" } else { "max" };
        let at_once = if self.at_once { "_at_once" } else { "" };
        format!("fold_{how}_{}_{}_{}{at_once}", TYPES[self.of as usize].name(), self.lanes, self.stride)
    }
    fn combined(&self, other: &str) -> String {
        if self.adds { format!("x + {other}") } else { format!("max(x, {other})") }
    }
    /// The type of its values.
    pub fn values(&self) -> String {
        let t = TYPES[self.of as usize].name();
        if self.at_once { format!("vec{AT_ONCE}<{t}>") } else { t.into() }
    }
    /// The function, where so many neighbouring threads exchange registers. Other threads meet in shared memory, as `met` says, and all of them come to its barriers.
    fn definition(&self, exchange: i64, met: Option<&String>) -> String {
        let &Fold { of, lanes, stride, .. } = self;
        let (t, values) = (TYPES[of as usize], self.values());
        let part = if met == Some(&values) { "" } else { ".x" };
        let span = lanes * stride;
        // Whole numbers of 64 bits are exchanged by no word of WGSL.
        let exchange = if t == Scalar::I64 { 1 } else { exchange };
        let mut out = format!("fn {}(y: {values}, thread: u32) -> {values} {{\n  var x = y;\n", self.name());
        let mut by = stride;
        while by < exchange && by < span {
            let other = self.combined(&format!("subgroupShuffleXor(x, {by}u)"));
            let _ = writeln!(out, "  x = {other};");
            by *= 2;
        }
        if span > exchange.max(stride) {
            let parts = format!("parts_{}", t.name());
            let next = exchange.max(stride);
            let _ = writeln!(out, "  workgroupBarrier();\n  {parts}[thread]{part} = x;\n  workgroupBarrier();");
            let _ = writeln!(
                out,
                "  let first = thread - thread % {span}u + thread % {next}u;\n  x = {parts}[first]{part};"
            );
            let (count, other) = (span / next, self.combined(&format!("{parts}[first + i * {next}u]{part}")));
            let _ = writeln!(out, "  for (var i = 1u; i < {count}u; i += 1u) {{ x = {other}; }}");
        }
        out + "  return x;\n}\n"
    }
    /// Does any of it meet in shared memory?
    pub fn is_shared(&self, exchange: i64) -> bool {
        let exchange = if TYPES[self.of as usize] == Scalar::I64 { 1 } else { exchange };
        self.lanes * self.stride > exchange.max(self.stride)
    }
}

/// The functions of these folds in a kernel of so many threads, and the memory in which they meet: that of several values at once is that of single ones, too.
pub fn folds(all: &BTreeSet<Fold>, [threads, exchange]: [i64; 2]) -> String {
    let mut out = String::new();
    let met = TYPES.map(|t| {
        let of = || all.iter().filter(|f| TYPES[f.of as usize] == t && f.is_shared(exchange));
        of().find(|f| f.at_once).or_else(|| of().next()).map(Fold::values)
    });
    for (t, met) in TYPES.iter().zip(&met) {
        if let Some(met) = met {
            let _ = writeln!(out, "var<workgroup> parts_{}: array<{met}, {threads}>;", t.name());
        }
    }
    all.iter().fold(out, |out, fold| out + &fold.definition(exchange, met[fold.of as usize].as_ref()))
}
