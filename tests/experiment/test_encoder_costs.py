"""What ``init`` says of encoders."""

import re

import torch

from fedunseen.core.toml import toml_value
from fedunseen.encoders.vision import VisionSettings
from fedunseen.experiment import encoder_costs
from fedunseen.experiment.encoder_costs import BETTER, better_encoder, seconds


def test_seconds_grow_with_the_work_and_shrink_with_speed(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(encoder_costs.time, "perf_counter", lambda: float(next(ticks)))
    layer = 257 * 384 * 1536 / 1e9
    assert abs(seconds(BETTER._replace(multiply_adds=3 * layer)) - 3) < 1e-9
    monkeypatch.setattr(encoder_costs.time, "perf_counter", lambda: next(ticks) / 4)
    assert abs(seconds(BETTER._replace(multiply_adds=3 * layer)) - 0.75) < 1e-9


def test_the_sentence_names_the_one_setting_and_what_it_takes(monkeypatch):
    monkeypatch.setattr(encoder_costs, "seconds", lambda _: 0.123)
    said = better_encoder()
    assert re.fullmatch(r"(.*) takes (.*): 88 MB to download, about 0\.1 s a picture here", said)
    assert said.startswith(f"encoder.name = {toml_value('vision')} takes DINOv2-small")
    assert VisionSettings().weights == "facebook/dinov2-small"


def test_the_work_is_that_of_the_network():
    """DINOv2-small without its tables of positions, from its published shape."""
    import transformers

    shape = {"hidden_size": 384, "num_attention_heads": 6, "num_hidden_layers": 12}
    with torch.device("meta"):
        model = transformers.Dinov2Model(transformers.Dinov2Config(**shape, image_size=518, patch_size=14))  # fmt: skip
    matrices = sum(p.numel() for p in model.parameters() if p.ndim > 1 and p.shape[0] > 1)
    assert abs(257 * matrices / 1e9 - BETTER.multiply_adds) < 0.3
    assert abs(4 * sum(p.numel() for p in model.parameters()) / 1e6 - BETTER.megabytes) < 1
