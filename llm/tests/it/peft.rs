//! Adapters in the layout of Hugging Face PEFT.

use gristmill_llm::arch::{self, Model};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::train::{
    Adapter, AdapterTensor, Targets, check_exportable, initial_adapter, is_peft, open_adapter,
    write_peft,
};
use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Models of real shape: with permuted queries and keys, without, with experts.
const PERMUTED: &str = "llama-3.1-8b";
const PLAIN: &str = "qwen3-8b";
const EXPERTS: &str = "glm-4.7-flash";
const DENSE: [&str; 6] = [
    PERMUTED,
    PLAIN,
    "granite-3.3-8b",
    "phi-4-mini",
    "youtu-llm-2b",
    "gemma-2-9b",
];

/// A model whose weights are never read.
fn model(preset: &str) -> (Gguf, Box<dyn Model>) {
    let file = Gguf::synth(preset, "q8_0").expect("a preset");
    let model = arch::load(file.metadata(), &file).expect("a model");
    (file, model)
}

/// An adapter of these weights with numbers that all differ.
fn adapter(model: &dyn Model, targets: &str, rank: usize, alpha: f32) -> Adapter {
    let names = targets.split(',').map(str::to_owned).collect();
    let weights = Targets::Names(names).choose(model);
    assert!(!weights.is_empty(), "{targets}");
    let mut adapter = initial_adapter(model, &weights, rank, alpha, 1);
    for tensor in adapter.tensors.values_mut() {
        let values = tensor.values.iter_mut().enumerate();
        values.for_each(|(i, v)| *v = (i % 1021) as f32 / 64.0);
    }
    adapter
}

fn read(path: &Path, file: &Gguf, model: &dyn Model) -> Result<Adapter, String> {
    let opened = open_adapter(path, model, file.metadata()).map_err(|e| e.to_string())?;
    Adapter::read(&opened, model).map_err(|e| e.to_string())
}

/// Writes tensors of f32 and a configuration into `folder`.
fn write(folder: &Path, config: &Value, tensors: &[(&str, Vec<usize>, Vec<f32>)]) {
    let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let data: Vec<Vec<u8>> = tensors.iter().map(|t| bytes(&t.2)).collect();
    let views = tensors.iter().zip(&data).map(|((name, dims, _), data)| {
        let view = TensorView::new(Dtype::F32, dims.clone(), data).expect("a tensor");
        (*name, view)
    });
    let bytes = safetensors::serialize(views, None).expect("a file");
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("adapter_model.safetensors"), bytes).unwrap();
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
}

fn plain_config() -> Value {
    json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none" })
}

#[test]
fn adapters_return_from_peft_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    for preset in DENSE {
        let (file, model) = model(preset);
        let model = model.as_ref();
        let written = adapter(model, "blk.0.,blk.1.", 3, 7.0);
        for name in ["folder/", "file.safetensors"] {
            let path = folder.path().join(preset).join(name);
            assert!(is_peft(&path));
            write_peft(&written, model, file.metadata(), &path).expect("a writer");
            assert_eq!(read(&path, &file, model).as_ref(), Ok(&written), "{preset}");
        }
    }
}

#[test]
fn rows_of_queries_and_keys_are_those_of_hugging_face() {
    let folder = tempfile::tempdir().unwrap();
    let (file, model) = model(PERMUTED);
    let written = adapter(
        model.as_ref(),
        "blk.1.attn_q,blk.1.attn_k,blk.1.attn_v",
        1,
        2.0,
    );
    write_peft(&written, model.as_ref(), file.metadata(), folder.path()).expect("a writer");
    let bytes = fs::read(folder.path().join("adapter_model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).expect("a file");
    let values = |name: &str| -> Vec<f32> {
        let name = format!("base_model.model.model.layers.1.self_attn.{name}.weight");
        let tensor = tensors.tensor(&name).expect(&name);
        let words = tensor.data().as_chunks::<4>().0.iter();
        words.map(|&w| f32::from_le_bytes(w)).collect()
    };
    let key = |name: &str| format!("llama.attention.{name}");
    let head = |of: &str, count: &str| {
        let rows = written.tensors[&format!("blk.1.{of}.weight.lora_b")]
            .values
            .len();
        rows / file.metadata().u32(&key(count)).unwrap().unwrap() as usize
    };
    for (module, tensor, count) in [
        ("q_proj", "attn_q", "head_count"),
        ("k_proj", "attn_k", "head_count_kv"),
    ] {
        let ours = &written.tensors[&format!("blk.1.{tensor}.weight.lora_b")].values;
        let theirs = values(&format!("{module}.lora_B"));
        let rows = head(tensor, count);
        // GGUF has pairs in turn; Hugging Face all first elements, then all second ones.
        for (i, value) in theirs.iter().enumerate() {
            let (head, at) = (i / rows, i % rows);
            let from = head * rows + at % (rows / 2) * 2 + at / (rows / 2);
            assert_eq!(*value, ours[from], "{module} row {i}");
        }
        let a = &written.tensors[&format!("blk.1.{tensor}.weight.lora_a")].values;
        assert_eq!(&values(&format!("{module}.lora_A")), a);
    }
    let v = &written.tensors["blk.1.attn_v.weight.lora_b"].values;
    assert_eq!(&values("v_proj.lora_B"), v);
    let config = fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(
        (&config["r"], &config["lora_alpha"]),
        (&json!(1), &json!(2.0))
    );
    // Only one block is adapted.
    assert_eq!(config["target_modules"][0], "layers.1.self_attn.k_proj");
}

#[test]
fn factors_and_types_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    let (file, model) = model(PLAIN);
    let width = model.width();
    let out = |tensor: &str| {
        let name = format!("blk.0.{tensor}.weight");
        let spec = model.tensors().iter().find(|t| t.name == name);
        spec.expect(&name).dims[0]
    };
    let key = |module: &str, side: &str| {
        format!("base_model.model.model.layers.0.{module}.lora_{side}.weight")
    };
    let mut config = plain_config();
    config["use_rslora"] = json!(true);
    config["alpha_pattern"] = json!({ "mlp.up_proj": 8 });
    let names = ["self_attn.v_proj", "mlp.up_proj"].map(|m| [key(m, "A"), key(m, "B")]);
    let rows = [out("attn_v"), out("ffn_up")];
    let tensors: Vec<(&str, Vec<usize>, Vec<f32>)> = names
        .iter()
        .zip(rows)
        .flat_map(|([a, b], rows)| {
            [
                (a.as_str(), vec![2, width], vec![0.5; 2 * width]),
                (b.as_str(), vec![rows, 2], vec![1.5; rows * 2]),
            ]
        })
        .collect();
    write(folder.path(), &config, &tensors);
    let adapter = read(folder.path(), &file, model.as_ref()).expect("an adapter");
    // The effect of a matrix: alpha / √rank by each module's alpha.
    let effect = |tensor: &str| {
        let b = &adapter.tensors[&format!("blk.0.{tensor}.weight.lora_b")].values;
        adapter.alpha / 2.0 * b[0]
    };
    let expected = [("attn_v", 4.0), ("ffn_up", 8.0)];
    for (tensor, alpha) in expected {
        let expected = alpha / 2f32.sqrt() * 1.5;
        assert!((effect(tensor) / expected - 1.0).abs() < 1e-6, "{tensor}");
    }
    // The same numbers in 16 bits.
    for dtype in [Dtype::F16, Dtype::BF16] {
        let bytes = |v: &[f32]| -> Vec<u8> {
            let of = |&x: &f32| match dtype {
                Dtype::F16 => f16::from_f32(x).to_le_bytes(),
                _ => bf16::from_f32(x).to_le_bytes(),
            };
            v.iter().flat_map(of).collect()
        };
        let data: Vec<Vec<u8>> = tensors.iter().map(|t| bytes(&t.2)).collect();
        let views = tensors.iter().zip(&data).map(|((name, dims, _), data)| {
            (
                *name,
                TensorView::new(dtype, dims.clone(), data).expect("a tensor"),
            )
        });
        let bytes = safetensors::serialize(views, None).expect("a file");
        fs::write(folder.path().join("adapter_model.safetensors"), bytes).unwrap();
        let short = read(folder.path(), &file, model.as_ref());
        assert_eq!(short.as_ref(), Ok(&adapter), "{dtype:?}");
    }
}

#[test]
fn other_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (file, model) = model(PLAIN);
    let model = model.as_ref();
    let width = model.width();
    let begin = "base_model.model.model.layers.0.";
    let a = format!("{begin}self_attn.q_proj.lora_A.weight");
    for (name, dims, expected) in [
        (
            "lora_A.weight".into(),
            vec![2, width],
            "begin with base_model.model.",
        ),
        (
            a.clone(),
            vec![2, width],
            "q_proj.lora_B.weight: it is missing",
        ),
        (
            format!("{begin}self_attn.q_proj.lora_magnitude_vector"),
            vec![2],
            "DoRA",
        ),
        (
            "base_model.model.lm_head.weight".into(),
            vec![2],
            "modules_to_save",
        ),
        (
            "base_model.model.lm_head.lora_A.weight".into(),
            vec![2],
            "only linear layers of blocks",
        ),
        (
            format!("{begin}mlp.experts.3.up_proj.lora_A.weight"),
            vec![2],
            "GGUF adapters have them",
        ),
        (
            format!("{begin}mlp.other.lora_A.weight"),
            vec![2],
            "mlp.other are not converted",
        ),
        (
            "base_model.model.model.layers.999.mlp.up_proj.lora_A.weight".into(),
            vec![2],
            "the model has",
        ),
    ] {
        let values = vec![0.0; dims.iter().product()];
        write(path, &plain_config(), &[(&name, dims, values)]);
        let problem = read(path, &file, model).unwrap_err();
        assert!(problem.contains(expected), "{name}: {problem}");
    }
    let b = a.replace("lora_A", "lora_B");
    let wrong = [
        (&*a, vec![2, 3], vec![0.0; 6]),
        (&*b, vec![2, 2], vec![0.0; 4]),
    ];
    write(path, &plain_config(), &wrong);
    let problem = read(path, &file, model).unwrap_err();
    assert!(problem.contains("it is [2, 3], expected"), "{problem}");
    write(path, &plain_config(), &[]);
    let problem = read(path, &file, model).unwrap_err();
    assert!(problem.contains("no matrices"), "{problem}");
}

#[test]
fn malformed_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (file, model) = model(PLAIN);
    let weights = path.join("adapter_model.safetensors");
    let missing = read(path, &file, model.as_ref()).unwrap_err();
    assert!(missing.contains("adapter_config.json"), "{missing}");
    fs::write(path.join("adapter_config.json"), plain_config().to_string()).unwrap();
    let missing = read(path, &file, model.as_ref()).unwrap_err();
    assert!(missing.contains("adapter_model.safetensors"), "{missing}");
    let header = |json: &str| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    let declared = "{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
    for (bytes, expected) in [
        (vec![1, 2, 3], "too short"),
        (
            u64::MAX.to_le_bytes().to_vec(),
            "a header of 18446744073709551615 bytes",
        ),
        (header("{"), "malformed"),
        (header(declared), "0 bytes of data, and 16 declared"),
        (
            header(&declared.replace("[4]", "[99999999999]")),
            "malformed",
        ),
    ] {
        fs::write(&weights, bytes).unwrap();
        let problem = read(path, &file, model.as_ref()).unwrap_err();
        assert!(problem.contains(expected), "{problem}");
    }
    fs::remove_file(&weights).unwrap();
    fs::write(path.join("adapter_model.bin"), "pickle").unwrap();
    let problem = read(path, &file, model.as_ref()).unwrap_err();
    assert!(problem.contains("safe_serialization"), "{problem}");
}

#[test]
fn experts_cannot_be_written() {
    let (_, model) = model(EXPERTS);
    let weights = Targets::All.choose(model.as_ref());
    let problem = check_exportable(model.architecture(), &weights).unwrap_err();
    assert!(problem.to_string().contains("_exps.weight"), "{problem}");
    let dense: Vec<String> = weights
        .into_iter()
        .filter(|w| !w.contains("_exps"))
        .collect();
    assert!(check_exportable(model.architecture(), &dense).is_ok());
    // An adapter with another rank in one weight names it in a pattern.
    let mut ranks = adapter(
        model.as_ref(),
        "blk.0.attn_output,blk.1.attn_output",
        2,
        0.0,
    );
    let names = ["a", "b"].map(|side| format!("blk.1.attn_output.weight.lora_{side}"));
    for (axis, name) in names.iter().enumerate() {
        let tensor = ranks.tensors.get_mut(name).expect("a matrix");
        let mut dims = tensor.dims.clone();
        dims[axis] = 1;
        let count = dims.iter().product();
        *tensor = AdapterTensor {
            values: tensor.values[..count].to_vec(),
            dims,
        };
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, model) = self::model(EXPERTS);
    write_peft(&ranks, model.as_ref(), file.metadata(), folder.path()).expect("a writer");
    let config = fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let pattern = json!({ "layers.1.self_attn.o_proj": 1 });
    assert_eq!(
        (&config["rank_pattern"], &config["alpha_pattern"]),
        (&pattern, &pattern)
    );
    let back = read(folder.path(), &file, model.as_ref()).expect("an adapter");
    // A factor of 1 each: alpha is 2, and the matrices of rank 1 have half the numbers.
    let half = |name: &str| {
        ranks.tensors[name]
            .values
            .iter()
            .map(|v| v / 2.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(back.alpha, 2.0);
    assert_eq!(back.tensors[&names[1]].values, half(&names[1]));
}
