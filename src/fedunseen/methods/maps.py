"""What the methods on maps share: their contexts, attribute groups, word vectors and projections of
cells.
"""

from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import DataError
from fedunseen.core.parameters import Params
from fedunseen.core.phases import Context, Terms
from fedunseen.data import ClassSpace, read_features
from fedunseen.encoders.backbone import Backbone
from fedunseen.encoders.hub import local_files_only
from fedunseen.encoders.text import VECTORS, embed_texts, plain_words
from fedunseen.methods.base import MethodSettings, OneLoss, class_mask

Classes = Literal["seen", "all", "local"]

USUAL = (
    1.0,
    100.0,
)  # mean length of a map's cells for which the methods' learning rates are known to do
BROUGHT_TO = 10.0  # where it is another


class MapSettings(MethodSettings):
    """Settings that every method on maps has."""

    sce_classes: Classes = "seen"
    """Classes in the softmax of the cross-entropy; as DistZSL Eq. 3 is printed, and in MSDN's code,
    `all`."""
    unit: float | None = Field(None, gt=0)
    """What frozen maps are divided by. Unset: 1 where the cells of training maps have a mean length
    of 1 to 100, as those of networks have; otherwise what brings them to 10, so that the learning
    rate does."""


class MapMethod(OneLoss):
    """Base of the methods on maps (n, channels, height, width)."""

    takes = "maps"
    grows = True

    def prepare(self) -> None:
        """Lay out the groups (L, attributes) where the method has the loss, and divide maps by
        their unit.
        """
        if getattr(self.settings, "decorrelation", 0):
            self.groups = group_matrix(
                self.space, "method.decorrelation", "method.decorrelation = 0"
            )
        self._divide()

    @cached_property
    def words(self) -> Tensor:
        """Word vectors (attributes, w) of unit length, for a method with the setting; training asks
        for them.
        """
        with local_files_only(not self.fetches):
            return word_vectors(self.settings.words, self.space)

    def representation(self, maps: Tensor, attributes: Tensor) -> Tensor:
        """Return what a strategy contrasts: the features if they are trained, otherwise the
        predicted attributes.
        """
        return maps.flatten(2).mean(-1) if self.backbone.trained else attributes

    def resolve_defaults(self, params: Params, inputs: Tensor) -> None:
        """Put the unit of frozen maps and the learning rate in place, where the settings leave them
        to the data.
        """
        if self.settings.unit is None:
            unit = 1.0
            if len(inputs) and not self.backbone.trained:
                length = float(self.backbone(params, inputs).flatten(2).norm(dim=1).mean())
                if length > 0 and not USUAL[0] <= length <= USUAL[1]:
                    unit = length / BROUGHT_TO
            self.settings = self.settings.model_copy(update={"unit": unit})
            self._divide()
        super().resolve_defaults(params, inputs)

    def _divide(self) -> None:
        """Let the backbone give maps in their unit."""
        if self.settings.unit not in (None, 1.0) and not self.backbone.trained:
            self.backbone = _Divided(self.backbone, self.settings.unit)

    def context(self) -> Context:
        """Semantics (C, attributes) and, unless it is a client's own, the mask (C,) of the
        softmax.
        """
        context = {"semantics": self.semantics}
        if self.settings.sce_classes != "local":
            context["mask"] = class_mask(
                self.settings.sce_classes, self.space, np.array([], dtype=np.int64)
            )
        if getattr(self.settings, "decorrelation", 0):
            context["groups"] = self.groups
        return context

    def client_context(self, classes: NDArray[np.int64]) -> Context:
        """Return the mask of a softmax that runs over a client's own classes."""
        local = self.settings.sce_classes == "local"
        return {"mask": class_mask("local", self.space, classes)} if local else {}


class _Divided(Backbone):
    """Frozen maps in a unit of their own."""

    def __init__(self, backbone: Backbone, unit: float) -> None:
        super().__init__(backbone.shape)
        self.unit = unit

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Return the maps (n, channels, height, width), divided by the unit."""
        return super().__call__(params, inputs, training) / self.unit


def weighted_loss(
    settings: MethodSettings, terms: Terms, representation: Tensor
) -> tuple[Tensor, Terms]:
    """Return the sum of ``terms``, each weighted by the setting of its name, and what a loss
    reports.
    """
    total = torch.stack([getattr(settings, name) * term for name, term in terms.items()]).sum()
    return total, {"loss": total, **terms, "representation": representation}


def group_matrix(space: ClassSpace, loss: str, remedy: str) -> Tensor:
    """Return the attribute groups of a class space as (L, attributes): 1 where an attribute belongs
    to a group.
    """
    matrix = torch.zeros(len(space.attribute_groups), space.attributes)
    for row, columns in zip(matrix, space.attribute_groups.values(), strict=True):
        row[list(columns)] = 1.0
    covered = matrix.sum(0) > 0
    if not covered.all():
        example = space.attribute_names[int((~covered).int().argmax())]
        raise DataError(
            f"{loss} needs every attribute in a group, but {int(covered.sum())} of "
            f"{space.attributes} are ({example!r} is not): give it a group in the class space, or "
            f"set {remedy}"
        )
    return matrix


def word_vectors(words: str, space: ClassSpace) -> Tensor:
    """Return the word vectors of a class space's attributes, scaled to unit length: (attributes, w)
    float32.

    ``words`` is ``one-hot``, a text encoder, a file of word vectors, or a ``.npy`` file with a row
    for each attribute, in their order.
    """
    names = space.attribute_names
    path = Path(words).expanduser()
    if words == "one-hot":
        rows = np.eye(len(names), dtype=np.float32)
    elif path.suffix == ".npy":
        rows = read_features(path)
        if len(rows) != len(names):
            raise DataError(
                f"{path} has {len(rows)} vectors, but there are {len(names)} attributes: give one "
                "for each"
            )
    else:
        is_file = path.suffix in (".txt", ".gz", ".vec") and not words.startswith(VECTORS)
        rows = embed_texts(
            [plain_words(name) for name in names], VECTORS + words if is_file else words
        )
    return F.normalize(torch.from_numpy(rows), dim=-1)


def project(weight: Tensor, maps: Tensor) -> Tensor:
    """Apply filters (k, channels) at every cell: maps (n, channels, height, width) to (n, k,
    height, width).
    """
    return torch.einsum("kc,nchw->nkhw", weight, maps)
