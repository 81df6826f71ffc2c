"""One test for each kind of weakness that servers of this kind had in public, and what a browser could be used for."""

from __future__ import annotations

import ast
import asyncio
import base64
import hashlib
import json
import math
import random
import re
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import headstart
from headstart.core.errors import HeadstartError
from headstart.server import guard
from headstart.server.limits import Limits
from tests.server.conftest import NAME, PROMPT, WORDS, Running, chat, complete, load, write_model
from tests.tiny import edit_json

Launch = Callable[..., Running]
BIG = (-1, 2**31, 2**63, 2**64, 10**30)
INTEGERS = {
    "n": BIG, "max_tokens": BIG, "min_tokens": BIG, "top_k": (-2, *BIG[1:]), "seed": BIG[3:],
    "prompt_logprobs": (-2, *BIG[1:]),
    "truncate_prompt_tokens": (-2, 0, *BIG[1:]),
    "num_speculative_tokens": BIG, "best_of": BIG, "logprobs": (-2, *BIG[1:]), "priority": BIG,
}  # fmt: skip


def refusal(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text[:300]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and "Traceback" not in error["message"]
    return error


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # MiB


# Numbers


@pytest.mark.parametrize("field", INTEGERS)
def test_no_integer_overflows_or_runs_away(server: Running, field: str) -> None:
    start = time.monotonic()
    for value in (*INTEGERS[field], 1.5, "1", True, [1]):
        assert refusal(complete(server, **{field: value}))["param"] in (field, "messages", None), value
    assert time.monotonic() - start < 5


def test_counts_are_bounded(server: Running) -> None:
    many: list[tuple[str, Any]] = [
        ("n", 10**9), ("n", 17), ("best_of", 17), ("max_tokens", 10**12), ("stop", ["x"] * 100), ("stop", "x" * 5000),
        ("bad_words", ["x"] * 1000), ("logit_bias", {str(i): 1 for i in range(5000)}), ("logprobs", 10**6),
    ]  # fmt: skip
    for field, value in many:
        assert refusal(complete(server, **{field: value}))["message"]
    assert refusal(chat(server, logprobs=True, top_logprobs=10**6))["message"]
    assert refusal(complete(server, ["x"] * 1000))["param"] == "prompt"
    assert (
        refusal(server.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}] * 3000}))["param"]
        == "messages"
    )


def test_token_ids_of_clients_are_ids(server: Running) -> None:
    for bad in (-1, WORDS, 2**63, 1.5, "1", None):
        refusal(complete(server, [66, bad]))
        refusal(complete(server, stop_token_ids=[bad]))
        refusal(complete(server, allowed_token_ids=[bad]))
        refusal(server.client.post("/detokenize", json={"tokens": [bad]}))
    for body in ('{"prompt": [66, NaN]}', '{"prompt": "x", "temperature": NaN}', '{"prompt": "x", "logit_bias": {"66": Infinity}}'):
        refusal(server.client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"}))
    for key in ("-1", str(WORDS), "x", "9" * 30):
        refusal(complete(server, logit_bias={key: 1}))
    refusal(complete(server, prompt_embeds="gASVAAAA", prompt=None))  # nothing that would be unpacked is taken


def test_ids_stay_inside_an_odd_vocabulary(launch: Launch, tmp_path: Path) -> None:
    """Rows of padding, with tempting logits, are never proposed, sampled or listed."""
    server = launch(path=write_model(tmp_path, pad_rows=27))
    for fields in ({}, {"temperature": 1.5, "n": 8}, {"verify": "match"}, {"num_speculative_tokens": 0}):
        for choice in complete(server, **fields, max_tokens=60, logprobs=20, return_token_ids=True).json()["choices"]:
            assert all(0 <= t < WORDS for t in choice["token_ids"])


# HTTP


def send_raw(server: Running, parts: Any, limit: int) -> bytes:
    """Write until the server has had enough; what it said."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sent = 0
        try:
            for part in parts:
                sock.sendall(part)
                sent += len(part)
        except OSError:
            pass
        assert sent < limit, "everything was taken"
        try:
            return sock.recv(4096)
        except OSError:
            return b""


def test_huge_headers_and_bodies_are_cut_off_in_flat_memory(server: Running) -> None:
    before, part = memory(), b"x" * 65536
    said = send_raw(server, [b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Big: ", *[part] * 1600], 50 << 20)
    assert said[:12] in (b"", b"HTTP/1.1 431")
    for sent, status in (([b"GET / HTTP/1.1\r\nX: ", part[:40_000]], b"431"), ([b"\x16\x03\x01 nonsense\r\n\r\n"], b"400")):
        said = send_raw(server, sent, 1 << 20)
        assert said[9:12] == status and json.loads(said.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for length in (b"Content-Length: 104857600\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        wrap = (lambda p: b"%x\r\n%s\r\n" % (len(p), p)) if b"chunked" in length else (lambda p: p)
        said = send_raw(server, [head + length, *[wrap(part)] * 1600], 60 << 20)
        assert said[:12] in (b"", b"HTTP/1.1 413")
    assert memory() - before < 60
    body = b'{"prompt": "' + b"x" * (9 << 20) + b'"}'
    assert refusal(server.client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"}), 413)
    assert complete(server, max_tokens=1).status_code == 200


def test_json_that_is_deep_or_broken(server: Running) -> None:
    post = lambda b: server.client.post("/v1/chat/completions", content=b, headers={"Content-Type": "application/json"})  # noqa: E731
    for body in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 10**6, b'{"messages":' * 10**4, b'{"messages": "\\ud800"}', b"1" * 10**5):
        refusal(post(body))
    deep: Any = {}
    for _ in range(150):
        deep = {"items": deep}
    refusal(chat(server, structured_outputs={"json": deep}))
    refusal(chat(server, tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}]))
    refusal(chat(server, chat_template_kwargs={"x": deep}))


def test_a_body_that_never_comes_is_given_up(launch: Launch) -> None:
    from headstart.server.settings import Limits

    server = launch(limits=Limits(body_seconds=0.3))
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        sock.sendall(head)
        assert sock.recv(4096).startswith(b"HTTP/1.1 408")


def test_keys_guard_every_route(launch: Launch) -> None:
    server = launch(api_keys=("first", "second"))
    routes = [
        (m.upper(), path)
        for path, methods in server.client.get("/openapi.json", headers=bearer("first")).json()["paths"].items()
        for m in methods
    ]
    assert len(routes) == 9
    for method, path in [*routes, ("GET", "/"), ("GET", "/openapi.json"), ("GET", "/nowhere"), ("OPTIONS", "/v1/models")]:
        for headers in (
            {},
            bearer("f"),
            bearer("firs"),
            bearer("first "[:-1] + "x"),
            {"Authorization": "first"},
            {"Authorization": "Basic !"},
        ):
            answer = server.client.request(method, path, headers=headers)
            if path == "/health":
                assert answer.status_code == 200
            else:
                assert refusal(answer, 401)["code"] == "invalid_api_key" and answer.headers["www-authenticate"]
    for key in ("first", "second"):
        assert server.client.get("/v1/models", headers=bearer(key)).status_code == 200
        basic = {"Authorization": "Basic " + base64.b64encode(f"me:{key}".encode()).decode()}
        assert server.client.get("/", headers=basic).status_code == 200
    assert launch(api_keys=("k",), open_metrics=True).client.get("/metrics").status_code == 200


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_keys_are_compared_in_constant_time_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = guard.hmac.compare_digest
    monkeypatch.setattr(guard.hmac, "compare_digest", lambda a, b: (compared.append((a, b)), real(a, b))[1])
    assert guard.same_key("a", ("a", "bb", "ccc")) == "a" and guard.same_key("x" * 999, ("a", "bb", "ccc")) is None
    assert len(compared) == 6 and all(len(a) == len(b) == 32 for a, b in compared)


def test_pages_elsewhere_cannot_use_the_server(server: Running, launch: Launch) -> None:
    assert refusal(server.client.get("/v1/models", headers={"Host": "evil.example:8000"}))["code"] == "host_not_allowed"
    plain = server.client.post("/v1/completions", content=b'{"prompt": "x"}', headers={"Content-Type": "text/plain"})
    assert refusal(plain, 415)["type"] == "invalid_request_error"
    ask = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    answer = server.client.options("/v1/completions", headers=ask)
    assert answer.status_code == 405 and not any(h.startswith("access-control") for h in answer.headers)
    open_ = launch(cors_origins=("https://mine.example",), api_keys=("k",))
    assert open_.client.options("/v1/models", headers={**ask, "Origin": "https://mine.example"}).status_code == 200
    assert open_.client.options("/v1/models", headers=ask).status_code == 400
    named = launch(allowed_hosts=("gpu.local",), wait=False)
    assert named.client.get("/health").status_code == 400
    assert named.client.get("/health", headers={"Host": "gpu.local:1"}).status_code in (200, 503)


def test_the_page_runs_its_own_script_only_and_asks_nobody_else(server: Running) -> None:
    answer = server.client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag in ("script", "style"):
        [inside] = re.findall(f"<{tag}>(.+?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert "page.css" not in answer.text and "page.js" not in answer.text
    text = answer.text.replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in text and "https://" not in text and "innerHTML" not in text


# Templates and model folders


def test_arguments_of_the_template_are_values_and_small(server: Running) -> None:
    lags: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        with httpx.Client(base_url=server.url) as client:
            while not stop.is_set():
                start = time.monotonic()
                client.get("/health")
                lags.append(time.monotonic() - start)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        ask_for_arguments(server)
    finally:
        stop.set()
        thread.join()
    assert max(lags) < 2


def ask_for_arguments(server: Running) -> None:
    for name in (
        "tokenize",
        "chat_template",
        "return_tensors",
        "return_dict",
        "tools",
        "messages",
        "__class__",
        "self",
        "add_generation_prompt",
    ):
        assert refusal(chat(server, chat_template_kwargs={name: True}))["param"] == "chat_template_kwargs"
    assert refusal(chat(server, chat_template_kwargs={"x": "y" * 10**6}))["param"] == "chat_template_kwargs"
    refusal(chat(server, "x" * (4 << 20)))


ATTACKS = (
    "{{ ''.__class__.__mro__ }}",
    "{% for c in ().__class__.__base__.__subclasses__() %}{{ c }}{% endfor %}",
    "{{ messages.append({'role': 'x'}) }}",
    "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('MARKER', 'w') }}",
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_template_of_a_model_file_cannot_reach_out(launch: Launch, tmp_path: Path, attack: str) -> None:
    marker = tmp_path / "marker"
    server = launch(path=write_model(tmp_path, template=attack.replace("MARKER", str(marker)) + "x"))
    answer = chat(server, max_tokens=1, return_token_ids=True)
    if answer.status_code == 200:  # jinja's sandbox turns forbidden names into nothing where they are only printed
        ids = answer.json()["choices"][0]["prompt_token_ids"]
        assert server.service.prompter.tokenizer.decode(ids) == "x"
    else:
        assert refusal(answer)["param"] == "messages"
    assert not marker.exists()


def test_code_in_a_model_folder_is_never_run(tmp_path: Path) -> None:
    folder, marker = write_model(tmp_path / "model"), tmp_path / "marker"
    for name in ("modeling_x", "configuration_x", "tokenization_x"):
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass X: pass\n")
    edit_json(folder / "config.json", auto_map={"AutoConfig": "configuration_x.X", "AutoModelForCausalLM": "modeling_x.X"})
    edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_x.X", "tokenization_x.X"]})
    try:
        llm = load(folder)
        assert llm.generate([[66]], headstart.SamplingParams(max_tokens=1))[0].finished
    except HeadstartError:
        pass
    assert not marker.exists()


def test_nothing_unpickles(tmp_path: Path) -> None:
    for file in Path(headstart.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not {n.partition(".")[0] for n in names} & {"pickle", "cloudpickle", "dill", "marshal", "shelve", "zmq"}, file
            if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
                called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                assert called not in ("eval", "exec") or not node.args, file  # without arguments: a module's switch to inference
                assert ast.unparse(node.func) != "torch.load", file
    folder = write_model(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(HeadstartError, match="pickle"):
        load(folder)


def test_damaged_model_files_are_a_clean_error(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (
        b"",
        b"\xff" * 8,
        (2**62).to_bytes(8, "little") + whole[8:],
        whole[: len(whole) // 2],
        whole[:8] + b"{" * 64 + whole[72:],
    ):
        file.write_bytes(damaged)
        with pytest.raises(HeadstartError):
            load(folder)


def test_nothing_is_fetched_for_a_client(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[Any] = []
    own = server.url.rpartition(":")[2]
    real = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", lambda s, a: (connected.append(a), real(s, a))[1])
    for part in (
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "video_url", "video_url": {"url": "http://169.254.169.254/"}},
    ):
        error = refusal(server.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": [part]}]}))
        assert error["param"] == "messages" and "root:" not in error["message"]
    refusal(chat(server, structured_outputs={"json": {"$ref": "http://127.0.0.1:9/schema"}}))
    assert all(str(a[1]) == own for a in connected)


# Grammars


def random_schema(rng: random.Random, level: int = 0) -> Any:
    kinds = ["string", "integer", "array", "object", "anyOf", "$ref", "junk"] if level < 4 else ["string", "boolean", "junk"]
    kind = rng.choice(kinds)
    below = lambda: random_schema(rng, level + 1)  # noqa: E731
    return {
        "string": {"type": "string", "pattern": rng.choice(["(a+)+$", "[", "\\", "(?=x)", "a{1000}{1000}", "^.*$", ""])},
        "integer": {"type": "integer", "minimum": rng.choice([10**30, -5, 1.5, "x"]), "multipleOf": rng.choice([0, -1, 7])},
        "boolean": {"type": "boolean"},
        "array": {"type": "array", "items": below() if level < 4 else {}, "minItems": rng.choice([-1, 0, 10**9]), "maxItems": 2},
        "object": {"type": "object", "properties": {"a": below() if level < 4 else {}}, "required": rng.choice([["a"], ["b"], "a", [1]])},
        "anyOf": {"anyOf": [below() if level < 4 else {} for _ in range(rng.randint(0, 3))]},
        "$ref": {"$ref": rng.choice(["#", "#/nowhere", "http://127.0.0.1:9/", 5])},
        "junk": rng.choice([None, 5, [], "x", {"type": "nonsense"}, {"type": ["string", 3]}, {"enum": []}, {"const": {"a": [1]}}]),
    }[kind]


def test_schemas_expressions_and_tools_of_any_kind_crash_nothing(server: Running) -> None:
    outcomes = set()
    for seed in range(20):
        schema = random_schema(random.Random(seed))
        for fields in (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": "required"},
        ):
            answer = chat(server, max_tokens=4, **fields)
            assert answer.status_code in (200, 400), answer.text
            outcomes.add(answer.status_code)
    for regex in ("(", "[z-a]", "(?<n>a)\\k<n>", "a{99999999}", "(((a{99}){99}){99}){99}", "\\", "\x00", "(?R)"):
        assert chat(server, guided_regex=regex, max_tokens=4).status_code in (200, 400)
    for grammar in ("", "start:", "start: start", "start: a\na: a a", 'start: "x"{1,99999999}', "%import x", "start: /(/"):
        assert chat(server, guided_grammar=grammar, max_tokens=4).status_code in (200, 400)
    assert outcomes == {200, 400}
    assert refusal(chat(server, structured_outputs={"json": {"enum": ["x" * 70_000]}}))["param"] == "structured_outputs"
    server.idle()


def test_a_grammar_that_takes_long_holds_up_nobody(launch: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    server = launch(limits=Limits(grammar_seconds=0.4))
    assert chat(server, guided_choice=["quick"], max_tokens=4).status_code == 200
    compile_, release = server.engine.grammars.compile, threading.Event()

    def slow(wanted: Any) -> Any:
        if wanted.choice is None:
            release.wait(30)
        return compile_(wanted)

    monkeypatch.setattr(server.engine.grammars, "compile", slow)
    for field, value in (("guided_regex", "a"), ("response_format", {"type": "json_object"})):
        said = refusal(chat(server, max_tokens=4, **{field: value}))
        assert said["param"] == field and "0.4 seconds" in said["message"]
    # Both threads are taken now: who comes next is told to come again, unless its grammar is known; who wants none notices nothing.
    answer = chat(server, guided_choice=["new"], max_tokens=4)
    assert answer.status_code == 429 and answer.headers["retry-after"]
    assert chat(server, guided_choice=["quick"], max_tokens=4).status_code == 200 == chat(server, max_tokens=4).status_code
    release.set()
    server.idle()
    for _ in range(100):
        if chat(server, guided_choice=["new"], max_tokens=4).status_code == 200:
            break
    assert chat(server, guided_regex="a", max_tokens=4).json()["choices"][0]["message"]["content"] == "a"
    for field, value in (("guided_json", "{"), ("structured_outputs", {"jsn": {}}), ("guided_regex", "(")):
        assert refusal(chat(server, **{field: value}))["param"] == field


def test_compiled_grammars_do_not_pile_up(server: Running) -> None:
    for i in range(40):
        assert chat(server, guided_choice=[f"w{i}"], max_tokens=1).status_code == 200
    assert len(server.engine.grammars._known) <= 32


def test_every_option_meets_every_way_of_drafting(server: Running, launch: Launch, model_path: Path) -> None:
    own = {"method": "draft_model", "model": str(model_path), "num_speculative_tokens": 3, "adaptive": False}
    options: list[dict[str, Any]] = [
        {"presence_penalty": 1, "frequency_penalty": 1}, {"repetition_penalty": 1.3}, {"logit_bias": {"66": 5}}, {"min_p": 0.1},
        {"seed": 3},
        {"guided_regex": "[a-f]{1,30}"}, {"logprobs": 3}, {"n": 3}, {"stop": ["e"]}, {"echo": True, "logprobs": 1},
        {"bad_words": ["the"]},
        {"verify": "block"}, {"verify": "match"}, {"best_of": 2}, {"prompt_logprobs": 1},
        {"prediction": {"type": "content", "content": PROMPT}},
    ]  # fmt: skip
    for running in (server, launch(engine={"speculative_config": own})):
        for fields in options:
            answer = complete(running, temperature=1, max_tokens=16, **fields)
            assert answer.status_code == 200 and all(c["finish_reason"] in ("stop", "length") for c in answer.json()["choices"]), (
                answer.text
            )
        running.idle()


# What one client may learn of another


def test_prefixes_are_shared_within_a_key_only(launch: Launch) -> None:
    server = launch(api_keys=("anna", "ben"))

    def cached(key: str, **fields: Any) -> int:
        body = {"prompt": PROMPT * 3, "max_tokens": 1, **fields}
        answer = server.client.post("/v1/completions", json=body, headers=bearer(key))
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("anna") == 0 and cached("anna") > 20
    assert cached("ben") == 0 and cached("ben") > 20
    assert cached("anna", cache_salt="x") == 0 and cached("anna", cache_salt="x") > 20
    assert cached("ben", cache_salt="x") == 0  # no name a client gives reaches what another one has


def test_logs_hold_no_words_of_clients(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    answer = chat(server, "the secret cat")
    text = answer.json()["choices"][0]["message"]["content"]
    ours = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("headstart"))
    assert "tokens in" in ours and "secret" not in ours and text not in ours


def test_the_event_loop_stays_free_while_prompts_are_read(server: Running) -> None:
    async def measure() -> float:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            work = [asyncio.create_task(client.post("/tokenize", json={"prompt": "the cat " * 40_000})) for _ in range(3)]
            worst = 0.0
            while not all(t.done() for t in work):
                start = time.monotonic()
                await client.get("/health")
                worst = max(worst, time.monotonic() - start)
            assert all(t.result().status_code == 200 for t in work)
            return worst

    assert asyncio.run(measure()) < 3


def test_numbers_in_answers_are_json(server: Running) -> None:
    """A forbidden token has probability 0: its logarithm must not become -Infinity in the JSON."""
    body = complete(server, allowed_token_ids=[66], logprobs=20, prompt_logprobs=20, max_tokens=2)
    json.loads(body.text, parse_constant=lambda name: pytest.fail(f"{name} in an answer"))
    assert math.isfinite(body.json()["choices"][0]["logprobs"]["token_logprobs"][0])
    assert body.json()["model"] == NAME
