"""Clients as people have them, unchanged: the openai package, and LangChain on top of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.server.conftest import NAME, PROMPT, Running
from tests.server.test_server_chat import FEW
from tests.server.test_server_tools import OTHER, TOOL

openai = pytest.importorskip("openai", reason="the openai package is not installed")
MESSAGES = [{"role": "user", "content": PROMPT}]
pydantic = pytest.importorskip("pydantic")


class Verdict(pydantic.BaseModel):
    ok: bool


@pytest.fixture
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)


def test_openai_chats_and_completions(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=8, temperature=0, seed=1, logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].message.content and answer.usage.completion_tokens == 8
    assert len(answer.choices[0].logprobs.content) == 8 and len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
    text = client.completions.create(model=NAME, prompt=PROMPT, temperature=0, logprobs=1, extra_body=FEW)
    assert text.choices[0].text and len(text.choices[0].logprobs.tokens) == 40
    assert text.usage.completion_tokens_details.accepted_draft_tokens > 0  # beyond the official shape, kept by the client
    assert client.models.list().data[0].id == NAME and client.models.retrieve(NAME).owned_by == "headstart"
    raw = client.with_options(default_headers={"X-Request-Id": "mine"}).models.with_raw_response.list()
    assert raw.headers["x-request-id"] == "mine"


def test_openai_switches_of_one_request(client: openai.OpenAI) -> None:
    def ask(**more: object) -> object:
        return client.completions.create(model=NAME, prompt=PROMPT, temperature=0, extra_body={**FEW, **more})

    plain, rule = ask(num_speculative_tokens=0), ask(verify="match")
    assert plain.choices[0].text == rule.choices[0].text and plain.usage.completion_tokens_details.draft_tokens == 0
    answer = plain.choices[0].text
    told = client.chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=8, prediction={"type": "content", "content": answer})
    assert told.usage.completion_tokens_details.accepted_prediction_tokens >= 0


def test_openai_streams(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=20, temperature=0).choices[0].message.content
    chunks = list(
        client.chat.completions.create(
            model=NAME, messages=MESSAGES, max_tokens=20, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert chunks[-1].usage.completion_tokens == 20 and chunks[-1].model_extra["metrics"]["num_passes"] > 0
    texts = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=5, stream=True)
    assert "".join(c.choices[0].text for c in texts)
    with client.chat.completions.stream(model=NAME, messages=MESSAGES, extra_body={"guided_choice": ["so be it"]}) as stream:
        assert [e.type for e in stream][-1] == "content.done"
        assert stream.get_final_completion().choices[0].message.content == "so be it"


def test_openai_async_and_many_at_once(server: Running) -> None:
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any") as client:
            create = client.chat.completions.create
            answers = await asyncio.gather(*(create(model=NAME, messages=MESSAGES, max_tokens=12, temperature=0) for _ in range(6)))
            assert len({a.choices[0].message.content for a in answers}) == 1
            stream = await create(model=NAME, messages=MESSAGES, max_tokens=12, temperature=0, stream=True)
            text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
            assert text == answers[0].choices[0].message.content

    asyncio.run(ask())


def test_openai_tools(client: openai.OpenAI) -> None:
    asked = {"model": NAME, "tools": [TOOL, OTHER], "tool_choice": "required", "max_tokens": 400, "seed": 7}
    call = client.chat.completions.create(messages=MESSAGES, **asked).choices[0].message.tool_calls[0]
    assert call.function.name in ("weather", "now") and isinstance(json.loads(call.function.arguments), dict)
    chunks = list(client.chat.completions.create(messages=MESSAGES, stream=True, **asked))
    parts = [t for c in chunks if c.choices for t in c.choices[0].delta.tool_calls or []]
    assert parts[0].id and parts[0].function.name == call.function.name
    assert "".join(p.function.arguments for p in parts) == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    history = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "5"},
    ]
    assert client.chat.completions.create(model=NAME, messages=history, max_tokens=3).choices[0].message.content is not None


def test_openai_structured_output(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=NAME, messages=MESSAGES, response_format=Verdict, max_tokens=400, seed=1)
    assert isinstance(answer.choices[0].message.parsed, Verdict)


def test_openai_errors_are_of_the_right_class(client: openai.OpenAI, launch: Callable[..., Running]) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        create(model=NAME, messages=MESSAGES, temperature=-1)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error") and "temperature=-1" in bad.value.message
    with pytest.raises(openai.NotFoundError) as absent:
        create(model="gpt-9", messages=MESSAGES)
    assert absent.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        create(model=NAME, messages=MESSAGES, max_tokens=10_000)
    assert long.value.code == "context_length_exceeded" and all(n in long.value.message for n in ("38", "10000", "10038", "2048"))
    with pytest.raises(openai.BadRequestError) as prompt:
        create(model=NAME, messages=[{"role": "user", "content": "the cat " * 1200}])
    assert prompt.value.code == "context_length_exceeded" and "2048" in prompt.value.message
    locked = launch(api_keys=("right",))
    with pytest.raises(openai.AuthenticationError) as denied:
        openai.OpenAI(base_url=locked.url + "/v1", api_key="wrong").models.list()
    assert denied.value.code == "invalid_api_key"
    assert openai.OpenAI(base_url=locked.url + "/v1", api_key="right").models.list().data[0].id == NAME


def test_langchain(server: Running) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    model = langchain.ChatOpenAI(
        base_url=server.url + "/v1",
        api_key="any",
        model=NAME,
        max_tokens=30,
        temperature=0,
        extra_body={"allowed_token_ids": FEW["allowed_token_ids"]},
    )
    answer = model.invoke(PROMPT)
    details = answer.response_metadata["token_usage"]["completion_tokens_details"]
    assert answer.content and details["accepted_draft_tokens"] > 0
    assert "".join(c.content for c in model.stream(PROMPT)) == answer.content
    assert asyncio.run(model.ainvoke(PROMPT)).content == answer.content
    tooled = langchain.ChatOpenAI(base_url=server.url + "/v1", api_key="any", model=NAME, max_tokens=400, seed=7)
    calls = tooled.bind_tools([TOOL], tool_choice="required").invoke(PROMPT).tool_calls
    assert calls[0]["name"] == "weather" and calls[0]["args"]["city"] in ("Oslo", "Rome")
    assert isinstance(tooled.with_structured_output(Verdict, method="json_schema").invoke(PROMPT), Verdict)
