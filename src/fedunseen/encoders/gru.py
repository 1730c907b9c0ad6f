"""A GRU over word vectors (Cho et al. 2014; FedFSL, 5.4.2: hidden size 128), trained in the model.

``torch.nn.GRU`` cannot be mapped over tasks (``vmap`` has no rule for it), and with cuDNN it cannot
be differentiated twice. The GRU here is written out in elementary operations, so that both work.
The products with the inputs are computed for all steps at once.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.encoders.backbone import Backbone, Encoder, EncoderSettings, Output
from fedunseen.encoders.images import as_floats

_KEEP = 1e4


HIDDEN = 128
"""Numbers of the state, which after the last word are the features."""


class GRU(Encoder, name="gru"):
    """A gated recurrent unit over sequences, trained in the model."""

    reads = "sequences"
    trained = True

    def __init__(
        self, settings: EncoderSettings, image_shape: tuple[int, int, int], output: Output
    ) -> None:
        super().__init__(settings, image_shape, output)
        if output == "maps":
            raise ExperimentError(
                "encoder.name = 'gru' makes vectors of sequences, but the method takes feature maps"
            )

    def backbone(self) -> "GRUBackbone":
        """Return the network."""
        return GRUBackbone(self.image_shape[1:])


class GRUBackbone(Backbone):
    """The network; parameters as of ``torch.nn.GRU``. A step of zeros is padding: the state passes
    it unchanged.
    """

    trained = True

    def __init__(self, shape: tuple[int, ...], hidden: int = HIDDEN) -> None:
        self.steps, self.words = shape
        self.hidden = hidden
        super().__init__((hidden,))

    def init(self, rng: np.random.Generator) -> Params:
        """Draw all from U(-1/sqrt(hidden), 1/sqrt(hidden)), as PyTorch does."""
        bound = self.hidden**-0.5
        h = self.hidden
        shapes = {
            "weight_ih": (3 * h, self.words),
            "weight_hh": (3 * h, h),
            "bias_ih": (3 * h,),
            "bias_hh": (3 * h,),
        }
        return {
            f"f.gru.{name}": torch.from_numpy(rng.uniform(-bound, bound, shape).astype(np.float32))
            for name, shape in shapes.items()
        }

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Return the last state (n, hidden) after sequences (n, steps, width), zeros at their
        ends.
        """
        words = as_floats(inputs)
        h = self.hidden
        from_inputs = F.linear(words, params["f.gru.weight_ih"], params["f.gru.bias_ih"])
        padding = (words == 0).all(-1, keepdim=True)
        # Where there is no word the update gate keeps the state: sigmoid(1e4) is exactly one.
        # Cut by split and unbind, not by slices, each of whose gradients is as large as the whole.
        gates, news = torch.split(from_inputs, [2 * h, h], -1)
        of_update = torch.arange(2 * h, device=words.device) >= h
        gates = gates + _KEEP * (padding & of_update)
        state = torch.zeros_like(news[:, 0])
        for own_gates, own_new in zip(gates.unbind(1), news.unbind(1), strict=True):
            past = F.linear(state, params["f.gru.weight_hh"], params["f.gru.bias_hh"])
            past_gates, past_new = torch.split(past, [2 * h, h], -1)
            reset, update = torch.split(torch.sigmoid(own_gates + past_gates), [h, h], -1)
            state = torch.lerp(torch.tanh(own_new + reset * past_new), state, update)
        return as_floats(state)

    def multiply_adds(self) -> int:
        """Return the multiplications for one sequence."""
        return 3 * self.steps * self.hidden * (self.words + self.hidden)
