//! Text form of the IR: one printer and one parser for every level.
//!
//! One node per line, sources before users, then the roots:
//!
//! ```text
//! %0 = Var i64 var=pos 0..4095
//! %1 = Param f32 8:i64 slot=0
//! %2 = Reduce f32 %1 reduce=add axes=[0]
//! %3 = Mul f32 %2 0.5:f32
//! return %3 %0
//! ```
//!
//! A line is `%number = Op dtype operands argument`. Constants are written inline as operands,
//! `value:dtype`. Numbers are dense from 0, in the order of [`Graph::toposort`], so equal
//! graphs have equal texts, regardless of other nodes in their arenas. Floats are printed as
//! the shortest decimals that parse to the same value; if there is none (a NaN payload, a
//! number out of the dtype's range), their f64 bits are written as `bits(0x…)`. Blank lines and
//! comments after `#` are skipped.

use crate::dtype::{DType, Scalar};
use crate::encoding::EncodingRef;
use crate::graph::Graph;
use crate::id::Id;
use crate::node::{Arg, Axes, Node, Sources};
use crate::op::{Arity, Op, RangeKind, ReduceOp};
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::sync::Arc;

/// A syntax error in a text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// Description of the error.
    pub message: String,
}

/// Prints all nodes that `roots` depend on, then the roots.
pub fn print(g: &Graph, roots: &[Id]) -> String {
    let mut numbers: FxHashMap<Id, u32> = FxHashMap::default();
    let mut out = String::new();
    for id in g.toposort(roots) {
        if inline(g, id).is_none() {
            let number = numbers.len() as u32;
            numbers.insert(id, number);
            line(g, id, &|s| numbers[&s], &mut out);
            out.push('\n');
        }
    }
    out.push_str("return");
    for &root in roots {
        operand(g, root, &|s| numbers[&s], &mut out);
    }
    out.push('\n');
    out
}

/// Prints the line of one node with arena numbers, for messages.
pub fn print_node(g: &Graph, id: Id) -> String {
    let mut out = String::new();
    line(g, id, &|s| s.0, &mut out);
    out
}

/// Inline form of a constant operand; `None` for other nodes.
fn inline(g: &Graph, id: Id) -> Option<String> {
    let n = &g[id];
    match (&n.op, &n.arg) {
        (Op::Const, Arg::Int(v)) if n.src.is_empty() => Some(format!("{v}:{}", n.dtype)),
        (Op::Const, Arg::Float(b)) if n.src.is_empty() => {
            Some(format!("{}:{}", float(*b, n.dtype.scalar), n.dtype))
        }
        _ => None,
    }
}

/// Prints the shortest decimal that parses, as `scalar`, to the f64 with these bits.
fn float(bits: u64, scalar: Scalar) -> String {
    let v = f64::from_bits(bits);
    let narrow = v as f32;
    let text = match scalar {
        // The f32 decimal is shorter, and the parser reads it as an f32.
        Scalar::F32 => format!("{narrow:?}"),
        _ => format!("{v:?}"),
    };
    if read_float(&text, scalar) == Some(bits) {
        text
    } else {
        format!("bits({bits:#018x})")
    }
}

fn read_float(text: &str, scalar: Scalar) -> Option<u64> {
    if let Some(hex) = text
        .strip_prefix("bits(0x")
        .and_then(|t| t.strip_suffix(')'))
    {
        return u64::from_str_radix(hex, 16).ok();
    }
    let v = match scalar {
        Scalar::F32 => text.parse::<f32>().ok()? as f64,
        _ => text.parse::<f64>().ok()?,
    };
    Some(v.to_bits())
}

fn operand(g: &Graph, id: Id, number: &dyn Fn(Id) -> u32, out: &mut String) {
    out.push(' ');
    match inline(g, id) {
        Some(c) => out.push_str(&c),
        None => {
            let _ = write!(out, "%{}", number(id));
        }
    }
}

fn line(g: &Graph, id: Id, number: &dyn Fn(Id) -> u32, out: &mut String) {
    let n = &g[id];
    // A constant has its own line only in messages, where its value is the argument.
    let _ = write!(out, "%{} = {} {}", number(id), n.op.name(), n.dtype);
    for &s in &n.src {
        operand(g, s, number, out);
    }
    argument(&n.arg, out);
}

/// Prints a node's argument after a space; prints nothing if it has none.
pub fn argument(arg: &Arg, out: &mut String) {
    let _ = match arg {
        Arg::None => Ok(()),
        Arg::Int(v) => write!(out, " int={v}"),
        Arg::Float(b) => write!(out, " float={}", float(*b, Scalar::F64)),
        Arg::Capped(b, cap) => write!(
            out,
            " float={} cap={}",
            float(*b, Scalar::F64),
            float(*cap, Scalar::F64)
        ),
        Arg::Axes(a) => write!(out, " axes={}", list(a)),
        Arg::Reduce(op, a) if a.is_empty() => write!(out, " reduce={}", op.name()),
        Arg::Reduce(op, a) => write!(out, " reduce={} axes={}", op.name(), list(a)),
        Arg::Range(n, kind) => write!(out, " range={n} kind={}", kind.name()),
        Arg::Var(name, lo, hi) => write!(out, " var={} {lo}..{hi}", escape(name)),
        Arg::Param(slot) => write!(out, " slot={slot}"),
        Arg::Packed(slot, e) => write!(out, " slot={slot} enc={}", escape(e.name)),
        // Printed but not parsed: the texts of a user-written kernel belong to a program.
        Arg::Custom(kernel) => write!(out, " kernel={}", escape(kernel.name)),
        Arg::Ints(t) => write!(out, " table={}", list(t)),
    };
}

fn list<T: ToString>(items: &[T]) -> String {
    format!(
        "[{}]",
        items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
    )
}

/// Escapes a name as one word: bytes other than letters, digits and `_.-` become `%xx`.
fn escape(name: &str) -> String {
    let mut out = String::new();
    for b in name.bytes() {
        if b.is_ascii_alphanumeric() || b"_.-".contains(&b) {
            out.push(b as char);
        } else {
            let _ = write!(out, "%{b:02x}");
        }
    }
    out
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&b, tail)) = rest.split_first() {
        if b == b'%' {
            let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(b);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

/// Parses a text into a graph and its roots.
///
/// Nodes are interned as written; no rule is applied. `encodings` looks up formats by name. Only
/// operand references and counts are checked here; [`crate::spec`] checks the rest.
pub fn parse(
    text: &str,
    encodings: &dyn Fn(&str) -> Option<EncodingRef>,
) -> Result<(Graph, Vec<Id>), ParseError> {
    let mut p = Parser {
        graph: Graph::new(),
        ids: FxHashMap::default(),
        encodings,
    };
    let mut roots = None;
    for (i, raw) in text.lines().enumerate() {
        let error = |message| ParseError {
            line: i + 1,
            message,
        };
        let content = raw.split('#').next().unwrap_or_default();
        let words: Vec<&str> = content.split_whitespace().collect();
        match words.split_first() {
            None => {}
            Some(_) if roots.is_some() => {
                return Err(error("nothing may follow `return`".to_string()));
            }
            Some((&"return", operands)) => {
                let ids: Result<Vec<Id>, String> = operands.iter().map(|w| p.operand(w)).collect();
                roots = Some(ids.map_err(error)?);
            }
            Some(_) => p.node(&words).map_err(error)?,
        }
    }
    match roots {
        Some(roots) => Ok((p.graph, roots)),
        None => Err(ParseError {
            line: text.lines().count().max(1),
            message: "no `return` line".to_string(),
        }),
    }
}

struct Parser<'e> {
    graph: Graph,
    ids: FxHashMap<u32, Id>,
    encodings: &'e dyn Fn(&str) -> Option<EncodingRef>,
}

/// Words after the operands: `key=value` pairs, and the bare `lo..hi` of a variable.
#[derive(Default)]
struct Fields<'t> {
    named: Vec<(&'t str, &'t str)>,
    interval: Option<&'t str>,
}

impl<'t> Fields<'t> {
    fn take(&mut self, key: &str) -> Option<&'t str> {
        let at = self.named.iter().position(|(k, _)| *k == key)?;
        Some(self.named.remove(at).1)
    }
}

impl Parser<'_> {
    fn node(&mut self, words: &[&str]) -> Result<(), String> {
        let [name, equals, op, dtype, rest @ ..] = words else {
            return Err("expected `%number = Op dtype …` or `return …`".to_string());
        };
        if *equals != "=" {
            return Err(format!("expected `=` after {name}"));
        }
        let number = number(name)?;
        let op = Op::by_name(op).ok_or_else(|| format!("no op is called `{op}`"))?;
        let dtype = dtype_of(dtype)?;
        let split = rest
            .iter()
            .position(|w| w.contains('=') || w.contains(".."))
            .unwrap_or(rest.len());
        let (operands, fields) = rest.split_at(split);
        let src = operands
            .iter()
            .map(|w| self.operand(w))
            .collect::<Result<Sources, String>>()?;
        let (enough, wanted) = match op.info().arity {
            Arity::Exact(n) => (src.len() == n as usize, format!("{n}")),
            Arity::AtLeast(n) => (src.len() >= n as usize, format!("at least {n}")),
        };
        if !enough {
            return Err(format!(
                "{} takes {wanted} operands, not {}",
                op.name(),
                src.len()
            ));
        }
        let arg = self.arg(fields)?;
        if self.ids.contains_key(&number) {
            return Err(format!("%{number} is defined twice"));
        }
        let id = self.graph.intern(Node {
            op,
            dtype,
            src,
            arg,
        });
        self.ids.insert(number, id);
        Ok(())
    }

    fn operand(&mut self, word: &str) -> Result<Id, String> {
        if word.starts_with('%') {
            let n = number(word)?;
            return self
                .ids
                .get(&n)
                .copied()
                .ok_or_else(|| format!("%{n} is not defined above"));
        }
        let (value, dtype) = word
            .rsplit_once(':')
            .ok_or_else(|| format!("`{word}` is neither `%number` nor `value:dtype`"))?;
        let dtype = dtype_of(dtype)?;
        let arg = match value.parse::<i64>() {
            Ok(v) => Arg::Int(v),
            Err(_) => Arg::Float(
                read_float(value, dtype.scalar)
                    .ok_or_else(|| format!("`{value}` is not a number"))?,
            ),
        };
        Ok(self.graph.intern(Node {
            op: Op::Const,
            dtype,
            src: Sources::new(),
            arg,
        }))
    }

    fn arg(&self, words: &[&str]) -> Result<Arg, String> {
        let mut f = Fields::default();
        for w in words {
            match w.split_once('=') {
                Some(pair) => f.named.push(pair),
                None if f.interval.is_none() && w.contains("..") => f.interval = Some(w),
                None => return Err(format!("`{w}` is not `key=value`")),
            }
        }
        let arg = self.known(&mut f)?;
        match (f.named.first(), f.interval) {
            (Some((key, _)), _) => Err(format!("`{key}=` does not belong here")),
            (None, Some(i)) => Err(format!("`{i}` does not belong here")),
            _ => Ok(arg),
        }
    }

    fn known(&self, f: &mut Fields) -> Result<Arg, String> {
        if let Some(v) = f.take("int") {
            return Ok(Arg::Int(whole(v)?));
        }
        if let Some(v) = f.take("float") {
            let bits =
                |v| read_float(v, Scalar::F64).ok_or_else(|| format!("`{v}` is not a number"));
            return match f.take("cap") {
                None => bits(v).map(Arg::Float),
                Some(cap) => Ok(Arg::Capped(bits(v)?, bits(cap)?)),
            };
        }
        if let Some(v) = f.take("reduce") {
            let op = match v {
                "add" => ReduceOp::Add,
                "max" => ReduceOp::Max,
                _ => return Err(format!("no reduction is called `{v}`")),
            };
            let axes: Vec<u8> = f.take("axes").map_or(Ok(Vec::new()), items)?;
            return Ok(Arg::Reduce(op, Axes::from_vec(axes)));
        }
        if let Some(v) = f.take("axes") {
            return Ok(Arg::Axes(Axes::from_vec(items(v)?)));
        }
        if let Some(v) = f.take("range") {
            let kind = f.take("kind").ok_or("a range needs `kind=`")?;
            let kind = RangeKind::ALL
                .iter()
                .find(|(_, n)| *n == kind)
                .ok_or(format!("no range kind `{kind}`"))?;
            return Ok(Arg::Range(whole(v)?, kind.0));
        }
        if let Some(v) = f.take("var") {
            let name = unescape(v).ok_or_else(|| format!("`{v}` is not a name"))?;
            let (lo, hi) = f
                .interval
                .take()
                .and_then(|i| i.split_once(".."))
                .ok_or("a variable needs `lo..hi`")?;
            let (lo, hi) = (whole(lo)?, whole(hi)?);
            return if lo <= hi {
                Ok(Arg::Var(Arc::from(name), lo, hi))
            } else {
                Err(format!("{lo}..{hi} is empty"))
            };
        }
        if let Some(v) = f.take("slot") {
            let slot = whole(v)?;
            return match f.take("enc") {
                None => Ok(Arg::Param(slot)),
                Some(e) => unescape(e)
                    .and_then(|name| (self.encodings)(&name))
                    .map(|e| Arg::Packed(slot, e))
                    .ok_or_else(|| format!("no encoding is called `{e}`")),
            };
        }
        if let Some(v) = f.take("table") {
            return Ok(Arg::Ints(items::<i32>(v)?.into()));
        }
        Ok(Arg::None)
    }
}

fn number(word: &str) -> Result<u32, String> {
    let digits = word
        .strip_prefix('%')
        .ok_or_else(|| format!("expected `%number`, not `{word}`"))?;
    whole(digits)
}

fn whole<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse()
        .map_err(|_| format!("`{word}` is not a whole number that fits here"))
}

fn items<T: std::str::FromStr>(word: &str) -> Result<Vec<T>, String> {
    let inner = word.strip_prefix('[').and_then(|w| w.strip_suffix(']'));
    let inner = inner.ok_or_else(|| format!("`{word}` is not a list `[…]`"))?;
    if inner.is_empty() {
        Ok(Vec::new())
    } else {
        inner.split(',').map(whole).collect()
    }
}

fn dtype_of(word: &str) -> Result<DType, String> {
    match word.parse::<DType>() {
        Ok(d) if d.lanes > 0 => Ok(d),
        _ => Err(format!("no dtype is called `{word}`")),
    }
}
