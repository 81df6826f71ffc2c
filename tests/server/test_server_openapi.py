"""Requests drawn from the server's own OpenAPI document, right and wrong ones: none may be a 500, each error has the one shape."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from tests.server.conftest import Running

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
# Compiled now, while no server's thread compiles anything: two threads at it at once can fail in Python 3.11.
pytest.importorskip("schemathesis.specs.openapi.schemas")


EXAMPLES = int(os.environ.get("HEADSTART_EXAMPLES", "12"))
ROUTES = [
    *(("POST", path) for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")),
    *(("GET", path) for path in ("/health", "/v1/models", "/v1/models/{name}", "/version", "/metrics")),
]


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda m: m.name.lower())
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_request_is_a_500(server: Running, method: str, path: str, mode: Any) -> None:
    operation = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())[path][method]
    seen: set[int] = set()

    @settings(
        max_examples=EXAMPLES if method == "POST" else 5,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if isinstance(case.body, dict) and ("prompt" in case.body or "messages" in case.body) and case.body.get("max_tokens") is None:
            case.body = {**case.body, "max_tokens": 2}
            if mode.name == "POSITIVE":  # a prompt that is one, so that the other fields get their turn
                real = {"messages": [{"role": "user", "content": "the cat"}], "prompt": "the cat", "model": None}
                case.body |= {k: v for k, v in real.items() if k in case.body}
        answer = case.call(base_url=server.url, timeout=30)
        assert answer.status_code < 500, (case.body, answer.text)
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        seen.add(answer.status_code)

    try:
        ask()
    except Unsatisfiable:
        assert (method, mode.name) == ("GET", "NEGATIVE")  # a route without parameters cannot be asked wrongly
    else:
        assert seen
    server.idle()


def test_every_route_is_asked(server: Running) -> None:
    document = server.client.get("/openapi.json").json()
    assert {(m.upper(), path) for path, methods in document["paths"].items() for m in methods} == set(ROUTES)


def test_the_document_names_every_field_that_acts(server: Running) -> None:
    document = server.client.get("/openapi.json").json()
    chat = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "tools", "response_format", "prediction", "num_speculative_tokens", "verify", "top_k", "logprobs"} <= set(chat)
    posts = [r["post"] for r in document["paths"].values() if "post" in r]
    assert all(p["requestBody"]["content"]["application/json"]["schema"]["$ref"].startswith("#/components/schemas/") for p in posts)
    assert "StreamOptions" in document["components"]["schemas"]
