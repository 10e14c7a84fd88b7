"""What a release build must not have in it."""

import pathlib
import re
import subprocess

import pytest
import torchwire
from torchwire import _C

OF_FAULTS = re.compile(r"torchwire::(faults::|bindFaults)")


def symbols_of_faults():
    listing = subprocess.run(["nm", "--demangle", _C.__file__], capture_output=True, text=True, check=True).stdout
    names = [line.split(maxsplit=2)[-1] for line in listing.splitlines()]
    assert any("torchwire::Agent::send" in name for name in names), "the extension has been stripped"
    return [name for name in names if OF_FAULTS.search(name)]


@pytest.mark.skipif(torchwire._build.FAULT_INJECTION, reason="for builds without fault injection")
def test_nothing_of_fault_injection_is_in_the_extension():
    assert symbols_of_faults() == []
    assert not hasattr(_C, "FaultInterceptor")
    testing = pathlib.Path(torchwire.__file__).with_name("testing")
    assert [path.name for path in testing.glob("*.py")] == ["__init__.py"]


@pytest.mark.skipif(not torchwire._build.FAULT_INJECTION, reason="for builds with fault injection")
def test_what_is_looked_for_is_in_a_build_with_fault_injection():
    assert len(symbols_of_faults()) > 100
