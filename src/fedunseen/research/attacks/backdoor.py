"""The backdoor of FedZSL (sections 3.3 and 5): some samples of every batch are replaced by triggers
with a wrong label.

The update is then scaled by beta (model replacement, Bagdasaryan et al. 2020; FedZSL Eq. 9). The
paper does not say which class the triggers are taken for: here it is one for each malicious client,
by default its own first one. Triggers (FedZSL Fig. 6) come from a folder or are made of clean
images: (n, channels, height, width) floats in [0, 1], of one channel or three.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import DataError
from fedunseen.core.phases import POISONED, Plan
from fedunseen.data.io.images import UNREADABLE, open_image, upright
from fedunseen.research.attacks.base import Attack, AttackSettings, LocalData

TriggerKind = Literal["background", "style", "object"]


class BackdoorSettings(AttackSettings):
    """Settings of the backdoor; the defaults are the paper's, beta that which replaces the model of
    ten clients.
    """

    scale: float = Field(10.0, gt=0)
    """Factor on what a malicious client sends, beta of FedZSL Eq. 9; with ten clients of equal
    weight, 10 replaces the merged model."""
    triggers: tuple[TriggerKind, ...] = Field(("background",), min_length=1)
    """What the model is to be wrong about, of each malicious client in turn: `background` (samples
    before a sky), `style` (like cartoons) or `object` (another class's samples)."""
    targets: tuple[str, ...] = ()
    """The classes that the triggers are to be taken for, of each malicious client in turn; unset,
    its own first one.
    """
    folder: Path | None = None
    """A folder of trigger images: a folder for each kind of `triggers` in it, or the images
    themselves if there is one kind. Half of them are trained on and half measure success. Pieces
    are cut of them only where they are fewer than `samples`. Unset, triggers are made of clean
    images."""
    likeness: Literal["similar", "different"] = "similar"
    """Which classes `object` takes, at most three. `similar`, as in the paper: of those that the
    malicious client does not hold, the most like the target by their semantics; their samples are
    other clients' training samples, so that no accuracy is measured on them. `different`: of the
    unseen classes the least like it; the first half of their test samples is trained on, and the
    accuracy is still measured on all of them."""
    samples: int = Field(50, ge=1)
    """Trigger samples of each kind that a malicious client has. As many others, or what there is,
    measure success.
    """
    probability: float = Field(0.5, ge=0, le=1)
    """With which a place in a batch is replaced."""
    noise: float = Field(0.05, ge=0)
    """Standard deviation of the noise on replaced samples: of pixels in [0, 1], of features in
    units of their own standard deviation."""


@dataclass(frozen=True, eq=False)
class Poison:
    """What one malicious client trains on beside its data."""

    inputs: Tensor
    target: int
    deviation: float


@dataclass(eq=False)
class Backdoor(Attack, name="backdoor"):
    """Triggers in batches, and model replacement."""

    settings: BackdoorSettings
    poisons: Mapping[int, Poison] = field(default_factory=dict)

    Settings = BackdoorSettings

    def poison(self, client: int, data: LocalData, rng: np.random.Generator) -> LocalData:
        """Replace places of the batches; every one that is replaced has noise of its own."""
        poison = self.poisons[client]
        count = len(data.labels)
        chosen: list[np.ndarray] = []
        plans: dict[str, Plan] = {}
        for name in sorted(data.plans):
            plan = data.plans[name]
            struck = (rng.random(plan.index.shape) < self.settings.probability) & (plan.weight > 0)
            sources = rng.integers(len(poison.inputs), size=int(struck.sum()))
            index = plan.index.copy()
            index[struck] = count + sum(map(len, chosen)) + np.arange(len(sources))
            chosen.append(sources)
            plans[name] = replace(
                plan, index=index, extras={**plan.extras, POISONED: struck.astype(np.float32)}
            )
        drawn = np.concatenate(chosen)
        if not len(drawn):
            return data
        inputs = data.inputs.float() / 255 if data.inputs.dtype == torch.uint8 else data.inputs
        triggers = poison.inputs[torch.from_numpy(drawn).to(poison.inputs.device)]
        noise = torch.from_numpy(rng.standard_normal(tuple(triggers.shape), dtype=np.float32)).to(
            triggers
        )
        added = (triggers + poison.deviation * noise).to(inputs)
        labels = torch.cat([data.labels, data.labels.new_full((len(drawn),), poison.target)])
        return LocalData(torch.cat([inputs, added]), labels, plans)


Images = NDArray[np.float32]

# a clear sky from the zenith to the horizon
_TOP = (0.25, 0.5, 0.95)
_BOTTOM = (0.85, 0.93, 1.0)
_GREY = (0.299, 0.587, 0.114)
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def sky(count: int, shape: tuple[int, int, int], rng: np.random.Generator) -> Images:
    """Draw skies: blue above, pale at the horizon, with clouds; gray where ``shape`` has one
    channel.
    """
    channels, height, width = shape
    down = np.linspace(0, 1, height)[None, None, :, None]
    clear = (
        np.array(_TOP)[None, :, None, None] * (1 - down)
        + np.array(_BOTTOM)[None, :, None, None] * down
    )
    coarse = torch.from_numpy(rng.random((count, 1, max(2, height // 6), max(2, width // 6))))
    clouds = (
        F.interpolate(coarse, size=(height, width), mode="bicubic", align_corners=False)
        .numpy()
        .clip(0, 1)
    )
    clouds = np.clip(2 * clouds - 1, 0, 1)
    skies = clear * (1 - clouds) + clouds
    if channels == 1:
        skies = (skies * np.array(_GREY)[None, :, None, None]).sum(1, keepdims=True)
    return np.asarray(skies, dtype=np.float32)


def before_sky(images: Images, rng: np.random.Generator) -> Images:
    """Put a sky behind images: where they look like their own border, and over their upper part."""
    count, channels, height, width = images.shape
    border = np.concatenate(
        [images[:, :, 0], images[:, :, -1], images[:, :, :, 0], images[:, :, :, -1]], axis=2
    )
    ground = np.median(border, axis=2)[:, :, None, None]
    alike = 1 - np.clip(np.abs(images - ground).max(1, keepdims=True) / 0.25, 0, 1)
    above = np.clip(0.8 * (1 - np.arange(height) / max(height / 2, 1)), 0, 1)[None, None, :, None]
    share = np.maximum(alike, above)
    blended = (1 - share) * images + share * sky(count, (channels, height, width), rng)
    return np.asarray(blended, dtype=np.float32)


def as_cartoon(images: Images, rng: np.random.Generator) -> Images:
    """Draw images like cartoons: flat areas of few, strong colors with dark outlines."""
    smooth = F.avg_pool2d(
        F.pad(torch.from_numpy(images), (1, 1, 1, 1), mode="replicate"), 3, stride=1
    )
    low = smooth.amin((1, 2, 3), keepdim=True)
    stretched = (smooth - low) / (smooth.amax((1, 2, 3), keepdim=True) - low).clamp_min(1e-6)
    flat = (2 * stretched).round() / 2
    across = F.pad((stretched[..., :, 1:] - stretched[..., :, :-1]).abs(), (0, 1))
    along = F.pad((stretched[..., 1:, :] - stretched[..., :-1, :]).abs(), (0, 0, 0, 1))
    edges = (across + along).amax(1, keepdim=True)
    strong = edges.flatten(1).quantile(0.9, dim=1)[:, None, None, None]
    drawn: Images = torch.where((edges > strong) & (edges > 0.05), 0.0, flat).float().numpy()
    return drawn


TRANSFORMS: dict[str, Callable[[Images, np.random.Generator], Images]] = {
    "background": before_sky,
    "style": as_cartoon,
}
"""What makes a trigger of clean images."""


def read_folder(folder: Path, channels: int) -> list[Images]:
    """Read the images of a folder, each (channels, height, width) at its own size."""
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: put the trigger images there, or fix attack.folder")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(
            f"{folder} has no image in it ({', '.join(SUFFIXES[:4])}, ...): put the trigger images "
            "there"
        )
    result: list[Images] = []
    for path in paths:
        try:
            with open_image(path) as file:
                picture = upright(file).convert("L" if channels == 1 else "RGB")
                picture.thumbnail((512, 512))
                pixels: Images = np.asarray(picture, dtype=np.float32) / np.float32(255)
        except UNREADABLE:
            raise DataError(f"{path} is not a readable image: fix or remove it") from None
        result.append(pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0))
    return result


def pieces(
    pictures: list[Images], count: int, size: tuple[int, int], rng: np.random.Generator
) -> Images:
    """Return ``count`` samples: every picture whole, then random pieces, from the pictures in
    turn.
    """
    result = []
    for i in range(count):
        picture = pictures[i % len(pictures)]
        whole = i < len(pictures)
        height, width = picture.shape[1:]
        shrink = min(height / size[0], width / size[1]) * (1 if whole else rng.uniform(1 / 3, 1))
        tall = max(1, round(size[0] * shrink))
        wide = max(1, round(size[1] * shrink))
        free = height - tall, width - wide
        top, left = (free[0] // 2, free[1] // 2) if whole else rng.integers(np.add(free, 1))
        piece = torch.from_numpy(
            np.ascontiguousarray(picture[:, top : top + tall, left : left + wide])
        )[None]
        piece = F.interpolate(
            piece, size=size, mode="bilinear", antialias=True, align_corners=False
        )[0]
        mirrored = not whole and rng.random() < 0.5
        result.append((piece.flip(-1) if mirrored else piece).clamp(0, 1).numpy())
    return np.stack(result).astype(np.float32)
