"""Actors and a learner: reinforcement learning of a cart-pole, with policy gradients.

    learner ── policy ────> actor0, actor1     one call to each is always under way
    actor      plays episodes of a batch of cart-poles with that policy
    learner <── episodes ── whichever actor is first; a gradient step; its next call has the new policy

The learner never waits for the slowest actor, so an actor's policy may be some steps old.

Exits 0 if the pole is held up for long enough on average.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
from typing import NamedTuple

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torchwire
from torch import Tensor, nn

STEPS = 200  # an episode's length at most
REQUIRED_LENGTH = 120.0
CARTS = 16  # that an actor plays at the same time


class CartPoles:
    """Cart-poles side by side, by the equations of Barto, Sutton and Anderson (1983)."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        # Position and speed of the cart, angle of the pole and its speed.
        self.state = (torch.rand(count, 4, generator=generator) - 0.5) * 0.1

    def step(self, push_right: Tensor) -> Tensor:
        """Pushes each cart to the right or to the left for 20 ms; returns which have fallen over or left the track."""
        _, speed, angle, turning = self.state.unbind(dim=1)
        force = torch.where(push_right, 10.0, -10.0)
        inertia = (force + 0.05 * turning**2 * angle.sin()) / 1.1
        turning_change = (9.8 * angle.sin() - angle.cos() * inertia) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        speed_change = inertia - 0.05 * turning_change * angle.cos() / 1.1
        change = torch.stack([speed, speed_change, turning, turning_change], dim=1)
        self.state = self.state + 0.02 * change
        return (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.2095)


class Episodes(NamedTuple):
    """Of a batch of carts, step by step; `alive` says which steps count."""

    states: Tensor  # steps x carts x 4
    actions: Tensor  # steps x carts
    alive: Tensor  # steps x carts


def make_policy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))  # to the log-odds of "right"


_generators: dict[str, torch.Generator] = {}


def play(parameters: dict[str, Tensor]) -> Episodes:
    """What an actor does: the learner calls it again and again."""
    name = rpc.get_worker_info().name
    generator = _generators.setdefault(name, torch.Generator().manual_seed(int(name.removeprefix("actor"))))
    policy = make_policy()
    policy.load_state_dict(parameters)
    carts = CartPoles(CARTS, generator)
    alive = torch.ones(CARTS, dtype=torch.bool)
    states, actions, lives = [], [], []
    with torch.no_grad():
        while len(states) < STEPS and alive.any():
            right = torch.rand(CARTS, generator=generator) < policy(carts.state).squeeze(1).sigmoid()
            states.append(carts.state)
            actions.append(right)
            lives.append(alive)
            alive = alive & ~carts.step(right)
    return Episodes(torch.stack(states), torch.stack(actions), torch.stack(lives))


def policy_loss(policy: nn.Module, episodes: Episodes) -> Tensor:
    """REINFORCE: each action's log-probability, weighted with what came after it, less what comes on average."""
    rewards = episodes.alive.float()
    returns = torch.zeros_like(rewards)
    following = torch.zeros(rewards.shape[1])
    for step in reversed(range(len(rewards))):
        following = rewards[step] + 0.99 * following
        returns[step] = following
    counted = returns[episodes.alive]
    advantages = (returns - counted.mean()) / (counted.std() + 1e-6)
    log_odds = policy(episodes.states).squeeze(2)
    log_probability = -nn.functional.binary_cross_entropy_with_logits(
        log_odds, episodes.actions.float(), reduction="none"
    )
    return -(log_probability * advantages)[episodes.alive].mean()


def learn(actors: list[str], updates: int) -> bool:
    """What the learner does. Returns whether the pole is held up for long enough."""
    torch.manual_seed(0)
    policy = make_policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    arrived: queue.SimpleQueue[tuple[str, torch.futures.Future[Episodes]]] = queue.SimpleQueue()

    def ask(actor: str) -> None:
        parameters = {name: value.detach().clone() for name, value in policy.state_dict().items()}
        rpc.rpc_async(actor, play, args=(parameters,)).add_done_callback(lambda future: arrived.put((actor, future)))

    for actor in actors:
        ask(actor)
    lengths: list[float] = []
    for _ in range(updates):
        actor, future = arrived.get()
        episodes = Episodes(*future.value())
        optimizer.zero_grad()
        policy_loss(policy, episodes).backward()
        optimizer.step()
        ask(actor)
        lengths.append(episodes.alive.sum(dim=0).float().mean().item())
        if len(lengths) >= 10 and sum(lengths[-10:]) / 10 >= REQUIRED_LENGTH:
            break
    first, last = sum(lengths[:5]) / len(lengths[:5]), sum(lengths[-10:]) / len(lengths[-10:])
    print(f"result: the pole is held up for {first:.0f} -> {last:.0f} steps, after {len(lengths)} updates")
    return last >= REQUIRED_LENGTH


def run_worker(rank: int, store: str, actors: int, updates: int) -> None:
    torch.set_num_threads(1)  # the matrices are small, and all processes share the cores
    names = ["learner", *(f"actor{i}" for i in range(actors))]
    rpc.init_rpc(
        names[rank],
        backend=rpc.BackendType.TORCHWIRE,  # pyright: ignore[reportAttributeAccessIssue]
        rank=rank,
        world_size=len(names),
        rpc_backend_options=torchwire.TorchwireRpcBackendOptions(init_method=store),
    )
    enough = learn(names[1:], updates) if rank == 0 else True
    rpc.shutdown()  # waits for the calls that are still under way
    if not enough:
        sys.exit("the policy did not learn enough")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--actors", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--updates", type=int, default=400, help="at most; default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_worker, (f"file://{folder}/store", args.actors, args.updates), nprocs=1 + args.actors)


if __name__ == "__main__":
    main()
