"""FedFSL-MI-Adv (Fan and Huang 2021, FedFSL, section 4.2): a feature space that two classifiers
agree on.

Each round a client draws a second classifier theta'. Stage 1 trains both to solve tasks and
disagree (FedFSL Eq. 15), stage 2 the features so that both agree (FedFSL Eq. 16), after Saito et
al. 2018. Algorithm 2 has no mutual information; here both stages keep it. Section 4.2.2 moves away
from the central model, the equations and this code from theta'.
"""

from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.core.phases import Batch, Context, Phase, Terms
from fedunseen.data.episodes import Tasks
from fedunseen.losses import kl_divergence
from fedunseen.methods.episodic import accuracy, answers_of
from fedunseen.methods.maml_mi import MAMLMI

_DIVERGENCE = 0.1
"""Weight of the classifiers' divergence: eta in FedFSL Eq. 15, lambda in Eq. 16."""


class MAMLMIAdv(MAMLMI, name="maml-mi-adv"):
    """Two phases: both classifiers; the features."""

    one_draw = True

    def prepare(self) -> None:
        """Refuse, too, frozen features."""
        super().prepare()
        if not self.backbone.trained:
            raise ExperimentError(
                "method.name = 'maml-mi-adv' trains features that two classifiers agree on, but "
                "these are frozen: name a trained encoder, for example conv4"
            )

    def round_parameters(self, rng: np.random.Generator) -> Params:
        """Draw the second classifier theta' of a client's round."""
        return self.init_head("second", rng)

    def phases(self) -> Sequence[Phase]:
        """Stage 1, over all episodes: theta and theta'. Stage 2, over the same: the features'
        network Theta.
        """
        first = self.optimiser()
        second = self.optimiser()
        return (
            Phase("stage-1", self.stage1, first, ("head.*", "second.*"), before_round=True),
            Phase("stage-2", self.stage2, second, ("f.*",)),
        )

    def stage1(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """FedFSL Eq. 15: L(theta) + L(theta') - eta * L_adv."""
        return self._stage(params, batch, context, -_DIVERGENCE, "stage1")

    def stage2(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """FedFSL Eq. 16: L(theta) + L(theta') + lambda * L_adv."""
        return self._stage(params, batch, context, _DIVERGENCE, "")

    def _stage(
        self, params: Params, batch: Batch, context: Context, weight: float, stage: str
    ) -> tuple[Tensor, Terms]:
        def terms_of_task(task: Tasks) -> Terms:
            answers = answers_of(task.queries, self.settings.ways)
            first, second = self.answer(params, task, heads=("head", "second"))
            of_task = F.cross_entropy(first, answers)
            of_second = F.cross_entropy(second, answers)
            adversarial = kl_divergence(first, second)  # FedFSL Eq. 14
            mutual = kl_divergence(self.peer_logits(params, task, context), first)
            loss = of_task + of_second + weight * adversarial
            loss = loss + self.weight(context) * mutual
            terms = {"task": of_task, "second": of_second, "adversarial": adversarial}
            terms |= {"mi": mutual, "accuracy": accuracy(first, answers)}
            return {"loss": loss, **terms}

        terms = self.means(terms_of_task, batch)
        return terms["loss"], {
            f"{stage}_{name}" if stage else name: value for name, value in terms.items()
        }
