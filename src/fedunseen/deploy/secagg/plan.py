"""The plan of a run's masked sums: every party signs the same one before the first sum."""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from fedunseen.deploy.secagg.enrolment import Enrolment
from fedunseen.deploy.secagg.primitives import SecAggError, canonical, digest, from_hex

_PURPOSE = b"fedunseen plan"
_TEXTS = ("quantization", "scaling", "privacy", "confidence")


@dataclass(frozen=True)
class Plan:
    """What all parties of a run agree on. Digests are hexadecimal digits of SHA-256."""

    federation: str
    experiment: str
    space: str
    quantization: str
    layout: str
    weights: Mapping[str, float]  # party -> weight of its update; empty: all are 1
    model: str
    sums: int
    # of statistics or with noise: not even a run that chooses comes before another over the same data
    once: bool
    dropouts: bool  # rosters that differ by few parties are allowed
    removing: Sequence[
        str
    ]  # whose samples the sum removes from a finished run; all are in its roster
    choosing: bool = False  # on validation classes, for a run over the same data that follows
    scaling: str = ""  # digest of all that features are scaled and quantized with
    privacy: str = "none"  # privacy.name: the noise on what is summed
    # evaluation.confidence: whether parties are asked about their samples once more, or now
    confidence: str = "none"
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))  # fresh for every plan

    @cached_property
    def digest(self) -> str:
        """What identifies this plan: P."""
        return digest(_PURPOSE, canonical(self.content())).hex()

    @property
    def signed_text(self) -> bytes:
        """What a party signs."""
        return _PURPOSE + bytes.fromhex(self.digest)

    def content(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        content = {part.name: getattr(self, part.name) for part in fields(self)}
        return content | {"weights": dict(self.weights), "removing": list(self.removing)}

    @classmethod
    def read(cls, content: object) -> "Plan":
        """Read a plan from a message."""
        names = [field.name for field in fields(cls)]
        if not isinstance(content, dict) or sorted(content) != sorted(names):
            raise SecAggError("the plan lacks fields, or has unknown ones")
        for name in ("federation", "experiment", "space", "layout", "model"):
            from_hex(content[name], 32)
        from_hex(content["nonce"], 16)
        weights = content["weights"]
        removing = content["removing"]
        if (
            not all(isinstance(content[key], str) for key in _TEXTS)
            or type(content["sums"]) is not int
            or not 1 <= content["sums"] <= 10**9
            or any(type(content[name]) is not bool for name in ("once", "dropouts", "choosing"))
            or not isinstance(removing, list)
            or not all(isinstance(party, str) for party in removing)
            or len(set(removing)) < len(removing)
            or (removing and not content["once"])
            or not isinstance(weights, dict)
            or not all(
                type(weight) in (int, float) and math.isfinite(weight) and weight > 0
                for weight in weights.values()
            )
        ):
            raise SecAggError("the plan has a field of the wrong kind")
        return cls(**content)

    def weight(self, name: str) -> float:
        """Return the weight of a party's update."""
        return float(self.weights.get(name, 0.0)) if self.weights else 1.0


def signers(plan: Plan, signatures: object, enrolment: Enrolment) -> set[str]:
    """Return which parties have signed a plan."""
    if not isinstance(signatures, dict):
        raise SecAggError("the signatures of the plan are damaged")
    for name, signature in signatures.items():
        if name not in enrolment.parties:
            raise SecAggError(
                "the plan is signed by an unknown key: its party is not in federation.json"
            )
        if not enrolment.verify(name, signature, plan.signed_text):
            raise SecAggError(f"the signature of {name} is not of this plan, or by an unknown key")
    return set(signatures)
