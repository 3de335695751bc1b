//! Steps of presets, for tests of their plans.

use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::{Functions, Logits, Model, Options, Plan, Pools, StepKind, load};
use gristmill_llm::engine::{
    CacheShape, Settings, StepLimits, cache_rows, depths, plan_options, sequence_graphs,
};
use gristmill_llm::gguf::Gguf;
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;
use std::sync::Arc;

/// Context in tokens of an engine that compiles its steps without running them.
pub const CONTEXT: usize = 32768;
/// Maximum tokens of one of its steps.
pub const CHUNK: usize = 512;

/// Returns the plan of a step of a preset, over a page pool with 4,096 f16 rows for each sequence;
/// the pages of a single sequence are consecutive.
pub fn step(preset: &str, quant: &str, tokens: StepKind) -> Plan {
    let file = Gguf::synth(preset, quant).expect("a preset");
    let model = load(file.metadata(), &file).expect("a model");
    let (sequences, contiguous) = match tokens {
        StepKind::BatchedDecode { max } => (max, false),
        _ => (1, true),
    };
    let options = Options {
        tokens,
        rows: 4096,
        pools: Pools::new(
            sequences * 4096 / Options::PAGE,
            model.cache_kinds(),
            sequences,
            512,
        ),
        contiguous,
        depth: 4096,
        cache: CacheType::F16,
        logits: if contiguous {
            Logits::Last
        } else {
            Logits::All
        },
        tile: Options::TILE,
        cached: None,
        draft: None,
    };
    model.plan(&options, &mut Functions::new())
}

/// Returns the functions that the engine's steps call on a target; of decode steps, or of all.
pub fn functions_of_steps(
    model: &dyn Model,
    target: &Target,
    functions: &mut Functions,
    all_steps: bool,
) -> Vec<Arc<Function>> {
    let rows = cache_rows(CONTEXT, CHUNK);
    let pools = Pools::new(rows / Options::PAGE, model.cache_kinds(), 1, CHUNK);
    let cache = CacheShape {
        rows,
        pools,
        cache_type: CacheType::F16,
    };
    let limits = StepLimits {
        chunk: CHUNK,
        long: CHUNK,
    };
    let mut all = Vec::new();
    for graph in sequence_graphs(limits, &depths(&Settings::default(), rows, target)) {
        if graph.tokens == 1 || all_steps {
            let plan = model.plan(&plan_options(graph, cache, target), functions);
            all.extend(plan.functions().into_iter().cloned());
        }
    }
    all
}
