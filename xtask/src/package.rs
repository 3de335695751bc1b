//! `xtask package`: archives, wheels, checksums and manifests of a release.
//!
//! Programs are linked by `cargo zigbuild` against an old glibc, or against musl as a shared
//! library, since kernels are loaded with `dlopen`. Each archive has the zig compiler beside the
//! program, cut down to what kernels need.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Options {
    /// Rust target to package; may be given several times [default: all four]
    #[arg(long = "target", value_name = "TRIPLE")]
    targets: Vec<String>,
    /// Output folder
    #[arg(short, long, default_value = "target/package", value_name = "FOLDER")]
    output: PathBuf,
    /// Address of the folder that the files will be downloaded from, for install.sh and manifests
    #[arg(long, default_value = "", value_name = "URL")]
    url: String,
    /// Leave the wheels out
    #[arg(long)]
    no_wheel: bool,
}

/// A Rust target that releases have.
struct Platform {
    triple: &'static str,
    /// Version of glibc to link against, as a suffix of the target: that of Debian 8 and CentOS 7.
    glibc: &'static str,
    /// Flags of rustc, space-separated.
    flags: &'static str,
    /// Tag of a wheel with this processor's zig, which is linked statically.
    zig_tag: &'static str,
    /// Tag of the wheel that is built.
    wheel_tag: &'static str,
}

/// A static program has no `dlopen`. zig links one unless it is told otherwise.
const SHARED_MUSL: &str = "-C target-feature=-crt-static -C link-arg=-dynamic";

const PLATFORMS: &[Platform] = &[
    Platform {
        triple: "x86_64-unknown-linux-gnu",
        glibc: ".2.17",
        flags: "",
        zig_tag: "manylinux2014_x86_64",
        wheel_tag: "manylinux2014",
    },
    Platform {
        triple: "x86_64-unknown-linux-musl",
        glibc: "",
        flags: SHARED_MUSL,
        zig_tag: "manylinux2014_x86_64",
        wheel_tag: "musllinux_1_2",
    },
    Platform {
        triple: "aarch64-unknown-linux-gnu",
        glibc: ".2.17",
        flags: "",
        zig_tag: "manylinux2014_aarch64",
        wheel_tag: "manylinux2014",
    },
    Platform {
        triple: "aarch64-unknown-linux-musl",
        glibc: "",
        flags: SHARED_MUSL,
        zig_tag: "manylinux2014_aarch64",
        wheel_tag: "musllinux_1_2",
    },
];

/// Version of this workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Python packages that build a release.
const TOOLS: &str =
    "in a virtual environment, `pip install cargo-zigbuild maturin ziglang`, and activate it";
/// Files of the repository that each archive has.
const DOCUMENTS: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];
/// Files that are copied to the output with version, address and checksums filled in.
const TEMPLATES: [&str; 3] = [
    "deploy/install.sh",
    "deploy/homebrew/gristmill.rb",
    "deploy/winget/gristmill.yaml",
];
/// File name extensions of archives: `.zip` for Windows.
const ARCHIVES: [&str; 2] = [".tar.gz", ".zip"];

/// Builds all files; returns true.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    let platforms = selected(&options.targets)?;
    check_tools()?;
    let output = root.join(&options.output);
    fs::create_dir_all(&output).with_context(|| format!("cannot make {}", output.display()))?;
    for platform in platforms {
        let program = build(&root, platform, !options.no_wheel)?;
        archive(&root, platform, &program, &output)?;
        if !options.no_wheel {
            wheel(&root, platform, &program, &output)?;
        }
    }
    let sums = checksums(&output)?;
    for template in TEMPLATES {
        let text = fs::read_to_string(root.join(template))?;
        let name = Path::new(template).file_name().unwrap_or_default();
        match filled(&text, &options.url, &sums) {
            Some(text) => fs::write(output.join(name), text)?,
            None => eprintln!("package: no {template}: it names a target that was not built"),
        }
    }
    println!("{}", output.display());
    Ok(true)
}

/// Returns the platforms of these targets; all if there are none.
fn selected(targets: &[String]) -> Result<Vec<&'static Platform>> {
    if targets.is_empty() {
        return Ok(PLATFORMS.iter().collect());
    }
    let find = |target: &String| {
        let found = PLATFORMS.iter().find(|row| row.triple == target);
        found.with_context(|| {
            let known: Vec<&str> = PLATFORMS.iter().map(|row| row.triple).collect();
            format!(
                "{target} is no target of releases\nhint: these are: {}",
                known.join(", ")
            )
        })
    };
    targets.iter().map(find).collect()
}

/// Fails with a hint unless the tools run.
fn check_tools() -> Result<()> {
    for tool in [["cargo-zigbuild", "--version"], ["maturin", "--version"]] {
        let ran = Command::new(tool[0]).args(&tool[1..]).output();
        if !ran.is_ok_and(|out| out.status.success()) {
            bail!("{} does not run\nhint: {TOOLS}", tool[0]);
        }
    }
    Ok(())
}

/// Builds the program for a platform, and the Python module unless that is left out; returns the
/// program's path.
fn build(root: &Path, platform: &Platform, has_module: bool) -> Result<PathBuf> {
    let Platform { triple, .. } = platform;
    eprintln!("package: building {triple}");
    let mut cargo = Command::new("cargo-zigbuild");
    cargo
        .current_dir(root)
        .args(build_arguments(platform, has_module))
        // As maturin does, which runs the same command.
        .env("PYO3_BUILD_EXTENSION_MODULE", "1")
        .env("PYO3_NO_PYTHON", "1");
    add_flags(&mut cargo, platform);
    shell::run(&mut cargo)
        .with_context(|| format!("hint: `rustup target add {triple}`; {TOOLS}"))?;
    let program = target_folder(root).join(triple).join("release/gristmill");
    shell::program(&program, "cargo built it elsewhere: set CARGO_TARGET_DIR")
}

/// Returns the arguments of `cargo-zigbuild`. Packages that are built together have the same
/// features of their dependencies, so that none is compiled twice.
fn build_arguments(platform: &Platform, has_module: bool) -> Vec<String> {
    let Platform { triple, glibc, .. } = platform;
    let mut arguments = "zigbuild --release --locked --package gristmill".to_owned();
    if has_module {
        arguments += " --package gristmill-python";
    }
    arguments += &format!(" --target {triple}{glibc}");
    arguments.split(' ').map(str::to_owned).collect()
}

/// Sets the compiler's flags. What the environment adds would differ from one machine to the next.
fn add_flags(command: &mut Command, platform: &Platform) {
    command.env_remove("RUSTFLAGS");
    if !platform.flags.is_empty() {
        command.env("RUSTFLAGS", platform.flags);
    }
}

/// Returns the folder that cargo builds in.
fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Returns the name of an archive's only folder.
fn archive_name(triple: &str) -> String {
    format!("gristmill-{VERSION}-{triple}")
}

/// Writes the archive of a platform.
fn archive(root: &Path, platform: &Platform, program: &Path, output: &Path) -> Result<()> {
    let name = archive_name(platform.triple);
    let stage = fresh(&target_folder(root).join("package-stage"))?;
    let folder = stage.join(&name);
    let bin = folder.join("bin");
    fs::create_dir_all(&bin)?;
    fs::copy(program, bin.join("gristmill"))?;
    for document in DOCUMENTS {
        fs::copy(root.join(document), folder.join(document))?;
    }
    add_zig(root, platform, &folder.join("lib/gristmill/zig"))?;
    // gzip, as a bare system may have no program for other formats. The same input has the same
    // bytes: sorted, without owners, with the time of the commit.
    let time = shell::stdout(shell::git(root).args(["log", "-1", "--format=@%ct"]))?;
    let file = output.join(format!("{name}.tar.gz"));
    shell::run(
        Command::new("tar")
            .args([
                "--sort=name",
                "--owner=0",
                "--group=0",
                "--numeric-owner",
                "--mode=go=u-w",
            ])
            .args([
                format!("--mtime={}", time.trim()),
                "--use-compress-program=gzip -9n".into(),
            ])
            .arg("-cf")
            .args([&file, Path::new("-C"), &stage, Path::new(&name)]),
    )?;
    eprintln!("package: {}", file.display());
    fs::remove_dir_all(stage)?;
    Ok(())
}

/// Copies a platform's zig: the program, and the file by which it finds its folder. Kernels include
/// no headers and link no library.
fn add_zig(root: &Path, platform: &Platform, folder: &Path) -> Result<()> {
    let version = shell::stdout(Command::new("python3").args([
        "-c",
        "from importlib.metadata import version; print(version('ziglang'))",
    ]))
    .with_context(|| format!("there is no zig\nhint: {TOOLS}"))?;
    let package = format!("ziglang=={}", version.trim());
    let packages = fresh(&target_folder(root).join("package-zig"))?;
    let arguments = [
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--no-compile",
    ];
    shell::run(
        Command::new("python3")
            .args(["-m", "pip"])
            .args(arguments)
            .args(["--platform", platform.zig_tag, &package, "--target"])
            .arg(&packages),
    )?;
    let zig = packages.join("ziglang");
    fs::create_dir_all(folder.join("lib/std"))?;
    for (from, to) in [
        ("zig", "zig"),
        ("lib/std/std.zig", "lib/std/std.zig"),
        ("LICENSE", "LICENSE"),
    ] {
        fs::copy(zig.join(from), folder.join(to))
            .with_context(|| format!("{package} has no {from}"))?;
    }
    fs::remove_dir_all(packages)?;
    Ok(())
}

/// Returns the program that maturin takes for cargo. In place of compiling the module alone, with
/// another linker and other features of dependencies, it does what [`build`] has done.
fn shared_cargo(platform: &Platform) -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let arguments = build_arguments(platform, true).join(" ");
    let flags = platform.flags;
    format!(
        r#"#!/bin/sh
cargo='{cargo}'
[ "$1" = rustc ] || exec "$cargo" "$@"
unset CARGO_ENCODED_RUSTFLAGS
export RUSTFLAGS='{flags}' CARGO="$cargo"
exec cargo-zigbuild {arguments} --message-format json-render-diagnostics
"#
    )
}

/// Builds the wheel of a platform: the Python module, and the program as a script.
fn wheel(root: &Path, platform: &Platform, program: &Path, output: &Path) -> Result<()> {
    let Platform { triple, .. } = platform;
    eprintln!("package: building the wheel of {triple}");
    let python = root.join("python");
    // maturin adds this folder by its name, the module's.
    let data = fresh(&python.join("gristmill._gristmill.data"))?;
    fs::create_dir_all(data.join("scripts"))?;
    fs::copy(program, data.join("scripts/gristmill"))?;
    let shim = fresh(&target_folder(root).join("package-cargo"))?.join("cargo");
    fs::write(&shim, shared_cargo(platform))?;
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755))?;
    let mut maturin = Command::new("maturin");
    maturin
        .current_dir(&python)
        .env("CARGO", &shim)
        .args(["build", "--release", "--locked", "--target", triple])
        .args(["--compatibility", platform.wheel_tag, "--out"])
        .arg(output);
    add_flags(&mut maturin, platform);
    let built = shell::run(&mut maturin).with_context(|| format!("hint: {TOOLS}"));
    fs::remove_dir_all(data)?;
    built
}

/// Makes an empty folder.
fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

/// Writes SHA256SUMS of all archives and wheels; returns its text.
fn checksums(output: &Path) -> Result<String> {
    let mut names: Vec<String> = fs::read_dir(output)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| ARCHIVES.iter().any(|end| name.ends_with(end)) || name.ends_with(".whl"))
        .collect();
    names.sort();
    let sums = shell::stdout(Command::new("sha256sum").current_dir(output).args(&names))?;
    fs::write(output.join("SHA256SUMS"), &sums)?;
    Ok(sums)
}

/// Fills in a template's `@VERSION@`, `@URL@` and `@SHA256 TARGET@`; `None` if a checksum is
/// missing.
fn filled(template: &str, url: &str, sums: &str) -> Option<String> {
    let mut text = template.replace("@VERSION@", VERSION).replace("@URL@", url);
    while let Some((before, rest)) = text.split_once("@SHA256 ") {
        let (triple, after) = rest.split_once('@')?;
        let files = ARCHIVES.map(|end| archive_name(triple) + end);
        let sum = sums
            .lines()
            .find_map(|line| files.iter().find_map(|file| line.strip_suffix(file)))?;
        text = format!("{before}{}{after}", sum.trim());
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_target_is_refused_with_the_known_ones() {
        let error = selected(&["x86_64-pc-windows-msvc".into()]).err().unwrap();
        assert!(
            error.to_string().contains("aarch64-unknown-linux-musl"),
            "{error}"
        );
        let one = selected(&["aarch64-unknown-linux-gnu".into()]).unwrap();
        assert_eq!((one.len(), one[0].glibc), (1, ".2.17"));
    }

    #[test]
    fn maturin_runs_the_same_build_as_the_program() {
        let dir = std::env::temp_dir().join(format!("shared-cargo-{}", std::process::id()));
        let folder = fresh(&dir).unwrap();
        // Both programs that it may run print their arguments.
        for name in ["cargo", "cargo-zigbuild"] {
            let text = format!("#!/bin/sh\nprintf '{name} %s\\n' \"$*\"\n");
            fs::write(folder.join(name), text).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let text = shared_cargo(&PLATFORMS[0]);
        let (begin, rest) = text.split_once("cargo='").unwrap();
        let rest = rest.split_once('\'').unwrap().1;
        let script = format!("{begin}cargo='{}/cargo'{rest}", folder.display());
        let run = |arguments: &[&str]| {
            let path = format!("{}:/usr/bin:/bin", folder.display());
            let mut sh = Command::new("sh");
            sh.env("PATH", path)
                .args(["-c", &script, "cargo"])
                .args(arguments);
            shell::stdout(&mut sh).unwrap()
        };
        let target = "x86_64-unknown-linux-gnu";
        assert_eq!(
            run(&["rustc", "--target", target, "--", "-C", "strip=symbols"]),
            format!(
                "cargo-zigbuild zigbuild --release --locked --package gristmill \
                 --package gristmill-python --target {target}.2.17 \
                 --message-format json-render-diagnostics\n"
            )
        );
        let metadata = run(&["metadata", "--filter-platform", target]);
        assert_eq!(
            metadata,
            format!("cargo metadata --filter-platform {target}\n")
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_template_gets_the_checksum_of_its_target() {
        let template = "@URL@/@VERSION@ @SHA256 aarch64-unknown-linux-gnu@ end";
        let of = |triple| format!("00ff  {}.tar.gz\n", archive_name(triple));
        let sums = of("aarch64-unknown-linux-gnu");
        let text = filled(template, "https://example.org", &sums).unwrap();
        assert_eq!(text, format!("https://example.org/{VERSION} 00ff end"));
        assert_eq!(filled(template, "", &of("x86_64-unknown-linux-gnu")), None);
        let zip = sums.replace(".tar.gz", ".zip");
        assert_eq!(
            filled(template, "https://example.org", &zip),
            filled(template, "https://example.org", &sums)
        );
    }

    #[test]
    fn every_template_is_filled_by_checksums() {
        let root = shell::root().unwrap();
        for template in TEMPLATES {
            let text = fs::read_to_string(root.join(template)).unwrap();
            let sums: String = text
                .split("@SHA256 ")
                .skip(1)
                .map(|part| part.split_once('@').unwrap().0)
                .map(|triple| format!("00ff  {}.tar.gz\n", archive_name(triple)))
                .collect();
            let text = filled(&text, "https://example.org", &sums).unwrap();
            assert!(!text.contains('@'), "{template}: {text}");
        }
    }
}
