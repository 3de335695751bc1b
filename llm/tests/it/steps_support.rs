//! Steps of presets, for tests of what is planned for them.

use gristmill_llm::arch::{Functions, Logits, Options, Plan, Pools, TokenClass, load};
use gristmill_llm::gguf::Gguf;
use gristmill_uop::dtype::Scalar;

/// A step of a model of that shape, in a cache of 4,096 rows of halves, or a pool of pages for as many for each of several sequences.
pub fn step(preset: &str, quant: &str, tokens: TokenClass) -> Plan {
    let file = Gguf::synth(preset, quant).expect("a preset");
    let model = load(file.metadata(), &file).expect("a model");
    let pages = match tokens {
        TokenClass::Batch { max } => Some(Pools::new(max * 4096 / Options::PAGE, model.cache_kinds(), max, 512)),
        _ => None,
    };
    let options = Options {
        tokens,
        rows: 4096,
        pages,
        chunk: 512,
        depth: 4096,
        cache: Scalar::F16,
        logits: if pages.is_some() { Logits::All } else { Logits::Last },
        tile: Options::TILE,
    };
    model.plan(&options, &mut Functions::new())
}
