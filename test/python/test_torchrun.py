"""Groups under torchrun, which starts all processes anew when one has died."""

import pathlib
import re

import pytest
from processes import run_script

JOB = pathlib.Path(__file__).with_name("torchrun_job.py")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["elastic", pytest.param("static", marks=pytest.mark.long)])
def test_a_group_begins_afresh_when_torchrun_starts_it_anew(kind):
    done = run_script(
        None,
        JOB,
        kind,
        python_arguments=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "--max-restarts=1"),
        environment={"OMP_NUM_THREADS": "1"},
        limit=120,
    )
    assert done.returncode == 0, done.stderr
    # Of both attempts the second alone comes to its end: 3 x (0 + ... + 9), and 1 more for each call.
    ended = re.findall(r"attempt \d, rank \d: \d+", done.stdout)
    assert sorted(ended) == [f"attempt 1, rank {rank}: 165" for rank in range(3)], done.stderr
