//! Kernels written by hand on the interpreter, compared with plain Rust.

use gristmill_backend::interp::InterpDevice;
use gristmill_runtime::{Buffer, Device, Error, Launch, Memory};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::op::{Op, RangeKind, ReduceOp};
use gristmill_uop::program::{Access, Extent, Param, Program};
use gristmill_uop::{Arg, Graph, Id, Node, Sources};
use half::f16;
use std::sync::Arc;

fn param(g: &mut Graph, slot: u32, s: Scalar) -> Id {
    g.intern(Node {
        op: Op::Param,
        dtype: s.one(),
        src: Sources::new(),
        arg: Arg::Param(slot),
    })
}
fn packed(g: &mut Graph, slot: u32, e: EncodingRef) -> Id {
    g.intern(Node {
        op: Op::Param,
        dtype: Scalar::F32.one(),
        src: Sources::new(),
        arg: Arg::Packed(slot, e),
    })
}
fn local(g: &mut Graph, number: i64, elements: i64, s: Scalar) -> Id {
    let n = g.int(elements);
    g.intern(Node {
        op: Op::Local,
        dtype: s.one(),
        src: Sources::from_slice(&[n]),
        arg: Arg::Int(number),
    })
}
fn range(g: &mut Graph, bound: i64, number: u32, kind: RangeKind) -> Id {
    let bound = g.int(bound);
    g.range(bound, number, kind)
}
fn scaled(g: &mut Graph, x: Id, c: i64) -> Id {
    let c = g.int(c);
    g.mul(x, c)
}
fn kernel(g: &mut Graph, bodies: &[&[Id]]) -> Id {
    let node = |op, src: &[Id]| Node {
        op,
        dtype: Scalar::F32.one(),
        src: Sources::from_slice(src),
        arg: Arg::None,
    };
    let bodies: Vec<Id> = bodies
        .iter()
        .map(|nests| g.intern(node(Op::Body, nests)))
        .collect();
    g.intern(node(Op::Kernel, &bodies))
}

/// A kernel on the interpreter with its buffers.
struct Run {
    device: InterpDevice,
    launch: Launch,
}

impl Run {
    /// Loads the kernel; buffer `i` is slot `i`.
    fn new(g: Graph, root: Id, groups: Id, buffers: &[&[u8]]) -> Result<Run, Error> {
        let program = Program {
            params: (0..buffers.len() as u32)
                .map(|slot| Param {
                    slot,
                    access: Access::ReadWrite,
                    extent: Extent::Fixed(0),
                })
                .collect(),
            ..Program::new("r_test", Arc::new(g), root, groups)
        };
        let device = InterpDevice::new();
        let kernel = device.load(&[program], &|_, _| {})?.remove(0);
        let put = |data: &&[u8]| -> Result<Buffer, Error> {
            let buffer = device.alloc(data.len(), Memory::Scratch)?;
            device.write(&buffer, 0, data)?;
            Ok(buffer)
        };
        let buffers = buffers.iter().map(put).collect::<Result<_, _>>()?;
        Ok(Run {
            device,
            launch: Launch {
                kernel,
                buffers,
                level: 0,
            },
        })
    }
    fn run(&self, vars: &[(&str, i64)]) -> Result<f64, Error> {
        Ok(self
            .device
            .capture(vec![self.launch.clone()])?
            .replay_timed(vars)?[0])
    }
    fn bytes(&self, slot: usize) -> Vec<u8> {
        let mut data = vec![0; self.launch.buffers[slot].len()];
        self.device
            .read(&self.launch.buffers[slot], 0, &mut data)
            .unwrap();
        data
    }
    fn floats(&self, slot: usize) -> Vec<f32> {
        self.bytes(slot)
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }
}

fn bytes_of(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}
fn longs(x: &[i64]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Numbers between -1 and 1 (splitmix64).
struct Random(u64);
impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d049bb133111eb);
        z ^ z >> 31
    }
    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0)
            .collect()
    }
}

/// `y = W x` with packed rows; the reduction is over blocks, halves of 16 and lanes.
fn matvec(e: EncodingRef, rows: i64, columns: i64) -> (Graph, Id, Id) {
    let mut g = Graph::new();
    let (w, x, y) = (
        packed(&mut g, 0, e),
        param(&mut g, 1, Scalar::F32),
        param(&mut g, 2, Scalar::F32),
    );
    let row = range(&mut g, rows, 0, RangeKind::Global);
    let elements = e.elements as i64;
    let ranges = [
        range(&mut g, columns / elements, 1, RangeKind::Reduce),
        range(&mut g, elements / 32, 2, RangeKind::Reduce),
        range(&mut g, 2, 3, RangeKind::Unroll),
        range(&mut g, 16, 4, RangeKind::VectorReduce),
    ];
    let parts = [
        scaled(&mut g, ranges[1], 32),
        scaled(&mut g, ranges[2], 16),
        ranges[3],
    ];
    let k = g.add(parts[0], parts[1]);
    let k = g.add(k, parts[2]);
    let base = scaled(&mut g, row, columns / elements);
    let base = g.add(base, ranges[0]);
    let base = scaled(&mut g, base, e.bytes as i64);
    let weight = e.decode(&mut g, w, base, k);
    let at = scaled(&mut g, ranges[0], elements);
    let at = g.add(at, k);
    let xv = g.load(x, at, Scalar::F32);
    let product = g.mul(weight, xv);
    let sum = g.reduce_ranges(product, &ranges, ReduceOp::Add);
    let store = g.store(y, row, sum, &[]);
    let root = kernel(&mut g, &[&[store]]);
    let groups = g.int(rows);
    (g, root, groups)
}

#[test]
fn matvec_of_q4_0() {
    let (rows, columns) = (5, 96);
    let mut random = Random(1);
    let x = random.floats(columns);
    let mut w = Vec::new();
    for _ in 0..rows * columns / 32 {
        w.extend(f16::from_f32(0.02).to_le_bytes());
        w.extend((0..16).map(|_| random.bits() as u8));
    }
    let (g, root, groups) = matvec(&gristmill_encodings::Q4_0, rows as i64, columns as i64);
    let run = Run::new(g, root, groups, &[&w, &bytes_of(&x), &[0; 20]]).unwrap();
    run.run(&[]).unwrap();
    let d = f16::from_f32(0.02).to_f32();
    let want: Vec<f32> = w
        .chunks_exact(columns / 32 * 18)
        .map(|row| {
            let element = |k: usize| (row[k / 32 * 18 + 2 + k % 16] >> (k / 16 % 2 * 4)) & 15;
            (0..columns).fold(0f32, |sum, k| sum + (element(k) as f32 - 8.0) * d * x[k])
        })
        .collect();
    assert_eq!(run.floats(2), want);
}

#[test]
fn softmax_with_locals_and_nested_reductions() {
    // Row r of 3: local e = exp(x - max x); y = e / sum e, with the sum over two ranges.
    let (rows, n) = (3i64, 150i64);
    let mut g = Graph::new();
    let (x, y) = (param(&mut g, 0, Scalar::F32), param(&mut g, 1, Scalar::F32));
    let e = local(&mut g, 0, n, Scalar::F32);
    let row = range(&mut g, rows, 7, RangeKind::Global);
    let base = scaled(&mut g, row, n);
    let (i, j) = (
        range(&mut g, n, 1, RangeKind::Loop),
        range(&mut g, n, 2, RangeKind::Reduce),
    );
    let at = g.add(base, j);
    let xj = g.load(x, at, Scalar::F32);
    let largest = g.reduce_ranges(xj, &[j], ReduceOp::Max);
    let at = g.add(base, i);
    let xi = g.load(x, at, Scalar::F32);
    let minus = g.neg(largest);
    let difference = g.add(xi, minus);
    let exp = g.exp(difference);
    let first = g.store(e, i, exp, &[i]);
    let (a, b) = (
        range(&mut g, n / 3, 3, RangeKind::Reduce),
        range(&mut g, 3, 4, RangeKind::Unroll),
    );
    let at = scaled(&mut g, a, 3);
    let at = g.add(at, b);
    let v = g.load(e, at, Scalar::F32);
    let inner = g.reduce_ranges(v, &[b], ReduceOp::Add);
    let sum = g.reduce_ranges(inner, &[a], ReduceOp::Add);
    let k = range(&mut g, n, 5, RangeKind::Vector);
    let v = g.load(e, k, Scalar::F32);
    let p = g.div(v, sum);
    let at = g.add(base, k);
    let second = g.store(y, at, p, &[k]);
    let root = kernel(&mut g, &[&[first, second]]);
    let groups = g.int(rows);
    let data = Random(2).floats((rows * n) as usize);
    let run = Run::new(
        g,
        root,
        groups,
        &[&bytes_of(&data), &vec![0; 4 * data.len()]],
    )
    .unwrap();
    run.run(&[]).unwrap();
    let mut want = Vec::new();
    for row in data.chunks_exact(n as usize) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f32> = row
            .iter()
            .map(|v| ((v + -largest) as f64).exp() as f32)
            .collect();
        let sum = e
            .chunks_exact(3)
            .fold(0f32, |s, c| s + c.iter().fold(0f32, |s, v| s + v));
        want.extend(e.iter().map(|v| v / sum));
    }
    assert_eq!(run.floats(1), want);
}

#[test]
fn two_bodies_variables_and_halves() {
    // n workgroups double the first n elements as f16; 2 x 3 workgroups of a second
    // body write their indices.
    let mut g = Graph::new();
    let (x, y, z) = (
        param(&mut g, 0, Scalar::F32),
        param(&mut g, 1, Scalar::F16),
        param(&mut g, 2, Scalar::I32),
    );
    let n = g.var("n", 1, 8);
    let i = g.range(n, 0, RangeKind::Global);
    let v = g.load(x, i, Scalar::F32);
    let v = g.add(v, v);
    let first = g.store(y, i, v, &[]);
    let (a, b) = (
        range(&mut g, 2, 1, RangeKind::Global),
        range(&mut g, 3, 2, RangeKind::Global),
    );
    let c = range(&mut g, 2, 3, RangeKind::Upcast);
    let at = scaled(&mut g, a, 6);
    let two_b = scaled(&mut g, b, 2);
    let at = g.add(at, two_b);
    let at = g.add(at, c);
    let ten = scaled(&mut g, b, 10);
    let hundred = scaled(&mut g, a, 100);
    let value = g.add(ten, hundred);
    let value = g.add(value, c);
    let value = g.cast(value, Scalar::I32);
    let second = g.store(z, at, value, &[c]);
    let root = kernel(&mut g, &[&[first], &[second]]);
    let six = g.int(6);
    let groups = g.add(n, six);
    let data = [1.0f32, 0.1, 65504.0, 1e-8, 0.5, 6.0, 7.0, 8.0];
    let run = Run::new(g, root, groups, &[&bytes_of(&data), &[0; 16], &[0; 48]]).unwrap();
    run.run(&[("n", 5), ("other", 3)]).unwrap();
    let halves: Vec<f16> = run
        .bytes(1)
        .chunks_exact(2)
        .map(|b| f16::from_le_bytes([b[0], b[1]]))
        .collect();
    let want: Vec<f16> = data.iter().map(|v| f16::from_f32(v + v)).collect();
    assert_eq!(halves[..5], want[..5]);
    assert_eq!(halves[5..], [f16::ZERO; 3]);
    let numbers: Vec<i32> = run
        .bytes(2)
        .chunks_exact(4)
        .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!(
        numbers,
        [0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121]
    );
    let missing = run.run(&[]).unwrap_err().to_string();
    assert!(missing.contains("variable n"), "{missing}");
}

#[test]
fn bounds_from_data() {
    // Sums of segments; their starts are data.
    let mut g = Graph::new();
    let (starts, x, y) = (
        param(&mut g, 0, Scalar::I64),
        param(&mut g, 1, Scalar::F32),
        param(&mut g, 2, Scalar::F32),
    );
    let s = range(&mut g, 4, 0, RangeKind::Loop);
    let one = g.int(1);
    let next = g.add(s, one);
    let (from, to) = (
        g.load(starts, s, Scalar::I64),
        g.load(starts, next, Scalar::I64),
    );
    let count = g.sub(to, from);
    let i = g.range(count, 1, RangeKind::Reduce);
    let at = g.add(from, i);
    let v = g.load(x, at, Scalar::F32);
    let sum = g.reduce_ranges(v, &[i], ReduceOp::Add);
    let store = g.store(y, s, sum, &[s]);
    let root = kernel(&mut g, &[&[store]]);
    let data: Vec<f32> = (0..300).map(|v| v as f32).collect();
    let run = Run::new(
        g,
        root,
        one,
        &[&longs(&[0, 3, 3, 100, 300]), &bytes_of(&data), &[0; 16]],
    )
    .unwrap();
    run.run(&[]).unwrap();
    let want = [0..3, 3..3, 3..100, 100..300].map(|r| data[r].iter().fold(0f32, |s, v| s + v));
    assert_eq!(run.floats(2), want);
}

#[test]
fn reductions_share_a_range_and_hoist() {
    // y[i] = sum_k (x[k] + z[i]) * max_k x[k], with long and short loops.
    for n in [3i64, 70] {
        let mut g = Graph::new();
        let (x, z, y) = (
            param(&mut g, 0, Scalar::F32),
            param(&mut g, 1, Scalar::F32),
            param(&mut g, 2, Scalar::F32),
        );
        let (i, k) = (
            range(&mut g, 5, 0, RangeKind::Loop),
            range(&mut g, n, 1, RangeKind::Reduce),
        );
        let (xk, zi) = (g.load(x, k, Scalar::F32), g.load(z, i, Scalar::F32));
        let largest = g.reduce_ranges(xk, &[k], ReduceOp::Max);
        let both = g.add(xk, zi);
        let product = g.mul(both, largest);
        let sum = g.reduce_ranges(product, &[k], ReduceOp::Add);
        let store = g.store(y, i, sum, &[i]);
        let root = kernel(&mut g, &[&[store]]);
        let one = g.int(1);
        let (xs, zs) = (Random(3).floats(n as usize), Random(4).floats(5));
        let run = Run::new(g, root, one, &[&bytes_of(&xs), &bytes_of(&zs), &[0; 20]]).unwrap();
        run.run(&[]).unwrap();
        let largest = xs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let want: Vec<f32> = zs
            .iter()
            .map(|z| xs.iter().fold(0f32, |s, x| s + (x + z) * largest))
            .collect();
        assert_eq!(run.floats(2), want, "n = {n}");
    }
}

#[test]
fn stages_are_kept_from_workgroup_to_workgroup() {
    // s = 2x is equal for all workgroups, t = s + row is not; y[row] = sum s * t.
    let n = 40i64;
    let mut g = Graph::new();
    let (x, y) = (param(&mut g, 0, Scalar::F32), param(&mut g, 1, Scalar::F32));
    let (s, t) = (
        local(&mut g, 0, n, Scalar::F32),
        local(&mut g, 1, n, Scalar::F16),
    );
    let row = range(&mut g, 3, 0, RangeKind::Global);
    let [i, j, k] = [
        (1, RangeKind::Loop),
        (2, RangeKind::Loop),
        (3, RangeKind::Reduce),
    ]
    .map(|(number, kind)| range(&mut g, n, number, kind));
    let v = g.load(x, i, Scalar::F32);
    let v = g.add(v, v);
    let first = g.store(s, i, v, &[i]);
    let (v, r) = (g.load(s, j, Scalar::F32), g.cast(row, Scalar::F32));
    let v = g.add(v, r);
    let second = g.store(t, j, v, &[j]);
    let (a, b) = (g.load(s, k, Scalar::F32), g.load(t, k, Scalar::F16));
    let b = g.cast(b, Scalar::F32);
    let product = g.mul(a, b);
    let sum = g.reduce_ranges(product, &[k], ReduceOp::Add);
    let third = g.store(y, row, sum, &[]);
    let root = kernel(&mut g, &[&[first, second, third]]);
    let three = g.int(3);
    let xs = Random(6).floats(n as usize);
    let run = Run::new(g, root, three, &[&bytes_of(&xs), &[0; 12]]).unwrap();
    run.run(&[]).unwrap();
    let term = |x: f32, row: f32| (x + x) * f16::from_f32(x + x + row).to_f32();
    let want = [0.0, 1.0, 2.0].map(|row| xs.iter().fold(0f32, |sum, &x| sum + term(x, row)));
    assert_eq!(run.floats(1), want);
}

#[test]
fn faults_name_the_kernel() {
    let mut g = Graph::new();
    let (x, y) = (param(&mut g, 0, Scalar::F32), param(&mut g, 1, Scalar::F32));
    let i = range(&mut g, 5, 0, RangeKind::Loop);
    let v = g.load(x, i, Scalar::F32);
    let store = g.store(y, i, v, &[i]);
    let root = kernel(&mut g, &[&[store]]);
    let (one, two) = (g.int(1), g.int(2));
    let error = Run::new(g.clone(), root, one, &[&[0; 16], &[0; 20]])
        .unwrap()
        .run(&[])
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "kernel r_test: load of 4 bytes at byte 16 of buffer 0, which has 16"
    );
    let error = Run::new(g.clone(), root, one, &[&[0; 20], &[0; 19]])
        .unwrap()
        .run(&[])
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "kernel r_test: store of 4 bytes at byte 16 of buffer 1, which has 19"
    );
    let error = Run::new(g.clone(), root, two, &[&[0; 20], &[0; 20]])
        .unwrap()
        .run(&[])
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "kernel r_test: 2 workgroups are launched, the bodies have 1"
    );
    let open = g.store(y, i, v, &[]);
    let root = kernel(&mut g, &[&[open]]);
    let error = Run::new(g, root, one, &[&[0; 20], &[0; 20]])
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("a range that nothing closes"), "{error}");
}
