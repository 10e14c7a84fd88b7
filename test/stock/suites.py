"""PyTorch's RPC suites, bound to our fixtures. Importing this needs torch and the backend."""

import unittest

import backend_name
import fault_plan
import fixture
import process_groups
from torch.testing._internal.distributed.rpc_utils import (
    FAULTY_AGENT_TESTS,
    GENERIC_CUDA_TESTS,
    GENERIC_TESTS,
    TENSORPIPE_CUDA_TESTS,
    TENSORPIPE_TESTS,
    generate_tests,
)

PREFIX = "Torchwire"

# Those whose tests, but for one, need CUDA devices.
CUDA_SUITES = [suite.__name__ for suite in GENERIC_CUDA_TESTS + TENSORPIPE_CUDA_TESTS]

# fixture, the suites that it is mixed into
TABLE = [
    (fixture.TorchwireRpcAgentTestFixture, GENERIC_TESTS),
    (fixture.TorchwireRpcAgentTestFixture, GENERIC_CUDA_TESTS),
]
if not fault_plan.FILE:
    TABLE.append((fixture.TorchwireRpcAgentTestFixture, TENSORPIPE_TESTS))
    TABLE.append((fixture.TorchwireRpcAgentTestFixture, TENSORPIPE_CUDA_TESTS))
    if backend_name.NAME == backend_name.FAULTY:
        TABLE.append((fixture.FaultyTorchwireRpcAgentTestFixture, FAULTY_AGENT_TESTS))


def _build():
    """Test classes by the name that PyTorch gives the suite."""
    built = {}
    for fixture_class, suites in TABLE:
        built.update(generate_tests(PREFIX, fixture_class, suites, __name__))
    # Processes of a test unpickle their class by its name in this module.
    globals().update(built)
    return {name[len(PREFIX) :]: class_ for name, class_ in built.items()}


process_groups.keep()
SUITES = _build()


def catalog():
    """Every (suite, test), in the order of the table."""
    loader = unittest.defaultTestLoader
    return [(suite, test) for suite, class_ in SUITES.items() for test in loader.getTestCaseNames(class_)]
