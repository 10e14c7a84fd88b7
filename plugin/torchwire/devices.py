"""What a worker tells its group about its devices."""

from __future__ import annotations

from typing import Any

import torch

from torchwire.device_map import DeviceMap


def describe(maps: dict[str, DeviceMap], automatic: bool, given: list[torch.device]) -> dict[str, Any]:
    """What the agent's constructor takes: the device maps by worker, whether the other workers get automatic ones, the
    devices that the options name, and the last of each type that there is."""
    return {"maps": maps, "automatic": automatic, "given": given, "last": _last_of_each_type()}


def _last_of_each_type() -> list[torch.device]:
    # torch.cuda counts by NVML if it can, which leaves CUDA uninitialized, so that this process may still fork.
    counts = {"cuda": torch.cuda.device_count()}
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type not in counts:
        counts[accelerator.type] = torch.accelerator.device_count()
    return [torch.device(kind, count - 1) for kind, count in counts.items() if count > 0]
