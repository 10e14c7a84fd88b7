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
    """One run of a test. `output` is what its processes wrote."""

    result: str
    seconds: float
    detail: str = ""
    output: str = ""


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
    def verdict(self):
        last = self.attempts[-1].result
        if last == SKIPPED:
            return SKIPPED
        if self.deviation is not None:
            return DEVIATION if last == FAILED else UNEXPECTED_PASS
        if last == PASSED and len(self.attempts) > 1:
            return FLAKY
        return last

    @property
    def wants_retry(self):
        return self.verdict == FAILED
