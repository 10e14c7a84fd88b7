"""All that a run has measured."""

from __future__ import annotations

from torchwire.bench.batch import Batch, Summary, summarize
from torchwire.bench.case import Case
from torchwire.bench.contestant import REFERENCE, Contestant


class Record:
    """Batches by case, contestant and round; and what went wrong. Not thread-safe."""

    def __init__(self) -> None:
        self.batches: dict[Case, dict[str, dict[int, Batch]]] = {}
        self.absent: dict[str, str] = {}  # contestants that were not measured, and why
        self.errors: list[tuple[str, str]] = []  # contestants that failed, and how
        self.contestants: list[Contestant] = []  # that are to be measured
        self.is_interrupted = False

    def leave_out(self, contestant: Contestant, reason: str) -> None:
        self.absent[contestant.name] = reason

    def fail(self, contestant: Contestant, error: str) -> None:
        if (contestant.name, error) not in self.errors:  # it may fail in the same way in each stage
            self.errors.append((contestant.name, error))

    def add(self, case: Case, contestant: Contestant, number: int, batch: Batch) -> None:
        """The batch of a round."""
        self.batches.setdefault(case, {}).setdefault(contestant.name, {})[number] = batch

    def workloads(self) -> list[str]:
        """Of which something was measured, in the order in which that began."""
        return list(dict.fromkeys(case.workload for case in self.batches))

    def cases(self, workload: str) -> list[Case]:
        return [case for case in self.batches if case.workload == workload]

    def summaries(self, case: Case) -> dict[str, Summary]:
        """By contestant."""
        batches = self.batches[case]
        return {name: summarize(mine, batches.get(REFERENCE)) for name, mine in batches.items()}
