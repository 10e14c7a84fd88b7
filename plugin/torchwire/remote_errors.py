"""What a Python function raises on another worker keeps its type, and what else can be sent of it.

PyTorch sends a type and a text, and raises a RuntimeError at the caller unless the type is ValueError or TypeError, or
the error comes from an RRef. Here the exception itself travels too, in parts of which each may be missing: what cannot
be pickled is left out by the callee, and what cannot be unpickled by the caller. So nothing can fail that does not fail
with PyTorch.

Two functions of PyTorch's are replaced once, when torchwire is imported and before libtorch looks them up. On other
backends they do what they always did.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
import pickle
import sys
import traceback
from collections.abc import Iterable
from typing import Any, cast

from torch.distributed.rpc import internal

# An exception may hold whatever the function had at hand. What is larger stays where it is.
_MOST_BYTES = 1 << 20

_MOST_CAUSES = 16
_NOTES = "__notes__"  # which exceptions have only from Python 3.11 on


class DetailedRemoteException(internal.RemoteException):
    """PyTorch's RemoteException, and bytes from which remade() makes an exception."""

    __module__ = internal.__name__  # by these libtorch tells one
    __qualname__ = internal.RemoteException.__qualname__

    detail: bytes

    def __reduce__(self) -> Any:
        return _with_detail, (self.msg, self.exception_type, self.detail)


def _with_detail(message: str, kind: type, detail: bytes) -> DetailedRemoteException:
    result = DetailedRemoteException(message, kind)
    result.detail = detail
    return result


def install() -> None:
    """Replaces the functions. May be called again; not thread-safe."""
    if internal._run_function is not _run_function:
        internal._run_function = _run_function
        internal._handle_exception = _raising_with_detail(internal._handle_exception)


# ---- the callee ----


def _run_function(python_udf: Any) -> Any:
    # As PyTorch's, which keeps the exception to itself.
    try:
        if isinstance(python_udf, AttributeError):
            raise python_udf
        return python_udf.func(*python_udf.args, **python_udf.kwargs)
    except Exception as error:
        agent = internal._get_current_rpc_agent()
        text = f"On {agent.get_worker_info()}:\n{error!r}\n{traceback.format_exc()}"
        print(text, file=sys.stderr)
        if not _is_torchwires(agent):
            return internal.RemoteException(text, _kind_of(error))
        _count_error()
        return _with_detail(text, _kind_of(error), _detail_of(error))


def raise_error(error: BaseException) -> Any:
    """The function of a call whose own function could not be had, which is why: it raises that instead."""
    raise error


# From torchwire._C, which is loaded after this module.


def _is_torchwires(agent: Any) -> bool:
    from torchwire._C import TorchwireAgent

    return isinstance(agent, TorchwireAgent)


def _count_error() -> None:
    from torchwire._C import count_error

    count_error()


def _kind_of(error: Exception) -> type:
    # What has come from another worker is of a class made here, which nobody else could find by its name.
    return error._kind if isinstance(error, Remade) else type(error)


def _detail_of(error: Exception) -> bytes:
    # The attributes apart: what takes other arguments than its args to be made can be pickled, but not unpickled.
    parts = _pickled(_kind_of(error)), _pickled(error), _pickled(error.__dict__), _notes_of(error), _causes_of(error)
    return pickle.dumps(parts)


def _notes_of(error: BaseException) -> list[str]:
    notes = getattr(error, _NOTES, None)
    among = cast("Iterable[object]", notes) if isinstance(notes, (list, tuple)) else ()
    return [note for note in among if type(note) is str]


def _causes_of(error: BaseException) -> list[tuple[bytes | None, str, list[str]]]:
    """The cause, its cause, and so on: pickled, in words, its notes."""
    causes: list[tuple[bytes | None, str, list[str]]] = []
    cause = error.__cause__
    while cause is not None and len(causes) < _MOST_CAUSES:
        words = "".join(traceback.format_exception_only(type(cause), cause)).strip()
        causes.append((_pickled(cause), words, _notes_of(cause)))
        cause = cause.__cause__
    return causes


def _pickled(value: Any) -> bytes | None:
    try:
        pickle_ = pickle.dumps(value)
    except Exception:
        return None
    return pickle_ if len(pickle_) <= _MOST_BYTES else None


# ---- the caller ----


def _raising_with_detail(original: Any) -> Any:
    @functools.wraps(original)
    def _handle_exception(result: Any) -> None:
        try:
            original(result)
        except Exception as error:
            remote = remade(str(error), result.detail) if isinstance(result, DetailedRemoteException) else None
            if remote is None:
                raise
        else:
            return
        raise remote

    return _handle_exception


class Remade:
    """Of an exception that was raised on another worker. Its text and args are what PyTorch gives its own.

    original: the exception itself, as it was there; None where it could not be sent.
    """

    original: BaseException | None = None
    _kind: type = Exception
    _text = ""
    _detail = b""

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> Any:
        return _remade_or_plain, (self._text, self._detail)


def remade(text: str, detail: bytes) -> Exception | None:
    """The exception, of its own type and a RuntimeError, with the text in place of its message.

    PyTorch raises a ValueError or a TypeError as what it is, so those are no RuntimeErrors. None: it cannot be made.
    """
    try:
        kind, error, attributes, notes, causes = pickle.loads(detail)
        made = _made(_unpickled(kind), text, _unpickled(error), _unpickled(attributes))
        made._detail = detail
        made.__cause__ = _cause_from(causes)
        if notes:
            made.__notes__ = list(notes)
        return made
    except Exception:
        return None


def _remade_or_plain(text: str, detail: bytes) -> Exception:
    return remade(text, detail) or RuntimeError(text)


def _made(kind: type[Exception], text: str, original: BaseException | None, attributes: dict[str, Any] | None) -> Any:
    cls = _remade_class(kind)
    made: Any = cls.__new__(cls, *(original.args if original is not None else ()))
    made.__dict__.update(attributes or {})
    made.args = (text,)
    made._text = text
    made.original = original
    return made


@functools.lru_cache(maxsize=256)
def _remade_class(kind: type) -> type:
    if not issubclass(kind, Exception):
        raise TypeError(f"{kind} is no exception")
    raised_as_it_is = issubclass(kind, (RuntimeError, ValueError, TypeError))
    bases = (Remade, kind) if raised_as_it_is else (Remade, kind, RuntimeError)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind)(kind.__name__, bases, {**names, "_kind": kind})


def _cause_from(causes: list[tuple[bytes | None, str, list[str]]]) -> BaseException | None:
    cause = None
    for error, words, notes in reversed(causes):
        outer: Any = _unpickled(error)
        if not isinstance(outer, BaseException):
            outer = RuntimeError(words)
        if notes:
            setattr(outer, _NOTES, list(notes))
        outer.__cause__ = cause
        cause = outer
    return cause


def _unpickled(pickle_: bytes | None) -> Any:
    if pickle_ is None:
        return None
    try:
        return pickle.loads(pickle_)
    except Exception:
        return None
