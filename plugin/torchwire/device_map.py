"""Device maps: for each peer, which of this worker's devices stands for which of the peer's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, cast

import torch

from torchwire.torch_parts import get_privateuse1_backend_name

DeviceLike: TypeAlias = int | str | torch.device
DeviceMap: TypeAlias = dict[torch.device, torch.device]


def to_device(device: DeviceLike, where: str, *, of_peer: bool = False) -> torch.device:
    """Returns `device` (index, name or torch.device) as a torch.device.

    `where` opens the message of an error. Raises ValueError unless it is the CPU, or a device with an index of CUDA or
    of this machine's accelerator; a peer's may be of any accelerator, since the peer may run on another machine. Raises
    what torch.device raises for text or numbers that name no device.
    """
    result = _parse(device, where)
    kinds = _accelerators_of_peers() if of_peer else _accelerators_here()
    if result.type not in ("cpu", *kinds):
        raise ValueError(
            f"{where}: {result} is a {result.type} device; RPC moves tensors between cpu and {' or '.join(kinds)} only"
        )
    if result.type != "cpu" and cast("int | None", result.index) is None:  # PyTorch's stub says that it always has one
        raise ValueError(
            f"{where}: '{result.type}' leaves open which device is meant; write '{result.type}:0' or another index"
        )
    return result


def to_device_map(devices: Mapping[DeviceLike, DeviceLike], where: str) -> DeviceMap:
    """Returns the pairs of `devices` as torch.devices; the targets are a peer's.

    Raises TypeError when it is no mapping and ValueError when two sources share a target: a response travels the map
    backwards, so each target must lead to one source.
    """
    if not isinstance(cast("object", devices), Mapping):
        raise TypeError(f"{where}: expected a dict from local to remote devices, got {type(devices).__name__}")
    result: DeviceMap = {}
    source_of: DeviceMap = {}
    for key, value in devices.items():
        source, target = to_device(key, where), to_device(value, where, of_peer=True)
        if source_of.setdefault(target, source) != source:
            raise ValueError(
                f"{where}: {source_of[target]} and {source} both map to {target}, so a response could not find back; "
                "give each its own target"
            )
        _add_pair(result, source, target, where)
    return result


def merged(present: DeviceMap, added: DeviceMap, where: str) -> DeviceMap:
    """Returns `present` with the pairs of `added`; a source may not change its target (ValueError).

    That two sources end up at one target is *not* refused here. PyTorch's options accept it too, and the workers of
    the group refuse it together when they exchange their maps; a worker that failed alone, before it joined, would
    leave the others waiting.
    """
    result = dict(present)
    for source, target in added.items():
        _add_pair(result, source, target, where)
    return result


def to_accelerators(devices: Iterable[DeviceLike], where: str) -> list[torch.device]:
    """Returns `devices` as torch.devices that are no CPU; raises TypeError or ValueError for anything else."""
    if isinstance(devices, (str, int, torch.device)) or not isinstance(cast("object", devices), Iterable):
        raise TypeError(f"{where}: expected a list of devices, got {devices!r}; write [{devices!r}]")
    result = [to_device(device, where) for device in devices]
    for device in result:
        if device.type == "cpu":
            raise ValueError(f"{where}: the CPU always takes part and is not listed")
    return result


def _accelerators_here() -> list[str]:
    """CUDA, which PyTorch's options know on any machine, and what else this one has."""
    accelerator = torch.accelerator.current_accelerator()
    return ["cuda"] if accelerator is None else list(dict.fromkeys(["cuda", accelerator.type]))


def _accelerators_of_peers() -> list[str]:
    """Those that PyTorch knows. PrivateUse1 has the name that a backend has given it here, else its own."""
    return ["cuda", "xpu", "hpu", "mtia", "mps", get_privateuse1_backend_name()]


def _parse(device: DeviceLike, where: str) -> torch.device:
    try:
        return torch.device(device)
    except TypeError as error:
        raise TypeError(f"{where}: {device!r} is not a device; pass an index, a name or a torch.device") from error
    except RuntimeError as error:
        # Again a RuntimeError, which callers of PyTorch's own options catch; its text alone does not say where it is.
        raise RuntimeError(f"{where}: {device!r} is not a device: {error}") from error


def _add_pair(devices: DeviceMap, source: torch.device, target: torch.device, where: str) -> None:
    if devices.setdefault(source, target) != target:
        raise ValueError(
            f"{where}: `set_device_map` only supports 1-to-1 mapping, but {source} already maps to {devices[source]} "
            f"and cannot map to {target} as well; start from new options to change it"
        )
