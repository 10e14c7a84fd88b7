"""PyTorch's RPC suites, bound to our fixtures. Importing this needs torch and the backend."""

import unittest

import process_groups
from fixture import TorchwireRpcAgentTestFixture
from torch.testing._internal.distributed.rpc_utils import (
    GENERIC_TESTS,
    TENSORPIPE_TESTS,
    generate_tests,
)

PREFIX = "Torchwire"

# fixture, the suites that it is mixed into
TABLE = [
    (TorchwireRpcAgentTestFixture, GENERIC_TESTS),
    (TorchwireRpcAgentTestFixture, TENSORPIPE_TESTS),
]


def _build():
    """Test classes by the name that PyTorch gives the suite."""
    built = {}
    for fixture, suites in TABLE:
        built.update(generate_tests(PREFIX, fixture, suites, __name__))
    # Processes of a test unpickle their class by its name in this module.
    globals().update(built)
    return {name[len(PREFIX) :]: class_ for name, class_ in built.items()}


process_groups.keep()
SUITES = _build()


def catalogue():
    """Every (suite, test), in the order of the table."""
    loader = unittest.defaultTestLoader
    return [
        (suite, test)
        for suite, class_ in SUITES.items()
        for test in loader.getTestCaseNames(class_)
    ]
