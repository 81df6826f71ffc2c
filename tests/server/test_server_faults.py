"""What goes wrong stays where it went wrong: clients that leave, full queues, slow readers, bugs, signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.server.conftest import NAME, PROMPT, Running, chat, complete, load

LONG = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0}
MARK = "return"  # a word whose token makes the patched model misbehave
Launch = Callable[..., Running]


@contextlib.contextmanager
def streaming(server: Running, **fields: Any) -> Iterator[httpx.Response]:
    body = {"model": NAME, "prompt": PROMPT, "stream": True, **LONG, **fields}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        yield response


def slow(server: Running, seconds: float) -> None:
    step = server.engine.step
    server.engine.step = lambda: (time.sleep(seconds), step())[1]


def test_a_client_that_leaves_frees_its_blocks_at_the_next_step(launch: Launch) -> None:
    server = launch()
    slow(server, 0.02)
    with streaming(server) as response:
        lines = response.iter_lines()
        next(lines)
        assert server.engine.requests
    end = time.monotonic() + 5
    while server.service.loop.tickets and time.monotonic() < end:
        time.sleep(0.005)
    server.idle()
    assert server.service.loop.steps < 200  # of the more than a thousand it had before it
    _leave(server)
    server.idle()
    assert server.service.loop.steps < 400
    assert 'finished_reason="abort",model_name="tiny"} 2.0' in server.client.get("/metrics").text


def _leave(server: Running) -> None:
    """Ask without a stream, and hang up before the answer."""
    with contextlib.suppress(httpx.ReadTimeout):
        httpx.post(server.url + "/v1/completions", json={"prompt": PROMPT, **LONG}, timeout=0.5)


def test_a_full_queue_is_a_429_that_clients_wait_out(launch: Launch) -> None:
    openai = pytest.importorskip("openai", reason="the openai package is not installed")
    server = launch(engine={"max_num_seqs": 2}, max_queue=0)
    slow(server, 0.01)
    with streaming(server, n=2) as response:
        lines = response.iter_lines()  # kept: httpx hangs up when it is collected
        next(lines)
        answer = complete(server)
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert complete(server, n=3).status_code == 400  # would never fit
        assert server.client.get("/health").status_code == 200
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=3)
    assert client.completions.create(model=NAME, prompt=PROMPT, max_tokens=2).choices[0].text is not None
    server.idle()


def test_a_loading_server_says_so_and_a_model_that_cannot_load_ends_it(launch: Launch, model_path: Path) -> None:
    gate = threading.Event()
    server = Running(lambda: (gate.wait(30), load(model_path))[1])
    try:
        for call in (lambda: server.client.get("/health"), lambda: chat(server)):
            answer = call()
            assert answer.status_code == 503 and "retry-after" in answer.headers and "loading" in answer.json()["error"]["message"]
        assert server.client.get("/v1/models").status_code == 200
        gate.set()
        server.wait()
        assert chat(server, max_tokens=1).status_code == 200
    finally:
        gate.set()
        server.close()

    def fail() -> Any:
        raise ValueError("no such model")

    broken = Running(fail)
    broken.thread.join(10)
    assert not broken.thread.is_alive() and str(broken.server.failure) == "no such model"


def test_requests_end_at_their_time(launch: Launch) -> None:
    server = launch(request_timeout=0.4)
    slow(server, 0.02)
    answer = complete(server, **LONG)
    assert answer.status_code == 504 and answer.headers["x-should-retry"] == "false" and "0.4 seconds" in answer.json()["error"]["message"]
    with streaming(server) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout"
    server.idle()


def test_silence_is_filled_with_comments(launch: Launch) -> None:
    server = launch(keep_alive=0.05)
    slow(server, 0.2)
    with streaming(server, max_tokens=3) as response:
        lines = list(response.iter_lines())
    assert lines.count(": ping") >= 2 and lines[-2] == "data: [DONE]"


def test_a_reader_that_stops_reading_holds_up_nobody(server: Running) -> None:
    body = json.dumps({"prompt": PROMPT, "stream": True, "return_token_origins": True, "logprobs": 20, **LONG}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        start = time.monotonic()
        for _ in range(5):
            assert complete(server).status_code == 200
        assert time.monotonic() - start < 20
    server.idle()


def patch_forward(server: Running, change: Callable[[list[Any], Any], Any]) -> None:
    forward = server.engine.target.forward
    server.engine.target.forward = lambda feeds: change(feeds, forward)


def test_a_request_that_breaks_a_pass_takes_no_other_with_it(launch: Launch) -> None:
    server = launch()
    marked = server.service.prompter.encode(" " + MARK)[0]
    expected = complete(server, max_tokens=60).json()["choices"][0]["text"]

    def explode(feeds: list[Any], forward: Any) -> Any:
        if any(marked in f.tokens for f in feeds):
            raise RuntimeError("secret words of a bug")
        return forward(feeds)

    patch_forward(server, explode)
    slow(server, 0.005)
    answers: dict[int, httpx.Response] = {}
    threads = [threading.Thread(target=lambda i=i: answers.update({i: complete(server, max_tokens=60)})) for i in range(3)]
    for t in threads:
        t.start()
    time.sleep(0.1)
    for _ in range(4):
        bad = complete(server, "the cat " + MARK)
        assert bad.status_code == 500 and bad.json()["error"]["type"] == "internal_error" and "secret" not in bad.text
    for t in threads:
        t.join()
    assert [a.json()["choices"][0]["text"] for a in answers.values()] == [expected] * 3
    with streaming(server, prompt="the cat " + MARK) as response:
        lines = [line for line in response.iter_lines() if line]
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["type"] == "internal_error" and lines[-1] == "data: [DONE]"
    assert server.engine.scheduler.max_num_seqs == 8 and server.client.get("/health").status_code == 200
    server.idle()


def test_nan_ends_one_sequence_only(launch: Launch) -> None:
    server = launch()
    marked = server.service.prompter.encode(" " + MARK)[0]
    expected = complete(server, max_tokens=60).json()["choices"][0]["text"]

    def poison(feeds: list[Any], forward: Any) -> Any:
        rows = forward(feeds)
        return [torch.full_like(r, float("nan")) if marked in f.tokens else r for f, r in zip(feeds, rows, strict=True)]

    patch_forward(server, poison)
    good: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: good.append(complete(server, max_tokens=60)))
    thread.start()
    bad = complete(server, "the cat " + MARK)
    thread.join()
    assert bad.status_code == 500 and "output token" in bad.json()["error"]["message"]
    assert good[0].json()["choices"][0]["text"] == expected
    server.idle()


def test_a_broken_engine_turns_health_red_and_ends_the_server(launch: Launch) -> None:
    server = launch()

    def explode(feeds: list[Any], forward: Any) -> Any:
        raise RuntimeError("the device is gone")

    patch_forward(server, explode)
    assert complete(server).status_code in (500, 503)
    assert server.service.state == "broken"
    server.thread.join(10)
    assert not server.thread.is_alive() and server.server.failure is not None


def test_a_thousand_requests_that_are_given_up_leave_nothing(server: Running) -> None:
    tasks = []
    for i in range(1000):
        body = json.dumps({"prompt": f"the cat {i}", "max_tokens": 50, "stream": i % 2 == 0}).encode()
        sock = socket.create_connection(server.url.removeprefix("http://").split(":"))  # type: ignore[arg-type]
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + (body if i % 3 else body[:9]))
        tasks.append(sock)
        if len(tasks) == 50:
            for s in tasks:
                s.close()
            tasks.clear()
    server.idle()
    assert not server.service.metrics._begun and not server.service.metrics._seen


# A process of its own: signals


def start_process(model: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    """`headstart serve` on a free port, with its URL once it is ready."""
    command = [sys.executable, "-m", "headstart", "serve", str(model), "--port", "0", "--draft", "ngram", "--kv-cache-memory", "8MiB"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, env=environment)
    seen = []
    assert process.stderr is not None
    for line in process.stderr:
        seen.append(line)
        if line.startswith("try: curl "):
            return process, line.split()[2].removesuffix("/v1/chat/completions")
    raise AssertionError("".join(seen))


def test_sigterm_lets_what_runs_end_and_takes_no_more(model_path: Path) -> None:
    process, url = start_process(model_path, "--max-num-seqs", "2")
    try:
        body = {"prompt": PROMPT, "stream": True, **LONG}
        with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            end = time.monotonic() + 5
            while (health := httpx.get(url + "/health")).status_code == 200 and time.monotonic() < end:
                time.sleep(0.01)
            assert health.status_code == 503
            refused = httpx.post(url + "/v1/completions", json={"prompt": "x"})
            assert refused.status_code == 503 and "retry-after" in refused.headers
            rest = [line for line in lines if line.startswith("data: ")]
        assert rest[-1] == "data: [DONE]" and json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert process.wait(20) == 0
    finally:
        process.kill()


def test_a_second_signal_exits_at_once(launch: Launch) -> None:
    server = launch()
    slow(server, 0.05)
    with streaming(server) as response, pytest.raises(httpx.TransportError):
        lines = response.iter_lines()
        next(lines)
        server.server.handle_exit(signal.SIGINT, None)
        time.sleep(0.3)
        assert server.thread.is_alive() and server.client.get("/health").status_code == 503
        server.server.handle_exit(signal.SIGINT, None)
        for _ in lines:
            pass
        raise httpx.ReadError("the stream was ended in order")  # by an error event and [DONE]
    server.thread.join(5)
    assert not server.thread.is_alive()
