"""Anthropic's Python client against a running server: anthropic_client.py BASE_URL BASE_URL_WITH_KEY KEY. The base URLs end in /v1."""

import sys

import anthropic

base, guarded, key = (argument.removesuffix("/v1") for argument in sys.argv[1:4])
client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0, timeout=120)
JAPAN = [{"role": "user", "content": "What is the capital of Japan?"}]
TOKYO = "The capital of Japan is Tokyo."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Tokyo", "Paris"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
}
TOOLS = [{"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}]


def ask(**settings):
    return {"model": "demo", "max_tokens": 100, "messages": JAPAN, "temperature": 0} | settings


def is_weather(value):
    return value["city"] in ("Tokyo", "Paris") and 1 <= value["days"] <= 9 and len(value) == 2


def messages():
    answer = client.messages.create(**ask())
    assert answer.content[0].text == TOKYO and answer.stop_reason == "end_turn", answer
    assert answer.usage.output_tokens > 3
    stopped = client.messages.create(**ask(stop_sequences=[" Japan"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " Japan")
    begun = JAPAN + [{"role": "assistant", "content": "The capital of"}]
    assert client.messages.create(**ask(messages=begun)).content[0].text == " Japan is Tokyo."


def stream():
    with client.messages.stream(**ask()) as events:
        assert "".join(events.text_stream) == TOKYO
        assert events.get_final_message().usage.output_tokens > 3


def tools():
    forced = ask(tools=TOOLS, tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}, temperature=1)
    answer = client.messages.create(**forced)
    call = answer.content[0]
    assert answer.stop_reason == "tool_use" and call.name == "get_weather" and is_weather(call.input), answer
    with client.messages.stream(**forced) as events:
        assert is_weather(events.get_final_message().content[0].input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    turns = JAPAN + [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    client.messages.create(**ask(messages=turns, tools=TOOLS, max_tokens=4))


def tokens():
    counted = client.messages.count_tokens(model="demo", messages=JAPAN).input_tokens
    usage = client.messages.create(**ask()).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def models():
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").display_name == "demo"


def errors():
    for settings, kind in [
        ({"model": "claude-x"}, anthropic.NotFoundError),
        ({"temperature": -1}, anthropic.BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, anthropic.BadRequestError),
    ]:
        try:
            client.messages.create(**ask(**settings))
            raise AssertionError(f"{settings} went through")
        except kind as error:
            assert error.body["type"] == "error", error.body


def keys():
    try:
        anthropic.Anthropic(base_url=guarded, api_key="wrong", max_retries=0).messages.create(**ask())
        raise AssertionError("a wrong key went through")
    except anthropic.AuthenticationError:
        pass
    answer = anthropic.Anthropic(base_url=guarded, api_key=sys.argv[3], max_retries=0).messages.create(**ask())
    assert answer.content[0].text == TOKYO


for check in [messages, stream, tools, tokens, models, errors, keys]:
    check()
    print(check.__name__, "passed")
