//! Tests of finding the C compiler and of running it.

use super::super::{Cc, CpuDevice, Isa};
use super::{Groups, NOTHING, Place, program};
use gristmill_runtime::store::Store;
use gristmill_runtime::{Device, Error};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[test]
fn a_machine_without_a_compiler_gets_a_hint() {
    let error = Error::NoCompiler(Cc::named("/nonexistent").unwrap_err());
    assert!(error.hint().unwrap().contains("gcc"));
    // `CC` is read in a child process, since tests run in parallel.
    let run = |cc: &str| {
        let place = Place::new(&format!("cc-{}", cc.len()));
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "cpu::tests::opens_as_the_environment_says",
                "--nocapture",
            ])
            .env("GRISTMILL_TEST_CHILD", "1")
            .env("CC", cc)
            .env("GRISTMILL_CACHE", &place.0)
            .output()
            .unwrap();
        String::from_utf8_lossy(&child.stdout).into_owned()
    };
    let said = run("/nonexistent/cc -m64");
    assert!(
        said.contains("no C compiler: CC is `/nonexistent/cc -m64`, which does not run"),
        "{said}"
    );
    assert!(run("cc -pipe").contains("opened"));
}

#[test]
fn stored_kernels_run_without_a_compiler() {
    let (place, other) = (Place::new("remembered"), Place::new("forgotten"));
    let run = |store: &Place, path: &str, cc: Option<&str>| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "cpu::tests::opens_as_the_environment_says",
            "--nocapture",
        ]);
        child.env_remove("CC").envs(cc.map(|cc| ("CC", cc)));
        child
            .envs([("GRISTMILL_TEST_CHILD", "1"), ("PATH", path)])
            .env("GRISTMILL_CACHE", &store.0);
        String::from_utf8_lossy(&child.output().unwrap().stdout).into_owned()
    };
    let path = std::env::var("PATH").unwrap();
    assert!(run(&place, &path, None).contains("compiled 1"));
    let said = run(&place, "/nonexistent", None);
    assert!(
        said.contains("no longer installed") && said.contains("compiled 0") && said.contains("[]"),
        "{said}"
    );
    // A compiler named by `CC` is not replaced, and an empty store does not help.
    assert!(run(&place, "/nonexistent", Some("cc")).contains("no C compiler: CC is `cc`"));
    assert!(run(&other, "/nonexistent", None).contains("no C compiler: none of"));
}

/// Creates an executable shell script in `folder`.
fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    std::fs::create_dir_all(folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_compiler_is_found_from_where_the_program_was_started() {
    let place = Place::new("relative");
    let tools = place.0.join("tools");
    script(&tools, "mine", "exec cc \"$@\"");
    let path = std::env::var("PATH").unwrap();
    for (cc, path) in [
        ("./tools/mine -pipe", path.clone()),
        ("mine", format!("./tools:{path}")),
    ] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "cpu::tests::opens_as_the_environment_says",
                "--nocapture",
            ])
            .envs([("GRISTMILL_TEST_CHILD", "1"), ("CC", cc), ("PATH", &path)])
            .env("GRISTMILL_CACHE", place.0.join("store"))
            .current_dir(&place.0)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            said.contains(&format!("C compiler: {cc}")) && said.contains("compiled 1"),
            "{said}"
        );
        std::fs::remove_dir_all(place.0.join("store")).unwrap();
    }
}

#[test]
fn a_compiler_that_hangs_is_ended_with_all_that_it_started() {
    let place = Place::new("hangs");
    let started = place.0.join("started");
    let hang = format!(
        "[ \"$1\" = --version ] && echo slow 1 && exit\nsleep 600 &\necho $! > {}\nwait",
        started.display()
    );
    let cc = Cc::named(script(&place.0, "slow", &hang).to_str().unwrap())
        .unwrap()
        .with_limit(Duration::from_secs(10));
    let store = Store::open(place.0.join("store"), 1 << 20).unwrap();
    let device = CpuDevice::with(1, Isa::Plain, cc, store).unwrap();
    let begin = std::time::Instant::now();
    let error = device
        .load(&[program("e_nothing", NOTHING, 1, Groups::N)], &|_, _| ())
        .err()
        .unwrap();
    assert!(
        begin.elapsed() < Duration::from_secs(60),
        "it was waited for"
    );
    let said = error.to_string();
    assert!(
        said.contains("did not finish e_nothing within 10 s")
            && error.hint().unwrap().contains("CC"),
        "{said}"
    );
    let child = std::fs::read_to_string(&started).unwrap();
    assert!(matches!(error, Error::CompilerHangs(_)), "{said}");
    // It was killed; until its parent reaps it, it stays a zombie.
    let state =
        || std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or("gone".into());
    while !["gone", ") Z "].iter().any(|ended| state().contains(ended)) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", state());
        std::thread::yield_now();
    }
}

/// Opens the device in a copy of the test program below `root`, with a search path that has no
/// compiler.
fn run_installed(root: &Path, store: &str) -> String {
    let program = root.join("bin/program");
    std::fs::create_dir_all(program.parent().unwrap()).unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let child = std::process::Command::new(program)
        .args([
            "--exact",
            "cpu::tests::opens_as_the_environment_says",
            "--nocapture",
        ])
        .env_remove("CC")
        .env_remove("HOME")
        .envs([("GRISTMILL_TEST_CHILD", "1"), ("PATH", "/nonexistent")])
        .env("GRISTMILL_CACHE", root.join(store))
        .output()
        .unwrap();
    String::from_utf8_lossy(&child.stdout).into_owned()
}

/// Stands for zig: accepts only what zig does, and has `cc` compile the rest.
const ZIG: &str = "
[ \"$1\" = version ] && echo 9.9 && exit
[ \"$1\" = cc ] && shift || exit 3
[ \"$ZIG_GLOBAL_CACHE_DIR\" = \"$PWD\" ] && [ \"$ZIG_LOCAL_CACHE_DIR\" = \"$PWD\" ] || exit 4
for flag do
    shift
    case $flag in
        -march=*) exit 5 ;;
        -target | *-linux-none | -mcpu=*) ;;
        *) set -- \"$@\" \"$flag\" ;;
    esac
done
export PATH=COMPILERS
exec cc \"$@\"";

#[test]
fn a_zig_of_the_installation_compiles_where_there_is_no_other() {
    let place = Place::new("zig");
    let zig = ZIG.replace("COMPILERS", &std::env::var("PATH").unwrap());
    assert!(run_installed(&place.0, "none").contains("and no zig lies beside the program"));
    let packages = place.0.join("lib/python3.12/site-packages/ziglang");
    script(&packages, "zig", &zig);
    let said = run_installed(&place.0, "package");
    assert!(
        said.contains("ziglang/zig cc: zig 9.9") && said.contains("compiled 1"),
        "{said}"
    );
    // That of an archive comes first.
    script(&place.0.join("lib/gristmill/zig"), "zig", &zig);
    let said = run_installed(&place.0, "archive");
    assert!(
        said.contains("lib/gristmill/zig/zig cc: zig 9.9") && said.contains("compiled 1"),
        "{said}"
    );
}

#[test]
fn zig_is_known_by_its_subcommand() {
    let place = Place::new("zig-named");
    let zig = ZIG.replace("COMPILERS", &std::env::var("PATH").unwrap());
    let python = script(&place.0, "python", &format!("shift 2\n{zig}"));
    let words = format!("{} -m ziglang cc -pipe", python.display());
    let cc = Cc::named(&words).unwrap();
    assert_eq!(cc.describe(), format!("{words}: zig 9.9"));
    let store = Store::open(place.0.join("store"), 1 << 20).unwrap();
    let device = CpuDevice::with(1, Isa::parse("auto").unwrap(), cc, store)
        .unwrap()
        .with_prelude(super::PRELUDE);
    let loaded = device.load(&[program("z_nothing", NOTHING, 1, Groups::N)], &|_, _| ());
    assert!(loaded.is_ok(), "{:?}", loaded.err());
}
