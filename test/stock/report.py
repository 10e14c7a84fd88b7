"""The report of a run: failures with their output, the CSV file, the summary, the exit status."""

from collections import Counter, defaultdict

import device_needs
import table
import tripwire
from case import DEVIATION, FAILED, FLAKY, PASSED, SKIPPED, UNEXPECTED_PASS

MAX_FLAKY = 3
TAIL_LINES = 60
MAX_CALLERS = 5
HEADER = ["suite", "test", "result", "seconds", "attempts", "skipped_because"]


class Report:
    """Of cases that all have at least one attempt. Not thread-safe."""

    def __init__(self, cases, devices):
        """`devices`: how many CUDA devices there are."""
        self._cases = cases
        self._devices = devices
        self._count = Counter(case.outcome for case in cases)

    @property
    def _too_flaky(self):
        return self._count[FLAKY] > MAX_FLAKY

    @property
    def _failed(self):
        flaky = self._count[FLAKY] if self._too_flaky else 0
        return self._count[FAILED] + self._count[UNEXPECTED_PASS] + flaky

    @property
    def _tripped(self):
        """The cases that called what they should not have, unless that is excused."""
        excused = {(row["suite"], row["test"]) for row in table.read("tripwire_excuses.csv")}
        return [case for case in self._cases if case.trips and (case.suite, case.test) not in excused]

    @property
    def status(self):
        return 1 if self._failed or self._tripped else 0

    def write(self, path):
        table.write(path, HEADER, [_row(case) for case in self._cases])

    def print(self):
        for case in self._with(FAILED):
            _print_failure(case)
        for case in self._with(FLAKY):
            _print_failure(case)
            print(f"flaky: {case.name} passed at attempt {len(case.attempts)}")
        for case in self._with(UNEXPECTED_PASS):
            print(f"{case.name} passed, but deviations.csv lists it: {case.deviation}")
        self._print_trips()
        self._print_summary()

    def _with(self, outcome):
        return [case for case in self._cases if case.outcome == outcome]

    def _wanting(self):
        """How many tests were skipped for want of devices, by the number of devices that they need."""
        numbers = (device_needs.wanted(case.attempts[-1].detail) for case in self._with(SKIPPED))
        return Counter(number for number in numbers if number is not None)

    def _print_trips(self):
        if not self._tripped:
            return
        callers = defaultdict(list)
        for case in self._tripped:
            for symbol in case.trips:
                callers[symbol].append(case.name)
        count = len(self._tripped)
        print(f"==== {count} tests called functions of libtorch that they should not call ====")
        for symbol, names in sorted(callers.items()):
            more = f" and {len(names) - MAX_CALLERS} more" if len(names) > MAX_CALLERS else ""
            print(f"{tripwire.readable(symbol)}: by {', '.join(names[:MAX_CALLERS])}{more}")

    def _print_summary(self):
        if self._count[DEVIATION]:
            print(f"{self._count[DEVIATION]} failed as deviations.csv says")
        if wanting := self._wanting():
            needs = ", ".join(f"{count} need {devices}" for devices, count in sorted(wanting.items()))
            print(
                f"{sum(wanting.values())} skipped for want of CUDA devices, of which {self._devices} are here: {needs}"
            )
        if self._count[FLAKY]:
            remark = f": more than {MAX_FLAKY} count as failed" if self._too_flaky else ""
            print(f"{self._count[FLAKY]} flaky{remark}")
        passed = self._count[PASSED] + (0 if self._too_flaky else self._count[FLAKY])
        print(f"{passed} passed, {self._failed} failed, {self._count[SKIPPED]} skipped", flush=True)


def _row(case):
    seconds = f"{case.attempts[-1].seconds:.1f}"
    reason = case.attempts[-1].detail if case.outcome == SKIPPED else ""
    return [case.suite, case.test, case.outcome, seconds, len(case.attempts), reason]


def _print_failure(case):
    """Shows the last attempt that failed."""
    attempt = next(one for one in reversed(case.attempts) if one.result == FAILED)
    print(f"==== {case.name}: {case.outcome}, {attempt.seconds:.1f} s, end of its output ====")
    print("\n".join(attempt.output.splitlines()[-TAIL_LINES:]))
    print(f"---- {case.name}: why ----")
    print("\n".join(attempt.detail.splitlines()[-TAIL_LINES:]))
