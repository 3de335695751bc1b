//! Reference files with every decision answered at random: any legal schedule is correct.

use super::Run;
use super::tables::{argmax, ids, npy, rms};
use crate::golden_support::{Form, Way};
use gristmill_backend::cpu::{Cc, CpuDevice, Isa, dialect};
use gristmill_backend::{Opened, Options, Precision, open};
use gristmill_compiler::Perturb;
use gristmill_llm::arch;
use gristmill_llm::arch::CacheType;
use gristmill_llm::gguf::Gguf;
use gristmill_runtime::store::Store;
use std::path::Path;
use std::sync::Arc;

/// RMS of the difference, in standard deviations of the reference: float arithmetic in any order.
const WITHIN: f64 = 1e-3;
/// Context for the RoPE tables: as much as the files' tests have.
const CONTEXT: usize = 256;
/// Seeds for each file, unless `GRISTMILL_PERTURB` requests more: one token at a
/// time, and in chunks.
const SEEDS: u64 = 2;
/// Tokens of a chunk.
const CHUNK: usize = 32;
/// Tokens that `interp` runs, which is a thousand times slower than a CPU.
const INTERPRETED: usize = 3;
/// Workers that are planned for, independent of the machine, so that the candidates
/// are the same everywhere.
const WORKERS: usize = 4;

/// This CPU with `-O0`, as each kernel runs only briefly.
pub fn unoptimised() -> Opened {
    let store = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let store = Store::open(store, 1 << 30).expect("a store");
    let (isa, cc) = (
        Isa::parse("auto").expect("an instruction set"),
        Cc::find().expect("a C compiler"),
    );
    let device = CpuDevice::with(2, isa, cc.with_flag("-O0"), store).expect("a cpu");
    let mut opened = Opened::new(Arc::new(device), Some(&dialect::C));
    opened.target = isa.target_of(WORKERS);
    opened.with_precision(Precision::Exact)
}

/// Returns the interpreter for every other seed, alternating one token at a time and chunks.
pub fn interpreted(seed: u64) -> Option<Opened> {
    let exact = Options {
        precision: Precision::Exact,
        ..Options::default()
    };
    [2, 3]
        .contains(&(seed % 4))
        .then(|| open("interp", &exact).expect("a device"))
}

/// Checks logits of a file in perturbed schedules against its table: RMS, and the same
/// argmax in every row.
pub fn check(file: &Path, logits: &Path, tokens: &Path) {
    let (name, file) = (file.display(), Gguf::open(file).expect("a GGUF file"));
    let model = arch::load(file.metadata(), &file).expect("a model");
    let (expected, tokens) = (npy(logits), ids(tokens));
    let tokens: Vec<i64> = tokens.into_iter().map(i64::from).collect();
    let asked = std::env::var("GRISTMILL_PERTURB")
        .ok()
        .and_then(|n| n.parse().ok());
    for seed in 1..=asked.unwrap_or(SEEDS) {
        // FNV-1a of the file name: other decisions for every file, independent of its path.
        let own = logits.file_name().expect("a name").as_encoded_bytes();
        let number = own.iter().fold(seed, |h, &b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        }) | 1;
        let chunk = seed.is_multiple_of(2).then_some(CHUNK);
        let devices = [
            (Some(unoptimised()), tokens.len()),
            (interpreted(seed), INTERPRETED),
        ];
        for (opened, few) in devices
            .into_iter()
            .filter_map(|(opened, few)| Some((opened?, few)))
        {
            let device = opened.device.name().to_string();
            let way = Way {
                form: Form::Written,
                chunk: chunk.map(|n| n.min(few)),
                cache: CacheType::F32,
            };
            let run = Run {
                model: model.as_ref(),
                file: &file,
                context: CONTEXT,
                tokens: &tokens[..few],
                way,
            };
            let found = run.on(opened, &mut Perturb::new(number));
            let expected = &expected[..found.len()];
            let error = rms(&found, expected);
            let rows = found
                .chunks(model.vocabulary())
                .zip(expected.chunks(model.vocabulary()));
            let same = rows.filter(|(a, b)| argmax(a) == argmax(b)).count();
            println!("{name} on {device}, seed {seed}: rms {error:.2e}, {same} of {few} rows");
            assert!(
                error <= WITHIN && same == few,
                "{name} on {device}, seed {seed}: rms {error}, {same} of {few}"
            );
        }
    }
}
