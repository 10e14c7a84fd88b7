"""Operators on the stand-in accelerator compute what the CPU computes; also random programs, if they use events."""

import accelerator
import pytest
import torch
from accelerator_bodies import on_devices, stream_on
from accelerator_programs import Program
from processes import WorkerProcess

# ---- operators ----


@on_devices
def test_operators_give_what_the_cpu_gives():
    torch.manual_seed(1)
    cpu = torch.randn(6, 6)
    there = cpu.to("standin:1")
    index = torch.tensor([2, 0, 5])
    for function in (
        lambda x: x @ x.t() + 1,
        lambda x: torch.softmax(x, 1).max(0).values,
        lambda x: torch.cat([x, x.relu()], 1)[:, ::2],
        lambda x: x[index.to(x.device)].cumsum(0),
        lambda x: x.masked_fill(x > 0, 2).sort(1).indices,
        lambda x: x[x > 0],
        lambda x: torch.nn.functional.layer_norm(x, (6,)).view(-1),
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        lambda x: torch.split(x, 2)[1].unsqueeze(0).expand(3, 2, 6),
        lambda x: torch.linalg.inv(x + 9 * torch.eye(6, device=x.device)),
        lambda x: torch.view_as_real(torch.complex(x, x.flip(0)).conj().mul(2)),
        lambda x: torch.where(x > 0, x, 0).nonzero(),
        lambda x: x.double().std(dim=0, keepdim=True),
    ):
        torch.testing.assert_close(function(there).cpu(), function(cpu))
    assert torch.equal(there, there.clone())


@on_devices
def test_wrong_arguments_raise_at_the_call():
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.ones(2, device="standin") + torch.ones(3, device="standin")


def run_training(device):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            model(torch.arange(10.0).reshape(2, 5).to(device)), torch.tensor([0, 2], device=device)
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@on_devices
def test_a_model_trains_as_on_the_cpu():
    torch.testing.assert_close(run_training("standin:2"), run_training("cpu"))


@on_devices
def test_gradients_are_right_across_devices_and_streams():
    first = torch.arange(3.0, device="standin:0", requires_grad=True)
    here, there = stream_on(0), stream_on(1)
    here.wait_stream(torch.standin.current_stream(0))
    with torch.standin.stream(there), torch.standin.stream(here):
        squared = (first * first).to("standin:1")
    with torch.standin.stream(there):
        loss = (squared * squared).sum()
    torch.standin.current_stream(1).wait_stream(there)
    loss.backward()
    assert first.grad.tolist() == [0, 4, 32]


# ---- random programs ----


def run_programs(seeds, careful):
    """The errors of each program, by its seed, where it has any."""
    found = {}
    for seed in seeds:
        program = Program(seed, careful)
        program.run()
        if errors := program.errors():
            found[seed] = errors
    return found


@pytest.fixture(scope="module")
def slow_devices(accelerator_file):
    worker = WorkerProcess(
        "slow devices",
        {**accelerator.ENVIRONMENT, "TORCHWIRE_TEST_ACCELERATOR_MAX_DELAY_US": "5000"},
        prepare=accelerator.load,
    )
    yield worker
    worker.close()


def test_programs_with_events_compute_what_the_cpu_does(slow_devices):
    assert slow_devices.run(run_programs, range(50), careful=True) == {}


def test_programs_without_events_do_not(slow_devices):
    assert len(slow_devices.run(run_programs, range(50), careful=False)) > 10
