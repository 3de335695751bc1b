"""Servers as gRPC workers of a router: router_client.py ROUTER_URL SERVER_URL SERVER_URL

ROUTER_URL is that of `smg` with the policy cache_aware before the gRPC ports of two servers with the demo model, as
../it/routers.rs starts them; the SERVER_URLs are those of their HTTP ports.
"""

import json
import sys
import time
import urllib.request

import openai

router, *servers = sys.argv[1:]
PATIENCE = 120
MESSAGES = [{"role": "user", "content": "What is the capital of Japan?"}]


def client(url):
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300)


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def wait_until(what, holds):
    begun = time.time()
    while not holds():
        assert time.time() - begun < PATIENCE, what
        time.sleep(0.05)


def metric(url, name):
    lines = get(url + "/metrics").splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"gristmill_{name}{{"))


def is_answering():
    try:
        workers = json.loads(get(router + "/workers"))["workers"]
        if sum(worker["is_healthy"] for worker in workers) < len(servers):
            return False
        assert all(worker["connection_mode"] == "grpc" for worker in workers), workers
        return bool(ask(client(router), MESSAGES, 1))
    except (OSError, openai.APIError):
        return False


def ask(of, messages, max_tokens):
    return of.chat.completions.create(model="demo", messages=messages, max_tokens=max_tokens, temperature=0)


def prefix(number):
    """A conversation that begins like no other, of several blocks of 64 tokens."""
    return [{"role": "user", "content": f"{number * 'wolf '}and {number} frogs went to the {'river ' * 12}and sang. " * 12}]


def the_router_finds_them():
    wait_until("both are healthy, and their tokenizer is read", is_answering)


def answers_are_those_of_a_server():
    direct = ask(client(servers[0]), MESSAGES, 24)
    routed = ask(client(router), MESSAGES, 24)
    assert routed.choices[0].message.content == direct.choices[0].message.content, (routed, direct)
    assert routed.choices[0].finish_reason == direct.choices[0].finish_reason, (routed, direct)
    assert routed.usage.prompt_tokens == direct.usage.prompt_tokens, (routed, direct)
    chunks = client(router).chat.completions.create(
        model="demo", messages=MESSAGES, max_tokens=24, temperature=0, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == direct.choices[0].message.content, text


def prefixes_that_only_events_tell_are_found():
    # The router has not seen these conversations: they begin on one of the servers by its HTTP port.
    found = asked = 0
    for number in range(1, 9):
        has_it = servers[number % 2]
        ask(client(has_it), prefix(number), 2)
        # The event takes the router a moment.
        time.sleep(0.5)
        before = [metric(url, "requests_total") for url in servers]
        answer = ask(client(router), prefix(number), 2)
        taken = [metric(url, "requests_total") - of for url, of in zip(servers, before)]
        assert taken[servers.index(has_it)] == 1 and sum(taken) == 1, (number, taken)
        found += answer.usage.prompt_tokens_details.cached_tokens
        asked += answer.usage.prompt_tokens
    assert found > 0.7 * asked, (found, asked)
    return f"{found} of {asked} prompt tokens found"


def a_cleared_cache_is_not_preferred():
    # The model of the server that has the prefix leaves, and with it the KV cache.
    ask(client(servers[1]), prefix(20), 2)
    time.sleep(0.5)
    body = json.dumps({"model": "demo", "keep_alive": 0}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(servers[1] + "/api/generate", body, headers)) as answer:
        answer.read()
    wait_until("it has left", lambda: metric(servers[1], "model_loaded") == 0)
    ask(client(servers[0]), prefix(20), 2)
    time.sleep(0.5)
    before = metric(servers[0], "requests_total")
    for _ in range(3):
        ask(client(router), prefix(20), 2)
    assert metric(servers[0], "requests_total") - before == 3


for check in [
    the_router_finds_them,
    answers_are_those_of_a_server,
    prefixes_that_only_events_tell_are_found,
    a_cleared_cache_is_not_preferred,
]:
    said = check()
    print(check.__name__, "passed" if said is None else f"passed: {said}", flush=True)
