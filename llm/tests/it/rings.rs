//! Layers with a window whose cache is a ring: the same logits as in a cache of every position, sequences that are cut and gone on with, and no more bytes than the window
//! needs.

use crate::parity_support::tables::{data, rms};
use crate::session_support::{answer, exact_prefix, feed, fresh};
use gristmill_backend::{Options, open};
use gristmill_llm::arch;
use gristmill_llm::engine::{Compiled, Engine, Forecast, Settings, Weights, cache_rows};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::prefix::{BLOCK, Reuse};
use gristmill_llm::session::Session;
use gristmill_uop::Scalar;

/// What logits of steps cut in other places may differ by, in their deviation: all is exact but for the order of sums.
const NEAR: f64 = 1e-4;
/// Families with windows, of 16 positions in these files.
const FILES: [&str; 5] = ["gemma2-q8_0", "gemma3-q8_0", "gemma4-q8_0", "gemma4-moe-q8_0", "gpt-oss-mxfp4"];
const WINDOW: usize = 16;
/// Tokens of a step: a ring of 64 rows.
const CHUNK: usize = 32;
const RING: usize = 64;

fn exact() -> Options {
    Options { exact: true, quick: true, ..Options::default() }
}

fn settings(context: usize, chunk: usize, cache: Scalar) -> Settings {
    Settings { context: Some(context), cache, chunk, ..Settings::default() }
}

fn engine(name: &str, settings: Settings) -> Engine {
    engine_on("cpu", name, settings)
}

fn engine_on(device: &str, name: &str, settings: Settings) -> Engine {
    let file = Gguf::open(data(&format!("families/{name}.gguf"))).expect("a GGUF file");
    let opened = open(device, &exact()).expect("a device");
    Engine::load(&file, opened, settings, &|_| ()).expect("a model")
}

fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + seed * 101 + i * i % 13) % 300).collect()
}

#[test]
fn many_windows_in_chunks_and_stepwise_are_as_in_a_cache_of_every_position() {
    many_windows("cpu");
}

/// On the first GPU, as on a processor.
#[cfg(feature = "cuda-tests")]
#[test]
fn many_windows_on_cuda() {
    many_windows("cuda");
}

/// On the first adapter, be it a program.
#[cfg(feature = "wgpu")]
#[test]
fn many_windows_on_wgpu() {
    many_windows("wgpu");
}

fn many_windows(device: &str) {
    let tokens = text(3, 400);
    for name in FILES {
        let caches: &[Scalar] = if name == FILES[0] { &[Scalar::F32, Scalar::I8] } else { &[Scalar::F32] };
        for &cache in caches {
            // A ring with room for 512 tokens of a step is not filled.
            let mut whole = engine_on(device, name, settings(400, 512, cache));
            let expected = whole.forward(&tokens, 0, true).expect("logits").to_vec();
            let mut ring = engine_on(device, name, settings(400, CHUNK, cache));
            let chunked = ring.forward(&tokens, 0, true).expect("logits").to_vec();
            let step = |(i, &t): (usize, &u32)| ring.forward(&[t], i, true).expect("logits").to_vec();
            let stepwise: Vec<f32> = tokens.iter().enumerate().flat_map(step).collect();
            // Where bytes are cached, a value at the border of two codes goes either way.
            let most = if cache == Scalar::F32 { NEAR } else { 0.05 };
            let errors = [&chunked, &stepwise].map(|found| rms(found, &expected));
            println!("{name}, {cache:?}: {errors:?}");
            assert!(errors.iter().all(|&e| e < most), "{name}, {cache:?}: {errors:?}");
            assert!(!ring.reaches(300) && ring.reaches(400) && whole.reaches(300));
        }
    }
}

#[test]
fn a_cache_has_the_bytes_of_its_windows() {
    for name in FILES {
        let file = Gguf::open(data(&format!("families/{name}.gguf"))).expect("a GGUF file");
        let model = arch::load(file.metadata(), &file).expect("a model");
        let (all, within) = (model.cache_row_bytes(Scalar::F16), model.window_row_bytes(Scalar::F16));
        assert!(within > 0 && within < all && model.window() == Some(WINDOW));
        let long = engine(name, settings(4000, CHUNK, Scalar::F16));
        assert_eq!(long.cache_bytes(4000), 4000 * (all - within) + RING * within, "{name}");
        assert_eq!(long.cache_bytes(40), 40 * all, "{name}");
        // What is said before it is loaded: a longer context takes rows of the other layers, rotations, a token and a random number.
        let forecast =
            |context| Forecast::of(&file, &settings(context, CHUNK, Scalar::F16), u64::MAX / 2).expect("one");
        let turns: usize = model.rope_tables(4000).iter().map(|t| t.row_bytes()).sum();
        let more = (cache_rows(4000, CHUNK) - cache_rows(400, CHUNK)) * (all - within + turns + 8);
        assert_eq!((forecast(4000).beside - forecast(400).beside) as usize, more, "{name}");
        // What is allocated is what was said, with intermediates.
        let opened = open("cpu", &exact()).expect("a device");
        let none = Weights::default();
        let compiled =
            Compiled::new(&file, opened, settings(4000, CHUNK, Scalar::F16), &none, &|_| ()).expect("compiled");
        assert_eq!(compiled.memory(&none), long.memory_bytes(), "{name}");
        let intermediates = long.memory_bytes() - long.weight_bytes() - forecast(4000).beside;
        assert!(intermediates < 4 << 20, "{name}: {intermediates} bytes that the forecast does not know");
    }
}

/// A session in exact arithmetic, which keeps so many bytes of prefixes.
fn session(name: &str, keep: Option<usize>) -> Session {
    let engine = engine(name, settings(600, CHUNK, Scalar::F32));
    match keep {
        None => Session::new(engine),
        Some(keep) => Session::with_prefixes(engine, keep),
    }
}

fn near(session: &Session, scratch: &mut Session, prompt: &[u32]) {
    let error = rms(session.logits(), &fresh(scratch, prompt, Reuse::Any));
    assert!(error < NEAR, "{} tokens: rms {error}", prompt.len());
}

#[test]
fn conversations_go_on_where_their_windows_are_there() {
    for name in ["gemma3-q8_0", "gpt-oss-mxfp4"] {
        for keep in [None, Some(64 << 20)] {
            let (mut session, mut scratch) = (session(name, keep), session(name, None));
            let first = text(1, 200);
            feed(&mut session, &first, Reuse::Any);
            let said = answer(&mut session, 12);
            // The same conversation: all that was said is there.
            let next = [&first[..], &said, &text(2, 20)].concat();
            let fed = feed(&mut session, &next, Reuse::Any);
            assert!(fed.reused >= 211, "{fed:?}");
            near(&session, &mut scratch, &next);
            // A little is taken back, less than the ring has beside the window.
            let cut = [&next[..next.len() - 10], &text(4, 9)].concat();
            let fed = feed(&mut session, &cut, Reuse::Any);
            assert_eq!(fed.reused, next.len() - 10);
            near(&session, &mut scratch, &cut);
            // Too much: what the first tokens of it saw is gone.
            let cut = [&first[..100], &text(5, 30)].concat();
            let fed = feed(&mut session, &cut, Reuse::Any);
            assert_eq!(fed.reused, 0);
            near(&session, &mut scratch, &cut);
            // Another one, and the first again: its end was kept with its window.
            feed(&mut session, &text(7, 150), Reuse::Any);
            let fed = feed(&mut session, &next, Reuse::Any);
            assert_eq!(fed.reused, if keep.is_some() { (next.len() - 1) / BLOCK * BLOCK } else { 0 });
            near(&session, &mut scratch, &next);
        }
    }
}

#[test]
fn an_exact_prefix_changes_no_bit() {
    let (mut session, mut scratch) = (session("gemma3-q8_0", Some(64 << 20)), session("gemma3-q8_0", Some(0)));
    let text = text(1, 400);
    for len in [20, BLOCK + 1, 101, 370] {
        exact_prefix([&mut session, &mut scratch], &text, len, &[1, BLOCK, len / 2, len], 10);
    }
}

#[test]
fn a_rewound_session_answers_as_before() {
    // An answer longer than the ring: what the prompt's end saw is computed again.
    for length in [12, 2 * RING] {
        let mut session = session("gemma3-q8_0", Some(64 << 20));
        let prompt = text(5, 150);
        feed(&mut session, &prompt, Reuse::Exact);
        let logits = session.logits().to_vec();
        let first = answer(&mut session, length);
        session.rewind(150, &logits);
        assert_eq!(answer(&mut session, length), first);
    }
}

#[test]
fn a_reset_session_begins_anew() {
    let mut session = session("gemma3-q8_0", None);
    let mut scratch = self::session("gemma3-q8_0", None);
    feed(&mut session, &text(1, 300), Reuse::Any);
    session.reset();
    let prompt = text(2, 90);
    assert_eq!(feed(&mut session, &prompt, Reuse::Any).reused, 0);
    near(&session, &mut scratch, &prompt);
    session.advance(3).expect("a step");
    near(&session, &mut scratch, &[&prompt[..], &[3]].concat());
}
