"""Random programs over four workers give the gradients that ordinary autograd gives in one process.

TORCHWIRE_TEST_PROGRAMS, as 1000-3000 or as 17, chooses other seeds than those of every run.
"""

import os
from collections import Counter

import pytest
import torch
from backward_modes import FAST, SMART
from group import running
from program_features import features
from program_maker import make
from program_reach import Reach
from program_runs import run_locally, run_over_group
from programs import WORKERS

DEFAULT_SEEDS = "0-599"

# How many of the default programs have each feature, at least.
LEAST = 30
FEATURES = {
    "all used", "blocked gradient", "builtin operator", "call that raises", "call to itself", "failed fetch",
    "fan-out", "fetch", "hook", "hook on callee", "in-place", "nested call", "nested unused", "no tensor", "own RRef",
    "parameter of callee", "pass from RRef", "pass from TorchScript", "passes that differ", "retain_graph",
    "root elsewhere", "RRef argument", "script function", "several roots", "shared input", "tuple",
    "tuple used in part", "unused", "unused argument", "unused result", "unused tuple",
}  # fmt: skip

# Far longer than a pass takes; what hangs ends with it.
RPC_TIMEOUT = 10.0

# A worker that has seen so many programs fail stops: each may take as long as the time-out.
MAX_FAILURES = 3


def seeds():
    first, _, last = os.environ.get("TORCHWIRE_TEST_PROGRAMS", DEFAULT_SEEDS).partition("-")
    return range(int(first), int(last or first) + 1)


# ---- what the workers run ----


def failures_of(programs_seeds):
    """Runs the programs one after the other, with this worker as their root; returns what went wrong."""
    failures = []
    for seed in programs_seeds:
        program = make(seed)
        try:
            difference = difference_of(program)
        except Exception as error:
            difference = f"{type(error).__name__}: {error}"
        if difference:
            failures.append(f"{difference}\n{program}")
        if len(failures) == MAX_FAILURES:
            break
    return failures


def difference_of(program):
    """What the run over the group found otherwise than the run in this process; empty if nothing."""
    expected, found, reach = run_locally(program), run_over_group(program), Reach(program)
    differences = []
    for leaf in expected.gradients.keys() | found.gradients.keys():
        here, there = expected.gradients.get(leaf), found.gradients.get(leaf)
        if not agree(here, there, reach.may_have_zeros(leaf)):
            differences.append(f"gradient of parameter({leaf[1]}) of worker{leaf[0]}: {there} instead of {here}")
    for name, count in expected.hooks.items():
        most = count + reach.hook_may_be_called(name)
        if not count <= found.hooks.get(name, -1) <= most:
            differences.append(f"hook on {name} called {found.hooks.get(name)} times instead of {count} to {most}")
    return "\n".join(differences)


def agree(here, there, may_be_zeros):
    if here is None:
        return there is None or may_be_zeros and not there.any()
    return there is not None and torch.allclose(here, there, rtol=1e-10, atol=1e-12)


# ---- the tests ----


def run_all(group, programs):
    """Every worker runs those that begin there, all at the same time."""
    pending = [
        worker.start(failures_of, [one.seed for one in programs if one.body.worker == rank])
        for rank, worker in enumerate(group)
    ]
    failures = [failure for one in pending for failure in one.result(limit=240 + len(programs))]
    if failures:
        pytest.fail(f"{len(failures)} of {len(programs)} programs:\n\n" + "\n\n".join(failures), pytrace=False)


def test_in_smart_mode_every_program_gets_the_gradients_of_one_process(tmp_path):
    with running(WORKERS, tmp_path, rpc_timeout=RPC_TIMEOUT, **SMART) as group:
        run_all(group, [make(seed) for seed in seeds()])


def test_in_fast_mode_programs_that_use_all_results_do_too(tmp_path):
    with running(WORKERS, tmp_path, rpc_timeout=RPC_TIMEOUT, **FAST) as group:
        run_all(group, [program for program in map(make, seeds()) if Reach(program).all_used])


@pytest.mark.skipif(len(seeds()) < 500, reason="few programs were chosen")
def test_the_programs_have_every_feature_often():
    counts = Counter(feature for seed in seeds() for feature in features(make(seed)))
    print(", ".join(f"{feature}: {count}" for feature, count in sorted(counts.items())))
    assert counts.keys() == FEATURES
    assert {feature: count for feature, count in counts.items() if count < LEAST} == {}


def test_a_program_is_made_from_its_seed_alone():
    assert [str(make(seed)) for seed in range(20)] == [str(make(seed)) for seed in range(20)]
