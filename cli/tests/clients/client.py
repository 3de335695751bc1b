"""The official Python client against a running server: client.py BASE_URL BASE_URL_WITH_KEY KEY."""

import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

base, guarded, key = sys.argv[1:4]
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=120)
JAPAN = [{"role": "user", "content": "What is the capital of Japan?"}]
STORY = [{"role": "user", "content": "Tell me a story."}]
TOKYO = "The capital of Japan is Tokyo."


def models():
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").object == "model"


def chat():
    answer = client.chat.completions.create(model="demo", messages=JAPAN, temperature=0)
    assert answer.choices[0].message.content == TOKYO
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 10
    assert usage.prompt_tokens_details.cached_tokens >= 0


def settings():
    create = client.chat.completions.create
    same = [create(model="demo", messages=STORY, seed=3, max_tokens=30).choices[0].message.content for _ in range(2)]
    assert same[0] == same[1]
    several = create(model="demo", messages=STORY, seed=3, n=3, max_completion_tokens=20, temperature=1.5)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.choices[0].finish_reason == "length"
    stopped = create(model="demo", messages=JAPAN, temperature=0, stop=[" Japan"])
    assert stopped.choices[0].message.content == "The capital of"
    probable = create(model="demo", messages=JAPAN, temperature=0, logprobs=True, top_logprobs=2)
    tokens = probable.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == TOKYO
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)
    create(model="demo", messages=JAPAN, max_tokens=2, top_p=0.5, frequency_penalty=1, presence_penalty=-1, logit_bias={"5": 1},
           user="someone", extra_body={"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1})


def stream():
    with client.chat.completions.create(
        model="demo", messages=JAPAN, temperature=0, stream=True, stream_options={"include_usage": True}
    ) as chunks:
        chunks = list(chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TOKYO
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 3
    assert chunks[-2].choices[0].finish_reason == "stop"
    # Left in the middle.
    with client.chat.completions.create(model="demo", messages=STORY, stream=True) as chunks:
        next(iter(chunks))
    with client.chat.completions.stream(model="demo", messages=JAPAN, temperature=0) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.content == TOKYO


def completions():
    answer = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=8, temperature=0)
    assert answer.choices[0].text.startswith(" there was") and answer.usage.completion_tokens == 8
    chunks = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


def scores():
    answer = client.completions.create(model="demo", prompt=["The capital of Japan is Tokyo"], echo=True, logprobs=1, max_tokens=0)
    scored = answer.choices[0].logprobs
    assert answer.choices[0].text == "The capital of Japan is Tokyo" and scored.token_logprobs[0] is None
    assert len(scored.tokens) == len(scored.token_logprobs) and scored.token_logprobs[-1] > -1


def responses():
    answer = client.responses.create(model="demo", input=JAPAN, temperature=0)
    assert answer.output_text == TOKYO and answer.status == "completed" and answer.usage.output_tokens > 3
    with client.responses.stream(model="demo", input=JAPAN, temperature=0) as events:
        assert events.get_final_response().output_text == TOKYO
    parsed = client.responses.parse(model="demo", input=JAPAN, text_format=Answer).output_parsed
    assert isinstance(parsed, Answer)
    tool = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
    called = client.responses.create(model="demo", input=JAPAN, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    (call,) = called.output
    assert call.name == "get_weather" and json.loads(call.arguments)["city"] in ("Tokyo", "Paris")
    turns = JAPAN + [call, {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    assert client.responses.create(model="demo", input=turns, tools=[tool], max_output_tokens=3).output_text


def embeddings():
    vectors = client.embeddings.create(model="demo", input=["a", "b"]).data
    assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0].embedding) - 1) < 1e-4


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Tokyo", "Paris"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}}]


def tools():
    choice = {"type": "function", "function": {"name": "get_weather"}}
    asked = dict(model="demo", messages=JAPAN, tools=TOOLS, tool_choice=choice, seed=1, parallel_tool_calls=False)
    answer = client.chat.completions.create(**asked).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and call.type == "function" and call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Tokyo", "Paris") and 1 <= arguments["days"] <= 9
    with client.chat.completions.stream(**asked) as events:
        streamed = events.get_final_completion().choices[0].message.tool_calls[0]
    assert json.loads(streamed.function.arguments) == arguments
    # The result goes back.
    messages = JAPAN + [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "It rains."}]
    client.chat.completions.create(model="demo", messages=messages, tools=TOOLS, max_tokens=5)
    free = client.chat.completions.create(model="demo", messages=JAPAN, tools=TOOLS, temperature=0, max_tokens=20)
    assert free.choices[0].message.content or free.choices[0].message.tool_calls


class Country(BaseModel):
    name: Literal["Japan", "France"]
    sure: bool


class Answer(BaseModel):
    city: Literal["Tokyo", "Paris"]
    country: Country


def schemas():
    parsed = client.chat.completions.parse(model="demo", messages=JAPAN, response_format=Answer, seed=4).choices[0].message.parsed
    assert isinstance(parsed, Answer) and isinstance(parsed.country.sure, bool)
    text = client.chat.completions.create(model="demo", messages=JAPAN, response_format={"type": "json_object"}, max_tokens=9)
    assert text.choices[0].message.content.startswith("{")


def refused(error, **settings):
    try:
        client.chat.completions.create(**{"model": "demo", "messages": JAPAN, **settings})
    except error as refusal:
        assert refusal.body["message"]
        return refusal
    raise AssertionError(f"{settings} was not refused")


def errors():
    assert refused(openai.NotFoundError, model="gpt-9").code == "model_not_found"
    assert refused(openai.BadRequestError, temperature="hot").param == "temperature"
    assert refused(openai.BadRequestError, messages=[]).param == "messages"
    long = [{"role": "user", "content": "word " * 9000}]
    assert refused(openai.BadRequestError, messages=long).code == "context_length_exceeded"
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    assert refused(openai.BadRequestError, response_format=schema).param == "response_format"
    try:
        openai.OpenAI(base_url=guarded, api_key="wrong", max_retries=0).models.list()
        raise AssertionError("a wrong key was taken")
    except openai.AuthenticationError as refusal:
        assert refusal.code == "invalid_api_key"
    assert openai.OpenAI(base_url=guarded, api_key=key).models.list().data[0].id == "demo"


for check in (models, chat, settings, stream, completions, scores, tools, schemas, responses, embeddings, errors):
    check()
    print(check.__name__, "passed")
