"""What `--draft` takes, the same in every command that has it: quantised drafts, JSON, and several of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headstart.cli.options import split_draft
from headstart.core.errors import ConfigError
from headstart.core.speculation import SpeculativeConfig

Call = Callable[..., tuple[int, str, str]]


def test_a_draft_in_fewer_bits_in_one_word() -> None:
    small = {"model": "org/small", "quantization": "int8"}
    assert split_draft("org/small:int8", {}) == split_draft(json.dumps(small), {}) == small
    assert split_draft("org/small:int3", {}) == {"model": "org/small:int3"}
    both = split_draft("suffix,org/small:int4", {})
    assert both["drafters"] == [{"method": "suffix"}, {"model": "org/small", "quantization": "int4"}]
    assert split_draft("quantised:int8", {}) == {"method": "quantised", "quantization": "int8"}
    spec = SpeculativeConfig(drafters=["suffix", "org/small:int8"])
    assert spec.describe().startswith("speculation: the best of suffix, draft_model org/small in int8")


def test_a_folder_of_that_name_is_itself(tmp_path: Path) -> None:
    (tmp_path / "x:int8").mkdir()
    assert split_draft(f"{tmp_path}/x:int8", {}) == {"model": f"{tmp_path}/x:int8"}


@pytest.mark.parametrize("said", ["{", '{"model": "x"', "{1}", '{"a":' * 100_000])
def test_broken_json_is_one_error(said: str) -> None:
    with pytest.raises(ConfigError, match="is not JSON"):
        split_draft(said, {})


def test_every_command_takes_them(headstart: Call, tiny: Path) -> None:
    little = ("--max-tokens", 8, "--dtype", "float32", "--kv-cache-memory", "8MiB")
    for said in (f"{tiny}:int8", json.dumps({"model": str(tiny), "quantization": "int8"}), f"suffix,{tiny}:int8"):
        code, _, err = headstart("generate", "-m", tiny, "--draft", said, *little, "the ship")
        assert code == 0 and f"draft_model {tiny} in int8" in err
        code, out, err = headstart("bench", "-m", tiny, "--draft", said, "--limit", 1, *little, "--json", "--samples", 10)
        assert code == 0 and [a["name"] for a in json.loads(out)["arms"]][1].endswith("target int8 k=5"), err
    code, out, _ = headstart("analyse", tiny, "--draft", f"{tiny}:int8", "--limit", 1, *little, "-k", 2, "--json")
    assert code == 0 and [d["name"] for d in json.loads(out)["drafters"]] == ["target int8"]
    said = json.dumps({"model": str(tiny), "num_speculative_tokens": 2})
    code, out, err = headstart("bench", "-m", tiny, "--draft", said, *little)
    assert code == 2 and not out and "set --num-speculative-tokens" in err
