"""Merging for methods in closed form: the clients' sums are added, once, exactly, in client order.

A client that sends again replaces what it has sent; one that is late is added; one that is taken out of the state
leaves a total that it was never part of, bit for bit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedunseen.core.errors import OTHER_SPACE, FedUnseenError
from fedunseen.core.parameters import Params, of_each_client, under
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import Instruction, Reply, Strategy


class Summed(Strategy):
    """Adds statistics instead of updates; from another strategy it takes who takes part and with which weight.

    The run's parameters are sums. The state holds every client's under ``client/K/``, unless ``each`` is false: then
    only the total stays. ``nothing`` are the sums of no sample; ``validate`` says why sums are infeasible, or "".
    """

    adds = True

    def __init__(
        self, inner: Strategy, nothing: Params, each: bool = True, validate: Callable[[Params], str] | None = None
    ) -> None:
        super().__init__(inner.settings)
        self.inner, self.nothing, self.each, self.validate = inner, nothing, each, validate
        self.pools, self.one_model = inner.pools, inner.one_model

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Send nothing: what a client has to send does not depend on what others have sent."""
        return Instruction({})

    def finish(self, instruction: Instruction, result: LocalResult, client_state: Params) -> tuple[Params, Params]:
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
        """Give every client's sums the rows of the new classes, so that none has to send them again."""
        result: Params = {}
        for client, sums in of_each_client(state).items():
            result |= under(f"client/{client}/", expand(sums))
        return result

    def check(self, reply: Reply) -> str:
        """Return why no samples can have these statistics, or why they are not those that the client declared."""
        sums = dict(reply.update.items())
        for name, value in self.nothing.items():
            if not is_sum(value) and not torch.equal(value, sums[name].to(value.device)):
                return OTHER_SPACE.format("its sums")
        if self.validate is None:
            return ""
        if why := self.validate(sums):
            return f"its sums cannot be those of any samples ({why}): leave it out, or let it send them again"
        samples, classes = round(float(sums["count"].sum())), int((sums["count"] > 0.5).sum())
        if reply.client >= 0 and (samples, classes) != (reply.samples, reply.classes):
            declared = f"{reply.samples} samples of {reply.classes} classes"
            return f"its sums are of {samples} samples of {classes} classes, and it declared {declared}: leave it out"
        return ""

    def merge(self, state: Params, params: Params, replies: Sequence[Reply], round: int) -> tuple[Params, Params]:
        """Keep what clients have sent, and add up all that is kept, in client order."""
        state, brought = dict(state), _total(self.nothing, ())
        for reply in replies:
            sums = dict(reply.update.items())
            if why := self.check(reply):
                raise FedUnseenError(f"client {reply.client}: {why}")
            if self.each:
                state |= under(f"client/{reply.client}/", sums)
            else:
                _add(brought, sums)
        return (state, _total(self.nothing, of_each_client(state).values())) if self.each else ({}, brought)


def is_sum(value: Tensor) -> bool:
    """Say whether a tensor of statistics adds up; bytes, a hash, are the same at all parties."""
    return value.dtype != torch.uint8


def forget(state: Params, client: int) -> tuple[Params, Params]:
    """Return the server's state without a client, and the sums of all others: those of a run that never had it."""
    parts = of_each_client(state)
    if client not in parts:
        kept = ", ".join(map(str, parts)) or "none"
        raise FedUnseenError(f"no sums of client {client} are kept, so it cannot be forgotten (kept are: {kept})")
    del parts[client]
    if not parts:
        raise FedUnseenError(f"client {client} is the only one: without it nothing is left")
    nothing = {
        name: torch.zeros_like(value) if is_sum(value) else value for name, value in next(iter(parts.values())).items()
    }
    left = {name: value for name, value in state.items() if not name.startswith(f"client/{client}/")}
    return left, _total(nothing, parts.values())


def _add(total: Params, sums: Params) -> None:
    """Add a client's sums in place; bytes say which class space they are of."""
    for name, value in sums.items():
        if is_sum(value):
            total[name] += value.to(total[name].device)


def _total(nothing: Params, parts: Iterable[Params]) -> Params:
    total = {name: value.clone() for name, value in nothing.items()}
    for sums in parts:
        _add(total, sums)
    return total
