"""Who is measured when: stages of groups of one size, rounds within them, and turns within these."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from torchwire.bench.contestant import Contestant
from torchwire.bench.group import Group, GroupError, WorkerGroup
from torchwire.bench.raw_pipe import PipeGroup
from torchwire.bench.record import Record
from torchwire.bench.sampling import Pace
from torchwire.bench.step import Scope, Step

Progress = Callable[[str], None]  # is told of each turn when it is over


class Schedule:
    """Steps, and the contestants that do them. Used once."""

    def __init__(
        self,
        steps: Sequence[Step],
        contestants: Sequence[Contestant],
        scope: Scope,
        record: Record,
        make_group: Callable[[Contestant, int], Group] | None = None,
    ) -> None:
        """`make_group` is given a contestant and the number of workers."""
        self._steps = steps
        self._contestants = contestants
        self._scope = scope
        self._record = record
        self._make_group = make_group or group_of

    def turns(self) -> int:
        """How many there are if nothing fails."""
        return sum(self._rounds(step) * len(self._able([step])) for step in self._steps)

    def run(self, progress: Progress) -> None:
        """Measures all. A contestant that fails is left out of the rest of its stage."""
        for fresh, size in dict.fromkeys((step.is_fresh, step.size) for step in self._steps):
            steps = [step for step in self._steps if (step.is_fresh, step.size) == (fresh, size)]
            (self._run_fresh if fresh else self._run_stage)(steps, size, progress)

    def _run_stage(self, steps: Sequence[Step], size: int, progress: Progress) -> None:
        """All groups are there at the same time, and stopped while it is not their turn."""
        groups: list[Group] = []
        try:
            for contestant in self._able(steps):
                groups.append(self._make_group(contestant, size))
                if not self._try(groups[-1], _start):
                    groups.pop()
            for number, step, group in self._turns_of(steps, groups):
                if not self._try(group, lambda one: self._turn(one, step, number)):
                    groups.remove(group)
                progress(f"{step.cases[0].workload}: {step.cases[0].name}")
            for group in list(groups):
                self._try(group, _close)
        finally:
            for group in groups:
                group.kill()

    def _turns_of(self, steps: Sequence[Step], groups: list[Group]) -> Iterator[tuple[int, Step, Group]]:
        """Each round begins with another group. Leaves out those that are taken from `groups` meanwhile."""
        order = list(groups)
        for number in range(self._scope.rounds):
            for step in steps:
                for group in order:
                    if group in groups and number < self._rounds(step) and step.needs in group.contestant.offers:
                        yield number, step, group
            order = order[1:] + order[:1]

    def _run_fresh(self, steps: Sequence[Step], size: int, progress: Progress) -> None:
        """One group at a time."""
        failed: set[str] = set()
        for step in steps:
            for number, contestant in itertools.product(range(self._rounds(step)), self._able([step])):
                if contestant.name not in failed and not self._try(
                    self._make_group(contestant, size), lambda group: self._fresh_turn(group, step, number)
                ):
                    failed.add(contestant.name)
                progress(f"{step.cases[0].workload}: {step.cases[0].name}")

    def _turn(self, group: Group, step: Step, number: int) -> None:
        with group.running():
            self._measure(group, step, number)

    def _fresh_turn(self, group: Group, step: Step, number: int) -> None:
        try:
            self._measure(group, step, number)
        finally:
            group.kill()

    def _measure(self, group: Group, step: Step, number: int) -> None:
        batches = step.run(group, Pace(self._scope.seconds, pids=group.pids()))
        for case, batch in zip(step.cases, batches, strict=True):
            self._record.add(case, group.contestant, number, batch)

    def _try(self, group: Group, action: Callable[[Group], None]) -> bool:
        """Whether the group did it. One that did not is killed, and its contestant has failed."""
        try:
            action(group)
            return True
        except (GroupError, OSError) as error:
            group.kill()
            self._record.fail(group.contestant, str(error))
            return False

    def _able(self, steps: Sequence[Step]) -> list[Contestant]:
        needs = {step.needs for step in steps}
        return [contestant for contestant in self._contestants if needs & contestant.offers]

    def _rounds(self, step: Step) -> int:
        return min(self._scope.rounds, step.most_rounds)


def group_of(contestant: Contestant, size: int) -> Group:
    return (WorkerGroup if contestant.member else PipeGroup)(contestant, size)


def _start(group: Group) -> None:
    group.start()
    with group.running():
        pass


def _close(group: Group) -> None:
    with group.running():
        group.close()
