"""What a method is: parameters, a schedule of phases, and scores of classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from fedunseen.core.bounds import limits
from fedunseen.core.parameters import Params
from fedunseen.core.phases import SGD, Batch, Context, Optimiser, Phase, Plan, Terms, epochs_plan
from fedunseen.core.settings import Named, NamedSettings
from fedunseen.core.sizes import OUTPUTS, check_size
from fedunseen.data import Benchmark, ClassSpace, Scaling
from fedunseen.encoders.backbone import Backbone, Output
from fedunseen.encoders.hub import may_fetch

LEFT_TO_DATA = ("lr", "unit")
"""Settings that follow from training samples where they are unset
(:meth:`Method.resolve_defaults`).
"""


AutoRate = Annotated[
    float | None, Field(gt=0), BeforeValidator(lambda value: None if value == "auto" else value)
]
"""A learning rate that is left to the data where it is unset or the word ``auto``."""


class MethodSettings(NamedSettings):
    """Settings that every trained method has: its optimiser (SGD) and batches."""

    losses: ClassVar[tuple[str, ...]] = ()
    """Weights of losses; at least one must not be 0."""
    lr: float = Field(0.01, gt=0)
    """Learning rate of the local updates; the optimizer's state starts again each round."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of SGD."""
    weight_decay: float = Field(1e-5, ge=0)
    """Weight decay of the local updates."""
    batch_size: Annotated[int, limits("method.batch_size")] = 64
    """Samples a step (B)."""

    @model_validator(mode="after")
    def _check_losses(self) -> Self:
        if self.losses and not any(getattr(self, name) for name in self.losses):
            names = f"{', '.join(self.losses[:-1])} and {self.losses[-1]}"
            raise ValueError(
                f"{names} are all 0, so that there is nothing to learn: give one a weight"
            )
        return self


@dataclass(frozen=True, eq=False)
class Candidates:
    """The classes that a model chooses among.

    Attributes:
        names: of all C classes.
        semantics: (C, attributes), scaled.
        seen, unseen: ids of the classes that training knows and of those that it does not. A class
            may be neither.
    """

    names: Sequence[str]
    semantics: Tensor
    seen: NDArray[np.int64]
    unseen: NDArray[np.int64]


@runtime_checkable
class AttributePredictor(Protocol):
    """A method that predicts attributes."""

    def attributes(self, params: Params, inputs: Tensor) -> Tensor:
        """Return (n, attributes) of inputs (n, ...)."""


class Method(Named):
    """Base of all methods: subclass, and register the class under its name (``fedunseen.methods``
    entry points).

    A method never sees clients, rounds or strategies. A run makes one from its settings, the class
    space, the scaled semantics (C, attributes) and the backbone. The backbone turns a batch's
    inputs into features: it passes frozen features through, or it is a trained encoder.

    A subclass sets these where the default does not fit:

    Attributes:
        task: what its models are for, by the name of a task: ``zero-shot`` (classes are given by
            descriptions) or ``few-shot`` (by a handful of examples).
        takes: the features that it works on: ``vectors`` (n, d) or ``maps`` (n, channels, height,
            width).
        zero_shot: it can score a class without training samples, from the class's semantics alone.
        scaling: what is done to feature vectors where the experiment does not say
            (``data.features``), so that their length does not matter.
        trained_rate: the learning rate where the settings name none and nothing is known of the
            inputs, and the largest that follows from inputs where the encoder is trained too.
        frozen: it needs features that training does not change, so that no encoder can be trained
            with it.
        private: patterns (``fnmatch``) of parameters that never leave a client.
        training_only: patterns of parameters that scoring does not read, so that they may stay with
            the clients.
        compares: its loss compares the client's model with that of all clients, or with
            ``settings.exclusive`` of all other clients. It finds that model under ``peers/`` in its
            context.
        grows: classes may be added while it is trained: no parameter is about a class, or
            :meth:`expand_classes` adds what is.
        adapts: its models have class means that unlabelled samples can add to; None: only some of
            them have (``seen_mask`` is one of their tensors).
        one_draw: a phase that runs before the round takes the same batches as the phases of the
            round.
        batched: its losses are pure functions, so that all clients of a round can train as one
            batch (``torch.func.vmap``). An instance has False also where its backbone is not pure.

    These follow from the functions that a subclass has:

    Attributes:
        trained: it has :meth:`phases`. Without, it is a
            :class:`~fedunseen.methods.closed_form.ClosedForm`.
        generates: it has :meth:`generated`: ``fit_heads`` trains classifiers on features that it
            makes.

    An instance knows too:

    Attributes:
        width: the length of a feature vector, or the channels of a map.
        fetches: it may download what its settings name. One that a file describes may not.
    """

    Settings: ClassVar[type[NamedSettings]] = MethodSettings
    task: ClassVar[str] = "zero-shot"
    takes: ClassVar[Output] = "vectors"
    zero_shot: ClassVar[bool] = True
    scaling: ClassVar[tuple[Scaling, ...]] = ("centre", "l2")
    trained_rate: ClassVar[float] = 0.01
    frozen: ClassVar[bool] = False
    private: ClassVar[tuple[str, ...]] = ()
    training_only: ClassVar[tuple[str, ...]] = ()
    compares: ClassVar[bool] = False
    grows: ClassVar[bool] = False
    adapts: ClassVar[bool | None] = False
    one_draw: ClassVar[bool] = False
    batched: bool = True

    trained: ClassVar[bool] = False
    generates: ClassVar[bool] = False
    settings: Any  # an instance of the class's own Settings

    def __init_subclass__(cls, **options: Any) -> None:
        """Note what the subclass can do."""
        super().__init_subclass__(**options)
        cls.trained = cls.phases is not Method.phases
        cls.generates = cls.generated is not Method.generated

    def __init__(
        self, settings: NamedSettings, space: ClassSpace, semantics: Tensor, backbone: Backbone
    ) -> None:
        self.settings = settings
        self.space = space
        self.semantics = semantics
        self.backbone = backbone
        self.batched = self.batched and backbone.batched
        self.fetches = may_fetch()
        self.width = backbone.shape[0]
        self.prepare()

    def prepare(self) -> None:
        """Check the settings against classes and backbone, and compute what follows from them."""

    @classmethod
    def on(cls, benchmark: Benchmark, **settings: Any) -> Self:
        """Make the method for a benchmark's samples and classes, both as they are, from settings by
        keyword.

        Example:
            >>> from fedunseen.data import Benchmark
            >>> from fedunseen.methods import FedZSL
            >>> animals = {"horse": [1, 0], "tiger": [0, 1], "zebra": [1, 1]}
            >>> benchmark = Benchmark.from_arrays([[0.0, 1], [1, 0]], ["horse", "tiger"], animals)
            >>> FedZSL.on(benchmark, lr=0.1).settings.lr
            0.1
        """
        semantics = torch.from_numpy(benchmark.space.semantics.astype(np.float32))
        return cls(
            cls.Settings(**settings),
            benchmark.space,
            semantics,
            Backbone(benchmark.features.shape[1:]),
        )

    @property
    def step_samples(self) -> int:
        """How many samples one step of training takes."""
        return int(self.settings.batch_size)

    def check_step(self) -> None:
        """Refuse layers whose outputs for the samples of one step are more than
        :data:`~fedunseen.core.sizes.OUTPUTS`.
        """
        hidden = getattr(self.settings, "hidden", None) or ()
        widths = (hidden,) if isinstance(hidden, int) else hidden
        largest = max(self.backbone.largest, self.width, *widths)
        check_size(
            "the outputs of a layer in one step",
            self.step_samples * largest,
            OUTPUTS,
            "lower encoder.widths, method.hidden, or the samples of a step",
        )

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the parameters of round 0."""
        raise TypeError(f"{type(self).__name__} must say how it is initialized")

    def warm_start(self, params: Params, weight: Tensor, bias: Tensor) -> Params:
        """Return drawn parameters with the linear model ``weight`` (C, d), ``bias`` (C,) in place,
        up to a constant.

        A method with the setting ``start`` has this.
        """
        raise TypeError(f"{type(self).__name__} cannot begin with a linear model")

    def round_parameters(self, rng: np.random.Generator) -> Params:
        """Draw parameters that a client has for one round only: they are trained with the others
        and then forgotten.
        """
        return {}

    def phases(self) -> Sequence[Phase]:
        """Return the schedule of a local update; none for a method in closed form."""
        return ()

    def context(self) -> Context:
        """Return what every client's loss knows."""
        return {}

    def client_context(self, classes: NDArray[np.int64]) -> Context:
        """Return what one client's loss knows, from the ids of the classes that it holds."""
        return {}

    def plan(
        self, phase: str, labels: NDArray[np.int64], epochs: int, rng: np.random.Generator
    ) -> Plan:
        """Plan the batches of a local update over samples with these ``labels`` (n,).

        ``phase`` is the name of a phase that runs before the round, or ``""`` for those that take
        turns.
        """
        return epochs_plan(len(labels), self.settings.batch_size, epochs, rng)

    def facts(self, params: Params) -> dict[str, Any]:
        """Return what a run reports of its merged parameters, as JSON values."""
        return {}

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Score classes: inputs (n, d) and class semantics (C, attributes) to (n, C); the highest
        is the answer.

        The rows of ``semantics`` are any classes: some of the benchmark's, new ones, or known ones
        that are described anew. Score by what they say, not by their places.
        """
        raise TypeError(f"{type(self).__name__} must say how it scores classes")

    def graph_scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return what :meth:`scores` does, by operations that a graph without Python can hold
        (ONNX).
        """
        return self.scores(params, inputs, semantics)

    def own_offset(self, model: Params) -> float:
        """Return by how much the model itself lowers seen classes, beside any calibration of the
        run.
        """
        return 0.0

    def unseen_scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return (n, C) by which the best among the unseen classes is found; a generative method
        has its own.
        """
        return self.scores(params, inputs, semantics)

    def fit_heads(
        self,
        params: Params,
        among: Candidates,
        seed: int,
        real: tuple[Tensor, Tensor] | None = None,
    ) -> Params:
        """Return the merged parameters and what :meth:`scores` needs beside them, to choose among
        classes.

        ``real`` are training samples (n, ...) and their labels (n,), where one place has all of
        them.
        """
        return params

    def generated(self, params: Params, among: Candidates, c: int, count: int, seed: int) -> Tensor:
        """Return ``count`` generated samples of class ``c``, as :meth:`represent` gives real
        ones.
        """
        raise TypeError(f"{type(self).__name__} generates nothing")

    def expand_classes(self, params: Params) -> Params:
        """Return parameters of a class space that had this one's first classes, as this one's; if
        it ``grows``.
        """
        return params

    def check_inputs(self, inputs: Tensor) -> None:
        """Raise ``ExperimentError`` for training inputs (n, ...) that a ``frozen`` method cannot
        learn from.
        """

    def contrast(self, params: Params, batch: Batch, context: Context) -> Tensor:
        """Return (B, d) what a strategy contrasts between models on a batch."""
        return self.represent(params, batch["inputs"])

    def represent(self, params: Params, inputs: Tensor) -> Tensor:
        """Return (n, d): what a figure shows of samples, and what a strategy contrasts.

        These are the features. Where training does not change the features, they are the predicted
        attributes.
        """
        if isinstance(self, AttributePredictor) and not self.backbone.trained:
            return self.attributes(params, inputs)
        return self.features(params, inputs)

    def features(self, params: Params, inputs: Tensor) -> Tensor:
        """Return the visual features (n, d), f in the papers: the backbone's, of maps the mean over
        cells.
        """
        features = self.backbone(params, inputs)
        return features.flatten(2).mean(-1) if features.ndim > 2 else features

    def multiply_adds(self, params: Params) -> int:
        """Return the multiplications that one sample takes: the backbone's, and one for each other
        parameter.
        """
        heads = sum(value.numel() for name, value in params.items() if not name.startswith("f."))
        features = sum(value.numel() for name, value in params.items() if name.startswith("f."))
        return heads + (self.backbone.multiply_adds() or features)

    def rate(self, params: Params, inputs: Tensor) -> float:
        """Return the learning rate that suits some training inputs (n, ...), where ``Settings.lr``
        may be unset.
        """
        raise TypeError(f"{type(self).__name__} has no learning rate that follows from its inputs")

    def resolve_defaults(self, params: Params, inputs: Tensor) -> None:
        """Put in place what the settings leave to the data (:data:`LEFT_TO_DATA`): the learning
        rate (:meth:`rate`).
        """
        if getattr(self.settings, "lr", 0.0) is None:
            self.settings = self.settings.model_copy(update={"lr": self.rate(params, inputs)})

    def optimiser(self) -> Optimiser:
        """Return the optimiser that the settings name."""
        s = self.settings
        return SGD(self.trained_rate if s.lr is None else s.lr, s.momentum, s.weight_decay)


class OneLoss(Method):
    """A method with one loss, by which all parameters are trained."""

    def phases(self) -> Sequence[Phase]:
        """One phase: all parameters."""
        return (Phase("local", self.loss, self.optimiser()),)

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Return the scalar to minimize and its named parts."""
        raise TypeError(f"{type(self).__name__} must say what it minimizes")


def class_mask(choice: str, space: ClassSpace, local: NDArray[np.int64]) -> Tensor:
    """Return (C,) bool, the classes of a loss's denominator.

    ``all``: every class, unseen ones too (FedZSL Eq. 3 as printed); ``seen``; ``local``: those that
    the client holds.
    """
    chosen = {"all": np.union1d(space.seen, space.unseen), "seen": space.seen, "local": local}[
        choice
    ]
    mask = torch.zeros(len(space.names), dtype=torch.bool)
    mask[torch.from_numpy(chosen)] = True
    return mask
