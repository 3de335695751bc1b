"""Replicas behind a router: router_client.py ROUTER_URL REPLICA_URL=PID REPLICA_URL=PID REPLICA_URL=PID

Conversations stay with the replica that has their beginning; one replica is asked to end and one is killed while all of them answer. ROUTER_URL is that of `smg`
with the policy cache_aware before three servers with the demo model, as ../it/routers.rs starts them.
"""

import json
import os
import pathlib
import signal
import sys
import threading
import time
import urllib.request

import openai

router = sys.argv[1]
replicas = [(url, int(pid)) for url, pid in (argument.split("=") for argument in sys.argv[2:])]
# The router tries again; the client does not.
client = openai.OpenAI(base_url=router + "/v1", api_key="none", max_retries=0, timeout=300)
CONVERSATIONS, TURNS = 6, 3
CLIENTS = 12
PATIENCE = 120


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def wait_until(what, holds):
    begun = time.time()
    while not holds():
        assert time.time() - begun < PATIENCE, what
        time.sleep(0.05)


def healthy():
    """URLs of the replicas that the router sends requests to."""
    try:
        return {worker["url"] for worker in json.loads(get(router + "/workers"))["workers"] if worker["is_healthy"]}
    except OSError:
        return set()


def under_way(url):
    return json.loads(get(url + "/v1/loads"))["loads"][0]["num_total_reqs"]


def requests_of(url):
    lines = get(url + "/metrics").splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("gristmill_requests_total{"))


def ask(messages, max_tokens, **settings):
    return client.chat.completions.create(model="demo", messages=messages, max_tokens=max_tokens, **settings)


def the_router_finds_them():
    wait_until("all are healthy", lambda: healthy() == {url for url, _ in replicas})


def conversations_stay_where_they_began():
    begun = [requests_of(url) for url, _ in replicas]

    def converse(number, results):
        # Different from the first word on, and several pages of 64 tokens: what is found is whole pages where sequences share them.
        story = f"{number * 'wolf '}and {number} frogs went to the {'river ' * 12}and sang. " * 16
        messages, cached = [], []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": story if turn == 0 else "Tell me more."})
            answer = ask(messages, 16)
            cached.append((answer.usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens))
            messages.append({"role": "assistant", "content": answer.choices[0].message.content or "."})
        results[number] = cached

    results = {}
    threads = [threading.Thread(target=converse, args=(number, results)) for number in range(CONVERSATIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == CONVERSATIONS, results
    for number, turns in results.items():
        for (_, before), (cached, prompt) in zip(turns, turns[1:]):
            # All of the prompt before is there, but for its last page and the turn's beginning, which the template may write otherwise.
            assert cached >= 0.8 * before and cached < prompt, (number, turns)
    shares = [requests_of(url) - before for (url, _), before in zip(replicas, begun)]
    assert sum(shares) == CONVERSATIONS * TURNS and sum(share > 0 for share in shares) >= 2, shares
    later = [turn for turns in results.values() for turn in zip(turns, turns[1:])]
    found, asked = sum(now[0] for _, now in later), sum(now[1] for _, now in later)
    return f"{found} of {asked} tokens of later prompts found, requests by replica {shares}"


def while_answering(end):
    """Requests that failed while `end` was done to a replica: no more than it allows."""
    errors, stop = [], threading.Event()

    def client_of(number):
        while not stop.is_set():
            try:
                answer = ask([{"role": "user", "content": f"Tell me story {number}."}], 60, extra_body={"ignore_eos": True})
                assert answer.usage.completion_tokens == 60, answer
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=client_of, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        allowed = end()
        time.sleep(1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(errors) <= allowed, (allowed, len(errors), sorted({str(error) for error in errors}))
    return len(errors)


def gone(pid):
    """Has that process ended, whether or not its parent has asked for it yet?"""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def busiest():
    """The replica that has most to do, once it has more than one request; it is one of `replicas` no longer."""
    wait_until("one has more to answer than one request", lambda: max(under_way(url) for url, _ in replicas) > 1)
    chosen = max(replicas, key=lambda replica: under_way(replica[0]))
    replicas.remove(chosen)
    return chosen


def a_replica_that_is_asked_to_end_loses_no_request():
    def end():
        _, pid = busiest()
        os.kill(pid, signal.SIGTERM)
        wait_until("it ends", lambda: gone(pid))
        return 0

    return f"{while_answering(end)} lost"


def a_replica_that_is_killed_loses_no_more_than_it_was_answering():
    def end():
        _, pid = busiest()
        os.kill(pid, signal.SIGKILL)
        wait_until("the router sees it", lambda: healthy() == {url for url, _ in replicas})
        # No client has more than one request at a time.
        return CLIENTS

    lost = while_answering(end)
    assert ask([{"role": "user", "content": "What is the capital of Japan?"}], 20, temperature=0).choices[0].message.content
    return f"{lost} lost"


for check in [
    the_router_finds_them,
    conversations_stay_where_they_began,
    a_replica_that_is_asked_to_end_loses_no_request,
    a_replica_that_is_killed_loses_no_more_than_it_was_answering,
]:
    said = check()
    print(check.__name__, "passed" if said is None else f"passed: {said}", flush=True)
