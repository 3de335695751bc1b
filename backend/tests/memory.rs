//! Memory safety of all devices: bounds, conflicting uses of bytes, and foreign buffers.

use gristmill_backend::cpu::{Cc, CpuDevice, Isa};
use gristmill_backend::interp::InterpDevice;
use gristmill_backend::null::NullDevice;
use gristmill_runtime::store::Store;
use gristmill_runtime::{Buffer, Device, Error, Kernel, Launch, Memory, Replay};
use gristmill_uop::program::{Access, Extent, Param, Program};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Scalar, Sources};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Number of floats in the buffers of these kernels.
const N: usize = 16;

/// A store for one test, removed at its end.
struct Place(std::path::PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        Place(std::env::temp_dir().join(format!("gristmill-buffers-{name}-{}", std::process::id())))
    }
    fn cpu(&self) -> CpuDevice {
        let store = Store::open(&self.0, 1 << 24).unwrap();
        CpuDevice::with(2, Isa::parse("auto").unwrap(), Cc::find().unwrap(), store).unwrap()
    }
    fn devices(&self) -> Vec<Arc<dyn Device>> {
        let null = NullDevice::new("null", Target::named("h200"));
        vec![
            Arc::new(null),
            Arc::new(InterpDevice::new()),
            Arc::new(self.cpu()),
        ]
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `y[i] = x[i] + x[i]` for `i` below the variable `n`, as a graph and as C.
///
/// `n` is at most [`N`] in the graph; the second buffer has four bytes for each.
fn double() -> Program {
    let mut g = Graph::new();
    let mut param = |slot| {
        let dtype = Scalar::F32.one();
        g.intern(Node {
            op: Op::Param,
            dtype,
            src: Sources::new(),
            arg: Arg::Param(slot),
        })
    };
    let (x, y) = (param(0), param(1));
    let (n, one) = (g.var("n", 0, N as i64), g.int(1));
    let i = g.range(n, 0, RangeKind::Loop);
    let value = g.load(x, i, Scalar::F32);
    let value = g.add(value, value);
    let store = g.store(y, i, value, &[i]);
    let node = |op, src: Id| Node {
        op,
        dtype: Scalar::F32.one(),
        src: Sources::from_slice(&[src]),
        arg: Arg::None,
    };
    let body = g.intern(node(Op::Body, store));
    let root = g.intern(node(Op::Kernel, body));
    let extent = Extent::Per {
        variable: "n".into(),
        bytes: 4,
    };
    Program {
        source: "void e_double(void *const *b, const long *v, long first, long end, void *scratch) {
            const float *x = b[0]; float *y = b[1]; for (long i = 0; i < v[0]; i++) y[i] = x[i] + x[i]; }"
            .into(),
        params: vec![
            Param { slot: 0, access: Access::Read, extent: Extent::Fixed(4 * N) },
            Param { slot: 1, access: Access::Write, extent },
        ],
        vars: vec!["n".into()],
        ..Program::new("e_double", Arc::new(g), root, one)
    }
}

fn load(device: &dyn Device, program: Program) -> Arc<dyn Kernel> {
    device.load(&[program], &|_, _| ()).unwrap().remove(0)
}

fn capture(
    device: &dyn Device,
    kernel: &Arc<dyn Kernel>,
    buffers: &[&Buffer],
) -> Result<Box<dyn Replay>, Error> {
    let buffers = buffers.iter().map(|&b| b.clone()).collect();
    device.capture(vec![Launch {
        kernel: kernel.clone(),
        buffers,
        level: 0,
    }])
}

fn refused<T>(result: Result<T, Error>, why: &str) {
    match result.map(drop) {
        Err(Error::Invalid { what, message }) => {
            assert!(message.contains(why), "{what}: {message}, not {why}")
        }
        Err(other) => panic!("{other}"),
        Ok(()) => panic!("allowed, though {why}"),
    }
}

#[test]
fn nothing_leaves_its_buffer() {
    let place = Place::new("bounds");
    for device in place.devices() {
        let buffer = device.alloc(100, Memory::Scratch).unwrap();
        let piece = buffer.slice(40, 20).unwrap();
        assert_eq!(
            (piece.len(), piece.offset(), piece.range()),
            (20, 40, 40..60)
        );
        for (offset, len) in [
            (0, 21),
            (20, 1),
            (usize::MAX, 1),
            (usize::MAX, 100),
            (1, usize::MAX),
            (usize::MAX / 2, usize::MAX / 2 + 2),
        ] {
            refused(piece.slice(offset, len), "of a buffer of 20");
            refused(device.stage(&piece, offset, len), "of a buffer of 20");
        }
        refused(
            device.write(&piece, 1, &[0; 20]),
            "20 bytes at 1 of a buffer of 20",
        );
        refused(
            device.read(&piece, usize::MAX, &mut [0; 2]),
            "of a buffer of 20",
        );
        refused(
            device.read_settled(&piece, 20, &mut [0; 1]),
            "of a buffer of 20",
        );
        device.write(&piece, 0, &[1; 20]).unwrap();
        assert!(piece == buffer.slice(40, 20).unwrap() && piece != buffer.slice(41, 20).unwrap());
        assert!(
            piece
                != device
                    .alloc(100, Memory::Scratch)
                    .unwrap()
                    .slice(40, 20)
                    .unwrap()
        );
    }
}

#[test]
fn pieces_that_overlap_are_refused_until_the_first_is_sent() {
    let place = Place::new("pieces");
    for device in place.devices() {
        let buffer = device.alloc(100, Memory::Scratch).unwrap();
        let mut first = device.stage(&buffer, 10, 20).unwrap();
        let mut beside = device.stage(&buffer, 30, 20).unwrap();
        refused(
            device.stage(&buffer, 29, 1),
            "bytes 29 to 30 of its memory are in use by another copy",
        );
        refused(
            device.stage(&buffer.slice(5, 50).unwrap(), 0, 50),
            "in use by another copy",
        );
        refused(device.write(&buffer, 0, &[0; 11]), "in use by another copy");
        refused(
            device.read(&buffer, 49, &mut [0; 1]),
            "in use by another copy",
        );
        device.write(&buffer, 50, &[9; 50]).unwrap();
        first.bytes().fill(1);
        beside.bytes().fill(2);
        first.send().unwrap();
        device.stage(&buffer, 10, 20).unwrap(); // dropped, not sent
        device.read(&buffer, 10, &mut [0; 20]).unwrap();
        beside.send().unwrap();
        let mut bytes = [0; 100];
        device.read(&buffer, 0, &mut bytes).unwrap();
        assert!(!device.holds_data() || (bytes[29], bytes[30], bytes[50]) == (1, 2, 9));
    }
}

#[test]
fn a_buffer_that_is_too_short_is_refused() {
    let place = Place::new("short");
    for device in place.devices() {
        let kernel = load(device.as_ref(), double());
        let buffer = |bytes| device.alloc(bytes, Memory::Scratch).unwrap();
        let (whole, short) = (buffer(4 * N), buffer(4 * N - 1));
        refused(
            capture(device.as_ref(), &kernel, &[&short, &whole]),
            "buffer 0 has 63 bytes and needs 64",
        );
        refused(
            capture(
                device.as_ref(),
                &kernel,
                &[&whole.slice(4, 60).unwrap(), &whole],
            ),
            "buffer 0 has 60 bytes",
        );
        refused(
            capture(device.as_ref(), &kernel, &[&whole]),
            "launched with 1 buffers instead of 2",
        );
        if !device.holds_data() {
            continue;
        }
        // A buffer that bounds a variable by its size is checked when the step starts.
        device
            .write(&whole, 0, &1f32.to_le_bytes().repeat(N))
            .unwrap();
        let mut step = capture(device.as_ref(), &kernel, &[&whole, &short]).unwrap();
        refused(step.replay(&[("n", N as i64)]), "16 is not in ");
        step.replay(&[("n", N as i64 - 1)]).unwrap();
        let mut bytes = vec![0; 4 * N - 1];
        device.read(&short, 0, &mut bytes).unwrap();
        assert_eq!(bytes[..60], 2f32.to_le_bytes().repeat(15));
        assert_eq!(bytes[60..], [0; 3]);
    }
}

/// A step of two launches, the second of which has an invalid variable.
#[test]
fn a_variable_that_is_wrong_for_one_launch_starts_none() {
    let place = Place::new("none");
    for device in place
        .devices()
        .into_iter()
        .filter(|device| device.holds_data())
    {
        let mut other = double();
        (other.name, other.vars) = ("e_other".into(), vec!["m".into()]);
        other.source = other.source.replace("e_double", "e_other");
        let mut g = Graph::new();
        let m = g.var("m", 0, 4);
        let node = |op, src: &[Id]| Node {
            op,
            dtype: Scalar::F32.one(),
            src: Sources::from_slice(src),
            arg: Arg::None,
        };
        let param = |slot| Node {
            op: Op::Param,
            dtype: Scalar::F32.one(),
            src: Sources::new(),
            arg: Arg::Param(slot),
        };
        let (x, y) = (g.intern(param(0)), g.intern(param(1)));
        let i = g.range(m, 0, RangeKind::Loop);
        let value = g.load(x, i, Scalar::F32);
        let store = g.store(y, i, value, &[i]);
        let body = g.intern(node(Op::Body, &[store]));
        (other.root, other.groups) = (g.intern(node(Op::Kernel, &[body])), g.int(1));
        other.params[1].extent = Extent::Fixed(4 * N);
        other.graph = Arc::new(g);
        let [x, y, z] = [0; 3].map(|_| device.alloc(4 * N, Memory::State).unwrap());
        device.write(&x, 0, &1f32.to_le_bytes().repeat(N)).unwrap();
        let launch = |kernel, from: &Buffer, to: &Buffer, level| Launch {
            kernel,
            buffers: vec![from.clone(), to.clone()],
            level,
        };
        let kernels = [double(), other].map(|program| load(device.as_ref(), program));
        let [first, second] = kernels;
        let mut step = device
            .capture(vec![launch(first, &x, &y, 0), launch(second, &y, &z, 1)])
            .unwrap();
        refused(step.replay(&[("n", 4), ("m", 5)]), "5 is not in");
        refused(step.replay(&[("n", 4)]), "ran without it");
        let mut bytes = vec![1; 4 * N];
        device.read(&y, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4 * N], "{}: the first launch ran", device.name());
        step.replay(&[("n", 4), ("m", 4)]).unwrap();
    }
}

#[test]
fn memory_and_kernels_of_another_device_are_refused() {
    let place = Place::new("foreign");
    for (ours, other) in place.devices().into_iter().zip(place.devices()) {
        assert!(ours.id() != other.id());
        let [x, y] = [0, 1].map(|_| ours.alloc(4 * N, Memory::Scratch).unwrap());
        let foreign = other.alloc(4 * N, Memory::Scratch).unwrap();
        let kernel = load(ours.as_ref(), double());
        assert!(kernel.device() == ours.id() && x.device() == ours.id());
        capture(ours.as_ref(), &kernel, &[&x, &y]).unwrap();
        refused(
            capture(ours.as_ref(), &kernel, &[&x, &foreign]),
            "the buffer is another device's",
        );
        refused(
            capture(ours.as_ref(), &load(other.as_ref(), double()), &[&x, &y]),
            "was loaded by another device",
        );
        refused(ours.write(&foreign, 0, &[1]), "another device's");
        refused(ours.read(&foreign, 0, &mut [1]), "another device's");
        refused(ours.stage(&foreign, 0, 1), "another device's");
    }
}

#[test]
fn a_step_keeps_the_host_from_its_memory_until_it_was_waited_for() {
    // The null device runs nothing, but its steps count as asynchronous.
    let device = NullDevice::new("null", Target::named("h200"));
    let kernel = load(&device, double());
    let buffer = device.alloc(12 * N, Memory::Scratch).unwrap();
    let piece = |i: usize| buffer.slice(4 * N * i, 4 * N).unwrap();
    let (x, y, rest) = (piece(0), piece(1), piece(2));
    let mut step = capture(&device, &kernel, &[&x, &y]).unwrap();
    step.start(&[]).unwrap();
    step.start(&[]).unwrap();
    for _ in 0..2 {
        device.read(&x, 0, &mut [0; 4]).unwrap(); // read by both
        refused(
            device.write(&x, 0, &[0; 4]),
            "a step that was started and not waited for",
        );
        refused(
            device.read(&buffer, 0, &mut [0; 65]),
            "a step that was started and not waited for",
        );
        refused(
            device.stage(&y, 63, 1),
            "a step that was started and not waited for",
        );
        device.write(&rest, 0, &[0; 64]).unwrap();
        step.wait().unwrap();
    }
    device.write(&x, 0, &[0; 4]).unwrap();
    // Conversely, bytes in use by the host prevent the step from starting.
    let held = device.stage(&y, 63, 1).unwrap();
    refused(
        step.start(&[]),
        "bytes 127 to 128 of a buffer are in use by a copy",
    );
    drop(held);
    let elsewhere = device.stage(&rest, 0, 64).unwrap();
    step.start(&[]).unwrap();
    refused(device.read(&y, 0, &mut [0; 4]), "a step");
    drop(elsewhere);
    // A dropped step uses nothing.
    drop(step);
    device.write(&buffer, 0, &[0; 192]).unwrap();
}

#[test]
fn a_step_of_the_processor_keeps_other_threads_from_its_memory() {
    // The kernel reports that it runs and ends on a signal, through pipes
    // whose descriptors are variables.
    let source =
        "long read(int, void *, unsigned long); long write(int, const void *, unsigned long);
        void e_wait(void *const *b, const long *v, long first, long end, void *scratch) {
            char *x = b[0]; write(v[0], x, 1); read(v[1], x, 1); }";
    let mut g = Graph::new();
    let one = g.int(1);
    let (running, go) = (g.var("running", 0, 1 << 20), g.var("go", 0, 1 << 20));
    let root = g.add(running, go);
    let program = Program {
        source: source.into(),
        params: vec![Param {
            slot: 0,
            access: Access::ReadWrite,
            extent: Extent::Fixed(1),
        }],
        vars: vec!["running".into(), "go".into()],
        ..Program::new("e_wait", Arc::new(g), root, one)
    };
    let place = Place::new("threads");
    let device = place.cpu();
    let kernel = load(&device, program);
    let buffer = device.alloc(100, Memory::Scratch).unwrap();
    let (used, rest) = (buffer.slice(0, 1).unwrap(), buffer.slice(1, 99).unwrap());
    let launch = || {
        vec![Launch {
            kernel: kernel.clone(),
            buffers: vec![used.clone()],
            level: 0,
        }]
    };
    for mut step in [
        device.capture(launch()).unwrap(),
        device.capture_alone(launch()).unwrap(),
    ] {
        let (mut running, (told, mut go)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let descriptors = [running.1.as_raw_fd(), told.as_raw_fd()].map(i64::from);
        let (device, buffer, used, rest, launch) = (&device, &buffer, &used, &rest, &launch);
        // The closure owns the sender: if an assertion fails, the kernel reads the end of
        // the pipe and ends.
        std::thread::scope(move |scope| {
            let ran = scope
                .spawn(move || step.replay(&[("running", descriptors[0]), ("go", descriptors[1])]));
            running.0.read_exact(&mut [0]).unwrap();
            refused(device.read(buffer, 0, &mut [0; 1]), "in use by");
            refused(device.write(used, 0, &[1]), "in use by");
            refused(device.stage(buffer, 0, 100), "in use by");
            refused(used.view().map(drop), "in use by");
            device.write(rest, 0, &[1; 99]).unwrap();
            // Another step on these bytes would wait in the same queue, but is
            // refused if captured alone.
            refused(
                device
                    .capture_alone(launch())
                    .unwrap()
                    .replay(&[("running", 0), ("go", 0)]),
                "in use by",
            );
            go.write_all(&[7]).unwrap();
            ran.join().unwrap().unwrap();
        });
        let mut byte = [0];
        device.read(used, 0, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        assert_eq!(used.view().unwrap()[..], [7]);
    }
}
