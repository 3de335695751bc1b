//! The golden tiny models (`docs/deepseek2.md`, section 8): weights generated from tensor names,
//! run on an evaluator without schedules.

use gristmill_compiler::testing::{every_form, rules_of_tensors};
use gristmill_encodings::F32;
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::deepseek2::{Deepseek2, DeepseekHparams};
use gristmill_llm::arch::{
    self, Bind, BoundCall, CacheKinds, Functions, Logits, Model, Options, Plan, Pools, StepKind,
    Tensors,
};
use gristmill_llm::gguf::Metadata;
use gristmill_tensor::evaluate::{Env, HostArray, evaluate_all};
use gristmill_uop::Id;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::function::{Function, Storage};
use gristmill_uop::target::Target;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

pub const TOKENS: [i64; 8] = [1, 5, 9, 2, 33, 17, 63, 8];

/// Generates the values of a tensor from its name.
pub fn generate(name: &str, elements: usize) -> Vec<f64> {
    let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let mut next = || {
        state = u64::wrapping_add(state, 0x9E37_79B9_7F4A_7C15);
        let mut z: u64 = state;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        let u = ((z ^ z >> 31) >> 40) as f64 / 8_388_608.0 - 1.0;
        let v = match name {
            _ if name.contains("norm") => 1.0 + 0.25 * u,
            "token_embd.weight" => u,
            _ => 0.25 * u,
        };
        f64::from(v as f32)
    };
    (0..elements).map(|_| next()).collect()
}

/// One of the golden tiny models.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tiny {
    A,
    B,
    C,
    D,
}

/// A tiny model with its metadata and the dims of its tensors.
pub struct Fixture {
    pub metadata: Metadata,
    pub dims: HashMap<String, Vec<u64>>,
    pub hyper: DeepseekHparams,
    pub model: Box<dyn Model>,
    values: RefCell<HashMap<String, Vec<f64>>>,
    kv_b_rows: (usize, usize, usize),
}

pub struct Names<'a>(pub &'a HashMap<String, Vec<u64>>);
impl Tensors for Names<'_> {
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
        self.0.get(name).map(|d| (d.clone(), &F32 as EncodingRef))
    }
}

/// Returns the metadata of a tiny model, in the split or the older format.
pub fn metadata(tiny: Tiny, split: bool) -> Metadata {
    let mut m = Metadata::new();
    let moe = tiny != Tiny::C;
    let mut u = |key: &str, v: u32| {
        m.insert(format!("deepseek2.{key}"), v);
    };
    for (key, v) in [
        ("block_count", 3),
        ("context_length", 4096),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("leading_dense_block_count", if moe { 1 } else { 3 }),
        ("attention.head_count", 4),
        ("attention.kv_lora_rank", 32),
        ("rope.dimension_count", 16),
        ("vocab_size", 64),
        ("expert_feed_forward_length", 32),
    ] {
        u(key, v);
    }
    if tiny != Tiny::B {
        u("attention.q_lora_rank", 32);
    }
    if split {
        u("attention.key_length", 48);
        u("attention.value_length", 32);
        u("attention.key_length_mla", 32);
        u("attention.value_length_mla", 24);
    } else {
        u("attention.key_length", 32);
        u("attention.value_length", 24);
    }
    if moe {
        u("expert_count", 8);
        u("expert_used_count", 3);
        u("expert_shared_count", if tiny == Tiny::B { 2 } else { 1 });
        u("expert_gating_func", if tiny == Tiny::B { 1 } else { 2 });
    }
    if tiny == Tiny::D {
        u("expert_group_count", 4);
        u("expert_group_used_count", 2);
    }
    let (base, eps, scale) = match tiny {
        Tiny::A => (1e6, 1e-5, 1.8),
        Tiny::B => (1e4, 1e-6, 1.0),
        Tiny::C => (1.6e6, 1e-6, 1.0),
        Tiny::D => (1e4, 1e-6, 2.5),
    };
    let mut f = |key: &str, v: f32| {
        m.insert(format!("deepseek2.{key}"), v);
    };
    f("rope.freq_base", base);
    f("attention.layer_norm_rms_epsilon", eps);
    f("expert_weights_scale", scale);
    if matches!(tiny, Tiny::B | Tiny::D) {
        f("rope.scaling.factor", 40.0);
        f(
            "rope.scaling.yarn_log_multiplier",
            if tiny == Tiny::B { 0.0707 } else { 0.1 },
        );
        m.insert("deepseek2.rope.scaling.type", "yarn");
        m.insert("deepseek2.rope.scaling.original_context_length", 4096u32);
    }
    m.insert(
        "deepseek2.expert_weights_norm",
        matches!(tiny, Tiny::A | Tiny::D),
    );
    m.insert("general.architecture", "deepseek2");
    m
}

/// Returns names and dims of the tensors of a tiny model.
pub fn tensors(tiny: Tiny, split: bool, fused: bool) -> HashMap<String, Vec<u64>> {
    let mut t = HashMap::new();
    let mut add = |name: String, dims: &[u64]| {
        t.insert(name, dims.to_vec());
    };
    add("token_embd.weight".into(), &[64, 64]);
    add("output_norm.weight".into(), &[64]);
    if tiny != Tiny::C {
        add("output.weight".into(), &[64, 64]);
    }
    for l in 0..3 {
        let mut add = |name: &str, dims: &[u64]| add(format!("blk.{l}.{name}"), dims);
        add("attn_norm.weight", &[64]);
        add("ffn_norm.weight", &[64]);
        add("attn_kv_a_mqa.weight", &[64, 48]);
        add("attn_kv_a_norm.weight", &[32]);
        add("attn_output.weight", &[96, 64]);
        if tiny == Tiny::B {
            add("attn_q.weight", &[64, 128]);
        } else {
            add("attn_q_a.weight", &[64, 32]);
            add("attn_q_a_norm.weight", &[32]);
            add("attn_q_b.weight", &[32, 128]);
        }
        if split {
            add("attn_k_b.weight", &[16, 32, 4]);
            add("attn_v_b.weight", &[32, 24, 4]);
        } else {
            add("attn_kv_b.weight", &[32, 160]);
        }
        if l == 0 || tiny == Tiny::C {
            add("ffn_gate.weight", &[64, 96]);
            add("ffn_up.weight", &[64, 96]);
            add("ffn_down.weight", &[96, 64]);
            continue;
        }
        let shared = if tiny == Tiny::B { 64 } else { 32 };
        add("ffn_gate_inp.weight", &[64, 8]);
        if tiny != Tiny::B {
            add("exp_probs_b.bias", &[8]);
        }
        if fused {
            add("ffn_gate_up_exps.weight", &[64, 64, 8]);
        } else {
            add("ffn_gate_exps.weight", &[64, 32, 8]);
            add("ffn_up_exps.weight", &[64, 32, 8]);
        }
        add("ffn_down_exps.weight", &[32, 64, 8]);
        add("ffn_gate_shexp.weight", &[64, shared]);
        add("ffn_up_shexp.weight", &[64, shared]);
        add("ffn_down_shexp.weight", &[shared, 64]);
    }
    t
}

impl Fixture {
    pub fn new(tiny: Tiny, split: bool) -> Fixture {
        Fixture::stored(tiny, split, false)
    }
    /// Creates a fixture in a storage format: attention keys and values `split` or in one tensor,
    /// expert gate and up `fused` or separate.
    pub fn stored(tiny: Tiny, split: bool, fused: bool) -> Fixture {
        let (metadata, dims) = (metadata(tiny, split), tensors(tiny, split, fused));
        let hyper = DeepseekHparams::read(&metadata, &Names(&dims)).expect("hyper-parameters");
        let model = arch::load(&metadata, &Names(&dims)).expect("a model");
        let kv_b_rows = (hyper.nope, hyper.value, hyper.kv_rank);
        Fixture {
            metadata,
            dims,
            hyper,
            model,
            values: RefCell::default(),
            kv_b_rows,
        }
    }
    /// Creates a fixture with hyper-parameters that no file can express.
    pub fn changed(tiny: Tiny, change: impl Fn(&mut DeepseekHparams)) -> Fixture {
        let mut fixture = Fixture::new(tiny, true);
        change(&mut fixture.hyper);
        let model = Deepseek2::new(fixture.hyper.clone(), &Names(&fixture.dims)).expect("tensors");
        fixture.model = Box::new(model);
        fixture
    }
    /// Returns the bytes of a weight as f32; empty for other binds.
    fn bytes(&self, bind: &Bind) -> Vec<u8> {
        let Bind::Weight(name) = bind else {
            return Vec::new();
        };
        self.weight(name)
            .iter()
            .flat_map(|&v| (v as f32).to_le_bytes())
            .collect()
    }
    /// Replaces the values of a tensor.
    pub fn replace(&self, name: &str, values: Vec<f64>) {
        self.values.borrow_mut().insert(name.into(), values);
    }
    /// Returns the values of a tensor. Tensors that are defined by another one are derived from it.
    pub fn weight(&self, name: &str) -> Vec<f64> {
        if let Some(v) = self.values.borrow().get(name) {
            return v.clone();
        }
        let (nope, value, rank) = self.kv_b_rows;
        let prefix = name.split("attn_").next().unwrap_or("");
        let kv_b = || {
            generate(
                &format!("{prefix}attn_kv_b.weight"),
                4 * (nope + value) * rank,
            )
        };
        let from = |h: usize, row: usize, c: usize, all: &[f64]| {
            all[(h * (nope + value) + row) * rank + c]
        };
        let mut v = Vec::new();
        if name.ends_with("attn_k_b.weight") {
            let all = kv_b();
            (0..4).for_each(|h| {
                (0..rank).for_each(|c| v.extend((0..nope).map(|j| from(h, j, c, &all))))
            });
        } else if name.ends_with("attn_v_b.weight") {
            let all = kv_b();
            (0..4).for_each(|h| {
                (0..value).for_each(|o| v.extend((0..rank).map(|c| from(h, nope + o, c, &all))))
            });
        } else if name.ends_with("ffn_gate_up_exps.weight") {
            let part = |p: &str| generate(&name.replace("gate_up", p), 64 * 32 * 8);
            let (gate, up) = (part("gate"), part("up"));
            gate.chunks(64 * 32)
                .zip(up.chunks(64 * 32))
                .for_each(|(g, u)| v.extend(g.iter().chain(u)));
        } else {
            v = generate(name, self.dims[name].iter().product::<u64>() as usize);
        }
        self.values.borrow_mut().insert(name.into(), v.clone());
        v
    }
}

/// Form in which a function is evaluated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// As written by the model.
    Written,
    /// The form with this number among those produced by rewrite rules.
    Number(usize),
}

impl Form {
    /// Maximum number of forms: more than a layer of any fixture has.
    pub const MOST: usize = 16;
    /// Returns the function in this form, or as written if there are fewer forms.
    pub fn apply(self, function: &Arc<Function>) -> Arc<Function> {
        let Form::Number(number) = self else {
            return function.clone();
        };
        let forms = every_form(
            function,
            &Target::cpu("plain", 4, 2),
            &rules_of_tensors(),
            Form::MOST,
        );
        forms
            .into_iter()
            .nth(number)
            .map_or_else(|| function.clone(), Arc::new)
    }
}

/// Settings for running a model.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Form of functions that have several: as written, or by number, cheapest estimate first.
    pub form: Form,
    /// Tokens of each step; `None` for one at a time.
    pub chunk: Option<usize>,
    pub cache: CacheType,
}

/// Returns options for steps of one sequence with at least `rows` positions and all logits. Its
/// pages are consecutive, and the pools have one page more than it needs, so that with
/// [`VARIABLES`] it begins after the first.
pub fn of_one_sequence(
    model: &dyn Model,
    tokens: StepKind,
    rows: usize,
    cache: CacheType,
) -> Options {
    let (rows, logits, tile) = (
        rows.next_multiple_of(Options::PAGE),
        Logits::All,
        Options::TILE,
    );
    let CacheKinds { window, states } = model.cache_kinds();
    // As few window pages as the tokens of a step see, so that the ring buffer wraps around.
    let windows = window.map(|window| Pools::blocks(window, tokens.max()).max(2));
    let pools = Pools {
        pages: rows / Options::PAGE + 1,
        windows,
        states: 2 * usize::from(states),
    };
    Options {
        tokens,
        rows,
        pools,
        contiguous: true,
        depth: rows,
        cache,
        logits,
        tile,
        cached: None,
        draft: None,
    }
}

/// Location of the pages, window pages and recurrent states of [`of_one_sequence`].
pub const VARIABLES: [(&str, i64); 3] = [("first_page", 1), ("window_shift", 1), ("state_row", 1)];

/// Returns the logits after every token of `tokens`.
pub fn logits(f: &Fixture, tokens: &[i64], way: Way) -> Vec<Vec<f64>> {
    run(f, tokens, way, |_| None, |_, _, _| ())
}

/// Returns the logits after every token, as [`logits`] does. `watch` selects a node of a function,
/// and `inspect` gets the first position, the call and that node's value.
pub fn run(
    f: &Fixture,
    tokens: &[i64],
    way: Way,
    watch: impl Fn(&Function) -> Option<Id>,
    mut inspect: impl FnMut(usize, &BoundCall, &HostArray),
) -> Vec<Vec<f64>> {
    let class = way
        .chunk
        .map_or(StepKind::Decode, |max| StepKind::Prefill { max });
    let rows = tokens.len() + class.max();
    let options = of_one_sequence(f.model.as_ref(), class, rows, way.cache);
    let rows = options.rows;
    let mut plan: Plan = f.model.plan(&options, &mut Functions::new());
    let mut forms: HashMap<*const Function, Arc<Function>> = HashMap::new();
    for call in &mut plan.calls {
        call.function = forms
            .entry(Arc::as_ptr(&call.function))
            .or_insert_with(|| way.form.apply(&call.function))
            .clone();
    }
    let mut values: HashMap<Bind, Vec<f64>> =
        HashMap::from([(Bind::Rope(0), wide_rope_table(f, rows))]);
    for layer in 0..f.model.layers() {
        // A row that was never written must not be read: a single NaN would reach the logits.
        for (plane, p) in f.model.cache_tensors(way.cache)[layer].iter().enumerate() {
            values.insert(
                Bind::State(layer, plane),
                vec![f64::NAN; options.pool_rows(p.window()) * p.width],
            );
        }
    }
    let mut out = Vec::new();
    let mut pos = 0;
    for step in tokens.chunks(class.max()) {
        values.insert(Bind::Tokens, step.iter().map(|&t| t as f64).collect());
        for call in &plan.calls {
            let function = &call.function;
            let weights: Vec<Vec<u8>> = call.binds.iter().map(|b| f.bytes(b)).collect();
            let mut env = Env::new()
                .var("pos", pos as i64)
                .var("n", step.len() as i64);
            env = VARIABLES
                .into_iter()
                .fold(env, |env, (name, value)| env.var(name, value));
            for (slot, (bind, bytes)) in call.binds.iter().zip(&weights).enumerate() {
                env = match (function.slots[slot].storage, values.get(bind)) {
                    (Storage::Packed(_), _) => env.packed(slot as u32, bytes),
                    (_, Some(v)) => env.values(slot as u32, v),
                    _ => env,
                };
            }
            let mut roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
            roots.extend(watch(function));
            let mut found = evaluate_all(&function.graph, &roots, &env);
            if found.len() > function.outputs.len() {
                inspect(pos, call, &found.pop().expect("the node watched"));
            }
            for (&(slot, _), value) in function.outputs.iter().zip(found) {
                values.insert(call.binds[slot as usize].clone(), value.data);
            }
        }
        out.extend(values[&Bind::Logits].chunks(64).map(<[f64]>::to_vec));
        pos += step.len();
    }
    out
}

/// Returns the RoPE table in f64: an f32 table would hide differences below 1e-7.
fn wide_rope_table(f: &Fixture, rows: usize) -> Vec<f64> {
    let frequencies = f.model.rope_tables(rows).remove(0).frequencies;
    let angles = |p: usize| {
        frequencies
            .iter()
            .flat_map(move |w| [(p as f64 * w).cos(), (p as f64 * w).sin()])
    };
    (0..rows).flat_map(angles).collect()
}
