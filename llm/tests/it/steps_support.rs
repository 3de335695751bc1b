//! Steps of presets, for tests of what is planned for them.

use gristmill_llm::arch::{Functions, Logits, Model, Options, Plan, Pools, TokenClass, load};
use gristmill_llm::engine::{CacheShape, Most, Settings, cache_rows, classes, depths, plan_options};
use gristmill_llm::gguf::Gguf;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;
use std::sync::Arc;

/// Tokens of context of an engine whose steps are compiled and not run.
pub const CONTEXT: usize = 32768;
/// Most tokens of one of its steps.
pub const CHUNK: usize = 512;

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

/// What such an engine's steps call on that target; of steps of one token, or of all.
pub fn functions_of_steps(
    model: &dyn Model,
    target: &Target,
    functions: &mut Functions,
    all_steps: bool,
) -> Vec<Arc<Function>> {
    let rows = cache_rows(CONTEXT, CHUNK);
    let cache = CacheShape { rows, pages: None, chunk: CHUNK, scalar: Scalar::F16 };
    let mut all = Vec::new();
    for class in classes(Most::chunk(CHUNK), &depths(&Settings::default(), rows, target), None) {
        if class.tokens == 1 || all_steps {
            let plan = model.plan(&plan_options(class, cache, target), functions);
            all.extend(plan.functions().into_iter().cloned());
        }
    }
    all
}
