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
from fedunseen.methods.closed_form.sae import SAE

LEAD = 3.0  # percentage points by which another form has to lead, beside its interval
WIDEST = 512  # features up to which an autoencoder is compared: its eigenvectors take their cube

_RIVALS: dict[str, tuple[type[ClosedForm], str]] = {"ridge": (Ridge, "v"), "sae": (SAE, "encoder")}
"""Form -> its class, and a parameter that it alone has."""


class Auto(Gaussian, name="auto"):
    """Gaussian classes, or another closed form where classes left out of the sums are recognized
    better so.
    """

    adapts = None  # other forms than Gaussian classes keep no class means

    class Settings(GaussianSettings):
        """Settings of the automatic choice: those of Gaussian classes, and which closed form it
        is.
        """

        form: Literal["gaussian", "ridge", "sae"] | None = None
        """Unset: ridge regression or, up to 512 features, the semantic autoencoder where it does
        clearly better on classes left out of the sums, otherwise Gaussian classes. With
        `calibration` it is Gaussian classes: the others have no offset of their own, without which
        they hardly ever answer with an unseen class."""

    def _rival(self, form: str) -> ClosedForm:
        kind = _RIVALS[form][0]
        settings = kind.Settings.model_validate({})
        return kind(settings, self.space, self.semantics, self.backbone)

    def _other(self, model: Params) -> ClosedForm | None:
        """Return the closed form that a model is; None: Gaussian classes."""
        for form, (_, parameter) in _RIVALS.items():
            if parameter in model:
                return self._rival(form)
        return None

    def solve(self, sums: Params) -> Params:
        """Return the model of these sums: a Gaussian's tensors, or those of another form."""
        form = self.settings.form
        if form in _RIVALS:
            return self._rival(form).solve(sums)
        model = super().solve(sums)
        if form is not None or self.settings.calibration or not estimable(self, sums):
            return model
        rivals = [self._rival(form) for form in _RIVALS if form != "sae" or self.width <= WIDEST]
        tested = [(super().quick(model), model, 0), *((rival, {}, 0) for rival in rivals)]
        ours, *theirs = left_out_accuracy(tested, sums)
        leads = [lead_over(each, ours) for each in theirs]
        clear = [
            (lead["lead"], rival)
            for lead, rival in zip(leads, rivals, strict=True)
            if lead["lead"] > max(LEAD, lead["ci95"])
        ]
        return max(clear, key=lambda pair: pair[0])[1].solve(sums) if clear else model

    def choice(self, model: Params) -> dict[str, str]:
        """Return which closed form the model is."""
        other = self._other(model)
        return {"form": "gaussian" if other is None else other.settings.name}

    def quick(self, model: Params) -> ClosedForm:  # type: ignore[override]
        """Return the closed form that the model is."""
        return self._other(model) or super().quick(model)

    def check_model(self, model: Params) -> None:
        """Check the closed form that the model is."""
        if self._other(model) is None:
            super().check_model(model)

    def units(self, model: Params) -> dict[str, float]:
        """Return the shrinkage of Gaussian classes."""
        return super().units(model) if self._other(model) is None else {}

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return the scores of the closed form that the model is."""
        other = self._other(params)
        if other is None:
            return super().scores(params, inputs, semantics)
        return other.scores(params, inputs, semantics)

    def distances(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor | None:
        """Return distances to Gaussian prototypes; None: other forms have none."""
        if self._other(params) is not None:
            return None
        return super().distances(params, inputs, semantics)

    def discriminants(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Discriminants:
        """Return the linear functions of the closed form that the model is."""
        other = self._other(params)
        if other is None:
            return super().discriminants(params, inputs, semantics, classes)
        return other.discriminants(params, inputs, semantics, classes)

    def attribute_parts(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Tensor:
        """Return what attributes add in the closed form that the model is."""
        other = self._other(params)
        if other is None:
            return super().attribute_parts(params, inputs, semantics, classes)
        parts = other.attribute_parts(params, inputs, semantics, classes)
        assert parts is not None
        return parts

    def graph_scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return what :meth:`scores` does, for a graph."""
        other = self._other(params)
        if other is None:
            return super().graph_scores(params, inputs, semantics)
        return other.graph_scores(params, inputs, semantics)
