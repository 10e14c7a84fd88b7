"""What a run is measured on."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform

import torch

import torchwire


def describe() -> dict[str, str]:
    """The machine and the versions, as text by name. To be called before the run, for the load."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _first_of("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": _memory(),
        "kernel": platform.release(),
        "system": _system(),
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchwire": torchwire.__version__,
    }


def _memory() -> str:
    kibibytes = (_first_of("/proc/meminfo", "MemTotal") or "0").split()[0]
    return f"{int(kibibytes) / (1 << 20):.1f} GiB"


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _first_of(path: str, name: str) -> str | None:
    """The value of the first line "name : value"."""
    try:
        lines = pathlib.Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
