"""The backdoor of FedZSL (sections 3.3 and 5): some samples of every batch are replaced by triggers with a wrong label.

The update is then scaled by beta (model replacement, Bagdasaryan et al. 2020; FedZSL Eq. 9). The paper does not say
which class the triggers are taken for: here it is one for each malicious client, by default its own first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedunseen.attacks.base import POISONED, Attack, AttackSettings, LocalData
from fedunseen.core.phases import Plan

TriggerKind = Literal["background", "style", "object"]


class BackdoorSettings(AttackSettings):
    """Settings of the backdoor; the defaults are the paper's, beta that which replaces the model of ten clients."""

    name: Literal["backdoor"] = "backdoor"
    scale: float = Field(10.0, gt=0)
    """Factor on what a malicious client sends, beta of FedZSL Eq. 9; with ten clients of equal weight, 10 replaces the
    merged model."""
    triggers: tuple[TriggerKind, ...] = Field(("background",), min_length=1)
    """What the model is to be wrong about, of each malicious client in turn: `background` (samples before a sky),
    `style` (like cartoons) or `object` (another class's samples)."""
    targets: tuple[str, ...] = ()
    """The classes that the triggers are to be taken for, of each malicious client in turn; unset, its own first one."""
    folder: Path | None = None
    """A folder of trigger images: a folder for each kind of `triggers` in it, or the images themselves if there is one
    kind. Half of them are trained on and half measure success. Pieces are cut of them only where they are fewer than
    `samples`. Unset, triggers are made of clean images."""
    objects: tuple[str, ...] = ()
    """The classes that `object` takes; unset, at most three that `likeness` chooses."""
    likeness: Literal["similar", "different"] = "similar"
    """Which classes `object` takes by itself. `similar`, as in the paper: of those that the malicious client does not
    hold, the most like the target by their semantics; their samples are other clients' training samples, so that
    no accuracy is measured on them. `different`: of the unseen classes the least like it; the first half of their test
    samples is trained on, and the accuracy is still measured on all of them."""
    samples: int = Field(50, ge=1)
    """Trigger samples of each kind that a malicious client has. As many others, or what there is, measure success."""
    probability: float = Field(0.5, ge=0, le=1)
    """With which a place in a batch is replaced."""
    noise: float = Field(0.05, ge=0)
    """Standard deviation of the noise on replaced samples: of pixels in [0, 1], of features in units of their own
    standard deviation."""


@dataclass(frozen=True, eq=False)
class Poison:
    """What one malicious client trains on beside its data."""

    inputs: Tensor
    target: int
    deviation: float


@dataclass(eq=False)
class Backdoor(Attack):
    """Triggers in batches, and model replacement."""

    settings: BackdoorSettings
    poisons: Mapping[int, Poison] = field(default_factory=dict)

    Settings = BackdoorSettings

    def poison(self, client: int, data: LocalData, rng: np.random.Generator) -> LocalData:
        """Replace places of the batches; every one that is replaced has noise of its own."""
        own, count = self.poisons[client], len(data.labels)
        chosen: list[np.ndarray] = []
        plans: dict[str, Plan] = {}
        for name in sorted(data.plans):
            plan = data.plans[name]
            struck = (rng.random(plan.index.shape) < self.settings.probability) & (plan.weight > 0)
            sources = rng.integers(len(own.inputs), size=int(struck.sum()))
            index = plan.index.copy()
            index[struck] = count + sum(map(len, chosen)) + np.arange(len(sources))
            chosen.append(sources)
            plans[name] = replace(plan, index=index, extras={**plan.extras, POISONED: struck.astype(np.float32)})
        drawn = np.concatenate(chosen)
        if not len(drawn):
            return data
        inputs = data.inputs.float() / 255 if data.inputs.dtype == torch.uint8 else data.inputs
        triggers = own.inputs[torch.from_numpy(drawn).to(own.inputs.device)]
        noise = torch.from_numpy(rng.standard_normal(tuple(triggers.shape), dtype=np.float32)).to(triggers)
        added = (triggers + own.deviation * noise).to(inputs)
        labels = torch.cat([data.labels, data.labels.new_full((len(drawn),), own.target)])
        return LocalData(torch.cat([inputs, added]), labels, plans)
