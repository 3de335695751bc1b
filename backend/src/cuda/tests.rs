//! NVRTC is tested where it is found, and must be where `GRISTMILL_REQUIRE_NVRTC` is set. The rest needs a GPU: the feature `cuda-tests`.

use super::nvrtc::Compiler;
use gristmill_runtime::Error;
use gristmill_runtime::store::Store;
use std::path::PathBuf;

const PRELUDE: &str = r#"
typedef long long i64;
typedef float f32;
#define KERNEL extern "C" __global__ void
static __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
"#;
/// `out[i] = x[i] + y[i] / 3`, eight elements a workgroup.
const ADD: &str = "KERNEL NAME(f32 *out, const f32 *x, const f32 *y, const i64 *v) {
    wait();
    if (blockIdx.x >= v[0]) return;
    i64 i = blockIdx.x * 8 + threadIdx.x;
    out[i] = x[i] + y[i] / 3.0f;
}";

/// A store of one test's own, removed at its end.
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

/// NVRTC; none where it need not be there.
fn nvrtc() -> Option<Compiler> {
    match Compiler::find() {
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
    let source = format!("{PRELUDE}{ADD}");
    let mut keys = Vec::new();
    for sm in [75, 80, 86, 89, 90, 100, 120] {
        compiler.check(sm).unwrap();
        let (cubin, compiled) = compiler.load("NAME", &source, sm, &store).unwrap();
        assert!(compiled && cubin.starts_with(b"\x7fELF"), "sm_{sm}");
        assert_eq!(compiler.load("NAME", &source, sm, &store).unwrap(), (cubin, false));
        keys.push(compiler.key(&source, sm));
    }
    keys.push(compiler.key(&format!("{source} "), 90));
    let distinct: std::collections::HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
    assert!(compiler.check(20).unwrap_err().to_string().contains("sm_20"));
}

#[test]
fn a_kernel_that_does_not_compile_is_named_with_its_line() {
    let Some(compiler) = nvrtc() else { return };
    let error = compiler.compile("e_bad_1", "extern \"C\" __global__ void e_bad_1() {\n  none();\n}", 90, &[]);
    let Err(Error::Compile { kernel, message }) = error.map(|c| c.log) else { panic!("it compiles") };
    assert!(kernel == "e_bad_1" && message.contains("e_bad_1.cu(2)") && message.contains("none"), "{message}");
    assert!(matches!(compiler.compile("e_bad_2", "\0", 90, &[]), Err(Error::Compile { .. })));
}

#[test]
fn the_assembler_says_what_a_kernel_takes() {
    let Some(compiler) = nvrtc() else { return };
    let compiled = compiler.compile("NAME", &format!("{PRELUDE}{ADD}"), 90, &["--ptxas-options=-v"]).unwrap();
    assert!(compiled.log.contains("registers"), "{}", compiled.log);
}

#[test]
#[cfg(not(feature = "cuda-tests"))]
fn what_is_missing_is_said_with_a_way_out() {
    // Without a GPU an error, with one none; never a panic.
    if let Err(error) = super::CudaDevice::new(0) {
        assert!(matches!(error, Error::Lacking { .. } | Error::Driver { .. }), "{error}");
        assert!(error.hint().is_some());
        assert!(!super::present() || Compiler::find().is_err() || matches!(error, Error::Driver { .. }), "{error}");
    }
}

#[cfg(feature = "cuda-tests")]
mod gpu;
