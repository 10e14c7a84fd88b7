"""A pool: a few runner processes that share a queue of cases."""

from collections import deque
from multiprocessing.connection import wait

from runner_process import RunnerProcess

TICK = 0.5


class Pool:
    """Use it in a with statement, whatever happens no process outlives it. Not thread-safe."""

    def __init__(self, size, limit, tripwire_library=None):
        self._runners = []
        self._size = size
        self._limit = limit
        self._tripwire_library = tripwire_library

    def __enter__(self):
        try:
            for _ in range(self._size):
                self._runners.append(RunnerProcess(self._limit, self._tripwire_library))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for runner in self._runners:
            runner.stop()

    @property
    def busy(self):
        return [runner for runner in self._runners if runner.busy]

    def greeting(self):
        """What the first runner that is ready says."""
        while True:
            for runner in self._runners:
                if runner.greeting:
                    return runner.greeting
            list(self._poll())

    def run(self, cases, jobs, on_finish, on_tick):
        """Runs every case once, `jobs` at a time."""
        queue = deque(cases)
        while queue or self.busy:
            self._assign(queue, jobs)
            for case in self._poll():
                on_finish(case)
            on_tick()

    def _assign(self, queue, jobs):
        for runner in self._runners:
            if queue and runner.idle and len(self.busy) < jobs:
                runner.assign(queue.popleft())

    def _poll(self):
        """Waits a little and yields the cases that ended."""
        ready = wait([runner.connection for runner in self._runners], TICK)
        for runner in self._runners:
            case = None
            if runner.connection in ready:
                case = runner.receive()
            elif runner.overdue:
                case = runner.give_up()
            if case is not None:
                yield case
