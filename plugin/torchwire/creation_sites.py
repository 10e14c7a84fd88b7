"""Where and when the program makes RRefs.

The functions of torch.distributed.rpc.api that `rpc.remote` ends in, one for each kind of function, are replaced while
the current agent is torchwire's, and `rpc.RRef` gets a constructor: each tells the agent of the new RRef. The functions
below `remote`, and not `remote` itself, because programs that have imported it by name keep the one they have. RRefs
that TorchScript makes pass none of them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torchwire._C import TorchwireAgent
from torchwire.replaced import API, Replacements, Until

_INVOKE_REMOTE = ("_invoke_remote_builtin", "_invoke_remote_torchscript", "_invoke_remote_python_udf")
_MOST_FRAMES = 5
_NOT_THE_PROGRAM = ("torch", "torchwire", "importlib", "threading", "multiprocessing", "concurrent", "runpy")

_note_rref = TorchwireAgent.note_rref

_replaced = Replacements(Until.SHUTDOWN)


def install(record: bool) -> None:
    """Tells the agent of each new RRef from now on, with the stack where it is made if `record`, until uninstall()."""
    _replaced.undo()  # an agent that was dropped without a shutdown has left its own behind
    for name in _INVOKE_REMOTE:
        _replaced.replace(f"{API}.{name}", functools.partial(_noting, record=record))
    _replaced.replace(f"{API}.RRef.__init__", functools.partial(_noting_constructor, record=record))


def uninstall() -> None:
    """Puts PyTorch's own functions back."""
    _replaced.undo()


def here() -> str:
    """The program's frames that led here, innermost first: "file:line in function", joined by " < ".

    Frames of PyTorch, torchwire and Python's own machinery for threads and processes are left out.
    """
    frames: list[str] = []
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - documented all the same
    while frame is not None and len(frames) < _MOST_FRAMES:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_THE_PROGRAM:
            frames.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(frames)


def _noting(original: Callable[..., Any], record: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def invoke(*args: Any, **kwargs: Any) -> Any:
        rref = original(*args, **kwargs)
        _note_rref(rref, here() if record else "")
        return rref

    return invoke


def _noting_constructor(original: Callable[..., None], record: bool) -> Callable[..., None]:
    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _note_rref(self, here() if record else "")

    return construct
