"""PyTorch's own suites of CUDA devices (test/stock): without a device all are there, and nothing but that is why they
are skipped. On a machine with GPUs, tools/gpu-test runs them."""

import csv
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from processes import WorkerProcess, run_script

STOCK = Path(__file__).resolve().parents[1] / "stock"
SUITES = {
    "CudaRpcTest",
    "CudaDistAutogradTest",
    "CudaRemoteModuleTest",
    "CudaDdpComparisonTest",
    "TensorPipeAgentCudaRpcTest",
    "TensorPipeCudaDistAutogradTest",
}
# Among them, but it needs no device: it maps the CPU to itself.
RUNS_ANYWHERE = {"test_device_map_cpu"}


def run_suites(folder, *arguments):
    """The output, and the rows of the report."""
    report = folder / "report.csv"
    done = run_script(
        STOCK / "run.py",
        *("--no-tripwire", "--jobs", "1", "--report", report, *arguments),
        environment={"CUDA_VISIBLE_DEVICES": ""},
        limit=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with report.open() as file:
        return done.stdout, list(csv.DictReader(file))


@pytest.mark.long
def test_all_are_there_and_skipped_for_want_of_a_device_only(tmp_path):
    output, rows = run_suites(tmp_path, "--cuda")
    assert {row["suite"] for row in rows} == SUITES
    if torch.__version__.startswith("2.11."):
        assert len(rows) == 99
    assert {row["test"] for row in rows if row["result"] == "passed"} == RUNS_ANYWHERE
    skipped = [row for row in rows if row["result"] == "skipped"]
    assert len(skipped) == len(rows) - len(RUNS_ANYWHERE)
    needs = Counter(row["skipped_because"] for row in skipped)
    assert set(needs) == {"Need at least 1 CUDA device", "Need at least 2 CUDA devices", "Need at least 4 CUDA devices"}
    assert f"{len(skipped)} skipped for want of CUDA devices, of which 0 are here: " in output
    for reason, count in needs.items():
        assert f"{count} need {reason.split()[3]}" in output


@pytest.mark.parametrize("table", ["deviations.csv", "fault_plan_exclusions.csv", "profiler_exclusions.csv"])
def test_no_table_excludes_one(table):
    rows = csv.DictReader(line for line in (STOCK / table).open() if not line.startswith("#"))
    assert [row for row in rows if row["suite"] in SUITES] == []


@pytest.mark.long
def test_pytorch_skips_them_for_the_same_reasons(tmp_path):
    chosen = ["--suite", "CudaDistAutogradTest", "--suite", "CudaRpcTest", "--suite", "TensorPipeCudaDistAutogradTest"]
    rows = [run_suites(tmp_path, *chosen, *more)[1] for more in ([], ["--attempt-all"])]
    early, attempted = ([(row["suite"], row["test"], row["skipped_because"]) for row in some] for some in rows)
    assert early == attempted
    assert {reason.split()[3] for _, _, reason in early} == {"1", "2", "4"}


@pytest.fixture(scope="module")
def with_one_device():
    """A process that believes that there is one device."""
    worker = WorkerProcess("one_device")
    worker.run(_pretend, 1)
    yield worker
    worker.close()


def test_with_one_device_only_what_needs_more_is_skipped(with_one_device):
    needs = with_one_device.run(_missing)
    assert needs.pop(None) > len(RUNS_ANYWHERE)
    assert set(needs) == {"Need at least 2 CUDA devices", "Need at least 4 CUDA devices"}


@pytest.mark.parametrize(
    "suite, reason, verdict",
    [
        ("CudaRpcTest", "Need at least 2 CUDA devices", "skipped"),
        ("CudaRpcTest", "Need at least 1 CUDA device", "failed"),
        ("CudaRpcTest", "CUDA is not available.", "failed"),
        ("RpcTest", "known issue", "skipped"),
    ],
)
def test_another_reason_is_a_failure(with_one_device, suite, reason, verdict):
    result, said = with_one_device.run(_judge, suite, reason)
    assert result == verdict and reason in said


# ---- in that process ----


def _pretend(devices):
    sys.path.insert(0, str(STOCK))
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: devices


def _missing():
    """How many tests have which reason to be skipped."""
    import device_needs
    import suites

    return Counter(
        device_needs.missing(getattr(suites.SUITES[suite], test))
        for suite, test in suites.catalog()
        if suite in suites.CUDA_SUITES
    )


def _judge(suite, reason):
    import runner

    return runner.judge_skip(suite, reason)
