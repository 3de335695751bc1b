"""Programs that people put before a server, tried against one: check.py BASE_URL [NAME ...]

BASE_URL is that of a server with the demo model, such as http://127.0.0.1:8080. Whatever is not installed is passed over and said. README.md beside this file
says how to install all of it, and what came of it.
"""

import asyncio
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BASE = sys.argv[1].rstrip("/")
V1 = BASE + "/v1"
HERE = pathlib.Path(__file__).parent
QUESTION = "What is the capital of Japan?"
TOKYO = "The capital of Japan is Tokyo."
MESSAGES = [{"role": "user", "content": QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Tokyo", "Paris"]}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
}


def answer_type():
    from typing import Literal

    from pydantic import BaseModel

    class Answer(BaseModel):
        city: Literal["Tokyo", "Paris"]
        sure: bool

    return Answer


def litellm():
    import litellm

    for model, base in [("openai/demo", V1), ("anthropic/demo", BASE), ("ollama_chat/demo", BASE)]:
        asked = dict(model=model, api_base=base, api_key="none", messages=MESSAGES, temperature=0, max_tokens=50)
        assert litellm.completion(**asked).choices[0].message.content == TOKYO, model
        chunks = litellm.completion(**asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TOKYO, model
    vectors = litellm.embedding(model="openai/demo", api_base=V1, api_key="none", input=["a", "b"], encoding_format="float")
    assert len(vectors.data) == 2


def langchain():
    from langchain_anthropic import ChatAnthropic
    from langchain_ollama import ChatOllama
    from langchain_openai import ChatOpenAI

    openai = ChatOpenAI(model="demo", base_url=V1, api_key="none", temperature=0)
    newer = ChatOpenAI(model="demo", base_url=V1, api_key="none", temperature=0, use_responses_api=True)
    anthropic = ChatAnthropic(model="demo", base_url=BASE, api_key="none", temperature=0, max_tokens=50)
    ollama = ChatOllama(model="demo", base_url=BASE, temperature=0)
    for client in [openai, newer, anthropic, ollama]:
        assert client.invoke(QUESTION).text == TOKYO, client
        assert "".join(part.text for part in client.stream(QUESTION)) == TOKYO, client
    Answer = answer_type()
    for method in ["json_schema", "function_calling"]:
        assert isinstance(openai.with_structured_output(Answer, method=method).invoke(QUESTION), Answer)


def instructor():
    import instructor
    import openai

    Answer = answer_type()
    Mode = instructor.Mode
    # JSON, MD_JSON and PARALLEL_TOOLS ask for the form in words alone, which the demo model does not follow.
    for mode in [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.FUNCTIONS, Mode.JSON_SCHEMA, Mode.JSON_O1, Mode.RESPONSES_TOOLS]:
        client = instructor.from_openai(openai.OpenAI(base_url=V1, api_key="none"), mode=mode)
        asked = dict(model="demo", response_model=Answer, max_retries=0)
        if mode == Mode.RESPONSES_TOOLS:
            said = client.responses.create(input=QUESTION, **asked)
        else:
            said = client.chat.completions.create(messages=MESSAGES, **asked)
        assert isinstance(said, Answer), mode
    client = instructor.from_openai(openai.OpenAI(base_url=V1, api_key="none"), mode=Mode.TOOLS)
    *_, last = client.chat.completions.create_partial(model="demo", messages=MESSAGES, response_model=Answer)
    assert last.city in ["Tokyo", "Paris"]


def llm():
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "extra-openai-models.yaml").write_text(
            json.dumps([{"model_id": "gristmill", "model_name": "demo", "api_base": V1, "supports_schema": True}])
        )
        environment = os.environ | {"LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
        command = [sys.executable, "-m", "llm", "-m", "gristmill", "--no-log", QUESTION]
        said = subprocess.run(command + ["-o", "temperature", "0"], env=environment, capture_output=True, text=True)
        assert said.stdout.strip() == TOKYO, said
        form = subprocess.run(command + ["--schema", json.dumps(SCHEMA)], env=environment, capture_output=True, text=True)
        assert set(json.loads(form.stdout)) == {"city", "sure"}, form


def pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    openai = OpenAIProvider(base_url=V1, api_key="none")
    for model in [
        OpenAIChatModel("demo", provider=openai),
        OpenAIResponsesModel("demo", provider=openai),
        AnthropicModel("demo", provider=AnthropicProvider(base_url=BASE, api_key="none")),
    ]:
        said = Agent(model, model_settings={"temperature": 0, "max_tokens": 50}).run_sync(QUESTION).output
        assert said == TOKYO, (model, said)
        Answer = answer_type()
        assert isinstance(Agent(model, output_type=Answer, model_settings={"max_tokens": 200}).run_sync(QUESTION).output, Answer)


def openai_agents():
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=V1, api_key="none")
    Answer = answer_type()

    async def run():
        for Model in [OpenAIChatCompletionsModel, OpenAIResponsesModel]:
            model = Model(model="demo", openai_client=client)
            agent = Agent(name="a", model=model, model_settings=ModelSettings(temperature=0))
            assert (await Runner.run(agent, QUESTION)).final_output == TOKYO, Model
            streamed = Runner.run_streamed(agent, QUESTION)
            async for _ in streamed.stream_events():
                pass
            assert streamed.final_output == TOKYO, Model
            typed = Agent(name="b", model=model, output_type=Answer)
            assert isinstance((await Runner.run(typed, QUESTION)).final_output, Answer), Model

    asyncio.run(run())


def lm_eval():
    with tempfile.TemporaryDirectory() as folder:
        settings = f"model=demo,base_url={V1}/completions,num_concurrent=1,max_retries=1,tokenizer_backend=remote,tokenized_requests=True,max_length=2048"
        command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", settings]
        command += ["--include_path", str(HERE), "--tasks", "capitals", "--batch_size", "4", "--output_path", folder]
        run = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
        assert run.returncode == 0, run.stderr[-3000:]
        (results,) = pathlib.Path(folder).rglob("results_*.json")
        accuracy = json.loads(results.read_text())["results"]["capitals"]["acc,none"]
        assert accuracy >= 0.75, accuracy


def aider():
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"OPENAI_API_BASE": V1, "OPENAI_API_KEY": "none"}
        command = ["aider", "--model", "openai/demo", "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings"]
        command += ["--analytics-disable", "--map-tokens", "0", "--edit-format", "ask", "--message", QUESTION]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, timeout=300)
        assert run.returncode == 0 and "Tokens:" in run.stdout, run.stdout[-2000:] + run.stderr[-2000:]


def ai_sdk():
    run = subprocess.run(["node", str(HERE / "ai-sdk.mjs"), BASE], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


def installed(name):
    programs = {"aider": "aider", "ai_sdk": "node"}
    modules = {"langchain": "langchain_openai", "openai_agents": "agents"}
    if name in programs:
        return shutil.which(programs[name]) is not None
    return importlib.util.find_spec(modules.get(name, name)) is not None


CHECKS = [litellm, langchain, instructor, llm, pydantic_ai, openai_agents, lm_eval, aider, ai_sdk]
failed = False
for check in CHECKS:
    if sys.argv[2:] and check.__name__ not in sys.argv[2:]:
        continue
    if not installed(check.__name__):
        print(check.__name__, "is not installed", flush=True)
        continue
    try:
        check()
        print(check.__name__, "passed", flush=True)
    except Exception as error:
        failed = True
        print(check.__name__, "failed:", type(error).__name__, str(error)[:3000], flush=True)
sys.exit(failed)
