"""Time one generator step of f-CLSWGAN, critic steps included, against a straightforward PyTorch loop.

``python benchmarks/generative.py --hidden 4096 --clients 1,4,10 --repeats 5``

The loop is what a researcher writes: ``nn.Module`` networks, ``torch.optim.Adam``, the gradient penalty by
``torch.autograd.grad(create_graph=True)``. Both take the same batches in turns within one process; the table gives the
median, the ratio of medians, and how far the two end apart, as a part of the way that the first client has gone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from fedunseen.core.memory import keep_pages
from fedunseen.core.parameters import Params
from fedunseen.core.trainer import LocalResult, Task, Trainer
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.clswgan import CLSWGAN


def problem(width: int, attributes: int, hidden: int, clients: int, turns: int) -> tuple[CLSWGAN, Trainer, list[Task]]:
    """Make clients of AWA1's size (10 classes each) with random features."""
    rng = np.random.default_rng(0)
    classes = 10 * clients + 2
    names = tuple(f"class {i}" for i in range(classes))
    semantics = rng.uniform(size=(classes, attributes))
    semantics /= np.linalg.norm(semantics, axis=1, keepdims=True)
    columns = tuple(f"attribute {i}" for i in range(attributes))
    space = ClassSpace(names, semantics, columns, range(classes - 2), [], [classes - 2, classes - 1])
    method = CLSWGAN(
        CLSWGAN.Settings(hidden=hidden, condition_scale=1.0),
        space,
        torch.from_numpy(semantics).float(),
        Backbone((width,)),
    )
    samples = 64 * turns
    labels = np.concatenate([rng.integers(10 * k, 10 * k + 10, samples) for k in range(clients)])
    inputs = torch.from_numpy(np.abs(rng.normal(size=(len(labels), width))).astype(np.float32))
    phases = [phase for phase in method.phases() if not phase.before_round]
    trainer = Trainer(phases, inputs, torch.from_numpy(labels), method.context(), lambda gradient: gradient)
    params = method.init(np.random.default_rng(1))
    tasks = []
    for k in range(clients):
        own = np.arange(samples * k, samples * (k + 1))
        plan = method.plan("", labels[own], 1, np.random.default_rng(k))
        tasks.append(Task(params, own, {"": plan}, method.client_context(np.unique(labels[own])), {}))
    return method, trainer, tasks


class Loop:
    """The straightforward loop."""

    def __init__(self, method: CLSWGAN, trainer: Trainer, task: Task) -> None:
        self.method, self.trainer, self.task = method, trainer, task
        params, hidden = task.params, method.hidden
        result = params["generator.0.weight"].shape[1]
        self.generator = nn.Sequential(
            nn.Linear(result, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, method.width), nn.ReLU()
        )
        self.critic = nn.Sequential(
            nn.Linear(method.width + method.attribute_count, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 1)
        )
        self.softmax = nn.Linear(method.width, len(method.space.names))
        with torch.no_grad():
            for name, network in (("generator", self.generator), ("critic", self.critic)):
                for layer in (0, 1):
                    for kind in ("weight", "bias"):
                        getattr(network[2 * layer], kind).copy_(params[f"{name}.{layer}.{kind}"])
            for kind in ("weight", "bias"):
                getattr(self.softmax, kind).copy_(params[f"softmax.{kind}"])
        self.softmax.requires_grad_(False)
        adam = {"lr": method.settings.lr, "betas": method.settings.betas}
        self.critic_adam = torch.optim.Adam(self.critic.parameters(), **adam)
        self.generator_adam = torch.optim.Adam(self.generator.parameters(), **adam)

    def run(self) -> None:
        """Do the whole plan."""
        plan, s = self.task.plans[""], self.method.settings
        held = self.task.context["held"]
        for row in range(plan.steps):
            rows = torch.from_numpy(self.task.samples[plan.index[row]])
            real, labels = self.trainer.inputs[rows], self.trainer.labels[rows]
            attributes = self.method.semantics[labels]
            drawn = {name: torch.from_numpy(value) for name, value in plan.draws(row).items()}
            with torch.no_grad():
                fake = self.generator(torch.cat([drawn["critic.noise"], attributes], 1))
            at_real = self.critic(torch.cat([real, attributes], 1))
            at_fake = self.critic(torch.cat([fake, attributes], 1))
            u = drawn["critic.mix"].unsqueeze(1)
            between = (u * real + (1 - u) * fake).requires_grad_()
            value = self.critic(torch.cat([between, attributes], 1))
            (gradient,) = torch.autograd.grad(value.sum(), between, create_graph=True)
            penalty = ((gradient.norm(dim=1) - 1) ** 2).mean()
            loss = at_fake.mean() - at_real.mean() + s.penalty * penalty
            self.critic_adam.zero_grad()
            loss.backward()
            self.critic_adam.step()
            if (row + 1) % s.critic_steps:
                continue
            for p in self.critic.parameters():
                p.requires_grad_(False)
            fake = self.generator(torch.cat([drawn["generator.noise"], attributes], 1))
            value = self.critic(torch.cat([fake, attributes], 1))
            logits = self.softmax(fake).masked_fill(~held, -torch.inf)
            loss = -value.mean() + s.beta * nn.functional.cross_entropy(logits, labels)
            self.generator_adam.zero_grad()
            loss.backward()
            self.generator_adam.step()
            for p in self.critic.parameters():
                p.requires_grad_(True)

    def params(self) -> Params:
        """Return the parameters under the method's names."""
        networks = {"generator": self.generator, "critic": self.critic}
        return {
            f"{name}.{layer}.{kind}": getattr(network[2 * layer], kind).detach()
            for name, network in networks.items()
            for layer in (0, 1)
            for kind in ("weight", "bias")
        }


def run_all(loops: Sequence[Loop]) -> None:
    """Run every client's loop."""
    for loop in loops:
        loop.run()


def one_at_a_time(trainer: Trainer, tasks: Sequence[Task]) -> list[LocalResult]:
    """Train every client by itself."""
    return [trainer.one(task) for task in tasks]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512, help="of the features")
    parser.add_argument("--attributes", type=int, default=85)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--clients", default="1,4,10")
    parser.add_argument("--turns", type=int, default=4, help="generator steps of a client in one measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--bf16", action="store_true", help="too: many times slower where the processor has no bf16")
    parser.add_argument("--smallest", action="store_true", help="made as small as can be: to see that it runs")
    args = parser.parse_args()
    if args.smallest:
        args.width, args.attributes, args.hidden, args.clients, args.turns, args.repeats = 6, 5, 7, "1,2", 1, 1
    torch.set_num_threads(args.threads)
    print(
        f"features {args.width}, attributes {args.attributes}, hidden {args.hidden}, batch 64, 5 critic steps, "
        f"{args.threads} threads; milliseconds a generator step and client, median of {args.repeats}"
    )
    print("| clients | loop | one at a time | ratio | batched | ratio | apart |" + " bf16 | ratio |" * args.bf16)
    print("|---|---|---|---|---|---|---|" + "---|---|" * args.bf16)
    for clients in map(int, args.clients.split(",")):
        method, trainer, tasks = problem(args.width, args.attributes, args.hidden, clients, args.turns)
        rough = Trainer(trainer.phases, trainer.inputs, trainer.labels, trainer.context, trainer.correct, bf16=True)
        steps = args.turns * clients
        times: dict[str, list[float]] = {}
        last: Params = {}
        with keep_pages():
            for _ in range(args.repeats + 1):
                loops = [Loop(method, trainer, task) for task in tasks]
                ways: dict[str, Callable[[], Any]] = {
                    "loop": partial(run_all, loops),
                    "one": partial(one_at_a_time, trainer, tasks),
                    "batched": partial(trainer.together, tasks),
                }
                if args.bf16:
                    ways["bf16"] = partial(one_at_a_time, rough, tasks)
                for name, way in ways.items():
                    started = time.perf_counter()
                    result = way()
                    times.setdefault(name, []).append((time.perf_counter() - started) / steps)
                    if name == "one":
                        last = result[0].params
        median = {name: 1000 * statistics.median(values[1:]) for name, values in times.items()}  # the first warms up
        expected = loops[0].params()
        start = tasks[0].params
        gap = sum(float((last[name] - value).square().sum()) for name, value in expected.items())
        way = sum(float((value - start[name]).square().sum()) for name, value in expected.items())
        apart = (gap / way) ** 0.5
        if not apart < 1e-2:
            raise SystemExit(f"one at a time ends {apart:.1e} of the way from the loop")
        ratio = {name: median["loop"] / value for name, value in median.items()}
        print(
            f"| {clients} | {median['loop']:.0f} | {median['one']:.0f} | {ratio['one']:.2f} "
            f"| {median['batched']:.0f} | {ratio['batched']:.2f} | {apart:.1e} |"
            + (f" {median['bf16']:.0f} | {ratio['bf16']:.2f} |" if args.bf16 else ""),
            flush=True,
        )


if __name__ == "__main__":
    main()
