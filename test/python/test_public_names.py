"""Public names have docstrings that say what is needed, and types that reach users."""

import ast
import importlib
import importlib.resources
import inspect
import pathlib
import re

import public_names
import pytest
import torchwire
import type_checks

PROGRAM = pathlib.Path(__file__).parent / "typed_program.py"

# Each of the lines after the imports is wrong.
WRONG = """
import torch
import torch.distributed.rpc as rpc
import torchwire

torchwire.cancel("call")
torchwire.CallFuture(7)
torchwire.deadline("1 s").__enter__()
torchwire.explain(1.5)
torchwire.current_call().add_cancel_callback(7)
torchwire.current_call().cancelled = True
torchwire.peers().keys()
torchwire.on_worker_joined("callback")
torchwire.on_worker_lost(lambda worker: None)
torchwire.TorchwireRpcBackendOptions(num_worker_threads="4")
torchwire.TorchwireRpcBackendOptions(secret=16)
torchwire.TorchwireRpcBackendOptions(slow_call_warning="30 s")
torchwire.TorchwireRpcBackendOptions(metrics_port=9.5)
torchwire.TorchwireRpcBackendOptions(status_socket="path")
torchwire.TorchwireRpcBackendOptions().metrics_port.real
torchwire.TorchwireRpcBackendOptions(no_such_option=1)
torchwire.TorchwireRpcBackendOptions(8)
torchwire.TorchwireRpcBackendOptions().init_method.real
torchwire.RpcError("text", executed="perhaps")
torchwire.no_such_name
torchwire.rrefs(1)
torchwire.metrics().counts
torchwire.log_metrics(1).__enter__()
torchwire.log_metrics("metrics.jsonl", interval="10 s").__enter__()
torchwire.dump("dump.txt")
torchwire.trace(b"trace.json").__enter__()
torchwire.trace("trace.json", capacity="1 MiB").__enter__()
torchwire.propagate_opentelemetry("yes")
""".lstrip()


@pytest.mark.parametrize("name", torchwire.__all__)
def test_docstring_says_defaults_and_errors(name):
    assert public_names.shortcomings(torchwire, name) == []


SIGNATURE = re.compile(r"(\d+\. )?\w+\(.*\) -> .*|Overloaded function\.")


# Of a static property Python does not find what pybind11 was given.
AGENTS = [name for name in vars(torchwire.TorchwireAgent) if not name.startswith("_") and name != "histogram_bounds"]


@pytest.mark.parametrize("name", AGENTS)
def test_what_the_agent_has_is_described(name):
    """pybind11 makes a docstring of the signature by itself, which is not enough."""
    lines = (inspect.getdoc(vars(torchwire.TorchwireAgent)[name]) or "").splitlines()
    words = " ".join(line for line in lines if not SIGNATURE.fullmatch(line)).split()
    assert len(words) > 5


@pytest.mark.slow
def test_types_reach_a_users_program(tmp_path):
    assert importlib.resources.files("torchwire").joinpath("py.typed").is_file()
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    found = type_checks.complaints(tmp_path, PROGRAM, wrong)
    assert not found[PROGRAM.name]
    lines = WRONG.splitlines()
    first = next(number for number, line in enumerate(lines, start=1) if line.startswith("torchwire."))
    right = [lines[number - 1] for number in range(first, len(lines) + 1) if number not in found[wrong.name]]
    assert not right


def test_program_takes_every_public_name():
    tree = ast.parse(PROGRAM.read_text())
    taken = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_torchwire(node.value)}
    assert set(torchwire.__all__) <= taken


def is_torchwire(node):
    return isinstance(node, ast.Name) and node.id == "torchwire"


BAD = '''
class Bad:
    """Made of a `size`.

    size: bytes. Raises ValueError for a negative one.
    """

    def __init__(self, size: int = 1, width: int = 1) -> None:
        check(size)

    def bare(self) -> None:
        pass


def check(size: int) -> None:
    """Checks `size`."""
    if size < 0:
        raise ValueError("negative")


def caught(size: int) -> None:
    """Checks `size`, and says nothing."""
    try:
        check(size)
    except ValueError:
        pass


def documented(size: int = 1) -> None:
    """size: bytes, by default 1. Raises as check does, and TypeError and ValueError for others."""
    raise TypeError("always")


def quiet():
    pass
'''


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "Bad",
            ["say what size is by default", "name the parameter width", "bare has no docstring"],
        ),
        ("check", ["say when it raises ValueError"]),
        ("caught", []),
        ("documented", []),
        ("quiet", ["quiet has no docstring"]),
    ],
)
def test_shortcomings_are_found(tmp_path, monkeypatch, name, expected):
    (tmp_path / "torchwire_example.py").write_text(BAD)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("torchwire_example")
    found = public_names.shortcomings(module, name)
    assert len(found) == len(expected), found
    for text, each in zip(expected, found):
        assert re.search(re.escape(text), each)
