"""Ollama's Python client against a running server: ollama_client.py BASE_URL BASE_URL_WITH_KEY KEY. The base URLs end in /v1."""

import json
import sys

import ollama

base, guarded = (argument.removesuffix("/v1") for argument in sys.argv[1:3])
client = ollama.Client(host=base, timeout=120)
JAPAN = [{"role": "user", "content": "What is the capital of Japan?"}]
TOKYO = "The capital of Japan is Tokyo."
GREEDY = {"temperature": 0}


def chat():
    answer = client.chat(model="demo", messages=JAPAN, options=GREEDY)
    assert answer.message.content == TOKYO and answer.done_reason == "stop", answer
    assert answer.eval_count > 3 and answer.prompt_eval_count > 5 and answer.total_duration > 0


def stream():
    parts = list(client.chat(model="demo", messages=JAPAN, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == TOKYO
    assert parts[-1].done and parts[-1].eval_count > 3


def generate():
    answer = client.generate(model="demo", prompt=JAPAN[0]["content"], options=GREEDY)
    assert answer.response == TOKYO
    raw = client.generate(model="demo", prompt="Once upon a time", raw=True, options=GREEDY | {"num_predict": 8})
    assert raw.response.startswith(" there was") and raw.eval_count == 8


def schemas():
    schema = {"type": "object", "properties": {"city": {"enum": ["Tokyo", "Paris"]}, "sure": {"type": "boolean"}}, "required": ["city", "sure"]}
    value = json.loads(client.chat(model="demo", messages=JAPAN, format=schema, options=GREEDY).message.content)
    assert set(value) == {"city", "sure"}


def tools():
    def get_weather(city: str) -> str:
        """The weather.

        Args:
            city: Where.
        """
        return "rain"

    turns = JAPAN + [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Tokyo"}}}]},
        {"role": "tool", "content": get_weather("Tokyo"), "tool_name": "get_weather"},
    ]
    assert client.chat(model="demo", messages=turns, tools=[get_weather], options={"num_predict": 4}).done


def models():
    assert [model.model for model in client.list().models] == ["demo"]
    assert client.ps().models[0].name == "demo"
    assert "completion" in client.show("demo").capabilities


def embeddings():
    vectors = client.embed(model="demo", input=["a", "b"]).embeddings
    assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-4


def errors():
    for host, model, status in [(base, "llama3", 404), (guarded, "demo", 401)]:
        try:
            ollama.Client(host=host).chat(model=model, messages=JAPAN)
            raise AssertionError(f"{model} at {host} went through")
        except ollama.ResponseError as error:
            assert error.status_code == status and error.error, error


for check in [chat, stream, generate, schemas, tools, models, embeddings, errors]:
    check()
    print(check.__name__, "passed")
