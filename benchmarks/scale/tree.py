"""A tree of partial integer sums: the digest of the flat sum, and memory and bytes at each level.

    python benchmarks/scale/tree.py [--parties 10000] [--fan-out 100] [--width 128] [--plan]
    python benchmarks/scale/tree.py --ray [--address HOST:PORT] [--workers 2]
    python benchmarks/scale/tree.py --masked [--ray]

By default 10,000 parties of one class each, 22 to a node. ``--ray``: 100,000 parties, 100 to a
node, each node a task on a Ray cluster; its first level makes the parties' samples from the seed.
``--plan``: the sizes alone of 1,000,000 parties and 100,000 classes. ``--masked``: 300 parties, 10
to a node, which adds up by the masked sum of deployments, so that it reads no party's message.

A party sends the statistics of its samples, quantized to 8 bits. A node adds what its children
send, one after the other, and sends the sum to its parent. A message has the rows of those classes
alone that its sender has, in the smallest integers that the numbers of samples allow, so that
nothing is rounded. The flat sum is that of one machine with all samples. ``--plan`` computes the
sizes of the same messages without making them. ``--scattered``: neighbors hold different classes,
instead of the same ones.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.parameters import Params, size_in_bytes
from fedunseen.data import ClassSpace, Quantization
from fedunseen.deploy.secagg.masks import Masks
from fedunseen.methods.closed_form.statistics import add, no_sums, statistics, sums_sha256
from fedunseen.strategies import Reply

BITS = 8
HEAD = 48  # bytes of a message before its classes: the hash of the class space, and two numbers
LEAST = 3  # parties of a masked sum
SUMS: Any = SimpleNamespace(adds=True, settings=SimpleNamespace(weights="uniform"))
"""The strategy of a masked sum of statistics, as far as it takes part."""
BLOCK = 1000  # parties whose samples the flat sum takes at once


Message = list[NDArray[np.generic]]


@dataclass
class Level:
    """What the members of a level have sent and done."""

    nodes: int = 0
    sent: int = 0
    largest: int = 0
    children: int = 0
    seconds: float = 0.0  # of a processor, adding
    peak: int = 0  # bytes of the largest process

    def note(self, other: Level) -> None:
        """Count what others of this level have done."""
        self.nodes, self.sent = self.nodes + other.nodes, self.sent + other.sent
        self.children, self.seconds = self.children + other.children, self.seconds + other.seconds
        self.largest, self.peak = max(self.largest, other.largest), max(self.peak, other.peak)


@dataclass(frozen=True)
class Tree:
    """Parties, each of one class, and who adds up whose sums."""

    parties: int
    classes: int
    width: int
    samples: int
    fan_out: int
    scattered: bool
    seed: int = 0
    masked: bool = False

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

    def members(self, level: int) -> int:
        """Return how many nodes a level has; parties are level 0."""
        return math.ceil(self.parties / self.fan_out**level)

    def children(self, level: int, place: int) -> range:
        """Return the places, in the level below, of a node's children."""
        last = min(self.members(level - 1), (place + 1) * self.fan_out)
        return range(place * self.fan_out, last)

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


def packed(sums: Params, levels: int) -> Message:
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


def unpacked(message: Message, nothing: Params) -> Params:
    """Return the sums of a message, int64."""
    space, numbers, there, count, rows, square = map(torch.tensor, message)
    sums = {name: nothing[name].clone() for name in ("count", "total")}
    sums["count"][there.long()], sums["total"][there.long()] = count, rows.long()
    return {**sums, "clipped": numbers[1:], "space": space, "square": square.long()}


class Maker:
    """Makes the statistics of parties, and adds messages, in one process."""

    def __init__(self, tree: Tree) -> None:
        torch.set_num_threads(1)
        self.tree, self.space = tree, tree.space
        self.quantization = Quantization.of_unit_length(BITS, 12.0, tree.width)
        self.nothing = no_sums(tree.width, self.space, self.quantization)
        self.means = np.random.default_rng(tree.seed).standard_normal((1, tree.width))

    def _samples(self, place: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return a party's samples, quantized, and their classes."""
        own = np.full(self.tree.samples, self.tree.class_of(place))
        rng = np.random.default_rng([self.tree.seed + 1, place])
        rows = self.means * (1 + own[:1, None] % 7)
        rows = rows + rng.standard_normal((self.tree.samples, self.tree.width))
        codes, _ = self.quantization.codes(rows / np.linalg.norm(rows, axis=1, keepdims=True))
        return codes, own

    def of(self, places: Iterable[int]) -> Params:
        """Return the statistics of some parties' samples, taken together."""
        codes, own = map(np.concatenate, zip(*map(self._samples, places), strict=True))
        labels = torch.from_numpy(own)
        return statistics(torch.from_numpy(codes), labels, self.space, None, self.quantization)

    def message(self, sums: Params, level: Level) -> Message:
        """Return the message of one member of a level, and count it."""
        message, count = packed(sums, self.quantization.levels), sums["count"]
        size = sum(part.nbytes for part in message)
        held = int((count > 0).sum())
        assert size == message_bytes(int(count.sum()), int(count.max()), held, self.tree.width)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        level.note(Level(nodes=1, sent=size, largest=size, peak=peak))
        return message

    def add(self, messages: Iterable[Message], level: Level) -> Message:
        """Return the message of a node from its children's, and count it."""
        total = None
        for message in messages:
            sums = unpacked(message, self.nothing)
            begun = time.process_time()
            both = sums if total is None else add([total, sums], self.space, self.quantization)
            level.note(Level(children=1, seconds=time.process_time() - begun))
            total = both
        assert total is not None
        return self.message(total, level)

    def hide(self, parties: range, below: Level, here: Level) -> Message:
        """Return the message of a node above parties, of a masked sum of those alone, and count it.

        All have the rows of the classes that one of them has. The sum is opened by the whole
        protocol: keys, shares, masked elements, opening.
        """
        own = [self.of([party]) for party in parties]
        rows = torch.stack([sums["count"] for sums in own]).sum(0).nonzero()[:, 0]
        replies = [
            Reply(k, {**sums, "count": sums["count"][rows], "total": sums["total"][rows]}, 1, 1)
            for k, sums in enumerate(own)
        ]
        begun = time.process_time()
        done = Masks(1.0, len(own)).sum(SUMS, replies, dict(replies[0].update))
        here.note(Level(children=len(own), seconds=time.process_time() - begun))
        assert list(done.clients) == list(range(len(own)))
        size = math.ceil(done.bytes_up / len(own))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        below.note(Level(nodes=len(own), sent=done.bytes_up, largest=size, peak=peak))
        total = {**self.nothing, **done.reply.update}
        for name in ("count", "total"):
            total[name] = self.nothing[name].clone()
            total[name][rows] = done.reply.update[name]
        return self.message(total, here)


def first_level(tree: Tree, place: int) -> tuple[Message, dict[int, Level]]:
    """Return the message of a node above parties, which it makes one after the other."""
    maker, parties, here = Maker(tree), Level(), Level()
    if tree.masked:
        return maker.hide(tree.children(1, place), parties, here), {0: parties, 1: here}
    messages = (maker.message(maker.of([party]), parties) for party in tree.children(1, place))
    return maker.add(messages, here), {0: parties, 1: here}


def higher_level(tree: Tree, level: int, *messages: Message) -> tuple[Message, dict[int, Level]]:
    """Return the message of a node above nodes."""
    here = Level()
    return Maker(tree).add(messages, here), {level: here}


Call = Callable[..., tuple[Any, Any]]
"""Calls a function of a node, and returns its message and counts, or what stands for them."""


def grow(tree: Tree, call: Call) -> tuple[Any, list[Any]]:
    """Return the root's message and the counts of all nodes, or what stands for them."""
    made = [call(first_level, tree, place) for place in range(tree.members(1))]
    counts = [count for _, count in made]
    for level in range(2, tree.height + 1):
        below = [message for message, _ in made]
        made = [
            call(higher_level, tree, level, *(below[k] for k in tree.children(level, place)))
            for place in range(tree.members(level))
        ]
        counts += [count for _, count in made]
    return made[0][0], counts


def on_ray(tree: Tree, address: str, workers: int) -> tuple[Message, list[dict[int, Level]]]:
    """Grow a tree on a cluster: messages go from worker to worker, and not through this process."""
    from fedunseen.deploy.engines.ray_engine import RayEngine

    engine = RayEngine(address, workers)

    def call(function: Callable[..., Any], *words: Any) -> tuple[Any, Any]:
        message, count = engine.ray.remote(num_returns=2)(function).remote(*words)
        return message, count

    try:
        root, counts = grow(tree, call)
        return engine.ray.get(root), engine.ray.get(counts)
    finally:
        engine.close()


def simulate(tree: Tree, grown: Callable[[], tuple[Message, list[dict[int, Level]]]]) -> bool:
    """Print the levels of a tree, and return whether its sum has the digest of the flat sum."""
    begun = time.monotonic()
    root, counts = grown()
    seconds = [time.monotonic() - begun]
    levels = {level: Level() for level in range(tree.height + 1)}
    for count in counts:
        for level, noted in count.items():
            levels[level].note(noted)
    maker, begun = Maker(tree), time.monotonic()
    blocks = (range(k, min(k + BLOCK, tree.parties)) for k in range(0, tree.parties, BLOCK))
    flat = add(map(maker.of, blocks), maker.space, maker.quantization)
    seconds.append(time.monotonic() - begun)
    sums = (unpacked(root, maker.nothing), flat)
    digests = [sums_sha256(one, maker.quantization) for one in sums]
    print(
        "| level | nodes | a message, KiB at most | all messages, MiB | a node's memory, MiB | "
        "adding, ms a child | the largest process, MiB |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for level, one in levels.items():
        memory = f"{2 * size_in_bytes(maker.nothing) / 2**20:.2f}" if level else ""
        adding = f"{1000 * one.seconds / one.children:.2f}" if level else ""
        sent = (
            f"{one.largest / 2**10:.1f} | {one.sent / 2**20:.1f}" if level < tree.height else "| "
        )
        print(
            f"| {level_name(level, tree.height)} | {one.nodes:,} | {sent} | {memory} | {adding} | "
            f"{one.peak / 2**20:.0f} |"
        )
    same = digests[0] == digests[1]
    print(
        f"\ntree `{digests[0][:16]}` in {seconds[0]:.0f} s, flat `{digests[1][:16]}` in "
        f"{seconds[1]:.0f} s: {'the same' if same else 'DIFFERENT'} sums_sha256"
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
        nodes, below = tree.members(level), min(tree.parties, tree.fan_out**level)
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
    parser.add_argument("--fan-out", type=int, help="children of a node")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ray", action="store_true", help="on a Ray cluster")
    parser.add_argument("--address", default="", help="of the cluster [one that is started here]")
    parser.add_argument("--workers", type=int, default=0, help="at once [one a processor]")
    parser.add_argument("--masked", action="store_true", help="parties mask what they send")
    parser.add_argument("--scattered", action="store_true", help="neighbors hold different classes")
    parser.add_argument(
        "--smallest", action="store_true", help="thirty parties: to see that it runs"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    usual = (100_000, 1000, 64, 100) if given.ray else (10_000, 1000, 64, 22)
    usual = (300, 100, 64, 10) if given.masked else usual
    usual = (1_000_000, 100_000, 2048, 100) if given.plan else usual
    usual = (30, 10, 8, 5 if given.masked else 4) if given.smallest else usual
    asked = (given.parties, given.classes, given.width, given.fan_out)
    parties, classes, width, fan_out = (
        value or other for value, other in zip(asked, usual, strict=True)
    )
    tree = Tree(
        parties, classes, width, given.samples, fan_out, given.scattered, given.seed, given.masked
    )
    if given.masked and len(tree.children(1, tree.members(1) - 1)) < LEAST:
        parser.error(f"the last node has fewer than {LEAST} parties: choose another --fan-out")
    if given.plan:
        plan(tree)
        return 0
    ways = {
        False: lambda: grow(tree, lambda function, *words: function(*words)),
        True: lambda: on_ray(tree, given.address, given.workers),
    }
    return 0 if simulate(tree, ways[given.ray]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
