"""FedFSL-MI (Fan and Huang 2021, FedFSL, section 4.1): MAML whose clients agree with one another.

The loss pulls a client's answers towards a peer's (FedFSL Eq. 12): the merged model, or that of all
other clients (FedFSL Eq. 11). The paper does not say which answers; here both adapt to the support
set and answer the queries.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params, within
from fedunseen.core.phases import PEER_COUNTS, Context, Terms
from fedunseen.core.settings import NamedSettings
from fedunseen.data.episodes import Tasks
from fedunseen.losses import kl_divergence
from fedunseen.methods.episodic import accuracy, answers_of
from fedunseen.methods.maml import MAML, MAMLSettings


class MAMLMISettings(MAMLSettings):
    """Settings of FedFSL-MI."""

    mi: float = Field(0.2, ge=0)
    """Weight of the mutual information (gamma in FedFSL Eq. 13)."""
    mi_from: int = Field(1, ge=1)
    """The first round with it, counted from 1. In round 1 the peer is the untrained model."""
    exclusive: bool = False
    """The peer is the model of all other clients (FedFSL Eq. 11), instead of the merged one, which
    the paper takes.
    """


class MAMLMI(MAML, name="maml-mi"):
    """One phase: the queries' loss and the divergence from the peer's answers."""

    Settings: ClassVar[type[NamedSettings]] = MAMLMISettings
    settings: MAMLMISettings
    compares = True

    def of_task(self, params: Params, task: Tasks, context: Context) -> Terms:
        """Return FedFSL Eq. 13: FedFSL Eq. 5, and gamma times FedFSL Eq. 12."""
        answers = answers_of(task.queries, self.settings.ways)
        (logits,) = self.answer(params, task)
        of_task = F.cross_entropy(logits, answers)
        mi = kl_divergence(self.peer_logits(params, task, context), logits)
        loss = of_task + self.weight(context) * mi
        return {"loss": loss, "task": of_task, "mi": mi, "accuracy": accuracy(logits, answers)}

    def share(self, rounds: Sequence[Mapping[str, float]]) -> float:
        """Return the mutual information's share of the loss in percent, of the losses of each round
        by name.
        """
        whole = sum(item["loss"] for item in rounds)
        part = sum(item.get("mi", 0.0) for item in rounds[self.settings.mi_from - 1 :])
        return 100 * self.settings.mi * part / whole if whole else 0.0

    def weight(self, context: Context) -> Tensor | float:
        """Return the weight of the mutual information in this round."""
        return (
            self.settings.mi * context[PEER_COUNTS] if PEER_COUNTS in context else self.settings.mi
        )

    def peer_logits(self, params: Params, task: Tasks, context: Context) -> Tensor:
        """Return the peer's answers after its own adaptation, as constants; what does not travel is
        the client's.
        """
        peer = {name: value.detach() for name, value in params.items()} | within("peers/", context)
        with torch.no_grad():
            return self.answer(peer, task, "none")[0].detach()
