"""The encoder ``vision`` on tiny random models of each family, saved as the hub keeps them, against
the library's own preparation and pooled output.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.data import DataSettings
from fedunseen.encoders import hub
from fedunseen.encoders.text import embed_texts
from fedunseen.encoders.vision import POOLING, Vision, VisionSettings
from fedunseen.experiment.encoding import locate_weights, record_weights

T = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
PATCHES = {**SMALL, "image_size": 24, "patch_size": 8}
TEXTS = {**SMALL, "vocab_size": 6, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1}
PYRAMID = {"hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1], "image_size": 32}
WINDOWS = {
    **{"image_size": 32, "patch_size": 4, "embed_dim": 8},
    **{"depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
}
FOCAL = {
    **{"image_size": 32, "embed_dim": 8, "depths": [1, 1], "hidden_sizes": [8, 16]},
    **{"focal_levels": [1, 1], "focal_windows": [3, 3]},
}
TWO = {"vision_config": PATCHES, "text_config": TEXTS, "projection_dim": 6}

CASES = {  # type -> class of the configuration, its numbers, the preparation that its models have
    "clip": ("CLIPConfig", TWO, "CLIP"),
    "metaclip_2": ("MetaClip2Config", TWO, "CLIP"),
    "siglip": ("SiglipConfig", {**TWO, "text_config": TEXTS | {"projection_size": 16}}, "Siglip"),
    "siglip2": (
        "Siglip2Config",
        {
            "vision_config": {**SMALL, "patch_size": 8, "num_patches": 9},
            "text_config": TEXTS | {"projection_size": 16},
        },
        "Siglip2",
    ),
    "aimv2": ("Aimv2Config", TWO, "CLIP"),
    "aimv2_vision_model": ("Aimv2VisionConfig", PATCHES, "CLIP"),
    "dinov2": ("Dinov2Config", PATCHES, "Bit"),
    "dinov2_with_registers": ("Dinov2WithRegistersConfig", PATCHES, "Bit"),
    "dinov3_vit": ("DINOv3ViTConfig", {**PATCHES, "num_register_tokens": 2}, "DINOv3ViT"),
    "vit": ("ViTConfig", PATCHES, "ViT"),
    "deit": ("DeiTConfig", PATCHES, "DeiT"),
    "vit_msn": ("ViTMSNConfig", PATCHES, "ViT"),
    "ijepa": ("IJepaConfig", PATCHES, "ViT"),
    "data2vec-vision": ("Data2VecVisionConfig", PATCHES, "Beit"),
    "beit": ("BeitConfig", {**PATCHES, "use_mean_pooling": True}, "Beit"),
    "dinov3_convnext": ("DINOv3ConvNextConfig", PYRAMID, "DINOv3ViT"),
    "convnext": ("ConvNextConfig", PYRAMID, "ConvNext"),
    "convnextv2": ("ConvNextV2Config", PYRAMID, "ConvNext"),
    "swin": ("SwinConfig", WINDOWS, "ViT"),
    "swinv2": ("Swinv2Config", WINDOWS, "ViT"),
    "focalnet": ("FocalNetConfig", FOCAL, "Bit"),
    "resnet": (
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        "ConvNext",
    ),
    "regnet": (
        "RegNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
        "ConvNext",
    ),
    "mobilenet_v2": (
        "MobileNetV2Config",
        {"image_size": 32, "depth_multiplier": 0.2},
        "MobileNetV2",
    ),
}
NUMBERS = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3]}


def save(kind, folder):
    """Save a tiny random model of a type with its preparation; return the model."""
    name, numbers, processor = CASES[kind]
    torch.manual_seed(0)
    model = T.AutoModel.from_config(getattr(T, name)(**numbers)).eval().requires_grad_(False)
    for value in model.parameters():  # as far from one another as trained ones
        value.add_(0.2 * torch.randn_like(value))
    model.save_pretrained(folder)
    side = side_of(kind)
    shortest = processor in ("ConvNext", "Bit", "CLIP")
    size = {"shortest_edge": side} if shortest else {"height": side, "width": side}
    crop = {"crop_size": {"height": side, "width": side}} if processor in ("Bit", "CLIP") else {}
    if processor == "Siglip2":
        size, crop = None, {"patch_size": 8, "max_num_patches": 9}
    prepared = {"image_processor_type": f"{processor}ImageProcessor", **NUMBERS, **crop}
    prepared |= {"size": size} if size else {}
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    return model


def side_of(kind):
    numbers = CASES[kind][1]
    return 32 if numbers.get("image_size") == 32 or "embedding_size" in numbers else 24


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function from a type to the folder and the model, made once."""
    made = {}

    def of(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = folder, save(kind, folder)
        return made[kind]

    return of


def vision(folder, side, output="vectors", **more):
    return Vision(VisionSettings(weights=str(folder), **more), (3, side, side), output)


def images_of(side, count=5):
    return np.random.default_rng(3).integers(0, 256, (count, 3, side, side), dtype=np.uint8)


def librarys(folder, model, images, kind):
    """Return the library's outputs of images that its own PIL preparation has prepared."""
    if CASES[kind][2] == "DINOv3ViT":  # the library's own needs torchvision
        mean, deviation = (np.array(NUMBERS[key])[:, None, None] for key in NUMBERS)
        planes = {"pixel_values": torch.from_numpy((images / 255 - mean) / deviation).float()}
    else:
        processor = T.AutoImageProcessor.from_pretrained(folder, backend="pil")
        options = {"do_center_crop": False, "do_resize": CASES[kind][2] == "Siglip2"}
        pictures = list(images.transpose(0, 2, 3, 1))
        planes = processor(pictures, return_tensors="pt", **options)
    towers = hasattr(model, "get_image_features")
    return (model.get_image_features if towers else model)(**planes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_features_are_the_librarys_pooled_output(saved, kind):
    folder, model = saved(kind)
    images = images_of(side_of(kind))
    found = vision(folder, side_of(kind)).compute(images)
    outputs = librarys(folder, model, images, kind)
    rule = POOLING[kind].vector
    expected = {
        "text space": lambda: normalize(outputs.pooler_output, dim=1),
        "first token": lambda: outputs.last_hidden_state[:, 0],
        "mean token": lambda: outputs.last_hidden_state[:, -9:].mean(1),
        "pooled": lambda: outputs.pooler_output.flatten(1),
    }[rule]().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-4)
    assert found.std(0).max() > 1e-4  # it depends on the picture
    assert found.shape[1:] == vision(folder, side_of(kind)).shape
    if rule == "first token" and kind.startswith("dino"):
        np.testing.assert_allclose(found, outputs.pooler_output, rtol=1e-3, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("stated", [None, 2, 3])
@pytest.mark.parametrize("kind", ["vit", "deit", "convnext", "mobilenet_v2", "siglip", "beit"])
def test_images_are_resized_as_the_folder_says(saved, tmp_path, kind, stated):
    folder, side = shutil.copytree(saved(kind)[0], tmp_path / kind), side_of(kind)
    file = folder / "preprocessor_config.json"
    said = json.loads(file.read_text()) | {"size": {"height": side, "width": side}}
    said |= {"crop_pct": 1.0, "size": {"shortest_edge": side}} if kind == "convnext" else {}
    file.write_text(json.dumps(said | ({"resample": stated} if stated else {})))
    processor = T.AutoImageProcessor.from_pretrained(folder, backend="pil")
    # Far from black and white: Pillow clips what bicubic overshoots between its passes too.
    images = 64 + images_of(3 * side, 2) // 2
    options = {"return_tensors": "np", "do_center_crop": False}
    expected = processor(list(images.transpose(0, 2, 3, 1)), **options)["pixel_values"]

    def difference(**more):
        planes = vision(folder, 3 * side, **more).prepare(torch.from_numpy(images)).numpy()
        return np.abs(planes - expected).max()

    level = 1 / 255 / 0.2  # of the least deviation: Pillow rounds to whole levels, twice
    assert difference() < 2 * level
    other = {2: "bicubic", 3: "bilinear"}[int(processor.resample)]
    assert difference(resize=other) > 2 * level


@pytest.mark.parametrize("stated", [1, 0, "bicubic", [3]])
def test_another_filter_is_refused_unless_one_is_chosen(saved, tmp_path, stated):
    folder = shutil.copytree(saved("vit")[0], tmp_path / "vit")
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"resample": stated}))
    with pytest.raises(DataError) as caught:
        vision(folder, 24)
    assert caught.value.code == "encoder-preparation"
    assert "choose one with encoder.resize" in str(caught.value)
    assert vision(folder, 24, resize="bicubic").prepare.resize == "bicubic"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in CASES if POOLING[kind].sides != "one"])
def test_maps_and_other_sides_have_the_stated_shape(saved, kind):
    folder, _ = saved(kind)
    side = side_of(kind) + 32
    encoder = vision(folder, side, "maps", size=side)
    maps = encoder.compute(images_of(side, 2))
    assert maps.shape[1:] == encoder.shape
    assert maps.shape[2] == maps.shape[3] > 1
    wide = vision(folder, side, size=side)
    assert wide.compute(images_of(side, 2)).shape[1:] == wide.shape


def test_every_type_is_tested_or_is_the_image_part_of_one_that_is():
    parts = {kind.removesuffix("_vision_model") for kind in POOLING}
    assert parts | {"aimv2_vision_model"} == {*CASES}


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2", "metaclip_2"])
def test_the_image_part_alone_gives_the_same(saved, kind, tmp_path):
    folder, _ = saved(kind)
    width = {"projection_dim": 6} if POOLING[kind].output == "image_embeds" else {}
    part = getattr(T, POOLING[kind].model).from_pretrained(folder, **width)
    part.save_pretrained(tmp_path)
    shutil.copy(folder / "preprocessor_config.json", tmp_path)
    assert (
        json.loads((tmp_path / "config.json").read_text())["model_type"] == f"{kind}_vision_model"
    )
    images = images_of(24)
    found, expected = (vision(place, 24).compute(images) for place in (tmp_path, folder))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_another_scale_of_bytes_is_the_librarys(saved, tmp_path):
    folder, model = saved("vit")
    folder = shutil.copytree(folder, tmp_path / "copy")
    path = folder / "preprocessor_config.json"
    images = images_of(24)
    for change in ({"rescale_factor": 1 / 127.5}, {"do_rescale": False}, {"do_normalize": False}):
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        expected = librarys(folder, model, images.astype(np.float32), "vit").last_hidden_state[:, 0]
        np.testing.assert_allclose(
            vision(folder, 24).compute(images), expected, rtol=1e-3, atol=1e-3
        )


def refusal(make, *args, error=DataError, **more):
    with pytest.raises(error) as caught:
        make(*args, **more)
    return caught.value


def test_what_is_no_image_encoder_is_refused(saved, tmp_path):
    bert = T.BertConfig(**SMALL, vocab_size=6)
    T.BertModel(bert).save_pretrained(tmp_path / "bert")
    error = refusal(vision, tmp_path / "bert", 24)
    assert (error.code, "data.text_encoder" in str(error)) == (hub.OTHER_TYPE, True)
    error = refusal(embed_texts, ["a cat"], str(saved("dinov2")[0]))
    assert (error.code, "encoder.weights" in str(error)) == (hub.OTHER_TYPE, True)
    (tmp_path / "bert" / "config.json").write_text(
        json.dumps({"model_type": "mine", "auto_map": {"AutoModel": "code.Mine"}})
    )
    error = refusal(vision, tmp_path / "bert", 24)
    assert (error.code, "code of a hub is not executed" in str(error)) == (hub.OTHER_TYPE, True)
    assert refusal(vision, tmp_path / "none", 24).code == hub.MISSING


def test_weights_that_cannot_be_used_are_refused(saved, tmp_path):
    folder = shutil.copytree(saved("dinov2")[0], tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = refusal(vision, folder, 24)
    assert (error.code, "save it as safetensors" in str(error)) == ("encoder-weights", True)
    folder = shutil.copytree(saved("convnext")[0], tmp_path / "config")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"depths": [1]}))
    assert refusal(vision, folder, 32).code == "encoder-damaged"
    folder = shutil.copytree(saved("vit")[0], tmp_path / "processor")
    prepared = {"image_processor_type": "PPOCRV5ServerRecImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    assert refusal(vision, folder, 24).code == "encoder-preparation"


def test_a_tower_without_pooling_is_refused(tmp_path):
    for name, head in (("Siglip", "vision_use_head"), ("Aimv2", "use_head")):
        config = getattr(T, f"{name}VisionConfig")(**PATCHES, **{head: False})
        folder = tmp_path / name
        T.AutoModel.from_config(config).save_pretrained(folder)
        assert refusal(vision(folder, 24).compute, images_of(24, 1)).code == "encoder-pooling"
        assert vision(folder, 24, "maps").compute(images_of(24, 1)).shape == (1, 16, 3, 3)


def test_positions_that_are_not_interpolated_leave_one_side(saved):
    assert "24 x 24 alone" in str(
        refusal(vision, saved("aimv2")[0], 32, error=ExperimentError, size=32)
    )


def test_torchvision_and_a_hubs_code_are_never_loaded(saved):
    vision(saved("swin")[0], 32).compute(images_of(32, 1))
    assert "torchvision" not in sys.modules


def test_the_page_lists_every_type():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w[^|]*)` \| ([\w ]+) \|", page, re.MULTILINE)
    listed = {kind: rule for kinds, rule in rows for kind in re.split(r"`, `", kinds)}
    whole = {
        k: v.vector
        for k, v in POOLING.items()
        if not k.endswith("_vision_model") or k == "aimv2_vision_model"
    }
    assert {kind: listed.get(kind) for kind in whole} == whole


def test_a_runs_revision_is_recorded_and_found_again(saved, tmp_path, monkeypatch):
    old, new = ("a" * 40, "b" * 40)
    snapshots = tmp_path / "snapshots"
    shutil.copytree(saved("vit")[0], snapshots / old)
    shutil.copytree(saved("deit")[0], snapshots / new)
    asked = []

    def snapshot_download(name, revision="main", **_options):
        asked.append((name, revision))
        return str(snapshots / {"main": new, "v1": old}[revision])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    encoder = vision("owner/name@v1", 24)
    assert asked == [("owner/name", "v1")]
    entry = record_weights(encoder, DataSettings())["encoder"]
    assert entry["revision"] == old
    moved = locate_weights(entry, tmp_path, lambda: vision("owner/name", 24), None)
    assert moved == {"encoder.weights": str(snapshots / old)}
    shutil.rmtree(snapshots / old)
    error = refusal(locate_weights, entry, tmp_path, lambda: vision("owner/name", 24), None)
    assert "has changed since this run" in str(error)
    assert record_weights(vision(saved("vit")[0], 24), DataSettings())["encoder"].keys() == {
        "setting", "digest", "files",
    }  # fmt: skip
