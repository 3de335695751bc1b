//! Life cycle of a device as a model uses it: open, load, fill, run, read, drop.

use gristmill_backend::cuda::CudaDevice;
use gristmill_runtime::store::Store;
use gristmill_runtime::{Buffer, Device, Error, Kernel, Launch, Memory};
use gristmill_uop::Graph;
use gristmill_uop::program::{Access, Extent, Param, Program};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Function of the fake driver's kernels of two buffers, independent of their text.
const TEXT: &str =
    "KERNEL NAME(i64 *out, const i64 *in, const i64 *v CLOCK) { out[0] = in[0] * 3 + v[0]; }";

/// A store for one test, removed at its end.
pub struct Place(PathBuf);

impl Place {
    pub fn new() -> Place {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "store-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Place(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name))
    }
    pub fn store(&self) -> Store {
        Store::open(&self.0, 1 << 28).unwrap()
    }
    /// Removes the folder, so that nothing can be stored.
    pub fn remove(&self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn param(slot: u32, access: Access) -> Param {
    Param {
        slot,
        access,
        extent: Extent::Fixed(8),
    }
}

/// Returns a kernel of two buffers with `n` workgroups.
pub fn program(name: &str, scratch: usize) -> Program {
    let mut graph = Graph::new();
    let n = graph.var("n", 0, 1000);
    Program {
        source: TEXT
            .replace("NAME", name)
            .replace("v[0]", &format!("v[0] /* {scratch} */")),
        params: vec![param(0, Access::Write), param(1, Access::Read)],
        vars: vec![Arc::from("n")],
        threads: 32,
        scratch,
        ..Program::new(name, Arc::new(graph), n, n)
    }
}

/// Runs operations and collects their errors.
pub struct Attempts {
    /// Attempts for each operation before the test gives up.
    pub tries: usize,
    pub errors: Vec<(&'static str, Error)>,
}

impl Attempts {
    pub fn new(tries: usize) -> Attempts {
        Attempts {
            tries,
            errors: Vec::new(),
        }
    }
    pub fn at<T>(
        &mut self,
        what: &'static str,
        mut call: impl FnMut() -> Result<T, Error>,
    ) -> Option<T> {
        for _ in 0..self.tries {
            match call() {
                Ok(value) => return Some(value),
                Err(error) => self.errors.push((what, error)),
            }
        }
        None
    }
}

/// Returns two dependent launches: `z = 9 x + 4 n`. Running them twice has the same result.
pub fn launches(kernels: &[Arc<dyn Kernel>], [x, y, z]: &[Buffer; 3]) -> Vec<Launch> {
    let launch = |kernel: usize, out: &Buffer, from: &Buffer| Launch {
        kernel: kernels[kernel].clone(),
        buffers: vec![out.clone(), from.clone()],
        level: kernel,
    };
    vec![launch(0, y, x), launch(1, z, y)]
}

/// Stages a copy of eight bytes.
pub fn stage(device: &dyn Device, to: &Buffer, value: i64) -> Result<(), Error> {
    let mut piece = device.stage(to, 0, 8)?;
    piece.bytes().copy_from_slice(&value.to_le_bytes());
    piece.send()
}

pub fn read(device: &dyn Device, from: &Buffer) -> Result<i64, Error> {
    let mut bytes = [0; 8];
    device.read(from, 0, &mut bytes)?;
    Ok(i64::from_le_bytes(bytes))
}

/// Values that [`life`] reads if nothing fails.
pub const RIGHT: [i64; 5] = [
    9 * 5 + 4 * 2,
    9 * 7 + 4 * 3,
    9 * 8 + 4 * 4,
    9 * 8 + 4 * 5,
    9 * 9 + 4 * 700,
];

/// Runs the life cycle. Returns the values read until it ended.
pub fn life(place: &Place, attempts: &mut Attempts) -> Vec<i64> {
    let mut seen = Vec::new();
    let _ = live(place, attempts, &mut seen);
    seen
}

fn live(place: &Place, attempts: &mut Attempts, seen: &mut Vec<i64>) -> Option<()> {
    let device = attempts.at("open", || CudaDevice::with(0, place.store()))?;
    let device: &dyn Device = &device;
    let programs = [program("e_1", 0), program("e_2", 96 << 10)];
    let kernels = attempts.at("load", || device.load(&programs, &|_, _| ()))?;
    let buffers = [
        attempts.at("alloc", || device.alloc(64, Memory::Weights))?,
        attempts.at("alloc", || device.alloc(64, Memory::Scratch))?,
        attempts.at("alloc", || device.alloc(64, Memory::State))?,
    ];
    let [x, _, z] = &buffers;
    let apart = attempts.at("alloc", || device.alloc(64, Memory::Weights))?;
    let capture = || device.capture(launches(&kernels, &buffers));
    let mut steps = [
        attempts.at("capture", capture)?,
        attempts.at("capture", capture)?,
    ];
    attempts.at("stage", || stage(device, x, 5))?;
    for n in [1, 2] {
        attempts.at("stage", || stage(device, &apart, 5))?;
        attempts.at("start", || steps[n as usize - 1].start(&[("n", n)]))?;
    }
    for step in &mut steps {
        attempts.at("wait", || step.wait())?;
    }
    seen.push(attempts.at("read", || read(device, z))?);
    let step = &mut steps[0];
    // A piece that is dropped unsent, then one that is sent.
    attempts.at("stage", || device.stage(x, 0, 8).map(drop))?;
    attempts.at("stage", || stage(device, x, 7))?;
    attempts.at("replay", || step.replay(&[("n", 3)]))?;
    seen.push(attempts.at("read", || read(device, z))?);
    attempts.at("stage", || stage(device, x, 8))?;
    for n in [4, 5] {
        attempts.at("timed", || step.replay_timed(&[("n", n)]))?;
        seen.push(attempts.at("read", || read(device, z))?);
    }
    attempts.at("write", || device.write(x, 0, &9i64.to_le_bytes()))?;
    attempts.at("replay", || step.replay(&[("n", 700)]))?;
    seen.push(attempts.at("read", || read(device, z))?);
    // Work that is not waited for: a copy in flight and two steps.
    attempts.at("stage", || stage(device, x, 10))?;
    attempts.at("start", || step.start(&[("n", 1)]))?;
    attempts.at("start", || step.start(&[("n", 2)]))?;
    attempts.at("stage", || stage(device, &apart, 11))?;
    Some(())
}
