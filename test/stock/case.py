"""A case: one test of the plan with its attempts and what they amount to."""

from dataclasses import dataclass, field

PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"
FLAKY = "flaky"
DEVIATION = "deviation"
UNEXPECTED_PASS = "unexpected-pass"


@dataclass(frozen=True)
class Attempt:
    """One run of a test. `output` is what its processes wrote; `trips` are functions of libtorch that they called and
    should not have (tripwire.py)."""

    result: str
    seconds: float
    detail: str = ""
    output: str = ""
    trips: tuple[str, ...] = ()


@dataclass
class Case:
    """Not thread-safe."""

    suite: str
    test: str
    deviation: str | None = None  # why it is expected to fail
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def name(self):
        return f"{self.suite}.{self.test}"

    @property
    def outcome(self):
        last = self.attempts[-1].result
        if last == SKIPPED:
            return SKIPPED
        if self.deviation is not None:
            return DEVIATION if last == FAILED else UNEXPECTED_PASS
        if last == PASSED and len(self.attempts) > 1:
            return FLAKY
        return last

    @property
    def trips(self):
        """Of all attempts: what is called once in three runs is called."""
        return sorted({trip for attempt in self.attempts for trip in attempt.trips})

    @property
    def wants_retry(self):
        return self.outcome == FAILED
