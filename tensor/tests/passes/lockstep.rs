//! Linear code on values with lanes: what statements compute, all threads of a workgroup one step after the other together. A value has one element for
//! every lane of every thread.
//!
//! What a statement reads must have been defined before it, in a loop that is still open. A stage is computed again only where an index that it says it
//! depends on has changed, as on a CPU; on a GPU every workgroup computes it.

use crate::kernels::{Kernels, Written};
use crate::memory::{Slots, Vars, get, put, slot};
use gristmill_compiler::testing::{Code, Statement};
use gristmill_uop::fold::{self, Value};
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};
use half::f16;
use std::collections::{BTreeMap, HashMap};

/// Lanes of a warp, and of them those that share a row.
const WARP: usize = 32;
const QUAD: usize = 4;

/// Elements: of each thread, its lanes.
type Elements = Vec<Value>;

/// Bodies of linear code, in their order, each in a graph of its own.
pub struct Linear {
    pub bodies: Vec<(Graph, Code)>,
    /// Is a stage computed by every workgroup?
    pub gpu: bool,
    /// The nests that they are of: they say which slots there are, and how large.
    pub nests: Kernels,
}

impl Linear {
    /// What the slots that are written hold afterwards.
    pub fn run(&self, slots: &Slots, vars: &Vars) -> Result<BTreeMap<u32, Written>, String> {
        let mut memory: HashMap<u32, Vec<u8>> = self.nests.memory(slots)?.into_iter().collect();
        let mut written = BTreeMap::new();
        for (g, code) in &self.bodies {
            let mut body = Body::new(g, vars, std::mem::take(&mut memory));
            body.launch(code, self.gpu)?;
            memory = body.memory;
            for (buffer, scalar) in body.written {
                written.insert(buffer, scalar);
            }
        }
        let out = written.into_iter().filter(|(slot, _)| !self.nests.between.contains(slot));
        Ok(out.map(|(slot, scalar)| (slot, Written { scalar, bytes: memory[&slot].clone() })).collect())
    }
}

/// Values as expressions with lanes, in place of those of the last nests.
pub struct Expressions {
    /// The graph of `nests`, and what was added to it.
    pub graph: Graph,
    /// Offset of the first lane, and value, in place of a nest's.
    pub values: Vec<(Id, Id)>,
    /// Ranges that are threads.
    pub threads: Vec<Id>,
    /// Ranges that are loops.
    pub loops: Vec<Id>,
    /// The last ones are those of `values`; those before fill stages.
    pub nests: Kernels,
}

impl Expressions {
    /// What the slots that are written hold afterwards.
    pub fn run(&self, slots: &Slots, vars: &Vars) -> Result<BTreeMap<u32, Written>, String> {
        let memory = self.nests.memory(slots)?.into_iter().collect();
        let mut body = Body::new(&self.graph, vars, memory);
        body.lazy = true;
        let g = &self.graph;
        let (stages, last) = self.nests.launches[0][0].split_at(self.nests.launches[0][0].len() - self.values.len());
        for &nest in stages {
            body.begin(&[])?;
            let closed = g[nest].src[3..].to_vec();
            body.for_all(&closed, &mut |b| {
                let (at, v) = (b.read(g[nest].src[1])?, b.read(g[nest].src[2])?);
                b.store(g[nest].src[0], &at, &v)
            })?;
        }
        for (&(at, value), &nest) in self.values.iter().zip(last) {
            body.begin(&self.threads)?;
            body.for_all(&self.loops, &mut |b| {
                let (at, v) = (b.read(at)?, b.read(value)?);
                b.store(g[nest].src[0], &at, &v)
            })?;
        }
        let out = body.written.into_iter();
        Ok(out.map(|(slot, scalar)| (slot, Written { scalar, bytes: body.memory[&slot].clone() })).collect())
    }
}

/// Where bytes are.
#[derive(Clone, Copy)]
enum Place {
    Slot(u32),
    Local(Id),
}

/// One body while it runs.
struct Body<'a> {
    g: &'a Graph,
    vars: &'a Vars,
    memory: HashMap<u32, Vec<u8>>,
    locals: HashMap<Id, Vec<u8>>,
    written: BTreeMap<u32, Scalar>,
    /// Elements of what is defined, and of open ranges.
    known: HashMap<Id, Elements>,
    /// What a reduction is called behind its loop.
    results: HashMap<Id, Id>,
    threads: usize,
    /// Threads that a range counts, and how many threads one step of it is.
    steps: HashMap<Id, (usize, usize)>,
    /// Is what has not been defined computed where it is read?
    lazy: bool,
}

impl<'a> Body<'a> {
    fn new(g: &'a Graph, vars: &'a Vars, memory: HashMap<u32, Vec<u8>>) -> Body<'a> {
        Body {
            g,
            vars,
            memory,
            locals: HashMap::new(),
            written: BTreeMap::new(),
            known: HashMap::new(),
            results: HashMap::new(),
            threads: 1,
            steps: HashMap::new(),
            lazy: false,
        }
    }

    /// The number of iterations of a range, which is the same for all threads.
    fn bound(&mut self, range: Id) -> Result<usize, String> {
        let all = self.read(self.g[range].src[0])?;
        let first = all[0].int();
        match all.iter().all(|v| v.int() == first) {
            true => Ok(first as usize),
            false => Err("threads loop differently often".into()),
        }
    }
    fn set(&mut self, range: Id, i: usize) {
        self.known.insert(range, vec![Value::Int(i as i64); self.threads]);
    }
    /// Does something for every combination of these ranges.
    fn for_all(&mut self, ranges: &[Id], each: &mut dyn FnMut(&mut Self) -> Result<(), String>) -> Result<(), String> {
        let Some((&first, rest)) = ranges.split_first() else { return each(self) };
        for i in 0..self.bound(first)? {
            self.set(first, i);
            self.for_all(rest, each)?;
        }
        Ok(())
    }

    fn launch(&mut self, code: &Code, gpu: bool) -> Result<(), String> {
        let mut nests: Vec<&[Statement]> = Vec::new();
        let mut rest = &code.statements[..];
        while !rest.is_empty() {
            let end = end_of(rest);
            nests.push(&rest[..=end]);
            rest = &rest[end + 1..];
        }
        let mut fresh: HashMap<usize, Vec<Elements>> = HashMap::new();
        self.for_all(&code.globals, &mut |b| {
            for (number, nest) in nests.iter().enumerate() {
                let Statement::Nest { staged, globals, threads, .. } = &nest[0] else {
                    return Err("statements outside nests".into());
                };
                let (global, one) = (b.global(&code.globals), b.global(globals));
                if *staged && !gpu && fresh.get(&number) == Some(&one) {
                    continue;
                }
                fresh.insert(number, one);
                b.begin(threads)?;
                for (&r, v) in code.globals.iter().zip(global) {
                    b.known.insert(r, vec![v[0]; b.threads]);
                }
                b.statements(&nest[1..nest.len() - 1])?;
                b.end(&code.globals);
            }
            Ok(())
        })
    }
    /// The values of workgroup indices.
    fn global(&self, ranges: &[Id]) -> Vec<Elements> {
        ranges.iter().map(|r| vec![self.known[r][0]]).collect()
    }
    /// The threads of a nest, counted row-major over these ranges.
    fn begin(&mut self, threads: &[Id]) -> Result<(), String> {
        self.threads = 1;
        self.steps.clear();
        let bounds = threads.iter().map(|&r| self.bound(r)).collect::<Result<Vec<_>, _>>()?;
        let total: usize = bounds.iter().product();
        let mut step = total;
        self.threads = total;
        for (&r, &n) in threads.iter().zip(&bounds) {
            step /= n;
            self.steps.insert(r, (n, step));
            self.known.insert(r, (0..total).map(|t| Value::Int((t / step % n) as i64)).collect());
        }
        Ok(())
    }
    /// Nothing of a nest is known behind it but the workgroup's indices.
    fn end(&mut self, globals: &[Id]) {
        let kept: Vec<(Id, Elements)> = globals.iter().map(|&r| (r, vec![self.known[&r][0]])).collect();
        self.known = kept.into_iter().collect();
        self.results.clear();
        self.threads = 1;
    }

    fn statements(&mut self, all: &[Statement]) -> Result<(), String> {
        let mut at = 0;
        while at < all.len() {
            match &all[at] {
                Statement::Define(id) => {
                    let v = self.node(*id)?;
                    self.known.insert(*id, v);
                }
                Statement::Loop(range) => {
                    let end = at + end_of(&all[at..]);
                    for i in 0..self.bound(*range)? {
                        let outside: Vec<Id> = self.known.keys().copied().collect();
                        self.set(*range, i);
                        self.statements(&all[at + 1..end])?;
                        self.known.retain(|id, _| outside.contains(id));
                    }
                    at = end;
                }
                Statement::Accumulator(acc) => {
                    let first = self.read(self.g[*acc].src[0])?;
                    self.known.insert(*acc, first);
                    self.results.insert(self.g[*acc].src[1], *acc);
                }
                Statement::Accumulate(acc, update) => {
                    let v = self.node(*update)?;
                    self.known.insert(*acc, v);
                }
                Statement::Write(buffer, offset, value) => {
                    let (at, v) = (self.read(*offset)?, self.read(*value)?);
                    self.store(*buffer, &at, &v)?;
                }
                Statement::WideWrite(buffer, offset, bytes, values) => {
                    let at = self.read(*offset)?;
                    let all = values.iter().map(|&v| self.read(v)).collect::<Result<Vec<_>, _>>()?;
                    let v: Elements = (0..self.threads).flat_map(|t| all.iter().map(move |v| v[t])).collect();
                    let size = self.g.scalar(*buffer).bytes() * values.len();
                    if size != *bytes
                        || at.iter().any(|a| !(a.int() * self.g.unit_bytes(*buffer)).rem_euclid(*bytes as i64).eq(&0))
                    {
                        return Err(format!("a write of {bytes} bytes of {size}, or one that is not aligned"));
                    }
                    self.store(*buffer, &at, &v)?;
                }
                Statement::Wide(buffer, offset, bytes, parts) => {
                    let at = self.read(*offset)?;
                    for &(part, byte) in parts {
                        let v = self.load(*buffer, &at, byte, part)?;
                        self.known.insert(part, v);
                    }
                    if at.iter().any(|a| (a.int() * self.g.unit_bytes(*buffer)).rem_euclid(*bytes as i64) != 0) {
                        return Err(format!("a load of {bytes} bytes that is not aligned"));
                    }
                }
                Statement::End | Statement::Nest { .. } => return Err("an end, or a nest, inside a nest".into()),
            }
            at += 1;
        }
        Ok(())
    }

    /// The elements of an operand.
    fn read(&mut self, id: Id) -> Result<Elements, String> {
        let id = self.results.get(&id).copied().unwrap_or(id);
        if let Some(v) = self.known.get(&id) {
            return Ok(v.clone());
        }
        let n = &self.g[id];
        let all = |v: Value| vec![v; self.threads * n.dtype.lanes as usize];
        match (n.op, &n.arg) {
            (Op::Const, Arg::Int(v)) => Ok(all(Value::Int(*v))),
            (Op::Const, Arg::Float(b)) => Ok(all(Value::Float(f64::from_bits(*b)))),
            (Op::Var, Arg::Var(name, ..)) => {
                let v = self.vars.iter().find(|v| *v.0 == **name).ok_or_else(|| format!("no value of {name}"))?;
                Ok(all(Value::Int(v.1)))
            }
            (Op::Reduce, Arg::Reduce(op, _)) if self.lazy => self.reduced(id, *op),
            _ if self.lazy => self.node(id),
            _ => Err(format!("is read before it is defined: {}", gristmill_uop::text::print_node(self.g, id))),
        }
    }
    /// A reduction where nothing says in which loop: over its ranges, one after the other.
    fn reduced(&mut self, id: Id, op: ReduceOp) -> Result<Elements, String> {
        let (src, scalar) = (self.g[id].src.clone(), self.g.scalar(id));
        let mut sum: Option<Elements> = None;
        self.for_all(&src[1..], &mut |b| {
            let v = b.read(src[0])?;
            sum = Some(match sum.take() {
                Some(s) => s.iter().zip(&v).map(|(&a, &b)| combined(op, a, b, scalar)).collect(),
                None => v,
            });
            Ok(())
        })?;
        sum.ok_or_else(|| "a sum of nothing".to_string())
    }

    fn node(&mut self, id: Id) -> Result<Elements, String> {
        let n = self.g[id].clone();
        let lanes = n.dtype.lanes as usize;
        if n.op == Op::Load {
            let at = self.read(n.src[1])?;
            return self.load(n.src[0], &at, 0, id);
        }
        if matches!(n.op, Op::Const) {
            return self.read(id);
        }
        if n.op == Op::Lanes {
            return Ok((0..self.threads).flat_map(|_| (0..lanes).map(|l| Value::Int(l as i64))).collect());
        }
        let values = if n.op == Op::Fold { &n.src[..1] } else { &n.src[..] };
        let x = values.iter().map(|&s| self.read(s)).collect::<Result<Vec<Elements>, _>>()?;
        let of_thread = |x: &Elements, t: usize, l: usize| x[t * (x.len() / self.threads) + l];
        let each = |f: &dyn Fn(usize, usize) -> Value| -> Elements {
            (0..self.threads).flat_map(|t| (0..lanes).map(move |l| (t, l))).map(|(t, l)| f(t, l)).collect()
        };
        Ok(match (n.op, &n.arg) {
            (Op::Splat, _) => each(&|t, _| of_thread(&x[0], t, 0)),
            (Op::Pack, _) => each(&|t, l| of_thread(&x[l], t, 0)),
            (Op::Part, _) => each(&|t, _| of_thread(&x[0], t, of_thread(&x[1], t, 0).int() as usize)),
            (Op::Fold, Arg::Reduce(op, _)) => match n.src.get(1) {
                Some(lane) => self.folded(&x[0], *lane, *op, n.dtype.scalar),
                None => {
                    let width = x[0].len() / self.threads;
                    let fold = |a, b| combined(*op, a, b, n.dtype.scalar);
                    each(&|t, _| (0..width).map(|l| of_thread(&x[0], t, l)).reduce(fold).expect("lanes"))
                }
            },
            (Op::Mma, arg) => {
                let dot = |a: Value, b: Value| match arg {
                    Arg::Int(_) => fold::dot4(a.int(), b.int(), 0) as f64,
                    _ => fold::signed_dot4(a.int(), b.int(), 0) as f64,
                };
                self.product(&x, &dot).into_iter().map(|v| Value::Int(v as i64)).collect()
            }
            (Op::MmaHalf, _) => {
                let half = |v: Value, i: i64| f16::from_bits((v.int() >> (16 * i) & 0xffff) as u16).to_f64();
                let dot = |a: Value, b: Value| (0..2).map(|i| half(a, i) * half(b, i)).sum();
                let add = |(a, b): (f64, &Value)| Value::Float(a + b.float()).stored_as(Scalar::F32);
                self.product(&x[..6], &dot).into_iter().zip(&x[6]).map(add).collect()
            }
            (Op::Bitcast, _) => {
                let from = self.g.scalar(n.src[0]);
                each(&|t, l| of_thread(&x[0], t, l).bitcast(from, n.dtype.scalar))
            }
            (Op::Table, Arg::Ints(table)) => each(&|t, l| {
                // Of an index only the bits count that the table has entries for.
                let entry = table[of_thread(&x[0], t, l).int() as usize % table.len()];
                if n.dtype.scalar.is_float() { Value::Float(entry.into()) } else { Value::Int(entry.into()) }
            }),
            (Op::Table4, Arg::Ints(table)) => each(&|t, l| {
                let word = of_thread(&x[0], t, l).int();
                Value::Int((0..4).map(|i| i64::from(table[(word >> (8 * i) & 15) as usize]) << (8 * i)).sum())
            }),
            _ => {
                let mut out = Elements::new();
                for t in 0..self.threads {
                    for l in 0..lanes {
                        let x: Vec<Value> = x.iter().map(|x| of_thread(x, t, l)).collect();
                        let v = fold::apply(n.op, &x, n.dtype.scalar);
                        let text = || gristmill_uop::text::print_node(self.g, id);
                        out.push(v.ok_or_else(|| format!("has no value of {x:?}: {}", text()))?);
                    }
                }
                out
            }
        })
    }

    /// What the threads along a range have, combined.
    fn folded(&self, x: &Elements, lane: Id, op: ReduceOp, scalar: Scalar) -> Elements {
        let (count, step) = self.steps[&lane];
        let of = |t: usize| {
            let first = t - t / step % count * step;
            (0..count).map(|i| x[first + i * step]).reduce(|a, b| combined(op, a, b, scalar)).expect("threads")
        };
        (0..self.threads).map(of).collect()
    }
    /// A warp's product: lane `4g + t` has words `t` of rows `g` and `g + 8` and of column `g`, and gets the sums of rows `g + 8i` and columns `2t + j`.
    fn product(&self, x: &[Elements], dot: &dyn Fn(Value, Value) -> f64) -> Vec<f64> {
        let words = x.len() / 3;
        let (rows, columns) = x.split_at(2 * words);
        let one = |t: usize, number: usize| {
            let (warp, lane) = (t / WARP * WARP, t % WARP);
            let (i, j) = (number / 2, number % 2);
            let (row, column) = (lane / QUAD, lane % QUAD * 2 + j);
            let terms = (0..words).flat_map(|w| (0..QUAD).map(move |q| (w, q)));
            terms.map(|(w, q)| dot(rows[2 * w + i][warp + row * QUAD + q], columns[w][warp + column * QUAD + q])).sum()
        };
        (0..self.threads).flat_map(|t| (0..4).map(move |n| (t, n))).map(|(t, n)| one(t, n)).collect()
    }

    fn place(&self, buffer: Id) -> Place {
        slot(self.g, buffer).map_or(Place::Local(buffer), Place::Slot)
    }
    /// The bytes of a buffer; a stage's begin as NaN.
    fn bytes(&mut self, place: Place) -> Result<&mut Vec<u8>, String> {
        match place {
            Place::Slot(slot) => self.memory.get_mut(&slot).ok_or_else(|| format!("nothing is known of slot {slot}")),
            Place::Local(id) => {
                let size = self.g.max_of(self.g[id].src[0]) as usize * self.g.scalar(id).bytes();
                Ok(self.locals.entry(id).or_insert_with(|| vec![0xff; size]))
            }
        }
    }
    fn load(&mut self, buffer: Id, at: &Elements, byte: usize, id: Id) -> Result<Elements, String> {
        let (unit, n, threads) = (self.g.unit_bytes(buffer) as usize, &self.g[id], self.threads);
        let (scalar, lanes) = (n.dtype.scalar, n.dtype.lanes as usize);
        let bytes = self.bytes(self.place(buffer))?;
        let mut out = Elements::new();
        for at in &at[..threads] {
            for l in 0..lanes {
                let from = at.int() as usize * unit + byte + l * scalar.bytes();
                if from + scalar.bytes() > bytes.len() {
                    return Err(format!("a load at byte {from} of {}", bytes.len()));
                }
                let v = get(bytes, from, scalar);
                out.push(if scalar.is_float() { Value::Float(v) } else { Value::Int(v as i64) });
            }
        }
        Ok(out)
    }
    fn store(&mut self, buffer: Id, at: &Elements, v: &Elements) -> Result<(), String> {
        let scalar = self.g.scalar(buffer);
        self.write(self.place(buffer), scalar, at, v, self.g.unit_bytes(buffer) as usize)
    }
    fn write(&mut self, place: Place, scalar: Scalar, at: &Elements, v: &Elements, unit: usize) -> Result<(), String> {
        let (threads, lanes) = (self.threads, v.len() / self.threads);
        if let Place::Slot(slot) = place {
            self.written.insert(slot, scalar);
        }
        let bytes = self.bytes(place)?;
        for (t, at) in at.iter().enumerate().take(threads) {
            for l in 0..lanes {
                let to = at.int() as usize * unit + l * scalar.bytes();
                if to + scalar.bytes() > bytes.len() {
                    return Err(format!("a write at byte {to} of {}", bytes.len()));
                }
                put(bytes, to, scalar, v[t * lanes + l].stored_as(scalar));
            }
        }
        Ok(())
    }
}

fn combined(op: ReduceOp, a: Value, b: Value, scalar: Scalar) -> Value {
    fold::apply(op.combine(), &[a, b], scalar).expect("numbers")
}

/// Where the block that begins here ends.
fn end_of(all: &[Statement]) -> usize {
    let mut depth = 0;
    for (i, s) in all.iter().enumerate() {
        match s {
            Statement::Loop(_) | Statement::Nest { .. } => depth += 1,
            Statement::End => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    unreachable!("a block without an end")
}
