"""What is called: the same function objects on all contestants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwire import torch_parts


def noop() -> None:
    pass


def add_one(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + 1


def echo(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@torch.jit.script  # pyright: ignore[reportUnknownMemberType] - its other overload is untyped
def scripted(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + 1


@torch_parts.async_execution
def add_one_async(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(tensor + 1)
    return future


def ones() -> torch.Tensor:
    """What an RRef is made of."""
    return torch.ones(2)


def double_along(workers: list[str], tensor: torch.Tensor) -> torch.Tensor:
    """Doubles the tensor at the end of a way over several workers."""
    if not workers:
        return tensor * 2
    return torch_parts.rpc_sync(workers[0], double_along, args=(workers[1:], tensor))


def call_of(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function by the name that steps have for it, and arguments for it."""
    small = torch.ones(2)
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "builtin": (torch.add, (small, 1)),
        "noop": (noop, ()),
        "tensor": (add_one, (small,)),
        "torchscript": (scripted, (small,)),
        "async": (add_one_async, (small,)),
    }
    return calls[name]
