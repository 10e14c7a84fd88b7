"""What is measured, and what it comes to. Everything measured is a cost: less is better."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Batch(NamedTuple):
    """What one turn of a group has cost."""

    samples: list[float]  # in the unit of the case: nanoseconds, or a share of a core, threads, files, bytes
    cpu: float | None = None  # nanoseconds per call that all processes of the group used together

    def median(self) -> float:
        return statistics.median(self.samples)


class Summary(NamedTuple):
    """What all batches of a contestant in a case come to, in the unit of the case."""

    p50: float
    p99: float
    best: float  # the median of the quietest round
    cpu: float | None  # nanoseconds per call, the median of the rounds
    ratio: float | None  # to the reference: below 1 is better; None without a reference
    samples: int


def summarize(batches: Mapping[int, Batch], reference: Mapping[int, Batch] | None) -> Summary:
    """Sums up a contestant's batches, by round, beside the reference's in the same case."""
    samples = sorted(sample for batch in batches.values() for sample in batch.samples)
    cpus = [batch.cpu for batch in batches.values() if batch.cpu is not None]
    return Summary(
        p50=statistics.median(samples),
        p99=percentile(samples, 99),
        best=min(batch.median() for batch in batches.values()),
        cpu=statistics.median(cpus) if cpus else None,
        ratio=ratio(batches, reference) if reference is not None else None,
        samples=len(samples),
    )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest sample that is not below `percent` percent of all; `ordered` begins with the smallest."""
    return ordered[max(-(-len(ordered) * percent // 100) - 1, 0)]


def ratio(mine: Mapping[int, Batch], theirs: Mapping[int, Batch]) -> float | None:
    """The median of each common round's ratio of medians; None where there is nothing to divide by."""
    rounds = [
        mine[number].median() / theirs[number].median()
        for number in mine.keys() & theirs.keys()
        if theirs[number].median() > 0
    ]
    return statistics.median(rounds) if rounds else None
