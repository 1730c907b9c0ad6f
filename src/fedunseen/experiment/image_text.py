"""Zero-shot CLIP as a :class:`fedunseen.Model`: classes by their names, images and texts from one
space, and no example.

With examples at parties, ``gaussian`` with ``method.prior = "semantics"`` starts from the same
texts (``docs/closed-form.md``).
"""

from collections.abc import Sequence
from math import exp

import numpy as np
import torch
from safetensors import safe_open

from fedunseen.core.array_cache import content_digest
from fedunseen.core.errors import DataError
from fedunseen.data import ClassSpace, Scaler, fit_semantics
from fedunseen.data.class_table import PROMPT, describe
from fedunseen.encoders import hub
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.model import Model


def image_text_model(weights: str, classes: Sequence[str], prompt: str = PROMPT) -> Model:
    """Return zero-shot CLIP, or SigLIP: a class scores by the cosine of an image and of the text
    that names it.

    :meth:`~fedunseen.Model.probabilities` are the softmax of CLIP's own ``logits_per_image``, its
    logit scale included; scores are these logits less half of the scale. Samples are what
    ``encoder.name = "vision"`` makes of images with the same weights.

    Args:
        weights: a hub name, perhaps with ``@REVISION``, or a folder.
        classes: names, as a reader would say them.
        prompt: the sentence that the text encoder reads, with ``{}`` for the name.

    Raises:
        DataError: there are no such weights, or they have no logit scale: it is no model of images
            and texts.
    """
    folder = hub.weights_folder(weights, "weights")
    scale = logit_scale(str(folder))
    semantics, attributes = describe(classes, str(folder), prompt)
    ids = np.arange(len(classes))
    space = ClassSpace(
        tuple(classes), semantics, attributes, seen=ids, validation=ids[:0], unseen=ids[:0]
    )
    scaling = fit_semantics(space, ("l2",))
    width = semantics.shape[1]
    settings = Gaussian.Settings.model_validate({"prior": "semantics", "logit_scale": scale})
    described = torch.from_numpy(scaling(space.semantics))
    method = Gaussian(settings, space, described, Backbone((width,)))
    files = hub.model_files(folder)
    encoder = {
        "name": "vision",
        "digest": content_digest(files),
        "files": {path.name: path.stat().st_size for path in files},
    }
    params = method.solve({"count": torch.zeros(len(classes))})
    return Model(space, method, params, Scaler(("l2",), {}), scaling, features_from=encoder)


def logit_scale(weights: str) -> float:
    """Return what a model of images and texts multiplies cosines by."""
    folder = hub.weights_folder(weights, "weights")
    for path in hub.weight_files(folder):
        with hub.naming(folder), safe_open(path, "pt") as file:
            if "logit_scale" in file.keys():  # noqa: SIM118 - it is not a mapping
                return exp(float(file.get_tensor("logit_scale")))
    raise DataError(
        f"{folder} has no logit scale, so it is no model of images and texts: name a CLIP or a "
        "SigLIP",
        hub.OTHER_TYPE,
    )
