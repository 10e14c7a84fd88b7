"""What a Python function raises on another worker keeps its type, and what else can be sent of it.

PyTorch sends a type and a text, and raises a RuntimeError at the caller unless the type is ValueError or TypeError, or
the error comes from an RRef. Here the exception itself travels too, in parts of which each may be missing: what cannot
be pickled is left out by the callee, and what cannot be unpickled by the caller. So nothing can fail that does not fail
with PyTorch. The type is such a part: of an exception whose class cannot be found at the caller the text remains.

A SystemExit, a KeyboardInterrupt and what else is no Exception would end the caller. It arrives as a RuntimeError.

Two functions of PyTorch's are replaced once, when torchwire is imported and before libtorch looks them up. On other
backends they do what they always did.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import builtins
import contextlib
import copyreg
import functools
import pickle
import sys
import traceback
from collections.abc import Iterable
from types import BuiltinFunctionType
from typing import Any, cast

from torch.distributed.rpc import internal

from torchwire import pickling
from torchwire.interrupts import is_interrupt
from torchwire.pickling import runs_torchwire, words_of
from torchwire.printable import encodable, text_of
from torchwire.replaced import INTERNAL, for_good

# An exception may hold whatever the function had at hand. What is larger stays where it is.
_MOST_BYTES = 1 << 20

_MOST_CAUSES = 16
_NOTES = "__notes__"  # which exceptions have only from Python 3.11 on
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # which there is only from Python 3.11 on


class DetailedRemoteException(internal.RemoteException):
    """PyTorch's RemoteException, and bytes from which remade() makes an exception."""

    __module__ = internal.__name__  # by these libtorch tells one
    __qualname__ = internal.RemoteException.__qualname__

    detail: bytes

    def __reduce__(self) -> Any:
        kind = cast("Any", self).exception_type
        if isinstance(kind, _Missing):  # it has come from another worker, and goes on
            return _received, (self.msg, kind.name, kind.pickle, self.detail)
        return _received, (self.msg, _name_of(kind), _pickled(kind), self.detail)


class _Missing:
    """In the place of an exception's type that cannot be found here: makes an exception of a text."""

    def __init__(self, name: str, pickle_: bytes | None, reason: str) -> None:
        self.name = name
        self.pickle = pickle_
        self._reason = reason

    def __call__(self, text: str) -> RuntimeError:
        return RuntimeError(f"{self.name} was raised, {self._reason}. {text}")


def _with_detail(message: str, kind: Any, detail: bytes) -> DetailedRemoteException:
    result = DetailedRemoteException(message, kind)
    result.detail = detail
    return result


def _received(message: str, name: str, kind: bytes | None, detail: bytes) -> DetailedRemoteException:
    return _with_detail(message, _found(name, kind), detail)


def _found(name: str, pickle_: bytes | None) -> Any:
    if pickle_ is None:
        return _Missing(name, None, "a class that cannot be sent: it is not found under that name where it was raised")
    try:
        kind = pickling.loads(pickle_)
    except BaseException as error:
        _pass_on(error)
        return _Missing(
            name,
            pickle_,
            f"a class that cannot be imported here ({error}): define it in a module that both workers can import",
        )
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return _Missing(name, pickle_, "which is no Exception here")
    return kind


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _pass_on(error: BaseException) -> None:
    """Raises the error if it comes from a signal, and not from what is being unpickled."""
    if is_interrupt(error):
        try:
            raise error
        finally:
            del error  # whose traceback has this frame


def install() -> None:
    """Replaces the functions. Not thread-safe."""
    for_good(f"{INTERNAL}._run_function", lambda _: _run_function)
    for_good(f"{INTERNAL}._handle_exception", _raising_with_detail)


# ---- the callee ----


def _run_function(python_udf: Any) -> Any:
    # As PyTorch's, which keeps the exception to itself, and lets what is no Exception through.
    try:
        if isinstance(python_udf, AttributeError):
            errors: list[BaseException] = [python_udf]
            python_udf = None
            raise_only(errors)
        return python_udf.func(*python_udf.args, **python_udf.kwargs)
    except BaseException as error:
        is_ours = runs_torchwire()
        if not is_ours and not isinstance(error, Exception):
            raise
        text = f"On {internal._get_current_rpc_agent().get_worker_info()}:\n{words_of(error)}\n{_stack(error)}"
        _show(text, waits=not is_ours)
        if not is_ours:
            return internal.RemoteException(text, _kind_of(error))
        _count_error()
        try:
            detail = detail_of(error)
        except BaseException:  # of the exception's own methods
            detail = b""
        return _with_detail(text, _kind_of(error), detail)


def raise_only(errors: list[BaseException]) -> Any:
    """The function of a call whose own function cannot be called: raises why, the one error in the list.

    The list is empty then: the error's traceback has frames that hold the call, so the call must not hold the error.
    """
    raise errors.pop()


def _show(text: str, waits: bool) -> None:
    """On standard error, as PyTorch does; if it need not wait, without waiting for what reads the process's own."""
    from torchwire._C import write_error  # which is loaded after this module

    if not waits and _is_the_processs(sys.stderr):
        write_error(encodable(f"{text}\n"))
        return
    with contextlib.suppress(OSError, ValueError):  # it may be closed
        print(text, file=sys.stderr)


def _is_the_processs(file: Any) -> bool:
    try:
        return file.fileno() == 2
    except (AttributeError, OSError, ValueError):  # none, one of the program's own, or a closed one
        return False


def _stack(error: BaseException) -> str:
    try:
        return traceback.format_exc()
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__))


def _count_error() -> None:
    from torchwire._C import count_error  # which is loaded after this module

    count_error()


def _kind_of(error: BaseException) -> type[Exception]:
    # What has come from another worker is of a class made here, which nobody else could find by its name.
    if isinstance(error, Remade):
        return error._kind
    return type(error) if isinstance(error, Exception) else RuntimeError


def detail_of(error: BaseException) -> bytes:
    """What remade() makes an exception from."""
    # The attributes apart: what takes other arguments than its args to be made can be pickled, but not unpickled.
    attributes = _attributes_of(error)
    pickled = _pickled(attributes) if attributes else None
    parts = _pickled(_kind_of(error)), _pickled(error), pickled, _notes_of(error), _causes_of(error)
    return pickle.dumps(parts)


def _attributes_of(error: BaseException) -> dict[str, Any]:
    own = Remade.__annotations__ if isinstance(error, Remade) else ()  # which grow from worker to worker
    attributes = {name: value for name, value in error.__dict__.items() if name not in own}
    slots = {name: getattr(error, name) for name in _slots_of(type(error)) if hasattr(error, name)}
    return {**attributes, **slots}


def _slots_of(kind: type) -> list[str]:
    return cast("Any", copyreg)._slotnames(kind)


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


def _pickled(value: object) -> bytes | None:
    return pickling.dumps(value, _MOST_BYTES)


# ---- the caller ----


def _raising_with_detail(original: Any) -> Any:
    def as_pytorch(result: Any) -> None:
        is_detailed = isinstance(result, DetailedRemoteException)
        message, kind = cast("tuple[str, Any]", result) if is_detailed else ("", None)
        try:
            original(internal.RemoteException(_escaped(message), _maker(kind)) if is_detailed else result)
        except BaseException as error:
            if error.__cause__ is not None and is_interrupt(error.__cause__):
                raise error.__cause__ from None  # which PyTorch takes for the constructor's
            if is_interrupt(error):
                raise
            error.with_traceback(None)  # PyTorch's frame in it holds the error, and so the caller's RRefs
            raise error  # with this frame alone, as a bare raise is not on Python 3.10

    @functools.wraps(as_pytorch)
    def _handle_exception(result: Any) -> None:
        try:
            as_pytorch(result)
        except Exception as error:
            if is_interrupt(error):
                raise
            remote = remade(str(error), result.detail) if isinstance(result, DetailedRemoteException) else None
            raised = error if remote is None else remote  # whose class may have a __bool__
        else:
            return
        try:
            raise raised
        finally:
            del raised, remote  # or the frame would hold the exception, and that the caller's RRefs

    return _handle_exception


def _maker(kind: Any) -> Any:
    """What makes an exception of a text as the type does.

    Where the constructor raises, so does this: PyTorch has a sentence for it, which its own tests expect.
    """
    if isinstance(kind, _Missing):
        return kind

    def made(text: str) -> Exception:
        try:
            error = kind(text)
        except BaseException as refusal:
            if is_interrupt(refusal):
                raise
            raise RuntimeError(text_of(refusal)) from refusal
        try:
            str(error)  # or it would fail where somebody reads the text
            is_of_kind = isinstance(error, kind)
        except Exception as failure:
            if is_interrupt(failure):
                raise
            is_of_kind = False
        return error if is_of_kind else _made(kind, text, None, None)

    return made


def _escaped(text: str) -> str:
    """What PyTorch, which takes a text's backslashes for escapes and its bytes for Latin-1, makes the text of again."""
    try:
        readable = text.encode("ascii").decode("unicode_escape")
    except UnicodeError:
        readable = encodable(text)
    return readable.encode("unicode_escape").decode("ascii")


class Remade:
    """Of an exception that was raised on another worker. Its text and args are what PyTorch gives its own.

    original: the exception itself, as it was there; None where it could not be sent.
    """

    original: BaseException | None = None
    _kind: type[Exception] = Exception
    _text: str = ""
    _detail: bytes = b""

    def __init_subclass__(cls, **_: Any) -> None:
        """In the place of the type's own, which may take arguments, or keep a list of subclasses."""

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> Any:
        return _remade_or_plain, (self._text, self._detail)

    def __reduce_ex__(self, _: Any) -> Any:
        """In the place of the type's own, which pickle would ask first."""
        return self.__reduce__()


def remade(text: str, detail: bytes) -> Exception | None:
    """The exception, of its own type and a RuntimeError, with the text in place of its message.

    PyTorch raises a ValueError or a TypeError as what it is, so those are no RuntimeErrors. One whose type cannot be
    found here is a RuntimeError alone. None: it cannot be made.
    """
    try:
        kind_pickle, error, attributes, notes, causes = pickle.loads(detail)
        kind = _unpickled(kind_pickle)
        made = _made(RuntimeError if kind is None else kind, text, _unpickled(error), _unpickled(attributes))
        _set(made, _detail=detail, __cause__=_cause_from(causes))
        if notes:
            _set(made, __notes__=list(notes))
        return made
    except BaseException as error:
        _pass_on(error)
        return None


def _remade_or_plain(text: str, detail: bytes) -> Exception:
    made = remade(text, detail)
    return RuntimeError(text) if made is None else made


def _made(kind: type[Exception], text: str, original: Any, attributes: dict[str, Any] | None) -> Any:
    cls = _remade_class(kind)
    made = _builtin_new(kind)(cls, *_arguments(kind, text, original))
    slots = _slots_of(kind)
    for name, value in (attributes or {}).items():
        if name in slots:
            _set(made, **{name: value})
        else:
            made.__dict__[name] = value
    _set(made, args=(text,), _text=text, original=original if isinstance(original, BaseException) else None)
    return made


def _set(error: BaseException, /, **attributes: Any) -> None:
    for name, value in attributes.items():
        BaseException.__setattr__(error, name, value)  # as a frozen dataclass, say, refuses to


def _builtin_new(kind: type) -> Any:
    """The __new__ that is written in C: one of the program's may take any arguments, and is not to run again."""
    news = (cls.__dict__.get("__new__") for cls in kind.__mro__)
    return next(new for new in news if isinstance(new, BuiltinFunctionType))


def _arguments(kind: type, text: str, original: Any) -> tuple[Any, ...]:
    if issubclass(kind, _GROUP):
        is_group = isinstance(original, _GROUP)
        return (original.message, original.exceptions) if is_group else (text, [RuntimeError(text)])
    while isinstance(original, Remade):  # it has passed through other workers
        original = original.original
    return original.args if isinstance(original, BaseException) else ()


@functools.lru_cache(maxsize=256)
def _remade_class(kind: type) -> type:
    if not issubclass(kind, Exception):
        raise TypeError(f"{kind} is no exception")
    raised_as_it_is = issubclass(kind, (RuntimeError, ValueError, TypeError))
    bases = (Remade, kind) if raised_as_it_is else (Remade, kind, RuntimeError)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    parts = kind.__name__, bases, {**names, "_kind": kind}
    try:
        return type(kind)(*parts)
    except Exception:  # a metaclass of the program's may take other arguments
        return type.__new__(type(kind), *parts)


def _cause_from(causes: list[tuple[bytes | None, str, list[str]]]) -> BaseException | None:
    cause = None
    for error, words, notes in reversed(causes):
        outer: Any = _unpickled(error)
        if not isinstance(outer, BaseException):
            outer = RuntimeError(words)
        if notes:
            _set(outer, __notes__=list(notes))
        _set(outer, __cause__=cause)
        cause = outer
    return cause


def _unpickled(pickle_: bytes | None) -> Any:
    if pickle_ is None:
        return None
    try:
        return pickling.loads(pickle_)
    except BaseException as error:
        _pass_on(error)
        return None
