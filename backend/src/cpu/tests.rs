//! Tests of the device with small kernels written by hand.

mod compiler;

use super::{Cc, CpuDevice, Isa};
use gristmill_runtime::store::Store;
use gristmill_runtime::{Buffer, Device, Error, Kernel, Launch, Memory};
use gristmill_uop::Graph;
use gristmill_uop::program::{Access, Extent, Param, Program};
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

/// A store for one test, removed at its end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path =
            std::env::temp_dir().join(format!("gristmill-cpu-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Place(path)
    }
    fn device(&self, threads: usize) -> CpuDevice {
        let store = Store::open(&self.0, 64 << 20).unwrap();
        CpuDevice::with(
            threads,
            Isa::parse("auto").unwrap(),
            Cc::find().unwrap(),
            store,
        )
        .unwrap()
        .with_prelude(PRELUDE)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const PRELUDE: &str = "typedef long i64; typedef float f32;
#define SIGNATURE(NAME) void NAME(void *const *b, const i64 *v, i64 first, i64 end, void *scratch, _Bool staged)";

/// Workgroups of a test kernel.
enum Groups {
    Fixed(i64),
    /// Value of the variable `n`, at most 1000.
    N,
}

fn program(name: &str, source: &str, params: usize, groups: Groups) -> Program {
    let mut graph = Graph::new();
    let (groups, vars) = match groups {
        Groups::Fixed(n) => (graph.int(n), vec![]),
        Groups::N => (graph.var("n", 0, 1000), vec![Arc::from("n")]),
    };
    Program {
        source: source.replace("NAME", name),
        params: (0..params as u32)
            .map(|slot| Param {
                slot,
                access: Access::ReadWrite,
                extent: Extent::Fixed(0),
            })
            .collect(),
        vars,
        scratch: 4096,
        ..Program::new(name, Arc::new(graph), groups, groups)
    }
}

/// `out[i] = a[i] + b[i] / 3`, eight elements per workgroup, through the scratch.
const ADD: &str = "SIGNATURE(NAME) {
    f32 *out = b[0]; const f32 *x = b[1], *y = b[2]; f32 *t = scratch;
    for (i64 g = first; g < end; g++) {
        for (int i = 0; i < 8; i++) t[i] = y[g * 8 + i] / 3;
        for (int i = 0; i < 8; i++) out[g * 8 + i] = x[g * 8 + i] + t[i];
    }
}";
/// `out = sum over n of x`, one workgroup; reads the output of the level before.
const SUM: &str = "SIGNATURE(NAME) {
    f32 *out = b[0], s = 0; const f32 *x = b[1];
    for (i64 i = 0; i < v[0] * 8; i++) s += x[i];
    out[0] = s;
}";
/// Computes `x * 0.5 + b[1] * 1e-3` for each element, with a scalar `b[1]`.
const SPREAD: &str = "SIGNATURE(NAME) {
    f32 *x = b[0]; const f32 *s = b[1];
    for (i64 i = first * 8; i < end * 8; i++) x[i] = x[i] * 0.5f + s[0] * 1e-3f;
}";
/// Increments an integer per workgroup.
const COUNT: &str =
    "SIGNATURE(NAME) { i64 *x = b[0]; for (i64 g = first; g < end; g++) x[g * 16] += 1; }";
const NOTHING: &str = "SIGNATURE(NAME) { }";

fn floats(device: &dyn Device, values: impl IntoIterator<Item = f32>) -> Buffer {
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    let buffer = device.alloc(bytes.len(), Memory::Scratch).unwrap();
    device.write(&buffer, 0, &bytes).unwrap();
    buffer
}

fn bytes(device: &dyn Device, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    device.read(buffer, 0, &mut bytes).unwrap();
    bytes
}

fn load(device: &dyn Device, programs: &[Program]) -> Vec<Arc<dyn Kernel>> {
    device.load(programs, &|_, _| ()).unwrap()
}

fn launch(kernel: &Arc<dyn Kernel>, buffers: &[&Buffer], level: usize) -> Launch {
    Launch {
        kernel: kernel.clone(),
        buffers: buffers.iter().map(|&b| b.clone()).collect(),
        level,
    }
}

/// Runs three dependent levels several times. Returns the bytes of all buffers.
fn step(place: &Place, threads: usize, n: i64, timed: bool) -> Vec<u8> {
    let device = place.device(threads);
    let programs = [
        program("e_add_1", ADD, 3, Groups::N),
        program("r_sum_2", SUM, 2, Groups::Fixed(1)),
        program("e_spread_3", SPREAD, 2, Groups::N),
    ];
    let mut programs = programs;
    programs[1].vars = vec![Arc::from("n")];
    let kernels = load(&device, &programs);
    let x = floats(&device, (0..8000).map(|i| i as f32 * 0.37));
    let y = floats(&device, (0..8000).map(|i| (i % 17) as f32));
    let out = floats(&device, [0.0; 8000]);
    let sum = floats(&device, [0.0; 4]);
    // Out of order: capture sorts by level and keeps the order of times.
    let launches = vec![
        launch(&kernels[2], &[&x, &sum.slice(4, 4).unwrap()], 9),
        launch(&kernels[0], &[&out, &x, &y], 0),
        launch(&kernels[1], &[&sum.slice(4, 4).unwrap(), &out], 4),
        launch(&kernels[1], &[&sum.slice(8, 4).unwrap(), &out], 4),
    ];
    let mut replay = device.capture(launches).unwrap();
    for turn in 0..10 {
        if timed && turn % 2 == 0 {
            let times = replay.replay_timed(&[("n", n), ("unused", 3)]).unwrap();
            assert_eq!(times.len(), 4);
            assert!(times.iter().all(|&t| (0.0..1.0).contains(&t)));
            assert!(n == 0 || times.iter().all(|&t| t > 0.0), "{times:?}");
        } else if timed {
            let spans = replay.replay_traced(&[("n", n)]).unwrap().spans;
            assert!(
                spans
                    .iter()
                    .all(|s| s.worker < threads && 0.0 <= s.start && s.start <= s.end),
                "{spans:?}"
            );
            // Indices are those of the capture, and a level starts after the
            // previous one has ended.
            let ends = |launch: usize| {
                spans
                    .iter()
                    .filter(|s| s.launch == launch)
                    .map(|s| s.end)
                    .fold(0.0, f64::max)
            };
            let starts = |launch| {
                spans
                    .iter()
                    .filter(|s| s.launch == launch)
                    .map(|s| s.start)
                    .fold(1e9, f64::min)
            };
            assert!(
                [0, 1, 2, 3].iter().all(|&l| n == 0 || ends(l) > 0.0),
                "{spans:?}"
            );
            assert!(
                [(1, 2), (1, 3), (2, 0), (3, 0)]
                    .iter()
                    .all(|&(a, b)| ends(a) <= starts(b)),
                "{spans:?}"
            );
        } else {
            replay.replay(&[("n", n)]).unwrap();
        }
    }
    [&x, &y, &out, &sum]
        .iter()
        .flat_map(|b| bytes(&device, b))
        .collect()
}

#[test]
fn any_team_gives_the_same_bits() {
    let place = Place::new("bits");
    for n in [0, 1, 2, 3, 333, 1000] {
        let one = step(&place, 1, n, false);
        if n == 1 {
            let out = &one[2 * 32000..][..32];
            let first = f32::from_le_bytes(out[4..8].try_into().unwrap());
            assert!(first.is_finite() && first != 0.0);
        }
        for threads in 2..=4 {
            assert!(
                one == step(&place, threads, n, false),
                "{threads} threads, n = {n}"
            );
        }
        assert!(one == step(&place, 2, n, true));
    }
}

#[test]
fn levels_are_in_order_over_thousands_of_replays() {
    let place = Place::new("levels");
    for threads in 1..=4 {
        let device = place.device(threads);
        // Each workgroup reads its neighbour's value of the level before, so that
        // a premature level shows.
        let chain = "SIGNATURE(NAME) { i64 *to = b[0]; const i64 *from = b[1];
            for (i64 g = first; g < end; g++) to[g * 16] = from[(g + 1) % 7 * 16] + 1; }";
        let kernels = load(
            &device,
            &[
                program("chain", chain, 2, Groups::Fixed(7)),
                program("count", COUNT, 1, Groups::Fixed(1)),
            ],
        );
        let (a, b) = (
            device.alloc(7 * 128, Memory::State).unwrap(),
            device.alloc(7 * 128, Memory::Scratch).unwrap(),
        );
        let counters = device.alloc(3 * 128, Memory::Scratch).unwrap();
        let mut launches = vec![];
        for level in 0..40 {
            let (to, from) = if level % 2 == 0 { (&a, &b) } else { (&b, &a) };
            launches.push(launch(&kernels[0], &[to, from], level * 2));
            for i in 0..3 {
                launches.push(launch(
                    &kernels[1],
                    &[&counters.slice(i * 128, 128).unwrap()],
                    level * 2 + i % 2,
                ));
            }
        }
        let mut replay = device.capture(launches).unwrap();
        let rounds = if threads <= 2 { 2000 } else { 200 };
        for _ in 0..rounds {
            replay.replay(&[]).unwrap();
        }
        let number = |buffer: &Buffer, g: usize| {
            i64::from_le_bytes(
                bytes(&device, buffer)[g * 128..g * 128 + 8]
                    .try_into()
                    .unwrap(),
            )
        };
        assert!(
            (0..7).all(|g| number(&b, g) == rounds * 40),
            "{threads} threads"
        );
        assert!((0..3).all(|i| number(&counters, i) == rounds * 40));
    }
}

#[test]
fn a_second_load_compiles_nothing() {
    let place = Place::new("warm");
    let kernel = |i: usize, prefix: &str| {
        program(
            &format!("{prefix}_{i}"),
            &COUNT.replace("1;", &format!("{};", i + 1)),
            1,
            Groups::Fixed(1),
        )
    };
    let programs: Vec<Program> = (0..60).map(|i| kernel(i, "e")).collect();
    let seen = RefCell::new(vec![]);
    let device = place.device(2);
    let kernels = device
        .load(&programs, &|done, total| {
            seen.borrow_mut().push((done, total))
        })
        .unwrap();
    let cold = device.compiled();
    assert!((2..=60).contains(&cold), "units, not kernels: {cold}");
    assert!(
        seen.borrow().len() == cold + 1 && *seen.borrow().last().unwrap() == (60, 60),
        "{seen:?}"
    );
    assert!(seen.borrow().windows(2).all(|w| w[0].0 < w[1].0));

    // In this process: in another order, under other names, and partially.
    let again: Vec<Program> = (0..60).rev().map(|i| kernel(i, "other")).collect();
    let other = load(&device, &again);
    load(&device, &programs[7..9]);
    assert_eq!(device.compiled(), cold);
    assert_eq!(other[0].program().name, "other_59");

    // In another process (here, another device), from the disk.
    drop((kernels, other, device));
    let device = place.device(1);
    let kernels = load(&device, &again);
    assert_eq!(device.compiled(), 0);

    // Some of them with new ones: loaded from the units that contain them.
    let some: Vec<Program> = (50..62).map(|i| kernel(i, "some")).collect();
    let other = place.device(2);
    load(&other, &some);
    assert!((1..=2).contains(&other.compiled()), "two are new");
    let other = place.device(2);
    load(&other, &some);
    assert_eq!(other.compiled(), 0);

    // Each kernel computes its own result.
    let x = device.alloc(128, Memory::Scratch).unwrap();
    let launches = kernels
        .iter()
        .enumerate()
        .map(|(i, k)| launch(k, &[&x], i))
        .collect();
    device.capture(launches).unwrap().replay(&[]).unwrap();
    assert_eq!(
        bytes(&device, &x)[..8],
        (1..=60i64).sum::<i64>().to_le_bytes()
    );

    // A damaged store is compiled again.
    drop((kernels, device));
    for entry in std::fs::read_dir(&place.0).unwrap().flatten() {
        std::fs::write(entry.path(), b"x").unwrap();
    }
    let device = place.device(2);
    load(&device, &programs);
    assert_eq!(device.compiled(), cold);
    // Another text is another kernel.
    load(
        &device,
        &[program("new", "SIGNATURE(NAME) { (void)b; }", 1, Groups::N)],
    );
    assert_eq!(device.compiled(), cold + 1);
}

#[test]
fn symbols_that_the_compiler_calls_are_linked() {
    let place = Place::new("libc");
    let device = place.device(1);
    let source = "SIGNATURE(NAME) {
        char *to = b[0]; const char *from = b[1]; i64 n = v[0] * 3;
        for (i64 i = 0; i < n; i++) to[i] = 0;
        __builtin_memcpy(to, from, n); __builtin_memset(to + n, (int)n, n);
        ((f32 *)to)[100] = __builtin_sqrtf((f32)n) + __builtin_expf(0.0f);
    }";
    let mut it = program("copy", source, 2, Groups::Fixed(1));
    it.vars = vec![Arc::from("n")];
    let kernels = load(&device, &[it]);
    let (to, from) = (
        floats(&device, [1.0; 200]),
        floats(&device, (0..200).map(|i| i as f32)),
    );
    device
        .capture(vec![launch(&kernels[0], &[&to, &from], 0)])
        .unwrap()
        .replay(&[("n", 12)])
        .unwrap();
    assert_eq!(bytes(&device, &to)[..36], bytes(&device, &from)[..36]);
    assert_eq!(bytes(&device, &to)[36..72], [36; 36]);
    assert_eq!(bytes(&device, &to)[400..404], 7f32.to_le_bytes());
}

#[test]
fn pieces_take_the_stages_of_the_share_before() {
    let place = Place::new("staged");
    let device = place.device(3);
    // Two kernels of one level use the scratch alternately.
    let source = "SIGNATURE(NAME) {
        i64 *out = b[0], *filled = b[1], *stage = scratch;
        if (!staged) { stage[0] = WORTH + v[0]; __atomic_fetch_add(filled, 1, __ATOMIC_RELAXED); }
        for (i64 g = first; g < end; g++) out[g] += stage[0];
    }";
    let programs = ["40", "7000"].map(|worth| {
        let mut it = program(
            &format!("worth_{worth}"),
            &source.replace("WORTH", worth),
            2,
            Groups::N,
        );
        it.vars = vec![Arc::from("n")];
        it
    });
    let kernels = load(&device, &programs);
    let [a, b, filled] = [1000, 1000, 1].map(|n| floats(&device, vec![0.0; 2 * n]));
    let launches = vec![
        launch(&kernels[0], &[&a, &filled], 0),
        launch(&kernels[1], &[&b, &filled], 0),
    ];
    let mut replay = device.capture(launches).unwrap();
    let numbers = |buffer: &Buffer| -> Vec<i64> {
        let all = bytes(&device, buffer);
        all.chunks_exact(8)
            .map(|c| i64::from_le_bytes(c.try_into().unwrap()))
            .collect()
    };
    for (turn, n) in [96, 1000].into_iter().enumerate() {
        replay.replay(&[("n", n)]).unwrap();
        assert_eq!(
            numbers(&filled),
            [6 * (turn as i64 + 1)],
            "each worker once for each launch"
        );
    }
    for (buffer, worth) in [(&a, 40), (&b, 7000)] {
        let want = |i: i64| worth + 1000 + if i < 96 { worth + 96 } else { 0 };
        assert_eq!(numbers(buffer), (0..1000).map(want).collect::<Vec<_>>());
    }
}

#[test]
fn errors_say_which_kernel() {
    let place = Place::new("errors");
    let device = place.device(2);
    let good = program("e_good_1", NOTHING, 1, Groups::N);
    let bad = program(
        "e_bad_2",
        "SIGNATURE(NAME) {\n  undeclared = 1;\n}",
        1,
        Groups::N,
    );
    let nameless = program("e_lost_3", "SIGNATURE(other) {}", 1, Groups::N);
    let unresolved = program(
        "e_calls_4",
        "void nowhere(void); SIGNATURE(NAME) { nowhere(); }",
        1,
        Groups::N,
    );
    let fail = |p: &Program| {
        device
            .load(&[good.clone(), p.clone()], &|_, _| ())
            .err()
            .unwrap()
    };
    let error = fail(&bad);
    let Error::Compile { kernel, message } = &error else {
        panic!("{error}")
    };
    assert_eq!(kernel, "e_bad_2");
    assert!(
        message.contains("e_bad_2:2") && message.contains("undeclared"),
        "{message}"
    );
    assert!(error.hint().unwrap().contains("report"));
    assert!(fail(&nameless).to_string().contains("e_lost_3"));
    assert!(fail(&unresolved).to_string().contains("nowhere"));
    assert!(matches!(
        fail(&program("e_empty", "", 0, Groups::N)),
        Error::Invalid { .. }
    ));
    assert!(
        std::fs::read_dir(&place.0)
            .unwrap()
            .flatten()
            .all(|e| e.path().extension().is_some()),
        "nothing is left"
    );
}

/// Helper of other tests: prints how the device opens in that process.
#[test]
fn opens_as_the_environment_says() {
    if std::env::var_os("GRISTMILL_TEST_CHILD").is_none() {
        return;
    }
    match CpuDevice::new(Some(2), "auto", false) {
        Ok(device) => {
            println!("opened\n{}", device.describe().join("\n"));
            let device = device.with_prelude(PRELUDE);
            match device.load(&[program("e_nothing", NOTHING, 1, Groups::N)], &|_, _| ()) {
                Ok(_) => println!("compiled {}", device.compiled()),
                Err(error) => println!("{error}"),
            }
            println!("{:?}", device.warnings());
        }
        Err(error) => println!("{error}\nhint: {}", error.hint().unwrap()),
    }
}

#[test]
fn kernels_that_cannot_be_kept_work_all_the_same() {
    let place = Place::new("unkept");
    let device = place.device(1);
    // Without the directory nothing can be written, as on a full disk.
    std::fs::remove_dir_all(&place.0).unwrap();
    let all: Vec<Program> = (0..30)
        .map(|i| {
            program(
                &format!("e_{i}"),
                &COUNT.replace("1;", &format!("{i};")),
                1,
                Groups::Fixed(1),
            )
        })
        .collect();
    let kernels = load(&device, &all);
    assert!(device.compiled() > 1);
    let x = device.alloc(8, Memory::Scratch).unwrap();
    device
        .capture(vec![launch(&kernels[7], &[&x], 0)])
        .unwrap()
        .replay(&[])
        .unwrap();
    assert_eq!(bytes(&device, &x), 7i64.to_le_bytes());
    let said = device.warnings();
    assert!(
        said.len() == 1
            && said[0]
                .to_string()
                .contains("compiled kernels are not kept"),
        "{said:?}"
    );
    assert!(device.warnings().is_empty());
    // A user without a home directory has them in the directory for temporary files.
    let temporary = Place::new("homeless");
    std::fs::create_dir(&temporary.0).unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "cpu::tests::opens_as_the_environment_says",
            "--nocapture",
        ])
        .env("GRISTMILL_TEST_CHILD", "1")
        .env_remove("HOME")
        .env_remove("XDG_CACHE_HOME")
        .env_remove("GRISTMILL_CACHE")
        .env("TMPDIR", &temporary.0)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let kept = format!("kernel cache: {}/gristmill.", temporary.0.display());
    assert!(
        said.contains(&kept) && said.contains("compiled 1"),
        "{said}"
    );
}

/// AddressSanitizer, used as CONTRIBUTING.md describes, detects a byte after a buffer, but
/// not the last one.
#[test]
fn the_sanitizer_knows_where_a_buffer_ends() {
    let library = std::process::Command::new("cc")
        .arg("-print-file-name=libasan.so")
        .output()
        .unwrap();
    let library = PathBuf::from(String::from_utf8_lossy(&library.stdout).trim());
    if !library.is_absolute() {
        eprintln!("skipped: cc has no libasan.so");
        return;
    }
    let place = Place::new("sanitizer");
    let run = |offset: &str| {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "cpu::tests::touches_a_byte_as_the_environment_says",
                "--nocapture",
            ])
            .envs([
                ("GRISTMILL_TEST_OFFSET", offset),
                ("CC", "cc -fsanitize=address"),
                ("ASAN_OPTIONS", "detect_leaks=0"),
            ])
            .env("GRISTMILL_CACHE", &place.0)
            .env("LD_PRELOAD", &library)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr).into_owned();
        (child.status.success(), said)
    };
    let inside = run("99");
    assert!(inside.0, "{}", inside.1);
    let behind = run("100");
    assert!(
        !behind.0 && behind.1.contains("AddressSanitizer: use-after-poison"),
        "{}",
        behind.1
    );
}

/// Helper of the test above.
#[test]
fn touches_a_byte_as_the_environment_says() {
    let Some(offset) = std::env::var_os("GRISTMILL_TEST_OFFSET") else {
        return;
    };
    let device = CpuDevice::new(Some(1), "auto", false)
        .unwrap()
        .with_prelude(PRELUDE);
    let source = format!(
        "SIGNATURE(NAME) {{ ((char *)b[0])[{}] += 1; }}",
        offset.to_str().unwrap()
    );
    let kernels = load(&device, &[program("e_touch", &source, 1, Groups::Fixed(1))]);
    for memory in [Memory::Weights, Memory::State, Memory::Scratch] {
        let buffer = device.alloc(100, memory).unwrap();
        device
            .capture(vec![launch(&kernels[0], &[&buffer], 0)])
            .unwrap()
            .replay(&[])
            .unwrap();
        assert_eq!(bytes(&device, &buffer)[99], 1);
    }
}

#[test]
fn wrong_launches_are_refused_and_run_nothing() {
    let place = Place::new("wrong");
    let device = place.device(2);
    let kernels = load(&device, &[program("count", COUNT, 1, Groups::N)]);
    let x = device.alloc(128 * 1000, Memory::Scratch).unwrap();
    assert!(device.capture(vec![launch(&kernels[0], &[], 0)]).is_err());
    assert!(
        device
            .capture(vec![launch(&kernels[0], &[&x, &x], 0)])
            .is_err()
    );
    let null = crate::null::NullDevice::new("null", device.target().clone());
    let foreign = load(&null, &[program("count", COUNT, 1, Groups::N)]);
    assert!(device.capture(vec![launch(&foreign[0], &[&x], 0)]).is_err());
    assert!(
        device
            .capture(vec![launch(
                &kernels[0],
                &[&null.alloc(128, Memory::State).unwrap()],
                0
            )])
            .is_err()
    );
    let mut replay = device.capture(vec![launch(&kernels[0], &[&x], 0)]).unwrap();
    for vars in [&[][..], &[("m", 1)], &[("n", 1001)], &[("n", -1)]] {
        assert!(matches!(
            replay.replay(vars).unwrap_err(),
            Error::Invalid { .. }
        ));
    }
    assert!(bytes(&device, &x).iter().all(|&b| b == 0));
    replay.replay(&[("n", 1000)]).unwrap();
    assert!(bytes(&device, &x).chunks(128).all(|c| c[0] == 1));
    device.capture(vec![]).unwrap().replay(&[]).unwrap();
    assert!(device.write(&x, 128 * 1000 - 3, &[0; 4]).is_err());
    assert!(device.read(&x, usize::MAX, &mut [0; 4]).is_err());
    for threads in [0, 100_000] {
        let error = CpuDevice::new(Some(threads), "auto", false).err().unwrap();
        assert!(matches!(error, Error::Setting { .. }), "{error}");
    }
}

#[test]
fn replays_of_several_threads_take_turns() {
    let place = Place::new("turns");
    let device = place.device(2);
    let kernels = load(&device, &[program("count", COUNT, 1, Groups::Fixed(5))]);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let x = device.alloc(5 * 128, Memory::Scratch).unwrap();
                let launches = (0..20)
                    .map(|level| launch(&kernels[0], &[&x], level))
                    .collect();
                let mut replay = device.capture(launches).unwrap();
                for _ in 0..300 {
                    replay.replay(&[]).unwrap();
                }
                assert!(
                    bytes(&device, &x)
                        .chunks(128)
                        .all(|c| c[..8] == 6000i64.to_le_bytes())
                );
            });
        }
    });
}

#[test]
fn every_instruction_set_of_the_machine_compiles() {
    let place = Place::new("isa");
    for isa in Isa::all_available() {
        let store = Store::open(&place.0, 64 << 20).unwrap();
        let device = CpuDevice::with(1, isa, Cc::find().unwrap(), store)
            .unwrap()
            .with_prelude(PRELUDE);
        load(&device, &[program("e_add_1", ADD, 3, Groups::N)]);
        assert_eq!(
            device.compiled(),
            1,
            "{}: the instruction set is part of the key",
            isa.name()
        );
        assert_eq!(device.target().machine.lanes, isa.lanes());
    }
}
