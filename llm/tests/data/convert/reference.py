"""Small random checkpoints of every family that `gristmill convert` reads, and their logits by transformers.

    reference.py                      writes the fixtures beside this file: FAMILY/ with the checkpoint and expected.json
    reference.py --all FOLDER         writes the checkpoints of all families to FOLDER
    reference.py --check FOLDER PROGRAM [FAMILY ...]
                                      converts each checkpoint of FOLDER with PROGRAM and compares token ids and logits

Wants the packages `torch`, `transformers`, `sentencepiece` and `numpy`. Weights are drawn wide, so that every tensor matters to the logits, and stored in
the type that the table names; transformers computes with them in f64. Logits are compared by their RMS difference over their standard deviation.
"""

import copy
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import sentencepiece
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
# Families in the repository.
FIXTURES = ["llama", "qwen3", "gemma3", "qwen3moe", "deepseek2", "gpt-oss"]
LIMIT = 1e-5
# Ids of BOS tokens of the two kinds of tokenizers.
BOS = [1, 2, 298]

TEXT = (HERE.parent / "real" / "gpl.txt").read_text(encoding="utf-8")
PROBE = "The model reads GGUF files:\n  12345 tokens, don't they? I'LL see — naïve 我们 x86_64 <|eot|>\n\nEnd."
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|eot|>{% endfor %}<|assistant|>"

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]


def byte_level(*patterns, bos=None, whole=False, tokens=304):
    """A byte-level BPE with these patterns."""

    def save(folder):
        tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
        steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=tokens - 6, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
        special = ["<|bos|>", "<|endoftext|>", "<|eot|>", "<|user|>", "<|observation|>", "[gMASK]"]
        tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
        tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
        steps = [processors.ByteLevel(trim_offsets=False)]
        if bos:
            single = f"{bos} $A"
            ids = [(bos, tokenizer.token_to_id(bos))]
            steps.append(processors.TemplateProcessing(single=single, pair=f"{single} {bos} $B", special_tokens=ids))
        tokenizer.post_processor = processors.Sequence(steps)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
        fast.chat_template = TEMPLATE
        fast.save_pretrained(folder)

    return save


def pieces(prefix, bos=True, tokens=340):
    """A SentencePiece model of type BPE."""

    def save(folder):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT.splitlines()), model_writer=out, model_type="bpe", vocab_size=tokens,
            byte_fallback=True, add_dummy_prefix=prefix, normalization_rule_name="identity", character_coverage=0.98,
            split_digits=True, allow_whitespace_only_pieces=True, remove_extra_whitespaces=False, bos_id=1, eos_id=2,
            unk_id=0, pad_id=-1, user_defined_symbols=["<think>"], minloglevel=2,
        )  # fmt: skip
        (folder / "tokenizer.model").write_bytes(out.getvalue())
        added = {"0": "<unk>", "1": "<s>", "2": "</s>"}
        decoder = {id: {"content": text, "special": True} for id, text in added.items()}
        settings = {
            "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": bos, "add_eos_token": False,
            "added_tokens_decoder": decoder, "chat_template": TEMPLATE,
        }  # fmt: skip
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")

    return save


def characters(folder):
    """Gemma 4's BPE: merges of characters with U+2581, and bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=special, limit_alphabet=40, show_progress=False)
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    names = ["<pad>", "<eos>", "<bos>", "<unk>"]
    json_text = json.loads(tokenizer.to_str())
    json_text["added_tokens"] = [token for token in json_text["added_tokens"] if token["content"] in names]
    tokenizer = Tokenizer.from_str(json.dumps(json_text))
    single = processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)])
    tokenizer.post_processor = single
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


COMMON = dict(
    vocab_size=310, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5, bos_token_id=298, eos_token_id=299,
    pad_token_id=None, tie_word_embeddings=False,
)  # fmt: skip
LLAMA3 = dict(
    rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=64,
)  # fmt: skip
MLA = dict(
    num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
    rms_norm_eps=1e-6,
)  # fmt: skip
ROUTED = dict(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=16)
QWEN35_LAYERS = dict(
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
    linear_conv_kernel_dim=4, head_dim=16, num_hidden_layers=4, full_attention_interval=4,
    layer_types=["linear_attention"] * 3 + ["full_attention"], rms_norm_eps=1e-6,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1]),
)  # fmt: skip
GEMMA = dict(
    vocab_size=340, head_dim=16, sliding_window=8, tie_word_embeddings=True, rms_norm_eps=1e-6, bos_token_id=1,
    eos_token_id=2, hidden_activation="gelu_pytorch_tanh",
)  # fmt: skip
LLAMA_BPE = byte_level(CL100K % r"\p{N}{1,3}", bos="<|bos|>", whole=True)
QWEN = byte_level(CL100K % r"\p{N}")
GLM = byte_level(CL100K % r"\p{N}{1,3}")

# Name: class, configuration over COMMON, tokenizer, type of the weights.
FAMILIES = {
    "llama": ("LlamaForCausalLM", dict(head_dim=16, rope_parameters=LLAMA3), LLAMA_BPE, "bfloat16"),
    "llama-bias": ("LlamaForCausalLM", dict(mlp_bias=False, vocab_size=340, bos_token_id=1, eos_token_id=2), pieces(True), "float16"),
    "mistral": ("MistralForCausalLM", dict(head_dim=16, sliding_window=None), LLAMA_BPE, "float32"),
    "mixtral": ("MixtralForCausalLM", dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=None), LLAMA_BPE, "float32"),
    "mistral3": (
        "Ministral3ForCausalLM",
        dict(
            head_dim=16,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
                mscale_all_dim=1.0, original_max_position_embeddings=16, llama_4_scaling_beta=0.1,
                max_position_embeddings=64,
            ),
        ),
        LLAMA_BPE,
        "bfloat16",
    ),
    "granite": (
        "GraniteForCausalLM",
        dict(attention_multiplier=0.4, embedding_multiplier=3.0, residual_multiplier=0.6, logits_scaling=2.0),
        byte_level(),
        "float32",
    ),
    "qwen2": ("Qwen2ForCausalLM", dict(tie_word_embeddings=True), QWEN, "float16"),
    "qwen3": ("Qwen3ForCausalLM", dict(head_dim=16), QWEN, "bfloat16"),
    "qwen3moe": (
        "Qwen3MoeForCausalLM",
        dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[]),
        QWEN,
        "bfloat16",
    ),
    "qwen35": ("Qwen3_5ForCausalLM", QWEN35_LAYERS, byte_level(QWEN35), "float32"),
    "qwen35moe": (
        "Qwen3_5MoeForCausalLM",
        dict(QWEN35_LAYERS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16),
        byte_level(QWEN35),
        "float32",
    ),
    "gemma2": ("Gemma2ForCausalLM", dict(GEMMA, query_pre_attn_scalar=16, attn_logit_softcapping=50.0, final_logit_softcapping=30.0), pieces(False), "float32"),
    "gemma3": (
        "Gemma3ForCausalLM",
        dict(
            GEMMA, num_hidden_layers=3, query_pre_attn_scalar=16,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
                sliding_attention=dict(rope_type="default", rope_theta=10000.0),
            ),
        ),
        pieces(False),
        "bfloat16",
    ),
    "gemma4": (
        "Gemma4ForCausalLM",
        dict(
            GEMMA, num_hidden_layers=3, global_head_dim=32, num_kv_shared_layers=0, hidden_size_per_layer_input=0,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"], final_logit_softcapping=30.0,
            use_double_wide_mlp=False, enable_moe_block=False, attention_k_eq_v=False, vocab_size_per_layer_input=340,
            rope_parameters=dict(
                full_attention=dict(rope_type="proportional", rope_theta=1000000.0, partial_rotary_factor=0.25),
                sliding_attention=dict(rope_type="default", rope_theta=10000.0),
            ),
        ),
        characters,
        "float32",
    ),
    "gemma4-layers": (
        "Gemma4ForCausalLM",
        dict(
            GEMMA, num_hidden_layers=4, global_head_dim=32, num_kv_shared_layers=2, hidden_size_per_layer_input=32,
            layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            final_logit_softcapping=30.0, use_double_wide_mlp=True, enable_moe_block=False, attention_k_eq_v=False,
            vocab_size_per_layer_input=340,
            rope_parameters=dict(
                full_attention=dict(rope_type="proportional", rope_theta=1000000.0, partial_rotary_factor=0.25),
                sliding_attention=dict(rope_type="default", rope_theta=10000.0),
            ),
        ),
        characters,
        "float32",
    ),
    "phi3": ("Phi3ForCausalLM", dict(vocab_size=340, bos_token_id=1, eos_token_id=2, sliding_window=None), pieces(True), "float32"),
    "phi4": (
        "Phi3ForCausalLM",
        dict(
            sliding_window=None, original_max_position_embeddings=64,
            rope_parameters=dict(
                rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=64, partial_rotary_factor=0.5,
                long_factor=[1.0, 1.5], short_factor=[1.0, 1.1],
            ),
        ),
        byte_level(O200K),
        "float32",
    ),
    "olmo2": ("Olmo2ForCausalLM", dict(), GLM, "float32"),
    "olmo3": ("Olmo3ForCausalLM", dict(num_hidden_layers=4, sliding_window=8), GLM, "float32"),
    "gpt-oss": (
        "GptOssForCausalLM",
        dict(
            head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8, intermediate_size=32,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=True,
                original_max_position_embeddings=64,
            ),
        ),
        byte_level(O200K),
        "bfloat16",
    ),
    "glm4moe": (
        "Glm4MoeForCausalLM",
        dict(ROUTED, head_dim=16, use_qk_norm=True, attention_bias=True, first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=1.5, norm_topk_prob=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
        GLM,
        "float32",
    ),
    "minimax-m2": (
        "MiniMaxM2ForCausalLM",
        dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, intermediate_size=16, rotary_dim=8, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
        byte_level(O200K),
        "float32",
    ),
    "deepseek2": (
        "DeepseekV3ForCausalLM",
        dict(
            MLA, **ROUTED, first_k_dense_replace=1, n_group=2, topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=True,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
                mscale_all_dim=1.0, original_max_position_embeddings=64,
            ),
        ),
        byte_level(*DEEPSEEK, bos="<|bos|>"),
        "bfloat16",
    ),
    "deepseek2-lite": (
        "DeepseekV2ForCausalLM",
        dict(MLA, **ROUTED, first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=1.0, topk_method="greedy", norm_topk_prob=False) | dict(q_lora_rank=None),
        byte_level(*DEEPSEEK, bos="<|bos|>"),
        "float32",
    ),
    "glm4moe-lite": (
        "Glm4MoeLiteForCausalLM",
        dict(MLA, **ROUTED, first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=1.8, norm_topk_prob=True),
        GLM,
        "float32",
    ),
    "youtu": ("YoutuForCausalLM", dict(MLA), byte_level(*DEEPSEEK, bos="<|bos|>"), "float32"),
}  # fmt: skip


def draw(model):
    """Draws weights wide enough that every tensor matters."""
    random = torch.Generator().manual_seed(11)
    for name, weight in model.named_parameters():
        values = torch.randn(weight.shape, generator=random, dtype=torch.float32)
        if "norm" in name and weight.dim() == 1:
            plus_one = "gemma" in type(model).__name__.lower() or "qwen3_5" in type(model).__name__.lower()
            values = 0.3 * values + (0.0 if plus_one and "linear_attn" not in name else 1.0)
        elif "embed_tokens" in name:
            values = values * (0.4 if "gemma" in type(model).__name__.lower() else 1.5)
        elif weight.dim() == 1:
            values = 0.5 * values
        else:
            fan = weight.shape[-2] if "experts" in name and "gpt" in type(model).__name__.lower() else weight.shape[-1]
            values = values * 1.2 / fan**0.5
        weight.data.copy_(values)
    for name, buffer in model.named_buffers():
        if "correction_bias" in name:
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=random))


def write(name, folder):
    cls, changes, tokenizer, dtype = FAMILIES[name]
    folder.mkdir(parents=True, exist_ok=True)
    cls = getattr(transformers, cls)
    config = cls.config_class(**copy.deepcopy(COMMON | changes), architectures=[cls.__name__])
    config._attn_implementation = config._experts_implementation = "eager"
    model = cls._from_config(config) if hasattr(cls, "_from_config") else cls(config)
    draw(model)
    dtype = getattr(torch, dtype)
    model = model.to(dtype)
    model.generation_config.temperature, model.generation_config.top_p, model.generation_config.do_sample = 0.6, 0.95, True
    model.save_pretrained(folder)
    tokenizer(folder)
    # Read again, since tables of angles had the type of the weights.
    model = cls.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager")
    tokens = [int(t) for t in np.random.default_rng(3).integers(3, 290, 24)]
    with torch.no_grad():
        logits = model.eval()(torch.tensor([tokens])).logits[0]
    ids = encode(folder, PROBE)
    rows = [0, 9, 23]
    expected = {
        "tokens": tokens, "rows": rows, "text": PROBE, "ids": ids,
        "logits": [[round(float(v), 6) for v in logits[row]] for row in rows],
    }  # fmt: skip
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False), encoding="utf-8")
    np.save(folder / "logits.npy", logits.float().numpy())
    (folder / "tokens.txt").write_text(" ".join(map(str, tokens)) + "\n")


def encode(folder, text):
    if (folder / "tokenizer.model").exists():
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        return [1, *processor.encode(text)]
    return PreTrainedTokenizerFast.from_pretrained(folder).encode(text)


def check(folder, program, names):
    failed = []
    for name in names or sorted(p.name for p in folder.iterdir() if p.is_dir()):
        with tempfile.TemporaryDirectory() as out:
            out = Path(out)
            run = [program, "convert", str(folder / name), "-o", str(out / "m.gguf"), "--type", "F32"]
            result = subprocess.run(run, capture_output=True, text=True)
            if result.returncode:
                print(f"{name:16} {result.stderr.strip()}")
                failed.append(name)
                continue
            run = [program, "logits", str(out / "m.gguf"), "--exact", "--ctx", "64", "-o", str(out / "l.npy")]
            tokens = (folder / name / "tokens.txt").read_text().split()
            result = subprocess.run([*run, "--tokens", ",".join(tokens)], capture_output=True, text=True)
            if result.returncode:
                print(f"{name:16} {result.stderr.strip()}")
                failed.append(name)
                continue
            expected, found = np.load(folder / name / "logits.npy"), np.load(out / "l.npy")
            error = float(np.sqrt(np.mean((expected - found) ** 2)) / expected.std())
            wanted = json.loads((folder / name / "expected.json").read_text(encoding="utf-8"))["ids"]
            run = [program, "tokenize", str(out / "m.gguf"), PROBE, "--special", *["--bos"] * (wanted[0] in BOS)]
            ids = subprocess.run(run, capture_output=True, text=True).stdout.split()
            same = list(map(str, wanted)) == ids
            print(f"{name:16} rms {error:.1e}  ids {'equal' if same else 'DIFFER'}")
            if error > LIMIT or not same:
                failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def main():
    match sys.argv[1:]:
        case ["--check", folder, program, *names]:
            check(Path(folder), program, names)
        case ["--all", folder, *names]:
            for name in names or FAMILIES:
                try:
                    write(name, Path(folder) / name)
                    print(name)
                except Exception as error:  # A family of a newer transformers.
                    print(f"{name}: {type(error).__name__}: {error}")
        case []:
            for name in FIXTURES:
                write(name, HERE / name)
                for file in ["logits.npy", "tokens.txt", "tokenizer.vocab"]:
                    (HERE / name / file).unlink(missing_ok=True)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
