"""A user's program that takes everything that torchwire offers; test_public_names.py has its types checked.

It is not run: it shows which types reach a program, and stops to check when one of them changes.
"""

# pyright: strict

from __future__ import annotations

import pathlib
import sys
from typing import Any, Literal

import torch
import torch.distributed.rpc as rpc
import torchwire
from torch.utils.hooks import RemovableHandle


def start(rank: int) -> None:
    options = torchwire.TorchwireRpcBackendOptions(
        num_worker_threads=8,
        rpc_timeout=30.0,
        init_method="tcp://127.0.0.1:29500",
        device_maps={"worker1": {"cuda:0": torch.device("cuda", 1), 1: 0}},
        devices=["cuda:0", 1],
        secret=b"0123456789abcdef",
        backward_mode="fast",
        device_stream_order="default_stream",
        elastic=True,
        slow_call_warning=2.5,
        metrics_port=0,
        status_socket=False,
    )
    options.set_device_map("worker2", {0: 1})
    options.set_devices([torch.device("cuda", 0)])
    timeout: float = options.rpc_timeout
    method: str = options.init_method
    secret: bytes | None = options.secret
    file: str | None = options.secret_file
    devices: list[torch.device] = options.devices
    maps: dict[str, dict[torch.device, torch.device]] | Literal["auto"] = options.device_maps
    slow: float = options.slow_call_warning
    options.metrics_port = "[::1]:9100"
    port: str | None = options.metrics_port
    socket: bool = options.status_socket
    print(slow, port, socket)
    print(timeout, method, secret, file, devices, maps, torchwire.__version__.split("."))
    torchwire.replace_tensorpipe()
    torchwire.restore_tensorpipe()
    rpc.init_rpc(  # pyright: ignore[reportUnknownMemberType] - PyTorch's, without types
        f"worker{rank}",
        backend=rpc.BackendType["TORCHWIRE"],
        rank=rank,
        world_size=2,
        rpc_backend_options=options,
    )


def watch() -> list[dict[str, Any]]:
    def lost(worker: rpc.WorkerInfo, error: torchwire.RpcError) -> None:
        name: str | None = error.worker
        executed: Literal["no", "unknown", "yes"] = error.executed
        print(worker.name, name, executed)

    def joined(worker: rpc.WorkerInfo) -> None:
        print(worker.name)

    handles: list[RemovableHandle] = [torchwire.on_worker_lost(lost), torchwire.on_worker_joined(joined)]
    for handle in handles:
        handle.remove()
    explanation: torchwire.Explanation = torchwire.explain("worker1")
    for path in explanation.devices:
        print(path.source.index, path.target.index, path.path.upper(), path.reason.upper())
    for one in (*explanation.transports_not_taken, *explanation.channels_not_taken):
        print(one.name.upper(), one.reason.upper(), one.remedy.upper())
    print(explanation.worker, explanation.transport, explanation.channel)
    peers: list[torchwire.PeerInfo] = torchwire.peers()
    rrefs: list[torchwire.RRefInfo] = torchwire.rrefs()
    contexts: list[torchwire.AutogradContextInfo] = torchwire.autograd_contexts()
    print(peers[0].name.upper(), rrefs[0].owner.upper(), contexts[0].id + 1)
    return [*peers, *rrefs, *contexts]


def observe(folder: pathlib.Path) -> dict[str, Any]:
    with torchwire.log_metrics(folder / "metrics.jsonl", interval=1.0), torchwire.trace("trace.json", capacity=1000):
        torchwire.dump()
        torchwire.dump(sys.stdout)
        torchwire.propagate_opentelemetry()
        torchwire.propagate_opentelemetry(enabled=False)
    return torchwire.metrics()


async def awaits(future: torchwire.CallFuture[torch.Tensor]) -> torch.Tensor:
    ended: bool = future.cancel()
    print(ended)
    return await future


def give_up(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor | None:
    call: torchwire.CurrentCall = torchwire.current_call()
    call.add_cancel_callback(lambda: None)
    caller: str | None = call.caller
    if call.cancelled or caller is None:
        ended: bool = torchwire.cancel(future)
        print(ended)
    try:
        with torchwire.deadline(2.5):
            return future.wait()
    except (torchwire.CallCancelled, torchwire.CallTimedOut, torchwire.Overloaded) as error:
        print(error.executed)
    except (torchwire.WorkerDied, torchwire.WorkerUnreachable) as error:
        print(error.worker)
    return None


def of_agent(agent: torchwire.TorchwireAgent) -> dict[str, str]:
    info: rpc.WorkerInfo = agent.get_worker_info("worker1")
    workers: list[rpc.WorkerInfo] = [info, agent.get_worker_info(), *agent.get_worker_infos()]
    print(workers, agent.is_static_group)
    return {**agent.get_metrics(), **agent.get_debug_info()}
