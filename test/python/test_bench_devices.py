"""The command bench-devices, on the stand-in accelerator and on the CPU: on CUDA only a machine with a GPU runs it."""

import json
import os
from pathlib import Path

import accelerator
import pytest
import torch
from processes import run_script
from torchwire import command_line
from torchwire.bench import device_command, device_steps, report
from torchwire.bench.device_member import DeviceMember
from torchwire.bench.device_steps import Direction
from torchwire.bench.member import Place
from torchwire.bench.step import QUICK

HERE = Path(__file__).resolve().parent


def bench(folder, *arguments):
    """In a process of its own, since an accelerator that is loaded stays."""
    done = run_script(
        None,
        *("bench-devices", "--rounds", "1", "--seconds", "0.005", "--output", folder, *arguments),
        python_arguments=["-m", "torchwire"],
        environment={**accelerator.ENVIRONMENT, "PYTHONPATH": python_path()},
        limit=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "results.json").read_text()), (folder / "report.md").read_text()


def python_path():
    return os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))


@pytest.mark.slow
def test_the_stand_in_is_measured_in_each_direction(tmp_path, accelerator_file):
    arguments = ["--device", "standin", "--prepare", "accelerator:load", "--sizes", "4,64KiB"]
    data, text = bench(tmp_path, *arguments)
    ways = device_steps.directions("standin", 4)
    measured = {(result["workload"], result["name"], result["contestant"]) for result in data["results"]}
    assert measured == {(way.name, size, "torchwire") for way in ways for size in ("4 B", "64 KiB")}
    assert all(0 < result["p50"] <= result["p99"] and result["ratio"] is None for result in data["results"])
    assert "## To another device" in text and "- stock: `standin` is no CUDA device" in text
    assert data["machine"]["standin devices"] == "4" and data["errors"] == []


def test_the_cpu_is_measured_with_any_channels(tmp_path):
    data, text = bench(tmp_path, "--device", "cpu", "--sizes", "4", "--channels", "basic,mpt_wire_tcp")
    assert [result["contestant"] for result in data["results"]] == [
        "torchwire",
        "torchwire/basic",
        "torchwire/mpt_wire_tcp",
    ]
    assert "| torchwire/basic | torchwire on the channel basic |" in text


@pytest.mark.parametrize("backend", ["TENSORPIPE", "TORCHWIRE"])
def test_both_backends_get_the_device_map(backend, tmp_path):
    member = DeviceMember(Place(0, 2, tmp_path), "cuda:0", "cuda:0", "", backend=backend)
    device = torch.device("cuda:0")
    assert member.backend_options().device_maps == {"worker1": {device: device}}


def test_without_a_device_it_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert command_line.main(["bench-devices", "--output", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "nothing was measured: there is no cuda device here\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--sizes", "4,x"], "--sizes: 'x' is no size; write a number of bytes"),
        (["--sizes", "0"], "--sizes: '0' is no size"),
        (["--sizes", ","], "--sizes names none"),
        (["--seconds", "-1"], "--seconds is -1.0; it has to be at least 0"),
        (["--device", "abacus"], "--device abacus: there is no such accelerator here"),
        (["--prepare", "nosuch:load"], "No module named 'nosuch'"),
    ],
)
def test_bad_arguments_are_explained(capsys, arguments, sentence):
    assert command_line.main(["bench-devices", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_sizes_are_bytes_or_have_a_unit():
    assert device_command.sizes_of("4, 4096,64KiB,1 MiB,8B") == [4, 4096, 65536, 1 << 20, 8]
    assert device_command.sizes_of(",".join(map(str, device_steps.SIZES))) == list(device_steps.SIZES)


def test_a_direction_between_devices_needs_two():
    ways = {way.name: way[1:] for way in device_steps.directions("cuda", 2)}
    assert ways == {
        "on one device": ("cuda:0", "cuda:0"),
        "to another device": ("cuda:0", "cuda:1"),
        "from the CPU to a device": ("cpu", "cuda:0"),
        "from a device to the CPU": ("cuda:0", "cpu"),
    }
    assert list(ways)[:1] + list(ways)[2:] == [way.name for way in device_steps.directions("cuda", 1)]


def test_cuda_is_measured_on_stock_and_by_way_of_the_host_too():
    way = Direction("on one device", "cuda:0", "cuda:0")
    stock, ours, by_host, by_basic = device_steps.contestants(way, ["basic"], "", True)
    assert [one.name for one in (stock, ours, by_host, by_basic)] == [
        "stock",
        "torchwire",
        "torchwire/host",
        "torchwire/basic",
    ]
    assert stock.options["backend"] == "TENSORPIPE" and "_device_paths" not in ours.options
    assert by_host.options["_device_paths"] == ["host"] and by_basic.options["_channels"] == ["basic"]
    (step,) = device_steps.steps(way, [1 << 20], QUICK)
    assert step.cases[0].workload == way.name and step.cases[0].size == 2 << 20


def test_a_direction_is_a_title_in_the_report():
    assert report.title_of("on one device") == "On one device"
    assert report.title_of("echo") == "There and back"
