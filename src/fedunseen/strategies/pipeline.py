"""A strategy and what goes around it: filters that change one thing each, and a codec.

At the client a filter acts after the strategy and those before it; at the server the last filter
sees the replies first. An experiment puts them in this order: peers, selective, private, a defence.
The codec writes updates last at the client and reads them first at the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from fedunseen.core.parameters import Params, length, under, within
from fedunseen.core.phases import GradientFunction
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import FLAGS, Instruction, Reply, Strategy

if TYPE_CHECKING:
    from fedunseen.strategies.compression import Codec

SAME = ("objective", "local_model", "released", "check", "restrict", "reply_weights")
"""The functions of a strategy that filters and codecs leave unchanged."""

Correct = Callable[[GradientFunction], GradientFunction]


@dataclass(eq=False)
class RoundView:
    """What a filter sees of a round at the server.

    Attributes:
        state: what the filter keeps.
        params: the parameters before the round.
        replies: in client order.
        round: counted from 0.
        strategy: the one that merges.
    """

    state: Params
    params: Params
    replies: Sequence[Reply]
    round: int
    strategy: Strategy

    @property
    def updates(self) -> list[Mapping[str, Tensor]]:
        """The replies' updates."""
        return [reply.update for reply in self.replies]

    @cached_property
    def norms(self) -> list[float]:
        """Lengths of the updates (n,)."""
        return [length(update) for update in self.updates]

    @cached_property
    def weights(self) -> list[float]:
        """What the replies count (n,); their sum is one."""
        return self.strategy.reply_weights(self.replies)

    def only(self, positions: Sequence[int], state: Params) -> RoundView:
        """Return the view of some of the replies, for a filter with another state."""
        part = RoundView(
            state, self.params, [self.replies[i] for i in positions], self.round, self.strategy
        )
        part.norms = [self.norms[i] for i in positions]
        return part


@dataclass(frozen=True, eq=False)
class FilterResult:
    """What a filter makes of a round's n replies.

    Attributes:
        replies: what is handed on; none: the model stays what it is.
        kept: (n,) how much of each is handed on: 1 all, 0 nothing, in between: shortened to that
            part. Empty: all.
        why: (n,) why each was dropped, as positions in ``REASONS`` of the defences. Empty: none
            was.
        judged: (n,) the rule's score of each, in its own units; None if it has none but the norm.
        aggregated: one update has taken the place of all, so that weights have no meaning.
        noise: standard deviation of the Gaussian noise that every parameter gets after merging.
        state: what the filter keeps.
    """

    replies: Sequence[Reply]
    kept: Sequence[float] = ()
    why: Sequence[int] = ()
    judged: Sequence[float] | None = None
    aggregated: bool = False
    noise: float = 0.0
    state: Params = field(default_factory=dict)


class Filter:
    """One change around a strategy; a subclass overrides the hooks that it needs.

    Attributes:
        name: what it keeps is kept under ``name/``, in the server's state and in a client's.
        own_models: scoring needs what it keeps at the clients, so that each has a model of its own.
    """

    name: ClassVar[str]
    own_models: bool = False

    def init(self, params: Params) -> Params:
        """Return what the filter keeps at the server before round 0."""
        return {}

    def instruct(self, instruction: Instruction, state: Params) -> Instruction:
        """Change what is sent to every client."""
        return instruction

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """Complete the instruction at the client with what the filter keeps there."""
        return instruction

    def correct(self, correct: Correct) -> Correct:
        """Change how gradients are corrected. Must be pure."""
        return correct

    def narrow(self, instruction: Instruction, result: LocalResult) -> LocalResult:
        """Return what the strategy sees of the local training."""
        return result

    def remember(self, instruction: Instruction, result: LocalResult) -> Params:
        """Return what the filter keeps at the client until its next round."""
        return {}

    def filter(self, view: RoundView) -> FilterResult:
        """Return which replies are handed on, and the filter's new state at the server."""
        return FilterResult(view.replies, state=view.state)

    def after_merge(self, result: FilterResult, params: Params, round: int) -> Params:
        """Change the merged parameters."""
        return params

    def add_local_noise(self, reply: Reply, parties: int, round: int) -> Reply:
        """Change a reply before it is masked: see :meth:`Strategy.add_local_noise`."""
        return reply

    def spent(self, parties: int) -> tuple[float, float]:
        """Return (epsilon, delta) of the filter's noise: see :meth:`Strategy.spent`."""
        return math.inf, 0.0

    def notes(self, state: Params) -> dict[str, Any]:
        """Return JSON values about the round that made ``state``, for ``metrics.jsonl``."""
        return {}


class Pipeline(Strategy):
    """A strategy, filters around it, and a codec; used as a strategy."""

    def __init__(
        self, strategy: Strategy, filters: Sequence[Filter] = (), codec: Codec | None = None
    ) -> None:
        super().__init__(strategy.settings)
        self.strategy = strategy
        self.filters = tuple(filters)
        self.codec = codec
        for name in (*FLAGS, *SAME):
            setattr(self, name, getattr(strategy, name))
        self.one_model = strategy.one_model and not any(each.own_models for each in filters)

    @property
    def rounds(self) -> int:
        """How many rounds there are at most, as the strategy says."""
        return self.strategy.rounds

    @staticmethod
    def around(
        strategy: Strategy, filters: Sequence[Filter], codec: Codec | None = None
    ) -> Strategy:
        """Return the pipeline; the strategy as it is where nothing goes around it."""
        return Pipeline(strategy, filters, codec) if filters or codec else strategy

    def init(self, params: Params, clients: int) -> Params:
        """Return the server's state before round 0."""
        state = under("strategy/", self.strategy.init(params, clients))
        for each in self.filters:
            state |= under(f"{each.name}/", each.init(params))
        return state

    def count_clients(self, state: Params, present: int, new: int) -> Params:
        """Return the server's state for a round with so many clients."""
        counted = self.strategy.count_clients(within("strategy/", state), present, new)
        return {**state, **under("strategy/", counted)}

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Return what every client is sent."""
        instruction = self.strategy.instruct(within("strategy/", state), params, round)
        for each in self.filters:
            instruction = each.instruct(instruction, within(f"{each.name}/", state))
        return instruction

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """Complete the instruction at the client."""
        instruction = self.strategy.recall(instruction, within("strategy/", client_state), round)
        for each in self.filters:
            instruction = each.recall(instruction, within(f"{each.name}/", client_state), round)
        return instruction

    def correct(self, gradient: GradientFunction) -> GradientFunction:
        """Correct the gradient as the strategy does, where the filters let it."""
        correct: Correct = self.strategy.correct
        for each in self.filters:
            correct = each.correct(correct)
        return correct(gradient)

    def finish(
        self, instruction: Instruction, result: LocalResult, client_state: Params
    ) -> tuple[Params, Params]:
        """Return the update as it is sent, and what the client keeps."""
        narrowed = result
        for each in reversed(self.filters):
            narrowed = each.narrow(instruction, narrowed)
        update, kept = self.strategy.finish(
            instruction, narrowed, within("strategy/", client_state)
        )
        state = under("strategy/", kept)
        for each in self.filters:
            state |= under(f"{each.name}/", each.remember(instruction, result))
        if self.codec is not None:
            update, kept = self.codec.encode(update, within("codec/", client_state))
            state |= under("codec/", kept)
        return update, state

    def expects(self, instruction: Instruction) -> Params:
        """Return tensors like those of an update as it is sent."""
        like = self.strategy.expects(instruction)
        return like if self.codec is None else self.codec.expects(like)

    def decode(
        self, update: Mapping[str, Tensor], instruction: Instruction
    ) -> Mapping[str, Tensor]:
        """Return the update that was sent."""
        if self.codec is not None:
            update = self.codec.decode(update, self.strategy.expects(instruction))
        return self.strategy.decode(update, instruction)

    def merge(
        self, state: Params, params: Params, replies: Sequence[Reply], round: int
    ) -> tuple[Params, Params]:
        """Filter the replies from the outside in, merge them, and let the filters change the merged
        parameters.
        """
        results: list[FilterResult] = []
        for each in reversed(self.filters):
            view = RoundView(within(f"{each.name}/", state), params, replies, round, self.strategy)
            results.insert(0, each.filter(view))
            replies = results[0].replies
        strategy_state, params = self.strategy.merge(
            within("strategy/", state), params, replies, round
        )
        new = under("strategy/", strategy_state)
        for each, result in zip(self.filters, results, strict=True):
            new |= under(f"{each.name}/", result.state)
            params = each.after_merge(result, params, round)
        return new, params

    def add_local_noise(self, reply: Reply, parties: int, round: int) -> Reply:
        """Return a client's reply as it is masked."""
        reply = self.strategy.add_local_noise(reply, parties, round)
        for each in self.filters:
            reply = each.add_local_noise(reply, parties, round)
        return reply

    def spent(self, parties: int) -> tuple[float, float]:
        """Return (epsilon, delta) of all rounds: those of the one that adds noise."""
        base = self.strategy.spent(parties)
        return min([base, *(each.spent(parties) for each in self.filters)])

    def expand_classes(self, state: Params, expand: Callable[[Params], Params]) -> Params:
        """Return the strategy's state once the class space has grown; filters start again."""
        return under("strategy/", self.strategy.expand_classes(within("strategy/", state), expand))

    def notes(self, state: Params) -> dict[str, Any]:
        """Return what the filters, from the outside in, and the strategy note of the round."""
        notes: dict[str, Any] = {}
        for each in reversed(self.filters):
            notes |= each.notes(within(f"{each.name}/", state))
        return notes | self.strategy.notes(within("strategy/", state))
