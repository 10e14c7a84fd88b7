"""What can be measured: the table of contestants."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

REFERENCE = "stock"  # what all others are compared with

# The program of test/bench/pipe.cpp.
PIPE_PROGRAM = "TORCHWIRE_PIPE_BENCH"

# What a contestant may offer; steps say which of these they need.
CALLS = "calls"
THREADS = "threads"
ECHO = "echo"
RPC = "rpc"

_EVERYTHING = frozenset({CALLS, THREADS, ECHO, RPC})


class Contestant(NamedTuple):
    """Something that can be measured. A value."""

    name: str
    description: str
    offers: frozenset[str]
    member: str = ""  # module:class; "" where the processes are those of a program that is not Python
    options: Mapping[str, Any] = {}
    package: str = ""  # what has to be installed, as PyPI names it
    module: str = ""  # of that package
    processes: int | None = None  # that a group has to be given; None: as many as there are workers

    def why_absent(self) -> str | None:
        """What it lacks to be measured here; None if nothing."""
        if self.module and importlib.util.find_spec(self.module) is None:
            return f"not installed: pip install {self.package}"
        program = os.environ.get(PIPE_PROGRAM)
        if not self.member and not program:
            return "needs a checkout: tools/bench"
        if not self.member and program and not os.access(program, os.X_OK):
            return f"{PIPE_PROGRAM} names {program!r}, which is no program"
        return None

    def version(self) -> str | None:
        return importlib.metadata.version(self.package) if self.package and self.why_absent() is None else None


def pipe_program() -> pathlib.Path:
    return pathlib.Path(os.environ[PIPE_PROGRAM])


def _pipe(transport: str) -> Contestant:
    return Contestant(f"pipe/{transport}", f"a bare TensorPipe pipe on {transport}", frozenset({ECHO}))


def _rpc(family: str, transport: str = "") -> Contestant:
    backend, title = {"stock": ("TENSORPIPE", "PyTorch's own backend"), "torchwire": ("TORCHWIRE", "torchwire")}[family]
    options: dict[str, Any] = {"backend": backend}
    if transport:
        options["_transports"] = [transport]
    name = f"{family}/{transport}" if transport else family
    where = f"on {transport}" if transport else "with default options"
    return Contestant(name, f"{title} {where}", _EVERYTHING, "rpc_member:RpcMember", options)


def _encrypted() -> Contestant:
    plain = _rpc("torchwire", "wire_tcp")
    return plain._replace(
        name="torchwire/encrypted",
        description=f"{plain.description}, encrypted",
        options={**plain.options, "encryption": True},
    )


CONTESTANTS = (
    _rpc("stock"),
    _rpc("stock", "uv"),
    _rpc("torchwire"),
    _rpc("torchwire", "wire_tcp"),
    _encrypted(),
    *map(_pipe, ("shm", "uv", "wire_shm", "wire_tcp")),
    Contestant("mp.Pipe", "multiprocessing's pipe, pickles", frozenset({CALLS, ECHO}), "plain_members:PipeMember"),
    Contestant(
        "pyzmq",
        "ZeroMQ on ipc, pickles",
        frozenset({CALLS, THREADS, ECHO}),
        "plain_members:ZmqMember",
        package="pyzmq",
        module="zmq",
    ),
    Contestant(
        "grpcio",
        "gRPC on a socket of the Unix domain, pickles",
        frozenset({CALLS, THREADS, ECHO}),
        "plain_members:GrpcMember",
        package="grpcio",
        module="grpc",
    ),
    Contestant(
        "ray",
        "an actor of Ray's",
        frozenset({CALLS, THREADS, ECHO}),
        "actor_members:RayMember",
        package="ray",
        module="ray",
        processes=1,
    ),
    Contestant(
        "torchmonarch",
        "an actor of Monarch's",
        frozenset({CALLS, ECHO}),
        "actor_members:MonarchMember",
        package="torchmonarch",
        module="monarch",
        processes=1,
    ),
)


def named(names: Sequence[str]) -> list[Contestant]:
    """The contestants with these names. Beside those of the table: stock, torchwire and pipe on any transport.

    Raises ValueError for a name that cannot be one.
    """
    return [_named(name) for name in names]


def _named(name: str) -> Contestant:
    for contestant in CONTESTANTS:
        if contestant.name == name:
            return contestant
    family, _, transport = name.partition("/")
    if transport and family in ("stock", "torchwire"):
        return _rpc(family, transport)
    if transport and family == "pipe":
        return _pipe(transport)
    known = ", ".join(contestant.name for contestant in CONTESTANTS)
    raise ValueError(f"there is no contestant {name!r}; there are {known}, and others such as torchwire/uv")
