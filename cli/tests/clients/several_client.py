"""The official clients choose a model by its name: several_client.py BASE_URL, of a server with `demo` and `demo-glm-Q4_K_M`."""

import sys

import anthropic
import ollama
import openai

base = sys.argv[1]
JAPAN = [{"role": "user", "content": "What is the capital of Japan?"}]
NAMES = ["demo", "demo-glm-Q4_K_M"]


def with_openai():
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=120)
    assert [model.id for model in client.models.list()] == NAMES
    for name in NAMES:
        answer = client.chat.completions.create(model=name, messages=JAPAN, temperature=0)
        assert answer.model == name and "Tokyo" in answer.choices[0].message.content, answer
        # What a stream tells of the loading is no part of it.
        parts = list(client.chat.completions.create(model=name, messages=JAPAN, temperature=0, stream=True))
        assert "Tokyo" in "".join(part.choices[0].delta.content or "" for part in parts)
    try:
        client.chat.completions.create(model="demo-glm", messages=JAPAN)
        raise AssertionError("demo-glm went through")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found" and "did you mean `demo-glm-Q4_K_M`?" in error.message, error


def with_anthropic():
    client = anthropic.Anthropic(base_url=base.removesuffix("/v1"), api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == NAMES
    answer = client.messages.create(model="demo-glm-q4_k_m", messages=JAPAN, max_tokens=20, temperature=0)
    assert answer.model == NAMES[1] and "Tokyo" in answer.content[0].text, answer
    try:
        client.messages.create(model="claude", messages=JAPAN, max_tokens=20)
        raise AssertionError("claude went through")
    except anthropic.NotFoundError as error:
        assert "`demo`" in str(error), error


def with_ollama():
    client = ollama.Client(host=base.removesuffix("/v1"), timeout=120)
    assert [model.model for model in client.list().models] == NAMES
    assert "Tokyo" in client.chat(model="demo:latest", messages=JAPAN, options={"temperature": 0}).message.content
    # One fits at a time.
    assert [model.name for model in client.ps().models] == ["demo"]
    client.generate(model=NAMES[1])
    assert [model.name for model in client.ps().models] == [NAMES[1]]


for check in [with_openai, with_anthropic, with_ollama]:
    check()
    print(check.__name__, "passed")
