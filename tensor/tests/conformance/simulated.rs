//! A device that runs GPU kernels on the CPU as C++, to test kernels and barriers without a GPU.
//!
//! The texts are of the CUDA dialect (`simulated.h`), or of another one translated to C++
//! (`metal.rs`).

use gristmill_backend::KernelText;
use gristmill_backend::cuda::dialect;
use gristmill_backend::interp::InterpDevice;
use gristmill_backend::libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use gristmill_runtime::image::Image;
use gristmill_runtime::staging::{self, StagedWrite};
use gristmill_runtime::store::{Key, Store};
use gristmill_runtime::{
    Buffer, Device, DeviceId, Error, Kernel, Launch, LoadedProgram, Memory, Replay,
};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Once, PoisonError};

const COMPILER: &str = "c++";
/// Operations from which a kernel is compiled by `-Og` instead of `-O0`. `-O0` takes two thirds of
/// the compile time (24 kernels: 1.4 s against 2.1 s) and runs at half the speed; `-O1` compiles
/// longest.
const LONG: f64 = 5e5;
/// Optimises the prelude in every unit. Compilers other than gcc ignore these pragmas.
const OPTIMISED: &str = "#pragma GCC push_options\n#pragma GCC optimize(\"O2\")\n";
const AS_ASKED: &str = "#pragma GCC pop_options\n";
/// Compiler arguments; misaligned loads and loads past an array's end trap.
const ARGUMENTS: &[&str] = &[
    // Its <math.h> parses in half the time of c++17's, which has special functions.
    "-std=c++14",
    "-w",
    "-x",
    "c++",
    "-shared",
    "-fPIC",
    "-fno-fast-math",
    "-ffp-contract=off",
    "-fsanitize=alignment,bounds",
    "-fsanitize-undefined-trap-on-error",
];

/// Flags for f16 conversion and FMA instructions, if this CPU has them.
///
/// Library calls would take a sixth of the time of prefill cases.
fn halves() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("f16c") && std::arch::is_x86_feature_detected!("fma") {
        return &["-mf16c", "-mfma"];
    }
    &[]
}

type Run = unsafe extern "C" fn(*const *mut u8, i32, i64, usize) -> i32;

/// Prints that simulation is not tested, past captured output; panics if it is required.
pub fn skip(missing: &str) {
    assert!(
        std::env::var_os("GRISTMILL_REQUIRE_SIMULATED").is_none(),
        "GRISTMILL_REQUIRE_SIMULATED is set, but {missing}"
    );
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: conformance of simulated threads: {missing}"
        );
    });
}

/// The simulated device; its memory is the interpreter's.
pub struct Simulated {
    memory: InterpDevice,
    target: Target,
    version: String,
    store: Arc<Store>,
    language: Arc<Language>,
    known: Known,
}

/// Loaded libraries by the keys of their kernels' texts.
type Known = Arc<Mutex<HashMap<Key, Arc<Loaded>>>>;

/// A kernel language, with its translation to C++.
pub struct Language {
    /// C++ source before the kernels.
    pub prelude: String,
    /// Additional compiler arguments.
    pub arguments: &'static [&'static str],
    /// Translates a kernel's text to C++ with an entry function `run_SYMBOL`.
    pub kernel: fn(&KernelText) -> Result<String, Error>,
}

/// The CUDA C language.
fn cuda() -> Language {
    let kernel = |t: &KernelText| {
        let (symbol, source) = (&t.symbol, &t.source);
        Ok(format!(
            "{source}extern \"C\" int run_{symbol}(void **b, int threads, i64 groups, size_t shared) {{\n\
             return sim::run([](void *b) {{ sim::call({symbol}, (void **)b); }}, b, threads, groups, shared);\n}}\n"
        ))
    };
    let prelude = format!(
        "{}{}{}",
        include_str!("coroutines.h"),
        include_str!("simulated.h"),
        dialect::common()
    );
    Language {
        prelude,
        arguments: &[],
        kernel,
    }
}

/// A library of kernels; its coroutines are global, so one workgroup runs at a time.
struct Loaded {
    library: Library,
    turn: Mutex<()>,
    _image: Image,
}

/// A kernel's function, and the library that contains it.
struct Simulation {
    run: Run,
    library: Arc<Loaded>,
}

impl Simulated {
    /// Creates a device for CUDA C and that target; fails if there is no C++ compiler.
    pub fn new(target: Target, store: Store) -> Result<Simulated, String> {
        Simulated::for_language(cuda(), target, store)
    }
    /// Creates a device for another language.
    pub fn for_language(
        language: Language,
        target: Target,
        store: Store,
    ) -> Result<Simulated, String> {
        let output = Command::new(COMPILER)
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        let output = output.map_err(|e| format!("{COMPILER} does not run: {e}"))?;
        let version = String::from_utf8_lossy(&output.stdout)
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned();
        let (store, language, known) = (Arc::new(store), Arc::new(language), Known::default());
        Ok(Simulated {
            memory: InterpDevice::new(),
            target,
            version,
            store,
            language,
            known,
        })
    }
    /// The same device for another target; kernels with equal texts are compiled once.
    pub fn with_target(&self, target: Target) -> Simulated {
        let Simulated {
            version,
            store,
            language,
            known,
            ..
        } = self;
        let (language, known) = (language.clone(), known.clone());
        Simulated {
            memory: InterpDevice::new(),
            target,
            version: version.clone(),
            store: store.clone(),
            language,
            known,
        }
    }
    fn library(&self, source: &str, long: bool) -> Result<Vec<u8>, Error> {
        let optimised = if long { "-Og" } else { "-O0" };
        let arguments = [ARGUMENTS, &[optimised], halves(), self.language.arguments].concat();
        let key = Key::from_parts([source, &self.version, &arguments.join(" ")]);
        if let Some(bytes) = self.store.get(&key)? {
            return Ok(bytes);
        }
        let place = self.store.temporary()?;
        std::fs::write(place.path().join("kernels.cc"), source)
            .map_err(Error::io("writing kernels"))?;
        let output = Command::new(COMPILER)
            .args(arguments)
            .args(["-o", "kernels.so", "kernels.cc"])
            .current_dir(place.path())
            .output();
        let output = output.map_err(Error::io("running the compiler"))?;
        if !output.status.success() {
            return Err(Error::Compile {
                kernel: "simulated".into(),
                message: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        let bytes =
            std::fs::read(place.path().join("kernels.so")).map_err(Error::io("reading kernels"))?;
        self.store.put(&key, &bytes)?;
        Ok(bytes)
    }
}

/// Bytes of source in a unit. gcc 12 parses the prelude in 0.2 s, the time of 60 kB of kernels, and
/// its memory grows with the unit.
const UNIT_BYTES: usize = 400 << 10;

/// Splits kernels, in order, into units of about [`UNIT_BYTES`] bytes.
fn units(texts: &[KernelText]) -> Vec<&[KernelText]> {
    let (mut out, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (i, text) in texts.iter().enumerate() {
        if bytes > 0 && bytes + text.source.len() > UNIT_BYTES {
            out.push(&texts[begin..i]);
            (begin, bytes) = (i, 0);
        }
        bytes += text.source.len();
    }
    out.extend((begin < texts.len()).then(|| &texts[begin..]));
    out
}

impl Simulated {
    /// Compiles and loads a library of kernels, optimised if they run for long.
    fn unit<'a>(
        &self,
        texts: impl Iterator<Item = &'a KernelText>,
        long: bool,
    ) -> Result<Loaded, Error> {
        // The prelude is the same for all kernels and runs most, so it is always optimised.
        let mut source = format!("{OPTIMISED}{}{AS_ASKED}", self.language.prelude);
        for text in texts {
            source += &(self.language.kernel)(text)?;
        }
        let image = Image::new(&self.library(&source, long)?, &self.store)?;
        // SAFETY: the library is compiled from our text.
        let library = unsafe { Library::open(Some(image.path()), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|e| Error::invalid("a library", e.to_string()))?;
        Ok(Loaded {
            library,
            turn: Mutex::new(()),
            _image: image,
        })
    }
}

impl Device for Simulated {
    fn name(&self) -> &str {
        "simulated"
    }
    fn id(&self) -> DeviceId {
        self.memory.id()
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn describe(&self) -> Vec<String> {
        vec![self.version.clone()]
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        self.memory.alloc(bytes, memory)
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.memory.write(to, offset, data)
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        self.memory.read(from, offset, data)
    }
    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn StagedWrite + 'a>, Error> {
        staging::staged_in_place(self.id(), to, offset, len)
    }
    fn load(
        &self,
        programs: &[Program],
        _: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for long in [false, true] {
            let these = programs
                .iter()
                .filter(|p| (p.estimate.operations > LONG) == long);
            let mut texts: Vec<KernelText> = these.map(KernelText::from_program).collect();
            texts.retain(|t| !known.contains_key(&t.key));
            texts.sort_by_key(|t| t.key);
            texts.dedup_by_key(|t| t.key);
            // Tests run in parallel, so units need not.
            for part in units(&texts) {
                let library = Arc::new(self.unit(part.iter(), long)?);
                known.extend(part.iter().map(|t| (t.key, library.clone())));
            }
        }
        let kernel = |program: &Program| {
            let text = KernelText::from_program(program);
            let library = known[&text.key].clone();
            // SAFETY: `unit` defines the function with this type.
            let run = unsafe {
                library
                    .library
                    .get::<Run>(format!("run_{}", text.symbol).as_bytes())
            };
            let run = *run.map_err(|e| Error::invalid(&program.name, e.to_string()))?;
            let simulation = Simulation { run, library };
            Ok(
                Arc::new(LoadedProgram::new(program.clone(), self.id(), simulation))
                    as Arc<dyn Kernel>,
            )
        };
        programs.iter().map(kernel).collect()
    }
    fn capture(&self, mut launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        launches.iter().try_for_each(|l| l.check(self.id()))?;
        launches.sort_by_key(|l| l.level);
        Ok(Box::new(SimulatedReplay { launches }))
    }
}

struct SimulatedReplay {
    launches: Vec<Launch>,
}

impl SimulatedReplay {
    fn launch(launch: &Launch, vars: &[(&str, i64)]) -> Result<(), Error> {
        let program = launch.kernel.program();
        let invalid = |message: &str| Error::invalid(&program.name, message);
        let Simulation { run, library } = &launch.loaded::<Simulation>()?.code;
        let value = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1);
        launch.check_variables(&value)?;
        let groups = program
            .graph
            .evaluate_index(program.groups, &value)
            .ok_or_else(|| invalid("its workgroups cannot be counted"))?;
        let mut arguments: Vec<*mut u8> = Vec::new();
        for b in &launch.buffers {
            arguments.push(b.host().ok_or_else(|| invalid("no memory of the host"))?);
        }
        let mut values: Vec<i64> = program
            .vars
            .iter()
            .map(|n| value(n).ok_or_else(|| invalid("ran without a variable")))
            .collect::<Result<_, _>>()?;
        arguments.push(values.as_mut_ptr().cast());
        let _turn = library.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: buffers and variables are in the order of the program's parameters.
        match unsafe {
            run(
                arguments.as_ptr(),
                program.threads as i32,
                groups,
                program.scratch,
            )
        } {
            0 => Ok(()),
            1 => Err(invalid("its threads part at a barrier")),
            2 => Err(invalid(
                "a thread ended without waiting for what comes before",
            )),
            4 => Err(invalid("wrote past the end of its scratch")),
            _ => Err(invalid("no memory")),
        }
    }
}

impl Replay for SimulatedReplay {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.launches
            .iter()
            .try_for_each(|l| SimulatedReplay::launch(l, vars))
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        self.start(vars).map(|()| vec![0.0; self.launches.len()])
    }
}
