"""MOON (Li et al. 2021): features near those of the global model, away from the client's own of the
round before.

A zero-shot model has no projection head; what is contrasted is the method's ``contrast``: trained
features, predicted attributes, or what a generator makes.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params, under, within
from fedunseen.core.phases import Batch, Context, Loss, Represent, Terms, weighted_mean
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import Instruction, Strategy, StrategySettings


class Moon(Strategy, name="moon"):
    """FedAvg with the model-contrastive term (their Eq. 3) added to every loss."""

    class Settings(StrategySettings):
        """Settings of MOON."""

        mu: float = Field(1.0, ge=0)
        """Weight of the proximal or contrastive term; 0 is FedAvg. MOON's best are 5, 1 and 1 on
        its three data sets."""
        temperature: float = Field(0.5, gt=0)
        """tau of the contrastive term."""

    settings: Settings

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Send the model, which is also what the client's features are drawn to."""
        return Instruction(params, under("global/", params))

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """Add the client's own model of the last round that it took part in.

        In its first round there is none: the global model stands in and the term counts nothing
        (``known`` = 0).
        """
        params = instruction.params
        known = torch.tensor(
            1.0 if client_state else 0.0, device=next(iter(params.values())).device
        )
        return replace(
            instruction, kept=under("previous/", client_state or params) | {"known": known}
        )

    def objective(self, loss: Loss, represent: Represent) -> Loss:
        """Add mu times the contrastive term, on the loss's own ``representation`` if it gives
        one.
        """
        mu = self.settings.mu
        temperature = self.settings.temperature
        if not mu:
            return loss

        def contrasting(params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
            value, terms = loss(params, batch, context)
            local = terms.get("representation")
            if local is None:
                local = represent(params, batch, context)
            shared = represent(within("global/", context), batch, context)
            previous = represent(within("previous/", context), batch, context)
            term = context["known"] * contrast(
                local, shared, previous, batch["weights"], temperature
            )
            total = value + mu * term
            return total, {**terms, "loss": total, "contrast": term}

        return contrasting

    def finish(
        self, instruction: Instruction, result: LocalResult, client_state: Params
    ) -> tuple[Params, Params]:
        """Send the update, keep the model."""
        update, _ = super().finish(instruction, result, client_state)
        return update, {
            name: value.clone() for name, value in result.params.items()
        }  # may be views of a whole round


def contrast(
    local: Tensor, shared: Tensor, previous: Tensor, weights: Tensor, temperature: float
) -> Tensor:
    r"""Eq. 3: :math:`-\log\mathrm{sigmoid}((\cos(z, z_{glob}) - \cos(z, z_{prev})) / \tau)`, of
    features (B, d).
    """
    local, shared, previous = (
        z.to(torch.promote_types(z.dtype, torch.float32)) for z in (local, shared, previous)
    )
    nearer = F.cosine_similarity(local, shared, dim=-1) - F.cosine_similarity(
        local, previous, dim=-1
    )
    return weighted_mean(-F.logsigmoid(nearer / temperature), weights)
