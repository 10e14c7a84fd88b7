"""tools/gpu-test, as far as a machine without a GPU can run it."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import pytest
from processes import run_script

TOOL = Path(__file__).resolve().parents[2] / "tools/gpu_test.py"


def load_tool():
    spec = importlib.util.spec_from_file_location("gpu_test", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_test"] = module  # where its dataclass looks for itself
    spec.loader.exec_module(module)
    return module


gpu_test = load_tool()


@pytest.mark.long
def test_without_a_device_everything_is_skipped_and_it_says_so(tmp_path):
    done = run_script(TOOL, "--logs", tmp_path, environment={"CUDA_VISIBLE_DEVICES": ""}, limit=180)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        line.split()[0]: line.split() for line in done.stdout.splitlines() if line.startswith(("stock ", "devices "))
    }
    assert rows["stock"][1:4] == ["ok", "1", "0"] and int(rows["stock"][4]) > 90
    assert rows["devices"][1:4] == ["skipped", "0", "0"] and int(rows["devices"][4]) > 20
    assert done.stdout.endswith("Nothing was tested on a device: there is no CUDA device here.\n")
    assert {path.name for path in tmp_path.iterdir()} == {"gpu-stock.csv", "gpu-stock.log", "gpu-devices.log"}


def test_a_skip_is_counted_by_the_devices_that_are_missing():
    result = gpu_test.Result("devices")
    for reason in (
        "Need at least 2 CUDA devices",
        "Skipped: needs 2 cuda devices, of which 1 is here",
        "needs 1 cuda device",
    ):
        result.skip("test", reason)
    assert result.wanting == {2: 2, 1: 1} and result.failed == []
    assert result.row().endswith("1 need 1, 2 need 2")
    result.skip("test_x", "the tripwire exists for x86-64 only")
    assert result.failed == ["test_x: skipped, though not for want of a device: the tripwire exists for x86-64 only"]
    assert "FAILED" in result.row()


def test_pytests_report_is_read(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="good"/><testcase name="bad"><failure message="no"/></testcase>'
        '<testcase name="broken"><error message="no"/></testcase>'
        '<testcase name="left"><skipped message="needs 2 cuda devices, of which 1 is here"/></testcase>'
        "</testsuite></testsuites>"
    )
    result = gpu_test.Result("devices")
    gpu_test.add_cases(result, report)
    assert (result.passed, result.failed, result.wanting) == (1, ["bad", "broken"], {2: 1})


def test_what_takes_too_long_is_ended(tmp_path):
    log = tmp_path / "log"
    begun = time.monotonic()
    runs = [(["-c", "import time; time.sleep(60)"], {}, log), (["-c", "import sys; sys.exit(3)"], {}, log)]
    assert gpu_test.run_all(runs, begun + 3) == [None, 3]
    assert time.monotonic() - begun < 30
    result = gpu_test.Result("stock")
    gpu_test.add_status(result, None, False, log)
    gpu_test.add_status(result, 3, False, log)
    assert [text.split(",")[0] for text in result.failed] == ["not done in time", "exit status 3"]


def make_wheel(folder, package, tag):
    """Of a package that is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{package}-0-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{package}/__init__.py", "")
        wheel.writestr(f"{package}-0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 0\n")
        wheel.writestr(
            f"{package}-0.dist-info/WHEEL", f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        wheel.writestr(f"{package}-0.dist-info/RECORD", "")


def find_torchwire(root):
    """What tools/gpu_environment finds in a checkout: what it says, and where torchwire is."""
    script = f'source {root}/tools/gpu_environment; find_torchwire; "$python" -c "{WHERE}"'
    environment = {name: value for name, value in os.environ.items() if name != "VENV"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stderr.strip(), Path(done.stdout.strip())


# Without importing the empty package.
WHERE = "from importlib.util import find_spec; print(find_spec('torchwire').origin)"


def test_a_wheel_for_this_python_is_taken_before_what_is_installed(tmp_path):
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    other = f"cp{sys.version_info[0]}{sys.version_info[1] + 1}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    (tmp_path / "tools").mkdir()
    shutil.copy(TOOL.with_name("gpu_environment"), tmp_path / "tools")
    wheels = tmp_path / "build/gpu"
    make_wheel(wheels, "torchwire", f"{other}-{other}-{platform}")
    assert find_torchwire(tmp_path)[0].startswith("with the torchwire that ")
    make_wheel(wheels, "torchwire", f"{tag}-{tag}-{platform}")
    make_wheel(wheels, "expecttest", "py3-none-any")
    said, path = find_torchwire(tmp_path)
    assert said == f"with the wheels of build/gpu for {tag}"
    assert path == wheels / f"site-{tag}/torchwire/__init__.py" and (path.parents[1] / "expecttest").is_dir()
