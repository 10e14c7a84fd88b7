"""The tests of torchwire.testing, which need a build with fault injection: without one, none of them is there."""

import pytest
from group import Group, file_in
from torchwire import _build

collect_ignore_glob = [] if _build.FAULT_INJECTION else ["test_*.py", "examples/test_*.py"]


class _SharedGroup:
    """A group of two on FAULTY_TORCHWIRE for tests that leave it working; after others there is a new one."""

    def __init__(self, make_folder):
        self._make_folder = make_folder
        self._group = None

    def get(self):
        if self._group is None:
            import faulty  # what it imports is there only in such a build

            group = Group(2)
            try:
                group.all(faulty.init, file_in(self._make_folder("duo")), world_size=2)
            except BaseException:
                group.kill()
                raise
            self._group = group
        return self._group

    def end_faults(self):
        import torchwire.testing as faults

        try:
            self._group[0].run(faults.clear_plan)
        except BaseException:
            self.kill()
            raise

    def close(self):
        if self._group is None:
            return
        import faulty

        try:
            faulty.settle(self._group)
            self._group.all(faulty.shut_down)
        finally:
            self.kill()

    def kill(self):
        self._group.kill()
        self._group = None


@pytest.fixture(scope="session")
def _shared_duo(tmp_path_factory):
    shared = _SharedGroup(tmp_path_factory.mktemp)
    yield shared
    shared.close()


@pytest.fixture
def duo(_shared_duo):
    """A running group of worker0 and worker1 without faults, shared by all tests."""
    yield _shared_duo.get()
    _shared_duo.end_faults()
