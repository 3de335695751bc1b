use super::*;
use crate::arch::CacheType;
use crate::arch::{self, Functions, Logits, Options, Pools, StepKind};
use crate::gguf::ByteSource;
use gristmill_backend::Opened;
use gristmill_backend::cpu::{Cc, CpuDevice, Isa, QUICK_FLAG, dialect};
use gristmill_backend::parallel::cores;
use gristmill_runtime::lease::{Owner, Uses};
use gristmill_runtime::staging;
use gristmill_runtime::store::Store;
use gristmill_runtime::{
    Device, DeviceId, Error as DeviceError, Kernel, Launch, RawBuffer, Replay,
};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A device that counts bytes of chunk buffers and can simulate memory of its own.
struct Watched {
    owner: Owner,
    device: Arc<dyn Device>,
    far: bool,
    scratch: AtomicUsize,
}

/// A buffer without a host address.
struct Far(Buffer, Uses);

// SAFETY: it has no host address.
unsafe impl RawBuffer for Far {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn uses(&self) -> &Uses {
        &self.1
    }
}

fn near(buffer: &Buffer) -> Buffer {
    buffer.raw::<Far>().map_or_else(
        || buffer.clone(),
        |far| far.0.slice(buffer.offset(), buffer.len()).unwrap(),
    )
}

impl Device for Watched {
    fn name(&self) -> &str {
        "watched"
    }
    fn id(&self) -> DeviceId {
        if self.far {
            self.owner.id()
        } else {
            self.device.id()
        }
    }
    fn target(&self) -> &Target {
        self.device.target()
    }
    fn describe(&self) -> Vec<String> {
        vec![]
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, DeviceError> {
        if memory == Memory::Scratch {
            self.scratch.fetch_add(bytes, Ordering::Relaxed);
        }
        let buffer = self.device.alloc(bytes, memory)?;
        Ok(match self.far {
            true => Buffer::whole(Arc::new(Far(buffer, Uses::new(&self.owner)))),
            false => buffer,
        })
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        self.device.write(&near(to), offset, data)
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(&near(from), offset, data)
    }
    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn staging::StagedWrite + 'a>, DeviceError> {
        if self.far {
            staging::through(self, to, offset, len)
        } else {
            self.device.stage(to, offset, len)
        }
    }
    fn load(
        &self,
        programs: &[Program],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, DeviceError> {
        self.device.load(programs, progress)
    }
    fn capture(&self, mut launches: Vec<Launch>) -> Result<Box<dyn Replay>, DeviceError> {
        launches
            .iter_mut()
            .flat_map(|l| &mut l.buffers)
            .for_each(|b| *b = near(b));
        self.device.capture(launches)
    }
    fn capture_alone(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, DeviceError> {
        assert!(
            !self.far,
            "threads of the host pack in the host's memory only"
        );
        self.device.capture_alone(launches)
    }
}

static DEMO: &[u8] = include_bytes!("../../../assets/demo-glm-Q4_0.gguf");

/// The demo model, which records the ranges read and released.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<[Vec<Range<u64>>; 2]>>);

impl ByteSource for Noted {
    fn size(&self) -> u64 {
        DEMO.len() as u64
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        out.copy_from_slice(&DEMO[offset as usize..offset as usize + out.len()]);
        self.0.lock().unwrap()[0].push(offset..offset + out.len() as u64);
        Ok(())
    }
    fn release(&self, range: Range<u64>) {
        self.0.lock().unwrap()[1].push(range);
    }
}

fn plenty() -> Option<u64> {
    Some(u64::MAX)
}

/// Loads the demo model's weights in chunks of `piece` bytes. Returns them by name, and the
/// bytes of chunk buffers.
fn load(opened: &Opened, far: bool, piece: Option<u64>) -> (Vec<(String, Vec<u8>)>, usize) {
    load_from(
        &Gguf::from_bytes(DEMO).unwrap(),
        opened,
        far,
        &LoadOptions {
            chunk_bytes: piece,
            free: plenty,
        },
    )
}

fn load_from(
    file: &Gguf,
    opened: &Opened,
    far: bool,
    how: &LoadOptions,
) -> (Vec<(String, Vec<u8>)>, usize) {
    let model = arch::load(file.metadata(), file).unwrap();
    let watched = Arc::new(Watched {
        owner: Owner::new(),
        device: opened.device.clone(),
        far,
        scratch: AtomicUsize::new(0),
    });
    let mut jit = Jit::new(Opened {
        device: watched.clone(),
        ..opened.clone()
    });
    let options = Options {
        tokens: StepKind::Decode,
        rows: 256,
        pools: Pools::from_pages(4),
        contiguous: true,
        depth: 256,
        cache: CacheType::F16,
        logits: Logits::Last,
        tile: Options::TILE,
        cached: None,
        draft: None,
    };
    let plan = model.plan(&options, &mut Functions::new());
    let all: Vec<_> = plan.functions().into_iter().cloned().collect();
    jit.prepare(&all, &|_, _| ()).unwrap();
    let layouts = layouts(&mut jit, &[plan]).unwrap();
    assert!(
        layouts.values().any(|&l| l != Layout::File)
            && layouts.values().any(|&l| l == Layout::File)
    );
    let told = std::cell::RefCell::new(vec![]);
    let weights = weights_as(how, file, &mut jit, &layouts, Weights::default(), &|p| {
        told.borrow_mut().push(p)
    })
    .unwrap();
    let total: u64 = layouts
        .keys()
        .map(|name| file.tensor(name).unwrap().bytes)
        .sum();
    let done = |p: &Progress| {
        if let Progress::Loading(done, all) = *p {
            (done, all)
        } else {
            panic!("{p:?}")
        }
    };
    let told: Vec<(u64, u64)> = told.borrow().iter().map(done).collect();
    assert!(told.is_sorted() && told.iter().all(|t| t.1 == total));
    assert_eq!((told[0].0, told[told.len() - 1].0), (0, total));
    let bytes = |buffer: &Buffer| {
        let mut bytes = vec![0; buffer.len()];
        watched.read(buffer, 0, &mut bytes).unwrap();
        bytes
    };
    let mut out: Vec<_> = layouts
        .keys()
        .map(|name| (name.clone(), bytes(weights.get(name).unwrap())))
        .collect();
    out.sort();
    (out, watched.scratch.load(Ordering::Relaxed))
}

fn cpu(folder: &Path) -> Opened {
    let store = Store::open(folder.join("store"), 1 << 28).unwrap();
    let cpu = CpuDevice::with(
        2,
        Isa::parse("auto").unwrap(),
        Cc::find().unwrap().with_flag(QUICK_FLAG),
        store,
    )
    .unwrap();
    Opened::new(Arc::new(cpu), Some(&dialect::C))
}

#[test]
fn pages_already_read_are_released_under_memory_pressure() {
    let folder = tempfile::tempdir().unwrap();
    let opened = cpu(folder.path());
    let full: fn() -> Option<u64> = || Some(0);
    for (free, short) in [(full, true), (plenty, false), (|| None, false)] {
        let noted = Noted::default();
        let file = Gguf::from_source(Box::new(noted.clone())).unwrap();
        noted.0.lock().unwrap()[0].clear();
        load_from(
            &file,
            &opened,
            false,
            &LoadOptions {
                chunk_bytes: Some(10_000),
                free,
            },
        );
        let [read, released] = &*noted.0.lock().unwrap();
        let bytes = |ranges: &[Range<u64>]| ranges.iter().map(|r| r.end - r.start).sum::<u64>();
        assert_eq!(
            bytes(released) > bytes(read) / 2,
            short,
            "{} of {} released",
            bytes(released),
            bytes(read)
        );
        assert!(short || released.is_empty());
        // Each range is released once, and only if it was read.
        assert!(bytes(released) <= bytes(read));
        assert!(released.iter().all(
            |r| read.iter().any(|p| p.start == r.start) && read.iter().any(|p| p.end == r.end)
        ));
    }
}

#[test]
fn pieces_of_any_size_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let opened = cpu(folder.path());
    let (whole, _) = load(&opened, false, Some(u64::MAX));
    // One group of rows at a time; a size that divides nothing; whole weights.
    for piece in [2000, 33_333, 1 << 20] {
        for far in [false, true] {
            let (got, scratch) = load(&opened, far, Some(piece));
            for ((name, bytes), (_, want)) in got.iter().zip(&whole) {
                assert!(
                    bytes == want,
                    "{name} in pieces of {piece}{}",
                    if far { ", far" } else { "" }
                );
            }
            // A group of rows may be larger than the chunk size.
            let most = cores() * (piece as usize).max(16 << 10);
            assert!(
                far || scratch <= most,
                "{scratch} bytes for pieces of {piece}"
            );
        }
    }
    for far in [false, true] {
        assert!(load(&opened, far, None).0 == whole);
    }
}
