"""Checkpoints as users have them: whole, sharded, cached, unfinished, damaged and hostile. Every refusal is a ModelError."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file

from headstart.core.errors import ModelError
from headstart.runtime.checkpoint import convert, open_checkpoint, resolve
from tests import tiny

CPU = torch.device("cpu")
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A single-file and a sharded checkpoint of the same weights, to be copied."""
    root = tmp_path_factory.mktemp("checkpoints")
    tiny.write_llama(root / "single", tied=False)
    tiny.write_llama(root / "sharded", tied=False, shards=3)
    return root


@pytest.fixture
def single(made, tmp_path):
    return Path(shutil.copytree(made / "single", tmp_path / "model"))


@pytest.fixture
def sharded(made, tmp_path):
    return Path(shutil.copytree(made / "sharded", tmp_path / "model"))


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No network and an empty hub cache; returns the cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def read_all(folder) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(str(folder))
    return {name: checkpoint.tensor(name) for name in checkpoint.tensor_names}


def refused(folder, *words: str) -> str:
    """Opening and reading everything raises a ModelError of one line that holds the words."""
    with pytest.raises(ModelError) as e:
        read_all(folder)
    message = str(e.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


# What loads


def test_a_directory(single):
    stored = load_file(single / FILE)
    got = read_all(single)
    assert got.keys() == stored.keys()
    assert all(torch.equal(got[n], t) and got[n].dtype is torch.float64 for n, t in stored.items())


def test_a_sharded_directory_holds_the_same(made, sharded):
    assert len(list(sharded.glob("*.safetensors"))) >= 3
    one, many = read_all(made / "single"), read_all(sharded)
    assert one.keys() == many.keys()
    assert all(torch.equal(one[n], many[n]) for n in one)


def test_the_index_is_believed_before_the_folder(sharded):
    """A file that no index names (another copy of the weights) does not shadow the named ones."""
    shutil.copy(next(iter(sharded.glob("model-*1-of*.safetensors"))), sharded / "zz.safetensors")
    open_checkpoint(str(sharded))
    (sharded / "zz.safetensors").write_bytes(b"junk")
    read_all(sharded)


def test_a_second_copy_under_another_name_is_left_alone(single):
    """Some repositories hold the same weights again in their maker's own layout."""
    (single / "consolidated.safetensors").write_bytes(b"junk")
    assert "model.norm.weight" in read_all(single)


def test_weights_under_another_name(single):
    (single / FILE).rename(single / "weights.safetensors")
    assert "model.norm.weight" in read_all(single)


def test_a_hub_id_from_the_cache_without_network(made, offline):
    """Laid out as the hub's library leaves it."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = offline / "models--org--tiny-llama"
    shutil.copytree(made / "single", repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    assert resolve("org/tiny-llama") == repo / "snapshots" / commit
    assert resolve("org/tiny-llama", revision=commit) == repo / "snapshots" / commit
    assert read_all("org/tiny-llama").keys() == read_all(made / "single").keys()
    with pytest.raises(ModelError, match="org/tiny-llama"):
        resolve("org/tiny-llama", revision="other")


def test_home_and_relative_paths(single, monkeypatch):
    monkeypatch.setenv("HOME", str(single.parent))
    assert resolve("~/model") == single
    monkeypatch.chdir(single.parent)
    assert resolve("./model").samefile(single) and resolve("model").samefile(single)


@pytest.mark.parametrize(
    ("generation", "config", "ids"),
    [(7, 0, [7]), ([7, 3], 0, [7, 3]), (None, 5, [5]), (None, [5, 6], [5, 6]), (None, None, []), (0, 5, [0])],
)
def test_eos_ids(single, generation, config, ids):
    """generation_config.json first, for it knows the chat model's end of turn; id 0 is an id."""
    tiny.edit_json(single / "generation_config.json", eos_token_id=generation)
    tiny.edit_json(single / "config.json", eos_token_id=config)
    assert open_checkpoint(str(single)).eos_ids == ids


def test_eos_ids_without_a_generation_config(single):
    (single / "generation_config.json").unlink()
    assert open_checkpoint(str(single)).eos_ids == [0]


# What does not: paths


@pytest.mark.parametrize("path", ["/nope/model", "./nope", "../nope/x", "~/nope-nope", "nope.gguf", "a/b/c", "org/nope.gguf"])
def test_paths_that_are_not_there(path, offline):
    with pytest.raises(ModelError, match="does not exist"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["org/name", "name", "org/na me", "x\0y", "a" * 300, "a" * 5000, "https://huggingface.co"])
def test_hub_ids_that_cannot_be_had(name, offline):
    """Offline, malformed, or a prompt in the place of a model: one line that names it."""
    with pytest.raises(ModelError) as e:
        open_checkpoint(name)
    assert "\n" not in str(e.value) and name[:10].strip("\0") in str(e.value).replace("\\x00", "\0")


def test_folders_and_files_that_hold_no_model(single, tmp_path):
    refused(single / "config.json", "not GGUF")
    refused(tmp_path, "no config.json")
    (single / FILE).unlink()
    refused(single, "no safetensors")


def test_pickles_are_not_loaded(single):
    """Refused with what to do, and never opened: this one would run code."""
    import pickle

    marker = single / "pwned"

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(marker),))

    (single / FILE).unlink()
    (single / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    refused(single, "pickle", "convert")
    assert not marker.exists()


# What does not: damaged weights


@pytest.mark.parametrize("part", [0, 3, 8, 100, 0.3, 0.9, -1, -100])
def test_truncated_weights(single, part):
    whole = (single / FILE).read_bytes()
    (single / FILE).write_bytes(whole[: int(part * len(whole)) if isinstance(part, float) else part])
    refused(single, FILE, "broken or truncated")


@pytest.mark.parametrize("length", [0, 2**31, 2**62, 2**64 - 1])
def test_a_header_of_impossible_length(single, length):
    whole = (single / FILE).read_bytes()
    (single / FILE).write_bytes(length.to_bytes(8, "little") + whole[8:])
    refused(single, FILE)


@pytest.mark.parametrize("header", [b"\0", b"{", b"[]", b'{"a":1}', b"\xff", b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}'])
def test_a_header_of_garbage(single, header):
    body = header * (1 if header.startswith(b"{") and len(header) > 1 else 200)
    (single / FILE).write_bytes(len(body).to_bytes(8, "little") + body)
    refused(single, FILE)


def test_a_pointer_file_of_git_lfs(single):
    (single / FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    refused(single, FILE)


def test_a_folder_in_the_place_of_weights(single):
    (single / FILE).unlink()
    (single / FILE).mkdir()
    refused(single, FILE)


def test_a_missing_shard_is_named(sharded):
    gone = sorted(sharded.glob("*.safetensors"))[1]
    gone.unlink()
    refused(sharded, gone.name, "fetch")


def test_a_truncated_shard_is_named(sharded):
    broken = sorted(sharded.glob("*.safetensors"))[1]
    broken.write_bytes(broken.read_bytes()[:-10])
    refused(sharded, broken.name)


def test_an_index_that_puts_a_tensor_in_the_wrong_shard(sharded):
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = index["weight_map"]["model.embed_tokens.weight"]
    moved = sorted(set(index["weight_map"].values()) - {index["weight_map"]["model.norm.weight"]})
    assert moved
    index["weight_map"] = {n: (moved[0] if n == "model.embed_tokens.weight" else f) for n, f in index["weight_map"].items()}
    (sharded / INDEX).write_text(json.dumps(index))
    refused(sharded, moved[0])


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "3", "{}", '{"weight_map": []}', '{"weight_map": {"model.norm.weight": 3}}', '{"weight_map": "x"}', '{"weight_map": null}'],
)
def test_a_broken_index(sharded, content):
    (sharded / INDEX).write_text(content)
    refused(sharded, INDEX)


@pytest.mark.parametrize("escape", ["../outside.safetensors", "/etc/hostname"])
def test_an_index_that_leaves_the_folder(sharded, escape):
    """A checkpoint names its own files only."""
    shutil.copy(sorted(sharded.glob("*.safetensors"))[0], sharded.parent / "outside.safetensors")
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], escape)
    (sharded / INDEX).write_text(json.dumps(index))
    refused(sharded, INDEX)


def test_an_unknown_tensor_is_named(single):
    with pytest.raises(ModelError, match=r"model\.nope"):
        open_checkpoint(str(single)).tensor("model.nope")


# What does not: damaged JSON


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b'{"a": }', b"\xff\xfe\0", b"[1, 2]", b"3", b"null", b'"x"', b"[" * 100_000])
def test_broken_json(single, name, content):
    (single / name).write_bytes(content)
    refused(single, name)


def test_a_config_that_is_a_folder(single):
    (single / "config.json").unlink()
    (single / "config.json").mkdir()
    refused(single, "config.json")


@pytest.mark.parametrize("eos", ["</s>", [1, "x"], 1.5, {"a": 1}, True])
def test_eos_ids_that_are_not_ids(single, eos):
    """Ignored, they would let a text run on for ever."""
    tiny.edit_json(single / "generation_config.json", eos_token_id=eos)
    refused(single, "eos_token_id")


# Values


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_that_are_not_finite_are_refused_by_name(bad, dtype):
    tensor = torch.zeros(40, 7)
    tensor[33, 6] = bad
    with pytest.raises(ModelError, match=r"model\.layers\.1\.x"):
        convert(tensor, "model.layers.1.x", dtype, CPU)


def test_values_too_large_for_the_dtype_are_refused():
    with pytest.raises(ModelError, match="float16"):
        convert(torch.full((3,), 1e6), "w", torch.float16, CPU)


def test_many_large_values_are_not_mistaken_for_infinite():
    """The sum of finite bf16 values may leave bf16, and that of fp16 values fp16."""
    for dtype, value in ((torch.bfloat16, 1e30), (torch.float16, 6e4)):
        assert torch.equal(convert(torch.full((1000, 100), value), "w", dtype, CPU), torch.full((1000, 100), value, dtype=dtype))


def test_conversion():
    values = torch.randn(5, 3, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert torch.equal(convert(values, "w", dtype, CPU), values.to(dtype))
