"""Renders the conversations of conversations.json with each template here as transformers does, into expected.json.

    pip install transformers jinja2 && python render.py
"""

import copy
import datetime
import json
import pathlib

import jinja2.sandbox
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather <now> & then.", "parameters": {
            "type": "object", "required": ["city"], "properties": {
                "city": {"type": "string", "description": "Where"}, "days": {"type": "integer"},
                "units": {"type": "array", "items": {"type": "string"}}, "exact": {"type": "boolean"}}}}},
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}},
]
# What each template wants of a message with calls: an empty text in place of null, the JSON of arguments in place of the object.
EMPTY = {"qwen3", "glm-4.6", "glm-4.7-flash", "minimax-m2", "gpt-oss", "qwen3.5"}
TEXT = {"deepseek-r1-distill"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 1, 2, 3, 4, 5)


def fitted(name, messages, tools):
    messages = copy.deepcopy(messages)
    if tools and name == "phi-4-mini":
        if messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": "You are a helpful assistant with some tools."})
        messages[0]["tools"] = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    for message in messages:
        calls = message.get("tool_calls")
        if calls and message["content"] is None and name in EMPTY:
            message["content"] = ""
        for call in calls or []:
            if name in TEXT:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        thought = message.get("reasoning_content")
        if thought and name == "gpt-oss":
            message["thinking"] = thought
            if calls:
                message["content"] = ""
        if thought and name == "ministral-3":
            text = [{"type": "text", "text": message["content"]}] if message["content"] else []
            message["content"] = [{"type": "thinking", "thinking": thought}] + text
    return messages


def main():
    chat_template_utils.datetime = Clock
    # Kimi's templates append to lists, which transformers forbids and the engines that serve them do not.
    chat_template_utils.ImmutableSandboxedEnvironment = jinja2.sandbox.SandboxedEnvironment
    conversations = json.loads((HERE / "conversations.json").read_text())
    expected = {}
    for path in sorted(HERE.glob("*.jinja")):
        template = chat_template_utils._compile_jinja_template(path.read_text())
        for conversation in conversations:
            options = conversation.get("options", {})
            options = options | {"thinking": options["enable_thinking"]} if options else {}
            try:
                text = template.render(
                    messages=fitted(path.stem, conversation["messages"], TOOLS if conversation.get("tools") else None),
                    tools=TOOLS if conversation.get("tools") else None,
                    documents=None, add_generation_prompt=True, bos_token="<BOS>", eos_token="<EOS>", **options)
            except Exception as error:
                text = None
                print(f"{path.stem}, {conversation['name']}: {error}")
            expected.setdefault(path.stem, {})[conversation["name"]] = text
    out = {"tools": TOOLS, "expected": expected}
    (HERE / "expected.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


main()
