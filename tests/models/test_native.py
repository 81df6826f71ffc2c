"""The native pass: the numbers of the decoder on torch, and the same bits however a text is fed; so greedy bf16 text is one text."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from headstart.core.errors import ModelError
from headstart.core.params import SamplingParams
from headstart.kernels import library
from headstart.models import native
from headstart.models.decoder import ModelConfig
from headstart.models.head import Head, HeadConfig
from headstart.ops.linear import Embedding, table_of
from headstart.ops.quant import quantise
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_model
from headstart.runtime.runner import Feed, Runner, lay_out
from tests import tiny
from tests.doubles import make_drafter, make_engine, run, totals
from tests.kernels.test_products import needs_kernels

pytestmark = needs_kernels
CPU = torch.device("cpu")
KINDS = [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8"), (torch.float32, "int4")]
SHAPES = {
    "MHA": {"heads": 4, "kv_heads": 4},
    "GQA": {"heads": 6, "kv_heads": 2, "hidden": 48},
    "odd heads": {"heads": 3, "kv_heads": 1, "head_dim": 14, "hidden": 42, "intermediate": 70},
    "wide heads": {"heads": 2, "kv_heads": 1, "head_dim": 64},
    "untied bias": {"tied": False, "bias": True, "layers": 3},
    "llama3": {"rope": tiny.LLAMA3_ROPE},
}


@pytest.fixture(autouse=True)
def _skip_what_amx_computes_as_avx512_does(request):
    """All but products with weights in bf16."""
    given = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if given.get("path") == "amx" and (given.get("dtype", torch.bfloat16), given.get("quantization")) != (torch.bfloat16, None):
        pytest.skip("amx computes this as avx512 does")


def load(folder, dtype=torch.float32, quantization=None):
    return load_model(open_checkpoint(str(folder)), dtype, CPU, quantization)


def text_of(length: int, seed: int = 0) -> list[int]:
    return [random.Random(seed).randrange(97) for _ in range(length)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "quantization"), KINDS, ids=str)
def test_the_numbers_of_the_decoder_on_torch(tmp_path, monkeypatch, path, shape, dtype, quantization):
    """fp32 to 2e-4; bf16 to bf16's own rounding of activations, which only torch does; int4 to that of activations in 8 bits, which only
    the kernels do (tests/kernels/test_products.py has their products exactly)."""
    tiny.write_llama(tmp_path, **SHAPES[shape])
    text = text_of(70)
    got = load(tmp_path, dtype, quantization)
    assert got.native is not None
    (ours,) = Runner(got, 20, 4, 97, 128).forward([Feed(text, 0, list(range(20)), 70)])
    monkeypatch.setenv(library.VARIABLE, "torch")
    reference = load(tmp_path, torch.float32 if quantization else torch.float64, quantization)
    assert reference.native is None
    (wanted,) = Runner(reference, 20, 4, 97, 128).forward([Feed(text, 0, list(range(20)), 70)])
    near = 0.1 if quantization == "int4" else 0.06 if dtype is torch.bfloat16 else 3e-3 if quantization else 2e-4
    assert float((ours - wanted).abs().max()) < near * float(wanted.std())


@pytest.mark.parametrize(("dtype", "quantization"), KINDS, ids=str)
def test_a_row_is_the_same_bits_however_it_is_fed(tmp_path, path, dtype, quantization):
    """Whole, in random chunks, beside other texts, on scattered blocks of any size, over rejected drafts: the same logits."""
    tiny.write_llama(tmp_path, heads=6, kv_heads=2, hidden=48, head_dim=16)
    model, r = load(tmp_path, dtype, quantization), random.Random(4)
    texts = [text_of(n, n) for n in (121, 66, 33, 5)]
    whole = [Runner(model, 128, 1, 97, 128).forward([Feed(t, 0, list(range(128)), len(t))])[0] for t in texts]
    for size in (1, 3, 4, 16):
        each = -(-128 // size)
        blocks = list(range(4 * each))
        r.shuffle(blocks)
        tables = [blocks[i * each : (i + 1) * each] for i in range(4)]
        runner, fed = Runner(model, 4 * each, size, 97, 128), [0] * 4
        while any(fed[i] < len(t) for i, t in enumerate(texts)):
            chosen = [i for i in range(4) if fed[i] < len(texts[i]) and r.random() < 0.7]
            feeds, wanted = [], []
            for i in chosen:
                n = min(r.choice((1, 1, 2, 5, 8, 17, 33)), len(texts[i]) - fed[i])
                drafts = text_of(r.choice((0, 0, 3)), size)[: 127 - fed[i] - n]  # wrong ones: what they leave behind must not show
                feeds.append(Feed(texts[i][fed[i] : fed[i] + n] + drafts, fed[i], tables[i], n + len(drafts)))
                wanted.append(whole[i][fed[i] : fed[i] + n])
                fed[i] += n
            for got, want in zip(runner.forward(feeds) if feeds else [], wanted, strict=True):
                assert torch.equal(got[: len(want)], want)


@pytest.mark.parametrize(("dtype", "quantization"), [*KINDS[:2], (torch.float32, "int8")], ids=str)
def test_states_are_those_of_the_decoder_on_torch_and_change_no_logit(tmp_path, monkeypatch, path, dtype, quantization):
    """Of the first layer, of one between, and what leaves the last, in any order; in passes of 1 to 40 rows of two texts."""
    tiny.write_llama(tmp_path, heads=6, kv_heads=2, hidden=48, layers=3)
    model, layers = load(tmp_path, dtype, quantization), (2, 0, 3)
    monkeypatch.setenv(library.VARIABLE, "torch")
    on_torch = load(tmp_path, torch.float32 if quantization else torch.float64, quantization)
    assert model.native is not None and on_torch.native is None
    tables = [list(range(16)), list(range(16, 32))]
    runners = [Runner(m, 32, 4, 97, 128) for m in (model, model, on_torch)]
    at = 0
    for rows in (1, 2, 5, 20, 13):
        feeds = [Feed(text_of(64, i)[at : at + rows], at, table, 1 + i) for i, table in enumerate(tables)][: 1 + (rows > 1)]
        monkeypatch.setenv(library.VARIABLE, path)
        (plain, (logits, states)) = runners[0].forward(feeds), runners[1].forward_with_states(feeds, layers)
        assert all(torch.equal(a, b) for a, b in zip(plain, logits, strict=True))
        monkeypatch.setenv(library.VARIABLE, "torch")
        for got, wanted in zip(states, runners[2].forward_with_states(feeds, layers)[1], strict=True):
            assert got.dtype is torch.float32 and got.shape == wanted.shape == (rows, 3 * 48)
            near = 3e-3 if dtype is torch.float32 else 0.06
            assert all(
                float((g - w).abs().max()) < near * float(w.std()) for g, w in zip(got.split(48, 1), wanted.split(48, 1), strict=True)
            )
        at += rows if rows > 1 else 0


@pytest.mark.parametrize(("normed", "handed"), [(True, False), (False, True)])
@pytest.mark.parametrize(("dtype", "quantization"), KINDS, ids=str)
def test_a_draft_head_computes_what_it_computes_on_torch(monkeypatch, path, dtype, quantization, normed, handed):
    """Two texts, rows without logits, then a draft from its own states; a row is the same bits alone and beside others."""
    shape = ModelConfig(97, 42, 1, 6, 2, 14, 70, 1e-5, 128)
    config, generator = HeadConfig(shape, (0, 2, 3), 33, 42, normed, handed), torch.Generator().manual_seed(5)
    made = {}

    def source(name):
        queries, keys = 6 * 14, 2 * 14
        sizes = {"q_proj": (queries, 84), "k_proj": (keys, 84), "v_proj": (keys, 84), "o_proj": (42, queries), "fc": (42, 126)}
        sizes |= {"gate_proj": (70, 42), "up_proj": (70, 42), "down_proj": (42, 70), "lm_head": (33, 42), "embed": (97, 42)}
        if name not in made:
            made[name] = torch.randn(sizes.get(name.split(".")[-2], (42,)), generator=generator) * 0.3 + (0 if "proj" in name else 0.1)
        return made[name]

    def head(dtype):
        of = lambda name: quantise(t, quantization) if quantization and (t := source(name)).ndim == 2 else source(name).to(dtype)  # noqa: E731
        return Head(config, of, torch.arange(33), Embedding(table_of(of("embed.weight"), dtype), dtype), dtype, CPU)

    def run_of(head, together):
        cache, logits, states = head.new_cache(128), [], []
        taken = torch.randn(20, 126, generator=torch.Generator().manual_seed(6))
        feeds = [Feed(text_of(13), 0, list(range(4)), 2), Feed(text_of(7, 1), 0, [9, 8], 1)]
        for first, some in [(0, feeds)] if together else [(0, feeds[:1]), (13, feeds[1:])]:
            rows = sum(len(f.tokens) for f in some)
            out = head.forward(lay_out(some, 4, head.dtype, CPU), head.fuse(taken[first : first + rows]), cache)
            logits, states = [*logits, out[0]], [*states, out[1]]
        out = head.forward(lay_out([Feed([3], 13, list(range(4)), 1)], 4, head.dtype, CPU), torch.cat(states)[1:2], cache)
        return torch.cat((*logits, out[0])), torch.cat((*states, out[1]))

    ours = head(dtype)
    assert ours.native is not None
    got = run_of(ours, True)
    assert all(torch.equal(a, b) for a, b in zip(got, run_of(ours, False), strict=True))
    monkeypatch.setenv(library.VARIABLE, "torch")
    on_torch = head(torch.float32 if quantization else torch.float64)
    assert on_torch.native is None
    near = 0.1 if quantization == "int4" else 0.06 if dtype is torch.bfloat16 else 3e-3 if quantization else 2e-4
    for g, w in zip(got, run_of(on_torch, True), strict=True):
        assert g.shape == w.shape and float((g - w).abs().max()) < near * float(w.std())


def test_a_head_beside_embeddings_of_another_width_is_refused():
    """The kernels would read beyond their end."""
    config = HeadConfig(ModelConfig(97, 42, 1, 6, 2, 14, 70, 1e-5, 128), (3,), 33, 42, True)
    for shape in ((97, 40), (96, 42)):
        with pytest.raises(ModelError, match=r"\[97, 42\]"):
            Head(config, torch.empty, torch.arange(33), Embedding(torch.empty(shape), torch.float32), torch.float32, CPU)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(tmp_path, path, threads):
    tiny.write_llama(tmp_path)
    model, text, before = load(tmp_path, torch.bfloat16), text_of(90), torch.get_num_threads()

    def logits():
        return Runner(model, 32, 4, 97, 128).forward([Feed(text, 0, list(range(32)), 90)])[0]

    wanted = logits()
    try:
        torch.set_num_threads(threads)
        assert all(torch.equal(logits(), wanted) for _ in range(5))
    finally:
        torch.set_num_threads(before)


def test_rows_without_logits(tmp_path, path):
    tiny.write_llama(tmp_path)
    runner = Runner(load(tmp_path), 32, 4, 97, 128)
    assert [x.shape for x in runner.forward([Feed([1, 2, 3], 0, [0], 0), Feed([4, 5], 0, [1], 0)])] == [(0, 97), (0, 97)]


def test_the_limits_of_the_native_pass(tmp_path, path):
    """fp64 and heads that are too wide run on torch; a field of the config that the pass does not know is never overlooked."""
    tiny.write_llama(tmp_path)
    assert load(tmp_path, torch.float64).native is None
    config = load(tmp_path).config
    assert native.supports(config) and not native.supports(dataclasses.replace(config, head_dim=native.MAX_HEAD_DIM + 2))
    wider = dataclasses.make_dataclass("Wider", [("novelty", int, 0)], bases=(type(config),), frozen=True)
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    assert native.supports(wider(**fields)) and not native.supports(wider(**fields, novelty=8))


@pytest.mark.parametrize(("dtype", "quantization"), [(torch.bfloat16, None), (torch.bfloat16, "int4")], ids=str)
def test_greedy_text_is_one_text(tmp_path, path, dtype, quantization):
    """In bf16: plain or drafted, alone or in a batch, chunked, preempted, on a cached prefix: the same tokens."""
    tiny.write_llama(tmp_path, heads=4, kv_heads=2, max_len=256, scale=0.2, eos=None)
    model = load(tmp_path, dtype, quantization)
    model.vocab = 97
    prompts = [text_of(n, n) for n in (40, 7, 23)] + [[*text_of(40, 40)[:36], 1, 2, 3]]
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    alone = [run(make_engine(model, make_drafter("none", model)), [p], params)[0].outputs[0].token_ids for p in prompts]
    assert len({tuple(a) for a in alone}) == 4
    layouts = {
        "batch": {},
        "chunked": {"max_rows": 9, "block_size": 3},
        "tight": {"blocks": 40, "max_rows": 48, "max_len": 128},
    }
    for name, layout in layouts.items():
        for kind in ("none", "ngram", "wrong"):
            engine = make_engine(model, make_drafter(kind, model), random_k=3, **layout)
            outputs = run(engine, prompts, params, steps_between=2)
            assert [o.outputs[0].token_ids for o in outputs] == alone, (name, kind)
            drafted, accepted = totals(outputs)
            assert kind == "none" or drafted > accepted >= (kind == "ngram"), (name, kind, drafted, accepted)
            assert name != "tight" or sum(o.metrics.num_preemptions for o in outputs), kind
            again = run(engine, prompts[:1], params)[0]
            assert again.outputs[0].token_ids == alone[0]
            assert name == "tight" or again.num_cached_tokens > 0
