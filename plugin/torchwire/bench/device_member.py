"""A worker of torch.distributed.rpc whose echoes are of tensors on devices."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from torchwire import torch_parts
from torchwire.bench import functions
from torchwire.bench.member import Place
from torchwire.bench.rpc_member import RpcMember, name_of
from torchwire.bench.sampling import Call


class DeviceMember(RpcMember):
    """Options: `source` and `target`, the devices of a tensor at worker 0 and at worker 1; `prepare`, what loads the
    accelerator that they belong to, as "module:function", or ""; and those of RpcMember.
    """

    def __init__(self, place: Place, source: str, target: str, prepare: str, **options: Any) -> None:
        super().__init__(place, **options)
        self._source = source
        self._prepare = prepare
        # Responses travel the caller's map backwards, so that the other needs none.
        if place.rank == 0 and (source, target) != ("cpu", "cpu"):
            self.options = {**options, "device_maps": {name_of(1): {source: target}}}

    def join(self) -> None:
        load(self._prepare)
        super().join()

    def echo(self, size: int) -> Call:
        """The call is over when the tensor is whole on the device that it came from."""
        device = torch.device(self._source)
        worker, arguments = name_of(1), (torch.zeros(size, dtype=torch.uint8, device=device),)

        def call() -> None:
            torch_parts.rpc_sync(worker, functions.echo, args=arguments)
            if device.type != "cpu":
                torch.accelerator.current_stream(device).synchronize()

        call()  # what is set up at the first use of a device is not the echo's cost
        return call


def load(prepare: str) -> None:
    """Calls the function that is named "module:function"; "" names none."""
    if prepare:
        module, _, name = prepare.partition(":")
        getattr(importlib.import_module(module), name)()
