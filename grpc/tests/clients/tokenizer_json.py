"""A Hugging Face tokenizer of the demo model, for routers: tokenizer_json.py MODEL.gguf FOLDER

Writes tokenizer.json and tokenizer_config.json from a GGUF file whose tokenizer is `gpt2` with the splits of `glm4`.
"""

import json
import pathlib
import struct
import sys

path, folder = map(pathlib.Path, sys.argv[1:])
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, LIST = 8, 9
NORMAL, CONTROL = 1, 3
SPLITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def metadata(file):
    def number(form):
        return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]

    def value(kind):
        if kind == STRING:
            return file.read(number("Q")).decode()
        if kind == LIST:
            kind, count = number("I"), number("Q")
            return [value(kind) for _ in range(count)]
        return number(NUMBERS[kind])

    assert file.read(4) == b"GGUF"
    number("I"), number("Q")
    return {value(STRING): value(number("I")) for _ in range(number("Q"))}


facts = metadata(path.open("rb"))
tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
splits = {"type": "Split", "pattern": {"Regex": SPLITS}, "behavior": "Isolated", "invert": False}
plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
tokenizer = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [{"id": id, "content": token, **plain} for id, token in enumerate(tokens) if kinds[id] == CONTROL],
    "normalizer": None,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [splits, byte_level]},
    "post_processor": None,
    "decoder": byte_level,
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {token: id for id, token in enumerate(tokens)},
        "merges": facts["tokenizer.ggml.merges"],
    },
}
config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
    "chat_template": facts["tokenizer.chat_template"],
}
folder.mkdir(parents=True, exist_ok=True)
(folder / "tokenizer.json").write_text(json.dumps(tokenizer))
(folder / "tokenizer_config.json").write_text(json.dumps(config))
print(f"{len(tokens)} tokens")
