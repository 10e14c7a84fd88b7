"""As test_public_names.py, for torchwire.testing."""

import ast
import pathlib

import public_names
import pytest
import torchwire.testing
import type_checks

PROGRAM = pathlib.Path(__file__).parent / "typed_fault_program.py"

# Each of the lines after the import is wrong.
WRONG = """
import torchwire.testing as faults

faults.Rule()
faults.Rule("delay", "a name")
faults.Rule("delay", seconds="1 s")
faults.Plan(seed="7")
faults.Plan([1])
faults.Uniform("0.1", 0.2)
faults.set_plan(7)
faults.replay([1])
faults.fault_log().keys()
faults.run_workers(7)
faults.run_workers(print, workers="two")
faults.FaultyTorchwireRpcBackendOptions(fault_plan=7)
faults.no_such_name
""".lstrip()


@pytest.mark.parametrize("name", torchwire.testing.__all__)
def test_docstring_says_defaults_and_errors(name):
    assert public_names.shortcomings(torchwire.testing, name) == []


@pytest.mark.slow
def test_types_reach_a_users_program(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    found = type_checks.complaints(tmp_path, PROGRAM, wrong)
    assert not found[PROGRAM.name]
    lines = WRONG.splitlines()
    assert not [lines[number - 1] for number in range(3, len(lines) + 1) if number not in found[wrong.name]]


def test_program_takes_every_public_name():
    tree = ast.parse(PROGRAM.read_text())
    taken = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert set(torchwire.testing.__all__) <= taken
