"""Fixtures of all tests; see processes.py and group.py."""

import os

import processes
import pytest
from group import Group, file_in
from network import Hosts, why_impossible


def pytest_configure(config):
    # As tools/test does: who breaks a rule of docs/threads.md ends with a stack.
    os.environ.setdefault("TORCHWIRE_CHECK_THREADS", "1")
    # A lost question of the store's client to the name server takes a second, not five; see docs/gotchas.md.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:3")
    processes.start_fork_server()


def pytest_collection_modifyitems(config, items):
    if os.environ.get("TORCHWIRE_TEST_DEVICE_TYPE", "standin") != "standin":  # as device_kind.py has it
        left_out = [item for item in items if item.get_closest_marker("standin")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


class _SharedGroup:
    """A group of two that the tests of a module share, because starting one takes longer than most of them.

    When a test has left it broken, the next one gets a new group.
    """

    def __init__(self, make_folder):
        self._make_folder = make_folder
        self._group = None

    def get(self):
        if self._group is not None and not all(worker.is_alive() for worker in self._group):
            self._group.kill()
            self._group = None
        if self._group is None:
            group = Group(2)
            try:
                group.init(file_in(self._make_folder("group")))
            except BaseException:
                group.kill()
                raise
            self._group = group
        return self._group

    def close(self):
        if self._group is None:
            return
        try:
            self._group.shut_down()
            self._group.close()
        finally:
            self._group.kill()


@pytest.fixture(scope="module")
def hosts():
    """Two hosts: network namespaces, joined by cables."""
    reason = why_impossible()
    if reason:
        pytest.skip(reason)
    with Hosts() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def _shared_pair(tmp_path_factory):
    shared = _SharedGroup(tmp_path_factory.mktemp)
    yield shared
    shared.close()


@pytest.fixture
def pair(_shared_pair):
    """A running group of worker0 and worker1, with default options."""
    return _shared_pair.get()


@pytest.fixture(scope="session")
def accelerator_file():
    """The stand-in accelerator's module, built."""
    import accelerator  # with torch, which the fork server is to import meanwhile

    return accelerator.build()


@pytest.fixture(scope="session")
def devices(accelerator_file):
    """A process that has the stand-in accelerator."""
    import accelerator

    worker = processes.WorkerProcess("devices", accelerator.ENVIRONMENT, prepare=accelerator.load)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def cuda_processes():
    """Processes that have the stand-in for CUDA; see on_cuda."""
    import cuda_bodies
    import cuda_stand_in

    if not cuda_stand_in.is_available():
        pytest.skip("CUDA's headers, of the wheels that torch for CUDA depends on, are not here")
    processes_with_cuda = cuda_bodies.Processes()
    yield processes_with_cuda
    processes_with_cuda.close()
