"""Models with windows: blocks come back, prefixes are shared, drafts fall at every offset, and the text is that of plain decoding."""

from __future__ import annotations

import pytest

from headstart import LLM
from headstart.core.params import SamplingParams
from headstart.core.window import WindowPool, local_blocks_needed
from tests import families, tiny
from tests.doubles import DRAFTERS, EchoModel, expecting, make_drafter, make_engine, plain, run, totals

WINDOW, ROWS, SIZE = 11, 16, 4
ENOUGH = local_blocks_needed(WINDOW, ROWS, SIZE)
PROMPTS = [[1, 2, 3], [(7 * i) % 30 for i in range(40)], [5] * 21, [(7 * i) % 30 for i in range(40)] + [9, 9]]


def engine_of(kind: str, sequences: int = 4, **options):
    target = EchoModel(window=WINDOW)
    return target, make_engine(target, make_drafter(kind, target), max_rows=ROWS, local_blocks=ENOUGH * sequences, random_k=3, **options)


@pytest.mark.parametrize("share", [True, False], ids=["shared", "alone"])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_text_is_that_of_plain_decoding(kind, share):
    """`EchoModel` compares what it reads through the window's table with the text; `check` counts the blocks after every step."""
    target, engine = engine_of(kind, share=share)
    assert isinstance(engine.pool, WindowPool)
    params = SamplingParams(temperature=0, max_tokens=48)
    outputs = run(engine, PROMPTS, [expecting(kind, target, p, params) for p in PROMPTS], steps_between=2)
    assert [o.outputs[0].token_ids for o in outputs] == [plain(target, p, params, 0) for p in PROMPTS]
    drafted, accepted = totals(outputs)
    assert kind == "none" or drafted > 0
    assert kind not in ("ngram", "model", "suffix", "prediction") or drafted > accepted > 0
    engine.pool.forget()
    assert engine.pool.available == engine.pool.num_blocks and engine.pool.local.available == engine.pool.local.num_blocks


def test_drafts_rejected_at_every_offset():
    """The window's edge, block edges and chunk edges against every number of accepted drafts."""
    for length in range(WINDOW - 3, WINDOW + 6):
        for k in (1, 2, 5, 9):
            target = EchoModel(window=WINDOW, local=2.0, whole=2.0)
            engine = make_engine(target, make_drafter("model", target), max_rows=ROWS, local_blocks=ENOUGH, k=k)
            prompt, params = [(3 * i + length) % 30 for i in range(length)], SamplingParams(temperature=0, max_tokens=14)
            (output,) = run(engine, [prompt], params)
            assert output.outputs[0].token_ids == plain(target, prompt, params, 0)


@pytest.mark.parametrize("kind", ["none", "ngram", "model"])
def test_too_little_room_preempts_and_ends(kind):
    """Local blocks for hardly more than one sequence, four at work."""
    target, engine = engine_of(kind, sequences=1, blocks=60)
    params = SamplingParams(temperature=0, max_tokens=30)
    outputs = run(engine, PROMPTS, params)
    assert [o.outputs[0].token_ids for o in outputs] == [plain(target, p, params, 0) for p in PROMPTS]
    assert sum(o.metrics.num_preemptions for o in outputs) > 0


def test_a_shared_prefix_needs_its_window():
    """The second of two equal prompts takes everything from the cache; when the window's blocks are gone, it takes less."""
    _, engine = engine_of("none")
    prompt, params = PROMPTS[1], SamplingParams(temperature=0, max_tokens=4)
    first, second = (run(engine, [prompt], params)[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 36)
    engine.pool.local.forget()
    (third,) = run(engine, [prompt], params)
    assert third.num_cached_tokens == 0 and third.outputs[0].token_ids == first.outputs[0].token_ids


def test_a_long_text_holds_a_window_only():
    target, engine = engine_of("ngram", sequences=1, blocks=130)
    params = SamplingParams(temperature=0, max_tokens=400)
    (output,) = run(engine, [[1, 2, 3]], params)
    assert output.outputs[0].token_ids == plain(target, [1, 2, 3], params, 0)
    assert engine.pool.local.num_blocks * SIZE < 40


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text", "cohere2"])
@pytest.mark.parametrize("draft", [None, "ngram", "draft_model"])
def test_real_layers_write_the_text_of_transformers(tmp_path, kind, draft):
    """Every layer slides, some do, and some do on transformers' code: greedy over five windows, in chunks of 16 rows."""
    import torch

    changes = {"sliding_window": 7, "eos_token_id": None, "tie_word_embeddings": True, "vocab_size": len(tiny.vocabulary()[0])}
    if kind != "mistral":
        changes["layer_types"] = ["sliding_attention", "sliding_attention", "full_attention"]
    theirs = families.make(kind, changes)
    tiny.save(tmp_path, theirs)
    tiny.write_tokenizer(tmp_path)
    spec = None if draft is None else {"method": draft, "num_speculative_tokens": 3, "adaptive": False}
    if draft == "draft_model":
        spec["model"] = str(tmp_path)
    options = {"dtype": "float64", "max_num_batched_tokens": 16, "block_size": 4, "kv_cache_memory": "1MiB", "max_num_seqs": 2}
    llm = LLM(str(tmp_path), speculative_config=spec, **options)
    assert isinstance(llm.engine.pool, WindowPool) and llm.engine.target.cache.keys[0].shape[0] < 100
    prompts = [[(5 * i) % 90 for i in range(23)], [9, 8, 7]]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(prompt)
        for _ in range(24):
            with torch.inference_mode():
                tokens.append(int(theirs(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        assert list(output.outputs[0].token_ids) == tokens[len(prompt) :]


@pytest.mark.real
def test_gemma_past_its_window(gemma_file):
    """A prompt longer than the window of 512: drafts of a lookup change nothing, and the window's blocks are few."""
    options = {"dtype": "float32", "max_model_len": 1024, "max_num_batched_tokens": 128, "kv_cache_memory": "64MiB"}
    llm = LLM(str(gemma_file), speculative_config={"method": "ngram", "num_speculative_tokens": 4, "adaptive": False}, **options)
    text = "The harbour master keeps a list of every ship that enters the harbour. " * 45
    outputs = [
        llm.generate([text], SamplingParams(temperature=0, max_tokens=12, num_speculative_tokens=k), use_tqdm=False)[0] for k in (0, 4)
    ]
    assert len(outputs[0].prompt_token_ids) > 600 and outputs[1].num_cached_tokens > 512
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids
    assert outputs[1].metrics.speculative_decoding.num_accepted_draft_tokens > 0
    assert "harbour" in outputs[0].outputs[0].text and isinstance(llm.engine.pool, WindowPool)
