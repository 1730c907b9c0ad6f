"""MAML (Finn et al. 2017) in a federation: FedFSL-naive (Fan and Huang 2021, FedFSL, section 3).

FedFSL Eq. 4 are the inner steps on a task's support set, Eq. 5 the loss of its queries after them,
Eq. 7 the mean over a client's episodes, Eq. 10 the server's average; with the strategy ``fedprox``
this is FedFSL-prox. The paper says neither how many inner steps there are nor whether they are
differentiated.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params, is_statistic, linear_layer, transformed
from fedunseen.core.phases import Context, Terms
from fedunseen.core.settings import NamedSettings, Widths
from fedunseen.core.sizes import OUTPUTS, check_size
from fedunseen.data.episodes import Tasks
from fedunseen.methods.episodic import Episodic, EpisodicSettings, accuracy, answers_of
from fedunseen.methods.networks import linear, mlp, mlp_init

Order = Literal["second", "first", "none"]

_STEP = 2**16
"""Numbers that a step which is differentiated takes at least: what is computed, and its graph."""


class MAMLSettings(EpisodicSettings):
    """Settings of MAML."""

    inner_lr: float = Field(0.1, gt=0)
    """Step size of the adaptation (alpha in FedFSL Eq. 4). FedFSL prints 0.01."""
    inner_steps: int = Field(5, ge=1)
    """Gradient steps of the adaptation in training."""
    test_steps: int = Field(10, ge=1)
    """Gradient steps of the adaptation in tests; more than in training helps much."""
    order: Literal["second", "first"] = "second"
    """`second`: differentiate through the adaptation; `first`: take the gradient at its end
    (FOMAML), which is cheaper.
    """
    adapt: Literal["all", "head"] = "all"
    """What the adaptation changes: all parameters, or the classifier alone (ANIL, Raghu et al.
    2020).
    """
    hidden: Widths = ()
    """Widths of the trained layers on top of the features; empty: none."""


class MAML(Episodic, name="maml"):
    """One phase: the queries' loss after inner steps on the support set."""

    Settings: ClassVar[type[NamedSettings]] = MAMLSettings
    settings: MAMLSettings
    limited = True

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the features' network f and the classifier."""
        return super().init(rng) | self.init_head("head", rng)

    def init_head(self, name: str, rng: np.random.Generator) -> Params:
        """Draw a classifier: hidden layers with ReLU, then N answers."""
        widths = [self.width, *self.settings.hidden]
        return mlp_init(name, widths, rng) | linear_layer(
            f"{name}.out", widths[-1], self.settings.ways, rng
        )

    def logits(self, params: Params, inputs: Tensor, head: str = "head") -> Tensor:
        """Return the answers' logits (n, N) of inputs (n, ...)."""
        return self.answer_features(params, self.backbone(params, inputs, training=True), head)

    def answer_features(self, params: Params, features: Tensor, head: str = "head") -> Tensor:
        """Return the answers' logits (n, N) of features (n, d)."""
        return linear(params, f"{head}.out", mlp(params, head, features))

    def of_task(self, params: Params, task: Tasks, context: Context) -> Terms:
        """Return FedFSL Eq. 5, the queries' cross-entropy after the adaptation."""
        answers = answers_of(task.queries, self.settings.ways)
        (logits,) = self.answer(params, task)
        return {"loss": F.cross_entropy(logits, answers), "accuracy": accuracy(logits, answers)}

    def adapted(
        self,
        params: Params,
        support: Tensor,
        order: Order | None = None,
        head: str = "head",
        steps: int | None = None,
        answers: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Params:
        """Take the inner steps on one task's support set (N * P, ...): FedFSL Eq. 4, repeated."""
        answers = answers_of(support, self.settings.ways) if answers is None else answers
        order = order or self.settings.order
        changes = {
            name: value
            for name, value in params.items()
            if name.startswith(f"{head}.")
            or (self.settings.adapt == "all" and name.startswith("f."))
        }
        fast = {name: value for name, value in changes.items() if not is_statistic(name)}
        if self.settings.adapt == "head" and features is None:
            features = self.backbone(params, support, training=True)

        def loss(values: Params) -> Tensor:
            if features is not None:
                return F.cross_entropy(self.answer_features(values, features, head), answers)
            return F.cross_entropy(self.logits({**params, **values}, support, head), answers)

        count = steps or self.settings.inner_steps
        if order != "none":  # what each step computes is kept until the end
            numbers = sum(value.numel() for value in fast.values()) + support.numel()
            each = max(numbers, _STEP)
            check_size("the steps of MAML", count * each, OUTPUTS, "lower method.inner_steps")
        for _ in range(count):
            grads = _gradient(loss, fast, support, order)
            fast = {
                name: value - self.settings.inner_lr * grads[name] for name, value in fast.items()
            }
            if order == "none":
                fast = {name: value.detach() for name, value in fast.items()}
        return {**params, **fast}

    def answer(
        self,
        params: Params,
        task: Tasks,
        order: Order | None = None,
        heads: Sequence[str] = ("head",),
        steps: int | None = None,
    ) -> list[Tensor]:
        """Adapt to one task, and return its queries' logits (N * Q, N): for each of some
        classifiers on one f.
        """
        if self.settings.adapt == "all":  # each classifier adapts together with its own copy of f
            each = [self.adapted(params, task.support, order, head, steps) for head in heads]
            return [
                self.logits(adapted, task.queries, head)
                for adapted, head in zip(each, heads, strict=True)
            ]
        support, queries = (self.backbone(params, side, training=True) for side in task)
        each = [
            self.adapted(params, task.support, order, head, steps, features=support)
            for head in heads
        ]
        return [
            self.answer_features(adapted, queries, head)
            for adapted, head in zip(each, heads, strict=True)
        ]

    def classify(self, params: Params, tasks: Tasks) -> Tensor:
        """Adapt to each task's support set with ``test_steps`` steps, and answer its queries."""

        def terms_of_task(task: Tasks) -> Terms:
            return {"logits": self.answer(params, task, "none", steps=self.settings.test_steps)[0]}

        with torch.no_grad():
            return self.each_task(terms_of_task, tasks)["logits"]

    def recognise(self, params: Params, support: Tensor, answers: Tensor, inputs: Tensor) -> Tensor:
        """Adapt with ``test_steps`` steps to examples of at most ``ways`` classes, and answer."""
        adapted = self.adapted(
            params, support, "none", steps=self.settings.test_steps, answers=answers
        )
        with torch.no_grad():
            return self.logits(adapted, inputs)[:, : int(answers.max()) + 1]


def _gradient(
    loss: Callable[[Params], Tensor], values: Mapping[str, Tensor], inputs: Tensor, order: Order
) -> dict[str, Tensor]:
    """Differentiate by ``values``: on the ordinary tape, which costs least, or within a transform
    by a transform.
    """
    if transformed(inputs, *values.values()):
        grads = torch.func.grad(loss)(dict(values))
        return grads if order == "second" else {name: grad.detach() for name, grad in grads.items()}
    with torch.enable_grad():
        leaves = {
            n: v if v.requires_grad else v.detach().requires_grad_() for n, v in values.items()
        }
        result = torch.autograd.grad(
            loss(leaves),
            list(leaves.values()),
            create_graph=order == "second",
            materialize_grads=True,
        )
    return dict(zip(leaves, result, strict=True))
