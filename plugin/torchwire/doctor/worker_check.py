"""Two workers on this machine that call each other: whether that works, by which ways, and how many files it takes."""

from __future__ import annotations

import os
import resource
import tempfile
from typing import NamedTuple

import torch
import torch.distributed.rpc as rpc

import torchwire
from torchwire import torch_parts
from torchwire.doctor import child, interfaces
from torchwire.doctor.check import Check, failed, ok, warning

_LIMIT = 20.0  # seconds for both of them
_CALLS = 10.0  # seconds for a call
_LARGE = 1 << 20  # elements, enough for the channel of large tensors
_SPARE = 64  # files for the program itself


class Trial(NamedTuple):
    """What the caller has seen."""

    transport: str
    channel: str
    address: str  # that the worker announces
    chosen_by: str
    files: int  # that a worker without peers has opened
    files_per_peer: int


class FileLimit(NamedTuple):
    """Of open files in a process (ulimit -n)."""

    soft: int
    hard: int


def lift_file_limit() -> FileLimit:
    """Raises this process's limit, so that the checks work where it is too low; returns what it was."""
    limit = FileLimit(*resource.getrlimit(resource.RLIMIT_NOFILE))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit.hard, limit.hard))
    return limit


def checks_of(limit: FileLimit, workers: int) -> list[Check]:
    """The checks that a trial allows; `workers` is the size of the group that is to run under this limit of files."""
    with tempfile.TemporaryDirectory(prefix="torchwire-doctor-") as folder:
        members: list[child.Child] = []
        try:
            for rank in (0, 1):
                members.append(child.Child(join, folder, rank))
            trial = members[1].result(_LIMIT)
        except child.ChildError as error:
            return [
                failed(
                    "workers",
                    f"two on this machine could not call each other: {error}",
                    "mend first what the other lines say; if none says anything, set TORCHWIRE_LOG_LEVEL=info and "
                    "start two workers by hand",
                )
            ]
        finally:
            for member in members:
                member.close()
    return [_calls(trial), _address(trial), _files(trial, limit, workers)]


def join(folder: str, rank: int) -> Trial | None:
    """Runs in a child: a member of the group; the last one calls the first."""
    options = torchwire.TorchwireRpcBackendOptions(init_method=f"file://{folder}/store", rpc_timeout=_CALLS)
    torch_parts.init_rpc(
        f"worker{rank}",
        backend=rpc.BackendType["TORCHWIRE"],
        rank=rank,
        world_size=2,
        rpc_backend_options=options,
    )
    done = os.path.join(folder, "done")
    trial = None
    if rank == 1:
        trial = _try_calls()
        open(done, "w").close()
    else:
        # Its shutdown would connect the two, perhaps before the other has counted its files.
        child.wait_until(lambda: os.path.exists(done), _LIMIT)
    rpc.shutdown()
    return trial


def _try_calls() -> Trial:
    before = _open_files()
    torch_parts.rpc_sync("worker0", torch.add, args=(torch.ones(_LARGE), 1))
    way = torchwire.explain("worker0")
    agent = torch_parts.get_current_rpc_agent()
    info = agent.get_debug_info()
    return Trial(
        way.transport,
        way.channel,
        info["agent.address"],
        info["agent.address_chosen_by"],
        before,
        _open_files() - before,
    )


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd")) - 1  # that of the listing itself


def _calls(trial: Trial) -> Check:
    name = "workers"
    found = f"two on this machine call each other by {trial.transport}, large tensors go by {trial.channel}"
    if trial.transport != "wire_shm":
        return warning(name, found, "mend what the lines memfd and Unix sockets say, so that wire_shm is used")
    if trial.channel != "cma":
        return warning(name, found, "mend what the line process_vm_readv says, so that cma is used")
    return ok(name, found)


def _address(trial: Trial) -> Check:
    name = "address"
    found = f"without a TCP store, workers announce {trial.address} ({trial.chosen_by})"
    host = trial.address.partition("://")[2].rpartition(":")[0].strip("[]")
    interface = interfaces.owner_of(host)
    if interface and not interface.is_usable():
        return failed(
            name, f"{found}, and {interface.name} is {interface.state()}", f"bring up {interface.name}, or name another"
        )
    if interface and interface.is_loopback:
        return warning(
            name,
            f"{found}, which other machines cannot reach",
            "name a tcp:// store by an address of its machine, or set TP_SOCKET_IFNAME or bind_address, unless all "
            "workers are on this machine",
        )
    return ok(name, found)


def _files(trial: Trial, limit: FileLimit, workers: int) -> Check:
    name = "open files"
    needed = trial.files + trial.files_per_peer * (workers - 1) + _SPARE
    figures = {"needed": needed, "soft_limit": limit.soft, "hard_limit": limit.hard, "per_peer": trial.files_per_peer}
    found = (
        f"the limit is {limit.soft}; a worker in a group of {workers} needs {needed} "
        f"({trial.files} opened alone, {trial.files_per_peer} for each peer, {_SPARE} to spare)"
    )
    if limit.soft >= needed or limit.soft == resource.RLIM_INFINITY:
        return ok(name, found, **figures)
    if limit.hard >= needed or limit.hard == resource.RLIM_INFINITY:
        return failed(name, found, f"raise it before starting workers: ulimit -n {needed}", **figures)
    return failed(
        name,
        f"{found}, and the hard limit is {limit.hard}",
        f"have the administrator raise it: nofile in limits.conf, LimitNOFILE of the service, or --ulimit "
        f"nofile={needed} of the container",
        **figures,
    )
