//! Lowers named ops (attention, scan, scatter) to simpler ops and gives each
//! contraction its matmul variant.

pub mod attention;
pub mod bf16;
mod cooperative;
pub mod defer_norm_scale;
pub mod dequantise_rows;
mod dequantise_transposed;
pub mod f16_mma;
pub mod f16_split;
mod half_products;
pub mod int8;
pub mod layouts;
pub mod matmul_variant;
mod operands;
pub mod scan;
pub mod scatter;

use crate::decision::{CACHE_ROWS, Cheapest, DEFER_NORM_SCALE, Decider, Decision};
use gristmill_uop::Id;
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;
use matmul_variant::MatmulVariants;
use rustc_hash::FxHashMap;

/// Returns the tensor-level function that the kernels for `target` compute under these decisions.
///
/// It quantises activations to int8, or rounds both operands to f16 or bf16, where a decision chose
/// such a variant. `None` if no decision changes the result.
pub fn meaning(function: &Function, target: &Target, decisions: &[Decision]) -> Option<Function> {
    let plan = |d: &Decision| (d.key(), d.options[d.chosen].plan.clone());
    let plans = decisions
        .iter()
        .filter(|d| d.kind == "product" || d.kind == DEFER_NORM_SCALE.kind)
        .map(plan)
        .collect();
    let mut decider = Decider {
        policy: &mut Cheapest,
        plans: &plans,
        log: vec![],
    };
    let name = function.full_name();
    let of_halves = |d: &Decision| d.kind == CACHE_ROWS.kind && d.chosen == 1;
    let dequantised = match decisions.iter().any(of_halves) {
        true => dequantise_rows::dequantised(function, target).map(|found| found.0),
        false => None,
    };
    let function = dequantised.as_ref().unwrap_or(function);
    let (mut graph, mut hints) = (function.graph.clone(), FxHashMap::default());
    let mut roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let encoded = attention::encode(&mut graph, &mut roots, target);
    defer_norm_scale::defer_norm_scale(
        &mut graph,
        &mut roots,
        &mut hints,
        function,
        target,
        &mut decider,
    );
    let mut forms = MatmulVariants::new(&name, target, &mut decider);
    let layouts = int8::layouts_of(function, target);
    let derived = int8::derive(&mut graph, &mut roots, &mut hints, layouts, &mut forms);
    let outputs = function
        .outputs
        .iter()
        .zip(&roots)
        .map(|(o, &r)| (o.0, r))
        .collect();
    let changed = !derived.dots.is_empty()
        || !derived.tiled.is_empty()
        || !derived.staged.is_empty()
        || !derived.of_halves.is_empty();
    (dequantised.is_some() || encoded || changed || !derived.across.is_empty()).then(|| Function {
        graph,
        outputs,
        ..function.clone()
    })
}
