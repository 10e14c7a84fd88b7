"""What `rpc.shutdown()` says of RRefs that are left, while `torch.distributed.rpc.api._ignore_rref_leak` is False.

PyTorch raises a RuntimeError with one line for each fork that is left: "Leaking RRef <id> with fork Id <id>". Here each
line goes on with who holds the fork and where the RRef was made. By the time of the error the peers are gone, so they
are asked before: see graceful_shutdown.
"""

# PyTorch's switch for leaks is private, and the only one.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
import time
from typing import Any

from torch.distributed.rpc import api

from torchwire.current_agent import current_agent
from torchwire.rrefs import rrefs

_PATIENCE = 2.0  # seconds

_LINE = re.compile(r"Leaking RRef (?P<rref>GloballyUniqueId\(.*?\)) with fork Id (?P<fork>GloballyUniqueId\(.*?\))")


class LeakReport:
    """The owners of this worker as they were while the peers could still be asked. Not thread-safe."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[str, Any]] | None = None

    def settle(self) -> None:
        """Waits a while until the owners know of all RRefs of this worker, unless leaks are to be ignored.

        Comes before the workers meet: an owner that has not yet run a creation could not list its RRef in prepare().
        """
        agent = current_agent()
        if agent is None or api._ignore_rref_leak:
            return
        end = time.monotonic() + _PATIENCE
        while agent.rref_counts()["pending_users"] and time.monotonic() < end:
            time.sleep(0.005)

    def prepare(self) -> None:
        """Asks the peers, unless that has been done or leaks are to be ignored."""
        if self._owners is None and not api._ignore_rref_leak:
            self._owners = {rref["id"]: rref for rref in rrefs() if rref["role"] == "owner"}

    def explain(self, error: RuntimeError) -> RuntimeError:
        """The error with more in it, if it is PyTorch's about leaks; else itself."""
        leaks = list(_LINE.finditer(str(error)))
        if not leaks or self._owners is None:
            return error
        lines = [f"{leak[0]}: {self._described(leak['rref'], leak['fork'])}" for leak in leaks]
        return RuntimeError("\n".join([*lines, _REMEDY]))

    def _described(self, rref: str, fork: str) -> str:
        known = (self._owners or {}).get(rref)
        if known is None:
            return "its owner heard of it too late to ask who holds it"
        holder = known["forks"].get(fork)
        site = known["creation_site"]
        return (
            f"{f'held by worker {holder!r}' if holder else 'its holder is not known (on its way, or no answer)'}, "
            f"{f'created at {site}' if site else 'creation site not recorded'}, {known['age']:.1f} s old"
        )


_REMEDY = (
    "These RRefs were still held when rpc.shutdown() ended. Drop them before, on the workers named. "
    "TorchwireRpcBackendOptions(record_creation_site=True) on all workers records where each was made."
)
