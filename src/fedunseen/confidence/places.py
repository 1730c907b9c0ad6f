"""Where in a picture an answer's evidence lies: an exact split of its score over places.

Scores of closed forms are linear in features. Where features are means over the places of a map
(networks that end in global average pooling), or the pixels themselves, a score is a sum over
places. The length of a sample is a common factor of its places.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.data import Scaler
from fedunseen.methods.closed_form.base import Discriminants

Floats = NDArray[np.float64]

_FOR = (230, 97, 1)  # orange and blue, which color-blind readers tell apart
_AGAINST = (33, 102, 172)
_OPAQUE = 0.75  # of the color at the place that says most
_SIDE = 256  # pixels to which small pictures are enlarged
_ROWS = ("upper", "middle", "lower")
_COLUMNS = ("left", "center", "right")


@dataclass(frozen=True, eq=False)
class Places:
    """What places of a picture add to an answer's score.

    Attributes:
        values: (height, width) in units of the score; negative ones speak against the answer.
        constant: what the answer has in any picture, less the offset of a seen class.
        rounding: what rounding of features adds, and clipping; 0 where places are pixels.
    """

    values: Floats
    constant: float
    rounding: float

    @property
    def score(self) -> float:
        """The score of the answer: the sum of all parts."""
        return float(self.values.sum()) + self.constant + self.rounding

    def hottest(self) -> NDArray[np.bool_]:
        """Return (height, width) the quarter of the places that speak most for the answer."""
        most = np.argsort(-self.values, axis=None, kind="stable")
        inside = np.zeros(self.values.size, dtype=bool)
        inside[most[: -(-self.values.size // 4)]] = True
        return inside.reshape(self.values.shape)

    def sentence(self) -> str:
        """Return in words where most of what speaks for the answer is."""
        pull = np.maximum(self.values, 0.0)
        if not pull.any():
            return "no place speaks for it"
        sides = [self._thirds(side) for side in pull.shape]
        sums = np.add.reduceat(np.add.reduceat(pull, sides[0], axis=0), sides[1], axis=1)
        row, column = np.unravel_index(int(sums.argmax()), sums.shape)
        names = [
            words[round(place * 2 / max(1, count - 1))] if count > 1 else words[1]
            for words, place, count in zip(
                (_ROWS, _COLUMNS), (row, column), sums.shape, strict=True
            )
        ]
        name = "center" if names == ["middle", "center"] else " ".join(names)
        return f"{100 * sums.max() / pull.sum():.0f} % of what speaks for it is at the {name}"

    @staticmethod
    def _thirds(side: int) -> list[int]:
        """Return where the first, middle and last third of a side begin."""
        return sorted({round(i * side / 3) for i in range(3)} - {side})

    def over(self, picture: NDArray[Any], side: int = _SIDE) -> Image.Image:
        """Return a picture (channels, height, width), bytes or in [0, 1], in gray under its heat:
        orange speaks for the answer, blue against it. A small one is enlarged to at most ``side``.
        """
        bytes_ = picture if picture.dtype == np.uint8 else np.rint(255 * np.clip(picture, 0, 1))
        planes = bytes_[:1] if len(bytes_) < 3 else bytes_[:3]
        times = max(1, side // max(planes.shape[1:]))
        # in gray, so that colors mean heat alone
        gray = planes.mean(0).repeat(times, axis=0).repeat(times, axis=1)[..., None]
        largest = float(np.abs(self.values).max()) or 1.0
        heat = Image.fromarray((self.values / largest).astype(np.float32))
        resized = heat.resize(gray.shape[1::-1], Image.Resampling.BICUBIC)
        smooth = np.clip(np.asarray(resized), -1.0, 1.0)[..., None]
        alpha = _OPAQUE * np.abs(smooth)
        color = np.where(smooth > 0, np.array(_FOR), np.array(_AGAINST))
        return Image.fromarray(np.rint((1 - alpha) * gray + alpha * color).astype(np.uint8))


def split_places(
    maps: NDArray[np.float32],
    rows: NDArray[np.float32],
    scaler: Scaler,
    linear: Discriminants,
    scores: Floats,
) -> list[Places]:
    """Return what places add to scores.

    Args:
        maps: (n, channels, height, width): feature maps whose means over places are the samples,
            or the pixels that the samples list.
        rows: (n, d) the samples, before scaling.
        scaler: scales samples.
        linear: the scores, before any offset, as functions of scaled samples.
        scores: (n,) the scores, less any offset.
    """
    n, channels, height, width = maps.shape
    weight = linear.weight.double().numpy()
    centre = linear.centre.double().numpy()
    if channels == rows.shape[1]:
        cells = maps.reshape(n, channels, -1).transpose(0, 2, 1)
        apart = scaler.of_parts(rows, cells) - centre
        values = np.einsum("npd,nd->np", apart, weight) / (height * width)
    else:
        apart = scaler(rows) - centre
        values = (apart * weight).reshape(n, channels, -1).sum(1)
    constant = linear.constant.double().numpy()
    whole = ((scaler(rows) - centre) * weight).sum(1) + constant  # before any offset
    return [
        Places(
            values[i].reshape(height, width),
            float(constant[i] + scores[i] - raw),
            float(raw - constant[i] - values[i].sum()),
        )
        for i, raw in enumerate(whole.tolist())
    ]
