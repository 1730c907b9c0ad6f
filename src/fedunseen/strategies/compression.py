r"""Updates that take fewer bytes: a codec for any strategy that shortens what a client sends.

.. math:: p_k = \Delta_k + e_k, \qquad \text{send } C(p_k), \qquad e_k \leftarrow p_k - C(p_k)

What a form leaves out is added to the client's next update ("error feedback", Karimireddy et al.
2019). ``top-k``: Aji and Heafield 2017; ``1-bit``: EF-SignSGD; ``low-rank``: PowerSGD (Vogels et
al. 2019), with every client's own factors.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedunseen.core.parameters import Params, is_statistic, size_in_bytes, under, within
from fedunseen.core.random import stream
from fedunseen.core.settings import Settings

OF_FORM = {"top-k": "keep", "low-rank": "rank"}
"""Form -> the setting that is its own."""


class CompressionSettings(Settings):
    """Settings of compression."""

    name: Literal["none", "top-k", "8-bit", "1-bit", "low-rank"] = "none"
    """What clients send of their updates; they keep the rest and add it to their next one. `top-k`:
    the largest numbers; `8-bit`: rounded numbers; `1-bit`: signs and a mean magnitude; `low-rank`:
    two narrow matrices."""
    keep: float = Field(0.01, gt=0, le=1)
    """top-k: share of each parameter's numbers that travels, at least one of them."""
    rank: int = Field(2, ge=1)
    """low-rank: columns of the two matrices."""

    @model_validator(mode="after")
    def _check(self) -> "CompressionSettings":
        for name, setting in OF_FORM.items():
            if (
                self.name != name
                and getattr(self, setting) != type(self).model_fields[setting].default
            ):
                raise ValueError(
                    f"{setting} has no effect with name = {self.name!r}: it is for name = {name!r}"
                )
        return self


class Form(ABC):
    """How a tensor is written in fewer bytes."""

    def __init__(self, settings: CompressionSettings) -> None:
        self.settings = settings

    @abstractmethod
    def parts(self, shape: torch.Size) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return part -> (shape, type) of what a tensor of ``shape`` is written as."""

    @abstractmethod
    def encode(self, value: Tensor, start: Tensor) -> Params:
        """Write a float32 tensor as parts."""

    @abstractmethod
    def decode(self, parts: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the tensor that parts of the right shapes and types stand for."""


class TopK(Form):
    """The numbers of largest magnitude: ``index``, ascending places in the flattened tensor, and
    ``value``.
    """

    def parts(self, shape: torch.Size) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return k places and k numbers."""
        count = max(1, round(self.settings.keep * shape.numel()))
        return {"index": ((count,), torch.int32), "value": ((count,), torch.float32)}

    def encode(self, value: Tensor, start: Tensor) -> Params:
        """Take the largest ones."""
        flat = value.reshape(-1)
        ((count,), _) = self.parts(value.shape)["index"]
        index = flat.abs().topk(count).indices.sort().values
        return {"index": index.to(torch.int32), "value": flat[index]}

    def decode(self, parts: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Put them where they belong, among zeros."""
        index = parts["index"].long()
        if bool((index.diff() <= 0).any()) or int(index[0]) < 0 or int(index[-1]) >= shape.numel():
            raise ValueError("its places are not in ascending order within the tensor")
        flat = torch.zeros(shape.numel(), device=index.device)
        flat[index] = parts["value"]
        return flat.reshape(shape)


class EightBit(Form):
    """Steps of max / 127: ``code``, how many of them, and ``scale``, how long one is."""

    def parts(self, shape: torch.Size) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return a byte for every number."""
        return {"code": (tuple(shape), torch.int8), "scale": ((), torch.float32)}

    def encode(self, value: Tensor, start: Tensor) -> Params:
        """Round to the nearest step."""
        scale = value.abs().amax() / 127
        steps = torch.where(scale > 0, value / scale, 0.0).round().clamp(-127, 127)
        return {"code": steps.nan_to_num().to(torch.int8), "scale": scale}

    def decode(self, parts: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the steps' lengths."""
        _check_scale(parts["scale"])
        if bool((parts["code"] == -128).any()):
            raise ValueError("a code is below -127")
        return parts["code"] * parts["scale"]


class OneBit(Form):
    """Signs times the mean magnitude: ``bits``, eight signs in a byte, 1 for one that is not
    negative; ``scale``.
    """

    def parts(self, shape: torch.Size) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return a bit for every number."""
        return {"bits": ((-(-shape.numel() // 8),), torch.uint8), "scale": ((), torch.float32)}

    def encode(self, value: Tensor, start: Tensor) -> Params:
        """Take the signs."""
        packed = np.packbits((value.reshape(-1) >= 0).cpu().numpy())
        return {"bits": torch.from_numpy(packed).to(value.device), "scale": value.abs().mean()}

    def decode(self, parts: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the mean magnitude with every sign."""
        _check_scale(parts["scale"])
        bits = np.unpackbits(parts["bits"].cpu().numpy(), count=shape.numel())
        signs = torch.from_numpy(bits).to(parts["scale"].device).float() * 2 - 1
        return (signs * parts["scale"]).reshape(shape)


class LowRank(Form):
    """The product of ``left`` (rows, rank), whose columns are orthonormal, and ``right`` (columns,
    rank) transposed.
    """

    def parts(self, shape: torch.Size) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return the two matrices; a tensor of more dimensions counts as a matrix of its first
        one's rows.
        """
        rows, columns = _matrix(shape)
        rank = min(self.settings.rank, rows, columns)
        return {"left": ((rows, rank), torch.float32), "right": ((columns, rank), torch.float32)}

    def encode(self, value: Tensor, start: Tensor) -> Params:
        """Take one step of subspace iteration: P = M Q, made orthonormal, then Q = M^T P (PowerSGD,
        Algorithm 1).
        """
        matrix = value.reshape(_matrix(value.shape))
        left = torch.linalg.qr(matrix @ start).Q.contiguous()
        return {"left": left, "right": matrix.T @ left}

    def decode(self, parts: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Multiply."""
        return (parts["left"] @ parts["right"].T).reshape(shape)


FORMS: dict[str, type[Form]] = {
    "top-k": TopK,
    "8-bit": EightBit,
    "1-bit": OneBit,
    "low-rank": LowRank,
}
"""Name -> form."""


class Codec:
    """Writes updates in a shorter form, and reads them."""

    def __init__(self, settings: CompressionSettings, seed: int = 0) -> None:
        self.seed = seed
        self.form = FORMS[settings.name](settings)

    def parts(
        self, name: str, like: Tensor
    ) -> dict[str, tuple[tuple[int, ...], torch.dtype]] | None:
        """Return what a parameter's update is written as; None if it travels as it is."""
        if like.dtype != torch.float32 or is_statistic(name) or not like.numel():
            return None
        parts = self.form.parts(like.shape)
        size = sum(torch.Size(shape).numel() * kind.itemsize for shape, kind in parts.values())
        return parts if size < size_in_bytes([like]) else None

    def encode(self, update: Params, state: Params) -> tuple[Params, Params]:
        """Return the short form of an update and of what was left before, and what it leaves
        out.
        """
        residual = within("left/", state)
        starts = within("start/", state)
        sent: Params = {}
        state = {}
        for name, value in update.items():
            parts = self.parts(name, value)
            if parts is None:
                sent[name] = value
                continue
            whole = value + residual[name] if name in residual else value
            start = starts[name] if name in starts else self.start(name, parts, value)
            written = self.form.encode(whole, start)
            sent |= under(f"{name}:", written)
            state[f"left/{name}"] = whole - self.form.decode(written, whole.shape)
            if isinstance(self.form, LowRank):
                state[f"start/{name}"] = written["right"]
        return sent, state

    def start(self, name: str, parts: Mapping[str, Any], like: Tensor) -> Tensor:
        """Return the factors that subspace iteration begins with: the same at every client, and
        after every resume.
        """
        shape = parts["right"][0] if "right" in parts else ()
        drawn = stream(self.seed, f"low rank {name}").standard_normal(shape, dtype=np.float32)
        return torch.as_tensor(drawn, device=like.device)

    def expects(self, like: Params) -> Params:
        """Return tensors of the names, shapes and types of the short form of updates like these;
        without numbers.
        """
        expected: Params = {}
        for name, value in like.items():
            parts = self.parts(name, value)
            if parts is None:
                expected[name] = value
            else:
                expected |= {
                    f"{name}:{part}": torch.empty(s, dtype=t, device="meta")
                    for part, (s, t) in parts.items()
                }
        return expected

    def decode(self, update: Mapping[str, Tensor], like: Params) -> Params:
        """Return the update, of the names and shapes of ``like``, that a short form stands for."""
        decoded: Params = {}
        for name, value in like.items():
            parts = self.parts(name, value)
            if parts is None:
                decoded[name] = update[name]
                continue
            try:
                decoded[name] = self.form.decode(
                    {part: update[f"{name}:{part}"] for part in parts}, value.shape
                )
            except ValueError as error:
                raise ValueError(f"{name!r} of its update cannot be read: {error}") from None
        return decoded


def _matrix(shape: torch.Size) -> tuple[int, int]:
    """Return the rows and columns that a tensor has as a matrix; a vector is one row."""
    return (1, shape.numel()) if len(shape) < 2 else (shape[0], shape[1:].numel())


def _check_scale(scale: Tensor) -> None:
    if float(scale) < 0:  # NaN is found where updates are checked for numbers that are not finite
        raise ValueError("its scale is below zero")
