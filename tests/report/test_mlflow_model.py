"""The model of a tracked run, as ``mlflow.pyfunc`` loads it."""

import numpy as np
import pytest

from fedunseen import load_run, run
from fedunseen.pages.tracking import tracked
from small_runs import experiment

mlflow = pytest.importorskip("mlflow")
pd = pytest.importorskip("pandas")


@pytest.mark.slow
def test_a_tracked_run_logs_a_model_that_answers_like_it(tmp_path, monkeypatch):
    store = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    small = experiment("digit-pairs-gaussian")
    with tracked(None, ["mlflow"], tmp_path / "run", small) as hear:
        run(small, tmp_path / "run", progress=hear)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(store)
    try:
        (found,) = mlflow.MlflowClient().search_runs(
            [e.experiment_id for e in mlflow.MlflowClient().search_experiments()]
        )
        loaded = mlflow.pyfunc.load_model(f"runs:/{found.info.run_id}/model")
        # MLflow's registry holds versions, stages and aliases
        client = mlflow.MlflowClient()
        version = mlflow.register_model(f"runs:/{found.info.run_id}/model", "digits").version
        client.set_registered_model_alias("digits", "approved", version)
        client.transition_model_version_stage("digits", version, "Production")
        assert client.get_latest_versions("digits", ["Production"])[0].run_id == found.info.run_id
        served = [
            mlflow.pyfunc.load_model(f"models:/digits{n}") for n in ("@approved", "/Production")
        ]
    finally:
        mlflow.set_tracking_uri(before)
    model = load_run(tmp_path / "run").model
    rows = np.random.default_rng(0).random((5, *model.sample_shape), dtype=np.float32)
    expected = [ranking[0].name for ranking in model.rank(rows, top=1)]
    assert loaded.predict(rows).tolist() == expected
    assert loaded.predict(pd.DataFrame(rows)).tolist() == expected
    assert [each.predict(rows).tolist() for each in served] == [expected, expected]
    assert len({*expected}) > 1
    files = (tmp_path / "store").rglob("*.pkl")
    assert not list(files)  # nothing is pickled
