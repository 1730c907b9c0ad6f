"""ResNet, ViT, DINOv2, CLIP and SigLIP against the library's own forward pass, from folders as the
hub keeps them.
"""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import normalize

from fedunseen.core import array_cache as cache
from fedunseen.core.errors import ExperimentError, MissingDependencyError
from fedunseen.core.parameters import is_statistic
from fedunseen.encoders.images import resized
from fedunseen.encoders.text import embed_texts
from fedunseen.encoders.transformers import ResNet, ResNetSettings, ViT, ViTSettings
from fedunseen.encoders.vision import Vision, VisionSettings
from refusals import message_of
from same import same

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = (3, 20, 24)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5,) * 3, (0.5,) * 3)
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def maker(kind, settings, size):
    """Return a function that makes an encoder of one kind with the weights of a folder."""

    def make(folder, output="vectors", shape=SHAPE, **more):
        return kind(settings(weights=str(folder), **({"size": size} | more)), shape, output)

    return make


resnet, vit, vision = (
    maker(ResNet, ResNetSettings, 32),
    maker(ViT, ViTSettings, 32),
    maker(Vision, VisionSettings, 24),
)


def prepared(images, mean, deviation, size=32, resize="bilinear"):
    planes = resized(torch.from_numpy(images).float() / 255, (size, size), resize)
    return (planes - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(deviation).reshape(3, 1, 1)


def still(model):
    """Return the library's network as it predicts: nothing of it is trained."""
    return model.eval().requires_grad_(False)


def values_of(model, output, pixels):
    """Return what the library's network has for maps or for vectors."""
    result = model(pixels)
    return result.last_hidden_state if output == "maps" else result.pooler_output.flatten(1)


def test_resizing_is_that_of_pillow():
    # Far from black and white: Pillow clips what bicubic overshoots between its passes too.
    image = np.random.default_rng(0).integers(90, 160, (40, 60, 3), dtype=np.uint8)
    planes = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    for name, filter in (
        ("bilinear", Image.Resampling.BILINEAR),
        ("bicubic", Image.Resampling.BICUBIC),
    ):
        for size in ((25, 25), (90, 80)):
            expected = (
                np.asarray(Image.fromarray(image).resize(size[::-1], filter), dtype=np.float32)
                / 255
            )
            own = resized(planes, size, name)[0].permute(1, 2, 0).numpy()
            assert np.abs(own - expected).max() < 1.6 / 255  # Pillow rounds twice
    assert resized(planes, (40, 60), "bicubic") is planes


@pytest.mark.slow
def test_frozen_maps_are_the_librarys(resnet_folder, photographs):
    expected = still(transformers.ResNetModel.from_pretrained(resnet_folder))(
        prepared(photographs, *IMAGENET)
    )
    maps, vectors = (
        resnet(resnet_folder, output).encode(photographs) for output in ("maps", "vectors")
    )
    assert (maps.shape, maps.dtype) == ((8, 16, 2, 2), np.float16)
    np.testing.assert_allclose(maps, expected.last_hidden_state.numpy(), rtol=2e-3, atol=2e-3)
    assert (vectors.shape, vectors.dtype) == ((8, 16), np.float32)
    np.testing.assert_allclose(
        vectors, expected.pooler_output.flatten(1).numpy(), rtol=1e-4, atol=1e-5
    )
    floats = photographs.astype(np.float32) / 255
    np.testing.assert_allclose(resnet(resnet_folder).encode(floats), vectors, rtol=1e-5, atol=1e-6)
    grey, wide = photographs[:, :1], np.repeat(photographs[:, :1], 3, axis=1)
    assert np.array_equal(
        resnet(resnet_folder, shape=(1, 20, 24)).encode(grey), resnet(resnet_folder).encode(wide)
    )


@pytest.mark.slow
def test_frozen_tokens_are_the_librarys_and_other_sizes_interpolate_the_positions(
    vit_folder, photographs
):
    model = still(transformers.ViTModel.from_pretrained(vit_folder, add_pooling_layer=False))
    expected = model(prepared(photographs, *HALF)).last_hidden_state.numpy()
    values = model(
        prepared(photographs, *HALF, size=48), interpolate_pos_encoding=True
    ).last_hidden_state
    np.testing.assert_allclose(
        vit(vit_folder).encode(photographs), expected[:, 0], rtol=1e-4, atol=1e-5
    )
    maps = vit(vit_folder, "maps").encode(photographs)
    assert maps.shape == (8, 16, 4, 4)
    np.testing.assert_allclose(maps[:, :, 2, 1], expected[:, 1 + 2 * 4 + 1], rtol=2e-3, atol=2e-3)
    network = vit(vit_folder, "maps", size=48, trained=True).backbone()
    assert network.shape == (16, 6, 6)
    own = network(network.init(np.random.default_rng(0)), torch.from_numpy(photographs))
    torch.testing.assert_close(own.flatten(2).transpose(1, 2), values[:, 1:], rtol=1e-4, atol=1e-5)


def test_vit_gives_tokens_and_takes_them_back(vit_folder, photographs):
    settings = {"add_pooling_layer": False, "attn_implementation": "eager"}
    model = still(transformers.ViTModel.from_pretrained(vit_folder, **settings))
    images, pixels = torch.from_numpy(photographs), prepared(photographs, *HALF)
    expected = model(pixels, output_attentions=True)
    network = vit(vit_folder, trained=True).backbone()
    params = network.init(np.random.default_rng(0))
    tokens = network.tokens(params, images)
    torch.testing.assert_close(tokens, model.embeddings(pixels))
    values, attentions = network.transform(params, tokens)
    torch.testing.assert_close(values, expected.last_hidden_state, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        attentions, torch.stack(expected.attentions).mean(2), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(attentions.sum(-1), torch.ones(3, 8, 17))
    torch.testing.assert_close(network(params, images), values[:, 0], rtol=1e-4, atol=1e-5)
    leaf = tokens.clone().requires_grad_()
    network.transform(params, leaf)[0].square().sum().backward()
    assert 0 < leaf.grad.abs().max() < torch.inf


@pytest.mark.slow
def test_features_are_kept_until_weights_or_preparation_change(
    resnet_folder, tmp_path, own_cache, monkeypatch
):
    folder = shutil.copytree(resnet_folder, tmp_path / "copy")
    monkeypatch.setattr(cache, "CHUNK", 4)
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)

    def count(**settings):
        resnet(folder, shape=(3, 8, 8), **settings).encode(images)
        return len(list((own_cache / "features").glob("*.npy")))

    assert [count(), count(), count(size=40), count(resize="bicubic")] == [1, 1, 2, 3]
    model = still(transformers.ResNetForImageClassification.from_pretrained(folder))
    next(model.parameters()).view(-1)[0] += 1
    model.save_pretrained(folder)
    assert count() == 4
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5, 0.5, 0.5]}))
    assert count() == 5


def test_trained_parameters_are_fresh_copies_of_the_folders(resnet_folder):
    network = resnet(resnet_folder, trained=True).backbone()
    assert (network.trained, network.batched) == (True, False)
    model = transformers.ResNetModel.from_pretrained(resnet_folder)
    params, again = network.init(np.random.default_rng(0)), network.init(np.random.default_rng(1))
    expected = {
        f"f.{name}": t
        for name, t in model.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    assert same(params, expected)
    params["f.embedder.embedder.convolution.weight"].zero_()
    assert again["f.embedder.embedder.convolution.weight"].abs().sum() > 0
    assert sum(map(is_statistic, params)) == 2 * sum(
        isinstance(m, nn.BatchNorm2d) for m in model.modules()
    )


@pytest.mark.parametrize("output", ["vectors", "maps"])
def test_training_updates_statistics_in_place_as_batchnorm_does(resnet_folder, photographs, output):
    network = resnet(resnet_folder, output, trained=True).backbone()
    params = network.init(np.random.default_rng(0))
    places = {name: value for name, value in params.items() if is_statistic(name)}
    model = transformers.ResNetModel.from_pretrained(resnet_folder).train()
    images, pixels = torch.from_numpy(photographs), prepared(photographs, *IMAGENET)
    for _ in range(2):
        own, expected = network(params, images, training=True), values_of(model, output, pixels)
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-4)
    for name, value in places.items():
        assert params[name] is value
        torch.testing.assert_close(value, model.state_dict()[name.removeprefix("f.")])
    before = {name: value.clone() for name, value in places.items()}
    own, expected = network(params, images), values_of(model.eval(), output, pixels)
    torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-4)
    network(params, images[:1], training=True)  # one image has no spread between samples
    assert same(places, before)


@pytest.mark.slow
def test_random_weights_need_no_file():
    settings = ResNetSettings(
        weights="microsoft/resnet-18", pretrained=False, trained=True, size=32
    )
    network = ResNet(settings, (3, 32, 32), "vectors").backbone()
    assert network.shape == (512,)
    params = network.init(np.random.default_rng(0))
    assert same(params, network.init(np.random.default_rng(0)))
    assert (
        sum(v.numel() for name, v in params.items() if not is_statistic(name)) == 11_176_512
    )  # without a classifier
    weight = params["f.encoder.stages.3.layers.1.layer.0.convolution.weight"]
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert torch.isfinite(network(params, torch.rand(4, 3, 32, 32), training=True)).all()
    large = ResNet(settings.model_copy(update={"size": None}), (3, 32, 32), "maps").backbone()
    assert large.multiply_adds() == pytest.approx(1.8e9, rel=0.02)  # as the paper says


@pytest.mark.slow
def test_random_vit_starts_as_its_authors_do(vit_folder, tmp_path):
    network = ViT(
        ViTSettings(pretrained=False, trained=True, size=32), (3, 32, 32), "maps"
    ).backbone()
    assert network.shape == (768, 2, 2)
    published = 85_798_656 - (197 - 5) * 768  # ViT-B/16, with fewer positions
    assert sum(parameter.numel() for parameter in network.skeleton.parameters()) == published
    shutil.copy(vit_folder / "config.json", tmp_path)  # no weights are needed
    network = vit(tmp_path, pretrained=False, trained=True).backbone()
    params = network.init(np.random.default_rng(0))
    weight = params["f.vit.layers.0.mlp.fc1.weight"]
    assert weight.abs().max().item() == pytest.approx(0.6)  # two deviations
    assert weight.std().item() == pytest.approx(0.3, rel=0.1)
    assert not params["f.vit.layers.0.mlp.fc1.bias"].any()
    assert torch.equal(params["f.vit.layernorm.weight"], torch.ones(16))


@pytest.mark.slow
def test_bad_folders_are_named(resnet_folder, vit_folder, tmp_path, monkeypatch):
    def said(folder, encode=False):
        image = np.zeros((1, *SHAPE), dtype=np.uint8)
        return message_of(resnet(folder).encode, image) if encode else message_of(resnet, folder)

    empty = tmp_path / "empty"
    assert said(empty).startswith(
        f"{empty} is not a folder: encoder.weights has to name one with config.json and"
    )
    empty.mkdir()
    assert said(empty) == f"{empty} has no config.json: give a folder as save_pretrained writes it"
    shutil.copy(resnet_folder / "config.json", empty)
    assert said(empty) == f"{empty} has no weights (model.safetensors)"
    (empty / "pytorch_model.bin").write_bytes(b"never read")
    assert said(empty).startswith(
        f"{empty} has no weights (model.safetensors): pytorch_model.bin may run code when"
    )
    assert said(vit_folder).startswith(
        f"{vit_folder} holds a model of the type 'vit', but encoder.name = 'resnet'"
    )
    (empty / "config.json").write_text("{")
    assert said(empty) == f"{empty / 'config.json'} is damaged or not JSON"
    broken = shutil.copytree(resnet_folder, tmp_path / "broken")
    weights, whole = broken / "model.safetensors", (broken / "model.safetensors").read_bytes()
    weights.write_bytes(whole[:-100])
    assert said(broken) == f"{weights} is damaged: get it again"
    tensors = load_file(resnet_folder / "model.safetensors")
    del tensors["resnet.encoder.stages.2.layers.0.layer.1.convolution.weight"]
    save_file(tensors, weights, {"format": "pt"})
    assert said(broken, True).startswith(
        f"{broken} lacks 1 of the weights of ResNetModel, such as encoder.stages.2."
    )
    weights.write_bytes(whole)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(
        json.dumps(config | {"hidden_sizes": [*config["hidden_sizes"][:2], 20]})
    )
    assert said(broken, True).startswith(
        f"{broken}: encoder.stages.2.layers.0.layer.0.convolution.weight has another"
    )
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert message_of(resnet, resnet_folder, error=MissingDependencyError).endswith(
        "pip install 'fedunseen[encoders]'"
    )


@pytest.mark.slow
def test_a_hub_name_is_loaded_from_its_local_copy_and_a_hub_that_does_not_answer_is_named(
    monkeypatch, resnet_folder, photographs
):
    asked = []

    def snapshot_download(name, allow_patterns, local_files_only):
        assert not local_files_only
        asked.append((name, allow_patterns))
        if name == "microsoft/resnet-18":
            raise ConnectionError("Name or service not known.\nmore lines")
        return str(resnet_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert np.array_equal(
        resnet("somebody/network").encode(photographs), resnet(resnet_folder).encode(photographs)
    )
    ((name, patterns),) = asked
    assert name == "somebody/network"
    assert not any(kind in pattern for kind in (".bin", ".pt", ".py") for pattern in patterns)
    assert message_of(resnet, "microsoft/resnet-18").startswith("encoder.weights:")


@pytest.mark.parametrize(("side", "expected"), [(448, 448), (224, 224), (32, 224)])
def test_the_network_sees_images_of_the_size_that_the_data_have(
    resnet_folder, vit_folder, side, expected
):
    """``data.size`` alone is set for larger maps: it leaves no second size behind."""
    for make, folder, cells in ((resnet, resnet_folder, 16), (vit, vit_folder, 8)):
        network = make(folder, "maps", (3, side, side), size=None).backbone()
        assert (network.prepare.size, network.shape[1:]) == (
            expected,
            (expected // cells, expected // cells),
        )


SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
WORDS = ["[UNK]", "[PAD]", "cat", "dog", "a", "photo"]


def saved(kind, folder):
    """Save a small random model of one kind, with its text part and a tokenizer of a few words
    where it has one.
    """
    torch.manual_seed(0)
    images = {**SMALL, "image_size": 24, "patch_size": 8}
    texts = {
        **SMALL,
        "vocab_size": len(WORDS),
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    clip = {
        "text_config": {**texts, "projection_dim": 6},
        "vision_config": {**images, "projection_dim": 6},
    }
    configs = {
        "dinov2": transformers.Dinov2Config(**images, mlp_ratio=2),
        "dinov2_with_registers": transformers.Dinov2WithRegistersConfig(
            **images, mlp_ratio=2, num_register_tokens=3
        ),
        "clip": transformers.CLIPConfig(**clip, projection_dim=6),
        "siglip": transformers.SiglipConfig(
            text_config={**texts, "projection_size": 16}, vision_config=images
        ),
    }
    model = still(transformers.AutoModel.from_config(configs[kind]))
    for value in model.parameters():  # as far from one another as trained ones
        value.add_(0.2 * torch.randn_like(value))
    model.save_pretrained(folder)
    if kind in ("clip", "siglip"):
        tokenizers = pytest.importorskip("tokenizers")
        numbers = {word: i for i, word in enumerate(WORDS)}
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        known = {"unk_token": "[UNK]", "pad_token": "[PAD]", "model_max_length": 12}
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, **known).save_pretrained(
            folder
        )
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folder and model of each kind."""
    places = {kind: tmp_path_factory.mktemp(kind) for kind in NORMS}
    return {kind: (place, saved(kind, place)) for kind, place in places.items()}


NORMS = {"dinov2": IMAGENET, "dinov2_with_registers": IMAGENET, "clip": CLIP, "siglip": HALF}


def vision_pixels(images, kind, size=24):
    return prepared(images, *NORMS[kind], size, "bicubic")


def image_vectors(kind, model, planes, **settings):
    """What the library itself computes."""
    if kind.startswith("dinov2"):
        return model(pixel_values=planes).last_hidden_state[:, 0].numpy()
    states = model.vision_model(pixel_values=planes, **settings).pooler_output
    return normalize(model.visual_projection(states) if kind == "clip" else states, dim=1).numpy()


@pytest.mark.parametrize("size", [24, 32], ids=["own size", "positions are interpolated"])
@pytest.mark.parametrize("kind", NORMS)
def test_vectors_are_the_librarys(folders, photographs, kind, size):
    folder, model = folders[kind]
    found = vision(folder, size=size).encode(photographs)
    settings = (
        {"interpolate_pos_encoding": True} if size != 24 and kind in ("clip", "siglip") else {}
    )
    expected = image_vectors(kind, model, vision_pixels(photographs, kind, size), **settings)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert (found.dtype, found.shape) == (np.float32, (8, *vision(folder).shape))


@pytest.mark.parametrize("kind", NORMS)
def test_maps_are_the_patches_tokens_in_their_places(folders, photographs, kind):
    folder, model = folders[kind]
    found = vision(folder, "maps").encode(photographs)
    network = model.vision_model if kind in ("clip", "siglip") else model
    states = network(pixel_values=vision_pixels(photographs, kind)).last_hidden_state.numpy()
    first = {"dinov2": 1, "dinov2_with_registers": 4, "clip": 1, "siglip": 0}[kind]
    tokens = states[:, first : first + 9].reshape(8, 3, 3, 16)
    np.testing.assert_allclose(found.transpose(0, 2, 3, 1), tokens, rtol=5e-3, atol=5e-3)


def test_the_folder_says_size_and_normalization(folders, photographs, tmp_path):
    folder = shutil.copytree(folders["clip"][0], tmp_path / "copy")
    said = {
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.9, 0.8, 0.7],
        "crop_size": {"height": 16, "width": 16},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    encoder = vision(folder, size=None)
    assert encoder.prepare.size == 16
    planes = prepared(photographs, said["image_mean"], said["image_std"], 16, "bicubic")
    expected = image_vectors("clip", folders["clip"][1], planes, interpolate_pos_encoding=True)
    np.testing.assert_allclose(encoder.encode(photographs), expected, rtol=1e-3, atol=1e-5)
    assert folder / "preprocessor_config.json" in encoder.files()


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_images_and_texts_share_a_space(folders, photographs, kind):
    """Their products are the library's own logits, up to its scale and bias."""
    folder, model = folders[kind]
    words = ["a photo", "cat", "dog"]
    images, texts = vision(folder).encode(photographs), embed_texts(words, str(folder))
    ids = transformers.AutoTokenizer.from_pretrained(
        folder, model_input_names=["input_ids", "attention_mask"]
    )
    form = {
        "clip": {"padding": True},
        "siglip": {"padding": "max_length", "return_attention_mask": False},
    }[kind]
    tokens = ids(words, return_tensors="pt", **form)  # SigLIP was trained without a mask
    logits = model(**tokens, pixel_values=vision_pixels(photographs, kind)).logits_per_image
    logits = (logits - getattr(model, "logit_bias", torch.zeros(()))) / model.logit_scale.exp()
    np.testing.assert_allclose(images @ texts.T, logits.numpy(), rtol=1e-3, atol=1e-5)


def test_settings_that_make_no_sense_and_folders_of_other_models_are_refused(
    folders, vit_folder, tmp_path
):
    why = "encoder.size: 36 is not a multiple of the patches' side, 8"
    assert message_of(vit(vit_folder, trained=True, size=36).backbone, error=ExperimentError) == why
    assert message_of(vision, folders["clip"][0], error=ExperimentError, size=36) == why
    with pytest.raises(
        ValidationError, match="pretrained = false leaves random numbers where nothing is trained"
    ):
        ResNetSettings(pretrained=False)
    shutil.copy(folders["dinov2"][0] / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert (
        "has no weights (model.safetensors): pytorch_model.bin may run code when it"
        in message_of(vision, tmp_path)
    )
