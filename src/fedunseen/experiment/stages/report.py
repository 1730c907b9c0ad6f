"""Write what a finished run leaves behind, and end the parties' part in it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from fedunseen.core.files import write_tensors
from fedunseen.evaluation.misplaced import misplaced_files
from fedunseen.experiment.deployed import notes
from fedunseen.experiment.encoder_files import copy_weights
from fedunseen.experiment.manifest import encoder_of, write_inputs
from fedunseen.experiment.result.run import load_run
from fedunseen.experiment.setup import Setup
from fedunseen.experiment.stages.meet import Meet, connect
from fedunseen.federation.partition import NEVER
from fedunseen.federation.run_directory import load_params


def report(setup: Setup) -> Setup:
    """Write the result and all that predictions and the report need; the result last."""
    directory, experiment, federation = setup.directory, setup.experiment, setup.federation
    result: dict[str, Any] = {
        **setup.result,
        "selection": experiment.evaluation.selection,
        "seed": experiment.run.seed,
        "seconds": round(time.perf_counter() - setup.started, 3),
        "run": str(directory.path),
    }
    if setup.chosen:
        result["chosen_on_validation"] = dict(setup.chosen)
        result |= {"stopped": setup.chosen["stopped"]} if "stopped" in setup.chosen else {}
    if setup.partition.remote:
        result["notes"] = notes(experiment, setup.benchmark)
    # The warnings of a coordinator go to the parties, who have the files.
    if not setup.partition.remote and (groups := misplaced_files(setup.benchmark)):
        result["misplaced"] = groups
    write_inputs(federation.scaler, setup.benchmark.space, directory.path)
    copy_weights(encoder_of(experiment, setup.benchmark), experiment.data, experiment.encoder, directory.path)
    params = load_params(directory.model_path, federation.device) if federation.strategy.one_model else {}
    write_tensors(directory.path / "evaluation.safetensors", setup.evaluator.summary(params, result))
    directory.finish(result)
    federation.engine.finish(directory.result() or {}, params)
    return replace(setup, result=result)


def finish_late(setup: Setup, meet: Meet | None) -> None:
    """Tell the parties, if any, that the run is over, where the coordinator was killed before it could."""
    if meet is None:
        return
    done = load_run(setup.directory.path)
    setup = replace(setup, experiment=done.experiment).assembled()
    if setup.growth is not None:
        setup = replace(setup, federation=setup.growth.at(NEVER)[0])
    with meet() as meeting:
        connect(replace(setup, meeting=meeting))
        setup.federation.engine.finish_late(done.result, done.params)
