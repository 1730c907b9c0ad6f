"""What a batched step of local training takes, and what it would take at least: products alone, a graph traced once.

    python benchmarks/step.py [--cases 1,2,3] [--repeats 5]

The shapes are those of ``trainer.py``; one thread, processor time, medians, in milliseconds a step of all clients of a
chunk. ``plain`` is a step of the plain loop for as many clients; ``products`` are the matrix products of forward and
backward pass, without what stands between them, and ``update`` is SGD's. ``traced`` is the same gradient as a flat
graph of PyTorch operations (``make_fx``), which must give the same bits; ``tracing`` is what that takes once, in
seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fedunseen.core.memory import keep_pages
from trainer import CASES, SMALLEST, Case, Federation


def milliseconds(act: Callable[[], object], repeats: int) -> float:
    """Return the median processor time, after one time that does not count."""
    act()
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        act()
        taken.append(time.process_time() - start)
    return 1000 * float(np.median(taken))


def first_step(federation: Federation) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the gradient of a chunk's first step and its arguments, caught while a round runs."""
    caught: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    plain = torch.func.vmap

    def vmap(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
        mapped = plain(function, **how)

        def called(*given: Any) -> Any:
            caught.append((mapped, given))
            return mapped(*given)

        return called

    with patch.object(torch.func, "vmap", vmap):
        federation.ours("batched")()
    return caught[0]


def products(case: Case, clients: int) -> Callable[[], None]:
    """Return a step's matrix products: each layer's forward, its weights' gradient, its inputs' but for the first."""
    rows = [torch.randn(clients, case.batch, width) for width in case.widths]
    weights = [torch.randn(clients, new, old) for old, new in zip(case.widths, case.widths[1:], strict=False)]

    def act() -> None:
        for i, weight in enumerate(weights):
            torch.bmm(rows[i], weight.mT)
            torch.bmm(rows[i + 1].mT, rows[i])
            if i:
                torch.bmm(rows[i + 1], weight)

    return act


def line(case: Case, repeats: int) -> str:
    """Measure a case."""
    federation = Federation(case)
    gradient, given = first_step(federation)
    flat, layout = pytree.tree_flatten(given)
    group = given[0]
    clients = len(next(iter(group.values())))

    def eager(*values: Tensor) -> list[Tensor]:
        return pytree.tree_flatten(gradient(*pytree.tree_unflatten(list(values), layout)))[0]

    start = time.process_time()
    graph = make_fx(eager)(*flat)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    tracing = time.process_time() - start
    same = all(torch.equal(one, other) for one, other in zip(eager(*flat), graph(*flat), strict=True))
    optimiser = federation.method.phases()[0].optimiser
    params = [value.clone() for value in group.values()]
    state, grads = optimiser.init(group), [torch.randn_like(value) for value in params]
    times = {
        "plain": milliseconds(federation.plain(), max(1, repeats // 2)) / case.steps * clients / case.clients,
        "eager": milliseconds(lambda: eager(*flat), 3 * repeats),
        "traced": milliseconds(lambda: graph(*flat), 3 * repeats),
        "products": milliseconds(products(case, clients), 3 * repeats),
        "update": milliseconds(lambda: optimiser.update(params, grads, state, 1), 3 * repeats),
    }
    cells = " | ".join(f"{value:.1f}" for value in times.values())
    shape = f"{clients} x {case.batch}, {'-'.join(map(str, case.widths))}"
    return f"| {shape} | {cells} | {times['eager'] / times['traced']:.2f} | {'yes' if same else 'NO'} | {tracing:.2f} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="1,2,3", help="numbers of trainer.py's shapes [1,2,3]")
    parser.add_argument("--repeats", default=5, type=int)
    parser.add_argument("--smallest", action="store_true", help="one tiny shape: to see that it runs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cases = SMALLEST if asked.smallest else [CASES[int(number) - 1] for number in asked.cases.split(",")]
    heads = ("plain", "eager", "traced", "products", "update", "eager / traced", "same bits", "tracing, s")
    print(f"| clients x batch, widths | {' | '.join(heads)} |\n|---{'|--:' * len(heads)}|", flush=True)
    with keep_pages():
        for case in cases:
            print(line(case, 1 if asked.smallest else asked.repeats), flush=True)


if __name__ == "__main__":
    main()
