//! Runs one target under libFuzzer: `gristmill-fuzz TARGET [FLAGS OF LIBFUZZER] [CORPUS]`.
//!
//! `list` prints the targets; `seeds TARGET FOLDER` writes the initial corpus to the folder and a
//! dictionary next to it.

use gristmill_fuzz::{TARGETS, Target, find};
use std::ffi::{CString, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

// Links the library that contains the driver.
use libfuzzer_sys as _;

unsafe extern "C" {
    fn LLVMFuzzerRunDriver(
        argc: *mut c_int,
        argv: *mut *mut *mut c_char,
        run: unsafe extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
}

/// Environment variable with the target, for the copies of this program that libFuzzer starts with
/// only its own flags.
const VARIABLE: &str = "GRISTMILL_FUZZ_TARGET";

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

/// Symbol that libfuzzer-sys requires; normally its macro defines it.
#[unsafe(no_mangle)]
extern "C" fn rust_fuzzer_test_input(_: *const u8, _: usize) -> c_int {
    0
}

/// Runs an input. A panic aborts the process, and libFuzzer keeps the input.
///
/// # Safety
/// `data` points to `size` bytes.
unsafe extern "C" fn run(data: *const u8, size: usize) -> c_int {
    // Safety: libFuzzer passes a buffer of that size, which may be null where it is empty.
    let input = if size == 0 {
        &[]
    } else {
        unsafe { std::slice::from_raw_parts(data, size) }
    };
    if let Some(target) = CHOSEN.get()
        && catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err()
    {
        std::process::abort();
    }
    0
}

fn main() -> ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let command = words
        .get(1)
        .and_then(|word| word.to_str())
        .unwrap_or_default()
        .to_owned();
    match command.as_str() {
        "list" => {
            TARGETS.iter().for_each(|target| {
                println!("{}\t{}\t{}", target.name, target.longest, target.about)
            });
            return ExitCode::SUCCESS;
        }
        "seeds" if words.len() == 4 => {
            let target = words[2].to_str().and_then(find);
            return match target.map(|target| write(target, Path::new(&words[3]))) {
                Some(Ok(())) => ExitCode::SUCCESS,
                Some(Err(error)) => refuse(&error.to_string()),
                None => refuse("there is no such target"),
            };
        }
        _ => {}
    }
    let target = match find(&command) {
        Some(target) => {
            words.remove(1);
            // Safety: no other thread exists yet.
            unsafe { std::env::set_var(VARIABLE, target.name) };
            target
        }
        None => match std::env::var(VARIABLE).ok().as_deref().and_then(find) {
            Some(target) => target,
            None => return refuse(&format!("`{command}` is no target")),
        },
    };
    let target = CHOSEN.get_or_init(|| target);
    words.insert(1, format!("-max_len={}", target.longest).into());
    let mut arguments: Vec<*mut c_char> = Vec::new();
    for word in words {
        let Ok(word) = CString::new(word.into_vec()) else {
            return refuse("an argument holds a zero");
        };
        arguments.push(word.into_raw());
    }
    let mut count = arguments.len() as c_int;
    arguments.push(std::ptr::null_mut());
    let mut arguments = arguments.as_mut_ptr();
    // Safety: C strings in the form of `argv`, with a null pointer after the last; they live as
    // long as the process.
    let status = unsafe { LLVMFuzzerRunDriver(&mut count, &mut arguments, run) };
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}

fn refuse(why: &str) -> ExitCode {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    eprintln!(
        "error: {why}\nhint: gristmill-fuzz TARGET [FLAGS] [CORPUS], list, or seeds TARGET FOLDER; targets: {}",
        names.join(", ")
    );
    ExitCode::from(2)
}

/// Writes the seeds of a target to a folder, and its dictionary words to a `.dict` file next to it.
fn write(target: &Target, folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (i, seed) in (target.seeds)().into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{i:03}")), seed)?;
    }
    let escaped = |word: &str| -> String {
        word.bytes()
            .map(|b| {
                if b.is_ascii_alphanumeric() {
                    char::from(b).to_string()
                } else {
                    format!("\\x{b:02x}")
                }
            })
            .collect()
    };
    let words: String = target
        .words
        .iter()
        .map(|word| format!("\"{}\"\n", escaped(word)))
        .collect();
    std::fs::write(folder.with_extension("dict"), words)
}
