//! Tests that CPU kernels multiply packed weights as vectors of words, not one word at a time.

use crate::steps_support::step;
use gristmill_backend::cpu::dialect::C;
use gristmill_compiler::{Cheapest, compile};
use gristmill_llm::arch::StepKind;
use gristmill_uop::target::Target;

/// A delta net's gate is computed in a loop nest of its own, with vector lanes.
///
/// Its rows lie across those of the state. A row of decays and betas for each head may still be
/// computed with the state.
#[test]
fn a_delta_net_multiplies_its_gate_as_vectors() {
    for (isa, lanes) in [("avx2", 8), ("avx512vnni", 16)] {
        let plan = step("qwen3.5-35b-a3b", "q4_k_m", StepKind::Decode);
        let delta = plan
            .functions()
            .into_iter()
            .find(|f| f.name.contains("delta_moe"))
            .expect("a delta net");
        let compiled = compile(delta, &Target::cpu(isa, lanes, 2), Some(&C), &mut Cheapest);
        let alone = ["dot4_any_1(", "dot4_small_1(", "dot4_signed_1(", "dot2_1("];
        let one_by_one = compiled
            .programs
            .iter()
            .filter(|p| alone.iter().any(|name| p.source.contains(name)));
        let titles: Vec<&str> = one_by_one.map(|p| &*p.title).collect();
        assert!(
            !titles.iter().any(|title| title.contains("attn_gate")),
            "{isa}: words are taken one by one in {titles:?}"
        );
    }
}
