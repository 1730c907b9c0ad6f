"""DINOv2, CLIP and SigLIP: against the library's own forward pass, from small folders as the hub keeps them."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from fedunseen.core.errors import ExperimentError
from fedunseen.encoders.images import resized
from fedunseen.encoders.text import embed_texts
from fedunseen.encoders.vision import Vision, VisionSettings
from refusals import message_of

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = (3, 20, 24)
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5,) * 3, (0.5,) * 3)
WORDS = ["[UNK]", "[PAD]", "cat", "dog", "a", "photo"]


def saved(kind, folder):
    """Save a small random model of one kind, with its text part and a tokenizer of a few words where it has one."""
    torch.manual_seed(0)
    side = {"image_size": 24, "patch_size": 8}
    texts = {**SMALL, "vocab_size": len(WORDS), "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1}
    if kind == "dinov2":
        model = transformers.Dinov2Model(transformers.Dinov2Config(**SMALL, **side, mlp_ratio=2))
    elif kind == "dinov2_with_registers":
        config = transformers.Dinov2WithRegistersConfig(**SMALL, **side, mlp_ratio=2, num_register_tokens=3)
        model = transformers.Dinov2WithRegistersModel(config)
    elif kind == "clip":
        parts = {"text_config": {**texts, "projection_dim": 6}, "vision_config": {**SMALL, **side, "projection_dim": 6}}
        model = transformers.CLIPModel(transformers.CLIPConfig(**parts, projection_dim=6))
    else:
        parts = {"text_config": {**texts, "projection_size": 16}, "vision_config": {**SMALL, **side}}
        model = transformers.SiglipModel(transformers.SiglipConfig(**parts))
    with torch.no_grad():
        for value in model.parameters():  # as far from one another as trained ones
            value.add_(0.2 * torch.randn_like(value))
    model.save_pretrained(folder)
    if kind in ("clip", "siglip"):
        tokenizers = pytest.importorskip("tokenizers")
        numbers = {word: i for i, word in enumerate(WORDS)}
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]", model_max_length=12
        )
        fast.save_pretrained(folder)
    return model.eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folder and model of each kind."""
    kinds = ("dinov2", "dinov2_with_registers", "clip", "siglip")
    places = {kind: tmp_path_factory.mktemp(kind) for kind in kinds}
    return {kind: (place, saved(kind, place)) for kind, place in places.items()}


def vision(folder, output="vectors", **settings):
    return Vision(VisionSettings(weights=str(folder), **({"size": 24} | settings)), SHAPE, output)


def prepared(images, mean, deviation, size=24):
    planes = resized(torch.from_numpy(images).float() / 255, (size, size), "bicubic")
    return (planes - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(deviation).reshape(3, 1, 1)


def image_vectors(kind, model, planes, **settings):
    """What the library itself computes."""
    with torch.no_grad():
        if kind == "clip":
            states = model.vision_model(pixel_values=planes, **settings).pooler_output
            return normalize(model.visual_projection(states), dim=1).numpy()
        if kind == "siglip":
            return normalize(model.vision_model(pixel_values=planes, **settings).pooler_output, dim=1).numpy()
        return model(pixel_values=planes).last_hidden_state[:, 0].numpy()


NORMS = {"dinov2": IMAGENET, "dinov2_with_registers": IMAGENET, "clip": CLIP, "siglip": HALF}


@pytest.mark.parametrize("size", [24, 32], ids=["own size", "positions are interpolated"])
@pytest.mark.parametrize("kind", NORMS)
def test_vectors_are_the_librarys(folders, photographs, kind, size):
    folder, model = folders[kind]
    found = vision(folder, size=size).encode(photographs)
    settings = {"interpolate_pos_encoding": True} if size != 24 and kind in ("clip", "siglip") else {}
    expected = image_vectors(kind, model, prepared(photographs, *NORMS[kind], size=size), **settings)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert (found.dtype, found.shape) == (np.float32, (8, *vision(folder).shape))


@pytest.mark.parametrize("kind", NORMS)
def test_maps_are_the_patches_tokens_in_their_places(folders, photographs, kind):
    folder, model = folders[kind]
    found = vision(folder, "maps").encode(photographs)
    assert found.shape == (8, 16, 3, 3)
    network = model.vision_model if kind in ("clip", "siglip") else model
    with torch.no_grad():
        states = network(pixel_values=prepared(photographs, *NORMS[kind])).last_hidden_state.numpy()
    first = {"dinov2": 1, "dinov2_with_registers": 4, "clip": 1, "siglip": 0}[kind]
    for row in range(3):
        for column in range(3):
            token = states[:, first + 3 * row + column]
            np.testing.assert_allclose(found[:, :, row, column], token, rtol=5e-3, atol=5e-3)


def test_the_folder_says_size_and_normalization(folders, photographs, tmp_path):
    folder = shutil.copytree(folders["clip"][0], tmp_path / "copy")
    said = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7], "crop_size": {"height": 16, "width": 16}}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    encoder = vision(folder, size=None)
    assert encoder.prepare.size == 16
    planes = prepared(photographs, said["image_mean"], said["image_std"], size=16)
    expected = image_vectors("clip", folders["clip"][1], planes, interpolate_pos_encoding=True)
    np.testing.assert_allclose(encoder.encode(photographs), expected, rtol=1e-3, atol=1e-5)
    assert folder / "preprocessor_config.json" in encoder.files()


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_images_and_texts_share_a_space(folders, photographs, kind):
    """Their products are the library's own logits, up to its scale and bias."""
    folder, model = folders[kind]
    images, texts = vision(folder).encode(photographs), embed_texts(["a photo", "cat", "dog"], str(folder))
    ids = transformers.AutoTokenizer.from_pretrained(folder)
    padding = "max_length" if kind == "siglip" else True
    tokens = ids(["a photo", "cat", "dog"], padding=padding, return_tensors="pt")
    tokens = {name: value for name, value in tokens.items() if name in ("input_ids", "attention_mask")}
    if kind == "siglip":
        del tokens["attention_mask"]  # the model was trained without
    with torch.no_grad():
        logits = model(pixel_values=prepared(photographs, *NORMS[kind]), **tokens).logits_per_image
        logits = (logits - getattr(model, "logit_bias", torch.zeros(()))) / model.logit_scale.exp()
    np.testing.assert_allclose(images @ texts.T, logits.numpy(), rtol=1e-3, atol=1e-5)


def test_what_does_not_fit_is_one_sentence(folders, vit_folder, tmp_path):
    said = message_of(vision, vit_folder)
    assert "type 'vit', but encoder.name = 'vision' takes clip, clip_vision_model, dinov2, " in said
    with pytest.raises(ExperimentError, match=r"^encoder.size: 30 is not a multiple of the patches' side, 8$"):
        vision(folders["clip"][0], size=30)
    shutil.copy(folders["dinov2"][0] / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "has no weights (model.safetensors): pytorch_model.bin may run code when it" in message_of(vision, tmp_path)
