//! Plans of real models: their functions, bindings, and refused files.

use crate::golden_support;
use crate::golden_support::{Names, Tiny};
use gristmill_encodings::{F32, Q4_0, Q6_K};
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::deepseek2::{Deepseek2, DeepseekHparams};
use gristmill_llm::arch::moe::Gating;
use gristmill_llm::arch::rope;
use gristmill_llm::arch::{
    Bind, Error, Functions, Logits, Options, Pools, StepKind, Tensors, load,
};
use gristmill_llm::gguf::Metadata;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::function::SlotKind;
use std::collections::HashMap;

/// Returns GLM-4.7-Flash's metadata as in its GGUF file.
fn glm() -> Metadata {
    let mut m = Metadata::new();
    m.insert("general.architecture", "deepseek2");
    for (key, v) in [
        ("block_count", 47u32),
        ("context_length", 202_752),
        ("embedding_length", 2048),
        ("feed_forward_length", 10240),
        ("attention.head_count", 20),
        ("attention.head_count_kv", 1),
        ("expert_count", 64),
        ("expert_used_count", 4),
        ("expert_group_count", 1),
        ("expert_group_used_count", 1),
        ("expert_gating_func", 2),
        ("leading_dense_block_count", 1),
        ("vocab_size", 154_880),
        ("attention.q_lora_rank", 768),
        ("attention.kv_lora_rank", 512),
        ("attention.key_length", 576),
        ("attention.value_length", 512),
        ("attention.key_length_mla", 256),
        ("attention.value_length_mla", 256),
        ("expert_feed_forward_length", 1536),
        ("expert_shared_count", 1),
        ("rope.dimension_count", 64),
    ] {
        m.insert(format!("deepseek2.{key}"), v);
    }
    for (key, v) in [
        ("rope.freq_base", 1e6f32),
        ("attention.layer_norm_rms_epsilon", 1e-5),
        ("expert_weights_scale", 1.8),
    ] {
        m.insert(format!("deepseek2.{key}"), v);
    }
    m.insert("deepseek2.expert_weights_norm", true);
    m
}

/// The tensors of the model; the function maps name and layer to an encoding.
struct Glm(fn(&str, usize) -> EncodingRef);

impl Tensors for Glm {
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
        let (layer, short) = match name.strip_prefix("blk.") {
            Some(rest) => rest
                .split_once('.')
                .map(|(l, s)| (l.parse().unwrap_or(0), s))?,
            None => (0, name),
        };
        let dense = layer == 0;
        let dims: &[u64] = match short {
            "token_embd.weight" | "output.weight" => &[2048, 154_880],
            "output_norm.weight" | "attn_norm.weight" | "ffn_norm.weight" => &[2048],
            "attn_q_a.weight" => &[2048, 768],
            "attn_q_a_norm.weight" => &[768],
            "attn_q_b.weight" => &[768, 5120],
            "attn_kv_a_mqa.weight" => &[2048, 576],
            "attn_kv_a_norm.weight" => &[512],
            "attn_k_b.weight" => &[192, 512, 20],
            "attn_v_b.weight" => &[512, 256, 20],
            "attn_output.weight" => &[5120, 2048],
            "ffn_gate.weight" | "ffn_up.weight" if dense => &[2048, 10240],
            "ffn_down.weight" if dense => &[10240, 2048],
            "ffn_gate_inp.weight" if !dense => &[2048, 64],
            "exp_probs_b.bias" if !dense => &[64],
            "ffn_gate_exps.weight" | "ffn_up_exps.weight" if !dense => &[2048, 1536, 64],
            "ffn_down_exps.weight" if !dense => &[1536, 2048, 64],
            "ffn_gate_shexp.weight" | "ffn_up_shexp.weight" if !dense => &[2048, 1536],
            "ffn_down_shexp.weight" if !dense => &[1536, 2048],
            _ => return None,
        };
        let full = dims.len() == 1 || short == "ffn_gate_inp.weight";
        Some((
            dims.to_vec(),
            if full { &F32 } else { (self.0)(short, layer) },
        ))
    }
}

fn options(tokens: StepKind) -> Options {
    let rows = Options::rows_for(4096, tokens.max());
    Options {
        tokens,
        rows,
        pools: Pools::from_pages(rows / Options::PAGE),
        contiguous: true,
        depth: rows,
        cache: CacheType::F16,
        logits: Logits::Last,
        tile: Options::TILE,
        cached: None,
        draft: None,
    }
}
const ONE: StepKind = StepKind::Decode;

#[test]
fn glm_has_two_kinds_of_block() {
    let model = load(&glm(), &Glm(|_, _| &Q4_0)).expect("a model");
    let mut functions = Functions::new();
    let decode = model.plan(&options(ONE), &mut functions);
    assert_eq!(decode.calls.len(), 49);
    assert_eq!(decode.functions().len(), 4, "embed, dense, moe, head");
    let chunk = options(StepKind::Prefill { max: 512 });
    let prefill = model.plan(&chunk, &mut functions);
    assert_eq!(prefill.functions().len(), 4);
    assert_eq!(functions.len(), 8);
    model.plan(&options(ONE), &mut functions);
    assert_eq!(functions.len(), 8, "a second plan adds none");
    // 844 tensors, each bound once.
    assert_eq!(decode.weights().len(), 844);
    assert_eq!(prefill.weights().len(), 844);
}

#[test]
fn better_down_projections_make_a_kind_more() {
    let more = |name: &str, layer| -> EncodingRef {
        let better = !(5..41).contains(&layer) || (layer - 5) % 3 == 2;
        if name.contains("down") && better {
            &Q6_K
        } else {
            &Q4_0
        }
    };
    let model = load(&glm(), &Glm(more)).expect("a model");
    let plan = model.plan(&options(ONE), &mut Functions::new());
    assert_eq!(
        plan.functions().len(),
        5,
        "embed, dense, two kinds of moe, head"
    );
}

#[test]
fn slots_are_bound_to_what_they_are() {
    let model = load(&glm(), &Glm(|_, _| &Q4_0)).expect("a model");
    let plan = model.plan(&options(ONE), &mut Functions::new());
    for call in &plan.calls {
        assert_eq!(call.binds.len(), call.function.slots.len());
        for (bind, slot) in call.binds.iter().zip(&call.function.slots) {
            let fits = match bind {
                Bind::Tokens | Bind::Rope(_) | Bind::LayerInput(_) => slot.kind == SlotKind::Input,
                // For training.
                Bind::HiddenGradient(_) | Bind::Parameter(_) | Bind::Gradient(_) => false,
                Bind::Squares(_) | Bind::ExpertRows(_) => false,
                Bind::Targets
                | Bind::TargetWeights
                | Bind::Loss
                | Bind::Cut(_)
                | Bind::Experts(_) => false,
                Bind::AdapterScales | Bind::DraftRows => false,
                Bind::Drafted | Bind::Drafting(_) => false,
                // For quantised caches.
                Bind::RopeMean(_) | Bind::Hadamard => false,
                Bind::Positions | Bind::Slots | Bind::Texts | Bind::Pages | Bind::Table => false,
                Bind::WindowPages | Bind::WindowTable | Bind::StateRow | Bind::StateRows => false,
                Bind::Hidden(_) => matches!(slot.kind, SlotKind::Input | SlotKind::Output),
                Bind::State(_, plane) => {
                    slot.kind == SlotKind::State && slot.dims == [4096, 576] && *plane == 0
                }
                Bind::Weight(_) => slot.kind == SlotKind::Weight,
                Bind::Logits => slot.kind == SlotKind::Output && slot.dims == [1, 154_880],
            };
            assert!(
                fits,
                "{}: {} is bound to {bind:?}",
                call.function.name, slot.name
            );
        }
    }
    let (first, last) = (&plan.calls[1], &plan.calls[47]);
    assert!(first.binds.contains(&Bind::State(0, 0)) && first.binds.contains(&Bind::Hidden(1)));
    assert!(
        last.binds.contains(&Bind::State(46, 0))
            && last
                .binds
                .contains(&Bind::Weight("blk.46.attn_q_a.weight".into()))
    );
}

#[test]
fn a_cache_of_bytes_is_two_planes() {
    let model = load(&glm(), &Glm(|_, _| &Q4_0)).expect("a model");
    let bytes = Options {
        cache: CacheType::Int8,
        ..options(ONE)
    };
    let row = |cache| model.caches()[0].row_bytes(cache);
    assert_eq!(
        (row(CacheType::F16), row(CacheType::Int8)),
        (576 * 2, 576 + 576 / 32 * 2)
    );
    let plan = model.plan(&bytes, &mut Functions::new());
    assert_eq!(plan.functions().len(), 4, "embed, dense, moe, head");
    for (layer, call) in plan.calls[1..=47].iter().enumerate() {
        let of = |plane| {
            let at = call
                .binds
                .iter()
                .position(|b| *b == Bind::State(layer, plane))?;
            let slot = &call.function.slots[at];
            (slot.kind == SlotKind::State)
                .then(|| (slot.dims.clone(), slot.storage.bytes(&slot.dims)))
        };
        assert_eq!(of(0), Some((vec![4096, 576], Some(4096 * 576))));
        assert_eq!(of(1), Some((vec![4096, 18], Some(4096 * 36))));
    }
}

#[test]
fn draft_blocks_are_ignored() {
    let mut m = glm();
    m.insert("deepseek2.block_count", 48u32)
        .insert("deepseek2.nextn_predict_layers", 1u32);
    assert_eq!(load(&m, &Glm(|_, _| &Q4_0)).expect("a model").layers(), 47);
}

#[test]
fn gating_of_files_without_the_key() {
    let without = |m: &Metadata| {
        let mut out = Metadata::new();
        m.iter()
            .filter(|(k, _)| !k.ends_with("gating_func"))
            .for_each(|(k, v)| {
                out.insert(k, v.clone());
            });
        out
    };
    let gating = |m: &Metadata, t: &dyn Tensors| {
        DeepseekHparams::read(m, t)
            .expect("valid")
            .experts
            .expect("experts")
            .routing
            .gating
    };
    assert_eq!(
        gating(&without(&glm()), &Glm(|_, _| &Q4_0)),
        Gating::Sigmoid
    );
    let b = golden_support::tensors(Tiny::B, true, false);
    assert_eq!(
        gating(
            &without(&golden_support::metadata(Tiny::B, true)),
            &Names(&b)
        ),
        Gating::Softmax
    );
    let a = golden_support::tensors(Tiny::A, true, false);
    assert_eq!(
        gating(
            &without(&golden_support::metadata(Tiny::A, true)),
            &Names(&a)
        ),
        Gating::Sigmoid
    );
}

#[test]
fn frequencies_and_scales_are_those_of_the_specification() {
    let near = |found: f64, expected: f64| {
        assert!((found / expected - 1.0).abs() < 2e-8, "{found} {expected}")
    };
    let h = DeepseekHparams::read(&glm(), &Glm(|_, _| &Q4_0)).expect("valid");
    near(h.score_scale, 0.0625);
    let f = rope::frequencies(h.rope, h.base, h.scaling);
    [(1, 0.64938163), (16, 1e-3), (31, 1.5399265e-6)]
        .iter()
        .for_each(|&(k, v)| near(f[k], v));

    // V2-Lite's values for RoPE and scores.
    let mut m = glm();
    m.insert("deepseek2.attention.key_length_mla", 192u32)
        .insert("deepseek2.rope.freq_base", 1e4f32);
    m.insert("deepseek2.rope.scaling.type", "yarn")
        .insert("deepseek2.rope.scaling.factor", 40f32);
    m.insert("deepseek2.rope.scaling.original_context_length", 4096u32);
    // Without the multiplier's key, cosine and sine grow too, which causes a warning.
    let h = DeepseekHparams::read(&m, &Glm(|_, _| &Q4_0)).expect("valid");
    near(h.magnitude, 1.368887945);
    near(h.score_scale, 1.368887945f64.powi(2) / 192f64.sqrt());
    assert_eq!(h.warnings.len(), 1);
    m.insert("deepseek2.rope.scaling.yarn_log_multiplier", 0.0707f32);
    let h = DeepseekHparams::read(&m, &Glm(|_, _| &Q4_0)).expect("valid");
    near(h.score_scale, 0.114721386);
    assert_eq!((h.magnitude, h.warnings.len()), (1.0, 0));
    let f = rope::frequencies(h.rope, h.base, h.scaling);
    let expected = [
        (0, 1.0),
        (1, 0.749894209),
        (10, 0.0562341325),
        (11, 0.0390069270),
        (16, 0.0055),
        (22, 1.77827941e-4),
        (23, 3.33380362e-5),
        (31, 3.33380358e-6),
    ];
    for (k, v) in expected {
        assert!((f[k] / v - 1.0).abs() < 2e-8, "{k}: {} {v}", f[k]);
    }
}

fn refused(change: impl Fn(&mut Metadata, &mut HashMap<String, Vec<u64>>)) -> Error {
    let (mut m, mut t) = (
        golden_support::metadata(Tiny::D, true),
        golden_support::tensors(Tiny::D, true, false),
    );
    Deepseek2::new(
        DeepseekHparams::read(&m, &Names(&t)).expect("valid"),
        &Names(&t),
    )
    .expect("valid");
    change(&mut m, &mut t);
    match load(&m, &Names(&t)) {
        Ok(_) => panic!("accepted"),
        Err(e) => e,
    }
}

#[test]
fn parameters_out_of_bounds_are_refused() {
    let ints: &[(&str, u32)] = &[
        ("block_count", 0),
        ("block_count", 513),
        ("nextn_predict_layers", 3),
        ("embedding_length", 0),
        ("embedding_length", u32::MAX),
        ("attention.head_count", 0),
        ("attention.head_count", 1025),
        ("attention.kv_lora_rank", 0),
        ("rope.dimension_count", 15),
        ("rope.dimension_count", 32),
        ("vocab_size", 65),
        ("expert_count", 513),
        ("expert_used_count", 0),
        ("expert_used_count", 9),
        ("expert_group_count", 3),
        ("expert_group_count", 8),
        ("expert_group_used_count", 0),
        ("expert_group_used_count", 5),
        ("expert_group_used_count", 1),
        ("feed_forward_length", 0),
    ];
    for &(key, v) in ints {
        let e = refused(|m, _| {
            m.insert(format!("deepseek2.{key}"), v);
        });
        assert!(matches!(e, Error::Parameter { .. }), "{key} = {v}: {e}");
        assert!(e.hint().is_some());
    }
    for key in [
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
        "rope.scaling.factor",
    ] {
        for v in [-1.0, f32::NAN, f32::INFINITY] {
            let e = refused(|m, _| {
                m.insert(format!("deepseek2.{key}"), v);
            });
            assert!(matches!(e, Error::Parameter { .. }), "{key} = {v}: {e}");
        }
    }
}

#[test]
fn unimplemented_models_are_refused() {
    let feature = |e: Error| assert!(matches!(e, Error::Feature { .. }), "{e}");
    feature(refused(|m, _| {
        _ = m.insert("deepseek2.attention.temperature_scale", 0.1f32)
    }));
    feature(refused(|m, _| {
        _ = m.insert("deepseek2.rope.scaling.type", "longrope")
    }));
    feature(refused(|m, _| {
        _ = m.insert("deepseek2.expert_gating_func", 5u32)
    }));
    assert!(matches!(
        refused(|m, _| _ = m.insert("general.architecture", "other")),
        Error::Architecture { .. }
    ));
}

#[test]
fn an_unknown_architecture_is_told_which_there_are() {
    let of = |name: &str| refused(|m, _| _ = m.insert("general.architecture", name));
    for (name, nearest) in [
        ("qwen3vl", Some("qwen3")),
        ("llama4", Some("llama")),
        ("deepseek", Some("deepseek2")),
        ("rwkv7", None),
    ] {
        let error = of(name);
        let Error::Architecture { nearest: found, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(*found, nearest, "{name}");
        let hint = error.hint().expect("what there is");
        assert!(
            ["deepseek2", "llama", "qwen2", "qwen3"]
                .iter()
                .all(|known| hint.contains(known)),
            "{hint}"
        );
    }
}

#[test]
fn every_tensor_is_needed_in_its_shape() {
    for name in golden_support::tensors(Tiny::D, true, false).into_keys() {
        // Optional tensors: without them the head is tied, or there is no selection bias.
        let optional = name == "output.weight" || name.ends_with("exp_probs_b.bias");
        if !optional {
            let e = refused(|_, t| drop(t.remove(&name)));
            assert!(
                matches!(&e, Error::MissingTensor(n) if *n == name),
                "{name}: {e}"
            );
        }
        if name != "token_embd.weight" {
            let e = refused(|_, t| t.get_mut(&name).expect("there")[0] += 1);
            assert!(
                matches!(&e, Error::Shape { tensor, .. } if *tensor == name),
                "{name}: {e}"
            );
        }
    }
    assert!(matches!(
        refused(|_, t| t.get_mut("token_embd.weight").expect("there")[1] += 1),
        Error::Parameter { .. }
    ));
}
