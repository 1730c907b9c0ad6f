"""A tree of partial integer sums: the digest of the flat sum, and memory and bytes at each level.

    python benchmarks/scale/tree.py [--parties 10000] [--fan-out 100] [--width 128] [--plan]

By default 10,000 parties of one class each, 22 to a node. ``--plan``: the sizes alone of 1,000,000
parties and 100,000 classes.

A party sends the statistics of its samples, quantized to 8 bits. A node adds what its children
send, one after the other, and sends the sum to its parent. A message has the rows of those classes
alone that its sender has, in the smallest integers that the numbers of samples allow, so that
nothing is rounded. ``--plan`` computes the sizes of the same messages without making them.
``--scattered``: neighbors hold different classes, instead of the same ones.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.parameters import Params, size_in_bytes
from fedunseen.data import ClassSpace, Quantization
from fedunseen.methods.closed_form.statistics import add, no_sums, statistics, sums_sha256

BITS, HEAD = (
    8,
    48,
)  # bytes of a message before its classes: the hash of the class space, and two numbers


@dataclass
class Level:
    """What nodes of a level do."""

    nodes: int = 0
    sent: int = 0
    largest: int = 0
    seconds: float = 0.0


@dataclass
class Tree:
    """Parties, each of one class, and who adds up whose sums."""

    parties: int
    classes: int
    width: int
    samples: int
    fan_out: int
    scattered: bool
    levels: dict[int, Level] = field(default_factory=lambda: defaultdict(Level))

    @property
    def height(self) -> int:
        """Levels above the parties."""
        return next(h for h in range(1, 64) if self.fan_out**h >= self.parties)

    @property
    def space(self) -> ClassSpace:
        """The classes, and one unseen class."""
        names = tuple(f"class {c}" for c in range(self.classes + 1))
        semantics = np.arange(1, self.classes + 2)[:, None].astype(np.float64)
        return ClassSpace(names, semantics, ("number",), range(self.classes), [], [self.classes])

    def class_of(self, party: int) -> int:
        """Return the class that a party holds."""
        return party % self.classes if self.scattered else party * self.classes // self.parties

    def children(self, level: int, place: int) -> range:
        """Return the places, in the level below, of a node's children."""
        below = math.ceil(self.parties / self.fan_out ** (level - 1))
        return range(place * self.fan_out, min(below, (place + 1) * self.fan_out))

    def held(self, level: int, place: int) -> int:
        """Return how many classes the parties below a node hold."""
        first, last = (
            place * self.fan_out**level,
            min(self.parties, (place + 1) * self.fan_out**level) - 1,
        )
        if self.scattered:
            return min(self.classes, last - first + 1)
        return self.class_of(last) - self.class_of(first) + 1


def kind(bound: int) -> np.dtype[np.signedinteger]:
    """Return the smallest integers that hold numbers from -bound to bound."""
    return next(np.dtype(f"<i{size}") for size in (1, 2, 4, 8) if bound < 2 ** (8 * size - 1))


def message_bytes(samples: int, most: int, held: int, width: int) -> int:
    """Return the bytes of a message about so many samples, at most ``most`` of one class, of
    ``held`` classes.
    """
    levels = 2 ** (BITS - 1) - 1
    rows = held * (4 + 8 + width * kind(levels * most).itemsize)
    return HEAD + rows + width * (width + 1) // 2 * kind(levels**2 * samples).itemsize


def packed(sums: Params, levels: int) -> list[NDArray[np.generic]]:
    """Return a message: its head, the classes that it has, their counts and sums, and the second
    moments.
    """
    count, total = sums["count"].numpy(), sums["total"].numpy()
    there = np.flatnonzero(count)
    numbers = np.array([len(there), int(sums["clipped"])], dtype="<i8")
    rows = total[there].astype(kind(levels * int(count.max())))
    square = sums["square"].numpy().astype(kind(levels**2 * int(count.sum())))
    return [
        sums["space"].numpy(),
        numbers,
        there.astype("<i4"),
        count[there].astype("<i8"),
        rows,
        square,
    ]


def unpacked(message: list[NDArray[np.generic]], nothing: Params) -> Params:
    """Return the sums of a message, int64."""
    space, numbers, there, count, rows, square = (torch.from_numpy(part) for part in message)
    sums = {name: nothing[name].clone() for name in ("count", "total")}
    sums["count"][there.long()], sums["total"][there.long()] = count, rows.long()
    return {**sums, "clipped": numbers[1:], "space": space, "square": square.long()}


def simulate(tree: Tree) -> bool:
    """Print the levels of a tree, and return whether its sum has the digest of the flat sum."""
    space, quantization = tree.space, Quantization.of_unit_length(BITS, 12.0, tree.width)
    nothing, means = (
        no_sums(tree.width, space, quantization),
        np.random.default_rng(0).standard_normal((1, tree.width)),
    )

    def party(place: int) -> Params:
        own, rng = np.full(tree.samples, tree.class_of(place)), np.random.default_rng([1, place])
        rows = means * (1 + own[:1, None] % 7) + rng.standard_normal((tree.samples, tree.width))
        codes, _ = quantization.codes(rows / np.linalg.norm(rows, axis=1, keepdims=True))
        return statistics(torch.from_numpy(codes), torch.from_numpy(own), space, None, quantization)

    def node(level: int, place: int) -> Params:
        """Return the sums of a node of a level, the parties' being 0, from its children's
        messages.
        """
        if level == 0:
            return party(place)

        def received() -> Iterator[Params]:
            for child in tree.children(level, place):
                sums = node(level - 1, child)
                message, count = packed(sums, quantization.levels), sums["count"]
                size, below = sum(part.nbytes for part in message), tree.levels[level - 1]
                assert size == message_bytes(
                    int(count.sum()), int(count.max()), int((count > 0).sum()), tree.width
                )
                below.nodes, below.sent, below.largest = (
                    below.nodes + 1,
                    below.sent + size,
                    max(below.largest, size),
                )
                yield unpacked(message, nothing)

        total, here = None, tree.levels[level]
        for sums in received():
            begun = time.process_time()
            total = sums if total is None else add([total, sums], space, quantization)
            here.seconds += time.process_time() - begun
        assert total is not None
        return total

    whole = node(tree.height, 0)
    tree.levels[tree.height].nodes = 1
    flat = add(map(party, range(tree.parties)), space, quantization)
    digests = [sums_sha256(sums, quantization) for sums in (whole, flat)]
    print(
        "| level | nodes | a message, KiB at most | all messages, MiB | a node's memory, MiB | "
        "adding, ms a child |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    for level in range(tree.height + 1):
        one, below = tree.levels[level], tree.levels[level - 1].nodes if level else 0
        memory = f"{2 * size_in_bytes(nothing) / 2**20:.2f}" if level else ""
        adding = f"{1000 * one.seconds / below:.2f}" if level else ""
        sent = (
            f"{one.largest / 2**10:.1f} | {one.sent / 2**20:.1f}" if level < tree.height else "| "
        )
        print(
            f"| {level_name(level, tree.height)} | {one.nodes:,} | {sent} | {memory} | {adding} |"
        )
    same = digests[0] == digests[1]
    print(
        f"\ntree `{digests[0][:16]}`, flat `{digests[1][:16]}`: "
        f"{'the same' if same else 'DIFFERENT'} sums_sha256"
    )
    return same


def level_name(level: int, height: int) -> str:
    """Return a level's name."""
    return "parties" if level == 0 else "root" if level == height else f"nodes, level {level}"


def plan(tree: Tree) -> None:
    """Print the sizes of a tree without making it."""
    order = "scattered" if tree.scattered else "grouped by class"
    print(
        f"{tree.parties:,} parties of {tree.samples} samples, {tree.classes:,} classes, "
        f"{tree.width} features, {order}"
    )
    print()
    print("| level | nodes | classes of a node | a message, MB | all messages, GB | memory, MB |")
    print("|---|--:|--:|--:|--:|--:|")
    received = 0.0
    for level in range(tree.height + 1):
        nodes, below = (
            math.ceil(tree.parties / tree.fan_out**level),
            min(tree.parties, tree.fan_out**level),
        )
        held = tree.held(level, 0)
        size = (
            message_bytes(
                below * tree.samples, tree.samples * math.ceil(below / held), held, tree.width
            )
            / 1e6
        )
        memory = f"{size_of_sums(held, tree.width) / 1e6 + received:,.1f}" if level else ""
        sent = f"{size:,.2f} | {size * nodes / 1e3:,.1f}" if level < tree.height else "| "
        print(f"| {level_name(level, tree.height)} | {nodes:,} | {held:,} | {sent} | {memory} |")
        received = size
    print(
        "\nall classes in one message of int64: "
        f"{size_of_sums(tree.classes, tree.width) / 1e6:,.1f} MB"
    )
    print(f"a kernel between all classes, float64: {tree.classes**2 * 8 / 1e9:,.1f} GB")
    print(f"weights of all classes, float32: {tree.classes * tree.width * 4 / 1e9:.2f} GB")


def size_of_sums(classes: int, width: int) -> int:
    """Return the bytes of statistics in int64."""
    return 8 * (classes * (width + 1) + width * (width + 1) // 2)


def main() -> int:
    """Print the tables, and return 1 where the digests differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--plan", action="store_true", help="sizes of 1,000,000 parties and 100,000 classes"
    )
    parser.add_argument("--parties", type=int)
    parser.add_argument("--classes", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--samples", type=int, default=10, help="of a party [10]")
    parser.add_argument("--fan-out", type=int)
    parser.add_argument("--scattered", action="store_true", help="neighbors hold different classes")
    parser.add_argument(
        "--smallest", action="store_true", help="thirty parties: to see that it runs"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    usual = (1_000_000, 100_000, 2048, 100) if given.plan else (10_000, 1000, 64, 22)
    usual = (30, 10, 8, 4) if given.smallest else usual
    asked = (given.parties, given.classes, given.width, given.fan_out)
    parties, classes, width, fan_out = (
        value or other for value, other in zip(asked, usual, strict=True)
    )
    tree = Tree(parties, classes, width, given.samples, fan_out, given.scattered)
    if given.plan:
        plan(tree)
        return 0
    return 0 if simulate(tree) else 1


if __name__ == "__main__":
    raise SystemExit(main())
