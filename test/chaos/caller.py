"""Who performs operations: a thread of a worker, with what it draws from and whom it can call."""

import random

import torch.distributed.rpc as rpc
from services import MIB

# The ends, what travels inside the head of a frame, and what does not (from 256 KiB).
_SIZES = (0, 1, 100, 5_000, 70_000, 300_000, MIB, 4 * MIB, 16 * MIB)


class Caller:
    """All that chance decides about its operations comes from `random`. Not thread-safe."""

    def __init__(self, settings, seed):
        self._seed = seed
        self._turn = 0
        self.timeout = settings.timeout
        self._names = [f"worker{rank}" for rank in range(settings.world)]
        self._upwards = settings.threads_may_run_out
        self._sizes = [size for size in _SIZES if size <= settings.largest]

    def next_turn(self):
        """Draws anew for the next operation. What it draws depends on the seed and on how many there were before, not
        on how those ended: so the same seed makes the same program."""
        self._turn += 1
        self.random = random.Random(f"{self._seed}/{self._turn}")

    def call(self, to, function, *args):
        return rpc.rpc_sync(to, function, args, timeout=self.timeout)

    def begin(self, to, function, *args):
        return rpc.rpc_async(to, function, args, timeout=self.timeout)

    def remote(self, to, function, *args):
        return rpc.remote(to, function, args, timeout=self.timeout)

    def anyone(self):
        """A worker, perhaps this one."""
        return self.random.choice(self._names)

    def route(self, most):
        """Up to `most` workers, where each but the last keeps a thread waiting for the next.

        Routes that cross each other could take all threads of their workers and wait for ever. So none comes to a
        worker twice; and where there are fewer threads than callers, all go the same way, from lower ranks to higher.
        """
        route = self.random.sample(self._names, self.random.randint(1, min(most, len(self._names))))
        return sorted(route, key=self._names.index) if self._upwards else route

    def walk(self, most):
        """Up to `most` workers in any order, some perhaps twice: for what keeps no thread waiting."""
        return self.random.choices(self._names, k=self.random.randint(1, most))

    def piece(self):
        """Where a piece begins, and its size; see services.piece()."""
        return self.random.randrange(MIB), self.random.choice(self._sizes)

    def small_piece(self):
        return self.random.randrange(MIB), self.random.randint(1, 1000)
