//! Tiny models as files, tables of logits, and plans run step by step on any device.

pub mod schedules;
pub mod tables;

use crate::golden_support::{Fixture, VARIABLES, Way, of_one_sequence};
use gristmill_backend::{Opened, Options as DeviceOptions, Precision, open};
use gristmill_compiler::ir::layout::Layout;
use gristmill_compiler::{Cheapest, Decision, Policy};
use gristmill_encodings::F32;
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::deepseek2::{Deepseek2, DeepseekHparams};
use gristmill_llm::arch::hadamard;
use gristmill_llm::arch::{Bind, Functions, Model, Options, Plan, StepKind};
use gristmill_llm::gguf::{Gguf, TensorDecl, Writer};
use gristmill_runtime::{Buffer, Memory};
use gristmill_tensor::evaluate::{Env, evaluate_all};
use gristmill_tensor::jit::{Call, Jit, Ready};
use gristmill_uop::function::{Slot, Storage};
use gristmill_uop::{EncodingRef, Id};
use half::{bf16, f16};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tables::argmax;

/// Returns the path of a file that ships with the program.
pub fn asset(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../assets")
        .join(name)
}

/// Returns the folder of the large reference files.
#[cfg(feature = "reference-tests")]
pub fn reference() -> PathBuf {
    std::env::var_os("GRISTMILL_REFERENCE")
        .map(PathBuf::from)
        .expect("GRISTMILL_REFERENCE names the folder")
}

/// Describes the first logit that differs from the truth by more than `limit` of the largest, or a
/// different argmax; `None` if there is none.
pub fn far(found: &[f32], want: &[Vec<f64>], limit: f64) -> Option<String> {
    let scale = want.iter().flatten().fold(0f64, |m, v| m.max(v.abs()));
    assert_eq!(found.len(), want.len() * want[0].len());
    for (t, (f, w)) in found.chunks(want[0].len()).zip(want).enumerate() {
        // NaN is never near.
        let near = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() <= limit * scale;
        if let Some(i) = f.iter().zip(w).position(|p| !near(p)) {
            return Some(format!("token {t}, logit {i}: {} should be {}", f[i], w[i]));
        }
        let exact: Vec<f32> = w.iter().map(|&v| v as f32).collect();
        if argmax(f) != argmax(&exact) {
            return Some(format!(
                "token {t}: argmax {} should be {}",
                argmax(f),
                argmax(&exact)
            ));
        }
    }
    None
}

/// Writes a tiny model as a GGUF file with its matrices in a plain encoding.
pub fn file_of(fixture: &Fixture, encoding: EncodingRef) -> Gguf {
    let mut names: Vec<&String> = fixture.dims.keys().collect();
    names.sort();
    let of = |name: &str| {
        if fixture.dims[name].len() > 1 {
            encoding
        } else {
            &F32
        }
    };
    let decls: Vec<TensorDecl> = names
        .iter()
        .map(|n| TensorDecl {
            name: n,
            dims: &fixture.dims[*n],
            encoding: of(n),
        })
        .collect();
    let mut writer = Writer::new(Vec::new(), &fixture.metadata, &decls).expect("a header");
    for d in &decls {
        let values = fixture.weight(d.name);
        let bytes: Vec<u8> = match d.encoding.name {
            "f16" => values
                .iter()
                .flat_map(|&v| f16::from_f64(v).to_le_bytes())
                .collect(),
            "bf16" => values
                .iter()
                .flat_map(|&v| bf16::from_f64(v).to_le_bytes())
                .collect(),
            _ => values
                .iter()
                .flat_map(|&v| (v as f32).to_le_bytes())
                .collect(),
        };
        writer.data(&bytes).expect("data");
    }
    Gguf::from_bytes(writer.finish().expect("a file")).expect("readable")
}

/// Keeps every function in its given form.
pub struct AsGiven;

impl Policy for AsGiven {
    fn choose(&mut self, decision: &Decision) -> usize {
        if decision.kind == "alternatives" {
            0
        } else {
            Cheapest.choose(decision)
        }
    }
}

/// Loads the model of a file; `latent_eps` overrides the epsilon of the latent norms.
fn model_of(file: &Gguf, latent_eps: Option<f64>) -> Deepseek2 {
    let mut hyper = DeepseekHparams::read(file.metadata(), file).expect("hyper-parameters");
    if let Some(eps) = latent_eps {
        hyper.latent_eps = eps;
    }
    Deepseek2::new(hyper, file).expect("tensors")
}

fn bytes_of(file: &Gguf, name: &str) -> Vec<u8> {
    let info = file.tensor(name).expect("planned from this file");
    let mut data = vec![0; info.bytes as usize];
    file.read_tensor(info, &mut data).expect("readable");
    data
}

/// Returns the evaluator's logits after every token, one at a time. The RoPE table is the
/// device's, in f32.
pub fn truth(file: &Gguf, tokens: &[i64], latent_eps: Option<f64>) -> Vec<Vec<f64>> {
    let model = model_of(file, latent_eps);
    let rows = tokens.len() + 1;
    let options = of_one_sequence(&model, StepKind::Decode, rows, CacheType::F32);
    let rows = options.rows;
    let plan = model.plan(&options, &mut Functions::new());
    let table = model.rope_tables(rows)[0]
        .rows(rows)
        .into_iter()
        .map(f64::from)
        .collect();
    let mut values: HashMap<Bind, Vec<f64>> = HashMap::from([(Bind::Rope(0), table)]);
    for layer in 0..model.layers() {
        for (plane, p) in model.cache_tensors(options.cache)[layer].iter().enumerate() {
            let rows = if p.is_state() {
                options.state_rows()
            } else {
                options.pool_rows(p.window())
            };
            values.insert(Bind::State(layer, plane), vec![0.0; rows * p.width]);
        }
    }
    let mut out = Vec::new();
    for (pos, &token) in tokens.iter().enumerate() {
        values.insert(Bind::Tokens, vec![token as f64]);
        for call in &plan.calls {
            let bytes = |b: &Bind| {
                if let Bind::Weight(n) = b {
                    bytes_of(file, n)
                } else {
                    Vec::new()
                }
            };
            let weights: Vec<Vec<u8>> = call.binds.iter().map(bytes).collect();
            let mut env = Env::new().var("pos", pos as i64);
            env = VARIABLES
                .into_iter()
                .fold(env, |env, (name, value)| env.var(name, value));
            for (slot, bind) in call.binds.iter().enumerate() {
                env = match (call.function.slots[slot].storage, values.get(bind)) {
                    (Storage::Packed(_), _) => env.packed(slot as u32, &weights[slot]),
                    (_, Some(v)) => env.values(slot as u32, v),
                    _ => env,
                };
            }
            let roots: Vec<Id> = call.function.outputs.iter().map(|o| o.1).collect();
            let found = evaluate_all(&call.function.graph, &roots, &env);
            for (&(slot, _), value) in call.function.outputs.iter().zip(found) {
                values.insert(call.binds[slot as usize].clone(), value.data);
            }
        }
        out.push(values[&Bind::Logits].clone());
    }
    out
}

/// Returns a device's logits after every token, in float arithmetic. All buffers except
/// states begin as NaN.
pub fn on_device(
    device: &str,
    file: &Gguf,
    tokens: &[i64],
    way: Way,
    latent_eps: Option<f64>,
    policy: &mut dyn Policy,
) -> Vec<f32> {
    let opened = open(
        device,
        &DeviceOptions {
            precision: Precision::Exact,
            quick: true,
            ..DeviceOptions::default()
        },
    );
    let rows = rows_of(tokens, way);
    let run = Run {
        model: &model_of(file, latent_eps),
        file,
        context: rows,
        tokens,
        way,
    };
    run.on(opened.expect("a device"), policy)
}

/// Returns the cache rows that these tokens take.
fn rows_of(tokens: &[i64], way: Way) -> usize {
    Options::rows_for(tokens.len(), way.chunk.unwrap_or(1))
}

/// A model of a file that runs without an engine, so that a policy answers its decisions.
pub struct Run<'a> {
    pub model: &'a dyn Model,
    pub file: &'a Gguf,
    /// Context in tokens for the RoPE tables.
    pub context: usize,
    pub tokens: &'a [i64],
    pub way: Way,
}

impl Run<'_> {
    /// Returns logits after every token on that device. All buffers except states begin as NaN.
    pub fn on(&self, opened: Opened, policy: &mut dyn Policy) -> Vec<f32> {
        let Run {
            model, tokens, way, ..
        } = *self;
        let class = way
            .chunk
            .map_or(StepKind::Decode, |max| StepKind::Prefill { max });
        let rows = rows_of(tokens, way);
        let options = of_one_sequence(model, class, rows, way.cache);
        let plan = model.plan(&options, &mut Functions::new());
        let mut jit = Jit::new(opened);
        let functions: Vec<_> = plan
            .calls
            .iter()
            .map(|c| way.form.apply(&c.function))
            .collect();
        let ready = jit
            .prepare_with(&functions, policy, &|_, _| ())
            .expect("compiled");
        let (calls, buffers) = self.bound(&mut jit, &plan, ready);
        let d = jit.device().clone();
        let arena =
            Jit::arena(&calls.iter().map(|c| c.function.clone()).collect::<Vec<_>>()).max(64);
        let arena = d.alloc(arena, Memory::Scratch).expect("memory");
        let mut step = jit.capture(&calls, &arena).expect("captured");
        let mut out = Vec::new();
        for (i, part) in tokens.chunks(class.max()).enumerate() {
            let bytes: Vec<u8> = part
                .iter()
                .flat_map(|&t| (t as i32).to_le_bytes())
                .collect();
            d.write(&buffers[&Bind::Tokens], 0, &bytes)
                .expect("written");
            let of_step = [("pos", (i * class.max()) as i64), ("n", part.len() as i64)];
            step.replay(&[&of_step[..], &VARIABLES].concat())
                .expect("run");
            let mut logits = vec![0u8; part.len() * model.vocabulary() * 4];
            d.read(&buffers[&Bind::Logits], 0, &mut logits)
                .expect("read");
            out.extend(
                logits
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            );
        }
        out
    }
    /// Returns the hidden rows of texts in one step of a text encoder on that device.
    pub fn encoded(&self, opened: Opened, policy: &mut dyn Policy, texts: &[Vec<u32>]) -> Vec<f32> {
        let (mut tokens, mut positions, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        for (text, number) in texts.iter().zip(0i32..) {
            tokens.extend(text.iter().map(|&token| token as i32));
            positions.extend(0..text.len() as i32);
            numbers.extend(text.iter().map(|_| number));
        }
        let rows = tokens.len();
        // The row of padding.
        tokens.push(0);
        positions.push(0);
        numbers.push(15);
        // Not all rows that the kernels are compiled for.
        let class = StepKind::Prefill { max: rows + 7 };
        let options = of_one_sequence(self.model, class, 256, self.way.cache);
        let plan = self.model.plan(&options, &mut Functions::new());
        let mut jit = Jit::new(opened);
        let functions = plan.calls.iter().map(|c| self.way.form.apply(&c.function));
        let functions: Vec<_> = functions.collect();
        let ready = jit.prepare_with(&functions, policy, &|_, _| ());
        let (calls, buffers) = self.bound(&mut jit, &plan, ready.expect("compiled"));
        let d = jit.device().clone();
        let all: Vec<_> = calls.iter().map(|c| c.function.clone()).collect();
        let arena = d.alloc(Jit::arena(&all).max(64), Memory::Scratch);
        let mut step = jit
            .capture(&calls, &arena.expect("memory"))
            .expect("captured");
        let inputs = [
            (Bind::Tokens, tokens),
            (Bind::Positions, positions),
            (Bind::Texts, numbers),
        ];
        for (bind, values) in &inputs {
            // Without RoPE and learned positions no slot reads positions.
            if let Some(buffer) = buffers.get(bind) {
                d.write(buffer, 0, bytemuck::cast_slice(values))
                    .expect("written");
            }
        }
        step.replay(&[("n", rows as i64 + 1)]).expect("run");
        let mut found = vec![0f32; rows * self.model.width()];
        let last = &buffers[&Bind::Hidden(self.model.layers())];
        d.read(last, 0, bytemuck::cast_slice_mut(&mut found))
            .expect("read");
        found
    }
    /// Binds buffers to the calls of a plan, with weights in the layouts that the functions read.
    fn bound(
        &self,
        jit: &mut Jit,
        plan: &Plan,
        ready: Vec<Arc<Ready>>,
    ) -> (Vec<Call>, HashMap<Bind, Buffer>) {
        let mut buffers: HashMap<Bind, Buffer> = HashMap::new();
        let mut layouts: HashMap<&str, Layout> = HashMap::new();
        let mut calls = Vec::new();
        for (call, function) in plan.calls.iter().zip(ready) {
            let mut args = Vec::new();
            for (slot, bind) in call.binds.iter().enumerate() {
                let lies = function
                    .compiled
                    .layouts
                    .iter()
                    .find(|l| l.0 as usize == slot);
                let layout = lies.map_or(Layout::File, |l| l.1);
                if let Bind::Weight(name) = bind {
                    assert_eq!(
                        *layouts.entry(name).or_insert(layout),
                        layout,
                        "{name} lies in two ways"
                    );
                }
                if let Bind::LayerInput(layer @ 1..) = bind {
                    // A layer's inputs are a slice of those of all layers, which
                    // the first function writes.
                    let (all, begin) = (
                        &buffers[&Bind::LayerInput(0)],
                        layer * self.model.layer_input() * 4,
                    );
                    args.push(
                        all.slice(begin, all.len() - begin)
                            .expect("inputs of every layer"),
                    );
                    continue;
                }
                let new = || self.filled(jit, bind, &call.function.slots[slot], layout);
                args.push(buffers.entry(bind.clone()).or_insert_with(new).clone());
            }
            calls.push(Call { args, function });
        }
        (calls, buffers)
    }
    /// Returns a buffer for the bind of a slot.
    fn filled(&self, jit: &mut Jit, bind: &Bind, slot: &Slot, layout: Layout) -> Buffer {
        let size = slot.storage.bytes(&slot.dims).expect("a size");
        let filled = |bytes: &[u8]| {
            let b = jit
                .device()
                .alloc(bytes.len(), Memory::State)
                .expect("memory");
            jit.device().write(&b, 0, bytes).expect("written");
            b
        };
        match (bind, slot.storage) {
            (Bind::Weight(name), Storage::Packed(e)) if layout != Layout::File => {
                let bytes = layout.bytes(e, &slot.dims).expect("a size");
                let (file, packed) = (filled(&bytes_of(self.file, name)), filled(&vec![0; bytes]));
                let (columns, rows) = slot.dims.split_last().expect("rows and columns");
                let kind = (e, layout, *columns as usize);
                jit.prepare_packers(&[kind]).expect("a packer");
                let packer = jit.packer(kind).expect("a packer");
                packer
                    .pack(&file, &packed, rows.iter().product::<i64>() as usize)
                    .expect("packed");
                packed
            }
            (Bind::Weight(name), _) => filled(&bytes_of(self.file, name)),
            (Bind::Rope(table), _) => {
                let rows = slot.dims[0] as usize;
                let table = self.model.rope_tables(self.context)[*table].rows(rows);
                filled(
                    &table
                        .iter()
                        .flat_map(|v| v.to_le_bytes())
                        .collect::<Vec<u8>>(),
                )
            }
            (Bind::RopeMean(table), _) => {
                let mean = self.model.rope_tables(self.context)[*table].mean();
                filled(
                    &mean
                        .iter()
                        .flat_map(|v| v.to_le_bytes())
                        .collect::<Vec<u8>>(),
                )
            }
            (Bind::Hadamard, _) => filled(&hadamard::signs()),
            // Zeros, as a device allocates it.
            (Bind::State(..), _) => filled(&vec![0; size]),
            // Slices for the last layers extend past the end by the inputs of all earlier layers.
            (Bind::LayerInput(_), _) => filled(&vec![0xff; 2 * size]),
            _ => filled(&vec![0xff; size]),
        }
    }
}

/// Defines a test for each kind of family with sequences that share a page pool: `$check` gets the
/// name and the quantisation of its file. `$all` lists all of them.
macro_rules! of_families_over_pools {
    ($check:path, $all:ident) => {
        $crate::parity_support::of_families_over_pools! { @tests $check, $all,
            llama_with_divided_frequencies "llama" "q4_k_m";
            phi3_with_joined_matrices "phi3" "q8_0";
            mistral3_with_a_temperature "mistral3" "q8_0";
            qwen3moe_with_experts "qwen3moe" "q8_0";
            gemma3_with_windows "gemma3" "q8_0";
            gemma4_with_shared_caches_and_inputs_of_layers "gemma4" "q8_0";
            gpt_oss_with_sinks "gpt-oss" "mxfp4";
            deepseek2_with_groups_of_experts_and_yarn "deepseek2" "q8_0";
        }
    };
    (@tests $check:path, $all:ident, $($test:ident $family:literal $quant:literal;)*) => {
        $(#[test]
        fn $test() {
            $check($family, $quant);
        })*

        /// The name of each, and its quantisation.
        #[allow(dead_code, reason = "some devices are tested on demand")]
        const $all: &[(&str, &str)] = &[$(($family, $quant)),*];
    };
}
pub(crate) use of_families_over_pools;
