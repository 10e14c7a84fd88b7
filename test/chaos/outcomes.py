"""What a round has shown, and what a run has."""

import collections
import dataclasses
import re

# Kinds of violations.
LOST = "survivor lost"
HUNG = "survivor hung"
LATE = "operation late"
WRONG = "wrong data"
ERROR = "error"  # where nothing was made to fail, or of a kind that no fault explains
CUT_OFF = "survivor cut off"
LEFT_OVER = "left over"
GROWTH = "memory grows"
SHUTDOWN = "shutdown failed"


@dataclasses.dataclass
class Violation:
    kind: str
    worker: str
    text: str

    def __str__(self):
        return f"{self.kind}: {self.worker}: {self.text}"


@dataclasses.dataclass
class Outcome:
    """Of one round."""

    label: str
    violations: list[Violation] = dataclasses.field(default_factory=list)
    done: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # operations, by name
    failed: int = 0  # operations
    errors: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # that faults explain, by text
    faults: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # by kind
    shutdowns: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # by outcome
    memory: list[int] = dataclasses.field(default_factory=list)  # of all workers, over a long load: bytes
    files: list[str] = dataclasses.field(default_factory=list)  # that tell more about the violations
    seconds: float = 0.0

    def violate(self, kind, worker, text):
        self.violations.append(Violation(kind, worker, text))

    def kinds(self):
        return {violation.kind for violation in self.violations}

    def add(self, record):
        """Of a worker's load."""
        self.done += record.done
        self.failed += record.failed
        self.errors.update(without_particulars(failure.error) for failure in record.refused)

    def __str__(self):
        line = (
            f"{self.label}: {self.done.total()} operations done, {self.failed} failed; "
            f"{counts(self.faults)}; shutdown {counts(self.shutdowns)}; {self.seconds:.1f} s"
        )
        memory = [f"  memory: {', '.join(f'{bytes_ >> 20}' for bytes_ in self.memory)} MiB"] if self.memory else []
        violations = [f"  VIOLATION {violation}" for violation in self.violations]
        return "\n".join([line, *memory, *violations, *(f"  see {path}" for path in self.files)])


class Total:
    """Of all rounds."""

    def __init__(self):
        self._sum = Outcome("all")
        self._rounds = 0
        self._violations = collections.Counter()

    def add(self, outcome):
        self._rounds += 1
        self._violations.update(violation.kind for violation in outcome.violations)
        total = self._sum
        total.failed += outcome.failed
        total.seconds += outcome.seconds
        for name in ("done", "errors", "faults", "shutdowns"):
            getattr(total, name).update(getattr(outcome, name))

    @property
    def failed(self):
        return bool(self._violations)

    def __str__(self):
        total = self._sum
        rate = 60 * self._rounds / total.seconds if total.seconds else 0
        violations = counts(self._violations) if self._violations else "none"
        errors = [f"  {count:6} {text}" for text, count in total.errors.most_common(12)]
        return "\n".join(
            [
                *(["errors that operations ended with:", *errors] if errors else []),
                f"operations: {counts(total.done)}",
                f"{self._rounds} rounds, {rate:.0f} a minute; {total.done.total()} operations done, "
                f"{total.failed} failed; {counts(total.faults)}; shutdown {counts(total.shutdowns)}",
                f"violations: {violations}",
            ]
        )


def counts(counter):
    return ", ".join(f"{key} {number}" for key, number in counter.most_common()) or "none"


def without_particulars(text):
    """The text of an error without what differs from one time to the next, so that equal ones can be counted."""
    text = text.split("\n")[0] if not text.startswith("RuntimeError: On WorkerInfo") else " ".join(text.split("\n")[:2])
    return re.sub(r"0x[0-9a-f]+|\d[\d.:]*", "#", text)[:160]
