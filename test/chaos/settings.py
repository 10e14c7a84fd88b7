"""What a run does, as the command line or a test says."""

import dataclasses
import os
from typing import Any


@dataclasses.dataclass(frozen=True)
class Settings:
    rounds: int = 10
    first_round: int = 0
    world: int = 4
    seed: int = 0

    # What goes wrong. None of it: then nothing may fail.
    kills: int = 0
    restarts: int = 0  # kills after which the worker comes back; the group is a dynamic one then
    freezes: int = 0
    departures: int = 0  # workers that leave without the others, as a program that ends without rpc.shutdown()
    interrupts: int = 0  # of the main thread of a worker, in a call
    plan: str | None = None  # path of a fault plan

    # The load.
    operations: tuple[str, ...] = ()  # names; empty: see operations.chosen()
    callers: int = 3  # threads of each worker that perform operations
    largest: int = 1 << 20  # bytes of a tensor
    seconds: float = 1.0  # how long a round's load lasts when no fault is left to come

    # The group.
    transports: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    threads: int = 16
    checksums: bool = False
    encryption: bool = False  # within this host, too
    timeout: float = 5.0
    reuse: bool = False  # processes live on from round to round

    # How a round is judged.
    slack: float = 5.0  # on a busy machine, what should have ended may take so much longer
    shutdown_limit: float = 30.0
    output: str = os.curdir  # the folder for the stacks and outputs of what went wrong
    native_stacks: bool = True

    @property
    def faultless(self) -> bool:
        return not (self.kills or self.restarts or self.freezes or self.departures or self.plan)

    @property
    def dynamic(self) -> bool:
        return self.restarts > 0

    @property
    def threads_may_run_out(self) -> bool:
        """Whether functions that wait for other workers could take all threads of a worker."""
        return self.threads < self.world * self.callers

    @property
    def backend(self) -> str:
        return "FAULTY_TORCHWIRE" if self.plan else "TORCHWIRE"

    def options(self) -> dict[str, Any]:
        """Those of init_rpc that differ from the defaults."""
        chosen = {
            "rpc_timeout": self.timeout,
            "num_worker_threads": self.threads,
            "_transports": list(self.transports) or None,
            "_channels": list(self.channels) or None,
            "checksums": self.checksums or None,
            "encryption": self.encryption or None,
        }
        return {name: value for name, value in chosen.items() if value is not None}
