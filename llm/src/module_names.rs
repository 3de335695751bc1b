//! Linear layers of blocks: their modules in Hugging Face's models, their tensors in GGUF files,
//! and the order of their rows in both.

/// A linear layer of blocks: its module in Hugging Face's models and its tensor in GGUF files.
pub(crate) struct Module {
    /// Path of the module within its block.
    pub module: &'static str,
    /// Name of its tensor within its block.
    pub tensor: &'static str,
    /// Architectures that have it; empty for all.
    of: &'static [&'static str],
}

const fn module(module: &'static str, tensor: &'static str) -> Module {
    Module {
        module,
        tensor,
        of: &[],
    }
}

const fn of_qwen(module: &'static str, tensor: &'static str) -> Module {
    Module {
        module,
        tensor,
        of: &["qwen35moe"],
    }
}

/// All modules that adapters are read and written of; the first row of a tensor is written.
const MODULES: [Module; 18] = [
    Module {
        module: "mlp.gate_up_proj",
        tensor: "ffn_up",
        of: &["phi3"],
    },
    module("mlp.gate_proj", "ffn_gate"),
    module("mlp.up_proj", "ffn_up"),
    module("mlp.down_proj", "ffn_down"),
    module("self_attn.q_proj", "attn_q"),
    module("self_attn.k_proj", "attn_k"),
    module("self_attn.v_proj", "attn_v"),
    module("self_attn.o_proj", "attn_output"),
    module("self_attn.qkv_proj", "attn_qkv"),
    module("self_attn.q_a_proj", "attn_q_a"),
    module("self_attn.q_b_proj", "attn_q_b"),
    module("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    of_qwen("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    of_qwen("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    of_qwen("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    module("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    module("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    module("mlp.shared_experts.down_proj", "ffn_down_shexp"),
];

/// Architectures whose conversion puts the two halves of a head's rows in turn, so that rotated
/// pairs are neighbours: `permute` in llama.cpp's `convert_hf_to_gguf.py`.
const PERMUTED: [&str; 3] = ["llama", "mistral3", "granite"];

/// Rows of an architecture.
pub(crate) fn modules(architecture: &str) -> impl Iterator<Item = &'static Module> {
    let fits = move |row: &&Module| row.of.is_empty() || row.of.contains(&architecture);
    MODULES.iter().filter(fits)
}

/// Whether a conversion reorders the rows of queries and keys.
pub(crate) fn is_permuted(architecture: &str) -> bool {
    PERMUTED.contains(&architecture)
}

/// Direction of a conversion of rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From Hugging Face's order to that of GGUF files.
    ToGguf,
    /// From that of GGUF files to Hugging Face's order.
    FromGguf,
}

/// For each of `rows` rows of a permuted matrix, the row that it is in the other order: of a head
/// with `2n` rows, GGUF's row `2j + i` is Hugging Face's row `i·n + j`.
///
/// # Errors
/// When the rows are not those of so many heads.
pub(crate) fn permutation(
    rows: usize,
    heads: usize,
    direction: Direction,
) -> Result<impl Iterator<Item = usize>, String> {
    if heads == 0 || !rows.is_multiple_of(2 * heads) {
        return Err(format!("{rows} rows are not those of {heads} heads"));
    }
    let half = rows / heads / 2;
    Ok((0..rows).map(move |row| {
        let (head, at) = (row / (2 * half), row % (2 * half));
        let from = match direction {
            Direction::ToGguf => at % 2 * half + at / 2,
            Direction::FromGguf => at % half * 2 + at / half,
        };
        head * 2 * half + from
    }))
}
