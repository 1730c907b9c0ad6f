"""Time one meta-step of MAML against higher and torchopt, and one with a GRU against a loop over
``nn.GRU``.

``pip install higher==0.2.1 torchopt==0.7.3`` (no dependencies of the package), then
``python benchmarks/speed/few_shot.py --threads 1 --repeats 12``

conv4-32 on 28 x 28 grey images, 5-way 1-shot 15-query, 4 tasks, second order, one inner step; a GRU
of 128 on 20 words of 300 numbers, 2-way 1-shot 15-query. All take the same tasks from the same
parameters, in turns within one process, and must agree on the loss. The table gives the median of
the processor's or the wall's milliseconds and how many times as long each takes as ours: the median
of the ratios within a turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedunseen.core.parameters import Params
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.encoders.conv import Conv4Settings, ConvBackbone
from fedunseen.encoders.gru import GRUBackbone
from fedunseen.methods.maml import MAML

TASKS, QUERIES, STEP = 4, 15, 0.1


class Conv4(nn.Module):
    """The network as it is usually written."""

    def __init__(self, ways: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for before in (1, 32, 32, 32):
            blocks += [
                nn.Conv2d(before, 32, 3, padding=1, bias=False),
                nn.GroupNorm(4, 32),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        self.f = nn.Sequential(*blocks)
        self.head = nn.Linear(32, ways)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.f(images - 0.5).flatten(1))
        return logits


class Words(nn.Module):
    """``nn.GRU`` and a classifier."""

    def __init__(self, ways: int) -> None:
        super().__init__()
        self.f = nn.GRU(300, 128, batch_first=True)
        self.head = nn.Linear(128, ways)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.f(words)[1][0])
        return logits


def copy(module: nn.Module, params: Params) -> None:
    """Give a module our parameters; both list them in the same order."""
    with torch.no_grad():
        ours = [params[name] for name in params if name.startswith("f.")] + [
            params["head.out.weight"],
            params["head.out.bias"],
        ]
        for value, own in zip(module.parameters(), ours, strict=True):
            value.copy_(own)


def ways_of(
    module: nn.Module, tasks: tuple[Tensor, Tensor], ways: int
) -> dict[str, Callable[[], float]]:
    """Return what makes a meta-gradient with each library that is there."""
    support = torch.arange(ways)
    queries = support.repeat_interleave(QUERIES)

    def functional() -> float:
        params = dict(module.named_parameters())
        total = torch.zeros(())
        for s, q in zip(*tasks, strict=True):
            loss = F.cross_entropy(torch.func.functional_call(module, params, (s,)), support)
            grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
            fast = {
                name: value - STEP * g
                for (name, value), g in zip(params.items(), grads, strict=True)
            }
            total = (
                total
                + F.cross_entropy(torch.func.functional_call(module, fast, (q,)), queries) / TASKS
            )
        torch.autograd.grad(total, list(params.values()))
        return float(total.detach())

    found: dict[str, Callable[[], float]] = {"functional_call": functional}
    try:
        import higher

        def by_higher() -> float:
            optimiser = torch.optim.SGD(module.parameters(), STEP)
            total = torch.zeros(())
            for s, q in zip(*tasks, strict=True):
                with higher.innerloop_ctx(module, optimiser, copy_initial_weights=False) as (
                    net,
                    inner,
                ):
                    inner.step(F.cross_entropy(net(s), support))
                    total = total + F.cross_entropy(net(q), queries) / TASKS
            torch.autograd.grad(total, list(module.parameters()))
            return float(total.detach())

        found["higher"] = by_higher
    except ImportError:
        pass
    try:
        import torchopt

        def by_torchopt() -> float:
            inner = torchopt.MetaSGD(module, lr=STEP)
            start = (torchopt.extract_state_dict(module), torchopt.extract_state_dict(inner))
            total = torch.zeros(())
            leaves = list(module.parameters())
            for s, q in zip(*tasks, strict=True):
                inner.step(F.cross_entropy(module(s), support))
                total = total + F.cross_entropy(module(q), queries) / TASKS
                torchopt.recover_state_dict(module, start[0])
                torchopt.recover_state_dict(inner, start[1])
            torch.autograd.grad(total, leaves)
            return float(total.detach())

        if not isinstance(module, Words):  # its flat weights are no leaves of a graph
            found["torchopt"] = by_torchopt
    except ImportError:
        pass
    return found


def problem(name: str) -> tuple[MAML, Params, nn.Module, tuple[Tensor, Tensor], int]:
    """Return our method and its parameters, the module, some tasks and the ways."""
    ways = 5 if name == "conv4" else 2
    backbone: Backbone = (
        ConvBackbone(Conv4Settings(), (1, 28, 28), "vectors")
        if name == "conv4"
        else GRUBackbone((20, 300))
    )
    space = ClassSpace(tuple("abcdef"), np.zeros((6, 0)), (), range(5), [], [5])
    settings = MAML.Settings(ways=ways, queries=QUERIES, tasks=TASKS, inner_steps=1, inner_lr=STEP)
    method = MAML(settings, space, torch.zeros(6, 0), backbone)
    params = method.init(np.random.default_rng(0))
    module: nn.Module = Conv4(ways) if name == "conv4" else Words(ways)
    copy(module, params)
    torch.manual_seed(0)
    shape = (1, 28, 28) if name == "conv4" else (20, 300)
    tasks = torch.rand(TASKS, ways, *shape), torch.rand(TASKS, ways * QUERIES, *shape)
    return method, params, module, tasks, ways


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--smallest", action="store_true", help="one repeat: to see that it runs")
    args = parser.parse_args()
    args.repeats = 1 if args.smallest else args.repeats
    torch.set_num_threads(args.threads)
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    print(
        f"{args.threads} threads, {args.clock} milliseconds a meta-step or a pass, median of "
        f"{args.repeats}"
    )
    print("| network | way | ms | times ours |\n|---|---|---|---|")
    for name in ("conv4", "GRU"):
        method, params, module, (support, queries), ways = problem(name)
        layout = [support.unflatten(1, (ways, 1)), queries.unflatten(1, (ways, QUERIES))]
        inputs = torch.cat(layout, 2).flatten(0, 2)
        batch = {"inputs": inputs, "weights": torch.ones(len(inputs))}

        def ours(
            method: MAML = method, params: Params = params, batch: dict[str, Tensor] = batch
        ) -> float:
            leaves = {key: value.detach().requires_grad_() for key, value in params.items()}
            loss, _ = method.loss(leaves, batch, {})
            torch.autograd.grad(loss, list(leaves.values()))
            return float(loss.detach())

        compare(
            name, {"ours": ours, **ways_of(module, (support, queries), ways)}, clock, args.repeats
        )
        if isinstance(module, Conv4):
            with torch.no_grad():
                compare(
                    "conv4, forward alone",
                    passes(method, params, module, queries),
                    clock,
                    args.repeats,
                )


def passes(
    method: MAML, params: Params, module: Conv4, queries: Tensor
) -> dict[str, Callable[[], float]]:
    """Return what sends all queries through the convolutions."""
    images = queries.flatten(0, 1)
    return {
        "ours": lambda: float(method.backbone(params, images).mean()),
        "nn.Module": lambda: float(module.f(images - 0.5).mean()),
    }


def compare(
    name: str, every: dict[str, Callable[[], float]], clock: Callable[[], float], repeats: int
) -> None:
    """Print a line for each way, after checking that all give the same number."""
    numbers = {way: run() for way, run in every.items()}  # and warm up
    for way, number in numbers.items():
        if abs(number - numbers["ours"]) > 1e-4:
            raise SystemExit(f"{name}: {way} gives {number}, ours {numbers['ours']}")
    times: dict[str, list[float]] = {way: [] for way in every}
    for _ in range(repeats):
        for way, run in every.items():
            started = clock()
            run()
            times[way].append(1000 * (clock() - started))
    for way, values in times.items():
        ratio = statistics.median(v / o for v, o in zip(values, times["ours"], strict=True))
        print(f"| {name} | {way} | {statistics.median(values):.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
