//! Buffers and stages as WGSL declares them: arrays of words, of several where the widest loads take so many, of atomic ones where parts of them are written.

use gristmill_compiler::emit::Signature;
use gristmill_compiler::lower::{KernelCode, Statement};
use gristmill_uop::program::Access;
use gristmill_uop::{Arg, Graph, Id, Op};
use std::collections::HashMap;
use std::fmt::Write;

/// How a buffer is accessed.
#[derive(Clone)]
struct Memory {
    /// What it is called, and of a stage the word where it begins.
    name: String,
    first: usize,
    /// Words of an element: those of the narrowest wide load.
    width: usize,
    /// Is it written?
    written: bool,
    /// Are parts of words written, or do threads add to one word?
    atomic: bool,
    /// Of how many pieces, so many bytes each but the last.
    pieces: (usize, usize),
}

impl Memory {
    /// An element of it.
    fn at(&self, element: &str) -> String {
        match self.pieces.0 {
            1 => format!("{}[{element}]", self.name),
            _ => format!("{}_at({element})", self.name),
        }
    }
    /// Its type.
    fn element(&self) -> String {
        match (self.atomic, self.width) {
            (true, _) => "atomic<u32>".into(),
            (false, 1) => "u32".into(),
            (false, width) => format!("vec{width}<u32>"),
        }
    }
    /// The function that reads an element of one of several pieces.
    fn reader(&self) -> String {
        let (name, (count, bytes)) = (&self.name, self.pieces);
        let each = bytes / 4 / self.width;
        let mut out = format!("fn {name}_at(i: u32) -> {} {{\n", self.element());
        for piece in (1..count).rev() {
            let first = piece * each;
            let _ = writeln!(out, "  if (i >= {first}u) {{ return {name}_{piece}[i - {first}u]; }}");
        }
        out + &format!("  return {name}[i];\n}}\n")
    }
}

/// The buffers and stages of a kernel.
pub struct Memories {
    of: HashMap<Id, Memory>,
    /// Whether each of the buffers is one of weights, which nothing writes while a step runs.
    weights: Vec<bool>,
    /// Words that a workgroup shares.
    shared: usize,
}

impl Memories {
    /// Of this code.
    pub fn of(g: &Graph, code: &KernelCode, signature: &Signature) -> Memories {
        let memory = |name: String, first: usize, pieces: usize| {
            let pieces = (pieces, signature.piece);
            Memory { name, first, width: usize::MAX, written: false, atomic: false, pieces }
        };
        let params = signature.params.iter().zip(&signature.pieces).enumerate();
        let params = params.map(|(i, (p, &pieces))| (p.2, memory(format!("p{i}"), 0, pieces)));
        let stages = signature.scratch.iter().map(|&(local, at)| (local, memory("scratch".into(), at / 4, 1)));
        let mut of: HashMap<Id, Memory> = params.chain(stages).collect();
        for s in code.bodies.iter().flat_map(|body| &body.statements) {
            let (buffer, words, part) = match s {
                Statement::Wide(buffer, _, bytes, _) => (buffer, Some(bytes / 4), false),
                Statement::Write(buffer, _, value) => (buffer, None, g.scalar(*value).bytes() < 4),
                Statement::Add(a) => (&a.buffer, None, a.atomic || g.scalar(a.buffer).bytes() < 4),
                Statement::WideWrite(buffer, ..) => (buffer, None, false),
                _ => continue,
            };
            if let Some(memory) = of.get_mut(buffer) {
                match words {
                    Some(words) => memory.width = memory.width.min(words),
                    None => memory.written = true,
                }
                memory.atomic |= part;
            }
        }
        // Stages lie in one array of words, and a write of one word of several may touch the others.
        let parts = of.iter().any(|(&id, memory)| g[id].op == Op::Local && memory.atomic);
        for (&id, memory) in &mut of {
            let is_stage = g[id].op == Op::Local;
            memory.atomic = if is_stage { parts } else { memory.atomic };
            memory.width = if is_stage || memory.written || memory.width == usize::MAX { 1 } else { memory.width };
        }
        let packed = |node: Id| matches!(g[node].arg, Arg::Packed(..));
        let weights = signature.params.iter().map(|p| p.1 == Access::Read && packed(p.2)).collect();
        Memories { of, weights, shared: signature.scratch_bytes.div_ceil(4) }
    }
    /// Their declarations, and that of the variables.
    pub fn definitions(&self, signature: &Signature) -> String {
        let mut out = String::new();
        let mut further = signature.params.len() + usize::from(!signature.vars.is_empty());
        for (i, p) in signature.params.iter().enumerate() {
            let (memory, element) = (&self.of[&p.2], self.of[&p.2].element());
            // Two parts of one buffer may be bound, of which one is written: only weights are told apart.
            let access = if self.weights[i] { "read" } else { "read_write" };
            let mut bind = |at: usize, name: String| {
                let _ = writeln!(out, "@group(0) @binding({at}) var<storage, {access}> {name}: array<{element}>;");
            };
            bind(i, format!("p{i}"));
            for piece in 1..memory.pieces.0 {
                bind(further, format!("p{i}_{piece}"));
                further += 1;
            }
            if memory.pieces.0 > 1 {
                out += &memory.reader();
            }
        }
        if !signature.vars.is_empty() {
            let fields: Vec<String> = (0..signature.vars.len()).map(|i| format!("v{i}: i32")).collect();
            let _ = writeln!(out, "struct Variables {{ {} }}", fields.join(", "));
            let at = signature.params.len();
            let _ = writeln!(out, "@group(0) @binding({at}) var<uniform> variables: Variables;");
        }
        if self.shared > 0 {
            let atomic = self.of.values().any(|memory| memory.name == "scratch" && memory.atomic);
            let element = if atomic { "atomic<u32>" } else { "u32" };
            let _ = writeln!(out, "var<workgroup> scratch: array<{element}, {}>;", self.shared);
        }
        out
    }
    fn get(&self, buffer: Id) -> &Memory {
        self.of.get(&buffer).unwrap_or_else(|| panic!("{buffer:?} is no argument of the kernel"))
    }
    /// A word of a buffer of single words, as a place.
    pub fn element(&self, buffer: Id, word: &str) -> String {
        let memory = self.get(buffer);
        match memory.first {
            0 => memory.at(word),
            first => format!("{}[{first}u + {word}]", memory.name),
        }
    }
    /// A word of a buffer, so many behind that one.
    pub fn read(&self, buffer: Id, word: &str, behind: usize) -> String {
        let memory = self.get(buffer);
        let at = if behind == 0 { word.to_owned() } else { format!("({word} + {behind}u)") };
        match (memory.atomic, memory.width) {
            (true, _) => format!("atomicLoad(&{})", self.element(buffer, &at)),
            (false, 1) => self.element(buffer, &at),
            (false, width) => format!("{}[{at} % {width}u]", memory.at(&format!("{at} / {width}u"))),
        }
    }
    /// So many words, from one on that is a multiple of them.
    pub fn read_wide(&self, buffer: Id, word: &str, count: usize) -> Vec<String> {
        let memory = self.get(buffer);
        let one = |i: usize| match memory.width {
            1 => self.read(buffer, word, i),
            width => {
                let element = if i < width { String::new() } else { format!(" + {}u", i / width) };
                let element = memory.at(&format!("{word} / {width}u{element}"));
                format!("{element}.{}", ["x", "y", "z", "w"][i % width])
            }
        };
        (0..count).map(one).collect()
    }
    /// The statement that writes a word, so many behind that one.
    pub fn write(&self, buffer: Id, word: &str, behind: usize, value: &str) -> String {
        let at = if behind == 0 { word.to_owned() } else { format!("{word} + {behind}u") };
        let element = self.element(buffer, &at);
        match self.get(buffer).atomic {
            true => format!("atomicStore(&{element}, {value});"),
            false => format!("{element} = {value};"),
        }
    }
}
