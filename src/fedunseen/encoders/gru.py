"""A GRU over word vectors (Cho et al. 2014; FedFSL, 5.4.2: hidden size 128), trained in the model.

``torch.nn.GRU`` can neither be mapped over tasks (``vmap`` has no rule for it) nor, on CUDA with cuDNN, be
differentiated twice. Written out, it can be both; the products with the inputs are done for all steps at once.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.encoders.backbone import Backbone, Encoder, EncoderSettings, Output
from fedunseen.encoders.images import as_floats

__all__ = ["GRU", "GRUBackbone", "GRUSettings"]


class GRUSettings(EncoderSettings):
    """Settings of the GRU."""

    name: Literal["gru"] = "gru"
    hidden: PositiveInt = 128
    """Numbers of its state, which after the last word are the features."""


class GRU(Encoder):
    """A gated recurrent unit over sequences, trained in the model."""

    Settings = GRUSettings
    reads = "sequences"
    trained = True

    def __init__(self, settings: GRUSettings, image_shape: tuple[int, int, int], output: Output) -> None:
        super().__init__(settings, image_shape, output)
        if output == "maps":
            raise ExperimentError("encoder.name = 'gru' makes vectors of sequences, but the method takes feature maps")
        self.config = settings

    def backbone(self) -> GRUBackbone:
        """Return the network."""
        return GRUBackbone(self.config, self.image_shape[1:])


class GRUBackbone(Backbone):
    """The network; parameters as ``torch.nn.GRU`` has them: ``f.gru.weight_ih`` (3 hidden, width) and so on.

    A step whose vector is all zeros is padding: the state passes it unchanged.
    """

    trained = True

    def __init__(self, settings: GRUSettings, shape: tuple[int, ...]) -> None:
        self.steps, self.words = shape
        self.hidden = settings.hidden
        super().__init__((settings.hidden,))

    def init(self, rng: np.random.Generator) -> Params:
        """Draw all from U(-1/sqrt(hidden), 1/sqrt(hidden)), as PyTorch does."""
        bound, h = self.hidden**-0.5, self.hidden
        shapes = {"weight_ih": (3 * h, self.words), "weight_hh": (3 * h, h), "bias_ih": (3 * h,), "bias_hh": (3 * h,)}
        return {
            f"f.gru.{name}": torch.from_numpy(rng.uniform(-bound, bound, shape).astype(np.float32))
            for name, shape in shapes.items()
        }

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Return the last state (n, hidden) after sequences (n, steps, width), zeros at their ends."""
        words = as_floats(inputs)
        there = (words != 0).any(-1, keepdim=True)  # (n, steps, 1)
        given = F.linear(words, params["f.gru.weight_ih"], params["f.gru.bias_ih"])
        state = torch.zeros_like(given[:, 0, : self.hidden])
        for step in range(words.shape[1]):
            past = F.linear(state, params["f.gru.weight_hh"], params["f.gru.bias_hh"])
            reset_in, update_in, new_in = given[:, step].chunk(3, -1)
            reset_past, update_past, new_past = past.chunk(3, -1)
            reset, update = torch.sigmoid(reset_in + reset_past), torch.sigmoid(update_in + update_past)
            new = torch.tanh(new_in + reset * new_past)
            state = torch.where(there[:, step], new + update * (state - new), state)
        return as_floats(state)

    def multiply_adds(self) -> int:
        """Return the multiplications for one sequence."""
        return 3 * self.steps * self.hidden * (self.words + self.hidden)
