"""What a party brings home from a run is a run directory: it loads, and predicts as the
coordinator's.
"""

from contextlib import nullcontext

import numpy as np
import pytest

from fedunseen import load_run, run
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.party import Party
from fedunseen.deploy.site import Owner, Site
from links import session
from small_federation import NAMES, Recorder, experiment, write_all

PLAIN = {"privacy__aggregation": "plain"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings", "bits"),
    [
        ("gaussian", {}, 8),
        ("gaussian", {"data__quantization": 16}, 16),
        ("classifier", {}, None),
    ],
    ids=str,
)
def test_a_party_s_model_predicts_as_the_coordinator_s(tmp_path, method, settings, bits):
    data = write_all(tmp_path / "data")
    parties = {}
    for name in NAMES:
        held = PartyData(data / name, home=tmp_path / f"model-{name}", min_samples=1)
        site = Site(tmp_path / name, Owner(data / name))
        parties[name] = Party(held.prepare, site)
    chosen = experiment(data, method, **PLAIN, **settings)
    met = session(Recorder(parties), NAMES)
    done = run(chosen, tmp_path / "run", meeting=lambda: nullcontext(met))
    samples = np.load(data / "coordinator" / "features.npz")["features"]
    expected = [item.name for row in done.predict(samples) for item in row]
    for name in NAMES:
        brought = load_run(tmp_path / f"model-{name}")
        assert brought.experiment.data.quantization == bits
        assert [item.name for row in brought.predict(samples) for item in row] == expected
