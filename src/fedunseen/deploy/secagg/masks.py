"""Replies of clients as ring elements, the sum of all as one reply, and both in one process, as a
simulation does it.

A party's ring elements hold its update times its weight, and its losses times the weight. Weights
are 1, or fixed in the plan. Of a closed form they hold the statistics: int64 exactly, float64 in
two elements. Tensors of bytes say what all parties have in common, such as the class space; they
are compared through the plan and not sent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedunseen.core.errors import FedUnseenError, QuorumError
from fedunseen.core.parameters import Params
from fedunseen.deploy.secagg.driver import InOneProcess, Opened, agree_on
from fedunseen.deploy.secagg.enrolment import colluders, in_memory, threshold
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.secagg.party import SecAggClient
from fedunseen.deploy.secagg.plan import Plan
from fedunseen.deploy.secagg.primitives import Elements, SecAggError, digest
from fedunseen.deploy.secagg.ring import LARGEST_SUM, Field, Layout, RangeError
from fedunseen.federation.server_step import MaskedSum
from fedunseen.strategies import Instruction, Reply, Strategy
from fedunseen.strategies.base import MASKED
from fedunseen.strategies.summed import is_sum

ALL = -1
"""The client of the reply that is the sum of all."""

_SAMPLES = 2.0**24  # the largest number of samples that an update is weighted by


def digest_of(tensors: Params) -> str:
    """Return the digest of tensors with their names, types and shapes."""
    parts = []
    for name, value in sorted(tensors.items()):
        kept = value.detach().cpu().contiguous()
        kind = f"{name} {kept.dtype} {list(kept.shape)}"
        parts += [kind.encode(), kept.reshape(-1).view(torch.uint8).numpy().tobytes()]
    return digest(b"fedunseen tensors", *parts).hex()


BEYOND = "beyond the range"
"""A term of a reply under masks: 1 where numbers were cut."""


def weight_of(strategy: Strategy, reply: Reply) -> int:
    """Return what an update counts: 1 where sums are added up, so that a party does not say how
    much it holds.
    """
    if strategy.adds:
        return 1
    return {"uniform": 1, "classes": reply.classes, "samples": reply.samples}[
        strategy.settings.weights
    ]


def _within(value: Tensor, most: float) -> bool:
    """Return whether all numbers are at most so large; of NaN, false."""
    if not value.numel():
        return True
    least, greatest = (float(number) for number in torch.aminmax(value))
    return max(-least, greatest) <= float(most)


@dataclass(frozen=True, eq=False)
class Masks:
    """How the clients of a federation mask what they send."""

    range: float
    clients: int
    noisy: bool = False  # each client adds a part of the noise of private merging
    dropouts: bool = False
    threshold: int | None = (
        None  # of how many clients a sum is at least; None: as the default of colluders takes
    )
    classes: int = 2**16

    def _heaviest(self, strategy: Strategy) -> float:
        """Return the largest weight of an update."""
        return {"uniform": 1.0, "classes": float(self.classes), "samples": _SAMPLES}[
            strategy.settings.weights
        ]

    @property
    def least(self) -> int:
        """Of how many clients a sum is at least."""
        return self.threshold or threshold(self.clients, colluders(self.clients))

    def spent(self, strategy: Strategy) -> tuple[float, float]:
        """Return (epsilon, delta) of all rounds for a client, from the noise that it draws."""
        return strategy.spent(self.least) if self.noisy else (math.inf, 0.0)

    def layout(self, strategy: Strategy, expected: Params, losses: Iterable[str] = ()) -> Layout:
        """Return which numbers of a reply stand where."""
        most = self.range * self._heaviest(strategy)
        fields = []
        for name, value in sorted(expected.items()):
            where = f"update/{name}", tuple(value.shape)
            if value.is_floating_point():
                fields.append(
                    Field(*where, "sum") if strategy.adds else Field(*where, "number", most)
                )
            elif is_sum(value):
                fields.append(Field(*where, "whole"))
        losses_ = [
            Field(f"{kind}/{name}", (), "sum")
            for name in sorted(set(losses))
            for kind in ("loss", "having")
        ]
        return Layout((*fields, *losses_), self.clients)

    def cut(self, strategy: Strategy, reply: Reply) -> tuple[Reply, int]:
        """Return a reply whose numbers all fit under masks, and how many did not.

        What is too large becomes the largest number that fits, and what is not a number 0. A loss
        that does not fit is left out.
        """
        update: Params = {}
        count = 0
        for name, value in reply.update.items():
            most = self._most(strategy, value)
            if _within(value, most):
                update[name] = value
                continue
            inside = value.double().abs() <= most  # also false for NaN
            count += int((~inside).sum())
            value = value.double() if value.is_floating_point() else value
            update[name] = value.nan_to_num(0.0).clamp(-most, most)
        weight = weight_of(strategy, reply)
        terms = {n: term for n, term in reply.terms.items() if abs(weight * term) <= LARGEST_SUM}
        count += len(reply.terms) - len(terms)
        return replace(reply, update=update, terms=terms), count

    def counts_cuts(self, strategy: Strategy) -> bool:
        """Say whether sums have the term :data:`BEYOND`. It is of updates, and has no noise: where
        merging is private, it would show more of a client than the accountant counts.
        """
        return not strategy.adds and not self.noisy

    def _most(self, strategy: Strategy, value: Tensor) -> float:
        """Return the largest number of an update that fits."""
        if not is_sum(value):
            return math.inf
        if value.is_floating_point():
            return LARGEST_SUM if strategy.adds else self.range
        return 2**62 // self.clients

    def encode(
        self,
        strategy: Strategy,
        layout: Layout,
        reply: Reply,
        rho: bytes,
        round: int = 0,
        cut: bool = False,
    ) -> Elements:
        """Return a client's reply as ring elements, with its part of the noise if merging is
        private.

        No client opens a sum of fewer than ``least``; so many parts are noise enough.

        Args:
            strategy: how replies merge.
            layout: of the ring elements.
            reply: the client's.
            rho: names the sum.
            round: counted from 0.
            cut: take numbers that do not fit for the nearest ones that do, so that whether a sum is
                refused says nothing of samples, and count the client if :meth:`counts_cuts`.

        Raises:
            RangeError: numbers do not fit, and are not to be cut.
        """
        if self.noisy:
            reply = strategy.add_local_noise(reply, self.least, round)
        if cut:
            reply, beyond = self.cut(strategy, reply)
            if self.counts_cuts(strategy):
                reply = replace(reply, terms={**reply.terms, BEYOND: float(beyond > 0)})
        weight = weight_of(strategy, reply)
        if weight > self._heaviest(strategy):
            raise RangeError("it holds more samples or classes than masks can weight by")
        values: dict[str, Any] = {}
        for name, value in sorted(reply.update.items()):
            weighted = value.is_floating_point() and not strategy.adds
            if weighted and not bool((value.abs() <= self.range).all()):  # also false for NaN
                raise RangeError(f"'update/{name}' holds a number beyond the range of the masks")
            values[f"update/{name}"] = value.detach().cpu().double() * weight if weighted else value
        for field in layout.fields:
            kind, _, name = field.name.partition("/")
            if kind == "loss":
                values[field.name] = weight * reply.terms.get(name, 0.0)
            elif kind == "having":
                values[field.name] = weight if name in reply.terms else 0
        return layout.encode(values, rho)

    def decode(
        self,
        strategy: Strategy,
        layout: Layout,
        elements: Elements,
        weights: Sequence[float],
        rho: bytes,
        like: Params,
    ) -> Reply:
        """Return the reply of all, from the sum of the ring elements of the clients with these
        weights.
        """
        sums = layout.decode(elements, len(weights), rho)
        weight = float(sum(weights))
        update: Params = {}
        for name, value in like.items():
            if not is_sum(value):
                update[name] = value
                continue
            total = sums[f"update/{name}"]
            mean = total if strategy.adds else total / weight
            update[name] = torch.from_numpy(np.ascontiguousarray(mean)).to(
                dtype=value.dtype, device=value.device
            )
        names = [
            field.name.partition("/")[2]
            for field in layout.fields
            if field.name.startswith("loss/")
        ]
        having = {name: float(sums[f"having/{name}"]) for name in names}
        terms = {
            name: float(sums[f"loss/{name}"]) / having[name] for name in names if having[name] > 0
        }
        classes = max(len(weights), round(weight))
        return Reply(ALL, update, classes, classes, terms, notes={MASKED: float(len(weights))})

    # A simulation

    @cached_property
    def _simulated(self) -> tuple[dict[str, SecAggClient], Plan, itertools.count[int]]:
        """Credentials, clients and a plan for parties that are all in this process."""
        credentials = in_memory([str(k) for k in range(self.clients)])
        clients = {
            name: SecAggClient(party_credentials, Ledger(), ["dropouts"])
            for name, party_credentials in credentials.items()
        }
        enrolment = next(iter(credentials.values())).enrolment
        nothing = "00" * 32
        plan = Plan(
            enrolment.digest, nothing, nothing, "none", nothing, {}, nothing, 10**9, False, self.dropouts, ()
        )  # fmt: skip
        agree_on(plan, clients)
        return clients, plan, itertools.count()

    def opened(
        self, strategy: Strategy, layout: Layout, replies: Sequence[Reply], round: int = 0
    ) -> Opened:
        """Return the sum of the ring elements of replies that are all in this process, by the whole
        protocol.
        """
        clients, plan, sums = self._simulated
        by_name = {str(reply.client): reply for reply in replies}

        def encode(name: str, rho: bytes, extra: Sequence[str]) -> Elements:
            try:
                return self.encode(strategy, layout, by_name[name], rho, round)
            except RangeError as error:
                raise RangeError(f"client {name}: {error}") from None

        for name in by_name:
            encode(name, b"", ())  # before anything is sent
        taking = {name: clients[name] for name in by_name}
        return InOneProcess(taking, encode).sum(plan, next(sums), digest(str(round).encode()).hex())

    def sum(
        self, strategy: Strategy, replies: Sequence[Reply], expected: Params, round: int = 0
    ) -> MaskedSum:
        """Return the sum of replies that are all in this process."""
        layout = self.layout(
            strategy, expected, (name for reply in replies for name in reply.terms)
        )
        done = self.opened(strategy, layout, replies, round)
        weights = [float(weight_of(strategy, reply)) for reply in replies]
        update = self.decode(
            strategy, layout, done.elements, weights, bytes.fromhex(done.rho), expected
        )
        clients = sorted(int(name) for name in done.roster)
        refused = {int(name): why for name, why in done.left_out.items()}
        return MaskedSum(update, clients, refused, done.bytes_down, done.bytes_up)

    def hidden_sum(
        self, strategy: Strategy, instruction: Instruction, replies: Sequence[Reply], round: int
    ) -> MaskedSum:
        """Return the sum of a simulation's replies; all of its clients take part.

        Raises:
            FedUnseenError: an update is beyond ``privacy.range``.
            QuorumError: too few clients are there for a sum under masks.
        """
        try:
            return self.sum(strategy, replies, strategy.expects(instruction), round)
        except RangeError as error:
            raise FedUnseenError(
                f"round {round + 1}: {error}: raise privacy.range, which is {self.range:g}, or "
                "bound the updates"
            ) from None
        except SecAggError as error:
            raise QuorumError(
                f"round {round + 1} has no sum under masks: {error}: let more clients take part, "
                "and continue with --resume"
            ) from None
