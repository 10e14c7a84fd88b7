"""A running group as one sees it who is no member of it: its list of workers is in the rendezvous store."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torchwire import _C
from torchwire.doctor.reachability import Place, problem_with
from torchwire.observe import remote_worker
from torchwire.rendezvous import reason_of, within
from torchwire.torch_parts import TCPStore

_LIMIT = 6.0  # seconds for the store to answer
# For PyTorch's client, which keeps to it in most cases. Less, so that no thread of it returns while Python ends.
_CLIENT_LIMIT = 3.0
_LISTENER = "the store (as a rule the worker with rank 0)"

# All keys of a group begin alike (docs/protocol.md). With a number where others have ended before in its place.
_ROSTER = re.compile(r"(?P<prefix>.*)torchwire/((?P<generation>\d+)/)?roster")

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class RemoteWorker:
    """A worker as the group's list has it."""

    name: str
    rank: int
    address: str
    death: str  # why the group takes it for dead; empty: it does not
    encrypts: bool = True  # whether it lets connections be encrypted


class _StoreSilentError(RuntimeError):
    """The store has not answered."""


class RemoteGroup:
    """The group of the TCP store at `place`; of several that have met there the last. Not thread-safe, but for ask().

    A store that once has not answered is not asked any more: the workers go on without it, and so does this with those
    that it knows.
    """

    def __init__(self, place: Place, secrets: Callable[[], Sequence[bytes]] = tuple) -> None:
        """`secrets` gives those that its secret is among (none: it has drawn one), again when that has been changed.

        Raises RuntimeError when there is no such group, or none of these is its secret.
        """
        secrets()  # a file that cannot be read is found before anybody is asked
        self._place = place
        self._secrets = secrets
        self._workers: list[RemoteWorker] = []
        self.store_problem = ""  # why the list may be old
        self._is_silent = False
        problem = problem_with(place, _LISTENER)
        if problem is not None:
            raise RuntimeError(f"{problem.found}; {problem.remedy}")
        self._store, keys = self._asking_store(lambda: _connect(place))
        self._prefix, self._roster, self._credentials = _keys_of_group(place, keys)
        self._access = self._open()
        self._is_refused = False  # by a worker, since
        self._deaths = f"{self._roster.removesuffix('roster')}deaths/{self._access.group_id}"
        self._read_workers()

    def workers(self) -> list[RemoteWorker]:
        """Those on the list now, by rank."""
        if not self._is_silent:
            try:
                self._read_workers()
                self.store_problem = ""
            except RuntimeError as error:  # also while the group has another secret than the observer's file
                self._is_silent = isinstance(error, _StoreSilentError)
                self.store_problem = str(error)
        return self._workers

    def ask(self, worker: RemoteWorker, question: str, patience: float) -> Any:
        """What the worker answers. Raises RuntimeError, with words that its name can stand before."""
        if worker.death:
            raise RuntimeError(f"is dead: {worker.death}")
        try:
            return remote_worker.ask(self._access, worker.address, question, patience, encrypts=worker.encrypts)
        except remote_worker.NotLetInError:
            self._is_refused = True  # the group may have changed its secret
            raise

    def _open(self) -> _C.GroupAccess:
        return _C.GroupAccess(self._asking_store(lambda: self._store.get(self._credentials)), self._secrets())

    def _read_workers(self) -> None:
        roster, deaths = self._asking_store(lambda: _read(self._store, self._roster, self._deaths))
        try:
            if self._is_refused:
                self._access = self._open()
                self._is_refused = False
            self._workers = self._listed(roster, deaths)
        except RuntimeError:  # they were written with another secret
            self._access = self._open()
            self._workers = self._listed(roster, deaths)

    def _listed(self, roster: bytes, deaths: bytes) -> list[RemoteWorker]:
        told = self._access.read_deaths(self._own_name(self._deaths), deaths) if deaths else []
        dead = {(rank, incarnation): reason for rank, incarnation, reason in told}
        listed = self._access.read_roster(self._own_name(self._roster), roster)
        return [
            RemoteWorker(
                each["name"],
                each["id"],
                each["address"],
                dead.get((each["id"], each["incarnation"]), ""),
                each["encrypts"],
            )
            for each in sorted(listed, key=lambda each: each["id"])
        ]

    def _own_name(self, key: str) -> str:
        """As the workers name it, for the proof of what it holds."""
        return key.removeprefix(self._prefix)

    def _asking_store(self, ask: Callable[[], _Result]) -> _Result:
        try:
            return within(_LIMIT, ask)
        except (RuntimeError, TimeoutError) as error:
            raise _StoreSilentError(
                f"{self._place} does not answer as a store: {reason_of(error)}; look whether it is {_LISTENER} that "
                "has this port, and whether it is stopped"
            ) from None


def _connect(place: Place) -> tuple[TCPStore, list[str]]:
    timeout = datetime.timedelta(seconds=_CLIENT_LIMIT)
    store = TCPStore(place.host, place.port, is_master=False, wait_for_workers=False, timeout=timeout)
    return store, store.list_keys()


def _read(store: TCPStore, roster: str, deaths: str) -> tuple[bytes, bytes]:
    return store.get(roster), store.get(deaths) if store.check([deaths]) else b""


def _keys_of_group(place: Place, keys: Iterable[str]) -> tuple[str, str, str]:
    """What PyTorch puts before them, and those of the roster and of the credentials.

    Raises RuntimeError where there is no group.
    """
    found = [match for key in keys if (match := _ROSTER.fullmatch(key))]
    if not found:
        raise RuntimeError(
            f"the store at {place} holds no group of torchwire's: name the store of init_method (or MASTER_ADDR and "
            "MASTER_PORT) with which the workers called init_rpc, once they have"
        )
    last = max(found, key=lambda match: (_with_numbers(match["prefix"]), int(match["generation"] or 0)))
    return last["prefix"], last[0], f"{last['prefix']}torchwire/credentials"


def _with_numbers(prefix: str) -> list[tuple[int, str]]:
    """Sorts rpc_prefix_10 behind rpc_prefix_9."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", prefix)]
