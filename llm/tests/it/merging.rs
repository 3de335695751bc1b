//! Models with merged adapters against the model with the adapter applied.

use crate::common::{data, forward};
use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::{self, CacheType};
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::gguf::{Gguf, TensorDecl, Writer};
use gristmill_llm::train::{Adapter, AdapterTensor, Merge, MergeError};
use gristmill_uop::encoding::EncodingRef;
use std::collections::BTreeMap;

/// Some tokens.
const TOKENS: [u32; 8] = [1, 5, 9, 2, 33, 17, 63, 8];
/// The effect of the test adapter, which has just begun to learn, times this is seen in logits.
const SCALE: f32 = 10.0;

fn demo() -> Gguf {
    Gguf::open(data("demo-glm-Q4_K_M.gguf")).expect("a model")
}

/// The demo model with an adapter.
fn adapted(mut file: Gguf, scale: f32) -> Gguf {
    let adapter = Gguf::open(data("training/adapter.gguf")).expect("an adapter");
    let model = arch::load(file.metadata(), &file).expect("a model");
    let alpha = Adapter::check_file(&adapter, model.as_ref()).expect("it fits");
    file.attach(adapter, alpha, scale);
    file
}

fn merged(file: &Gguf, quant: Option<EncodingRef>) -> Gguf {
    let merge = Merge::new(file, quant).expect("a plan");
    let (mut bytes, mut last) = (Vec::new(), 0);
    let mut goes_on = |written| {
        assert!(written > last);
        last = written;
        true
    };
    merge.write(&mut bytes, &mut goes_on).expect("a model");
    assert_eq!(last, merge.bytes());
    Gguf::from_bytes(bytes).expect("a model")
}

pub fn logits(file: &Gguf) -> Vec<f32> {
    let opened = open("cpu", &Options::default()).expect("a device");
    let opened = opened.with_precision(Precision::Exact);
    let settings = Settings {
        context: Some(64),
        cache: CacheType::F32,
        ..Settings::default()
    };
    let mut engine = Engine::load(file, opened, settings, &|_| ()).expect("an engine");
    forward(&mut engine, &TOKENS, 0, true)
}

/// RMS difference, in standard deviations of the second.
pub fn distance(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let n = expected.len() as f64;
    let mean = expected.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let square = |x: f64| x * x;
    let spread: f64 = expected.iter().map(|&v| square(f64::from(v) - mean)).sum();
    let pairs = found.iter().zip(expected);
    let error: f64 = pairs
        .map(|(&a, &b)| square(f64::from(a) - f64::from(b)))
        .sum();
    (error / spread).sqrt()
}

pub fn encoding(name: &str) -> EncodingRef {
    gristmill_encodings::by_name(name).expect("a format")
}

#[test]
fn merged_models_have_the_adapters_logits() {
    let base = logits(&demo());
    let file = adapted(demo(), SCALE);
    let applied = logits(&file);
    let effect = distance(&base, &applied);
    println!("effect {effect}");
    assert!(effect > 0.5, "{effect}");
    let near = |quant: Option<EncodingRef>, bound: f64| {
        let found = distance(&logits(&merged(&file, quant)), &applied);
        let name = quant.map_or("its own types", |quant| quant.name);
        println!("{name}: {found}");
        assert!(found < bound, "{name}: {found}");
    };
    near(Some(encoding("f32")), 1e-5);
    near(Some(encoding("f16")), 0.003);
    // The types of the file have 4 to 6 bits.
    near(None, 0.3);
}

#[test]
fn weights_that_do_not_change_are_copied() {
    let file = adapted(demo(), 0.0);
    let same = merged(&file, None);
    let own: Vec<_> = demo()
        .metadata()
        .iter()
        .map(|(k, v)| (k.to_owned(), v.clone()))
        .collect();
    let kept: Vec<_> = same
        .metadata()
        .iter()
        .map(|(k, v)| (k.to_owned(), v.clone()))
        .collect();
    assert_eq!(own, kept);
    assert_eq!(Merge::new(&file, None).expect("a plan").adapted(), 0);
    let bytes = |file: &Gguf, name: &str| {
        let info = file.tensor(name).expect("a tensor");
        let mut bytes = vec![0; info.bytes as usize];
        file.read_tensor(info, &mut bytes).expect("its data");
        bytes
    };
    // With an effect, the other tensors are copied.
    let changed = merged(&adapted(demo(), SCALE), None);
    let mut differing = 0;
    for info in demo().tensors() {
        assert_eq!(
            bytes(&same, &info.name),
            bytes(&demo(), &info.name),
            "{}",
            info.name
        );
        let is_adapted = file
            .tensor(&format!("adapter0.{}.lora_a", info.name))
            .is_some();
        let differs = bytes(&changed, &info.name) != bytes(&demo(), &info.name);
        assert_eq!(differs, is_adapted, "{}", info.name);
        differing += usize::from(differs);
    }
    let merge = adapted(demo(), SCALE);
    assert_eq!(
        differing,
        Merge::new(&merge, None).expect("a plan").adapted()
    );
}

/// The demo model in f32, with a scale of these numbers for each weight that has one of the names.
fn with_scales(scales: &[(&str, usize)]) -> Gguf {
    let plain = merged(&demo(), Some(encoding("f32")));
    let float = encoding("f32");
    let names: Vec<(String, [u64; 1])> = plain
        .tensors()
        .iter()
        .filter_map(|t| {
            let (_, numbers) = scales.iter().find(|(name, _)| t.name.ends_with(name))?;
            let stem = t.name.strip_suffix(".weight")?;
            Some((format!("{stem}.scale"), [*numbers as u64]))
        })
        .collect();
    assert!(!names.is_empty());
    let own = plain.tensors().iter().map(|t| TensorDecl {
        name: &t.name,
        dims: &t.dims,
        encoding: t.encoding,
    });
    let more = names.iter().map(|(name, dims)| TensorDecl {
        name,
        dims,
        encoding: float,
    });
    let declared: Vec<TensorDecl<'_>> = own.chain(more).collect();
    let mut writer = Writer::new(Vec::new(), plain.metadata(), &declared).expect("a header");
    for info in plain.tensors() {
        let mut bytes = vec![0; info.bytes as usize];
        plain.read_tensor(info, &mut bytes).expect("its data");
        writer.data(&bytes).expect("space");
    }
    for (_, [numbers]) in &names {
        let scale = (0..*numbers).flat_map(|i| (0.7 + 0.1 * i as f32).to_le_bytes());
        writer.data(&scale.collect::<Vec<u8>>()).expect("space");
    }
    Gguf::from_bytes(writer.finish().expect("a file")).expect("a model")
}

#[test]
fn adapters_are_divided_by_scales_that_come_before_them() {
    let experts = demo()
        .metadata()
        .u32("deepseek2.expert_count")
        .expect("a number");
    let experts = experts.expect("experts") as usize;
    let scaled = || {
        with_scales(&[
            ("attn_output.weight", 1),
            ("ffn_gate_exps.weight", experts),
            ("ffn_down_exps.weight", experts),
        ])
    };
    let file = adapted(scaled(), SCALE);
    let (applied, found) = (logits(&file), logits(&merged(&file, None)));
    let effect = distance(&logits(&scaled()), &applied);
    let error = distance(&found, &applied);
    println!("effect {effect}, error {error}");
    assert!(
        effect > 0.01 && error < 1e-4,
        "effect {effect}, error {error}"
    );
}

/// An adapter of rank 1 of one weight, all of whose numbers are `value`.
fn constant_adapter(file: &Gguf, weight: &str, value: f32) -> Gguf {
    let model = arch::load(file.metadata(), file).expect("a model");
    let dims = &file.tensor(weight).expect("a tensor").dims;
    let (width, height) = (dims[0] as usize, dims[1] as usize);
    let side = |dims: [usize; 2]| AdapterTensor {
        dims: dims.to_vec(),
        values: vec![value; dims[0] * dims[1]],
    };
    let tensors = BTreeMap::from([
        (format!("{weight}.lora_a"), side([1, width])),
        (format!("{weight}.lora_b"), side([height, 1])),
    ]);
    let adapter = Adapter {
        architecture: model.architecture().into(),
        alpha: 0.0,
        tensors,
    };
    let mut bytes = Vec::new();
    adapter.write(&mut bytes).expect("a file");
    Gguf::from_bytes(bytes).expect("an adapter")
}

#[test]
fn types_whose_elements_share_codes_are_written() {
    let weight = "blk.0.attn_q.weight";
    let mut file = Gguf::synth("llama-3.1-8b", "iq2_xxs").expect("a model");
    let adapter = constant_adapter(&file, weight, 0.5);
    file.attach(adapter, 0.0, 1.0);
    for quant in [None, Some(encoding("q8_0")), Some(encoding("iq1_m"))] {
        let merge = Merge::new(&file, quant).expect("a plan");
        assert_eq!(merge.adapted(), 1, "{quant:?}");
    }
}

#[test]
fn weights_that_are_not_finite_and_a_stop_end_the_merge() {
    let weight = "blk.0.attn_output.weight";
    let mut file = demo();
    let adapter = constant_adapter(&file, weight, 1e30);
    file.attach(adapter, 0.0, 1.0);
    let merge = Merge::new(&file, None).expect("a plan");
    let error = merge
        .write(std::io::sink(), &mut |_| true)
        .expect_err("an error");
    assert!(
        matches!(&error, MergeError::NotFinite(name) if name == weight),
        "{error}"
    );
    assert!(error.hint().is_some());
    let error = merge
        .write(std::io::sink(), &mut |_| false)
        .expect_err("an error");
    assert!(matches!(error, MergeError::Stopped), "{error}");
}
