//! Sums and maxima over lanes that are threads: neighbours exchange registers, and what lies further apart meets in shared memory.

use super::Writer;
use super::expression::{to_f32, wrapped};
use crate::names::unprintable;
use crate::simt::Simt;
use gristmill_compiler::lower::Statement;
use gristmill_uop::{Arg, Id, Op, ReduceOp, Scalar};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Sums that meet in shared memory at once: each meeting has two barriers. A driver's compiler keeps what threads hold across each of them: a product of 16 sums a thread, without subgroups, took lavapipe 2.9 s
/// to compile.
const AT_ONCE: usize = 4;
/// Most threads of a workgroup whose sums do: more have no room for them there (`MEETING` in `adapters.rs`).
const THREADS_AT_ONCE: i64 = 256;

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
    fn values(&self) -> String {
        let t = TYPES[self.of as usize].name();
        if self.at_once { format!("vec{AT_ONCE}<{t}>") } else { t.into() }
    }
    /// The function, where so many neighbouring threads exchange registers. Other threads meet in shared memory, as `met` says, and all of them come to its barriers.
    fn definition(&self, exchange: i64, met: &str) -> String {
        let &Fold { of, lanes, stride, .. } = self;
        let (t, values) = (TYPES[of as usize], self.values());
        let part = if values == met { "" } else { ".x" };
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
    fn is_shared(&self, exchange: i64) -> bool {
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
    let met = |fold: &Fold| met[fold.of as usize].clone().unwrap_or_default();
    all.iter().fold(out, |out, fold| out + &fold.definition(exchange, &met(fold)))
}

impl<'a> Writer<'a> {
    /// The fold that a node is, its value in the type that is folded.
    fn fold_of(&mut self, id: Id) -> (Fold, String) {
        let n = &self.t.g[id];
        let Arg::Reduce(how, _) = n.arg else { unprintable(self.t.g, id) };
        let [lanes, stride] = self.lanes(id);
        let (scalar, own) = (n.dtype.scalar, self.t.type_of(id));
        let x = self.t.name(n.src[0]);
        let (of, x) = match scalar {
            Scalar::Bool => (Scalar::I32, format!("i32({x})")),
            s if s.is_half() => (Scalar::F32, to_f32(s, &x)),
            _ if own != self.t.type_of(n.src[0]) => (own, format!("{}({x})", own.name())),
            _ => (own, x),
        };
        (Fold::new(how, of, lanes, stride).unwrap_or_else(|| unprintable(self.t.g, id)), x)
    }
    /// The sum or maximum over lanes that are threads.
    pub fn fold(&mut self, id: Id) -> String {
        let (fold, x) = self.fold_of(id);
        let text = format!("{}({x}, thread)", fold.name());
        self.folds.insert(fold);
        match self.t.g.scalar(id) {
            Scalar::Bool => format!("{text} != 0"),
            s if s.is_half() => format!("f32_to_{}({text})", s.name()),
            s => wrapped(s, text),
        }
    }
    /// The fold that a statement is, if it meets in shared memory where others may meet too.
    fn met(&mut self, s: &Statement) -> Option<(Id, Fold, String)> {
        let Statement::Define(id) = *s else { return None };
        if self.t.g[id].op != Op::Fold || self.t.g.scalar(id) != Scalar::F32 {
            return None;
        }
        let ([threads, exchange], (fold, x)) = (self.of_threads, self.fold_of(id));
        (fold.is_shared(exchange) && threads <= THREADS_AT_ONCE).then_some((id, fold, x))
    }
    /// Writes the fold that statements begin with together with those behind it that are alike and whose values are known, if there are any.
    pub fn folds_at_once(&mut self, all: &'a [Statement]) -> bool {
        let Some((first, fold, x)) = all.first().and_then(|s| self.met(s)) else { return false };
        let (mut found, mut made) = (vec![(first, x)], vec![first]);
        // Beyond anything but a definition sums may have changed.
        for s in all[1..].iter().take_while(|s| matches!(s, Statement::Define(_))) {
            if found.len() == AT_ONCE {
                break;
            }
            let Statement::Define(id) = *s else { continue };
            let known = !made.iter().any(|m| self.t.g[id].src.contains(m)) && !self.folded.contains(&id);
            if let Some((_, _, x)) = self.met(s).filter(|(_, other, _)| known && *other == fold) {
                found.push((id, x));
            }
            made.push(id);
        }
        if found.len() == 1 {
            return false;
        }
        let fold = Fold { at_once: true, ..fold };
        let mut values: Vec<String> = found.iter().map(|(_, x)| x.clone()).collect();
        values.resize(AT_ONCE, "0.0f".into());
        let (name, type_of, values) = (format!("f{}", self.t.number(first)), fold.values(), values.join(", "));
        self.line(format_args!("let {name} = {}({type_of}({values}), thread);", fold.name()));
        self.folds.insert(fold);
        for ((id, _), part) in found.iter().zip(["x", "y", "z", "w"]) {
            let v = self.t.number(*id);
            self.line(format_args!("let v{v}: f32 = {name}.{part};"));
        }
        self.folded.extend(found[1..].iter().map(|(id, _)| *id));
        true
    }
}
