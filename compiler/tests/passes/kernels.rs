//! Runs nests on the interpreter.

use crate::memory::{Slots, Vars, Wanted, slot};
use crate::show::stripped;
use gristmill_backend::interp::InterpDevice;
use gristmill_backend::interp::linear::LinearDevice;
use gristmill_compiler::testing::{
    KernelCode, Layout, PackedRows, Packing, global_ranges, prepack,
};
use gristmill_runtime::{Buffer, Device, Kernel, Launch, Memory};
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::program::{Access, Extent, Param, Program};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Scalar, Sources};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A packed slot in another layout than its file's.
#[derive(Clone)]
pub struct LaidOut {
    pub slot: u32,
    pub encoding: EncodingRef,
    pub layout: Layout,
    pub dims: Vec<i64>,
}

/// Linear code of one kernel, with its own graph.
pub struct Lowered {
    pub program: Program,
    pub graph: Graph,
    pub code: KernelCode,
}

/// Linear code of consecutive kernels.
pub struct Linear {
    pub kernels: Vec<Lowered>,
    /// The nests that it was lowered from, which define the slots and their sizes.
    pub nests: Kernels,
}

impl Linear {
    /// Linear code of the only launch of these nests.
    pub fn new(nests: Kernels, graph: Graph, code: KernelCode) -> Linear {
        let mut program = nests.program(&nests.launches[0]);
        program.threads = code.threads;
        Linear {
            kernels: vec![Lowered {
                program,
                graph,
                code,
            }],
            nests,
        }
    }
    /// Runs the kernels and returns the contents of written slots.
    pub fn run(&self, slots: &Slots, vars: &Vars) -> Result<BTreeMap<u32, Written>, String> {
        let device = LinearDevice::new(Target::cpu("plain", 1, 1));
        let one = |k: &Lowered, buffer: &dyn Fn(u32) -> Option<Buffer>| {
            replayed(
                &device,
                device.kernel(&k.program, k.graph.clone(), k.code.clone()),
                buffer,
                vars,
            )
        };
        self.nests.run_on(&device, slots, &|buffer| {
            self.kernels.iter().try_for_each(|k| one(k, buffer))
        })
    }
}

/// Runs launches on the buffers of slots.
type Run<'a> = dyn Fn(&dyn Fn(u32) -> Option<Buffer>) -> Result<(), String> + 'a;

/// Launches, each with bodies of nests.
#[derive(Clone)]
pub struct Kernels {
    pub graph: Graph,
    pub launches: Vec<Vec<Vec<Id>>>,
    pub layouts: Vec<LaidOut>,
    /// Slots that hold values of tensor-level nodes of the same graph.
    pub filled: Vec<(u32, Id)>,
    /// Temporary slots between kernels, which are not compared.
    pub between: Vec<u32>,
}

/// Bytes of a slot after a run.
pub struct Written {
    pub scalar: Scalar,
    pub bytes: Vec<u8>,
}

impl Kernels {
    /// Nests of one kernel.
    pub fn new(graph: Graph, nests: Vec<Id>) -> Kernels {
        Kernels {
            graph,
            launches: vec![vec![nests]],
            layouts: vec![],
            filled: vec![],
            between: vec![],
        }
    }
    /// Wraps values in nests that store them for all of these ranges.
    pub fn of_values(mut graph: Graph, values: &[Id], ranges: &[FixedRange]) -> Kernels {
        let nests = values
            .iter()
            .enumerate()
            .map(|(i, &v)| stored(&mut graph, v, 1000 + i as u32, ranges))
            .collect();
        Kernels::new(graph, nests)
    }
    fn nests(&self) -> Vec<Id> {
        self.launches.iter().flatten().flatten().copied().collect()
    }
    /// One launch as a kernel in its own graph.
    pub fn root(&self, bodies: &[Vec<Id>]) -> (Graph, Id) {
        let nests: Vec<Id> = bodies.iter().flatten().copied().collect();
        let (mut g, all) = stripped(&self.graph, &nests);
        let mut rest = &all[..];
        let node = |g: &mut Graph, op, src: &[Id]| {
            let dtype = g[src[0]].dtype;
            g.intern(Node {
                op,
                dtype,
                src: Sources::from_slice(src),
                arg: Arg::None,
            })
        };
        let mut of = Vec::new();
        for body in bodies {
            let (mine, others) = rest.split_at(body.len());
            rest = others;
            of.push(node(&mut g, Op::Body, mine));
        }
        let root = node(&mut g, Op::Kernel, &of);
        (g, root)
    }
    /// One launch as an uncompiled program.
    pub fn program(&self, bodies: &[Vec<Id>]) -> Program {
        let (g, root) = self.root(bodies);
        program(g, root)
    }
    /// Bytes that loads and stores may touch in each slot, from bounds of their offsets.
    fn touched(&self) -> Result<BTreeMap<u32, Wanted>, String> {
        let g = &self.graph;
        let mut out: BTreeMap<u32, Wanted> = BTreeMap::new();
        for id in g.toposort(&self.nests()) {
            let n = &g[id];
            if !matches!(n.op, Op::Load | Op::Store) {
                continue;
            }
            let Some(slot) = slot(g, n.src[0]) else {
                continue;
            };
            let bytes = match (n.op, &g[n.src[0]].arg) {
                (Op::Store, _) => g[n.src[2]].dtype.scalar.bytes(),
                _ => n.dtype.scalar.bytes(),
            };
            let Some((_, most)) = g.bounds(n.src[1]) else {
                continue;
            };
            let bytes = most
                .saturating_mul(g.unit_bytes(n.src[0]))
                .saturating_add(bytes as i64);
            if bytes > 1 << 24 {
                // A data-dependent address; another access or the case defines the size.
                continue;
            }
            let packed = matches!(g[n.src[0]].arg, Arg::Packed(..));
            let scalar = g.scalar(n.src[0]);
            let known = out.entry(slot).or_insert(Wanted {
                scalar,
                packed,
                bytes: 0,
            });
            known.bytes = known
                .bytes
                .max((bytes as usize).next_multiple_of(scalar.bytes()));
        }
        Ok(out)
    }
    fn is_own(&self, slot: u32) -> bool {
        self.between.contains(&slot) || self.filled.iter().any(|f| f.0 == slot)
    }
    /// Slots that must be filled before a run.
    pub fn wanted(&self) -> Result<BTreeMap<u32, Wanted>, String> {
        let mut all = self.touched()?;
        all.retain(|slot, _| !self.is_own(*slot) && !self.layouts.iter().any(|l| l.slot == *slot));
        // Slots that are only written have no initial value.
        let g = &self.graph;
        let read: Vec<u32> = g
            .toposort(&self.nests())
            .into_iter()
            .filter(|&n| g[n].op == Op::Load)
            .filter_map(|n| slot(g, g[n].src[0]))
            .collect();
        all.retain(|slot, _| read.contains(slot));
        Ok(all)
    }
    /// All slots before a run: inputs in their layouts, and space for outputs.
    pub fn memory(&self, slots: &Slots) -> Result<Slots, String> {
        let mut out = Slots::new();
        for (&slot, bytes) in slots {
            let bytes = match self.layouts.iter().find(|l| l.slot == slot) {
                Some(l) => packed(l, bytes)?,
                None => bytes.clone(),
            };
            out.insert(slot, bytes);
        }
        for (slot, w) in self.touched()? {
            out.entry(slot).or_insert_with(|| vec![0xff; w.bytes]);
        }
        Ok(out)
    }
    /// Runs all launches and returns the contents of written slots.
    pub fn run(&self, slots: &Slots, vars: &Vars) -> Result<BTreeMap<u32, Written>, String> {
        let device = InterpDevice::new();
        self.run_on(&device, slots, &|buffer| {
            self.launches
                .iter()
                .try_for_each(|bodies| launch(&device, self.program(bodies), buffer, vars))
        })
    }
    fn run_on(
        &self,
        device: &dyn Device,
        slots: &Slots,
        run: &Run,
    ) -> Result<BTreeMap<u32, Written>, String> {
        let mut buffers: BTreeMap<u32, Buffer> = BTreeMap::new();
        for (slot, bytes) in self.memory(slots)? {
            let buffer = device
                .alloc(bytes.len(), Memory::Scratch)
                .map_err(|e| e.to_string())?;
            device
                .write(&buffer, 0, &bytes)
                .map_err(|e| e.to_string())?;
            buffers.insert(slot, buffer);
        }
        run(&|slot| buffers.get(&slot).cloned())?;
        let g = &self.graph;
        let mut out = BTreeMap::new();
        for nest in self.nests() {
            let buffer = g[nest].src[0];
            let Some(slot) = slot(g, buffer).filter(|s| !self.between.contains(s)) else {
                continue;
            };
            let mut bytes = vec![0; buffers[&slot].len()];
            device
                .read(&buffers[&slot], 0, &mut bytes)
                .map_err(|e| e.to_string())?;
            out.insert(
                slot,
                Written {
                    scalar: g.scalar(buffer),
                    bytes,
                },
            );
        }
        Ok(out)
    }
}

/// A program of the kernel with that root.
fn program(mut g: Graph, root: Id) -> Program {
    let mut groups = g.int(0);
    for body in g[root].src.clone() {
        let nests = g[body].src.to_vec();
        let one = g.int(1);
        let bounds: Vec<Id> = global_ranges(&g, &nests)
            .iter()
            .map(|&r| g[r].src[0])
            .collect();
        let count = bounds.iter().fold(one, |p, &b| g.mul(p, b));
        groups = g.add(groups, count);
    }
    let order = g.toposort(&[root, groups]);
    let mut slots: Vec<u32> = order.iter().filter_map(|&n| slot(&g, n)).collect();
    slots.sort_unstable();
    slots.dedup();
    let params = slots.into_iter().map(|slot| Param {
        slot,
        access: Access::ReadWrite,
        extent: Extent::Fixed(0),
    });
    let mut vars: Vec<Arc<str>> = Vec::new();
    for n in order {
        if let Arg::Var(name, ..) = &g[n].arg
            && !vars.contains(name)
        {
            vars.push(name.clone());
        }
    }
    Program {
        params: params.collect(),
        vars,
        ..Program::new("r_case", Arc::new(g), root, groups)
    }
}

fn launch(
    device: &InterpDevice,
    program: Program,
    buffer: &dyn Fn(u32) -> Option<Buffer>,
    vars: &Vars,
) -> Result<(), String> {
    let kernel = device
        .load(&[program], &|_, _| {})
        .map_err(|e| e.to_string())?
        .remove(0);
    replayed(device, kernel, buffer, vars)
}

/// Runs a kernel once.
fn replayed(
    device: &dyn Device,
    kernel: Arc<dyn Kernel>,
    buffer: &dyn Fn(u32) -> Option<Buffer>,
    vars: &Vars,
) -> Result<(), String> {
    let found =
        |p: &Param| buffer(p.slot).ok_or_else(|| format!("nothing is known of slot {}", p.slot));
    let buffers = kernel
        .program()
        .params
        .iter()
        .map(found)
        .collect::<Result<_, _>>()?;
    let vars: Vec<(&str, i64)> = vars.iter().map(|(n, v)| (n.as_str(), *v)).collect();
    let launch = Launch {
        kernel,
        buffers,
        level: 0,
    };
    let mut replay = device.capture(vec![launch]).map_err(|e| e.to_string())?;
    replay.replay(&vars).map_err(|e| e.to_string())
}

/// Repacks a weight with the kernel that loading uses.
fn packed(l: &LaidOut, file: &[u8]) -> Result<Vec<u8>, String> {
    let packing = Packing::for_encoding(l.encoding).ok_or("a layout of a format that has none")?;
    let columns = *l.dims.last().expect("rows") as usize;
    let rows: i64 = l.dims[..l.dims.len() - 1].iter().product();
    let of = PackedRows {
        encoding: l.encoding,
        packing: &packing,
        from: Layout::File,
        layout: l.layout,
        columns,
        part: None,
    };
    let program = prepack(&of, &Target::cpu("plain", 1, 1), None);
    let device = InterpDevice::new();
    let fail = |e: gristmill_runtime::Error| e.to_string();
    let size = l
        .layout
        .bytes(l.encoding, &l.dims)
        .ok_or("dims that have no such layout")?;
    let [from, to] = [file.len(), size].map(|n| device.alloc(n, Memory::Scratch));
    let (from, to) = (from.map_err(fail)?, to.map_err(fail)?);
    device.write(&from, 0, file).map_err(fail)?;
    let vars = vec![("groups".to_string(), rows / l.layout.lanes())];
    launch(
        &device,
        program,
        &|slot| Some(if slot == 0 { from.clone() } else { to.clone() }),
        &vars,
    )?;
    let mut out = vec![0; size];
    device.read(&to, 0, &mut out).map_err(fail)?;
    Ok(out)
}

/// A range independent of any graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FixedRange {
    number: u32,
    bound: i64,
    pub kind: RangeKind,
}

/// The ranges that any of these values depends on, by number.
pub fn ranges(g: &Graph, values: &[Id]) -> Vec<FixedRange> {
    let of = |&r: &Id| FixedRange {
        number: g.range_number(r),
        bound: g.max_of(g[r].src[0]),
        kind: g.range_kind(r).expect("a range"),
    };
    let mut all: Vec<FixedRange> = values
        .iter()
        .flat_map(|&v| g.free_ranges(v))
        .map(of)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The row-major offset over these ranges, and the ranges.
pub fn offset(g: &mut Graph, ranges: &[FixedRange]) -> (Id, Vec<Id>) {
    let (mut at, mut all) = (g.int(0), Vec::new());
    for r in ranges {
        let bound = g.int(r.bound);
        let range = g.range(bound, r.number, r.kind);
        at = g.mul(at, bound);
        at = g.add(at, range);
        all.push(range);
    }
    (at, all)
}

/// A nest that stores `value` for all of these ranges, row-major.
fn stored(g: &mut Graph, value: Id, slot: u32, ranges: &[FixedRange]) -> Id {
    let (at, mut closed) = offset(g, ranges);
    closed.retain(|&r| g.range_kind(r) != Some(RangeKind::Global));
    let scalar = g.scalar(value);
    let buffer = g.param(slot, &[], scalar);
    g.store(buffer, at, value, &closed)
}
