"""How fast this machine reads memory: the limit of a pass, which reads every weight once."""

from __future__ import annotations

import ctypes
import statistics
import time

import torch

from headstart.kernels.library import active

_ROUNDS = 5


def read_bandwidth(size: int) -> float:
    """Bytes per second of reading a working set of `size` bytes from end to end again and again, on torch's number of threads.

    Sets that fit into a cache read faster than memory does: give the size of what will be read.
    """
    block = torch.ones(max(size, 1 << 16), dtype=torch.uint8)
    serves, seconds = active(), []
    for _ in range(_ROUNDS + 1):
        start = time.perf_counter()
        if serves.handle is None:
            block.view(torch.int32 if size % 4 == 0 else torch.uint8).amax()
        else:
            serves.call("read", ctypes.cast(block.data_ptr(), ctypes.c_char_p), len(block))
        seconds.append(time.perf_counter() - start)
    return len(block) / statistics.median(seconds[1:])
