"""What Prometheus scrapes and what the log says: vLLM's names, and figures that agree with the answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headstart.server.metrics import Interval
from tests.server.conftest import NAME, Running, complete
from tests.server.test_server_chat import FEW

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def values(server: Running) -> dict[str, float]:
    """Sample -> value; labels other than the model's and the engine's stand behind the name."""
    out = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for s in family.samples:
            assert s.labels["model_name"] == NAME and s.labels["engine"] == "0"
            more = [v for k, v in s.labels.items() if k not in ("model_name", "engine")]
            out["/".join([s.name, *more])] = s.value
    return out


@pytest.mark.parametrize("prefix", ["headstart:", "vllm:", "mine_"])
def test_counters_are_those_of_the_answers(launch: Callable[..., Running], prefix: str) -> None:
    server = launch(metrics_prefix=prefix)
    bodies = [complete(server, **FEW).json(), complete(server, **FEW, n=2, temperature=1).json(), complete(server, max_tokens=5).json()]
    server.idle()
    assert complete(server, n=0).status_code == 400
    got = {k.removeprefix(prefix): v for k, v in values(server).items() if k.startswith(prefix)}
    details = [b["usage"]["completion_tokens_details"] for b in bodies]
    accepted = sum(d["accepted_draft_tokens"] for d in details)
    assert got["spec_decode_num_draft_tokens_total"] == sum(d["draft_tokens"] for d in details) > accepted > 0
    assert got["spec_decode_num_accepted_tokens_total"] == accepted
    assert sum(v for k, v in got.items() if k.startswith("spec_decode_num_accepted_tokens_per_pos_total/")) == accepted
    assert got["spec_decode_num_drafts_total"] == got["spec_decode_num_draft_tokens_per_pos_total/0"]
    assert got["prompt_tokens_total"] == sum(b["usage"]["prompt_tokens"] for b in bodies)
    assert got["generation_tokens_total"] == sum(b["usage"]["completion_tokens"] for b in bodies) == 40 + 80 + 5
    assert got["request_success_total/length"] == 4 and got["request_refused_total/400"] == 1
    assert (
        got["e2e_request_latency_seconds_count"] == got["time_to_first_token_seconds_count"] == got["request_queue_time_seconds_count"] == 3
    )
    assert got["inter_token_latency_seconds_count"] > 10 and got["request_time_per_output_token_seconds_count"] == 3
    assert got["num_requests_running"] == got["num_requests_waiting"] == got["kv_cache_usage_perc"] == 0
    assert got["prefix_cache_hits_total"] > 0 and got["num_preemptions_total"] == 0


def test_preemptions_and_kv_use_are_seen(launch: Callable[..., Running]) -> None:
    server = launch(engine={"kv_cache_memory": 200_000, "max_model_len": 120})
    blocks = server.engine.pool.num_blocks
    assert complete(server, n=8, max_tokens=100, ignore_eos=True).status_code == 200
    server.idle()
    assert values(server)["headstart:num_preemptions_total"] > 0, blocks


def test_the_log_line_is_the_familiar_one() -> None:
    interval = Interval()
    assert interval.lines() == []
    interval.step(2, 1, 0.25, 100, 50)
    interval.prompt, interval.generated = 30, 12
    interval.draft(4, 2)
    interval.draft(4, 4)
    first, second = interval.lines()
    assert "Running: 2 reqs, Waiting: 1 reqs, KV cache usage: 25.0%, Prefix cache hit rate: 50.0%" in first
    assert re.search(r"SpecDecoding metrics: Mean acceptance length: 4\.00, Accepted throughput: [\d.]+ tokens/s, ", second)
    assert second.endswith("Per-position acceptance rate: 1.000, 1.000, 0.500, 0.500, Avg Draft acceptance rate: 75.0%")
    assert interval.lines() == []


def test_the_server_logs_it_while_it_works(launch: Callable[..., Running], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "headstart.server")
    server = launch(log_interval=0.1)
    for _ in range(5):
        complete(server, **FEW)
    assert "SpecDecoding metrics: Mean acceptance length:" in caplog.text and "Avg generation throughput:" in caplog.text


def test_the_dashboard_asks_for_metrics_that_exist(server: Running) -> None:
    complete(server, **FEW)
    complete(server, n=0)
    asked = set(re.findall(r"\$\{prefix\}(\w+)", DASHBOARD.read_text()))
    served = {name.removeprefix("headstart:") for name in re.findall(r"^(headstart:\w+)", server.client.get("/metrics").text, re.M)}
    assert len(asked) > 10 and asked <= served, asked - served
    assert json.loads(DASHBOARD.read_text())["title"] == "headstart"
