"""What a strategy is: pure functions over dictionaries of tensors.

They are ``init / instruct / recall / objective / correct / finish / merge``: ``init``, ``instruct``
and ``merge`` run at the server, the others at the client.

A strategy never sees data, methods or engines. What the server keeps between rounds is its
``state``; what a client keeps is its ``client_state``, an explicit value that goes into a round and
comes out of it, so that any engine can keep it and a resume can restore it. Neither side sees the
other's: the server begins an instruction with what travels (``instruct``), and the client completes
it with what it keeps (``recall``).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedunseen.core.bounds import limits
from fedunseen.core.parameters import Params, add_scaled, difference, is_statistic
from fedunseen.core.phases import GradientFunction, Loss, Represent
from fedunseen.core.settings import Named, NamedSettings
from fedunseen.core.trainer import LocalResult


class StrategySettings(NamedSettings):
    """Settings that every strategy has."""

    rounds: Annotated[int, limits("strategy.rounds")] = 50
    """Communication rounds, T."""
    stop_after: int | None = Field(None, ge=1)
    """Stop after so many rounds in a row without gain on validation classes; by default run all
    rounds. Zero-shot: the run on validation classes stops so, and the run that is reported ends
    with the round that it has chosen."""
    local_epochs: Annotated[int, limits("strategy.local_epochs")] = 2
    """Passes over a client's data in a round, E."""
    personal_epochs: Annotated[int, limits("strategy.personal_epochs")] | None = None
    """After the last round every client trains the merged model for so many epochs more on its own
    samples, and keeps what it gets: the result says for each client what that changes. By default
    none does."""
    head_epochs: Annotated[int, limits("strategy.head_epochs")] | None = None
    """FedRep: passes in which a client trains what stays with it alone (see `shared`), before it
    trains what travels alone for `local_epochs`. By default both are trained together, as in
    FedPer."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Share of the present clients that take part in a round, drawn again each round; at least one
    does.
    """
    weights: Literal["classes", "samples", "uniform"] = "classes"
    """What a client's update counts by (FedZSL Eq. 2: classes; FedAvg: samples), among those of its
    round.
    """
    server_lr: float = Field(1.0, gt=0)
    """Step of the server along the merged update, eta in Eq. 2."""
    shared: tuple[str, ...] = Field(("*",), min_length=1)
    """Patterns of the parameters that travel; all others stay with their client. `["generator.*"]`
    with a generative method is FZSL's selective module aggregation (its Eqs. 4 and 5); `["f.*"]`
    with `fedzsl` keeps the heads, as FedPer does, so that each client has a model of its own."""


FLAGS = ("merges", "one_model", "pools", "needs_exact_update", "adds", "lengths", "merges_by_mean")
"""The attributes by which a strategy says what it is."""

MASKED = "masked"
"""The note of the one reply that a masked round has: of how many clients it is the sum."""


@dataclass(frozen=True, eq=False)
class Instruction:
    """What a client begins with.

    Attributes:
        params: the parameters to start from.
        extras: what else its loss or gradient function needs from the server.
        kept: likewise from the client's own state: it does not travel.
        client_params: parameters to start from that do not travel either.
    """

    params: Params
    extras: Params = field(default_factory=dict)
    kept: Params = field(default_factory=dict)
    client_params: Params = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Reply:
    """What leaves a client; its state stays with it.

    Attributes:
        client: who replies.
        update: by how much its parameters have changed.
        classes: how many classes it holds.
        samples: how many samples it trained on.
        terms: mean losses, for the log.
        step_lengths: how far it would have moved each parameter along a constant gradient of one
            (``LocalResult.step_lengths``).
        notes: what else is said of its round, for the log: how many samples it screened and
            dropped.
    """

    client: int
    update: Mapping[str, Tensor]
    classes: int
    samples: int
    terms: dict[str, float] = field(default_factory=dict)
    step_lengths: dict[str, float] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)


class Strategy(Named):
    """Federated averaging, and the base of all strategies: a subclass overrides what it does
    differently.

    Running statistics of normalization layers are not learned. Every strategy averages
    these with the weights of the replies.

    Args:
        settings: all settings, as an experiment gives them.
        options: single settings by keyword, the others at their defaults; instead of ``settings``.

    Attributes:
        merges: what clients reply is merged; otherwise every client trains alone.
        one_model: what is merged is a whole model, which a run reports; otherwise every client has
            its own: all of it, or the part that scoring needs and that does not travel.
        pools: all data are put together at one client before the run (no federation at all).
        needs_exact_update: client and server compute the same number from an update (a control
            variate, say), so that it must arrive as it was made.
        lengths: what the server divides by the step lengths that replies claim. ``nothing``;
            ``memory``: updates, to keep mean gradients (SCAFFOLD), which needs clients that train
            with SGD; ``model``: the updates that it merges (FedNova), so that no defence can bound
            them.
        adds: replies are sums, whose total the server takes.
        merges_by_mean: all that the server takes from a round's replies is the weighted mean of
            their updates, which private merging can replace by a noisy one. True until a subclass
            overrides ``merge``; one that does, and still uses the mean alone, sets it.

    Example:
        >>> from fedunseen.strategies import FedProx
        >>> FedProx(mu=0.01).settings.mu, FedProx().settings.weights
        (0.01, 'classes')
    """

    Settings: ClassVar[type[StrategySettings]] = StrategySettings
    merges: bool = True
    one_model: bool = True
    pools: bool = False
    needs_exact_update: bool = False
    adds: bool = False
    lengths: Literal["nothing", "memory", "model"] = "nothing"
    merges_by_mean: bool = True

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if "merge" in vars(cls) and "merges_by_mean" not in vars(cls):
            cls.merges_by_mean = False  # such a merge may use anything

    def __init__(self, settings: StrategySettings | None = None, **options: Any) -> None:
        if settings is not None and options:
            raise TypeError(
                f"{type(self).__name__} takes settings or single ones by keyword, not both"
            )
        self.settings = settings if settings is not None else self.Settings(**options)

    @property
    def rounds(self) -> int:
        """How many rounds there are at most."""
        return self.settings.rounds

    def init(self, params: Params, clients: int) -> Params:
        """Return the server's state before round 0, from the first parameters and the number of all
        clients.
        """
        return {}

    def count_clients(self, state: Params, present: int, new: int) -> Params:
        """Return the server's state for a round with ``present`` clients, ``new`` of which were in
        no round before.
        """
        return state

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Return what the server sends every client in ``round`` (counted from 0): ``params`` and
        ``extras``.

        All clients of a round share its tensors: do not change them in place.
        """
        return Instruction(params)

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """Complete at the client what the server sent: ``kept`` and ``own``, from what the client
        keeps.

        ``client_state`` is what :meth:`finish` returned when the client last took part, empty if it
        never did.
        """
        return instruction

    def objective(self, loss: Loss, represent: Represent) -> Loss:
        """Wrap a phase's loss. It finds the instruction's extras in its context. Must be pure, as
        losses are.
        """
        return loss

    def correct(self, gradient: GradientFunction) -> GradientFunction:
        """Wrap the gradient function of a local step. Must be pure: it is mapped over clients."""
        return gradient

    def finish(
        self, instruction: Instruction, result: LocalResult, client_state: Params
    ) -> tuple[Params, Params]:
        """Return a client's update and its state for the next round (FedZSL Algorithm 1, line
        26).
        """
        update = difference(result.params, instruction.params)
        for name in filter(is_statistic, update):
            update[name] = result.params[name] - instruction.params[name]
        return update, client_state

    def local_model(self, start: Params, update: Mapping[str, Tensor]) -> Params:
        """Return the model that a client ended with, from the one that it was sent and its
        update.
        """
        return {name: start[name] + change for name, change in update.items()}

    def expects(self, instruction: Instruction) -> Params:
        """Return tensors of the names, shapes and types that the answers to an instruction must
        have.
        """
        return instruction.params if self.merges else {}

    def decode(
        self, update: Mapping[str, Tensor], instruction: Instruction
    ) -> Mapping[str, Tensor]:
        """Return an arrived update, like :meth:`expects`, as :meth:`finish` made it, or raise
        ``ValueError``.
        """
        return update

    def merge(
        self, state: Params, params: Params, replies: Sequence[Reply], round: int
    ) -> tuple[Params, Params]:
        """Merge the replies, in the order given (client order): FedZSL Eq. 2. Returns the new state
        and parameters.

        A round may end without a single reply; a strategy then returns the state and the parameters
        as they are.
        """
        if not replies:
            return state, params
        step = self.server_step(round)
        weights = [step * weight for weight in self.reply_weights(replies)]
        merged = add_scaled(params, [reply.update for reply in replies], weights)
        return state, merged | self.merged_statistics(params, replies)

    def add_local_noise(self, reply: Reply, parties: int, round: int) -> Reply:
        """Return a client's reply as it is masked, with its part of the noise that ``parties``
        clients or more add.
        """
        return reply

    def spent(self, parties: int) -> tuple[float, float]:
        """Return (epsilon, delta) of all rounds for a client whose noise :meth:`add_local_noise`
        draws.

        Epsilon is infinite where it draws none.
        """
        return math.inf, 0.0

    def released(self, reply: Reply, round: int) -> Reply:
        """Return what leaves a client that has sent sums: private ones have their noise by then."""
        return reply

    def expand_classes(self, state: Params, expand: Callable[[Params], Params]) -> Params:
        """Return the server's state once the class space has grown; ``expand`` makes parameters the
        new ones.
        """
        return state

    def check(self, reply: Reply) -> str:
        """Return why a reply cannot be merged, or ""; its names, shapes and types are as
        expected.
        """
        return ""

    def restrict(self, allowed: Mapping[int, Collection[int]], names: Sequence[str]) -> None:
        """Let :meth:`check` refuse samples of classes that a client must not send: client -> class
        ids.

        Updates do not show their samples' classes, so only statistics are checked.
        ``names``: of all classes, for messages.
        """

    def notes(self, state: Params) -> dict[str, Any]:
        """Return what there is to say of the merge that made ``state``, as JSON values for
        ``metrics.jsonl``.
        """
        return {}

    def merged_statistics(self, params: Params, replies: Sequence[Reply]) -> Params:
        """Return the running statistics among the parameters, averaged."""
        chosen = {name: value for name, value in params.items() if is_statistic(name)}
        updates = [{name: reply.update[name] for name in chosen} for reply in replies]
        return add_scaled(chosen, updates, self.reply_weights(replies))

    def server_step(self, round: int) -> float:
        """Return the server's learning rate in ``round``."""
        return self.settings.server_lr

    def reply_weights(self, replies: Sequence[Reply]) -> list[float]:
        """Return what each reply counts: shares of a whole, or 0 where no reply has anything."""
        by = self.settings.weights
        raw = [
            1 if by == "uniform" else reply.classes if by == "classes" else reply.samples
            for reply in replies
        ]
        total = sum(raw) or 1
        return [value / total for value in raw]


def mean_of(present: int, new: int, total: Params) -> Params:
    """Return a mean over clients once ``new`` of the ``present`` ones came with zeros, and how many
    they are.

    The mean of those that stay counts as it was: what one keeps that has left stays with it.

    Example:
        >>> from torch import tensor
        >>> mean_of(4, 1, {"c": tensor(2.0)})
        {'c': tensor(1.5000), 'clients': tensor(4.)}
    """
    stayed = (present - new) / max(present, 1)
    scaled = {name: value * stayed for name, value in total.items()} if new else total
    return {**scaled, "clients": torch.tensor(float(present))}
