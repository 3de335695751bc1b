//! The published models: hyper-parameters, and the tensors that follow from them.

use super::{Error, Plan, TensorPlan, fill, vocab};
use crate::gguf::types::{FileType, Role};
use crate::gguf::{self, Metadata};

/// One model. Sizes are in elements; zero means that the model has no such part.
pub(super) struct Preset {
    pub name: &'static str,
    title: &'static str,
    context: u32,
    blocks: u32,
    dense_blocks: u32,
    width: u32,
    heads: u32,
    q_rank: u32,
    kv_rank: u32,
    nope: u32,
    rope: u32,
    value: u32,
    dense_ff: u32,
    experts: Option<Experts>,
    rope_base: f32,
    /// Factor and original context.
    yarn: Option<(f32, u32)>,
    eps: f32,
    tied: bool,
    pub vocab: vocab::Vocab,
}

struct Experts {
    count: u32,
    used: u32,
    ff: u32,
    shared: u32,
    /// 1 softmax, 2 sigmoid.
    gating: u32,
    /// Whether a bias is added for the selection.
    bias: bool,
    norm: bool,
    scale: f32,
    groups: Option<u32>,
}

/// All presets; sources: the models' published configurations.
pub(super) static PRESETS: &[Preset] = &[
    Preset {
        name: "glm-4.7-flash",
        title: "GLM-4.7-Flash (random weights)",
        context: 202_752,
        blocks: 47,
        dense_blocks: 1,
        width: 2048,
        heads: 20,
        q_rank: 768,
        kv_rank: 512,
        nope: 192,
        rope: 64,
        value: 256,
        dense_ff: 10_240,
        experts: Some(Experts {
            count: 64,
            used: 4,
            ff: 1536,
            shared: 1,
            gating: 2,
            bias: true,
            norm: true,
            scale: 1.8,
            groups: Some(1),
        }),
        rope_base: 1e6,
        yarn: None,
        eps: 1e-5,
        tied: false,
        vocab: vocab::GLM,
    },
    Preset {
        name: "deepseek-v2-lite",
        title: "DeepSeek-V2-Lite (random weights)",
        context: 163_840,
        blocks: 27,
        dense_blocks: 1,
        width: 2048,
        heads: 16,
        q_rank: 0,
        kv_rank: 512,
        nope: 128,
        rope: 64,
        value: 128,
        dense_ff: 10_944,
        experts: Some(Experts {
            count: 64,
            used: 6,
            ff: 1408,
            shared: 2,
            gating: 1,
            bias: false,
            norm: false,
            scale: 1.0,
            groups: None,
        }),
        rope_base: 1e4,
        yarn: Some((40.0, 4096)),
        eps: 1e-6,
        tied: false,
        vocab: vocab::DEEPSEEK,
    },
    Preset {
        name: "youtu-llm-2b",
        title: "Youtu-LLM-2B (random weights)",
        context: 131_072,
        blocks: 32,
        dense_blocks: 32,
        width: 2048,
        heads: 16,
        q_rank: 1536,
        kv_rank: 512,
        nope: 128,
        rope: 64,
        value: 128,
        dense_ff: 6144,
        experts: None,
        rope_base: 1.6e6,
        yarn: None,
        eps: 1e-6,
        tied: true,
        vocab: vocab::YOUTU,
    },
];

impl Preset {
    pub fn plan(&self, file_type: &FileType) -> Result<Plan, Error> {
        Ok(Plan { metadata: self.metadata(file_type), tensors: self.tensors(file_type)? })
    }

    fn metadata(&self, file_type: &FileType) -> Metadata {
        let mut md = Metadata::new();
        md.insert("general.architecture", "deepseek2");
        md.insert("general.type", "model");
        md.insert("general.name", self.title);
        md.insert("general.file_type", file_type.id);
        md.insert("general.quantization_version", 2u32);
        let mut set = |key: &str, value: gguf::Value| {
            md.insert(format!("deepseek2.{key}"), value);
        };
        set("block_count", self.blocks.into());
        set("context_length", self.context.into());
        set("embedding_length", self.width.into());
        set("feed_forward_length", self.dense_ff.into());
        set("leading_dense_block_count", self.dense_blocks.into());
        set("vocab_size", self.vocab.size.into());
        set("attention.head_count", self.heads.into());
        // The cache holds one shared head: latent and rotary key.
        set("attention.head_count_kv", 1u32.into());
        set("attention.layer_norm_rms_epsilon", self.eps.into());
        if self.q_rank > 0 {
            set("attention.q_lora_rank", self.q_rank.into());
        }
        set("attention.kv_lora_rank", self.kv_rank.into());
        set("attention.key_length", (self.kv_rank + self.rope).into());
        set("attention.value_length", self.kv_rank.into());
        set("attention.key_length_mla", (self.nope + self.rope).into());
        set("attention.value_length_mla", self.value.into());
        set("rope.dimension_count", self.rope.into());
        set("rope.freq_base", self.rope_base.into());
        if let Some((factor, original)) = self.yarn {
            set("rope.scaling.type", "yarn".into());
            set("rope.scaling.factor", factor.into());
            set("rope.scaling.original_context_length", original.into());
            set("rope.scaling.yarn_log_multiplier", 0.0707f32.into());
        }
        match &self.experts {
            Some(e) => {
                set("expert_count", e.count.into());
                set("expert_used_count", e.used.into());
                set("expert_shared_count", e.shared.into());
                set("expert_feed_forward_length", e.ff.into());
                set("expert_gating_func", e.gating.into());
                set("expert_weights_norm", e.norm.into());
                set("expert_weights_scale", e.scale.into());
                if let Some(groups) = e.groups {
                    set("expert_group_count", groups.into());
                    set("expert_group_used_count", groups.into());
                }
            }
            // Other loaders demand these of dense models too.
            None => {
                set("expert_shared_count", 0u32.into());
                set("expert_feed_forward_length", self.dense_ff.into());
                set("expert_weights_scale", 1.0f32.into());
            }
        }
        self.vocab.describe(&mut md);
        md
    }

    fn tensors(&self, file_type: &FileType) -> Result<Vec<TensorPlan>, Error> {
        let mut list = List { file_type, blocks: u64::from(self.blocks), tensors: Vec::new(), failed: None };
        let (width, vocab) = (self.width, self.vocab.size);
        list.matrix("token_embd", if self.tied { Role::Output } else { Role::Matrix }, &[width, vocab]);
        list.norm("output_norm", width);
        if !self.tied {
            list.matrix("output", Role::Output, &[width, vocab]);
        }
        for i in 0..self.blocks {
            self.block(&mut list, i);
        }
        list.failed.map_or(Ok(list.tensors), |e| Err(e.into()))
    }

    fn block(&self, list: &mut List<'_>, i: u32) {
        let at = |name: &str| format!("blk.{i}.{name}");
        let (width, heads, q_rank, kv_rank) = (self.width, self.heads, self.q_rank, self.kv_rank);
        let q = heads * (self.nope + self.rope);
        list.norm(&at("attn_norm"), width);
        if q_rank > 0 {
            list.matrix(&at("attn_q_a"), Role::Matrix, &[width, q_rank]);
            list.norm(&at("attn_q_a_norm"), q_rank);
            list.matrix(&at("attn_q_b"), Role::Matrix, &[q_rank, q]);
        } else {
            list.matrix(&at("attn_q"), Role::Matrix, &[width, q]);
        }
        list.matrix(&at("attn_kv_a_mqa"), Role::Matrix, &[width, kv_rank + self.rope]);
        list.norm(&at("attn_kv_a_norm"), kv_rank);
        list.matrix(&at("attn_k_b"), Role::Matrix, &[self.nope, kv_rank, heads]);
        list.matrix(&at("attn_v_b"), Role::Matrix, &[kv_rank, self.value, heads]);
        list.matrix(&at("attn_output"), Role::Matrix, &[heads * self.value, width]);
        list.norm(&at("ffn_norm"), width);

        let down = Role::Down(u64::from(i));
        let Some(e) = self.experts.as_ref().filter(|_| i >= self.dense_blocks) else {
            list.matrix(&at("ffn_gate"), Role::Matrix, &[width, self.dense_ff]);
            list.matrix(&at("ffn_down"), down, &[self.dense_ff, width]);
            list.matrix(&at("ffn_up"), Role::Matrix, &[width, self.dense_ff]);
            return;
        };
        list.matrix(&at("ffn_gate_inp"), Role::Full, &[width, e.count]);
        if e.bias {
            list.push(at("exp_probs_b.bias"), Role::Full, &[e.count], 0.0, 0.01);
        }
        list.matrix(&at("ffn_gate_exps"), Role::Experts, &[width, e.ff, e.count]);
        list.matrix(&at("ffn_down_exps"), Role::ExpertsDown(u64::from(i)), &[e.ff, width, e.count]);
        list.matrix(&at("ffn_up_exps"), Role::Experts, &[width, e.ff, e.count]);
        let shared = e.ff * e.shared;
        if shared > 0 {
            list.matrix(&at("ffn_gate_shexp"), Role::Matrix, &[width, shared]);
            list.matrix(&at("ffn_down_shexp"), down, &[shared, width]);
            list.matrix(&at("ffn_up_shexp"), Role::Matrix, &[width, shared]);
        }
    }
}

struct List<'a> {
    file_type: &'a FileType,
    blocks: u64,
    tensors: Vec<TensorPlan>,
    failed: Option<gguf::Error>,
}

impl List<'_> {
    fn norm(&mut self, name: &str, size: u32) {
        self.push(format!("{name}.weight"), Role::Full, &[size], 1.0, 0.05);
    }

    /// A weight that keeps the scale of its input: deviation 1/√in.
    fn matrix(&mut self, name: &str, role: Role, dims: &[u32]) {
        self.push(format!("{name}.weight"), role, dims, 0.0, 1.0 / (dims[0] as f32).sqrt());
    }

    fn push(&mut self, name: String, role: Role, dims: &[u32], mean: f32, sigma: f32) {
        let dims: Vec<u64> = dims.iter().map(|&n| n.into()).collect();
        let Some(encoding) = self.file_type.choose(role, dims[0], self.blocks) else {
            let encoding = self.file_type.name;
            self.failed = Some(gguf::Error::PartialBlock { tensor: name, row: dims[0], encoding });
            return;
        };
        let seed = fill::seed(&name);
        match gguf::tensor_bytes(&name, &dims, encoding) {
            Ok(bytes) => self.tensors.push(TensorPlan { name, dims, encoding, bytes, mean, sigma, seed }),
            Err(error) => self.failed = Some(error),
        }
    }
}
