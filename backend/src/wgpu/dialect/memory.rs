//! Buffers and stages as WGSL declares them: arrays of words, of several where the widest loads take so many, of atomic ones where parts of them are written.

use gristmill_compiler::emit::Signature;
use gristmill_compiler::lower::AllAccesses;
use gristmill_uop::fragment::COOPERATIVE_8;
use gristmill_uop::program::Access;
use gristmill_uop::{Arg, Graph, Id, Scalar};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// How a buffer is accessed.
#[derive(Clone)]
pub struct Memory {
    /// What it is called, and of a stage the word where it begins.
    name: String,
    first: usize,
    /// Words of an element: those of the narrowest wide load, and of a stage as many as the machine has it.
    width: usize,
    /// Are parts of words written, or do threads add to one word?
    atomic: bool,
    /// The type of its elements where matrices are loaded from it, or written to it.
    pub matrix: Option<Scalar>,
    /// Are these pairs, as all who write there write two at once? A matrix of Metal's is loaded from single ones, and where two threads write halves of one pair each may undo what the
    /// other has written.
    pub pairs: bool,
    /// Of how many pieces, so many bytes each but the last.
    pieces: (usize, usize),
}

impl Memory {
    /// An element of it, as a place.
    pub fn at(&self, element: &str) -> String {
        match self.pieces.0 {
            1 => format!("{}[{element}]", self.name),
            _ => format!("{}_at({element})", self.name),
        }
    }
    /// Its type.
    fn element(&self) -> String {
        match (self.atomic, self.width) {
            _ if let Some(element) = self.matrix => match self.pairs {
                true => format!("vec2<{}>", element.name()),
                false => element.name().into(),
            },
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
    /// Arrays of stages, by name: the type of their elements, and how many these are. Words of which parts are written lie in one of atomic ones, others in one of vectors.
    stages: BTreeMap<String, (String, usize)>,
}

impl Memories {
    /// Of a kernel that accesses them so.
    pub fn of(g: &Graph, accesses: &AllAccesses, signature: &Signature) -> Memories {
        let ([parts, words], piece) = (signature.stage_ends, signature.piece);
        let memory = |id: Id, name: String, pieces: usize| {
            let a = accesses.of(id);
            let matrix = a.matrices.map(|_| g.scalar(id));
            let width = match a.words {
                Some(words) if matrix.is_none() && !a.parts && !a.written => words,
                _ => 1,
            };
            Memory { name, first: 0, width, atomic: a.parts, matrix, pairs: false, pieces: (pieces, piece) }
        };
        let params = signature.params.iter().zip(&signature.pieces).enumerate();
        let mut of: HashMap<Id, Memory> =
            params.map(|(i, (p, &pieces))| (p.2, memory(p.2, format!("p{i}"), pieces))).collect();
        // Bodies of a launch have stages at the same place.
        let mut stages: BTreeMap<String, (String, usize)> = BTreeMap::new();
        for &(stage, at) in &signature.scratch {
            let (elements, own) = (g.max_of(g[stage].src[0]) as usize, memory(stage, String::new(), 1));
            let access = accesses.of(stage);
            let (memory, length) = match access.matrices {
                Some(tile) => {
                    let pairs = !access.halves && tile != COOPERATIVE_8.tile();
                    let (name, each) = if pairs { ("pairs", 2) } else { ("halves", 1) };
                    (Memory { name: format!("{name}{}", at / 4), pairs, ..own }, elements.div_ceil(each))
                }
                None if at < parts => {
                    let own = Memory { name: "parts".into(), first: at / 4, width: 1, atomic: true, ..own };
                    (own, parts / 4)
                }
                None => {
                    let (first, width) = ((at - parts) / 4, signature.stage_words);
                    (Memory { name: "scratch".into(), first, width, ..own }, (words - parts) / 4 / width)
                }
            };
            let (_, most) = stages.entry(memory.name.clone()).or_insert((memory.element(), 0));
            *most = length.max(*most);
            of.insert(stage, memory);
        }
        let packed = |node: Id| matches!(g[node].arg, Arg::Packed(..));
        let weights = signature.params.iter().map(|p| p.1 == Access::Read && packed(p.2)).collect();
        Memories { of, weights, stages }
    }
    /// Their declarations, and that of the variables; and how many bindings these are.
    pub fn definitions(&self, signature: &Signature) -> (String, usize) {
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
        for (name, (element, length)) in &self.stages {
            let _ = writeln!(out, "var<workgroup> {name}: array<{element}, {length}>;");
        }
        (out, further)
    }
    /// How one is accessed.
    pub fn get(&self, buffer: Id) -> &Memory {
        self.of.get(&buffer).unwrap_or_else(|| panic!("{buffer:?} is no argument of the kernel"))
    }
    /// The element that has a word, so many elements behind it, as a place.
    fn vector(&self, buffer: Id, word: &str, behind: usize) -> String {
        let memory = self.get(buffer);
        let (width, first) = (memory.width, memory.first / memory.width + behind);
        match first {
            0 => memory.at(&format!("{word} / {width}u")),
            first => memory.at(&format!("{first}u + {word} / {width}u")),
        }
    }
    /// A word of a buffer, as a place.
    pub fn element(&self, buffer: Id, word: &str) -> String {
        let memory = self.get(buffer);
        match (memory.width, memory.first) {
            (1, 0) => memory.at(word),
            (1, first) => memory.at(&format!("{first}u + {word}")),
            (width, _) => format!("{}[{word} % {width}u]", self.vector(buffer, word, 0)),
        }
    }
    /// A word of a buffer, so many behind that one.
    pub fn read(&self, buffer: Id, word: &str, many: usize) -> String {
        let (memory, at) = (self.get(buffer), behind(word, many));
        match memory.atomic {
            // Another body of the launch loads matrices from it, or writes them there.
            _ if memory.matrix == Some(Scalar::F16) => {
                let half = |i: usize| format!("f32({})", memory.at(&format!("2u * {at} + {i}u")));
                format!("pack2x16float(vec2<f32>({}, {}))", half(0), half(1))
            }
            _ if memory.matrix.is_some() => format!("bitcast<u32>({})", memory.at(&at)),
            true => format!("atomicLoad(&{})", self.element(buffer, &at)),
            false => self.element(buffer, &at),
        }
    }
    /// Loads of so many words, from one on that is a multiple of them: the statements, as whole elements named after this one, and the words.
    pub fn read_wide(&self, buffer: Id, word: &str, count: usize, name: &str) -> (Vec<String>, Vec<String>) {
        let width = self.get(buffer).width;
        if width == 1 || !count.is_multiple_of(width) {
            let one = |i: usize| (format!("let {name}_{i} = {};", self.read(buffer, word, i)), format!("{name}_{i}"));
            return (0..count).map(one).unzip();
        }
        let whole = |i: usize| format!("let {name}_{i} = {};", self.vector(buffer, word, i));
        let part = |i: usize| format!("{name}_{}.{}", i / width, ["x", "y", "z", "w"][i % width]);
        ((0..count / width).map(whole).collect(), (0..count).map(part).collect())
    }
    /// The statements that write words, from one on that is a multiple of as many.
    pub fn write(&self, buffer: Id, word: &str, values: &[String]) -> Vec<String> {
        let memory = self.get(buffer);
        let width = memory.width;
        let one = |(i, value): (usize, &String)| {
            let element = self.element(buffer, &behind(word, i));
            match memory.atomic {
                _ if memory.matrix.is_some() => format!("{element} = bitcast<f32>({value});"),
                true => format!("atomicStore(&{element}, {value});"),
                false => format!("{element} = {value};"),
            }
        };
        let whole = |(i, values): (usize, &[String])| {
            format!("{} = vec{width}<u32>({});", self.vector(buffer, word, i), values.join(", "))
        };
        match width == 1 || !values.len().is_multiple_of(width) {
            true => values.iter().enumerate().map(one).collect(),
            false => values.chunks(width).enumerate().map(whole).collect(),
        }
    }
}

/// A word so many behind another.
fn behind(word: &str, many: usize) -> String {
    if many == 0 { word.into() } else { format!("({word} + {many}u)") }
}
