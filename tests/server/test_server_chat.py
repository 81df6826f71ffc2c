"""Chats and completions over HTTP: options act, answers have OpenAI's shape, a stream is the whole answer in pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headstart import SamplingParams
from tests.server.conftest import NAME, PROMPT, TEMPLATE, Running, chat, complete

FEW = {"allowed_token_ids": [66, 67, 68], "max_tokens": 40}  # so little to choose from that lookup often drafts right


def events(server: Running, route: str, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream; it must end with [DONE]."""
    with server.client.stream("POST", route, json={"model": NAME, "stream": True, **body}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream") and response.headers["cache-control"] == "no-cache"
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    pieces = []
    for choice in (c for chunk in chunks for c in chunk["choices"] if c["index"] == index):
        pieces.append(choice["delta"].get("content", "") if "delta" in choice else choice["text"])
    return "".join(pieces)


MESSAGES = [{"role": "user", "content": PROMPT}]


def test_a_chat_is_what_the_python_api_answers(server: Running) -> None:
    body = chat(server).json()
    prompter = server.service.prompter
    ids = prompter.encode(prompter.render(MESSAGES, {"add_generation_prompt": True}), False)
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-") and body["model"] == NAME
    assert body["usage"]["prompt_tokens"] == len(ids) and body["usage"]["completion_tokens"] == 24
    choice = body["choices"][0]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert choice["message"]["content"] == complete(server, ids).json()["choices"][0]["text"] != ""
    assert body["system_fingerprint"] == chat(server).json()["system_fingerprint"]


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("options", [{}, {"stop": ["T", "the"]}, {**FEW, "n": 3, "temperature": 1, "seed": 5}])
def test_a_stream_in_pieces_is_the_whole_answer(server: Running, route: str, options: dict[str, Any]) -> None:
    about = {"messages": MESSAGES} if "chat" in route else {"prompt": PROMPT}
    body = {"model": NAME, "temperature": 0, "max_tokens": 30, **about, **options}
    whole = server.client.post(route, json=body).json()
    chunks = events(server, route, **body, stream_options={"include_usage": True})
    for choice in whole["choices"]:
        said = choice["message"]["content"] if "message" in choice else choice["text"]
        assert text_of(chunks, choice["index"]) == said
        ends = [c["finish_reason"] for k in chunks for c in k["choices"] if c["index"] == choice["index"] and c["finish_reason"]]
        assert ends == [choice["finish_reason"]]
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    *before, last = chunks
    assert last["choices"] == [] and all(c["usage"] is None for c in before)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name]


def test_a_stream_has_roles_first_and_usage_only_when_asked(server: Running) -> None:
    chunks = events(server, "/v1/chat/completions", messages=MESSAGES, max_tokens=4, temperature=0)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("usage" not in c for c in chunks) and chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["timings"]["predicted_n"] == 4
    counted = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(server, "/v1/chat/completions", messages=MESSAGES, max_tokens=6, temperature=0, stream_options=counted)
    counts = [c["usage"]["completion_tokens"] for c in chunks if c["usage"]]
    assert counts == sorted(counts) and counts[-1] == 6


def test_every_option_reaches_the_engine(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each field of a request becomes the field of SamplingParams that has its meaning."""
    seen: list[SamplingParams] = []
    add = server.engine.add
    monkeypatch.setattr(server.engine, "add", lambda i, p, ids, params, **more: (seen.append(params), add(i, p, ids, params, **more))[1])
    plain = {
        "n": 2, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.5, "temperature": 0.5, "top_p": 0.5, "top_k": 7,
        "min_p": 0.25, "seed": 9, "stop_token_ids": [7], "min_tokens": 2, "include_stop_str_in_output": True, "skip_special_tokens": False,
        "ignore_eos": True, "truncate_prompt_tokens": 9, "allowed_token_ids": [66, 67], "num_speculative_tokens": 0, "verify": "match",
        "prompt_logprobs": 1,
    }  # fmt: skip
    said = {"stop": "xyz", "bad_words": ["on"], "logit_bias": {"68": -2}, "max_completion_tokens": 3, "logprobs": True, "top_logprobs": 2}
    assert chat(server, **plain, **said, max_tokens=None).status_code == 200
    for name, value in plain.items():
        assert getattr(seen[0], name) == (tuple(value) if isinstance(value, list) else value), name
    assert seen[0].stop == ("xyz",) and seen[0].bad_words == ("on",) and seen[0].logit_bias == {68: -2.0}
    assert seen[0].max_tokens == 3 and seen[0].logprobs == 2
    assert chat(server, max_tokens=None, stop="Z", n=1).status_code == 200
    assert seen[1].max_tokens is None
    assert complete(server, best_of=3, n=2, logprobs=1, max_tokens=3, temperature=1).status_code == 200
    assert (seen[2].best_of, seen[2].n, seen[2].logprobs) == (3, 2, 1)


def test_log_probabilities_of_chats(server: Running) -> None:
    asked = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3, "max_tokens": 12, "temperature": 0}
    whole = chat(server, **{k: v for k, v in asked.items() if k != "messages"}).json()["choices"][0]
    content = whole["logprobs"]["content"]
    assert len(content) == 12
    for entry in content:
        best = [t["logprob"] for t in entry["top_logprobs"]]
        assert len(best) == 3 and best == sorted(best, reverse=True) and entry["logprob"] == best[0]  # greedy: its own is the likeliest
    raw = bytes(b for entry in content for b in entry["bytes"])
    assert raw.decode("utf-8", "replace") == whole["message"]["content"]
    chunks = events(server, "/v1/chat/completions", **asked)
    streamed = [e for c in chunks for choice in c["choices"] for e in (choice["logprobs"] or {"content": []})["content"]]
    assert [(e["token"], e["bytes"]) for e in streamed] == [(e["token"], e["bytes"]) for e in content]
    assert chat(server, max_tokens=2, logprobs=True).json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_log_probabilities_and_echo_of_completions(server: Running) -> None:
    body = complete(server, "the cat", echo=True, logprobs=2, max_tokens=4).json()
    choice = body["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith("the cat") and logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    count = body["usage"]["prompt_tokens"] + 4
    assert all(len(logprobs[k]) == count for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))
    assert logprobs["tokens"][:2] == ["the", " cat"] and logprobs["text_offset"][:2] == [0, 3]
    assert complete(server, [0, 66], echo=True, max_tokens=1).json()["choices"][0]["text"].startswith("<|endoftext|>")


def test_no_tokens_at_all_and_a_scored_prompt(server: Running) -> None:
    scored = complete(server, "the cat sat", echo=True, logprobs=1, max_tokens=1).json()["choices"][0]["logprobs"]
    asked = {"prompt": "the cat sat", "echo": True, "logprobs": 1, "max_tokens": 0}
    body = server.client.post("/v1/completions", json=asked).json()
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], body["usage"]["completion_tokens"]) == ("the cat sat", "length", 0)
    assert all(choice["logprobs"][k] == scored[k][:-1] for k in ("tokens", "text_offset")) and len(scored["tokens"]) > 3
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(scored["token_logprobs"][1:-1], abs=1e-9)
    chunks = events(server, "/v1/completions", **asked)
    assert "".join(c["text"] for chunk in chunks for c in chunk["choices"]) == "the cat sat"
    assert chunks[-1]["choices"][0]["logprobs"] == choice["logprobs"]
    assert complete(server, max_tokens=0).json()["choices"][0]["text"] == ""
    assert complete(server, max_tokens=0, min_tokens=1).json()["error"]["param"] == "min_tokens"
    assert chat(server, max_tokens=0).json()["error"]["param"] == "max_tokens"


def test_echo_of_several_prompts(server: Running) -> None:
    prompts: list[str] = ["the cat", "the mat sat on"]
    alone = [complete(server, p, n=2, echo=True, logprobs=1, max_tokens=5).json()["choices"] for p in prompts]
    together = complete(server, prompts, n=2, echo=True, logprobs=1, max_tokens=5).json()["choices"]
    for one, other in zip(together, [c for answer in alone for c in answer], strict=True):
        assert one["text"] == other["text"] and len(one["logprobs"]["tokens"]) >= 7
        assert all(one["logprobs"][k] == other["logprobs"][k] for k in ("tokens", "text_offset"))
        assert one["logprobs"]["token_logprobs"][1:] == pytest.approx(other["logprobs"]["token_logprobs"][1:], abs=1e-9)
    texts = ["", "", "", ""]
    for chunk in events(server, "/v1/completions", prompt=prompts, n=2, echo=True, max_tokens=5, temperature=0):
        for c in chunk["choices"]:
            texts[c["index"]] += c["text"]
    assert texts == [c["text"] for c in together]


@pytest.mark.parametrize("long", [False, True])  # a long prompt is scored in pieces, while its second completion is ahead
def test_prompt_log_probabilities_are_streamed(server: Running, long: bool) -> None:
    text = "the cat sat on " * (150 if long else 1)
    whole = complete(server, text, prompt_logprobs=1, n=2, max_tokens=6).json()["choices"]
    assert whole[0]["prompt_logprobs"] == whole[1]["prompt_logprobs"] and None not in whole[0]["prompt_logprobs"][1:]
    found: dict[int, Any] = {}
    for chunk in events(server, "/v1/completions", prompt=text, prompt_logprobs=1, n=2, max_tokens=6, temperature=0):
        for c in chunk["choices"]:
            assert ("prompt_logprobs" in c) == (c["index"] not in found)
            found.setdefault(c["index"], c.get("prompt_logprobs"))
    assert found == {c["index"]: c["prompt_logprobs"] for c in whole}
    asked = {"messages": [{"role": "user", "content": text}], "prompt_logprobs": 0, "max_tokens": 6, "temperature": 0}
    body = server.client.post("/v1/chat/completions", json=asked).json()
    sent = [c["prompt_logprobs"] for c in events(server, "/v1/chat/completions", **asked) if "prompt_logprobs" in c]
    assert sent == [body["prompt_logprobs"]] and len(sent[0]) == body["usage"]["prompt_tokens"]


def test_several_prompts_in_order(server: Running) -> None:
    alone = [complete(server, p, n=2, temperature=1, seed=4, **FEW).json()["choices"] for p in ("the cat", "the mat")]
    together = complete(server, ["the cat", "the mat"], n=2, temperature=1, seed=4, **FEW).json()["choices"]
    assert [c["index"] for c in together] == [0, 1, 2, 3]
    assert [c["text"] for c in together] == [c["text"] for answer in alone for c in answer]


def test_the_answer_does_not_depend_on_drafts_and_says_what_they_did(server: Running) -> None:
    fast, slow = complete(server, **FEW).json(), complete(server, **FEW, num_speculative_tokens=0).json()
    assert fast["choices"][0]["text"] == slow["choices"][0]["text"]
    details = fast["usage"]["completion_tokens_details"]
    assert 0 < details["accepted_draft_tokens"] < details["draft_tokens"]
    assert fast["timings"]["draft_n"] == details["draft_tokens"] and fast["timings"]["draft_n_accepted"] == details["accepted_draft_tokens"]
    assert "draft_n" not in slow["timings"] and slow["usage"]["completion_tokens_details"]["draft_tokens"] == 0
    spec = fast["metrics"]["speculative_decoding"]
    assert spec["num_draft_tokens"] == details["draft_tokens"] and spec["mean_acceptance_length"] == pytest.approx(
        1 + spec["num_accepted_draft_tokens"] / spec["num_spec_steps"]
    )
    assert sum(spec["acceptance_histogram"]) == spec["num_spec_steps"] and "per_step_accepted" not in spec
    assert fast["metrics"]["time_to_first_token_ms"] > 0 and fast["metrics"]["num_passes"] < slow["metrics"]["num_passes"] == 40


def test_the_drafter_of_one_request(launch: Callable[..., Running]) -> None:
    each = [{"method": m, "num_speculative_tokens": 4} for m in ("ngram", "suffix")]
    server = launch({"speculative_config": {"method": "hybrid", "drafters": each, "adaptive": False}})
    assert server.client.get("/v1/models").json()["data"][0]["drafters"] == ["prediction", "ngram", "suffix"]
    asked = {**FEW, "return_token_origins": True, "temperature": 0}
    answers = {name: complete(server, drafter=name, **asked).json()["choices"][0] for name in ("ngram", "suffix", None)}
    assert len({a["text"] for a in answers.values()}) == 1
    for name in ("ngram", "suffix"):
        origins = {t["origin"] for t in answers[name]["token_origins"]}
        assert {o for o in origins if o.startswith("draft")} == {f"draft:{name}"}, origins
    for path in ("unknown", "../../etc/passwd", "prediction"):
        error = complete(server, drafter=path).json()["error"]
        assert error["param"] == "drafter" and (path == "prediction" or "ngram" in error["message"]), error


def test_origins_of_tokens(server: Running) -> None:
    whole = complete(server, **FEW, return_token_origins=True, return_token_ids=True).json()["choices"][0]
    assert "".join(t["text"] for t in whole["token_origins"]) == whole["text"] and len(whole["token_ids"]) == 40
    origins = [t["origin"] for t in whole["token_origins"]]
    assert {"draft:ngram", "recovered", "target"} <= set(origins)
    chunks = events(server, "/v1/completions", prompt=PROMPT, temperature=0, return_token_origins=True, return_token_ids=True, **FEW)
    pieces = [p for c in chunks for choice in c["choices"] for p in choice["token_origins"]]
    assert [p["origin"] for p in pieces] == origins and "".join(p["text"] for p in pieces) == whole["text"]
    assert [i for c in chunks for choice in c["choices"] for i in choice["token_ids"]] == whole["token_ids"]


def test_how_tokens_were_judged(server: Running) -> None:
    asked = {"prompt": PROMPT, "seed": 3, "verify": "rejection", **FEW}
    whole = complete(server, **(asked | {"trace_drafts": True})).json()
    traced = whole["choices"][0]["token_origins"]
    details = whole["usage"]["completion_tokens_details"]
    assert sum(len(t["rejected"]) for t in traced) == details["draft_tokens"] - details["accepted_draft_tokens"] > 0
    assert all(0 <= t["p"] <= 1 and t["q"] is None for t in traced)
    assert all(t["rejected"][0]["text"] for t in traced if t["origin"] == "recovered")
    chunks = events(server, "/v1/completions", trace_drafts=True, temperature=0, **asked)
    assert [t for c in chunks for choice in c["choices"] for t in choice["token_origins"]] == traced
    # Text that may begin a stop string comes late, and each token still once.
    stop = whole["choices"][0]["text"][-1] + "\u0001"
    chunks = events(server, "/v1/completions", trace_drafts=True, temperature=0, stop=[stop], **asked)
    pieces = [t for c in chunks for choice in c["choices"] for t in choice["token_origins"]]
    assert "".join(t["text"] for t in pieces) == whole["choices"][0]["text"]
    assert [t["p"] for t in pieces if "p" in t] == [t["p"] for t in traced]


def test_detailed_and_absent_metrics(launch: Callable[..., Running]) -> None:
    detailed = complete(launch(request_metrics="detailed"), **FEW).json()["metrics"]["speculative_decoding"]
    assert sum(detailed["per_step_accepted"]) == detailed["num_accepted_draft_tokens"] > 0
    assert "metrics" not in complete(launch(request_metrics="none"), **FEW).json()


def test_a_prediction_is_drafted_from_and_counted(server: Running) -> None:
    plain = chat(server).json()
    answer = plain["choices"][0]["message"]["content"]
    parts = [{"type": "text", "text": "the cat sat on the mat"}]
    for content in ("not this" + "ing" * 8, parts):
        body = chat(server, prediction={"type": "content", "content": content}).json()
        assert body["choices"][0]["message"]["content"] == answer
        details = body["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] is not None and details["rejected_prediction_tokens"] is not None
    assert plain["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] is None
    few = complete(server, **FEW).json()["choices"][0]["text"]
    body = complete(server, **FEW, prediction={"type": "content", "content": few}).json()
    assert body["choices"][0]["text"] == few and body["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 10
    assert chat(server, prediction={"type": "content"}).status_code == 400


def test_structured_output_by_every_name(server: Running) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    wrapped = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    for field in ({"response_format": wrapped}, {"structured_outputs": {"json": schema}}, {"guided_json": schema}):
        text = chat(server, **field, max_tokens=400, temperature=1, seed=1).json()["choices"][0]["message"]["content"]
        assert isinstance(json.loads(text)["ok"], bool)
    assert chat(server, guided_choice=["yes", "no"]).json()["choices"][0]["message"]["content"] in ("yes", "no")
    assert chat(server, guided_regex="[ab]{3}").json()["choices"][0]["message"]["content"].strip("ab") == ""
    assert chat(server, guided_grammar='start: "hum" "!"').json()["choices"][0]["message"]["content"] == "hum!"
    assert chat(server, response_format={"type": "text"}).json()["choices"] and chat(server).status_code == 200
    both = chat(server, guided_regex="a", response_format=wrapped)
    assert both.status_code == 400 and "response_format" in both.json()["error"]["message"]


def test_messages_of_all_kinds_reach_the_template(server: Running) -> None:
    def ids(messages: list[dict[str, Any]], **more: Any) -> str:
        tokens = server.client.post("/tokenize", json={"messages": messages, **more}).json()["tokens"]
        return server.client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]

    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    text = ids(
        [
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ]
    )
    assert "system\nbe brief" in text and "<tool_call>[('x', 1)]</tool_call>" in text and text.endswith("assistant\n")
    assert not ids(MESSAGES, add_generation_prompt=False).endswith("assistant\n")
    shouted = chat(server, chat_template_kwargs={"shout": "HEY"}, return_token_ids=True).json()["choices"][0]["prompt_token_ids"]
    assert "HEY" in server.client.post("/detokenize", json={"tokens": shouted}).json()["prompt"]
    body = {"messages": [*MESSAGES, {"role": "assistant", "content": "the cat"}], "continue_final_message": True}
    ids_of = chat(server, **body, max_tokens=1, return_token_ids=True).json()["choices"][0]["prompt_token_ids"]
    assert server.client.post("/detokenize", json={"tokens": ids_of}).json()["prompt"].endswith("assistant\nthe cat")


def test_tokenize_and_detokenize(server: Running) -> None:
    body = server.client.post("/tokenize", json={"prompt": "the cat sat", "return_token_strs": True}).json()
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"]) and body["max_model_len"] == 2048
    assert server.client.post("/detokenize", json={"tokens": body["tokens"]}).json() == {"prompt": "the cat sat"}


def test_the_small_routes(server: Running) -> None:
    models = server.client.get("/v1/models").json()
    assert models["object"] == "list" and models["data"][0] | {"created": 0} == {
        "id": NAME, "object": "model", "created": 0, "owned_by": "headstart", "max_model_len": 2048, "drafters": ["prediction", "ngram"],
    }  # fmt: skip
    assert server.client.get(f"/v1/models/{NAME}").json()["id"] == NAME
    assert server.client.get("/version").json() == {"version": "0.1.0"}
    assert server.client.get("/health").status_code == 200


def test_fields_nobody_knows_are_ignored_and_known_ones_act_or_are_refused(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "headstart.server")
    assert chat(server, from_the_future={"x": 1}, user="me", metadata={}, store=False, max_tokens=1).status_code == 200
    assert "from_the_future" in caplog.text and PROMPT not in caplog.text
    assert chat(server, request_id="mine", max_tokens=1).json()["id"] == "chatcmpl-mine"
    for field, value in {
        "request_id": "a b",
        "functions": [], "audio": {}, "modalities": ["audio"], "web_search_options": {}, "chat_template": "x", "reasoning_effort": "low",
        "verbosity": "high", "priority": 3, "spaces_between_special_tokens": False, "echo": True, "top_logprobs": 2,
    }.items():  # fmt: skip
        answer = chat(server, **{field: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text
    assert complete(server, suffix="x").json()["error"]["param"] == "suffix"
    assert "reasoning_effort" not in TEMPLATE
