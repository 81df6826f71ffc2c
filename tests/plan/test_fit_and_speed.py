"""What fits, and the roofline, against figures worked out by hand or published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headstart import LLM
from headstart.core.errors import ConfigError, ModelError
from headstart.plan import speed
from headstart.plan.device import DEVICES, find_device
from headstart.plan.document import Ask, acceptance_of, document
from headstart.plan.fit import fit
from headstart.plan.source import find_shape


def ask(target: str, device: str = "h100", draft: str | None = None, **changes: object) -> Ask:
    own = find_shape(draft)[0] if draft else None
    values: dict = {"k": 5, "alphas": [("0.7", [0.7] * 5)], **changes}
    return Ask(find_shape(target)[0], "test", own, draft, device=DEVICES[device], **values)


def test_llama_3_70b_is_refused_on_one_device_and_fits_on_two() -> None:
    found = document(ask("Llama-3-70B"))
    assert not found["fits"] and found["devices_needed"] == 2
    assert found["words"].startswith("DOES NOT FIT: 141.1 GB of weights") and "2 devices do" in found["words"]
    assert found["kv"]["target_bytes_per_token"] == 327_680 and found["kv"]["step_bytes"] == 1_638_400
    assert document(ask("Llama-3-70B", devices=2))["fits"]
    one = document(ask("Llama-3-70B", "h200", share=0.99))
    assert not one["fits"] or one["asked"]["room"] > 0
    assert document(ask("Llama-3.1-405B", dtype="fp8"))["devices_needed"] == 8


def test_devices_share_kv_as_far_as_there_are_heads() -> None:
    llama, deepseek = find_shape("Llama-3-70B")[0], find_shape("DeepSeek-V3")[0]
    per_token = [fit([(llama, 2.0)], 2.0, DEVICES["h200"], 0.9, n, 4096).kv_per_token for n in (1, 2, 8, 16)]
    assert per_token == [327_680, 163_840, 40_960, 40_960]
    assert fit([(deepseek, 1.0)], 2.0, DEVICES["h200"], 0.9, 8, 4096).kv_per_token == 70_272  # the latent is not split
    odd = fit([(find_shape("SmolLM2-135M")[0], 2.0)], 2.0, DEVICES["l4"], 0.9, 2, 4096)
    assert odd.problem and not odd.fits  # 9 heads


def test_room_batch_and_longest_by_hand() -> None:
    s = find_shape("Llama-3.1-8B")[0]
    f = fit([(s, 2.0)], 2.0, DEVICES["a100-40"], 0.9, 1, 4096)
    working = 2048 * (4 * 4096 + 2 * 14336) * 2 + 256 * 128256 * 4
    room = 40960 * 2**20 * 0.9 - 2 * 8_030_261_248 - working
    assert f.room == pytest.approx(room) and f.batch == int(room // (4096 * 131_072)) and f.longest == 131072
    tight = fit([(s, 2.0)], 2.0, DEVICES["l4"], 0.9, 1, 4096)
    assert tight.longest == int(tight.room // 131_072) < 131072


def test_steps_are_those_published_for_an_h100() -> None:
    # Llama-3.1-8B in SGLang: 5.886 ms + .02101 ms a row + 3.93e-5 ms a token of KV.
    s, device = find_shape("Llama-3.1-8B")[0], DEVICES["h100"]
    for rows, batch, context in ((1, 1, 512), (4, 1, 2048), (64, 16, 1024), (128, 32, 2048)):
        published = (5.886 + 0.02101 * rows + 3.93e-5 * batch * context) * 1e-3
        assert speed.Load(s, device, 1, 2.0, 2.0, context).pass_time(rows, batch) == pytest.approx(published, rel=0.1)


def test_speculation_stops_paying_as_batches_grow_and_lasts_longer_on_long_texts() -> None:
    short, long = (document(ask("Llama-3.1-8B", draft="Llama-3.2-1B", context=c))["speed"][0] for c in (512, 8192))
    gains = [b["speedup"] for b in short["batches"]]
    assert gains[0] > 1.4 and gains == sorted(gains, reverse=True) and short["pays_at"][0][0] == 1
    assert short["pays_at"][0][1] < short["largest_batch"] and len(short["pays_at"]) == 1
    assert long["pays_at"] == [[1, long["largest_batch"]]]
    ks = [short["best_k"][str(b["batch"])] for b in short["batches"]]
    assert ks == sorted(ks, reverse=True) and ks[0] > ks[-1]
    b = short["batches"][2]
    assert b["speculative"] == pytest.approx(b["plain"] * b["speedup"]) and b["per_user"] == pytest.approx(b["speculative"] / b["batch"])


def test_experts_make_small_batches_dear() -> None:
    found = document(ask("DeepSeek-V3", "h200", dtype="fp8", devices=8, alphas=[("0.6", [0.6] * 5)]))
    (low, high) = found["speed"][0]["pays_at"]
    assert low[0] == 1 and high[0] > low[1] + 1 and any("experts" in n for n in found["notes"])


def test_drafts_that_cannot_draft_are_refused() -> None:
    with pytest.raises(ModelError, match="their ids mean different strings"):
        document(ask("Llama-3.1-8B", draft="Qwen3-0.6B"))
    assert any("152,064 and 151,936" in n for n in document(ask("Qwen2.5-7B", draft="Qwen2.5-0.5B"))["notes"])
    assert any("swapped" in n for n in document(ask("Llama-3.2-1B", draft="Llama-3.2-3B"))["notes"])
    with pytest.raises(ConfigError, match="--context 9000 is above"):
        document(ask("Llama-3-8B", context=9000))
    with pytest.raises(ConfigError, match="h100"):
        find_device("h10")


def test_acceptance_comes_from_an_analysis(tmp_path: Path) -> None:
    file = tmp_path / "analysis.json"
    drafters = [{"name": "ngram", "acceptance_per_position": [0.5, 0.4]}, {"name": "small", "acceptance_per_position": [0.8]}]
    file.write_text(json.dumps({"winner": "small", "drafters": drafters}))
    assert acceptance_of(str(file), None, 3) == ("small, as analysed", [0.8, 0.8, 0.8])
    assert acceptance_of(str(file), "ngram", 3)[1] == [0.5, 0.4, 0.4]
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        acceptance_of(str(file), "smal", 3)
    for text in ("{}", "[]", "x", '{"winner": null, "drafters": []}'):
        file.write_text(text)
        with pytest.raises(ConfigError, match="--analysis"):
            acceptance_of(str(file), None, 3)
    with pytest.raises(ConfigError, match="cannot be read"):
        acceptance_of(str(tmp_path / "none.json"), None, 3)


@pytest.mark.parametrize("drafts", [False, True])
def test_the_engine_allocates_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drafts: bool) -> None:
    from headstart.ops.attention import KVCache
    from tests import tiny

    caches: list[KVCache] = []
    made = KVCache.__init__
    monkeypatch.setattr(KVCache, "__init__", lambda cache, *a, **k: (caches.append(cache), made(cache, *a, **k))[1])

    for name, layers in (("target", 3), ("draft", 1)):
        (tmp_path / name).mkdir()
        tiny.write_llama(tmp_path / name, vocab=len(tiny.write_tokenizer(tmp_path / name)), layers=layers, max_len=128)
    target, draft = (find_shape(str(tmp_path / n))[0] for n in ("target", "draft"))
    # A device that holds ten sequences of 100 tokens and a bit.
    plan = document(
        Ask(target, "test", draft if drafts else None, str(tmp_path / "draft") if drafts else None, 4, DEVICES["l4"],
            dtype="float32", kv_dtype="float32", context=100, batch=10, block_size=8)
    )  # fmt: skip
    line = dict(plan["commands"])["headstart"].split()
    memory = line[line.index("--kv-cache-memory") + 1]
    spec = {"method": "draft_model", "model": str(tmp_path / "draft"), "num_speculative_tokens": 4} if drafts else None
    llm = LLM(
        str(tmp_path / "target"), dtype="float32", device="cpu", max_model_len=100, max_num_seqs=10, block_size=8, kv_cache_memory=memory,
        speculative_config=spec,
    )  # fmt: skip
    engine = llm.engine
    assert engine.target.model.parameters == plan["target"]["parameters"] == target.parameters
    assert engine.pool.num_blocks == plan["kv"]["pages"] * 10 == 130
    assert len(caches) == 1 + drafts
    held = sum(t.numel() * t.element_size() for c in caches for t in (*c.keys, *c.values))
    assert held == engine.pool.num_blocks * plan["kv"]["page_bytes"]
