"""DistZSL: FedZSL's alignment and regularizer, attribute decorrelation and a bilateral connection
(Chen et al. 2025).

Every row of the paper's ablation (Table II) is a setting of the four weights. DistZSL Eq. 9 gives
mu_1 to the bilateral loss and mu_2 to the divergence, line 17 of Algorithm 1 the other way round;
here each weight has its loss's name.
"""

from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.phases import Batch, Context, Terms
from fedunseen.losses import consistency, decorrelation
from fedunseen.methods.fedzsl import AlignmentSettings, FedZSL
from fedunseen.methods.maps import group_matrix
from fedunseen.methods.networks import linear


class DistZSL(FedZSL, name="distzsl"):
    """FedZSL's networks and Gamma with DistZSL's losses (DistZSL Eq. 9): Eq. 3, Eq. 7, Eq. 8 and
    Eq. 4.
    """

    class Settings(AlignmentSettings):
        """Settings of DistZSL; the weights of the losses are the paper's for CUB. A weight of 0
        switches a loss off.
        """

        losses = "sce", "kl", "bilateral"
        kl: float = Field(10.0, ge=0)
        """Weight of the relation distillation: mu in FedZSL Eq. 8, the regularizer of DistZSL Eq. 5
        to DistZSL Eq. 7."""
        bilateral: float = Field(0.1, ge=0)
        """Weight of the bilateral connection, DistZSL Eq. 8; 0 leaves h out."""
        decorrelation: float = Field(0.3, ge=0)
        """Weight of the attribute decorrelation (DistZSL Eq. 4), which needs every attribute in a
        group; 0 needs none."""

    settings: Settings
    trained_rate = 0.003  # the divergence's weight of 10 bears little more
    of_h = "bilateral"

    def prepare(self) -> None:
        """Lay out the groups (L, attributes), where the decorrelation is on."""
        super().prepare()
        if self.settings.decorrelation:
            self.groups = group_matrix(
                self.space, "method.decorrelation", "method.decorrelation = 0"
            )

    def context(self) -> Context:
        """FedZSL's context and, where the decorrelation is on, the groups (L, attributes)."""
        return super().context() | ({"groups": self.groups} if self.settings.decorrelation else {})

    def more_terms(
        self, params: Params, features: Tensor, attributes: Tensor, batch: Batch, context: Context
    ) -> Terms:
        """Return DistZSL Eq. 8, of features that h makes of predicted attributes, and DistZSL Eq.
        4.
        """
        terms = {}
        if self.settings.bilateral:
            terms["bilateral"] = consistency(
                linear(params, "h", attributes), features, batch["weights"]
            )
        if self.settings.decorrelation:
            terms["decorrelation"] = decorrelation(attributes, context["groups"], batch["weights"])
        return terms
