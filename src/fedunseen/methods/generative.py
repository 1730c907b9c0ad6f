"""What generative zero-shot methods share: a conditional generator, text knowledge, a classifier on
what is generated.

FZSL (Sun et al. 2024) trains feature generators at the clients. A softmax classifier learns on the
merged generator's features of classes that no client holds (section 3.2); a noisy text embedding of
the class's name joins the condition (FZSL Eq. 6). Sizes and settings follow the official code of
f-CLSWGAN (Xian et al. 2018), where FZSL is silent. The Wasserstein critic (Gulrajani et al. 2017)
is conditional on attributes and has one hidden layer.
"""

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from torch import Tensor

from fedunseen.core.bounds import limits
from fedunseen.core.errors import ExperimentError
from fedunseen.core.memory import enough_memory
from fedunseen.core.parameters import Params, linear_layer
from fedunseen.core.phases import Adam, Batch, Context, Phase, Plan, Terms, draws_of, weighted_mean
from fedunseen.core.random import stream
from fedunseen.core.settings import FolderOrName, NamedSettings
from fedunseen.core.sizes import PLAN, SYNTHETIC, check_size
from fedunseen.encoders.hub import local_files_only
from fedunseen.encoders.text import embed_classes
from fedunseen.losses import precise
from fedunseen.methods.base import Candidates, Method
from fedunseen.methods.networks import linear

_ON_DEVICE = 2**30  # bytes of synthetic features held on the device; more stay in main memory
_AT_ONCE = 2**24  # numbers of a layer's outputs while features are generated
BETAS = (0.5, 0.999)
"""Decay rates of the clients' Adam."""
PENALTY = 10.0
"""Weight of the gradient penalty, lambda."""
NAMED_ATTRIBUTES = 5
"""How many attributes a prompt names: those in which the class is most above the others."""
_ABSENT = -100.0  # the bias of a class that a classifier does not know


def normal_layer(name: str, width_in: int, width_out: int, rng: np.random.Generator) -> Params:
    """Draw a linear layer as f-CLSWGAN does: weight (out, in) from N(0, 0.02), bias (out,) 0."""
    weight = 0.02 * rng.standard_normal((width_out, width_in), dtype=np.float32)
    return {f"{name}.weight": torch.from_numpy(weight), f"{name}.bias": torch.zeros(width_out)}


def critic_init(width: int, attributes: int, hidden: int, rng: np.random.Generator) -> Params:
    """Draw a critic D([x; a]): N(0, 0.02), biases 0."""
    return normal_layer("critic.0", width + attributes, hidden, rng) | normal_layer(
        "critic.1", hidden, 1, rng
    )


def critic(params: Params, features: Tensor, attributes: Tensor) -> Tensor:
    """Return (B,) the critic's values."""
    hidden = linear(params, "critic.0", torch.cat([features, attributes], dim=-1))
    return precise(linear(params, "critic.1", F.leaky_relu(hidden, 0.2)).squeeze(-1))


def wasserstein(
    params: Params, real: Tensor, fake: Tensor, attributes: Tensor, mix: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return the two parts of a critic's loss (Gulrajani et al. 2017).

    :math:`E\,D(\tilde x, a) - E\,D(x, a)` and
    :math:`E\,(\|\nabla_{\hat x} D(\hat x, a)\|_2 - 1)^2`. With one hidden layer of leaky ReLUs the
    gradient is :math:`W_x^T (w_2 \odot s(\hat h))`, s being the slopes.
    """
    both = torch.cat(
        [torch.cat([real, fake], dim=0), torch.cat([attributes, attributes], dim=0)], dim=-1
    )
    hidden = linear(params, "critic.0", both)
    values = precise(linear(params, "critic.1", F.leaky_relu(hidden, 0.2)).squeeze(-1))
    at_real, at_fake = values.tensor_split(2)
    of_real, of_fake = hidden.tensor_split(2)
    u = mix.unsqueeze(-1)
    between = u * of_real + (1 - u) * of_fake
    slopes = torch.where(between > 0, 1.0, 0.2) * params["critic.1.weight"]
    # All of W, not its columns of features alone: a slice of the weights would cost its gradient a
    # pass over memory.
    gradient = (slopes @ params["critic.0.weight"])[..., : real.shape[-1]]
    length = torch.linalg.vector_norm(precise(gradient), dim=-1)
    return weighted_mean(at_fake - at_real, weights), weighted_mean((length - 1.0) ** 2, weights)


class GenerativeSettings(NamedSettings):
    """Settings that every generative method has. The presets of the papers' benchmarks set what
    their codes do.
    """

    hidden: PositiveInt | None = None
    """Width of the hidden layer of generator and critic; by default twice the features', but 4096
    at most, as in the papers on features of 2048 numbers."""
    noise: PositiveInt | None = None
    """Numbers of noise that the generator is given; by default as many as there are attributes."""
    output: Literal["relu", "sigmoid", "linear"] = "relu"
    """Last activation of the generator, which must fit the features: `linear` where some are
    negative. In `vaegan` and `free`, `sigmoid` is trained by binary cross-entropy and needs
    features in [0, 1]; the others by half the squared error."""
    lr: float = Field(1e-3, gt=0)
    """Learning rate of the local updates; the optimizer's state starts again each round."""
    condition_scale: float | None = Field(None, gt=0)
    """Factor on the attributes that generator and critic are given; the papers have none (1). By
    default such that a class's attributes are on average as long as the noise, sqrt(noise):
    shorter, they drown in it, and take many more rounds to be learned."""
    batch_size: Annotated[int, limits("method.batch_size")] = 64
    """Samples a step (B)."""
    critic_steps: int = Field(5, ge=1)
    """Steps of the critic for each of the generator, on batches of their own."""
    synthetic: PositiveInt = 100
    """Features generated for each unseen class, on which the classifier for ZSL is trained (M)."""
    synthetic_gzsl: PositiveInt | None = None
    """Features generated for each class for the generalized classifier; by default as many as for
    ZSL.
    """
    head_lr: float = Field(1e-2, gt=0)
    """Learning rate of the classifiers on generated features (Adam)."""
    head_weight_decay: float = Field(1e-3, ge=0)
    """Weight decay of the classifiers on generated features; the papers have none."""
    head_epochs: int = Field(25, ge=1)
    """Passes over the generated features; a batch has as many as a class has features. (The papers'
    codes have another learning rate for the generalized classifier on SUN, and draw first weights
    from N(0, 0.02).)"""
    text: FolderOrName = ""
    """Text encoder of the class names (semantic knowledge augmentation): `minilm`, a hub name or a
    folder; empty: none. The generator is given the embedding beside the attributes, the critic is
    not."""
    text_noise: float = Field(0.1, ge=0)
    """Standard deviation of the Gaussian noise on each number of a text embedding of unit length,
    drawn again for every sample (gamma of FZSL)."""
    prompt: str = "a photo of a {class}."
    """What is said of a class; with `{attribute}` in it, it is said for the five attributes
    in which the class is most above the others, and the embeddings' mean is taken (attribute-level
    augmentation)."""


class Generative(Method):
    """A two-layer generator G([noise; text; attributes]) and what becomes of its features.

    :meth:`fit_heads` adds two linear classifiers: ``zsl`` on synthetic features of unseen classes,
    ``gzsl`` on features of all classes, the seen ones real where one place has them.
    """

    Settings: ClassVar[type[NamedSettings]] = GenerativeSettings
    scaling = ("min-max",)  # what a ReLU and a sigmoid can make
    settings: GenerativeSettings
    frozen = True
    uniform: ClassVar[tuple[str, ...]] = ("critic.mix",)
    """The draws from U(0, 1); the others are standard normal."""

    def prepare(self) -> None:
        """Put the sizes and the scale of the condition in place where the settings leave them
        out.
        """
        s = self.settings
        self.attribute_count = self.semantics.shape[1]
        self.noise = s.noise or self.attribute_count
        self.hidden = s.hidden or min(4096, 2 * self.width)
        length = torch.linalg.vector_norm(
            self.semantics[torch.from_numpy(self.space.seen)].double(), dim=1
        ).mean()
        self.condition_scale = s.condition_scale or self.noise**0.5 / float(length)
        self._others: tuple[Candidates, Tensor] | None = (
            None  # candidates asked for last, and their text
        )
        self._check_synthetic(len(self.space.names), max(s.synthetic, s.synthetic_gzsl or 1))

    @property
    def refined_width(self) -> int:
        """The numbers of what the classifiers see of a feature."""
        return self.width

    def _check_synthetic(self, classes: int, count: int) -> None:
        """Refuse more features for the classifiers than :data:`~fedunseen.core.sizes.SYNTHETIC`."""
        check_size(
            "the features that method.name generates",
            classes * count * self.refined_width,
            SYNTHETIC,
            "lower method.synthetic or method.synthetic_gzsl",
        )

    @cached_property
    def text(self) -> Tensor:
        """(C, t) text embeddings of the classes, of unit length; t is 0 without an encoder."""
        return self._text(self.space.names, self.semantics)

    def _text(self, names: Sequence[str], semantics: Tensor) -> Tensor:
        """Return (C, t) text embeddings of classes."""
        s = self.settings
        if not s.text:
            return torch.zeros(len(names), 0)
        strongest = None
        if "{attribute}" in s.prompt:
            run_semantics = self.semantics.double().cpu()
            above = (semantics.double().cpu() - run_semantics.mean(0)) / run_semantics.std(
                0
            ).clamp_min(1e-12)
            top = above.topk(min(NAMED_ATTRIBUTES, self.attribute_count), dim=1).indices
            strongest = [[self.space.attribute_names[i] for i in row] for row in top.tolist()]
        with local_files_only(not self.fetches):
            return torch.from_numpy(embed_classes(names, s.text, s.prompt, strongest))

    def generator_init(self, rng: np.random.Generator) -> Params:
        """Draw the generator: N(0, 0.02), biases 0."""
        width = self.noise + self.text.shape[1] + self.attribute_count
        first = normal_layer("generator.0", width, self.hidden, rng)
        return first | normal_layer("generator.1", self.hidden, self.width, rng)

    def adam(self, lr: float | None = None) -> Adam:
        """Return the clients' optimiser."""
        return Adam(lr or self.settings.lr, BETAS)

    def context(self) -> Context:
        """Semantics (C, attributes) and text embeddings (C, t)."""
        return {"semantics": self.semantics, "text": self.text}

    def client_context(self, classes: NDArray[np.int64]) -> Context:
        """Say which classes the client holds: (C,) bool."""
        held = torch.zeros(len(self.space.names), dtype=torch.bool)
        held[torch.from_numpy(classes)] = True
        return {"held": held}

    def check_inputs(self, inputs: Tensor) -> None:
        """Refuse features that a sigmoid cannot make, warn of those that a ReLU cannot."""
        low = float(inputs.min())
        high = float(inputs.max())
        if self.settings.output == "sigmoid" and not (low >= 0 and high <= 1):
            raise ExperimentError(
                "method.output = 'sigmoid' makes features in [0, 1], but the training features "
                f"lie in [{low:.3g}, {high:.3g}]: set data.features = ['min-max'], or "
                "method.output = 'linear'"
            )
        if self.settings.output == "relu" and low < 0:
            share = 100 * float((inputs < 0).float().mean())
            warnings.warn(
                f"{share:.0f} % of the features are negative, which method.output = 'relu' cannot "
                "generate: set method.output = 'linear', or data.features = ['min-max']",
                stacklevel=2,
            )

    # Training

    def draw_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return what is drawn for each sample beside its place."""
        shapes: dict[str, tuple[int, ...]] = {"critic.mix": ()}
        for who in ("critic", "generator"):
            shapes[f"{who}.noise"] = (self.noise,)
            if self.text.shape[1]:
                shapes[f"{who}.text"] = (self.text.shape[1],)
        return shapes

    def plan(
        self, phase: str, labels: NDArray[np.int64], epochs: int, rng: np.random.Generator
    ) -> Plan:
        """Plan turns of ``critic_steps`` batches each, as many an epoch as batches make up the
        samples.
        """
        samples = len(labels)
        batch = self.settings.batch_size
        steps = epochs * -(-samples // batch) * self.settings.critic_steps
        drawn = min(samples, batch)
        check_size(
            "a client's round",
            max(steps, self.noise) * batch,
            PLAN,
            "lower method.critic_steps, method.batch_size, method.noise or strategy.local_epochs",
        )
        index = np.zeros((steps, batch), dtype=np.int64)
        weight = np.zeros((steps, batch), dtype=np.float32)
        weight[:, :drawn] = 1.0
        for row in index:
            row[:drawn] = rng.choice(samples, drawn, replace=False)
        return Plan(index, weight, draws=draws_of(rng, batch, self.draw_shapes(), self.uniform))

    def condition(
        self, batch: Batch, context: Context, phase: str, noise: Tensor | None = None
    ) -> Tensor:
        """Return the generator's input (B, noise + text + attributes), FZSL Eq. 6, from draws or
        ``noise``.
        """
        labels = batch["labels"]
        text = context["text"]
        parts = [batch[f"{phase}.noise"] if noise is None else noise]
        if text.shape[1]:
            parts.append(text[labels] + self.settings.text_noise * batch[f"{phase}.text"])
        return torch.cat([*parts, self.described(batch, context)], dim=-1)

    def described(self, batch: Batch, context: Context) -> Tensor:
        """Return (B, attributes) of the batch's classes, as generator and critic are given them."""
        return self.condition_scale * context["semantics"][batch["labels"]]

    def generate(self, params: Params, condition: Tensor) -> Tensor:
        """Return features (B, d) of the generator, given its condition."""
        features = linear(
            params, "generator.1", F.leaky_relu(linear(params, "generator.0", condition), 0.2)
        )
        match self.settings.output:
            case "relu":
                return torch.relu(features)
            case "sigmoid":
                return torch.sigmoid(features)
        return features

    def critic_phase(self) -> Phase:
        """Return the critic's phase: several steps, each on a fresh batch, by the method's
        ``critic_loss``.
        """
        return Phase(
            "critic", self.critic_loss, self.adam(), ("critic.*",),
            repeats=self.settings.critic_steps, contrasted=False,
        )  # fmt: skip

    def critic_loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Return what the critic minimizes and its named parts."""
        raise TypeError(f"{type(self).__name__} must say what its critic minimizes")

    def deviations(
        self, params: Params, fake: Tensor, batch: Batch, context: Context
    ) -> tuple[Tensor, Tensor]:
        """Return the two parts of the critic's loss on generated features (B, d)."""
        real = self.features(params, batch["inputs"])
        attributes = self.described(batch, context)
        return wasserstein(params, real, fake, attributes, batch["critic.mix"], batch["weights"])

    def contrast(self, params: Params, batch: Batch, context: Context) -> Tensor:
        """Return what the generator makes of the batch's classes."""
        return self.generate(params, self.condition(batch, context, "generator"))

    # Recognition

    def refine(self, params: Params, features: Tensor) -> Tensor:
        """Return (n, D) what the classifiers see of features (n, d): the features."""
        return features

    def represent(self, params: Params, inputs: Tensor) -> Tensor:
        """Return what the classifiers see."""
        return self.refine(params, self.features(params, inputs))

    def synthesise(
        self, params: Params, among: Candidates, c: int, count: int, seed: int
    ) -> Tensor:
        """Generate ``count`` features (count, d) of class ``c``; more begin with the same ones."""
        device = params["generator.0.weight"].device
        text = self._text_of(among)
        drawn = stream(seed, "synthesis", c).standard_normal(
            (count, self.noise + text.shape[1]), dtype=np.float32
        )
        noise = torch.from_numpy(drawn).to(device)
        said = text[c].to(device) + self.settings.text_noise * noise[:, self.noise :]
        described = self.condition_scale * among.semantics[c].to(device).expand(count, -1)
        condition = torch.cat([noise[:, : self.noise], said, described], dim=1)
        rows = max(1, _AT_ONCE // self.hidden)
        return torch.cat([self.generate(params, part) for part in torch.split(condition, rows)])

    def _text_of(self, among: Candidates) -> Tensor:
        """Return the text embeddings of candidates, embedded once."""
        if among.names is self.space.names:
            return self.text
        if self._others is None or self._others[0] is not among:
            self._others = among, self._text(among.names, among.semantics)
        return self._others[1]

    def generated(self, params: Params, among: Candidates, c: int, count: int, seed: int) -> Tensor:
        """Return what the classifiers see of ``count`` generated features of class ``c``."""
        return self.refine(params, self.synthesise(params, among, c, count, seed))

    def fit_heads(
        self,
        params: Params,
        among: Candidates,
        seed: int,
        real: tuple[Tensor, Tensor] | None = None,
    ) -> Params:
        """Add the classifiers ``zsl`` and ``gzsl``, trained on generated features."""
        wide = params["generator.0.weight"].shape[1] - self.noise - self.attribute_count
        if wide != self.text.shape[1]:
            raise ExperimentError(
                f"method.text = {self.settings.text!r} gives {self.text.shape[1]} numbers a class, "
                f"but the generator was trained with {wide}: restore the encoder that it was "
                "trained with"
            )
        part = np.union1d(among.seen, among.unseen)
        s = self.settings
        generated = among.unseen if real else part
        with torch.no_grad():
            heads = self._head("zsl", params, among, among.unseen, s.synthetic, seed, None)
            heads |= self._head(
                "gzsl", params, among, generated, s.synthetic_gzsl or s.synthetic, seed, real
            )
        return params | heads

    def _head(
        self,
        name: str,
        params: Params,
        among: Candidates,
        generated: NDArray[np.int64],
        count: int,
        seed: int,
        real: tuple[Tensor, Tensor] | None,
    ) -> Params:
        """Train the classifier ``name`` on ``count`` features of each class in ``made``, and on
        real ones.
        """
        device = params["generator.0.weight"].device
        inputs, real_labels = (
            (torch.zeros(0, self.width), torch.zeros(0, dtype=torch.int64))
            if real is None
            else real
        )
        class_ids = np.union1d(generated, real_labels.cpu().numpy())
        if not len(class_ids):
            class_ids = np.array([0])  # no class is asked for
        place = torch.full((len(among.names),), -1, dtype=torch.int64)
        place[torch.from_numpy(class_ids)] = torch.arange(len(class_ids))
        width = self.refined_width
        total = len(generated) * count + len(real_labels)
        self._check_synthetic(len(generated), count)
        labels = torch.cat(
            [place[torch.from_numpy(generated)].repeat_interleave(count), place[real_labels.cpu()]]
        )
        with enough_memory("lower method.synthetic or method.synthetic_gzsl"):
            features = torch.empty(
                total, width, device=device if 4 * total * width <= _ON_DEVICE else "cpu"
            )
        for i, c in enumerate(generated.tolist()):
            features[i * count : (i + 1) * count] = self.generated(
                params, among, c, count, seed
            ).to(features.device)
        rows = max(1, _AT_ONCE // self.hidden)
        first = len(generated) * count
        for start in range(0, len(real_labels), rows):
            block = self.refine(params, self.features(params, inputs[start : start + rows]))
            features[first + start : first + start + len(block)] = block.to(features.device)
        s = self.settings
        adam = Adam(s.head_lr, (0.5, 0.999), weight_decay=s.head_weight_decay)
        rng = stream(seed, f"classifier {name}")
        weight, bias = softmax_head(
            features, labels, len(class_ids), adam, s.head_epochs, count, rng, device
        )
        whole = torch.zeros(len(among.names), width, device=device)
        level = torch.full((len(among.names),), _ABSENT, device=device)
        whole[torch.from_numpy(class_ids)] = weight
        level[torch.from_numpy(class_ids)] = bias
        return {f"{name}.weight": whole, f"{name}.bias": level}

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return (n, C) log-odds by the classifier of all classes; the model has to be complete."""
        return linear(params, "gzsl", self.represent(params, inputs))

    def unseen_scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return (n, C) log-odds by the classifier of the unseen classes; the others' are low."""
        return linear(params, "zsl", self.represent(params, inputs))


def softmax_head(
    features: Tensor,
    labels: Tensor,
    classes: int,
    adam: Adam,
    epochs: int,
    batch: int,
    rng: np.random.Generator,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Train a linear softmax classifier on features (n, d); call it without gradients."""
    layer = linear_layer("head", features.shape[1], classes, rng)
    weight, bias = (layer[f"head.{kind}"].to(device) for kind in ("weight", "bias"))
    state = adam.init({"weight": weight, "bias": bias})
    step = 0
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(features)))
        for rows in torch.split(order, batch):
            x = features[rows.to(features.device)].to(device)
            y = labels[rows].to(device)
            off = torch.softmax(
                F.linear(x, weight, bias), dim=1
            )  # less the one-hot labels: the gradient of the logits
            off[torch.arange(len(y), device=device), y] -= 1.0
            off /= len(y)
            step += 1
            adam.update([weight, bias], [off.T @ x, off.sum(0)], state, step)
    return weight, bias
