"""An RPC group on torchwire whose workers a test drives; see processes.py.

    with running(2, folder) as group:
        group[0].run(function)  # as worker0, which can call worker1

Leaving the block shuts the group down gracefully and checks that this works; an exception kills it.
"""

import contextlib
import multiprocessing
import socket

import torch.distributed as dist
import torch.distributed.rpc as rpc
import torchwire
from processes import WorkerError, WorkerProcess, close_all


class Group(list):
    """The WorkerProcesses of a group: worker0, worker1 ... In a with statement they end with it, whatever happens.

    Nobody calls init_rpc and shutdown but the test: see running() for a group that is ready.
    """

    def __init__(self, size, environment=None, prepare=None):
        """`prepare`: for each process, a function that it runs first."""
        super().__init__()
        try:
            for rank in range(size):
                self.append(WorkerProcess(f"worker{rank}", environment, prepare and prepare[rank]))
        except BaseException:
            self.kill()
            raise

    def init(self, init_method, **options):
        """Lets every worker call init_rpc as a member of a static group; `options` are torchwire's."""
        self.all(init, init_method, world_size=len(self), **options)

    def all(self, function, *args, **kwargs):
        """Runs `function` on all workers at the same time and returns the list of results."""
        return results([worker.start(function, *args, **kwargs) for worker in self])

    def shut_down(self):
        self.all(rpc.shutdown)

    def kill(self):
        for worker in self:
            worker.kill()
        close_all(self)

    def close(self):
        close_all(self)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
            return
        for worker in self:
            worker.show_output()
        self.kill()


def results(pending):
    """The results of all; where some failed, the first error, but only once nothing runs any more."""
    collected, errors = [], []
    for one in pending:
        try:
            collected.append(one.result())
        except WorkerError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return collected


def errors(pending):
    """The WorkerErrors of all, which must all fail; in order."""
    collected = []
    for one in pending:
        try:
            value = one.result()
        except WorkerError as error:
            collected.append(error)
        else:
            raise AssertionError(f"it returned {value!r}, where an error was due")
    return collected


@contextlib.contextmanager
def running(size, folder, environment=None, **options):
    """A static group that meets in a file below `folder`."""
    with Group(size, environment) as group:
        group.init(file_in(folder), **options)
        yield group
        group.shut_down()


def file_in(folder):
    """The init_method for a store in a file below `folder`."""
    return f"file://{folder}/store"


def init(
    init_method,
    name=None,
    rank=None,
    world_size=None,
    backend="TORCHWIRE",
    options_class=torchwire.TorchwireRpcBackendOptions,
    **options,
):
    """Runs in a worker: init_rpc on torchwire. Name and rank are those of the process, unless given."""
    if name is None:
        name = multiprocessing.current_process().name
    rpc.init_rpc(
        name,
        backend=rpc.BackendType[backend],
        rank=int(name.removeprefix("worker")) if rank is None else rank,
        world_size=world_size,
        rpc_backend_options=options_class(init_method=init_method, **options),
    )


def free_port():
    """A TCP port of 127.0.0.1 that nobody uses just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def environment_of_store(port, host="127.0.0.1"):
    """What tells a worker that the store at this port is there already. Newer torch asks for its address too."""
    return {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


class HostedStore:
    """A TCPStore in pytest's own process, which outlives any worker, and listens at that address alone.

    With init_method tcp://, PyTorch would let rank 0 host the store. `environment` is how a launcher such as torchrun
    tells the workers that the store is there already.
    """

    def __init__(self, host="127.0.0.1"):
        with socket.create_server((host, 0)) as listening:
            self._store = dist.TCPStore(
                host,
                listening.getsockname()[1],
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
        self.port = self._store.port
        self.init_method = f"tcp://{host}:{self.port}"
        self.environment = environment_of_store(self.port, host)

    def has(self, key):
        return self._store.check([key])

    def get(self, key):
        return self._store.get(key)

    def set(self, key, value):
        self._store.set(key, value)
