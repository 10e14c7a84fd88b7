"""What runs in a process of a group: it does, command by command, what the group tells it."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from torchwire.bench import processes
from torchwire.bench.contestant import Contestant
from torchwire.bench.member import Member, Place

# Stock takes its address from the host's name, which leads nowhere on some machines.
_LOOPBACK = {"TP_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}

Command = Callable[..., Any]


def serve(contestant: Contestant, place: Place, output: str, commands: Connection) -> None:
    """Runs what comes: a function, which is given the member and the arguments that came with it."""
    processes.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends its processes
    try:
        _redirect_output(output)
        _prepare()
        member = _member(contestant, place)
        while (command := commands.recv()) is not None:
            commands.send(_answer(member, *command))
    except (EOFError, OSError):
        pass  # the group is gone
    os._exit(0)  # what still runs after leave() is not ours to wait for


def _prepare() -> None:
    os.environ.update({name: os.environ.get(name, value) for name, value in _LOOPBACK.items()})
    import torch

    torch.set_num_threads(1)  # several processes share the machine
    gc.disable()  # it runs before each measurement, and not within
    gc.freeze()


def join(member: Member) -> None:
    member.join()


def leave(member: Member) -> None:
    member.leave()


def _member(contestant: Contestant, place: Place) -> Member:
    module, _, name = contestant.member.partition(":")
    return getattr(importlib.import_module(f"torchwire.bench.{module}"), name)(place, **contestant.options)


def _answer(member: Member, function: Command, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "value", function(member, *arguments)
    except Exception as error:
        traceback.print_exc()
        return "error", f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _redirect_output(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)
