//! Snapshots of the text of a few kernels.
//!
//! A refactoring leaves them unchanged; an intended change of kernels is visible in review.
//! `cargo xtask bless` updates them.

use gristmill_backend::cpu::dialect::C;
use gristmill_compiler::{Cheapest, compile};
use gristmill_encodings::{Q4_0, Q8_0};
use gristmill_tensor::function::Capture;
use gristmill_tensor::{dims, nn};
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;
use gristmill_uop::{Scalar, text};

/// RMS norm and product with a packed weight: `y = W · rms_norm(x)`.
fn normed_matvec(encoding: EncodingRef) -> Function {
    let c = Capture::new("normed matvec");
    let x = c.input("x", dims![1, 512], Scalar::F32);
    let norm = c.weight("norm", &[512], &gristmill_encodings::F32);
    let w = c.weight("w", &[64, 512], encoding);
    c.output("y", nn::rms_norm(x, norm, 1e-5).linear(w));
    c.finish()
}

fn source(function: &Function, target: &Target) -> String {
    let compiled = compile(function, target, Some(&C), &mut Cheapest);
    compiled
        .programs
        .iter()
        .map(|p| p.source.clone())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn q4_0_for_avx512() {
    insta::assert_snapshot!(source(
        &normed_matvec(&Q4_0),
        &Target::cpu("avx512vnni", 16, 2)
    ));
}

#[test]
fn q8_0_for_avx2() {
    insta::assert_snapshot!(source(&normed_matvec(&Q8_0), &Target::cpu("avx2", 8, 2)));
}

#[test]
fn kernel_level_for_a_gpu() {
    let compiled = compile(
        &normed_matvec(&Q4_0),
        &Target::named("h200"),
        None,
        &mut Cheapest,
    );
    let all: Vec<String> = compiled
        .programs
        .iter()
        .map(|p| text::print(&p.graph, &[p.root]))
        .collect();
    insta::assert_snapshot!(all.join("\n"));
}
