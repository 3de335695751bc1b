//! `xtask page`: the folder of the page that runs models in the browser.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Options {
    /// Output folder [default: page in Cargo's target folder]
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Target of the page's program.
const TARGET: &str = "wasm32-unknown-unknown";
/// The program's package and its library.
const PROGRAM: (&str, &str) = ("gristmill-web", "gristmill_web.wasm");
/// Files of the server's page that this page has too: Markdown and formulas.
const SHARED: &[&str] = &[
    "blocks.js",
    "dom.js",
    "entities.js",
    "highlight.js",
    "inline.js",
    "markdown.js",
    "tex",
];

pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    let target = target_folder(&root);
    let mut build = shell::cargo(&root);
    let flags = ["build", "--profile", "web", "--locked", "--target", TARGET];
    build.args(flags).args(["--package", PROGRAM.0]);
    // They would replace the flags of this target in .cargo/config.toml.
    build.env_remove("RUSTFLAGS");
    shell::run(&mut build).with_context(|| {
        format!("the page's program is not built; `rustup target add {TARGET}` adds its target")
    })?;
    let output = match &options.output {
        Some(output) => output.clone(),
        None => target.join("page"),
    };
    fs::create_dir_all(output.join("shared"))?;
    let program = target.join(TARGET).join("web").join(PROGRAM.1);
    copy(&program, &output.join("gristmill.wasm"))?;
    copy(&demo(&root)?, &output.join("demo.gguf"))?;
    copy(&root.join("web/page"), &output)?;
    for name in SHARED {
        let from = root.join("server/src/page").join(name);
        copy(&from, &output.join("shared").join(name))?;
    }
    for (name, bytes, packed) in sizes(&output)? {
        println!("{name}: {bytes} bytes, {packed} by gzip");
    }
    println!("{}", output.display());
    Ok(true)
}

/// Returns the demo model, the only one among the assets.
fn demo(root: &Path) -> Result<PathBuf> {
    let is_model = |path: &PathBuf| path.extension().is_some_and(|e| e == "gguf");
    let found = files(&root.join("assets"))?.into_iter().find(is_model);
    found.context("assets has no model")
}

/// Cargo's target folder.
fn target_folder(root: &Path) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root.join(folder),
        None => root.join("target"),
    }
}

/// Copies a file, or the files of a folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
        return Ok(());
    }
    if !from.is_dir() {
        bail!("{} does not exist", from.display());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Returns the program, the model and all other files together: name, bytes, and bytes by gzip.
fn sizes(output: &Path) -> Result<Vec<(String, usize, usize)>> {
    let large = ["gristmill.wasm", "demo.gguf"];
    let is_large = |file: &PathBuf| large.iter().any(|name| file.ends_with(name));
    let (of_large, others): (Vec<PathBuf>, Vec<PathBuf>) =
        files(output)?.into_iter().partition(is_large);
    let mut rows = Vec::new();
    for file in of_large {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let bytes = fs::metadata(&file)?.len() as usize;
        rows.push((name.into_owned(), bytes, packed(&file)?));
    }
    let mut sum = (0, 0);
    for file in others {
        let bytes = fs::metadata(&file)?.len() as usize;
        sum = (sum.0 + bytes, sum.1 + packed(&file)?);
    }
    rows.push(("HTML, CSS and JavaScript".to_owned(), sum.0, sum.1));
    rows.sort();
    Ok(rows)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(files(&path)?),
            false => found.push(path),
        }
    }
    Ok(found)
}

/// Bytes of a file as a server sends it, compressed by gzip.
fn packed(file: &Path) -> Result<usize> {
    let output = Command::new("gzip").args(["-9", "-c"]).arg(file).output();
    Ok(output.context("gzip does not run")?.stdout.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_copied_and_measured() {
        let place = std::env::temp_dir().join(format!("gristmill-page-{}", std::process::id()));
        let (from, to) = (place.join("from"), place.join("to"));
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::write(from.join("gristmill.wasm"), [0; 1000]).unwrap();
        fs::write(from.join("demo.gguf"), [1; 10]).unwrap();
        fs::write(from.join("inner/a.js"), "1;").unwrap();
        copy(&from, &to).unwrap();
        let rows = sizes(&to).unwrap();
        let bytes: Vec<usize> = rows.iter().map(|row| row.1).collect();
        assert_eq!(bytes, [2, 10, 1000]);
        assert!(rows[2].2 < 100);
        assert!(copy(&place.join("none"), &to).is_err());
        fs::remove_dir_all(place).unwrap();
    }
}
