"""The kernel that stands in for a faulty one of vLLM, against its definition; and that vLLM finds it."""

from __future__ import annotations

import importlib.metadata
import os
import sys

import pytest
import torch

from headstart.backends.vllm import mend
from headstart.backends.vllm.installation import Installation, environment


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_each_value_as_often_as_its_row_has_tokens(dtype: torch.dtype) -> None:
    output = torch.full((6,), 77, dtype=dtype)
    mend._expand(output, torch.tensor([5, 0, 7, 8], dtype=dtype), torch.tensor([2, 3, 3, 6], dtype=torch.int32), 0, 1)
    assert output.tolist() == [5, 5, 1, 8, 8, 8]


def test_a_faulty_kernel_is_told_from_a_good_one() -> None:
    def into_a_copy(output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None) -> None:  # type: ignore[no-untyped-def]
        mend._expand(output.to(torch.int64), input_val.to(torch.int64), cu_num_tokens, replace_from, replace_to)

    assert mend._works(mend._expand) and not mend._works(into_a_copy)
    into_a_copy.__code__ = mend._expand.__code__
    assert mend._works(into_a_copy)


def test_a_step_without_rows_is_not_filtered() -> None:
    kept = mend._rows_only(lambda logits, k: logits[:, : int(k.max())])
    assert kept(torch.zeros(0, 5), torch.zeros(0)).shape == (0, 5) and kept(torch.zeros(2, 5), torch.tensor([1, 3])).shape == (2, 3)


def test_it_is_a_plugin_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    with environment(Installation(sys.executable, "0.32.0", "2.9+cpu")) as variables:
        folder = variables["PYTHONPATH"].split(os.pathsep)[0]
        found = [e for d in importlib.metadata.distributions(path=[folder]) for e in d.entry_points if e.group == "vllm.general_plugins"]
        assert [e.load() for e in found] == [mend.register]
        assert variables["VLLM_PLUGINS"] == "other,headstart_mend"
    assert not os.path.exists(folder)
