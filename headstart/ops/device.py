"""What the machine can do: device, dtype, memory. With `attention.py` and `linear.py`, the only code that knows a device."""

from __future__ import annotations

import os
import platform

import torch

from headstart.core.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """The device asked for; "auto" is CUDA where there is one. Raises ConfigError when it is absent."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        index = int(name.partition(":")[2] or 0)
        if index >= torch.cuda.device_count():
            raise ConfigError(f"device={name!r}: this machine has {torch.cuda.device_count()} CUDA devices; use device='cpu'")
    return torch.device(name)


def processor_name() -> str:
    """The processor, as the system calls it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            return next((line.partition(":")[2].strip() for line in f if line.startswith("model name")), platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


def device_name(device: torch.device) -> str:
    """The device, as its maker calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def computes_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 itself; emulation is correct but slow for more than one row."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, bool)() for probe in probes)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype asked for; "auto" is bfloat16 where the hardware computes in it, else float32."""
    if name == "auto":
        return torch.bfloat16 if computes_bf16(device) else torch.float32
    return getattr(torch, name)


def total_memory(device: torch.device) -> int:
    """Bytes of memory of the device; for the CPU, of the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory(device: torch.device) -> int:
    """Bytes of memory that can be taken now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as f:
            fields = dict(line.split(":", 1) for line in f)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return total_memory(device) // 2
