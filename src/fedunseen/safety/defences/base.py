"""What a defence of the server is, and the filter that applies one: ``Robust(defence)``.

A defence leaves replies out, shortens them, or gives all of them one robust update, whose weighted
mean is itself. It bounds updates alone, not what else a reply claims. Running statistics count in
norms, or an attack would hide there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params, is_statistic, under, within
from fedunseen.core.random import stream
from fedunseen.core.settings import Named, NamedSettings
from fedunseen.strategies import Filter, FilterResult, RoundView

NOT_FINITE = "it is not finite"
TOO_FAR = "it is too far from the others"
TAKES_OVER = "it turns inputs of classes that its client does not hold into others"
PULLS = "it pulls inputs of no class towards one class"
TOO_FEW = "too few replies are left for the rule"
REASONS = ("", NOT_FINITE, TOO_FAR, TAKES_OVER, PULLS, TOO_FEW)
"""Why a reply was left out; the state keeps the position in this list."""


class DefenceSettings(NamedSettings):
    """Base of every defence's settings."""


@dataclass(frozen=True, eq=False)
class Scores:
    """What a defence may ask of the method that it does not know, made by the experiment.

    Attributes:
        of: (parameters, inputs (n, ...)) -> (n, C) scores of all classes of the space.
        random: (generator, n) -> (n, ...) Gaussian inputs, with the mean and deviation of all
            numbers of real ones.
        classes: ids of the classes that there is a description of, seen or not.
        held: client -> ids of the classes that it has registered to train on.
    """

    of: Callable[[Params, Tensor], Tensor]
    random: Callable[[np.random.Generator, int], Tensor]
    classes: Tensor
    held: Mapping[int, Tensor]


class Defence(Named, name="none"):
    """No defence, and the base of all: subclass, and register the class (``fedunseen.defences``
    entry points).

    Attributes:
        per_client: what is merged of a reply does not depend on the other replies of its round, and
            at most as long as the reply: the condition under which private merging may follow.
        asks_scores: is given :class:`Scores`.
        needs: (a, b): a round must have a f + b replies at least, f being the setting
            ``malicious``.
    """

    Settings: ClassVar[type[DefenceSettings]] = DefenceSettings
    asks_scores: ClassVar[bool] = False
    needs: ClassVar[tuple[int, int]] = (0, 1)
    per_client: bool = False

    def __init__(self, settings: Any, seed: int = 0, scores: Scores | None = None) -> None:
        self.settings = settings
        self.seed = seed
        self.scores = scores

    def least(self) -> tuple[int, str]:
        """Return how many replies a round must have at least, and the formula for that."""
        (times, constant), f = self.needs, getattr(self.settings, "malicious", 0)
        return times * f + constant, f"{times} * {f} + {constant}" if times else str(constant)

    def check(self, replies: int, round: int) -> None:
        """Refuse settings that a round with so many replies cannot meet.

        Raises:
            ExperimentError: says which setting to change.
        """
        least, formula = self.least()
        if replies >= least:
            return
        tolerated = getattr(self.settings, "malicious", 0)
        fewer = self.among(replies)
        most = fewer.settings.malicious if fewer else 0
        raise ExperimentError(
            f"defence.name = {self.settings.name!r}"
            + (
                f" with defence.malicious = {tolerated} needs {formula} = {least}"
                if tolerated
                else f" needs {least}"
            )
            + f" clients a round, but round {round + 1} has {replies}: "
            + (f"set defence.malicious to {most} at most" if most else "choose another defence")
            + ", or let more clients take part"
        )

    def among(self, replies: int) -> Defence | None:
        """Return the rule for a round with so many replies; None: they are too few.

        A reply that is not finite uses up one of the ``malicious`` clients that a rule has to
        tolerate, so that it cannot keep the others from being merged: where too few are left, the
        rule tolerates as many less as it must.
        """
        settings = self.settings
        if replies >= self.least()[0]:
            return self
        for f in reversed(range(getattr(settings, "malicious", 0))):
            fewer = type(self)(settings.model_copy(update={"malicious": f}), self.seed, self.scores)
            if replies >= fewer.least()[0]:
                return fewer
        return None

    def filter(self, view: RoundView) -> FilterResult:
        """Return what of the replies is merged, from the round's finite ones."""
        return FilterResult(view.replies)


class Robust(Filter):
    """Lets a strategy merge what a defence leaves of the replies.

    A reply that is not finite is dropped by every defence; the rule has then fewer malicious ones
    to tolerate (:meth:`Defence.among`). Where nothing is left, or less than the rule needs, the
    strategy merges no reply, and the round's notes record it. Around
    :class:`~fedunseen.safety.privacy.client_level.Private` the defence must judge every reply alone
    (``Defence.per_client``), or one client could change what is merged of the others.
    """

    name = "defence"

    def __init__(self, defence: Defence) -> None:
        self.defence = defence

    def filter(self, view: RoundView) -> FilterResult:
        """Hand on what the defence leaves of the finite replies; keep what :meth:`notes` says of
        all of them.
        """
        memory = within("rule/", view.state)
        replies = view.replies
        norms = view.norms
        whole = [i for i, norm in enumerate(norms) if np.isfinite(norm)]
        kept = torch.zeros(len(replies), dtype=torch.float64)
        why = torch.full((len(replies),), REASONS.index(NOT_FINITE))
        judged = torch.full((len(replies),), torch.nan, dtype=torch.float64)
        result = FilterResult(
            (), [0.0] * len(whole), [REASONS.index(TOO_FEW)] * len(whole), state=memory
        )
        if whole and (defence := self.defence.among(len(whole))) is not None:
            result = defence.filter(view.only(whole, memory))
        kept[whole] = torch.tensor(result.kept or [1.0] * len(whole), dtype=torch.float64)
        why[whole] = torch.tensor(result.why or [0] * len(whole), dtype=torch.int64)
        if result.judged is not None:
            judged[whole] = torch.tensor(result.judged, dtype=torch.float64)
        weights = view.strategy.reply_weights(result.replies) if result.replies else []
        shares = {reply.client: share for reply, share in zip(result.replies, weights, strict=True)}
        share = [
            np.nan if result.aggregated else shares.get(reply.client, 0.0) for reply in replies
        ]
        said = {
            "clients": torch.tensor([reply.client for reply in replies], dtype=torch.int64),
            "norms": torch.tensor(norms, dtype=torch.float64),
            "kept": kept,
            "why": why,
            "judged": judged,
            "weights": torch.tensor(share, dtype=torch.float64),
        }
        return replace(result, state=under("rule/", result.state) | under("said/", said))

    def after_merge(self, result: FilterResult, params: Params, round: int) -> Params:
        """Add the noise that the defence asks for, unless nothing was merged."""
        if not (result.noise and result.replies):
            return params
        return add_noise(params, result.noise, stream(self.defence.seed, "defence noise", round))

    def notes(self, state: Params) -> dict[str, Any]:
        """Return under ``defence`` what the rule did to each reply of the round.

        Lists in the order of ``clients``: ``norms`` of the updates, ``kept`` parts of them,
        ``weights`` in the merge, and ``judged`` if the rule decided by something of its own.
        ``dropped`` says why some were left out. What is not finite is null.
        """
        said = {name: value.tolist() for name, value in within("said/", state).items()}
        if not said:
            return {}
        result: dict[str, Any] = {"name": self.defence.settings.name, "clients": said["clients"]}
        for name in ("norms", "kept", "weights", "judged"):
            result[name] = [value if np.isfinite(value) else None for value in said[name]]
        for name in ("weights", "judged"):
            if all(value is None for value in result[name]):
                del result[name]
        out = zip(said["clients"], said["kept"], said["why"], strict=True)
        result["dropped"] = {str(client): REASONS[why] for client, kept, why in out if not kept}
        result["merged"] = any(said["kept"])
        return {"defence": result}


def add_noise(params: Params, deviation: float, rng: np.random.Generator) -> Params:
    """Return the parameters with Gaussian noise on each number that is learned; drawn in order of
    names.

    Running statistics stay: a variance with noise on it may turn negative.
    """
    noisy = dict(params)
    for name in sorted(params):
        if not is_statistic(name):
            drawn = torch.from_numpy(
                rng.standard_normal(tuple(params[name].shape), dtype=np.float32)
            )
            noisy[name] = params[name] + deviation * drawn.to(
                params[name].device, params[name].dtype
            )
    return noisy
