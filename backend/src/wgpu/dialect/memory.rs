//! Buffers and stages as WGSL declares them: arrays of words, of several where the widest loads take so many, of atomic ones where parts of them are written.

use gristmill_compiler::emit::Signature;
use gristmill_compiler::lower::{KernelCode, Statement};
use gristmill_uop::fragment::COOPERATIVE_8;
use gristmill_uop::program::Access;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// How a buffer is accessed.
#[derive(Clone)]
struct Memory {
    /// What it is called, and of a stage the word where it begins.
    name: String,
    first: usize,
    /// Words of an element: those of the narrowest wide load, and of a stage as many as the machine has it.
    width: usize,
    /// Is it written?
    written: bool,
    /// Are parts of words written, or do threads add to one word?
    atomic: bool,
    /// The type of its elements where matrices are loaded from it, or written to it.
    matrix: Option<Scalar>,
    /// Are these pairs, as all who write there write two at once? A matrix of Metal's is loaded from single ones, and where two threads write halves of one pair each may undo what the
    /// other has written.
    pairs: bool,
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

/// Is all that is written to that stage of halves two of them at once?
fn writes_words(g: &Graph, code: &KernelCode, stage: Id) -> bool {
    code.bodies.iter().flat_map(|body| &body.statements).all(|s| match s {
        Statement::Write(buffer, _, value) if *buffer == stage => g.scalar(*value) == Scalar::U32,
        Statement::WideWrite(buffer, ..) => *buffer != stage,
        _ => true,
    })
}

/// Places stages of words: those that parts of words are written to in an array of atomic ones, whose loads are atomic too, and the others in one of vectors; where both together would take more than is shared, all in the former. The
/// arrays.
fn share(g: &Graph, of: &mut HashMap<Id, Memory>, signature: &Signature) -> Vec<(&'static str, String, usize)> {
    let words = |id: Id| ((g.max_of(g[id].src[0]) * g.unit_bytes(id)) as usize).next_multiple_of(64) / 4;
    let in_words = |id: Id, memory: &Memory| g[id].op == Op::Local && memory.matrix.is_none();
    let stages: Vec<Id> = of.iter().filter(|&(&id, memory)| in_words(id, memory)).map(|(&id, _)| id).collect();
    let spans = |of: &HashMap<Id, Memory>, ids: &[Id]| -> Vec<[usize; 2]> {
        ids.iter().map(|&id| [of[&id].first, of[&id].first + words(id)]).collect()
    };
    let (atomic, plain): (Vec<Id>, Vec<Id>) = stages.iter().partition(|id| of[id].atomic);
    let both = [&atomic, &plain].map(|ids| without_gaps(&spans(of, ids)).1);
    let fits = 4 * both.iter().sum::<usize>() <= signature.scratch_bytes;
    let classes = if fits || atomic.is_empty() { [atomic, plain] } else { [stages, vec![]] };
    let mut arrays = Vec::new();
    for (ids, (name, atomic)) in classes.iter().zip([("parts", true), ("scratch", false)]) {
        let (begins, length) = without_gaps(&spans(of, ids));
        for (id, first) in ids.iter().zip(begins) {
            let width = if atomic { 1 } else { signature.stage_words };
            if let Some(memory) = of.get_mut(id) {
                (memory.name, memory.first, memory.atomic, memory.width) = (name.into(), first, atomic, width);
            }
        }
        arrays.extend(ids.first().map(|id| (name, of[id].element(), length.div_ceil(of[id].width))));
    }
    arrays
}

/// Spans once what lies in none of them is taken out: where each begins then, and the length of all.
fn without_gaps(spans: &[[usize; 2]]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|&i| spans[i]);
    let (mut begins, mut last, mut gaps) = (vec![0; spans.len()], 0, 0);
    for i in order {
        let [begin, end] = spans[i];
        gaps += begin.saturating_sub(last);
        begins[i] = begin - gaps;
        last = last.max(end);
    }
    (begins, last - gaps)
}

/// The buffers and stages of a kernel.
pub struct Memories {
    of: HashMap<Id, Memory>,
    /// Whether each of the buffers is one of weights, which nothing writes while a step runs.
    weights: Vec<bool>,
    /// Arrays that stages of words share: the name, the type of the elements, and how many.
    shared: Vec<(&'static str, String, usize)>,
    /// Stages of halves, by name: the type of their elements, and how many these are.
    stages: BTreeMap<String, (String, i64)>,
}

impl Memories {
    /// Of this code.
    pub fn of(g: &Graph, code: &KernelCode, signature: &Signature) -> Memories {
        let memory = |name: String, first: usize, pieces: usize| {
            let pieces = (pieces, signature.piece);
            Memory { name, first, width: usize::MAX, written: false, atomic: false, matrix: None, pairs: false, pieces }
        };
        let params = signature.params.iter().zip(&signature.pieces).enumerate();
        let params = params.map(|(i, (p, &pieces))| (p.2, memory(format!("p{i}"), 0, pieces)));
        let stages = signature.scratch.iter().map(|&(local, at)| (local, memory("scratch".into(), at / 4, 1)));
        let mut of: HashMap<Id, Memory> = params.chain(stages).collect();
        for s in code.bodies.iter().flat_map(|body| &body.statements) {
            let of_matrix = match s {
                Statement::Define(id) if g[*id].op == Op::TileLoad => Some(g[*id].src[0]),
                Statement::WriteTile(buffer, ..) => Some(*buffer),
                _ => None,
            };
            if let Some(memory) = of_matrix.and_then(|buffer| of.get_mut(&buffer)) {
                memory.matrix = of_matrix.map(|buffer| g.scalar(buffer));
                let is_stage = of_matrix.is_some_and(|buffer| g[buffer].op == Op::Local);
                let of_metal = |id: Id| g[id].dtype == COOPERATIVE_8.tile();
                let in_words = of_matrix.is_some_and(|buffer| writes_words(g, code, buffer));
                memory.pairs = is_stage && in_words && matches!(s, Statement::Define(id) if !of_metal(*id));
            }
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
        // Bodies of a launch have stages at the same place.
        let mut stages: BTreeMap<String, (String, i64)> = BTreeMap::new();
        for (&id, memory) in &mut of {
            let is_stage = g[id].op == Op::Local;
            if is_stage && memory.matrix.is_some() {
                let (name, each) = if memory.pairs { ("pairs", 2) } else { ("halves", 1) };
                (memory.name, memory.first) = (format!("{name}{}", memory.first), 0);
                let (_, length) = stages.entry(memory.name.clone()).or_insert((memory.element(), 0));
                *length = ((g.max_of(g[id].src[0]) + each - 1) / each).max(*length);
            }
            let single = is_stage || memory.matrix.is_some() || memory.atomic || memory.written;
            memory.width = if single || memory.width == usize::MAX { 1 } else { memory.width };
        }
        let packed = |node: Id| matches!(g[node].arg, Arg::Packed(..));
        let weights = signature.params.iter().map(|p| p.1 == Access::Read && packed(p.2)).collect();
        let shared = share(g, &mut of, signature);
        Memories { of, weights, shared, stages }
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
        for (name, element, length) in &self.shared {
            let _ = writeln!(out, "var<workgroup> {name}: array<{element}, {length}>;");
        }
        (out, further)
    }
    fn get(&self, buffer: Id) -> &Memory {
        self.of.get(&buffer).unwrap_or_else(|| panic!("{buffer:?} is no argument of the kernel"))
    }
    /// Is it an array of halves?
    pub fn is_of_halves(&self, buffer: Id) -> bool {
        self.get(buffer).matrix == Some(Scalar::F16)
    }
    /// Are these in pairs?
    pub fn is_of_pairs(&self, buffer: Id) -> bool {
        self.get(buffer).pairs
    }
    /// An element of what matrices are loaded from or written to, as a place.
    pub fn of_matrix(&self, buffer: Id, at: &str) -> String {
        self.get(buffer).at(at)
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
    pub fn read(&self, buffer: Id, word: &str, behind: usize) -> String {
        let memory = self.get(buffer);
        let at = if behind == 0 { word.to_owned() } else { format!("({word} + {behind}u)") };
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
    /// The statement that writes a word.
    pub fn write(&self, buffer: Id, word: &str, value: &str) -> String {
        let element = self.element(buffer, word);
        match self.get(buffer).atomic {
            _ if self.get(buffer).matrix.is_some() => format!("{element} = bitcast<f32>({value});"),
            true => format!("atomicStore(&{element}, {value});"),
            false => format!("{element} = {value};"),
        }
    }
    /// The statements that write words, from one on that is a multiple of as many.
    pub fn write_wide(&self, buffer: Id, word: &str, values: &[String]) -> Vec<String> {
        let width = self.get(buffer).width;
        if width == 1 || !values.len().is_multiple_of(width) {
            let one = |(i, value): (usize, &String)| self.write(buffer, &format!("({word} + {i}u)"), value);
            return values.iter().enumerate().map(one).collect();
        }
        let whole = |(i, values): (usize, &[String])| {
            format!("{} = vec{width}<u32>({});", self.vector(buffer, word, i), values.join(", "))
        };
        values.chunks(width).enumerate().map(whole).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::without_gaps;

    #[test]
    fn what_lies_in_no_span_is_taken_out_and_what_overlaps_stays_so() {
        assert_eq!(without_gaps(&[[16, 32], [64, 80], [20, 40]]), (vec![0, 24, 4], 40));
        assert_eq!(without_gaps(&[]), (vec![], 0));
    }
}
