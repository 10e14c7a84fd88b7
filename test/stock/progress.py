"""A progress line on stderr: rewritten in place on a terminal, else printed now and then."""

import shutil
import sys
import time

PERIOD = 30


class Progress:
    """Not thread-safe."""

    def __init__(self, total):
        self._total = total
        self._done = 0
        self._failed = 0
        self._terminal = sys.stderr.isatty()
        self._begun = self._shown = time.monotonic()

    def begin_retries(self, count):
        self.note(f"running again, one at a time: {count} that failed")
        self._total += count

    def finish(self, case):
        self._done += 1
        if case.wants_retry:
            self._failed += 1
            self.note(f"{case.name} failed (attempt {len(case.attempts)})")

    def note(self, text):
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def clear(self):
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def show(self, runners):
        if self._terminal:
            line = self._line(runners)[: shutil.get_terminal_size().columns - 1]
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._shown > PERIOD:
            self._shown = time.monotonic()
            print(self._line(runners), file=sys.stderr, flush=True)

    def _line(self, runners):
        elapsed = int(time.monotonic() - self._begun)
        now = ", ".join(f"{runner.case.name} {runner.seconds:.0f} s" for runner in runners)
        return f"[{self._done}/{self._total}] {elapsed // 60}:{elapsed % 60:02} {self._failed} failed | {now}"
