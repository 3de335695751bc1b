//! Buffers and shared memory as WGSL arrays.
//!
//! Elements are words, vectors as wide as the widest loads, or atomic words where parts
//! of words are written.

use gristmill_compiler::emit::{Array, Element, Signature};
use gristmill_uop::program::Access;
use gristmill_uop::{Arg, Graph, Id, Scalar};
use std::collections::HashMap;
use std::fmt::Write;

/// A buffer or a stage in shared memory, as an array.
pub struct Memory {
    /// Name of the array, and for a stage the index of its first word there.
    name: String,
    first: usize,
    /// Type of an element.
    element: Element,
    /// Number of pieces and bytes of each piece but the last.
    pieces: (usize, usize),
}

impl Memory {
    /// Renders an element as an lvalue.
    pub fn at(&self, element: &str) -> String {
        match self.pieces.0 {
            1 => format!("{}[{element}]", self.name),
            _ => format!("{}_at({element})", self.name),
        }
    }
    /// Returns the element type if cooperative matrices access the array.
    pub fn matrix(&self) -> Option<Scalar> {
        match self.element {
            Element::Number(of) | Element::Pair(of) => Some(of),
            _ => None,
        }
    }
    /// Returns whether the elements are pairs.
    pub fn has_pairs(&self) -> bool {
        matches!(self.element, Element::Pair(_))
    }
    /// Returns the words of an element.
    fn width(&self) -> usize {
        if let Element::Words(many) = self.element {
            many
        } else {
            1
        }
    }
    /// Renders the function that reads an element of a buffer in several pieces.
    fn reader(&self) -> String {
        let (name, (count, bytes)) = (&self.name, self.pieces);
        let each = bytes / 4 / self.width();
        let mut out = format!("fn {name}_at(i: u32) -> {} {{\n", type_of(self.element));
        for piece in (1..count).rev() {
            let first = piece * each;
            let _ = writeln!(
                out,
                "  if (i >= {first}u) {{ return {name}_{piece}[i - {first}u]; }}"
            );
        }
        out + &format!("  return {name}[i];\n}}\n")
    }
}

/// Returns the WGSL type of an element.
fn type_of(element: Element) -> String {
    match element {
        Element::Words(1) => "u32".into(),
        Element::Words(many) => format!("vec{many}<u32>"),
        Element::Parts => "atomic<u32>".into(),
        Element::Number(of) => of.name().into(),
        Element::Pair(of) => format!("vec2<{}>", of.name()),
    }
}

/// Returns the name of an array in workgroup memory.
fn name(of: &Array) -> String {
    match of.element {
        Element::Words(_) => "scratch".into(),
        Element::Parts => "parts".into(),
        Element::Number(_) => format!("halves{}", of.begin / 4),
        Element::Pair(_) => format!("pairs{}", of.begin / 4),
    }
}

/// Arrays of a kernel's buffers and stages.
pub struct Memories(HashMap<Id, Memory>);

impl Memories {
    pub fn from_signature(signature: &Signature) -> Memories {
        let param = |(i, p): (usize, &(u32, Access, Id))| {
            let (element, pieces) = (
                signature.elements[i],
                (signature.pieces[i], signature.piece),
            );
            (
                p.2,
                Memory {
                    name: format!("p{i}"),
                    first: 0,
                    element,
                    pieces,
                },
            )
        };
        let stage = |&(stage, array, first): &(Id, usize, usize)| {
            let array: &Array = &signature.arrays[array];
            (
                stage,
                Memory {
                    name: name(array),
                    first,
                    element: array.element,
                    pieces: (1, 0),
                },
            )
        };
        let params = signature.params.iter().enumerate().map(param);
        Memories(params.chain(signature.stages.iter().map(stage)).collect())
    }
    /// Returns the declarations of buffers and variables, and the number of bindings.
    pub fn definitions(&self, g: &Graph, signature: &Signature) -> (String, usize) {
        let mut out = String::new();
        let mut further = signature.params.len() + usize::from(!signature.vars.is_empty());
        for (i, p) in signature.params.iter().enumerate() {
            let (memory, element) = (self.get(p.2), type_of(self.get(p.2).element));
            // Two ranges of one buffer may be bound, one of them for writing, so only
            // weights are read-only.
            let weight = p.1 == Access::Read && matches!(g[p.2].arg, Arg::Packed(..));
            let access = if weight { "read" } else { "read_write" };
            let mut bind = |at: usize, name: String| {
                let _ = writeln!(
                    out,
                    "@group(0) @binding({at}) var<storage, {access}> {name}: array<{element}>;"
                );
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
            let fields: Vec<String> = (0..signature.vars.len())
                .map(|i| format!("v{i}: i32"))
                .collect();
            let _ = writeln!(out, "struct Variables {{ {} }}", fields.join(", "));
            let at = signature.params.len();
            let _ = writeln!(
                out,
                "@group(0) @binding({at}) var<uniform> variables: Variables;"
            );
        }
        for of in &signature.arrays {
            let _ = writeln!(
                out,
                "var<workgroup> {}: array<{}, {}>;",
                name(of),
                type_of(of.element),
                of.length
            );
        }
        (out, further)
    }
    /// Returns the array of a buffer or a stage.
    pub fn get(&self, buffer: Id) -> &Memory {
        self.0
            .get(&buffer)
            .unwrap_or_else(|| panic!("{buffer:?} is no argument of the kernel"))
    }
    /// Renders the element that contains a word, plus `behind` elements, as an lvalue.
    fn vector(&self, buffer: Id, word: &str, behind: usize) -> String {
        let memory = self.get(buffer);
        let (width, first) = (memory.width(), memory.first / memory.width() + behind);
        match first {
            0 => memory.at(&format!("{word} / {width}u")),
            first => memory.at(&format!("{first}u + {word} / {width}u")),
        }
    }
    /// Renders a word of a buffer as an lvalue.
    pub fn element(&self, buffer: Id, word: &str) -> String {
        let memory = self.get(buffer);
        match (memory.width(), memory.first) {
            (1, 0) => memory.at(word),
            (1, first) => memory.at(&format!("{first}u + {word}")),
            (width, _) => format!("{}[{word} % {width}u]", self.vector(buffer, word, 0)),
        }
    }
    /// Renders a read of the word at `word + many`.
    pub fn read(&self, buffer: Id, word: &str, many: usize) -> String {
        let (memory, at) = (self.get(buffer), behind(word, many));
        match memory.element {
            // Another body of the launch uses it with cooperative matrices.
            Element::Number(Scalar::F16) | Element::Pair(Scalar::F16) => {
                let half = |i: usize| format!("f32({})", memory.at(&format!("2u * {at} + {i}u")));
                format!("pack2x16float(vec2<f32>({}, {}))", half(0), half(1))
            }
            Element::Number(_) | Element::Pair(_) => format!("bitcast<u32>({})", memory.at(&at)),
            Element::Parts => format!("atomicLoad(&{})", self.element(buffer, &at)),
            Element::Words(_) => self.element(buffer, &at),
        }
    }
    /// Renders loads of `count` words from `word`, a multiple of `count`.
    ///
    /// Returns the statements, which load whole elements into variables named after
    /// `name`, and the words.
    pub fn read_wide(
        &self,
        buffer: Id,
        word: &str,
        count: usize,
        name: &str,
    ) -> (Vec<String>, Vec<String>) {
        let width = self.get(buffer).width();
        if width == 1 || !count.is_multiple_of(width) {
            let one = |i: usize| {
                (
                    format!("let {name}_{i} = {};", self.read(buffer, word, i)),
                    format!("{name}_{i}"),
                )
            };
            return (0..count).map(one).unzip();
        }
        let whole = |i: usize| format!("let {name}_{i} = {};", self.vector(buffer, word, i));
        let part = |i: usize| format!("{name}_{}.{}", i / width, ["x", "y", "z", "w"][i % width]);
        (
            (0..count / width).map(whole).collect(),
            (0..count).map(part).collect(),
        )
    }
    /// Renders stores of words from `word`, a multiple of their number.
    pub fn write(&self, buffer: Id, word: &str, values: &[String]) -> Vec<String> {
        let memory = self.get(buffer);
        let width = memory.width();
        let one = |(i, value): (usize, &String)| {
            let element = self.element(buffer, &behind(word, i));
            match memory.element {
                Element::Number(_) | Element::Pair(_) => {
                    format!("{element} = bitcast<f32>({value});")
                }
                Element::Parts => format!("atomicStore(&{element}, {value});"),
                Element::Words(_) => format!("{element} = {value};"),
            }
        };
        let whole = |(i, values): (usize, &[String])| {
            format!(
                "{} = vec{width}<u32>({});",
                self.vector(buffer, word, i),
                values.join(", ")
            )
        };
        match width == 1 || !values.len().is_multiple_of(width) {
            true => values.iter().enumerate().map(one).collect(),
            false => values.chunks(width).enumerate().map(whole).collect(),
        }
    }
}

/// Renders the index `word + many`.
fn behind(word: &str, many: usize) -> String {
    if many == 0 {
        word.into()
    } else {
        format!("({word} + {many}u)")
    }
}
