"""A random assistant of gemma4-q8_0.gguf, and the logits of its drafts by transformers in f64 on the dequantised weights. Wants the packages `numpy`,
`torch`, `transformers` (5.24 was used) and `gguf`.

    assistant.py          writes gemma4-assistant-q8_0.gguf, gemma4-assistant-q8_0-logits.npy and gemma4-assistant-q8_0-clustered-logits.npy beside this file

The target is loaded into transformers' Gemma4ForCausalLM and compared with gemma4-q8_0-logits.npy first. For each of POSITIONS, `p`, the assistant drafts
DRAFTS tokens, each the most probable one, after the token at `p` of gemma4-tokens.txt. All of them are drafted at position `p`, from the target's last
hidden row at `p - 1` after its norm, and see the target's keys and values at positions before `p`: all in full layers, those from `p - WINDOW + 1` in
windowed ones. This is transformers' loop, but for two things of that: after drafts were refused it leaves a row of them in view, and it sees one position
more in windows. llama.cpp has neither.

Logits are float32 [POSITIONS, DRAFTS, vocabulary]; those of the clustered head are -inf for tokens of clusters that are not chosen.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

HERE = Path(__file__).parent
TARGET = "gemma4-q8_0.gguf"
# Both sides of the ends of windows of 16 positions and of pages of 64.
POSITIONS = [1, 2, 7, 15, 16, 17, 18, 31, 33, 48, 62, 63, 64, 65, 66, 79, 80, 94]
DRAFTS = 3
WINDOW = 16
CLUSTERS, CHOSEN = 32, 5
WIDTH, FF, HEADS = 64, 96, 4
KINDS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
# Least difference between the two largest logits of a draft, and between the last chosen cluster's score and the next one's.
MARGIN = 0.005
# Factors of standard deviations: with them every tensor matters to the logits.
WIDE = {"attn_q": 1.6, "pre_projection": 1.6, "token_embd": 3.0, "centroids": 3.0}

NAMES = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "layer_scalar": "layer_output_scale.weight",
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    "pre_projection.weight": "nextn.pre_projection.weight",
    "post_projection.weight": "nextn.post_projection.weight",
    "masked_embedding.centroids.weight": "masked_embd_centroids.weight",
    "masked_embedding.token_ordering": "masked_embd_ordering",
}


def gguf_name(name):
    """The name in a GGUF file of a tensor in transformers; none for a tied head."""
    if name.startswith("model.layers."):
        number, rest = name.removeprefix("model.layers.").split(".", 1)
        return f"blk.{number}.{NAMES[rest]}"
    return None if name == "lm_head.weight" else NAMES[name]


def filled(model, tensors):
    """The model in f64 with these tensors."""
    model = model.to(torch.float64).eval()
    with torch.no_grad():
        for name, own in model.state_dict().items():
            if (found := gguf_name(name)) is not None:
                own.copy_(torch.from_numpy(np.array(tensors[found])).reshape(own.shape))
    model.tie_weights()
    return model


def target():
    """The target and its tokens, checked against the logits of another engine."""
    reader = gguf.GGUFReader(HERE / TARGET)
    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    config = Gemma4TextConfig(
        vocab_size=512, hidden_size=128, intermediate_size=64, num_hidden_layers=6, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, global_head_dim=64, sliding_window=WINDOW, final_logit_softcapping=30.0,
        vocab_size_per_layer_input=512, hidden_size_per_layer_input=32, num_kv_shared_layers=3,
        use_double_wide_mlp=True, layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        attn_implementation="eager",
    )  # fmt: skip
    model = filled(Gemma4ForCausalLM(config), tensors)
    tokens = [int(id) for id in (HERE / "gemma4-tokens.txt").read_text().split()]
    with torch.no_grad():
        out = model(torch.tensor([tokens]), output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
    known = np.load(HERE / "gemma4-q8_0-logits.npy")
    error = np.abs(out.logits[0].numpy() - known).max()
    print(f"target: largest difference of logits {error:.1e}")
    assert error < 1e-3
    return model, tokens, out.hidden_states[-1], dict(out.shared_kv_states)


def random_tensors(names):
    """Random tensors by name, and what a file has for them: matrices in Q8_0."""
    random = np.random.default_rng(64)
    stored, values = {}, {}
    for name, shape in names.items():
        if name == "masked_embd_ordering":
            ids = random.permutation(shape[0]).astype(np.int32)
            stored[name], values[name] = (ids, None), ids
            continue
        if len(shape) == 2:
            wide = next((factor for part, factor in WIDE.items() if part in name), 1.0)
            drawn = (random.standard_normal(shape) * wide / np.sqrt(shape[1])).astype(np.float32)
            data = gguf.quantize(drawn, gguf.GGMLQuantizationType.Q8_0)
            stored[name] = data, gguf.GGMLQuantizationType.Q8_0
            values[name] = gguf.dequantize(data, gguf.GGMLQuantizationType.Q8_0)
            continue
        spread = 0.1 if "output_scale" in name else 0.3
        drawn = (1 + spread * random.standard_normal(shape)).astype(np.float32)
        stored[name], values[name] = (drawn, None), drawn
    return stored, values


def assistant():
    """A random assistant, and what its file has."""
    text = Gemma4TextConfig(
        vocab_size=512, hidden_size=WIDTH, intermediate_size=FF, num_hidden_layers=len(KINDS),
        num_attention_heads=HEADS, num_key_value_heads=1, head_dim=32, global_head_dim=64, sliding_window=WINDOW,
        vocab_size_per_layer_input=0, hidden_size_per_layer_input=0, num_kv_shared_layers=len(KINDS), layer_types=KINDS,
        attn_implementation="eager",
    )  # fmt: skip
    config = Gemma4AssistantConfig(
        text_config=text, backbone_hidden_size=128, use_ordered_embeddings=True, num_centroids=CLUSTERS,
        centroid_intermediate_top_k=CHOSEN, attn_implementation="eager",
    )  # fmt: skip
    model = Gemma4AssistantForCausalLM(config)
    shapes = {gguf_name(name): tuple(own.shape) for name, own in model.state_dict().items()}
    shapes.pop(None, None)
    stored, values = random_tensors(shapes)
    return filled(model, values), stored


def write(stored):
    writer = gguf.GGUFWriter(HERE / "gemma4-assistant-q8_0.gguf", "gemma4-assistant")
    writer.add_name("tiny random gemma4 assistant")
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_uint32("gemma4-assistant.embedding_length_out", 128)
    writer.add_block_count(len(KINDS))
    writer.add_uint32("gemma4-assistant.nextn_predict_layers", len(KINDS))
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_key_length(64)
    writer.add_value_length(64)
    writer.add_uint32("gemma4-assistant.attention.key_length_swa", 32)
    writer.add_uint32("gemma4-assistant.attention.value_length_swa", 32)
    writer.add_sliding_window(WINDOW)
    writer.add_array("gemma4-assistant.attention.sliding_window_pattern", [kind == KINDS[0] for kind in KINDS])
    writer.add_uint32("gemma4-assistant.attention.shared_kv_layers", len(KINDS))
    writer.add_rope_dimension_count(64)
    writer.add_uint32("gemma4-assistant.rope.dimension_count_swa", 32)
    writer.add_rope_freq_base(1e6)
    writer.add_float32("gemma4-assistant.rope.freq_base_swa", 1e4)
    writer.add_uint32("gemma4-assistant.centroid_top_k", CHOSEN)
    writer.add_file_type(7)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * 8 + [1e30] * 24, dtype=np.float32))
    for name, (data, kind) in stored.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def margin(values, count):
    """Difference between the largest value that counts and the next one."""
    ordered = np.sort(values[np.isfinite(values)])
    return ordered[-count] - ordered[-count - 1]


def drafted(of, model, clustered, p):
    """Logits of the drafts after the token at position `p`."""
    network, tokens, hidden, shared = of
    first = {"full_attention": 0, "sliding_attention": max(0, p - WINDOW + 1)}
    seen = {kind: tuple(rows[:, :, first[kind] : p] for rows in shared[kind]) for kind in first}
    own, token, rows = hidden[:, p - 1 : p], tokens[p], []
    for _ in range(DRAFTS):
        embedding = network.get_input_embeddings()(torch.tensor([[token]]))
        with torch.no_grad():
            # The dense head shares all with the clustered one but its last step.
            model.config.use_ordered_embeddings = clustered
            out = model(inputs_embeds=torch.cat([embedding, own], dim=-1), position_ids=torch.tensor([[p]]), shared_kv_states=seen)
        logits = out.logits[0, 0].numpy().copy()
        if clustered:
            logits[logits == logits.min()] = -np.inf
            assert np.isfinite(logits).sum() == CHOSEN * 512 // CLUSTERS
        assert margin(logits, 1) > MARGIN, (p, margin(logits, 1))
        token, own = int(logits.argmax()), out.last_hidden_state
        rows.append(logits)
    return rows


def check_clusters(model, scores):
    """Asserts that no choice of clusters is a near tie."""
    worst = min(margin(row, CHOSEN) for row in scores)
    print(f"clusters: least margin {worst:.3f}")
    assert worst > MARGIN


def main():
    torch.set_num_threads(1)
    of = target()
    model, stored = assistant()
    write(stored)
    scores = []
    model.masked_embedding.centroids.register_forward_hook(lambda _, __, out: scores.append(out[0, 0].numpy().copy()))
    for name, clustered in [("logits", False), ("clustered-logits", True)]:
        rows = np.array([drafted(of, model, clustered, p) for p in POSITIONS], dtype=np.float32)
        np.save(HERE / f"gemma4-assistant-q8_0-{name}.npy", rows)
        finite = rows[np.isfinite(rows)]
        distinct = len({int(row.argmax()) for row in rows.reshape(-1, 512)})
        print(f"{name}: {rows.shape}, standard deviation {finite.std():.2f}, {distinct} different drafts")
    check_clusters(model, scores)


if __name__ == "__main__":
    main()
