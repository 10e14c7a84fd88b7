"""What only torch.distributed.rpc has: RRefs, RemoteModule, distributed autograd, groups of many workers."""

from __future__ import annotations

import gc
import time

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed.nn.api.remote_module import RemoteModule
from torch.distributed.rpc import RRef

from torchwire import torch_parts
from torchwire.bench import functions, sampling
from torchwire.bench.batch import Batch
from torchwire.bench.call_steps import on_caller
from torchwire.bench.case import Case
from torchwire.bench.contestant import RPC
from torchwire.bench.group import GroupError, WorkerGroup
from torchwire.bench.rpc_member import RpcMember, name_of
from torchwire.bench.sampling import Pace
from torchwire.bench.step import Scope, Step

_HOPS = (1, 3)
_FEATURES = 16
_DELETE_LIMIT = 20.0  # seconds


def rref(_scope: Scope) -> list[Step]:
    """RRefs whose owner is the other worker."""
    create_and_delete = (Case("rref", "create"), Case("rref", "delete"))
    return [
        Step(create_and_delete, RPC, _create_and_delete),
        Step((Case("rref", "fetch"),), RPC, on_caller(time_fetches)),
    ]


def _create_and_delete(group: WorkerGroup, pace: Pace) -> list[Batch]:
    return group.caller.run(create_and_delete_rrefs, pace)


def remote_module(_scope: Scope) -> list[Step]:
    """A linear layer on the other worker."""
    return [Step((Case("remote_module", "forward"),), RPC, on_caller(time_forwards))]


def backward(_scope: Scope) -> list[Step]:
    """Backward passes, without their forward ones: the gradient of one small tensor, there and back."""
    return [
        Step(
            (Case("backward", f"{hops} hop{'s' if hops > 1 else ''}"),),
            RPC,
            on_caller(time_backward, hops),
            size=max(_HOPS) + 1,
        )
        for hops in _HOPS
    ]


def peers(scope: Scope) -> list[Step]:
    """The no-op, called on all others at once."""
    return [step for count in scope.peers for step in _peer_steps(count)]


def _peer_steps(count: int) -> list[Step]:
    one = Case("peers", f"1 to {count}")
    every = Case("peers", f"{count + 1} to each other")
    return [
        Step((one,), RPC, on_caller(time_fan_out), size=count + 1),
        Step((every,), RPC, _everyone_calls, size=count + 1),
    ]


def _everyone_calls(group: WorkerGroup, pace: Pace) -> list[Batch]:
    batches = group.run_on_all(time_fan_out, pace._replace(pids=()))
    return [Batch([sample for batch in batches for sample in batch.samples])]


# ---- in the workers ----


def create_and_delete_rrefs(_member: RpcMember, pace: Pace) -> list[Batch]:
    """Creation is over when the owner has confirmed it, deletion when the owner has none any more."""
    owner = name_of(1)
    kept: list[RRef[torch.Tensor]] = []

    def create() -> None:
        reference = torch_parts.remote(owner, functions.ones)
        reference._get_future().wait()
        kept.append(reference)

    creation = sampling.latency(create, pace)
    count = len(kept)
    start = time.perf_counter_ns()
    kept.clear()
    wait_for_deletes(owner)
    return [creation, Batch([(time.perf_counter_ns() - start) / count])]


def wait_for_deletes(owner: str) -> None:
    """Returns when the owner has no RRefs any more: nothing may be under way when a group is stopped."""
    end = time.monotonic() + _DELETE_LIMIT
    while (left := torch_parts.rpc_sync(owner, owned_rrefs)) > 0:
        if time.monotonic() > end:
            raise GroupError(f"{owner} still has {left} RRefs {_DELETE_LIMIT:.0f} s after the last use was dropped")


def owned_rrefs() -> int:
    return int(torch_parts.rref_context_get_debug_info()["num_owner_rrefs"])


def time_fetches(_member: RpcMember, pace: Pace) -> Batch:
    reference = torch_parts.remote(name_of(1), functions.ones)
    batch = sampling.latency(reference.to_here, pace)
    del reference
    wait_for_deletes(name_of(1))
    return batch


def time_forwards(_member: RpcMember, pace: Pace) -> Batch:
    batch = _forwards(pace)
    gc.collect()  # the module has cycles
    wait_for_deletes(name_of(1))
    return batch


def _forwards(pace: Pace) -> Batch:
    module = RemoteModule(f"{name_of(1)}/cpu", torch.nn.Linear, (_FEATURES, _FEATURES))
    features = torch.ones(1, _FEATURES)
    return sampling.latency(lambda: module.forward(features), pace)


def time_backward(_member: RpcMember, hops: int, pace: Pace) -> Batch:
    """Each pass has a context and a graph of its own, of which only the pass is timed."""
    workers = [name_of(rank) for rank in range(1, hops + 1)]
    leaf = torch.ones(2, requires_grad=True)
    contexts: list[dist_autograd.context] = []

    def forward() -> tuple[int, torch.Tensor]:
        while contexts:
            contexts.pop().__exit__(None, None, None)
        contexts.append(dist_autograd.context())
        return contexts[0].__enter__(), functions.double_along(workers, leaf).sum()

    def run(graph: tuple[int, torch.Tensor]) -> None:
        dist_autograd.backward(graph[0], [graph[1]])  # pyright: ignore[reportPrivateImportUsage] - documented

    batch = sampling.latency(run, pace, forward)
    contexts.pop().__exit__(None, None, None)
    return batch


def time_fan_out(member: RpcMember, pace: Pace) -> Batch:
    begins = [member.begin("noop", peer) for peer in member.others()]

    def call_all() -> None:
        for wait in [begin() for begin in begins]:
            wait()

    return sampling.latency(call_all, pace)
