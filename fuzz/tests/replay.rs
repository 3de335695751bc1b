//! Runs every target on its seeds, its corpus, and deterministic mutations of both;
//! some seconds per target.

use gristmill_fuzz::mutate::{SplitMix, mutate};
use gristmill_fuzz::{Target, find};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Stack size, bytes: that of a main thread on Linux, as under libFuzzer; test
/// threads have a quarter.
const STACK: usize = 8 << 20;
/// Time limit on mutations of one target, for slow or busy machines.
const ENOUGH: Duration = Duration::from_secs(20);
/// Time above which an input counts as a hang, even on a busy machine with a development build.
const HANG: Duration = Duration::from_secs(20);

fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name);
    let mut paths: Vec<PathBuf> = match std::fs::read_dir(&folder) {
        Ok(entries) => entries
            .map(|entry| entry.expect("an entry").path())
            .collect(),
        Err(error) => panic!("{}: {error}", folder.display()),
    };
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            (
                path.display().to_string(),
                std::fs::read(&path).expect("read"),
            )
        })
        .collect()
}

/// Runs an input; saves it to a file if it is a finding.
fn tried(target: &Target, name: &str, input: &[u8]) {
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let took = start.elapsed();
    if outcome.is_err() || took > HANG {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-finding", target.name));
        std::fs::write(&path, input).expect("written");
        eprintln!(
            "{}: {name}, kept as {}, took {took:?}",
            target.name,
            path.display()
        );
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
        panic!("{}: {name} took {took:?}", target.name);
    }
}

fn replay(name: &'static str) {
    let target = find(name).expect("a target");
    let run = move || {
        let named = (target.seeds)()
            .into_iter()
            .enumerate()
            .map(|(i, seed)| (format!("seed {i}"), seed));
        let named: Vec<(String, Vec<u8>)> = named.chain(corpus(target)).collect();
        named
            .iter()
            .for_each(|(name, input)| tried(target, name, input));
        let inputs: Vec<Vec<u8>> = named.into_iter().map(|(_, input)| input).collect();
        assert!(
            inputs.iter().all(|input| input.len() <= target.longest),
            "an input longer than {}",
            target.longest
        );
        let (mut random, start) = (SplitMix(1), Instant::now());
        for i in 0..target.tries {
            if start.elapsed() > ENOUGH {
                println!(
                    "{name}: {i} of {} mutations, the machine is busy",
                    target.tries
                );
                break;
            }
            let input = mutate(&inputs, target.words, target.longest, &mut random);
            tried(target, &format!("mutation {i}"), &input);
        }
    };
    let thread = std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(run)
        .expect("a thread");
    thread.join().unwrap_or_else(|panic| resume_unwind(panic));
}

/// Generates one test per target.
macro_rules! replayed { ($($name:ident)*) => {
    $(
        #[test]
        fn $name() {
            replay(stringify!($name));
        }
    )*
    #[test]
    fn every_target_is_replayed() {
        let names: Vec<&str> = gristmill_fuzz::TARGETS.iter().map(|target| target.name).collect();
        assert_eq!(names, [$(stringify!($name)),*]);
    }
} }

replayed! { gguf split template tokenizer request schema reply ir graphs placements }
