"""Random models of a few layers and their logits, computed here in f64 on the dequantised weights. Wants the packages `numpy` and `gguf`.

    reference.py gemma2          writes gemma2-q8_0.gguf, gemma2-tokens.txt and gemma2-q8_0-logits.npy beside this file
    reference.py --check gemma3  compares what is computed here with the logits that another engine computed: gemma3-q8_0-logits.npy

What is computed here knows nothing of the program: it reads keys and tensors of a file by the words of docs/decoders.md. A family that has another part
gets a line in `attend` or `logits_of`, and is believed once `--check` agrees for a family that has all but that part.
"""

import math
import sys
from pathlib import Path

import gguf
import numpy as np

HERE = Path(__file__).parent
TOKENS = 96
# What most of them have: a small decoder without anything beside.
KEYS = {
    "context_length": 4096,
    "embedding_length": 128,
    "block_count": 3,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
}
OLMO = {
    "architecture": "olmo2",
    "vocabulary": "qwen2-q8_0",
    "norms": ["attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"],
    "tied": False,
}
# The models that are written: their keys and norms, the file whose vocabulary they have, and whether the embedding is the head.
FAMILIES = {
    "gemma2": {
        "architecture": "gemma2",
        "vocabulary": "gemma3-q8_0",
        "keys": {
            **KEYS,
            "block_count": 4,
            "attention.key_length": 32,
            "attention.value_length": 32,
            "attention.sliding_window": 16,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
        "norms": ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"],
        "tied": True,
    },
    "olmo2": {**OLMO, "keys": {**KEYS, "rope.freq_base": 500000.0}},
    "olmo2-windows": {
        **OLMO,
        "keys": {
            **KEYS,
            "embedding_length": 96,
            "block_count": 4,
            "attention.head_count": 3,
            "attention.head_count_kv": 3,
            "attention.sliding_window": 16,
            "rope.freq_base": 500.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 32,
        },
    },
    "granite": {
        "architecture": "granite",
        "vocabulary": "qwen2-q8_0",
        "keys": {
            **KEYS,
            "attention.scale": 0.05,
            "embedding_scale": 3.0,
            "residual_scale": 0.7,
            "logit_scale": 1.6,
        },
        "norms": ["attn_norm", "ffn_norm"],
        "tied": True,
    },
}


class Model:
    """Keys and dequantised tensors of a file."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.architecture = reader.fields["general.architecture"].contents()
        self.fields = reader.fields
        self.tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}

    def key(self, name, default=None):
        field = self.fields.get(f"{self.architecture}.{name}")
        # A number of 32 bits stands for the decimal it was written from.
        value = default if field is None else field.contents()
        return float(f"{value:.7g}") if isinstance(value, float) else value

    def tensor(self, name):
        return self.tensors.get(f"{name}.weight")


# Every so many layers one sees all positions; layers with a window may rotate by a base of their own, or without scaling.
PERIODS = {"gemma2": 2, "gemma3": 6, "olmo2": 4}
WINDOW_BASES = {"gemma3": 10_000.0}
UNSCALED_WINDOWS = {"gemma3", "olmo2"}
GEMMA = {"gemma2", "gemma3"}
# Whose heads rotate pairs of neighbours.
NEIGHBOURS = {"granite", "llama"}


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def angles(m, n, positions, windowed):
    """Angles of `n/2` pairs at these positions, and what cosine and sine are multiplied by."""
    base = m.key("rope.freq_base", 10_000.0)
    if windowed:
        base = m.key("rope.freq_base_swa", WINDOW_BASES.get(m.architecture, base))
    pairs = np.arange(n // 2)
    frequencies, magnitude = base ** (-2.0 * pairs / n), 1.0
    kind, factor = m.key("rope.scaling.type", "linear"), m.key("rope.scaling.factor", 1.0)
    if windowed and m.architecture in UNSCALED_WINDOWS:
        return positions[:, None] * frequencies, magnitude
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "yarn":
        original = m.key("rope.scaling.original_context_length")
        corner = [n * math.log(original / (2 * math.pi * beta)) / (2 * math.log(base)) for beta in (32.0, 1.0)]
        low, high = max(0, math.floor(corner[0])), min(n - 1, math.ceil(corner[1]))
        kept = 1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)
        frequencies = frequencies * (1 - kept) / factor + frequencies * kept
        magnitude = (1 + 0.1 * math.log(factor)) * m.key("rope.scaling.attn_factor", 1.0)
    return positions[:, None] * frequencies, magnitude


def rotated(x, of, neighbours):
    """`x [tokens, heads, width]` with pairs (i, i + width/2) turned, or (2i, 2i + 1)."""
    (turn, magnitude), half = of, x.shape[-1] // 2
    cos, sin = np.cos(turn)[:, None] * magnitude, np.sin(turn)[:, None] * magnitude
    a, b = (x[..., ::2], x[..., 1::2]) if neighbours else (x[..., :half], x[..., half:])
    pair = [a * cos - b * sin, a * sin + b * cos]
    return np.stack(pair, -1).reshape(x.shape) if neighbours else np.concatenate(pair, -1)


def attend(m, layer, x, window):
    t = lambda name: m.tensor(f"blk.{layer}.{name}")
    heads, eps = m.key("attention.head_count"), m.key("attention.layer_norm_rms_epsilon")
    shared = m.key("attention.head_count_kv", heads)
    width = m.key("attention.key_length", x.shape[1] // heads)
    bias = lambda name: m.tensors.get(f"blk.{layer}.{name}.bias", 0.0)
    q, k, v = (x @ t(name).T + bias(name) for name in ("attn_q", "attn_k", "attn_v"))
    split = lambda y: y.reshape(len(x), -1, width)
    norm = lambda y, w: split(y) if w is None else rms(split(y), w, eps) if len(w) == width else split(rms(y, w, eps))
    q, k, v = norm(q, t("attn_q_norm")), norm(k, t("attn_k_norm")), split(v)
    turn = angles(m, width, np.arange(len(x)), window is not None)
    neighbours = m.architecture in NEIGHBOURS
    q, k = rotated(q, turn, neighbours), rotated(k, turn, neighbours)
    k, v = (np.repeat(y, heads // shared, axis=1) for y in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) * m.key("attention.scale", 1 / math.sqrt(width))
    cap = m.key("attn_logit_softcapping")
    if cap:
        scores = cap * np.tanh(scores / cap)
    back = np.arange(len(x))[:, None] - np.arange(len(x))[None]
    seen = (back >= 0) & (back < (window or len(x)))
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", weights, v).reshape(len(x), -1) @ t("attn_output").T


def logits_of(m, tokens):
    """Logits `[tokens, vocabulary]`."""
    eps, window = m.key("attention.layer_norm_rms_epsilon"), m.key("attention.sliding_window")
    gemma, embedding = m.architecture in GEMMA, m.tensor("token_embd")
    x = embedding[tokens] * (math.sqrt(embedding.shape[1]) if gemma else m.key("embedding_scale", 1))
    residual = m.key("residual_scale", 1)
    for layer in range(m.key("block_count")):
        t = lambda name: m.tensor(f"blk.{layer}.{name}")
        normed = lambda y, name: y if t(name) is None else rms(y, t(name), eps)
        period = PERIODS.get(m.architecture, 1)
        within = window if window and layer % period != period - 1 else None
        x = x + residual * normed(attend(m, layer, normed(x, "attn_norm"), within), "post_attention_norm")
        h = normed(x, "ffn_norm")
        gate = (gelu if gemma else silu)(h @ t("ffn_gate").T)
        x = x + residual * normed((gate * (h @ t("ffn_up").T)) @ t("ffn_down").T, "post_ffw_norm")
    x = rms(x, m.tensor("output_norm"), eps)
    head = m.tensor("output")
    logits = x @ (embedding if head is None else head).T / m.key("logit_scale", 1)
    cap = m.key("final_logit_softcapping")
    return cap * np.tanh(logits / cap) if cap else logits


def write(name, spec):
    """A random model of that description. Matrices are as large as keeps the variance of what they give, those of queries and keys larger."""
    keys, random = spec["keys"], np.random.default_rng(list(name.encode()))
    lender = gguf.GGUFReader(HERE / f"{spec['vocabulary']}.gguf")
    writer = gguf.GGUFWriter(HERE / f"{name}-q8_0.gguf", spec["architecture"])
    writer.add_name(f"tiny random {name}")
    for key, value in keys.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{spec['architecture']}.{key}", value)
    for key, field in lender.fields.items():
        if key.startswith("tokenizer."):
            kind = field.types[0]
            inner = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, inner)
    vocabulary = len(lender.fields["tokenizer.ggml.tokens"].contents())
    d, ff, heads = keys["embedding_length"], keys["feed_forward_length"], keys["attention.head_count"]
    width = keys.get("attention.key_length", d // heads)
    q, kv = heads * width, keys["attention.head_count_kv"] * width

    def matrix(name, rows, columns, size=1.0):
        values = (random.standard_normal((rows, columns)) * size / math.sqrt(columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)

    def norm(name, n, mean=1.0):
        writer.add_tensor(f"{name}.weight", (mean + 0.4 * random.standard_normal(n)).astype(np.float32))

    matrix("token_embd", vocabulary, d, 2.2)
    norm("output_norm", d)
    if not spec["tied"]:
        matrix("output", vocabulary, d, 2.2)
    for layer in range(keys["block_count"]):
        p = f"blk.{layer}."
        for part, rows, columns, size in [
            ("attn_q", q, d, 2.0),
            ("attn_k", kv, d, 2.0),
            ("attn_v", kv, d, 1.0),
            ("attn_output", d, q, 1.0),
            ("ffn_gate", ff, d, 1.0),
            ("ffn_up", ff, d, 1.0),
            ("ffn_down", d, ff, 1.0),
        ]:
            matrix(p + part, rows, columns, size)
        widths = {"attn_q_norm": q, "attn_k_norm": kv}
        for part in spec["norms"]:
            norm(p + part, widths.get(part, d), 1.6 if part in widths else 1.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokens = random.integers(8, vocabulary - 8, TOKENS)
    (HERE / f"{name}-tokens.txt").write_text(" ".join(map(str, tokens)) + "\n")


def computed(name):
    tokens = np.array((HERE / f"{name}-tokens.txt").read_text().split(), dtype=int)
    return logits_of(Model(HERE / f"{name}-q8_0.gguf"), tokens)


if sys.argv[1] == "--check":
    for name in sys.argv[2:]:
        want, got = np.load(HERE / f"{name}-q8_0-logits.npy"), computed(name)
        print(f"{name}: largest difference {abs(got - want).max():.2e}, of a deviation of {want.std():.3f}")
else:
    for name in sys.argv[1:]:
        write(name, FAMILIES[name])
        logits = computed(name)
        np.save(HERE / f"{name}-q8_0-logits.npy", logits.astype(np.float32))
        print(f"{name}: deviation {logits.std():.3f}, {len(set(logits.argmax(1)))} argmaxes")
