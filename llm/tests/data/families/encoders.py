"""Random text encoders of a few layers, their hidden rows and pooled vectors by transformers in f64 on the dequantised weights, and the ids of texts by
BertTokenizerFast. Wants the packages `numpy`, `torch`, `transformers`, `tokenizers` and `gguf`.

    encoders.py VOCAB.gguf               writes NAME-q8_0.gguf, NAME-q8_0-rows.npy and NAME-texts.json beside this file, and bert-ids.json
    encoders.py VOCAB.gguf --f32 FOLDER  writes the same in f32 into a folder
    encoders.py VOCAB.gguf --checkpoints writes checkpoints as transformers saves them, with expected.json, into the folders ../convert/NAME

VOCAB.gguf is llama.cpp's vocabulary of BGE (models/ggml-vocab-bert-bge.gguf), which is cut to the tokens of the texts: WordPiece takes the longest token,
so tokens that it never takes change nothing. `modern-bert` has the vocabulary of qwen2-q8_0.gguf.
"""

import json
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (BertConfig, BertModel, BertTokenizerFast, ModernBertConfig, ModernBertModel, NomicBertConfig, NomicBertModel,
                          PreTrainedTokenizerFast)

HERE = Path(__file__).parent
MARK = "\u2581"
D, FF, LAYERS, HEADS = 64, 96, 3, 4
# Widths of the checkpoints.
SMALL = 32, 48
# Texts of a step: short ones, one longer than the window, and one longer than the smallest step.
TEXTS = [
    "A tree.",
    "The sea is there, and the ships are on it.",
    "hello",
    "7 of 9 is a number, and so is 12. " * 9,
]
AWKWARD = [
    "",
    " ",
    "\t\n",
    "Hello, World!",
    "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m \u0130stanbul \u1e9e Stra\u00dfe",
    "e\u0301e\u0300\u0302 o\u0308 \u00e9",
    "\u4e2d\u6587\u5b57 and \u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \uf900\U00020000\U0002b820\U0002b920",
    "\ud55c\uad6d\uc5b4 \uc548\ub155",
    "don't stop-it: (no) [yes] {x} <y> a/b\\c | d~e `f` ^g_ h#i $5.00 50% +=*&@",
    "\u2014em\u2013en \u2026 \u201cquoted\u201d \u00abg\u00bb \u00bfque? \u00a1si! \u00b7 \u3001\u3002\u300c\u300d \uff01\uff1f \uff5e",
    "\u20ac\u00a3\u00a5 \u00a9\u00ae\u2122 \u2192\u2260\u2211 \u00bd\u00b2 \U0001f600\U0001f468\u200d\U0001f469",
    "unaffable antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "a" * 100 + " " + "a" * 101 + " " + "ab" * 80,
    "zero\u200bwidth soft\u00adhyphen \ufeffbom \u0000nul \ufffdbad \ue000private \u0085nel \u000bvt \u000cff \u2028ls \u00a0nbsp \u3000wide",
    "\u0391\u0398\u0397\u039d\u0391\u03a3 \u039f\u03b4\u03cc\u03c2 \u041c\u043e\u0441\u043a\u0432\u0430 \u0419\u043e\u0433 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u0939\u093f\u0928\u094d\u0926\u0940",
    "x\u0301 \u0301alone [MASK] [CLS]text[SEP] ##ing \u2581mark \u2581 a\u2581b",
    "UPPER lower MiXeD 1234567890 3.14159 v1.2.3-rc4 foo_bar CamelCase snake_case",
    "\U0001d400\U0001d401 \ufb01ne \u2460 \u01c5 \u0132 \u1e0b\u0323 \u212b \u2126",
]


def vocabulary(path):
    """BGE's tokens in BERT's form, by id."""
    fields = gguf.GGUFReader(path).fields
    texts, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    plain = lambda text, kind: text if kind == 3 or text.startswith("[unused") else text[1:] if text.startswith(MARK) else "##" + text
    return [plain(text, kind) for text, kind in zip(texts, kinds)]


def tokenizer(tokens):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vocab.txt"
        file.write_text("\n".join(tokens) + "\n")
        return BertTokenizerFast(vocab={token: i for i, token in enumerate(tokens)}, do_lower_case=True)


def plain_ids(of, text):
    """Ids of a text in which nothing is a special token."""
    special = of.backend_tokenizer.normalizer, of.backend_tokenizer.pre_tokenizer, of.backend_tokenizer.model
    words = special[1].pre_tokenize_str(special[0].normalize_str(text))
    pieces = [piece.id for word, _ in words for piece in special[2].tokenize(word)]
    return [of.cls_token_id, *pieces, of.sep_token_id]


def cut(tokens, texts):
    """The tokens that the texts have, and the special ones."""
    whole = tokenizer(tokens)
    used = {i for text in texts for i in plain_ids(whole, text)}
    used |= {tokens.index(f"[{name}]") for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    return [tokens[i] for i in sorted(used)]


def write_word_pieces(writer, tokens):
    phantom = lambda text: text if text.startswith("[") and len(text) > 1 else text[2:] if text.startswith("##") and len(text) > 2 else MARK + text
    writer.add_tokenizer_model("bert")
    writer.add_token_list([phantom(token) for token in tokens])
    writer.add_token_types([3 if token.startswith("[") and len(token) > 1 else 1 for token in tokens])
    for name, token in (("unknown", "UNK"), ("bos", "CLS"), ("seperator", "SEP"), ("padding", "PAD"), ("mask", "MASK")):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", tokens.index(f"[{token}]"))


def write_byte_pairs(writer):
    lender = gguf.GGUFReader(HERE / "qwen2-q8_0.gguf")
    for key, field in lender.fields.items():
        if key.startswith("tokenizer.ggml.") and "_id" not in key and "add_" not in key:
            kind = field.types[0]
            inner = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents() if not key.endswith(".pre") else "modern-bert", kind, inner)
    tokens = lender.fields["tokenizer.ggml.tokens"].contents()
    first, last = tokens.index("<|im_start|>"), tokens.index("<|im_end|>")
    for name, value in (("bos", first), ("eos", last), ("seperator", last)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)
    for name in ("bos", "eos", "sep"):
        writer.add_bool(f"tokenizer.ggml.add_{name}_token", True)
    return len(tokens)


def bert(count):
    model = BertModel(BertConfig(
        vocab_size=count, hidden_size=D, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=FF, max_position_embeddings=200,
        attn_implementation="eager", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), add_pooling_layer=False)
    keys = {"context_length": 200, "pooling_type": 2, "attention.layer_norm_epsilon": 1e-12}
    names = {"embeddings.word_embeddings.weight": "token_embd.weight", "embeddings.position_embeddings.weight": "position_embd.weight",
             "embeddings.token_type_embeddings.weight": "token_types.weight", "embeddings.LayerNorm": "token_embd_norm"}
    for i in range(LAYERS):
        layer, block = f"encoder.layer.{i}", f"blk.{i}"
        names |= {f"{layer}.attention.self.{long}": f"{block}.attn_{short}" for long, short in (("query", "q"), ("key", "k"), ("value", "v"))}
        names |= {f"{layer}.attention.output.dense": f"{block}.attn_output", f"{layer}.attention.output.LayerNorm": f"{block}.attn_output_norm",
                  f"{layer}.intermediate.dense": f"{block}.ffn_up", f"{layer}.output.dense": f"{block}.ffn_down",
                  f"{layer}.output.LayerNorm": f"{block}.layer_output_norm"}
    return model, keys, names


def nomic_bert(count):
    model = NomicBertModel(NomicBertConfig(
        vocab_size=count, hidden_size=D, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=FF, max_position_embeddings=2048, head_dim=D // HEADS,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0}, attn_implementation="eager", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0), add_pooling_layer=False)
    keys = {"context_length": 256, "pooling_type": 1, "attention.layer_norm_epsilon": 1e-12, "rope.freq_base": 100.0}
    names = {"embeddings.word_embeddings.weight": "token_embd.weight", "embeddings.token_type_embeddings.weight": "token_types.weight",
             "embeddings.LayerNorm": "token_embd_norm"}
    for i in range(LAYERS):
        layer, block = f"layers.{i}", f"blk.{i}"
        names |= {f"{layer}.self_attn.{part}_proj": f"{block}.attn_{part}" for part in "qkv"}
        names |= {f"{layer}.self_attn.o_proj": f"{block}.attn_output", f"{layer}.post_attention_layernorm": f"{block}.attn_output_norm",
                  f"{layer}.mlp.gate_proj": f"{block}.ffn_gate", f"{layer}.mlp.up_proj": f"{block}.ffn_up",
                  f"{layer}.mlp.down_proj": f"{block}.ffn_down", f"{layer}.post_mlp_layernorm": f"{block}.layer_output_norm"}
    return model, keys, names


def modern_bert(count):
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    model = ModernBertModel(ModernBertConfig(
        vocab_size=count, hidden_size=D, num_hidden_layers=4, num_attention_heads=HEADS, intermediate_size=FF, max_position_embeddings=256,
        local_attention=16, layer_types=kinds, attn_implementation="eager", attention_dropout=0.0, embedding_dropout=0.0, mlp_dropout=0.0,
        pad_token_id=0, bos_token_id=0, eos_token_id=0, cls_token_id=0, sep_token_id=0,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}))
    keys = {"context_length": 256, "pooling_type": 1, "attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 1000.0, "rope.freq_base_swa": 50.0,
            "attention.sliding_window": 16, "attention.sliding_window_pattern": 3, "block_count": 4}
    names = {"embeddings.tok_embeddings.weight": "token_embd.weight", "embeddings.norm": "token_embd_norm", "final_norm": "output_norm"}
    for i in range(4):
        layer, block = f"layers.{i}", f"blk.{i}"
        names |= {f"{layer}.attn_norm": f"{block}.attn_norm", f"{layer}.attn.Wqkv": f"{block}.attn_qkv", f"{layer}.attn.Wo": f"{block}.attn_output",
                  f"{layer}.mlp_norm": f"{block}.ffn_norm", f"{layer}.mlp.Wi": f"{block}.ffn_up", f"{layer}.mlp.Wo": f"{block}.ffn_down"}
    return model, keys, names


FAMILIES = (("bert", bert), ("nomic-bert", nomic_bert), ("modern-bert", modern_bert))


def drawn(name, shape, random):
    """A random tensor whose part in the result is seen: scores differ, units are not linear, biases matter."""
    if len(shape) == 1:
        return (1 if name.endswith("weight") else 0) + 0.3 * random.standard_normal(shape)
    if name.startswith(("token_embd", "position_embd", "token_types")):
        return random.standard_normal(shape)
    steep = 2.5 if any(part in name for part in ("attn_q.", "attn_k.", "attn_qkv.")) else 1.2
    return steep * random.standard_normal(shape) / np.sqrt(shape[-1])


def rows_of(model, ids):
    """Rows after the last block, before and after a final norm."""
    with torch.no_grad():
        kept = []
        norm = getattr(model, "final_norm", None)
        hook = norm.register_forward_hook(lambda _, given, __: kept.append(given[0])) if norm is not None else None
        after = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        if hook is not None:
            hook.remove()
    return (kept[0][0] if kept else after).numpy(), after.numpy()


def make(name, make_model, tokens, quantised, folder):
    architecture, random = name, np.random.default_rng(11)
    quant = "q8_0" if quantised else "f32"
    file = folder / f"{name}-{quant}.gguf"
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name(f"tiny random {name}")
    if name == "modern-bert":
        count = write_byte_pairs(writer)
    else:
        count = len(tokens)
        write_word_pieces(writer, tokens)
        writer.add_uint32("tokenizer.ggml.token_type_count", 2)
    model, keys, names = make_model(count)
    model = model.double().eval()
    keys = {"embedding_length": D, "feed_forward_length": FF, "block_count": LAYERS, "attention.head_count": HEADS, **keys}
    for key, value in keys.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{architecture}.{key}", value)
    writer.add_bool(f"{architecture}.attention.causal", False)
    state, joined = model.state_dict(), {}
    for source in list(state):
        if source.endswith(("position_ids", "inv_freq", "token_type_ids")):
            continue
        target = named(source, names)
        values = drawn(target, tuple(state[source].shape), random).astype(np.float32)
        kind = gguf.GGMLQuantizationType.F32
        if quantised and values.ndim == 2 and not target.startswith(("position_embd", "token_types")):
            kind = gguf.GGMLQuantizationType.Q8_0
            data = gguf.quantize(values, kind)
            values = gguf.dequantize(data, kind)
        else:
            data = values
        part = target.rsplit(".", 2)[1]
        if name == "nomic-bert" and part in ("attn_q", "attn_k", "attn_v"):
            # As in published files: the rows of all three.
            block = target.rsplit(".", 2)[0]
            joined.setdefault(block, {})[part] = data
            if len(joined[block]) == 3:
                data = np.concatenate([joined[block][f"attn_{of}"] for of in "qkv"])
                writer.add_tensor(f"{block}.attn_qkv.weight", data, raw_dtype=kind)
        else:
            writer.add_tensor(target, data, raw_dtype=kind)
        state[source].copy_(torch.from_numpy(values.astype(np.float64)))
    model.load_state_dict(state)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    if name == "modern-bert":
        texts = [{"tokens": [int(i) for i in random.integers(0, count, n)]} for n in (2, 7, 90, 40)]
    else:
        of = tokenizer(tokens)
        texts = [{"text": text, "tokens": plain_ids(of, text)} for text in TEXTS]
    all_rows = []
    unit = lambda x: [round(float(v), 7) for v in x / np.linalg.norm(x)]
    for text in texts:
        rows, after = rows_of(model, text["tokens"])
        all_rows.append(rows)
        text |= {"mean": unit(after.mean(0)), "cls": unit(after[0]), "last": unit(after[-1])}
    np.save(folder / f"{name}-{quant}-rows.npy", np.concatenate(all_rows).astype(np.float32))
    lines = ",\n".join(json.dumps(text) for text in texts)
    (folder / f"{name}-texts.json").write_text(f"[\n{lines}\n]\n")
    print(name, quant, file.stat().st_size, [len(text["tokens"]) for text in texts], np.concatenate(all_rows).std())


def named(source, names):
    if source in names:
        return names[source]
    module, suffix = source.rsplit(".", 1)
    return f"{names[module]}.{suffix}"


def byte_pairs():
    """A small byte-level tokenizer, with what ModernBERT's adds to texts."""
    of = Tokenizer(models.BPE())
    of.normalizer = normalizers.NFC()
    of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    of.decoder = decoders.ByteLevel()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    of.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    ids = [(name, of.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    of.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=of, **names)


def checkpoint(name, make_model, tokens):
    random, folder = np.random.default_rng(13), HERE.parent / "convert" / name
    of = byte_pairs() if name == "modern-bert" else tokenizer(tokens)
    model, _, names = make_model(len(of))
    with torch.no_grad():
        for source, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(drawn(named(source, names), tuple(parameter.shape), random)))
    model.float().save_pretrained(folder)
    of.save_pretrained(folder)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}) + "\n")
    (folder / "modules.json").write_text(json.dumps([{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]) + "\n")
    text = TEXTS[1] + " \u00c9t\u00e9?"
    ids = [int(i) for i in of(text).input_ids]
    rows, _ = rows_of(model.double().eval(), ids)
    (folder / "expected.json").write_text(json.dumps({"text": text, "tokens": ids, "hidden": [[round(float(v), 7) for v in row] for row in rows]}) + "\n")
    print(name, ids, sorted((f.name, f.stat().st_size) for f in folder.iterdir()))


def main():
    tokens = vocabulary(sys.argv[1])
    texts = AWKWARD + TEXTS
    whole = tokenizer(tokens)
    small = cut(tokens, texts)
    assert all([small[i] for i in plain_ids(tokenizer(small), text)] == [tokens[i] for i in plain_ids(whole, text)] for text in texts)
    if sys.argv[2:] == ["--checkpoints"]:
        global D, FF, LAYERS, HEADS
        (D, FF), LAYERS, HEADS = SMALL, 2, 2
        for name, make_model in FAMILIES:
            checkpoint(name, make_model, small)
        return
    folder = Path(sys.argv[3]) if sys.argv[2:] else HERE
    for name, make_model in FAMILIES:
        make(name, make_model, small, not sys.argv[2:], folder)
    of = tokenizer(small if folder == HERE else tokens)
    lines = ",\n".join(json.dumps({"text": text, "tokens": plain_ids(of, text)}) for text in AWKWARD)
    (folder / "bert-ids.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    torch.manual_seed(1)
    main()
