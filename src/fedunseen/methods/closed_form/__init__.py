"""Methods in closed form: sums over samples give the model, without a gradient and in one round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.registry import lazily

if TYPE_CHECKING:
    from fedunseen.methods.closed_form.base import ClosedForm, ClosedFormSettings

__all__ = ["ClosedForm", "ClosedFormSettings"]

__getattr__, __dir__ = lazily(__name__, {name: f"fedunseen.methods.closed_form.base:{name}" for name in __all__})
