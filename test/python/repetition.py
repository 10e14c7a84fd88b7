"""What a worker process does again and again, while the test goes on.

worker.run(begin, Kind, argument)  # makes a Kind, a Repetition, and begins to do its step again and again
worker.run(count)                  # how often by now; raises what a step raised, after which there are no more
worker.run(stop)                   # ends it and returns its outcome()
"""

import threading

_current = None


class Repetition:
    """Its steps run in one thread."""

    def __init__(self):
        self._done = 0
        self._stopped = threading.Event()
        self._error = None

    def step(self):
        raise NotImplementedError

    def end(self):
        """Comes after the last step."""

    def outcome(self):
        return self.done()

    def start(self):
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def done(self):
        """How many steps there have been. Raises what has ended them, if anything."""
        if self._error is not None:
            raise self._error
        return self._done

    def stop(self):
        self._stopped.set()
        self._thread.join()
        self.done()

    def _run(self):
        try:
            while not self._stopped.is_set():
                self.step()
                self._done += 1
            self.end()
        except BaseException as error:
            self._error = error


def begin(kind, *arguments):
    global _current
    _current = kind(*arguments)
    _current.start()


def count():
    return _current.done()


def stop():
    _current.stop()
    return _current.outcome()
