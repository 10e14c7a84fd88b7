"""What torchwire replaces of PyTorch's functions, and of Python's: which, until when, and why.

for_good() and Replacements refuse what is not in TABLE, and a test looks for what else has changed. docs/replaced.md is
made of it:

    python -c "from torchwire import replaced; print(replaced.page(), end='')" > docs/replaced.md
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Mapping
from types import CellType
from typing import Any, NamedTuple, cast


class Until(enum.Enum):
    """When what is replaced is put back."""

    NEVER = "From `import torchwire` on, for good (`sys.exit`: from the first `init_rpc` on)"
    SHUTDOWN = "From `init_rpc` on, until `rpc.shutdown()` has ended"
    UNTRACED = "While `torchwire.propagate_opentelemetry()` is on"
    LEFT = "In a process that was forked from a worker, until it calls `rpc.shutdown()` or `init_rpc`"


class Replaced(NamedTuple):
    """Functions of a module or class; behind `.__wrapped__`, what a function of PyTorch's wraps."""

    owner: str
    names: tuple[str, ...]
    why: str

    def paths(self) -> list[str]:
        return [f"{self.owner}.{name}" for name in self.names]


# Where functions are replaced.
API = "torch.distributed.rpc.api"
INTERNAL = "torch.distributed.rpc.internal"
PICKLER = f"{INTERNAL}._InternalRPCPickler"
PROXY = "torch.distributed.rpc.rref_proxy"
RREF = "torch._C._distributed_rpc.PyRRef"  # in which torch.distributed.rpc.RRef looks its methods up at each call
AUTOGRAD = "torch.distributed.autograd"
AUTOGRAD_C = "torch._C._distributed_autograd"

_ENGINE = "torchwire's engine runs the pass"
_CONTEXT = "contexts are opened and released by torchwire's calls"
_READER = "the thread that waits reads the answer itself"
_TAKEN_BACK = "RRefs that were passed to a worker which is gone, or in what cannot be sent, are taken back"

TABLE: Mapping[Until, list[Replaced]] = {
    Until.NEVER: [
        Replaced("torch.distributed.rpc", ("_validate_rpc_args",), "the others are told of what fails in `init_rpc`"),
        Replaced(
            "torch.distributed",
            ("_create_store_from_options", "rendezvous"),
            "the wait for the store has a time-out and hears signals; a store on loopback listens there alone",
        ),
        Replaced(AUTOGRAD, ("_init",), "a process may be another worker after `rpc.shutdown()`"),
        Replaced(API, ("_set_and_start_rpc_agent",), "a process may run another backend after `rpc.shutdown()`"),
        Replaced(API, ("_invoke_rpc",), "torchwire writes the calls: those of Python functions without pickle"),
        Replaced(API, ("_invoke_remote_builtin",), "an operator without a result raises, and does not end the process"),
        Replaced(API, ("_all_gather",), "it works where workers come and go"),
        Replaced(
            INTERNAL,
            ("serialize", "deserialize", "_thread_local_tensor_tables"),
            "a result that cannot be unpickled raises; a pickler of the program's serves both sides",
        ),
        Replaced(INTERNAL, ("_run_function", "_handle_exception"), "an exception arrives with its type and text"),
        Replaced(PICKLER, ("_py_rref_receiver",), "RRefs in what is not unpickled to its end do not leak"),
        Replaced(PROXY, ("_invoke_rpc",), "a proxy asks again for a type that it could not get before"),
        Replaced(RREF, ("to_here", "_get_future"), _READER),
        Replaced(RREF, ("_serialize", "_get_type", "local_value"), "an RRef whose creation has failed raises why"),
        Replaced(RREF, ("backward",), _ENGINE),
        Replaced("torch.Future", ("wait",), "signals are heard meanwhile; " + _READER),
        Replaced(
            "torch.Future", ("then", "add_done_callback"), "a callback runs in the autograd context of its caller"
        ),
        Replaced(AUTOGRAD, ("backward",), _ENGINE),
        Replaced(AUTOGRAD_C, ("backward",), _ENGINE),
        Replaced(AUTOGRAD, ("_new_context", "_release_context"), _CONTEXT),
        Replaced(AUTOGRAD_C, ("_new_context", "_release_context"), _CONTEXT),
        Replaced(f"{AUTOGRAD}.context", ("__enter__", "__exit__"), "a handler of a signal cannot leave one open"),
        Replaced("sys", ("exit",), "peers are told how the process ends"),
    ],
    Until.SHUTDOWN: [
        Replaced(API, ("shutdown.__wrapped__",), "threads that shut down at the same time wait for the first"),
        Replaced(
            API,
            ("_wait_all_workers", "_delete_all_user_and_unforked_owner_rrefs", "_finalize_shutdown"),
            "nobody waits for workers that have died or left; signals are heard; leaked RRefs are listed",
        ),
        Replaced(
            API,
            ("_invoke_remote_builtin", "_invoke_remote_python_udf", "_invoke_remote_torchscript", "RRef.__init__"),
            "`torchwire.rrefs()` says where an RRef was made",
        ),
        Replaced(PICKLER, ("_py_rref_reducer", "serialize"), _TAKEN_BACK),
        Replaced(API, ("remote.__wrapped__",), _TAKEN_BACK),
        Replaced(RREF, ("_serialize",), _TAKEN_BACK),
    ],
    Until.UNTRACED: [
        Replaced(API, ("_invoke_rpc", "PythonUDF"), "calls carry the trace context"),
        Replaced(PROXY, ("_invoke_rpc",), "calls carry the trace context"),
    ],
    Until.LEFT: [
        Replaced(API, ("shutdown.__wrapped__", "_finalize_shutdown"), "there is nothing to shut down"),
        Replaced(
            API,
            ("_all_gather", "_barrier", "_wait_all_workers", "_delete_all_user_and_unforked_owner_rrefs"),
            "they raise, instead of using the parent's connections",
        ),
        Replaced(AUTOGRAD, ("_init",), "`init_rpc` makes the process a worker of its own"),
    ],
}

_PATHS = {until: frozenset(path for row in rows for path in row.paths()) for until, rows in TABLE.items()}

_WRAPPED = ".__wrapped__"
_INHERITED: Any = object()  # in the place of a function that a class has of another

Replacing = Callable[[Any], Any]  # makes a function of PyTorch's one that takes its place

_done: set[tuple[str, str, str]] = set()


class _Place(NamedTuple):
    """Where a function is held: an attribute of a module, a class or a closure's cell."""

    owner: Any
    attribute: str

    def function(self) -> Any:
        return getattr(self.owner, self.attribute)

    def held(self) -> Any:
        """What the owner has under that name itself: a class would make something else of some replacements."""
        if not isinstance(self.owner, type):
            return self.function()
        return cast("Mapping[str, Any]", vars(self.owner)).get(self.attribute, _INHERITED)

    def hold(self, function: Any) -> None:
        if function is _INHERITED:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, function)


def for_good(name: str, replacing: Replacing) -> None:
    """Puts what `replacing` makes of a function in its place, once.

    Raises KeyError if TABLE does not name it under NEVER.
    """
    # By its name: each import that is tried again after one that failed makes another lambda.
    key = (name, str(replacing.__module__), replacing.__qualname__)
    if key not in _done:
        place = _place_of(name, Until.NEVER)
        place.hold(replacing(place.function()))
        _done.add(key)


class Replacements:
    """Of TABLE's functions under one heading; undone together. Not thread-safe."""

    def __init__(self, until: Until) -> None:
        self._until = until
        self._applied: list[tuple[_Place, Any, Any]] = []  # with what was there, and what is

    def replace(self, name: str, replacing: Replacing) -> None:
        """Puts what `replacing` makes of that function in its place, until undo().

        Does nothing where somebody has put a function of another kind in the place of one that wraps it. Raises
        KeyError if TABLE does not name it.
        """
        place = _place_of(name, self._until)
        if place.owner is None:
            return
        replacement = replacing(place.function())
        self._applied.append((place, place.held(), replacement))
        place.hold(replacement)

    def undo(self) -> None:
        """Puts the originals back, the latest first. What somebody else has replaced meanwhile stays as it is."""
        while self._applied:
            place, original, replacement = self._applied.pop()
            if place.held() is replacement:
                place.hold(original)


def _cell_within(wrapper: Any) -> CellType | None:
    """Where a function of PyTorch's that wraps another keeps that: to replace it for all that have the wrapper."""
    proper = getattr(wrapper, "__wrapped__", None)
    cells = getattr(wrapper, "__closure__", None) or ()
    return next((cell for cell in cells if cell.cell_contents is proper), None)


def _place_of(name: str, until: Until) -> _Place:
    if name not in _PATHS[until]:
        raise KeyError(f"{name} is not in the table of what is replaced: {until.value}")
    if name.endswith(_WRAPPED):
        return _Place(_cell_within(_found(name.removesuffix(_WRAPPED))), "cell_contents")
    owner, _, attribute = name.rpartition(".")
    return _Place(_found(owner), attribute)


def _found(name: str) -> Any:
    if name in sys.modules:
        return sys.modules[name]
    owner, _, attribute = name.rpartition(".")
    return getattr(_found(owner), attribute)


def page() -> str:
    """docs/replaced.md."""
    parts = [_INTRODUCTION]
    for until, rows in TABLE.items():
        lines = [f"## {until.value}\n", "| of | functions | why |", "| --- | --- | --- |"]
        for row in rows:
            names = ", ".join(f"`{name.removesuffix(_WRAPPED)}`" for name in row.names)
            lines.append(f"| `{row.owner}` | {names} | {row.why} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
# What is replaced in PyTorch

torch is not rebuilt, and none of its files change. In a process that imports torchwire, these functions of PyTorch's
Python layer, and `sys.exit`, are replaced. Where another backend runs, they do what PyTorch's do, except that a process
may change its rank and its backend, and that a remote error's traceback ends where the function was called.
`torch.distributed.rpc.shutdown` and `remote` themselves stay what they are, and call another function.

Besides, `torch.distributed.rpc.BackendType` gets the member `TORCHWIRE`, the operator `aten::dist_backward` calls
torchwire's engine where a group runs on it, and `torchwire.replace_tensorpipe()` changes what `TENSORPIPE` starts."""
