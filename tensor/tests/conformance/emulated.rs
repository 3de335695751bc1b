//! A device that runs kernels as AArch64 code in an emulator.
//!
//! The kernels are the CPU's: its dialect, its translation units and `Isa::Neon`, cross-compiled. A
//! small program (`emulated.c`) runs in the emulator as long as the device exists. It owns the
//! buffers and receives commands through pipes.

use gristmill_backend::KernelText;
use gristmill_backend::cpu::{Cc, Isa, Unit, dialect, partition};
use gristmill_runtime::lease::{Owner, Uses};
use gristmill_runtime::staging::{self, StagedWrite};
use gristmill_runtime::store::{Store, Temporary};
use gristmill_runtime::{
    Buffer, Device, DeviceId, Error, Kernel, Launch, LoadedProgram, Memory, RawBuffer, Replay,
};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Instant;

const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATORS: &[&str] = &["qemu-aarch64", "qemu-aarch64-static"];
/// A CPU with dot product instructions and little else; other extensions are illegal instructions.
const PROCESSOR: &str = "neoverse-n1";

/// Prints that NEON is not tested, past captured output; panics if it is required.
pub fn skip(missing: &str) {
    assert!(
        std::env::var_os("GRISTMILL_REQUIRE_NEON").is_none(),
        "GRISTMILL_REQUIRE_NEON is set, but {missing}"
    );
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let _ = writeln!(std::io::stderr(), "skipped: conformance of neon: {missing}");
    });
}

/// The emulator process, running `emulated.c`.
pub struct Emulator {
    cc: Cc,
    version: String,
    pipes: Mutex<(ChildStdin, ChildStdout)>,
    child: Child,
    /// Folder for libraries until they are loaded.
    place: Temporary,
}

impl Emulator {
    /// Starts the emulator; the error names the missing tool.
    pub fn start(store: &Store) -> Result<Emulator, String> {
        let cc = Cc::named(COMPILER).map_err(|e| format!("{COMPILER} {e}"))?;
        let (emulator, version) = EMULATORS
            .iter()
            .find_map(|name| {
                let output = Command::new(name)
                    .arg("--version")
                    .stdin(Stdio::null())
                    .output()
                    .ok()?;
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                Some((*name, text.lines().next()?.to_owned()))
            })
            .ok_or_else(|| format!("none of {} runs", EMULATORS.join(" and ")))?;
        let place = store.temporary().map_err(|e| e.to_string())?;
        std::fs::write(place.path().join("emulated.c"), include_str!("emulated.c"))
            .map_err(|e| e.to_string())?;
        // Kernels may call `memcpy` and the like, which the loading process exports.
        let arguments = [
            "-O1",
            "-rdynamic",
            "-Wl,--no-as-needed",
            "-o",
            "emulated",
            "emulated.c",
            "-lm",
            "-ldl",
        ];
        let output = Command::new(COMPILER)
            .args(arguments)
            .current_dir(place.path())
            .output();
        let output = output.map_err(|e| format!("{COMPILER} does not run: {e}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(format!(
                "{COMPILER} makes no program (is the C library for AArch64 there?): {said}"
            ));
        }
        let libraries = Command::new(COMPILER)
            .arg("-print-file-name=libc.so.6")
            .output()
            .map_err(|e| e.to_string())?;
        // The emulator searches for the program's loader in the folder above the C library's `lib`.
        let libc = Path::new(String::from_utf8_lossy(&libraries.stdout).trim()).canonicalize();
        let libc =
            libc.map_err(|e| format!("{COMPILER} does not say where its C library is: {e}"))?;
        let prefix = libc
            .parent()
            .and_then(Path::parent)
            .unwrap_or(Path::new("/"));
        let mut child = Command::new(emulator)
            .args(["-cpu", PROCESSOR, "-L"])
            .args([prefix, &place.path().join("emulated")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{emulator} does not run: {e}"))?;
        let pipes = (
            child.stdin.take().expect("a pipe"),
            child.stdout.take().expect("a pipe"),
        );
        let emulator = Emulator {
            cc,
            version,
            pipes: Mutex::new(pipes),
            child,
            place,
        };
        match emulator
            .say('a', 0, 0, &[])
            .and_then(|at| emulator.say('f', at, 0, &[]))
        {
            Ok(_) => Ok(emulator),
            Err(e) => Err(format!("{} does not run a program: {e}", emulator.version)),
        }
    }

    /// Sends a message and returns the reply.
    fn say(&self, what: char, a: u64, b: u64, data: &[u8]) -> Result<u64, Error> {
        self.converse(what, a, b, data, &mut [])
    }

    fn converse(
        &self,
        what: char,
        a: u64,
        b: u64,
        data: &[u8],
        back: &mut [u8],
    ) -> Result<u64, Error> {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut talk = || {
            let header: Vec<u8> = [what as u64, a, b]
                .iter()
                .flat_map(|w| w.to_ne_bytes())
                .collect();
            pipes.0.write_all(&header)?;
            pipes.0.write_all(data)?;
            pipes.0.flush()?;
            let mut reply = [0; 8];
            pipes.1.read_exact(&mut reply)?;
            pipes.1.read_exact(back)?;
            Ok(u64::from_ne_bytes(reply))
        };
        talk().map_err(Error::io(format!(
            "talking to the emulator (`{what}`; a signal has ended it?)"
        )))
    }

    /// Sends bytes, with their number as the second word.
    fn send(&self, what: char, a: u64, data: &[u8]) -> Result<u64, Error> {
        self.say(what, a, data.len() as u64, data)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A buffer in the emulated process.
struct Remote {
    address: u64,
    len: usize,
    uses: Uses,
    emulator: Arc<Emulator>,
}

// SAFETY: the buffer has no address on the host.
unsafe impl RawBuffer for Remote {
    fn len(&self) -> usize {
        self.len
    }
    fn uses(&self) -> &Uses {
        &self.uses
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.emulator.say('f', self.address, self.len as u64, &[]);
    }
}

/// Address of a kernel's function in the emulated process.
struct Function(u64);

/// The emulated device; clones share the process and the loaded kernels.
#[derive(Clone)]
pub struct Emulated {
    owner: Owner,
    emulator: Arc<Emulator>,
    cc: Cc,
    target: Target,
    workers: usize,
    store: Arc<Store>,
    prelude: String,
    /// Addresses of functions by symbol (a hash of the text). Libraries are never closed.
    loaded: Arc<Mutex<HashMap<String, u64>>>,
}

impl Emulated {
    /// Creates a device with one worker; kernels are always scheduled for three.
    pub fn new(emulator: Arc<Emulator>, store: Store) -> Emulated {
        let (target, store, prelude) = (Isa::Neon.target(), Arc::new(store), dialect::prelude());
        let cc = emulator.cc.clone();
        Emulated {
            owner: Owner::new(),
            emulator,
            cc,
            target,
            workers: 1,
            store,
            prelude,
            loaded: Arc::default(),
        }
    }

    /// The same device with `workers` workers, which share the workgroups but run in turn.
    pub fn with_workers(&self, workers: usize) -> Emulated {
        Emulated {
            workers,
            ..self.clone()
        }
    }

    /// The same device with an additional compiler flag, and kernels of its own.
    pub fn with_flag(self, flag: &str) -> Emulated {
        Emulated {
            cc: self.cc.with_flag(flag),
            loaded: Arc::default(),
            ..self
        }
    }

    /// Loads a unit's library into the emulated process, from the store or from the compiler.
    fn library(&self, unit: &Unit) -> Result<u64, Error> {
        let key = unit.key(&self.cc, Isa::Neon);
        let bytes = match self.store.get(&key)? {
            Some(bytes) => bytes,
            None => {
                let bytes = unit.compile(&self.cc, Isa::Neon, &self.store)?;
                self.store.put(&key, &bytes)?;
                bytes
            }
        };
        let path = self.emulator.place.path().join(format!("{}.so", key.hex()));
        std::fs::write(&path, bytes).map_err(Error::io("writing a library"))?;
        let handle = self
            .emulator
            .send('l', 0, path.as_os_str().as_encoded_bytes())?;
        let _ = std::fs::remove_file(&path);
        if handle == 0 {
            Err(Error::invalid(
                "a library",
                "the emulated machine does not load it",
            ))
        } else {
            Ok(handle)
        }
    }
}

/// Address of a byte of a buffer.
fn address(what: &str, buffer: &Buffer, offset: usize, len: usize) -> Result<u64, Error> {
    buffer.check(what, offset, len)?;
    let raw = buffer
        .raw::<Remote>()
        .ok_or_else(|| Error::invalid(what, "the buffer is another device's"))?;
    Ok(raw.address + (buffer.offset() + offset) as u64)
}

impl Device for Emulated {
    fn name(&self) -> &str {
        "emulated"
    }
    fn id(&self) -> DeviceId {
        self.owner.id()
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn describe(&self) -> Vec<String> {
        vec![format!(
            "{}, {}",
            self.emulator.version,
            self.emulator.cc.describe()
        )]
    }
    fn alloc(&self, bytes: usize, _: Memory) -> Result<Buffer, Error> {
        let address = self.emulator.say('a', bytes as u64, 0, &[])?;
        let raw = Remote {
            address,
            len: bytes,
            uses: Uses::new(&self.owner),
            emulator: self.emulator.clone(),
        };
        if address == 0 {
            return Err(Error::invalid(
                "a buffer",
                format!("the emulated machine has no {bytes} bytes"),
            ));
        }
        Ok(Buffer::whole(Arc::new(raw)))
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.emulator
            .send('w', address("write", to, offset, data.len())?, data)
            .map(drop)
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        let at = address("read", from, offset, data.len())?;
        self.emulator
            .converse('r', at, data.len() as u64, &[], data)
            .map(drop)
    }

    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn StagedWrite + 'a>, Error> {
        staging::through(self, to, offset, len)
    }
    fn load(
        &self,
        programs: &[Program],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let texts: Vec<KernelText> = programs.iter().map(KernelText::from_program).collect();
        let mut missing: Vec<&KernelText> = texts
            .iter()
            .filter(|t| !loaded.contains_key(&t.symbol))
            .collect();
        missing.sort_by_key(|t| t.key);
        missing.dedup_by_key(|t| t.key);
        let lengths: Vec<usize> = missing.iter().map(|t| t.source.len()).collect();
        // Tests run in parallel, so units need not.
        for part in partition(&lengths, 1) {
            let unit = Unit::new(&self.prelude, part.iter().map(|&i| missing[i]).collect());
            let library = self.library(&unit)?;
            for i in part {
                let symbol = &missing[i].symbol;
                let function = self.emulator.send('s', library, symbol.as_bytes())?;
                if function == 0 {
                    return Err(Error::invalid(
                        &missing[i].name,
                        "its text does not define it",
                    ));
                }
                loaded.insert(symbol.clone(), function);
            }
        }
        progress(programs.len(), programs.len());
        let kernel = |(text, program): (&KernelText, &Program)| -> Arc<dyn Kernel> {
            Arc::new(LoadedProgram::new(
                program.clone(),
                self.id(),
                Function(loaded[&text.symbol]),
            ))
        };
        Ok(texts.iter().zip(programs).map(kernel).collect())
    }

    fn capture(&self, mut launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        launches.iter().try_for_each(|l| l.check(self.id()))?;
        launches.sort_by_key(|l| l.level);
        Ok(Box::new(EmulatedReplay {
            emulator: self.emulator.clone(),
            workers: self.workers,
            launches,
        }))
    }
}

struct EmulatedReplay {
    emulator: Arc<Emulator>,
    workers: usize,
    /// Launches sorted by level.
    launches: Vec<Launch>,
}

impl EmulatedReplay {
    fn launch(&self, launch: &Launch, vars: &[(&str, i64)]) -> Result<(), Error> {
        let program = launch.kernel.program();
        let invalid = |message: &str| Error::invalid(&program.name, message);
        let Function(function) = launch.loaded::<Function>()?.code;
        let value = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1);
        launch.check_variables(&value)?;
        let groups = program.graph.evaluate_index(program.groups, &value);
        let groups = groups
            .ok_or_else(|| invalid("its workgroups cannot be counted"))?
            .max(0);
        let counts = [
            program.params.len(),
            program.vars.len(),
            program.scratch,
            self.workers,
        ];
        let mut words = vec![function];
        words.extend(counts.map(|n| n as u64));
        words.push(groups as u64);
        for buffer in &launch.buffers {
            words.push(address(&program.name, buffer, 0, buffer.len())?);
        }
        for name in &program.vars {
            words.push(
                value(name).ok_or_else(|| invalid("ran without one of its variables"))? as u64,
            );
        }
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        match self.emulator.send('c', 0, &bytes)? {
            0 => Ok(()),
            1 => Err(invalid("no scratch on the emulated machine")),
            _ => Err(invalid("wrote past the end of its scratch")),
        }
    }
}

impl Replay for EmulatedReplay {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.replay_timed(vars).map(drop)
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        let timed = |launch: &Launch| {
            let start = Instant::now();
            self.launch(launch, vars)
                .map(|()| start.elapsed().as_secs_f64())
        };
        self.launches.iter().map(timed).collect()
    }
}
