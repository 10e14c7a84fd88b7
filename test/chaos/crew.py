"""The processes of the workers, which may live on from round to round."""

import member
from harness import HostedStore, WorkerProcess, close_all


class Crew:
    """A process for each worker. In a with statement they end with it. Not thread-safe."""

    def __init__(self, size):
        # In this process, since a worker that hosted it could be killed, or stand still.
        self._store = HostedStore()
        self.init_method = self._store.init_method
        self._size = size
        self._workers = {}

    def workers(self):
        """One for each rank, where those are new that were not there or are gone."""
        for name in (f"worker{rank}" for rank in range(self._size)):
            if name in self._workers and not self._workers[name].is_alive():
                self._workers.pop(name).close()
            if name not in self._workers:
                self._workers[name] = self._started(name)
        return [self._workers[f"worker{rank}"] for rank in range(self._size)]

    def restarted(self, rank):
        """Kills the process of a worker. Returns another one in its place."""
        name = f"worker{rank}"
        self._workers[name].kill()
        self._workers.pop(name).close()
        self._workers[name] = self._started(name)
        return self._workers[name]

    def _started(self, name):
        return WorkerProcess(name, self._store.environment, member.prepare)

    def dismiss(self):
        """Lets all processes end that have nothing to do."""
        close_all(self._workers.values())
        self._workers.clear()

    def kill(self):
        for worker in self._workers.values():
            worker.kill()
        self.dismiss()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
