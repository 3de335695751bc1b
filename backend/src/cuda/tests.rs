//! Tests of NVRTC and CUDA.
//!
//! NVRTC is tested if it is found; it must be found if `GRISTMILL_REQUIRE_NVRTC` is set. Other
//! tests need a GPU and the feature `cuda-tests`.

use super::dialect;
use super::dialect::measuring::{BARRIERS, CHASE, LINK, READ};
use super::nvrtc::Nvrtc;
use gristmill_runtime::Error;
use gristmill_runtime::store::Store;
use std::path::PathBuf;

/// The dialect's prelude with macros for the test kernels.
fn prelude() -> String {
    let begin = "const int thread = THREAD_INDEX; DEPENDENTS_MAY_START; PREDECESSORS_ENDED";
    format!(
        "{}#define KERNEL extern \"C\" __global__ void\n#define BEGIN {begin}\n",
        dialect::prelude()
    )
}
/// `out[i] = x[i] + y[i] / 3`, eight elements per workgroup.
const ADD: &str = "KERNEL NAME(f32 *out, const f32 *x, const f32 *y, const i64 *v CLOCK) {
    BEGIN;
    if (blockIdx.x >= v[0]) return;
    i64 i = blockIdx.x * 8 + threadIdx.x;
    out[i] = x[i] + y[i] / 3.0f;
}";

/// `out = sum over n of x`, one thread; reads the output of the level before.
const SUM: &str = "KERNEL NAME(f32 *out, const f32 *x, const i64 *v CLOCK) {
    BEGIN;
    f32 s = 0;
    for (i64 i = 0; i < v[0] * 8; i++) s += x[i];
    out[0] = s;
}";
/// Updates `x` with `n`; the result depends on the order of steps.
const CARRY: &str = "KERNEL NAME(i64 *x, const i64 *v CLOCK) { BEGIN; x[0] = x[0] * 3 + v[0]; }";
/// Each workgroup reads its neighbour's cell of the other buffer.
const TURN: &str = "KERNEL NAME(i64 *to, const i64 *from, const i64 *v CLOCK) {
    BEGIN;
    to[blockIdx.x * 32 + threadIdx.x] = from[((blockIdx.x + 1) % 256) * 32 + threadIdx.x] + 1;
}";
/// Reverses 24 Ki floats through shared memory.
const REVERSE: &str = "KERNEL NAME(f32 *x, const i64 *v CLOCK) {
    extern __shared__ f32 s[];
    BEGIN;
    for (int i = threadIdx.x; i < 24576; i += 256) s[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < 24576; i += 256) x[i] = s[24575 - i];
}";
/// Busy-waits for a million cycles.
const SLOW: &str = "KERNEL NAME(i64 *x, const i64 *v CLOCK) {
    BEGIN;
    i64 t = clock64();
    while (clock64() - t < 1000000) {}
    x[0] = 1;
}";

/// Busy-waits for several seconds.
const LONG: &str = "KERNEL NAME(i64 *x, const i64 *v CLOCK) {
    BEGIN;
    i64 t = clock64();
    while (clock64() - t < 4000000000) {}
    x[0] = 1;
}";

const KERNELS: &[&str] = &[
    ADD, SUM, CARRY, TURN, REVERSE, SLOW, LONG, READ, LINK, BARRIERS, CHASE,
];

/// A store for one test, removed at its end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        Place(std::env::temp_dir().join(format!("gristmill-cuda-{name}-{}", std::process::id())))
    }
    fn store(&self) -> Store {
        Store::open(&self.0, 1 << 28).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Finds NVRTC; None where it is missing and optional.
fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::find() {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            assert!(
                std::env::var_os("GRISTMILL_REQUIRE_NVRTC").is_none(),
                "GRISTMILL_REQUIRE_NVRTC is set, but {error}"
            );
            assert!(error.hint().unwrap().contains("pip install"), "{error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

#[test]
fn kernels_compile_for_every_architecture_and_are_kept() {
    let Some(compiler) = nvrtc() else { return };
    let place = Place::new("nvrtc");
    let store = place.store();
    let all: String = (0..)
        .zip(KERNELS)
        .map(|(i, text)| text.replace("NAME", &format!("e_test_{i}")))
        .collect();
    let source = format!("{}{all}", prelude());
    let mut keys = Vec::new();
    for sm in [75, 80, 86, 89, 90, 100, 120] {
        compiler.check(sm).unwrap();
        let (cubin, compiled) = compiler.load("NAME", &source, sm, &store).unwrap();
        assert!(compiled && cubin.starts_with(b"\x7fELF"), "sm_{sm}");
        assert_eq!(
            compiler.load("NAME", &source, sm, &store).unwrap(),
            (cubin, false)
        );
        keys.push(compiler.key(&source, sm));
    }
    keys.push(compiler.key(&format!("{source} "), 90));
    let distinct: std::collections::HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
    assert!(
        compiler
            .check(20)
            .unwrap_err()
            .to_string()
            .contains("sm_20")
    );
}

#[test]
fn a_kernel_that_does_not_compile_is_named_with_its_line() {
    let Some(compiler) = nvrtc() else { return };
    let error = compiler.compile(
        "e_bad_1",
        "extern \"C\" __global__ void e_bad_1() {\n  none();\n}",
        90,
        &[],
    );
    let Err(Error::Compile { kernel, message }) = error.map(|c| c.log) else {
        panic!("it compiles")
    };
    assert!(
        kernel == "e_bad_1" && message.contains("e_bad_1.cu(2)") && message.contains("none"),
        "{message}"
    );
    assert!(matches!(
        compiler.compile("e_bad_2", "\0", 90, &[]),
        Err(Error::Compile { .. })
    ));
}

#[test]
fn the_assembler_says_what_a_kernel_takes() {
    let Some(compiler) = nvrtc() else { return };
    let compiled = compiler
        .compile(
            "NAME",
            &format!("{}{ADD}", prelude()),
            90,
            &["--ptxas-options=-v"],
        )
        .unwrap();
    assert!(compiled.log.contains("registers"), "{}", compiled.log);
}

/// A clamped value must not be compared with its bound where it is compared
/// with the original value.
///
/// The lower bound is applied first, as in kernels. In the other order NVRTC 13.0 generates the
/// same code for both comparisons on sm_90, also in unrolled loops.
#[test]
fn a_bound_that_is_reached_is_told_from_a_value_that_is_kept() {
    let Some(compiler) = nvrtc() else { return };
    let held = "const int least = x > 0 ? x : 0, held = least < 6 ? least : 6";
    let code = |compared: &str| {
        let text = format!(
            "extern \"C\" __global__ void k(int *y, const int *p) {{\nconst int x = *p; {held};\ny[0] = held;\n{compared}\n}}"
        );
        [80, 90, 100, 120].map(|sm| compiler.compile("k", &text, sm, &[]).expect("code").cubin)
    };
    let apart = |a: &str, b: &str| code(a).iter().zip(&code(b)).all(|(a, b)| a != b);
    assert!(apart("y[1] = held == 6;", "y[1] = held == x;"));
    let each =
        |of: &str| format!("_Pragma(\"unroll\") for (int i = 0; i < 7; i++) y[i + 1] = {of};");
    assert!(apart(&each("held == i"), &each("held == (i < 6 ? i : x)")));
}

#[test]
#[cfg(not(feature = "cuda-tests"))]
fn a_missing_library_is_an_error_with_a_hint() {
    // Without a GPU the result is an error with a hint, never a panic.
    if let Err(error) = super::CudaDevice::new(0) {
        assert!(
            matches!(error, Error::Lacking { .. } | Error::Driver { .. }),
            "{error}"
        );
        assert!(error.hint().is_some());
        assert!(
            !super::present() || Nvrtc::find().is_err() || matches!(error, Error::Driver { .. }),
            "{error}"
        );
    }
}

#[cfg(feature = "cuda-tests")]
mod gpu;

/// Stands for NVRTC: reports a version that no other has, and compiles nothing.
const STUB: &str = "
int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 77; return 0; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 1; return 0; }
int nvrtcGetSupportedArchs(int *archs) { *archs = 90; return 0; }
int nvrtcGetErrorString(void) { return 0; }
int nvrtcCreateProgram(void) { return 1; }
int nvrtcCompileProgram(void) { return 1; }
int nvrtcDestroyProgram(void) { return 1; }
int nvrtcGetProgramLogSize(void) { return 1; }
int nvrtcGetProgramLog(void) { return 1; }
int nvrtcGetCUBINSize(void) { return 1; }
int nvrtcGetCUBIN(void) { return 1; }";

#[test]
#[cfg(target_env = "gnu")]
fn an_nvrtc_of_the_python_environment_is_found() {
    let root = std::env::temp_dir().join(format!("gristmill-nvrtc-{}", std::process::id()));
    let (bin, library) = (
        root.join("bin"),
        root.join("lib/python3.12/site-packages/nvidia/cu13/lib"),
    );
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), bin.join("program")).unwrap();
    let run = || {
        let child = std::process::Command::new(bin.join("program"))
            .args(["--exact", "cuda::tests::prints_its_nvrtc", "--nocapture"])
            .env("GRISTMILL_TEST_CHILD", "1")
            .env_remove("LD_LIBRARY_PATH")
            .output()
            .unwrap();
        String::from_utf8_lossy(&child.stdout).into_owned()
    };
    let without = run();
    std::fs::create_dir_all(&library).unwrap();
    std::fs::write(root.join("stub.c"), STUB).unwrap();
    let compiled = std::process::Command::new("cc")
        .args(["-w", "-shared", "-fPIC", "-Wl,-soname,libnvrtc.so.13", "-o"])
        .args([library.join("libnvrtc.so.13"), root.join("stub.c")])
        .status();
    assert!(compiled.unwrap().success());
    let with = run();
    std::fs::remove_dir_all(root).unwrap();
    // The system's own comes first.
    match without.contains("found NVRTC") {
        true => assert!(!with.contains("13.77"), "{with}"),
        false => assert!(
            without.contains("there is no NVRTC") && with.contains("found NVRTC 13.77"),
            "{without}{with}"
        ),
    }
}

/// Helper of the test above.
#[test]
fn prints_its_nvrtc() {
    if std::env::var_os("GRISTMILL_TEST_CHILD").is_some() {
        match Nvrtc::find() {
            Ok(found) => println!("found {}", found.describe()),
            Err(error) => println!("{error}"),
        }
    }
}
