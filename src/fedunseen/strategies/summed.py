"""Merging for methods in closed form: the clients' sums are added, once, exactly, in client order.

A client that sends again replaces what it has sent; one that is late is added; one that is taken
out of the state leaves a total that it was never part of, bit for bit.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedunseen.core.errors import OTHER_SPACE, FedUnseenError
from fedunseen.core.memory import free_heap
from fedunseen.core.parameters import Params, of_each_client, size_in_bytes, under
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import Instruction, Reply, Strategy

_LARGE = 2**20  # bytes of sums after which memory is tidied up

NOT_ALLOWED = (
    "its statistics hold samples of {}, a class that it must not send: leave it out, or allow the "
    "class with `fedunseen certs --classes`"
)


class Summed(Strategy):
    """Adds statistics instead of updates; from another strategy it takes who takes part and with
    which weight.

    The run's parameters are sums. The state holds every client's under ``client/K/``, unless
    ``each`` is false: then only the total stays. ``nothing`` are the sums of no sample;
    ``validate`` says why sums are infeasible, or ""; ``influence`` says, of client -> sums, how far
    each moves the classes of others.
    """

    adds = True

    def __init__(
        self,
        inner: Strategy,
        nothing: Params,
        each: bool = True,
        validate: Callable[[Params], str] | None = None,
        influence: Callable[[Mapping[int, Params]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(inner.settings)
        self.inner = inner
        self.nothing = nothing
        self.each = each
        self.validate = validate
        self.influence = influence
        self.allowed: Mapping[int, Collection[int]] | None = None
        self.names: Sequence[str] = ()
        self.pools = inner.pools
        self.one_model = inner.one_model

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Send nothing: what a client has to send does not depend on what others have sent."""
        return Instruction({})

    def finish(
        self, instruction: Instruction, result: LocalResult, client_state: Params
    ) -> tuple[Params, Params]:
        """Send the sums."""
        return dict(result.params), {}

    def reply_weights(self, replies: Sequence[Reply]) -> list[float]:
        """Return what each reply counts, as the other strategy does."""
        return self.inner.reply_weights(replies)

    def expects(self, instruction: Instruction) -> Params:
        """Return the sums of no sample."""
        return self.nothing

    def local_model(self, start: Params, update: Mapping[str, Tensor]) -> Params:
        """Return a client's own sums."""
        return dict(update)

    def expand_classes(self, state: Params, expand: Callable[[Params], Params]) -> Params:
        """Give every client's sums the rows of the new classes, so that none has to send them
        again.
        """
        result: Params = {}
        for client, sums in of_each_client(state).items():
            result |= under(f"client/{client}/", expand(sums))
        return result

    def restrict(self, allowed: Mapping[int, Collection[int]], names: Sequence[str]) -> None:
        """Fix which classes (ids) each client may send; a client without an entry may send none."""
        self.allowed = allowed
        self.names = names

    def foreign(self, reply: Reply) -> str:
        """Return a class whose statistics a client sent although it must not, or ""; never for a
        masked total.
        """
        if self.allowed is None or reply.client < 0:
            return ""
        sent = (reply.update["count"] != 0) | (reply.update["total"] != 0).any(1)
        may = self.allowed.get(reply.client, ())
        stray = [c for c in torch.nonzero(sent)[:, 0].tolist() if c not in may]
        return self.names[stray[0]] if stray else ""

    def check(self, reply: Reply) -> str:
        """Return why the statistics are refused, or "".

        No samples can have them, they are not those that the client declared, or of a class that it
        must not send.
        """
        sums = dict(reply.update.items())
        for name, value in self.nothing.items():
            if not is_sum(value) and not torch.equal(value, sums[name].to(value.device)):
                return OTHER_SPACE.format("its sums")
        if name := self.foreign(reply):
            return NOT_ALLOWED.format(repr(name))
        if self.validate is None:
            return ""
        if why := self.validate(sums):
            return f"its sums cannot be those of any samples ({why}): leave it out, or let it send them again"
        samples = round(float(sums["count"].sum()))
        classes = int((sums["count"] > 0.5).sum())
        if reply.client >= 0 and (samples, classes) != (reply.samples, reply.classes):
            declared = f"{reply.samples} samples of {reply.classes} classes"
            return f"its sums are of {samples} samples of {classes} classes, and it declared {declared}: leave it out"
        return ""

    def merge(
        self, state: Params, params: Params, replies: Sequence[Reply], round: int
    ) -> tuple[Params, Params]:
        """Keep what clients have sent, and add up all that is kept, in client order."""
        state = dict(state)
        for reply in replies:
            sums = dict(reply.update.items())  # read once, where they are on disk
            if why := self.check(replace(reply, update=sums)):
                raise FedUnseenError(f"client {reply.client}: {why}")
            if self.each:
                state |= under(f"client/{reply.client}/", sums)
            if size_in_bytes(sums) >= _LARGE:
                free_heap()  # checks make larger ones, whose room would be taken again and again
        if self.each:
            return state, _total(self.nothing, of_each_client(state).values())
        return {}, _total(self.nothing, (dict(reply.update.items()) for reply in replies))

    def notes(self, state: Params) -> dict[str, Any]:
        """Return under ``influence`` how far each client moves the means of classes that others
        hold too.
        """
        if self.influence is None:
            return {}
        influence = self.influence(of_each_client(state))
        return {"influence": influence} if influence else {}


def is_sum(value: Tensor) -> bool:
    """Say whether a tensor of statistics adds up; bytes, a hash, are the same at all parties."""
    return value.dtype != torch.uint8


def forget(state: Params, client: int) -> tuple[Params, Params]:
    """Return the server's state without a client, and the sums of all others: those of a run that
    never had it.
    """
    parts = of_each_client(state)
    if client not in parts:
        kept = ", ".join(map(str, parts)) or "none"
        raise FedUnseenError(
            f"no sums of client {client} are kept, so it cannot be forgotten (kept are: {kept})"
        )
    del parts[client]
    if not parts:
        raise FedUnseenError(f"client {client} is the only one: without it nothing is left")
    remaining = {
        name: value for name, value in state.items() if not name.startswith(f"client/{client}/")
    }
    return remaining, added(parts.values())


def added(parts: Collection[Params]) -> Params:
    """Return the sums of at least one client together, in their order."""
    nothing = {
        name: torch.zeros_like(value) if is_sum(value) else value
        for name, value in next(iter(parts)).items()
    }
    return _total(nothing, parts)


def _total(nothing: Params, parts: Iterable[Params]) -> Params:
    """Return the sums of parts; bytes say which class space they are of."""
    total = {name: value.clone() for name, value in nothing.items()}
    for sums in parts:
        for name, value in sums.items():
            if is_sum(value):
                total[name] += value.to(total[name].device)
    return total
