"""What to start with when nothing is known of the data: the closed form that does best on classes
left out.
"""

from typing import Literal

from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.methods.closed_form.base import ClosedForm, Discriminants
from fedunseen.methods.closed_form.gaussian import Gaussian, GaussianSettings
from fedunseen.methods.closed_form.left_out import estimable, lead_over, left_out_accuracy
from fedunseen.methods.closed_form.ridge import Ridge

LEAD = 3.0  # percentage points by which ridge regression has to lead, beside its interval


class Auto(Gaussian, name="auto"):
    """Gaussian classes, or ridge regression where classes left out of the sums are recognized
    better so.
    """

    class Settings(GaussianSettings):
        """Settings of the automatic choice: those of Gaussian classes, and which closed form it
        is.
        """

        form: Literal["gaussian", "ridge"] | None = None
        """Unset: ridge regression where it does clearly better on classes left out of the sums,
        otherwise Gaussian classes. With `calibration` it is Gaussian classes: ridge regression has
        no offset of its own, without which it hardly ever answers with an unseen class."""

    @property
    def _ridge(self) -> Ridge:
        return Ridge(Ridge.Settings.model_validate({}), self.space, self.semantics, self.backbone)

    def solve(self, sums: Params) -> Params:
        """Return the model of these sums: a Gaussian's tensors, or those of ridge regression."""
        form = self.settings.form
        if form == "ridge":
            return self._ridge.solve(sums)
        model = super().solve(sums)
        if form is None and not self.settings.calibration and estimable(self, sums):
            ours, theirs = left_out_accuracy(
                [(super().quick(model), model, 0), (self._ridge, {}, 0)], sums
            )
            lead = lead_over(theirs, ours)
            if lead["lead"] > max(LEAD, lead["ci95"]):
                return self._ridge.solve(sums)
        return model

    def choice(self, model: Params) -> dict[str, str]:
        """Return which closed form the model is."""
        return {"form": "ridge" if "v" in model else "gaussian"}

    def quick(self, model: Params) -> ClosedForm:  # type: ignore[override]
        """Return the closed form that the model is."""
        return self._ridge if "v" in model else super().quick(model)

    def check_model(self, model: Params) -> None:
        """Check the closed form that the model is."""
        if "v" not in model:
            super().check_model(model)

    def units(self, model: Params) -> dict[str, float]:
        """Return the shrinkage of Gaussian classes."""
        return {} if "v" in model else super().units(model)

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return the scores of the closed form that the model is."""
        if "v" in params:
            return self._ridge.scores(params, inputs, semantics)
        return super().scores(params, inputs, semantics)

    def distances(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor | None:
        """Return distances to Gaussian prototypes; None: ridge regression has none."""
        return None if "v" in params else super().distances(params, inputs, semantics)

    def discriminants(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Discriminants:
        """Return the linear functions of the closed form that the model is."""
        if "v" in params:
            return self._ridge.discriminants(params, inputs, semantics, classes)
        return super().discriminants(params, inputs, semantics, classes)

    def attribute_parts(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Tensor:
        """Return what attributes add in the closed form that the model is."""
        if "v" in params:
            return self._ridge.attribute_parts(params, inputs, semantics, classes)
        return super().attribute_parts(params, inputs, semantics, classes)

    def graph_scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return what :meth:`scores` does, for a graph."""
        if "v" in params:
            return self._ridge.graph_scores(params, inputs, semantics)
        return super().graph_scores(params, inputs, semantics)
