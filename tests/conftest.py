"""One thread for torch: the models here are so small that waking a second one costs more than the work."""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):  # tests/core run without torch
    import torch

    torch.set_num_threads(1)
