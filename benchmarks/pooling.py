"""Max pooling in the convolutional encoders: ours (`fedunseen.encoders.pooling`) against PyTorch's, in pairs.

    OMP_NUM_THREADS=1 python benchmarks/pooling.py [--repeats 15] [--markdown FILE]

Each pair times both on the same numbers, one right after the other, the order changing from pair to pair. A cell is the
median of the ratios of such pairs (how many times as long PyTorch's takes), in brackets their quartiles. Time is the
processor time of one thread. Both must give the same bits, or the benchmark fails.

The first rows pool and do nothing else. The others are a step of the encoder: its convolutions, normalisation and
activations are the same on both sides.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.files import write_text
from fedunseen.encoders import conv, resnet12
from fedunseen.encoders.conv import Conv4Settings, ConvBackbone
from fedunseen.encoders.pooling import halve
from fedunseen.encoders.resnet12 import ResNet12Backbone, ResNet12Settings

Pool = Callable[[Tensor], Tensor]
Work = Callable[[Pool], list[Tensor]]


def by_torch(maps: Tensor) -> Tensor:
    """Pool as PyTorch does."""
    return F.max_pool2d(maps, 2)


def pooling(shape: tuple[int, ...], backward: bool) -> Work:
    """Return the work of pooling maps (n, c, height, width), with a backward pass or without."""
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=backward)
    gradient = torch.randn(by_torch(maps).shape, generator=torch.Generator().manual_seed(1))

    def work(pool: Pool) -> list[Tensor]:
        pooled = pool(maps)
        return [pooled, *(torch.autograd.grad(pooled, maps, gradient) if backward else ())]

    return work


def step(kind: str, side: int, images: int, order: int) -> Work:
    """Return the work of an encoder on images: forward alone (0), its gradient (1), or a gradient's gradient (2)."""
    made: ConvBackbone | ResNet12Backbone
    if kind == "conv4":
        made = ConvBackbone(Conv4Settings(), (3, side, side), "vectors")
    else:
        made = ResNet12Backbone(ResNet12Settings(), (3, side, side), "vectors")
    inputs = torch.randn(images, 3, side, side, generator=torch.Generator().manual_seed(0))
    params = {name: value.requires_grad_() for name, value in made.init(np.random.default_rng(0)).items()}

    def work(pool: Pool) -> list[Tensor]:
        conv.halve = resnet12.halve = pool  # type: ignore[assignment]
        with torch.set_grad_enabled(order > 0):
            value = made(params, inputs, training=True).square().mean()
        found = [value]
        for left in range(order, 0, -1):
            grads = torch.autograd.grad(value, list(params.values()), create_graph=left > 1)
            value = torch.stack([grad.square().sum() for grad in grads]).sum()
            found = list(grads)
        conv.halve = resnet12.halve = halve
        return [one.detach() for one in found]

    return work


def cases(smallest: bool) -> dict[str, Work]:
    """Return what is measured, by name."""
    if smallest:
        return {
            "pooling 2 x 3 x 6 x 6, forward and backward": pooling((2, 3, 6, 6), True),
            "conv4, 2 images of 8 x 8, a gradient's gradient": step("conv4", 8, 2, 2),
        }
    found = {}
    for shape in ((75, 32, 28, 28), (64, 64, 32, 32), (25, 64, 84, 84)):
        name = f"pooling {' x '.join(map(str, shape))}"
        found |= {f"{name}, forward": pooling(shape, False), f"{name}, forward and backward": pooling(shape, True)}
    for kind, side, images in (("conv4", 28, 80), ("conv4", 84, 25), ("resnet12", 32, 10)):
        name = f"{kind}, {images} images of {side} x {side}"
        for order, words in enumerate(("forward", "forward and backward", "a gradient's gradient")):
            found[f"{name}, {words}"] = step(kind, side, images, order)
    return found


def measure(work: Work, repeats: int) -> tuple[float, list[float]]:
    """Return milliseconds with our pooling, and the ratios of the pairs."""
    pools = (halve, by_torch)
    ours, theirs = (work(pool) for pool in pools)  # not counted
    if not all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)):
        raise SystemExit("the two poolings do not give the same bits")
    own, ratios = [], []
    for repeat in range(repeats):
        seconds = {}
        for pool in pools if repeat % 2 else reversed(pools):
            start = time.process_time()
            work(pool)
            seconds[pool] = time.process_time() - start
        own.append(1000 * seconds[halve])
        ratios.append(seconds[by_torch] / seconds[halve])
    return statistics.median(own), ratios


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    parser.add_argument("--smallest", action="store_true", help="tiny shapes, to see that it runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| work | ours, ms | PyTorch's / ours |", "|---|--:|--:|"]
    print("\n".join(lines))
    for name, work in cases(args.smallest).items():
        ms, ratios = measure(work, 2 if args.smallest else args.repeats)
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        lines.append(f"| {name} | {ms:.1f} | {middle:.2f} ({low:.2f}-{high:.2f}) |")
        print(lines[-1], flush=True)
    if args.markdown:
        write_text(args.markdown, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
