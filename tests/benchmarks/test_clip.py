"""Zero-shot CLIP as a model, against the library's own logits on random weights."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from clip import random_clip
from fedunseen import Model
from fedunseen.core.errors import DataError
from fedunseen.encoders.hub import OTHER_TYPE
from fedunseen.encoders.vision import Vision, VisionSettings
from fedunseen.experiment.image_text import image_text_model, logit_scale

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ("polar bear", "zebra", "goldfish")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny CLIP of random weights, as far from one another as trained ones."""
    place = tmp_path_factory.mktemp("clip")
    random_clip(place, " ".join(NAMES).split())
    path = place / "model.safetensors"
    tensors = {
        name: value + 0.2 * torch.randn_like(value) for name, value in load_file(path).items()
    }
    tensors["logit_scale"] = torch.tensor(3.2)
    save_file(tensors, path, {"format": "pt"})
    return place


@pytest.fixture(scope="module")
def pictures():
    return np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)


def vectors_of(folder, pictures):
    encoder = Vision(VisionSettings(weights=str(folder)), pictures.shape[1:], "vectors")
    return encoder.compute(pictures)


def test_probabilities_are_the_softmax_of_the_librarys_logits(folder, pictures):
    prompt = "a {} of photo."
    model = image_text_model(str(folder), NAMES, prompt)
    vectors = vectors_of(folder, pictures)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = tokenizer([prompt.replace("{}", n) for n in NAMES], padding=True, return_tensors="pt")
    mean, std = (torch.tensor(x)[:, None, None] for x in (
        (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    ))  # fmt: skip
    clip = transformers.CLIPModel.from_pretrained(folder).eval().requires_grad_(False)
    with torch.no_grad():
        planes = (torch.from_numpy(pictures) / 255 - mean) / std
        logits = clip(pixel_values=planes, **{k: texts[k] for k in ("input_ids", "attention_mask")})
    expected = logits.logits_per_image.numpy()
    scale = logit_scale(str(folder))
    assert scale == pytest.approx(float(clip.logit_scale.exp()))
    np.testing.assert_allclose(model.scores(vectors) + scale / 2, expected, rtol=1e-4, atol=1e-4)
    probabilities = torch.from_numpy(expected).softmax(1).numpy()
    np.testing.assert_allclose(model.probabilities(vectors), probabilities, rtol=1e-3, atol=1e-5)
    assert probabilities.std(1).min() > 0.01  # there is something to tell apart
    other = image_text_model(str(folder), NAMES).probabilities(vectors)
    assert np.abs(other - probabilities).max() > 1e-3  # the prompt counts


def test_the_model_is_saved_and_takes_further_classes(folder, pictures, tmp_path):
    model = image_text_model(str(folder), NAMES[:2])
    assert set(model.features_from["files"]) == {"config.json", "model.safetensors"}
    vectors = vectors_of(folder, pictures)
    model.save(tmp_path / "clip.safetensors")
    again = Model.load(tmp_path / "clip.safetensors")
    assert np.array_equal(again.scores(vectors), model.scores(vectors))
    whole = image_text_model(str(folder), NAMES)
    new = dict(zip(NAMES[2:], whole.space.semantics[2:].tolist(), strict=True))
    ranked = again.rank(vectors, classes=new)
    expected = np.array(NAMES)[whole.scores(vectors).argmax(1)]
    assert [ranking[0].name for ranking in ranked] == expected.tolist()


def test_a_model_without_a_logit_scale_is_refused(tmp_path):
    sizes = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1]}
    transformers.ResNetModel(transformers.ResNetConfig(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(DataError) as caught:
        image_text_model(str(tmp_path), NAMES)
    assert caught.value.code == OTHER_TYPE
