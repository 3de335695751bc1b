"""A small random reranker, and what its pooling gives, computed in f64 on the dequantised weights. Wants the packages `numpy`, `gguf` and `tokenizers`.

    reference.py    writes qwen3-rank-q8_0.gguf and expected.json beside this file

The hidden rows are those of families/reference.py, which agrees with llama.cpp for this family. Pooling follows sentence-transformers: rows behind the
final norm, their mean or one of them, scaled to length 1; a reranker's score is the softmax over its two labels.
"""

import json
import math
import sys
from pathlib import Path

import gguf
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

HERE = Path(__file__).parent
sys.argv = ["reference.py", "--check"]
sys.path.insert(0, str(HERE.parent / "families"))
import reference as families  # noqa: E402

FILE = HERE / "qwen3-rank-q8_0.gguf"
ARCHITECTURE = "qwen3"
KEYS = {
    "context_length": 1024,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 10000.0,
    "pooling_type": 4,
}
TEMPLATE = "<|im_start|>user\n{query}\nText: {document}<|im_end|>\n"
QUERY = "What is there?"
DOCUMENTS = ["A tree.", "The sea is there, and the ships are on it.", "Nothing at all.", "7 of 9 is a number. " * 20]
TEXTS = ["A tree.", "The sea is there, and the ships are on it.", "7 of 9 is a number. " * 20]


def write():
    random = np.random.default_rng(7)
    lender = gguf.GGUFReader(HERE.parent / "families" / "qwen2-q8_0.gguf")
    writer = gguf.GGUFWriter(FILE, ARCHITECTURE)
    writer.add_name("tiny random reranker")
    for key, value in KEYS.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{ARCHITECTURE}.{key}", value)
    writer.add_array(f"{ARCHITECTURE}.classifier.output_labels", ["yes", "no"])
    for key, field in lender.fields.items():
        if key.startswith("tokenizer.") and "chat_template" not in key:
            kind = field.types[0]
            inner = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, inner)
    writer.add_bool("tokenizer.ggml.add_eos_token", True)
    writer.add_array("tokenizer.chat_templates", ["rerank"])
    writer.add_string("tokenizer.chat_template.rerank", TEMPLATE)
    vocabulary = len(lender.fields["tokenizer.ggml.tokens"].contents())
    d, ff, width = KEYS["embedding_length"], KEYS["feed_forward_length"], KEYS["attention.key_length"]
    q, kv = KEYS["attention.head_count"] * width, KEYS["attention.head_count_kv"] * width

    def matrix(name, rows, columns, size=1.0):
        values = (random.standard_normal((rows, columns)) * size / math.sqrt(columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)

    def norm(name, n):
        writer.add_tensor(f"{name}.weight", (1 + 0.4 * random.standard_normal(n)).astype(np.float32))

    matrix("token_embd", vocabulary, d, 2.2)
    norm("output_norm", d)
    matrix("cls.output", 2, d, 1.5)
    for layer in range(KEYS["block_count"]):
        for part, rows, columns in [
            ("attn_q", q, d),
            ("attn_k", kv, d),
            ("attn_v", kv, d),
            ("attn_output", d, q),
            ("ffn_gate", ff, d),
            ("ffn_up", ff, d),
            ("ffn_down", d, ff),
        ]:
            matrix(f"blk.{layer}.{part}", rows, columns)
        for part, n in [("attn_norm", d), ("ffn_norm", d), ("attn_q_norm", width), ("attn_k_norm", width)]:
            norm(f"blk.{layer}.{part}", n)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rows_of(m, tokens):
    """Hidden rows behind the final norm, `[tokens, width]`: logits without their head."""
    m.tensors["output.weight"] = np.eye(KEYS["embedding_length"])
    return families.logits_of(m, np.array(tokens))


def unit(x):
    return x / np.sqrt((x * x).sum())


def tokenizer_of(m):
    """Qwen2's tokenizer with the vocabulary of a file, and its EOS."""
    field = lambda name: m.fields[f"tokenizer.ggml.{name}"].contents()
    tokens, kinds = field("tokens"), field("token_type")
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = pre_tokenizers.Split(Regex(words), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t, kind in zip(tokens, kinds) if kind == 3])
    return tokenizer, field("eos_token_id")


def main():
    write()
    m = families.Model(FILE)
    tokenizer, eos = tokenizer_of(m)
    pooled = lambda rows: {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}
    embeddings = []
    for text in TEXTS:
        tokens = [*tokenizer.encode(text).ids, eos]
        vectors = {kind: [float(f"{x:.7g}") for x in unit(v)] for kind, v in pooled(rows_of(m, tokens)).items()}
        embeddings.append({"text": text, "tokens": tokens, **vectors})
    scores = []
    for document in DOCUMENTS:
        tokens = tokenizer.encode(TEMPLATE.replace("{query}", QUERY).replace("{document}", document)).ids
        yes, no = m.tensor("cls.output") @ rows_of(m, tokens)[-1]
        scores.append({"document": document, "tokens": tokens, "score": 1 / (1 + math.exp(no - yes))})
    expected = {"query": QUERY, "embeddings": embeddings, "scores": scores}
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")
    print([round(s["score"], 4) for s in scores], [len(s["tokens"]) for s in scores])


if __name__ == "__main__":
    main()
