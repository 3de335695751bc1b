//! A processor multiplies words of packed weights as vectors: no layer has a kernel that takes them one by one.

mod steps_support;

use gristmill_backend::cpu::dialect::C;
use gristmill_compiler::{Cheapest, compile};
use gristmill_llm::arch::TokenClass;
use gristmill_uop::target::Target;
use steps_support::step;

/// A delta net's decays and betas are a row for each head, and the gate's rows lie across those of the state.
#[test]
fn a_delta_net_multiplies_words_as_vectors() {
    for (isa, lanes) in [("avx2", 8), ("avx512vnni", 16)] {
        let plan = step("qwen3.5-35b-a3b", "q4_k_m", TokenClass::One);
        let delta = plan.functions().into_iter().find(|f| f.name.contains("delta_moe")).expect("a delta net");
        let compiled = compile(delta, &Target::cpu(isa, lanes, 2), Some(&C), &mut Cheapest);
        for program in &compiled.programs {
            let alone = ["dot4_any_1(", "dot4_small_1(", "dot4_signed_1(", "dot2_1("];
            let found = alone.iter().find(|name| program.source.contains(**name));
            assert!(
                found.is_none(),
                "{isa}: {} takes words one by one by {found:?}: {:?}",
                program.title,
                program.notes
            );
        }
    }
}
