"""What PyTorch pickles values of Python with, and what becomes of an error in unpickling them, on torchwire.

`torch.distributed.rpc.api._use_rpc_pickler` replaces the pickler of requests alone: PyTorch unpickles them, and pickles
and unpickles results, with its own. Here the pickler that is current in a process serves all four.

An error in unpickling a result is raised: PyTorch returns an AttributeError as if it were the result. Whatever an
object of another worker raises while it is unpickled is an error of that object: it does not end this process, as
SystemExit and KeyboardInterrupt would.

Functions of PyTorch's are replaced once, when torchwire is imported and before libtorch looks them up. On other
backends they do what they always did.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import pickle
import threading
import traceback
from typing import Any

from torch.distributed.rpc import api, internal

from torchwire import bounded_pickle
from torchwire.interrupts import is_interrupt
from torchwire.replaced import INTERNAL, for_good

_OWN = internal._internal_rpc_pickler


class _Tables(threading.local):
    """Of the thread: where PyTorch's pickler keeps the tensors of the value that it is at; None: it is at none.

    In the place of PyTorch's own, which have no such attributes then. PyTorch asks for them with hasattr() whenever it
    pickles or unpickles, and Python makes an exception of each attribute that a threading.local lacks.
    """

    send_tables: list[Any] | None = None
    recv_tables: list[Any] | None = None


_tables = _Tables()

# Of the thread: whether dumps() pickles.
_alone = threading.local()


def install() -> None:
    """Replaces the functions, before the extension is loaded. Not thread-safe."""
    for_good(f"{INTERNAL}.serialize", lambda _: serialize)
    for_good(f"{INTERNAL}.deserialize", lambda _: deserialize)
    for_good(f"{INTERNAL}._thread_local_tensor_tables", _keeping_tables)


def _keeping_tables(original: threading.local) -> threading.local:
    vars(_tables).update(vars(original))  # an import while this thread unpickles
    return _tables


def runs_torchwire() -> bool:
    """Whether this process's agent is one of torchwire's."""
    from torchwire.current_agent import current_agent  # which needs the extension: that is loaded after this module

    return current_agent() is not None


def serialize(value: Any) -> Any:
    """The value as bytes and a list of tensors."""
    outer = _tables.send_tables
    try:
        return _pickler("serialize").serialize(value)
    except BaseException:
        _restore("send_tables", outer)
        raise


def deserialize(binary_data: bytes, tensor_table: list[Any]) -> Any:
    """The reverse. Of a request, but not of a result, an AttributeError is returned, for _run_function to raise."""
    outer = _tables.recv_tables
    try:
        value = _pickler("deserialize").deserialize(binary_data, tensor_table)
    except BaseException as error:
        _restore("recv_tables", outer)
        _raise_instead(error)
        raise
    else:
        if type(value) is AttributeError and value.__cause__ is not None:  # PyTorch's: one that was sent has no cause
            _raise_if_of_a_result(value.__cause__)
            if runs_torchwire():
                traceback.clear_frames(value.__cause__.__traceback__)  # which hold what was read, and the value
        return value
    finally:
        value = None  # an error's traceback leads to this frame


def dumps(value: object, most_bytes: int) -> bytes | None:
    """A pickle of the value alone, without tensors beside it, nor RRefs in it: it may be unpickled several times.

    None: it cannot be pickled, or not in as many bytes. Raises what a handler of a signal raises.
    """
    pickler = _pickler("serialize")
    if pickler is not _OWN:
        _alone.is_pickled = True
        try:
            data, tensors = pickler.serialize(value)
            if not tensors and len(data) <= most_bytes:
                return data
        except BaseException as error:  # of an object's own methods
            if is_interrupt(error):
                raise
        finally:
            _alone.is_pickled = False
    return bounded_pickle.dumps(value, most_bytes)


def expect_rrefs() -> None:
    """Raises PicklingError where this thread pickles a value that must not have RRefs in it."""
    if getattr(_alone, "is_pickled", False):
        raise pickle.PicklingError("an RRef cannot be sent within an exception")


def loads(data: bytes) -> Any:
    """The reverse. Raises what unpickling raises."""
    pickler = _pickler("deserialize")
    if pickler is _OWN:
        return pickle.loads(data)
    value = pickler.deserialize(data, [])
    if type(value) is AttributeError and value.__cause__ is not None:  # as in deserialize()
        try:
            raise value.__cause__
        finally:
            del value  # whose cause's traceback has this frame
    return value


def _pickler(method: str) -> Any:
    pickler = api._default_pickler
    if pickler is _OWN or not hasattr(pickler, method) or not runs_torchwire():
        return _OWN
    return pickler


def _restore(name: str, outer: Any) -> None:
    # Which PyTorch leaves as it is after an error: the tensors would live as long as the thread.
    if outer is not None:
        setattr(_tables, name, outer)
    else:
        vars(_tables).pop(name, None)


# ---- errors ----


def _raise_instead(error: BaseException) -> None:
    """Raises what is to be raised in the place of what unpickling has raised, if it is to be another."""
    if not runs_torchwire():
        return
    if is_interrupt(error):
        return
    worker = _answering_worker()
    if not isinstance(error, Exception):
        what = f"a result of worker {worker!r}" if worker is not None else "what another worker has sent"
        raise RuntimeError(f"{what} cannot be unpickled: an object in it raised {words_of(error)}") from error
    if worker is not None and isinstance(error, ImportError) and type(error) in (ImportError, ModuleNotFoundError):
        raise type(error)(_not_found(worker, error), name=error.name, path=error.path) from error


def _raise_if_of_a_result(error: BaseException) -> None:
    worker = _answering_worker() if runs_torchwire() else None
    if worker is None:
        return
    if str(error).startswith("Can't get"):  # as pickle begins
        raise RuntimeError(_not_found(worker, error)) from error
    try:
        raise error
    finally:
        del error  # whose traceback has this frame


def _not_found(worker: str, error: BaseException) -> str:
    return (
        f"a result of worker {worker!r} is of a class, or refers to a function, that cannot be found here: {error}. "
        "Define it in a module that both workers can import: what a script itself defines belongs to its process's "
        "__main__"
    )


def _answering_worker() -> str | None:
    """The name of the worker whose answer this thread reads; None: it reads none."""
    from torchwire._C import answering_worker
    from torchwire.current_agent import current_agent

    rank, agent = answering_worker(), current_agent()
    if rank is None or agent is None:
        return None
    try:
        return agent.get_worker_info(rank).name
    except RuntimeError:  # it has left
        return f"of rank {rank}"


def words_of(error: BaseException) -> str:
    """Its repr(); that of any object where its own raises."""
    try:
        return repr(error)
    except BaseException as failure:
        if is_interrupt(failure):
            raise
        return object.__repr__(error)
