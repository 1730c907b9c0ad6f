"""FedProx (Li et al. 2020, "Federated optimization in heterogeneous networks"): a pull towards the
global model.

FedZSL calls FedProx a scheme that "assigns higher aggregation rates to the clients that hold more
training data"; that is ``weights = "samples"``, an option of every strategy. Here is what Li et al.
define.
"""

from pydantic import Field

from fedunseen.core.parameters import Params, under, within
from fedunseen.core.phases import GradientFunction, Step, Terms
from fedunseen.strategies.base import Instruction, Strategy, StrategySettings


class FedProx(Strategy, name="fedprox"):
    r"""Adds :math:`\frac{\mu}{2}\|w - w^t\|^2` to the local loss (their Eq. 2)."""

    class Settings(StrategySettings):
        """Settings of FedProx."""

        mu: float = Field(0.001, ge=0)
        """Weight of the proximal or contrastive term; 0 is FedAvg. MOON's best are 5, 1 and 1 on
        its three data sets."""

    settings: Settings

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Send the global model twice: as the start, and as the point of the pull."""
        return Instruction(params, under("global/", params))

    def correct(self, gradient: GradientFunction) -> GradientFunction:
        """Add mu (w - w^t) to the gradient."""
        mu = self.settings.mu

        def pulled(params: Params, step: Step) -> tuple[Params, Terms]:
            grads, terms = gradient(params, step)
            centre = within("global/", step.extras)
            return {
                name: grad + mu * (params[name] - centre[name]) for name, grad in grads.items()
            }, terms

        return pulled
