"""The tests of torchwire.testing, which need a build with fault injection: without one, none of them is there."""

from torchwire import _build

collect_ignore_glob = [] if _build.FAULT_INJECTION else ["test_*.py", "examples/test_*.py"]
