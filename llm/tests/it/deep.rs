//! Tests how a decode step's plan for a GPU changes with the context depth; needs no GPU.

use gristmill_backend::{Options as Device, open};
use gristmill_compiler::{Cheapest, Compiled, compile};
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::{Functions, Logits, Options, Pools, StepKind, load};
use gristmill_llm::gguf::Gguf;

/// Returns the function of GLM's MoE layers in decode steps with that context depth.
fn layer(depth: usize) -> Compiled {
    let file = Gguf::synth("glm-4.7-flash", "q4_0").unwrap();
    let model = load(file.metadata(), &file).unwrap();
    let opened = open("null:gpu", &Device::default()).unwrap();
    let options = Options {
        tokens: StepKind::Decode,
        rows: 18432,
        pools: Pools::from_pages(18432 / Options::PAGE),
        contiguous: true,
        depth,
        cache: CacheType::F16,
        logits: Logits::Last,
        tile: Options::TILE,
        cached: None,
        draft: None,
    };
    let plan = model.plan(&options, &mut Functions::new());
    let moe = plan
        .functions()
        .into_iter()
        .find(|f| f.name.contains("moe"))
        .expect("MoE layers");
    compile(moe, opened.device.target(), opened.dialect, &mut Cheapest)
}

/// Returns the number of the launch with that root.
fn launch(c: &Compiled, root: &str) -> Option<usize> {
    c.programs
        .iter()
        .position(|p| p.notes.iter().any(|n| n.starts_with(root)))
}

#[test]
fn many_partial_results_are_combined_once() {
    let (short, deep) = (layer(2048), layer(18432));
    let combined = "Mul [1, 20, 512]";
    assert_eq!(launch(&short, combined), None);
    assert_eq!(
        launch(&deep, combined),
        launch(&deep, "Cat [<=").map(|i| i + 1)
    );
    assert_eq!([short.programs.len(), deep.programs.len()], [11, 12]);
}
