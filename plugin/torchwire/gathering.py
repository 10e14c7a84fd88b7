"""`_all_gather` and `_barrier` of torch.distributed.rpc.api, in groups whose workers come and go.

PyTorch gathers from the workers that were there when this one joined, and waits for ever for one that has left or died.
Here the present members gather, or those that the program names. All send what they have to a leader, the first by
name, and wait for its answer. Where a worker joins meanwhile, those begin anew that have not named the members; where
one leaves or dies, all that wait for it get an error that names it.

PyTorch's function is replaced once, when torchwire is imported. In a static group, and on any other backend, it does
what it always did; `_barrier` calls it.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import torch
import torch.distributed.rpc as rpc
from torch.distributed.rpc.constants import DEFAULT_SHUTDOWN_TIMEOUT, UNSET_RPC_TIMEOUT
from torch.utils.hooks import RemovableHandle

from torchwire import torch_parts
from torchwire._C import TorchwireAgent
from torchwire.current_agent import current_agent
from torchwire.errors import CallTimedOut, RpcError
from torchwire.replaced import API, for_good
from torchwire.worker_events import on_worker_joined, on_worker_lost

_GONE = ("left", "dead")
_PAUSE = 0.05  # seconds until another look at who is in the group
_PATIENCE = 5.0  # seconds, for what is asked once it is too late

# What the leader answers.
_DONE, _FAILED, _AGAIN = "done", "failed", "again"

_counter = itertools.count()


def install() -> None:
    """Replaces the function. Not thread-safe."""
    for_good(f"{API}._all_gather", _gathering)


def _gathering(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _all_gather(
        obj: Any, worker_names: Iterable[str] | None = None, timeout: float = UNSET_RPC_TIMEOUT
    ) -> dict[str, Any]:
        agent = current_agent()
        if agent is None or agent.is_static_group:
            return original(obj, worker_names, timeout)
        forever = timeout in (UNSET_RPC_TIMEOUT, DEFAULT_SHUTDOWN_TIMEOUT)
        return _gather(agent, obj, sorted(set(worker_names or ())), None if forever else time.monotonic() + timeout)

    return _all_gather


def begin_session() -> None:
    """Forgets what an earlier session's workers had to do with. Called before the agent starts."""
    _Leader.current.close()
    _Leader.current = _Leader()


def _present(agent: TorchwireAgent) -> list[str]:
    gone = {peer["name"] for peer in agent.peers() if peer["state"] in _GONE}
    return sorted({worker.name for worker in agent.get_worker_infos()} - gone)


# ---- each worker ----


def _gather(agent: TorchwireAgent, obj: Any, named: list[str], end: float | None) -> dict[str, Any]:
    me = agent.get_worker_info().name
    if named and me not in named:
        raise RuntimeError(f"_all_gather: worker {me!r} is not one of those that are to gather: {_listed(named)}")
    while True:
        names = named or _present(agent)
        verdict, content = _ask_leader(agent, _Part(me, f"{me}:{next(_counter)}", names, bool(named)), obj, end)
        if verdict == _DONE:
            return content
        if verdict == _FAILED:
            raise RuntimeError(f"_all_gather of workers {_listed(names)} has failed: {content}")
        time.sleep(_PAUSE)


class _Part(NamedTuple):
    """What one worker brings, without the object."""

    worker: str
    token: str  # of this attempt
    names: list[str]
    is_named: bool  # by the program; else they are the present members


def _ask_leader(agent: TorchwireAgent, part: _Part, obj: Any, end: float | None) -> tuple[str, Any]:
    leader = part.names[0]
    timeout = 0.0 if end is None else max(end - time.monotonic(), 0.001)
    try:
        return cast("Any", torch_parts.rpc_async(leader, _contribute, (part, obj), timeout=timeout)).wait()
    except CallTimedOut as error:
        raise RuntimeError(
            f"_all_gather of workers {_listed(part.names)} has timed out: {_missing_at(leader, part)}"
        ) from error
    except RpcError as error:
        raise RuntimeError(
            f"_all_gather of workers {_listed(part.names)} has failed: worker {leader!r}, which gathers what all "
            f"others send, has gone or cannot be reached: {error}"
        ) from error
    except RuntimeError:
        _withdraw_at(leader, part)
        if leader not in _present(agent):  # nothing has been sent
            return (_FAILED, _not_here([leader])) if part.is_named else (_AGAIN, None)
        raise
    except BaseException:
        _withdraw_at(leader, part)
        raise


def _missing_at(leader: str, part: _Part) -> str:
    try:
        missing = torch_parts.rpc_sync(leader, _withdraw, (part,), timeout=_PATIENCE)
    except RuntimeError as error:
        return f"worker {leader!r}, which gathers what all others send, does not answer: {error}"
    return f"nothing has come from {_listed(missing)}"


def _withdraw_at(leader: str, part: _Part) -> None:
    try:
        torch_parts.rpc_async(leader, _withdraw, (part,), timeout=_PATIENCE)
    except RuntimeError:
        pass  # it has gone, and what it knew with it


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


# ---- the leader ----


@torch_parts.async_execution
def _contribute(part: _Part, obj: Any) -> torch.futures.Future[tuple[str, Any]]:
    return _Leader.current.add(part, obj)


def _withdraw(part: _Part) -> list[str]:
    return _Leader.current.withdraw(part)


class _Round:
    """What has come of one gathering."""

    def __init__(self, part: _Part) -> None:
        self.names = part.names
        self.is_named = part.is_named
        self.objects: dict[str, Any] = {}
        self.answers: dict[str, tuple[str, torch.futures.Future[tuple[str, Any]]]] = {}  # with the part's token

    def is_for(self, part: _Part) -> bool:
        return self.names == part.names and self.is_named == part.is_named

    def missing(self) -> list[str]:
        return [name for name in self.names if name not in self.objects]

    def needed(self) -> list[str]:
        """The workers without which it cannot end. One that was named may go once it has sent its part."""
        return self.missing() if self.is_named else self.names

    def end(self, verdict: str, content: Any) -> None:
        for _, answer in self.answers.values():
            answer.set_result((verdict, content))


class _Leader:
    """The rounds that this worker gathers for others, in one session. Thread-safe."""

    current: _Leader

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rounds: list[_Round] = []
        self._events: list[RemovableHandle] = []

    def close(self) -> None:
        for event in self._events:
            event.remove()

    def add(self, part: _Part, obj: Any) -> torch.futures.Future[tuple[str, Any]]:
        agent = current_agent()
        assert agent is not None  # it serves this call
        answer: torch.futures.Future[tuple[str, Any]] = torch.futures.Future(devices=[*agent.devices])
        if not part.is_named and part.names != _present(agent):
            answer.set_result((_AGAIN, None))
            return answer
        complete = self._enter(part, obj, answer)
        if complete is not None:
            complete.end(_DONE, complete.objects)
        else:
            self._look_again()  # a worker may have gone before this one entered
        return answer

    def _enter(self, part: _Part, obj: Any, answer: torch.futures.Future[tuple[str, Any]]) -> _Round | None:
        with self._lock:
            if not self._events:
                self._events += [on_worker_lost(self._lost), on_worker_joined(self._joined)]
            # A worker that is there already waits for an earlier round, on another thread.
            waiting = (each for each in self._rounds if each.is_for(part) and part.worker not in each.objects)
            round_ = next(waiting, None)
            if round_ is None:
                round_ = _Round(part)
                self._rounds.append(round_)
            round_.objects[part.worker] = obj
            round_.answers[part.worker] = part.token, answer
            if round_.missing():
                return None
            self._rounds.remove(round_)
            return round_

    def withdraw(self, part: _Part) -> list[str]:
        """Takes a part back; the names of the workers that had not sent theirs."""
        with self._lock:
            for round_ in self._rounds:
                token, _ = round_.answers.get(part.worker, ("", None))
                if token == part.token:
                    missing = round_.missing()
                    del round_.objects[part.worker], round_.answers[part.worker]
                    if not round_.answers:
                        self._rounds.remove(round_)
                    return missing
        return []

    def _lost(self, worker: rpc.WorkerInfo, error: RpcError) -> None:
        for round_ in self._taken(lambda each: worker.name in each.needed()):
            round_.end(_FAILED, f"worker {worker.name!r} has gone: {error}")

    def _joined(self, _: rpc.WorkerInfo) -> None:
        self._look_again()

    def _look_again(self) -> None:
        agent = current_agent()
        present = [] if agent is None else _present(agent)
        for round_ in self._taken(lambda each: any(name not in present for name in each.needed())):
            round_.end(_FAILED, _not_here([name for name in round_.needed() if name not in present]))
        for round_ in self._taken(lambda each: not each.is_named and not set(present) <= set(each.names)):
            round_.end(_AGAIN, None)

    def _taken(self, wanted: Callable[[_Round], bool]) -> list[_Round]:
        with self._lock:
            taken = [each for each in self._rounds if wanted(each)]
            self._rounds = [each for each in self._rounds if each not in taken]
        return taken


def _not_here(names: list[str]) -> str:
    return f"{_listed(names)} is not in the group: it has left, has died or has not joined yet"


_Leader.current = _Leader()
