//! Decompose: named ops in terms of others, and contractions in the form that a machine multiplies in.

mod across;
pub mod attention;
pub mod bf16;
mod cooperative;
pub mod f16_split;
pub mod halves;
pub mod int8;
pub mod layouts;
pub mod scan;
pub mod scatter;

use gristmill_uop::Id;
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;
use rustc_hash::FxHashMap;

/// What the kernels for `target` compute of `function`, as a function of the tensor level: contractions are of activations that went through
/// their encoding in eight bits, or through bf16 as their weights. `None` where that changes nothing.
pub fn meaning(function: &Function, target: &Target) -> Option<Function> {
    let mut graph = function.graph.clone();
    let mut roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let encoded = attention::encode(&mut graph, &mut roots, target);
    let derived =
        int8::derive(&mut graph, &mut roots, &mut FxHashMap::default(), int8::layouts_of(function, target), target);
    let outputs = function.outputs.iter().zip(&roots).map(|(o, &r)| (o.0, r)).collect();
    let changed = !derived.dots.is_empty()
        || !derived.tiled.is_empty()
        || !derived.staged.is_empty()
        || !derived.of_halves.is_empty();
    (encoded || changed || !derived.across.is_empty()).then(|| Function { graph, outputs, ..function.clone() })
}
