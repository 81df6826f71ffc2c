"""Devices: their memory, bandwidth and arithmetic, by name; and this machine, measured in a second."""

from __future__ import annotations

import time
from dataclasses import dataclass

from headstart.core.errors import ConfigError, nearest

_MIB = 1 << 20


@dataclass(frozen=True)
class Device:
    """memory: bytes a program sees. bandwidth: bytes a second. operations: a second, dense, in 16 bit (here: as measured).
    link: seconds of one all-reduce among devices of a server, its latency alone. source: where the figures are from."""

    name: str
    memory: int
    bandwidth: float
    operations: float
    link: float
    source: str
    dtype: str = "bfloat16"  # what it computes in best
    measured: bool = False


_NVLINK, _PCIE = 10e-6, 30e-6


def _gpu(name: str, mib: int, gigabytes: float, tera: float, link: float, sheet: str) -> Device:
    return Device(name, mib * _MIB, gigabytes * 1e9, tera * 1e12, link, f"NVIDIA {sheet} data sheet; memory as its driver reports it")


DEVICES = {
    "a100-40": _gpu("A100 40 GB", 40960, 1555, 312, _NVLINK, "A100"),
    "a100-80": _gpu("A100 80 GB", 81920, 2039, 312, _NVLINK, "A100"),
    "h100": _gpu("H100 SXM 80 GB", 81559, 3350, 989, _NVLINK, "H100"),
    "h200": _gpu("H200 141 GB", 143771, 4800, 989, _NVLINK, "H200"),
    "b200": _gpu("B200 180 GB", 183359, 8000, 2250, _NVLINK, "DGX B200"),
    "l4": _gpu("L4 24 GB", 23034, 300, 121, _PCIE, "L4"),
    "l40s": _gpu("L40S 48 GB", 46068, 864, 362, _PCIE, "L40S"),
    "rtx-4090": _gpu("RTX 4090 24 GB", 24564, 1008, 165.2, _PCIE, "Ada architecture"),
    "rtx-5090": _gpu("RTX 5090 32 GB", 32607, 1792, 209.5, _PCIE, "Blackwell RTX architecture"),
}
HERE = "here"
_ALSO = {"a100": "a100-80", "a100-40gb": "a100-40", "a100-80gb": "a100-80", "h100-80": "h100", "4090": "rtx-4090", "5090": "rtx-5090"}


def find_device(name: str) -> Device:
    """A device by its name; "here" is this machine. Raises ConfigError with those there are."""
    plain = name.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    if plain == HERE:
        return here()
    plain = _ALSO.get(plain, plain)
    plain = {"rtx4090": "rtx-4090", "rtx5090": "rtx-5090"}.get(plain, plain)
    if plain not in DEVICES:
        raise ConfigError(f"--device {name} is not known: {nearest(plain, (*DEVICES, HERE))}; or give --memory SIZE")
    return DEVICES[plain]


def here() -> Device:
    """This machine: its memory, and what a large copy and a matrix product get done. Takes about a second."""
    import torch

    from headstart.ops.device import resolve_device, resolve_dtype, total_memory

    device = resolve_device("auto")
    gpu = device.type == "cuda"
    dtype = resolve_dtype("auto", device)
    size = 4096 if gpu else 1024
    a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    big = torch.ones((1 << 30 if gpu else 1 << 27) // dtype.itemsize, dtype=dtype, device=device)
    operations = 2 * size**3 / _fastest(lambda: a @ b, gpu)
    bandwidth = big.numel() * dtype.itemsize / _fastest(lambda: big.sum(), gpu)  # reading, as a pass does
    name = torch.cuda.get_device_name(device) if gpu else f"this machine ({torch.get_num_threads()} threads)"
    source = f"measured: a sum over {big.numel() * dtype.itemsize >> 20} MiB, a product of {size} x {size} matrices"
    return Device(
        name,
        total_memory(device),
        bandwidth,
        operations,
        _PCIE,
        source,
        str(dtype).removeprefix("torch."),
        measured=True,
    )


def _fastest(work: object, gpu: bool) -> float:
    """Seconds of the fastest of a few runs."""
    import torch

    times = []
    for _ in range(6):
        start = time.perf_counter()
        work()  # type: ignore[operator]
        if gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])
