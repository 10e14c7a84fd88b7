"""A worker of torch.distributed.rpc, on stock's backend or on torchwire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.rpc as rpc

import torchwire
from torchwire import torch_parts
from torchwire.bench import functions
from torchwire.bench.member import Member
from torchwire.bench.sampling import Call


def name_of(rank: int) -> str:
    return f"worker{rank}"


class RpcMember(Member):
    """Options: `backend`, and those of the backend."""

    def join(self) -> None:
        torchwire.restore_tensorpipe()  # should the environment ask for torchwire in its place
        torch_parts.init_rpc(
            name_of(self.place.rank),
            backend=rpc.backend_registry.BackendType[self.options["backend"]],
            rank=self.place.rank,
            world_size=self.place.size,
            rpc_backend_options=self.backend_options(),
        )

    def backend_options(self) -> Any:
        options = dict(self.options)
        backend = rpc.backend_registry.BackendType[options.pop("backend")]
        maps = options.pop("device_maps", {})
        made: Any = torch_parts.construct_rpc_backend_options(
            backend, init_method=f"file://{self.place.folder}/store", **options
        )
        for worker, device_map in maps.items():  # stock's backend drops those that it is given at once
            made.set_device_map(worker, device_map)
        return made

    def leave(self) -> None:
        rpc.shutdown()

    def begin(self, name: str, peer: int = 1) -> Callable[[], Call]:
        function, arguments = functions.call_of(name)
        worker = name_of(peer)
        return lambda: torch_parts.rpc_async(worker, function, args=arguments).wait

    def call(self, name: str) -> Call:
        function, arguments = functions.call_of(name)
        worker = name_of(1)
        return lambda: torch_parts.rpc_sync(worker, function, args=arguments)

    def echo(self, size: int) -> Call:
        worker, arguments = name_of(1), (torch.zeros(size, dtype=torch.uint8),)
        return lambda: torch_parts.rpc_sync(worker, functions.echo, args=arguments)

    def others(self) -> list[int]:
        """The ranks of all other workers, beginning with the next."""
        rank, size = self.place.rank, self.place.size
        return [(rank + step) % size for step in range(1, size)]
