"""Methods in closed form: sums over samples give the model, without a gradient and in one round."""

from fedunseen.methods.closed_form.base import ClosedForm, ClosedFormSettings

__all__ = ["ClosedForm", "ClosedFormSettings"]
