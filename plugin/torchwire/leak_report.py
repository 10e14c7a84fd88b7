"""What `rpc.shutdown()` says of RRefs that are left, while `torch.distributed.rpc.api._ignore_rref_leak` is False.

PyTorch raises a RuntimeError with one line for each fork that is left: "Leaking RRef <id> with fork Id <id>". Here each
line goes on with who holds the fork and where the RRef was made. By the time of the error the peers are gone, so they
are asked before: see graceful_shutdown.
"""

from __future__ import annotations

import re
from typing import Any

from torch.distributed.rpc import api

from torchwire.rrefs import rrefs

_LINE = re.compile(r"Leaking RRef (?P<rref>GloballyUniqueId\(.*?\)) with fork Id (?P<fork>GloballyUniqueId\(.*?\))")


class LeakReport:
    """The owners of this worker as they were while the peers could still be asked. Not thread-safe."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[str, Any]] | None = None

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
            return "it was made during the shutdown"
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
