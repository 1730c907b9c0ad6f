"""A run's model and its card in a repository of a hub (extra ``hub``).

What is uploaded is what :func:`fedunseen.load_model` needs and no more: the model without any
party's statistics, in safetensors, and the card, without the command and the paths of this machine.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedunseen.core.errors import ExperimentError
from fedunseen.experiment.hub_models import (
    MODEL_FILE,
    endpoint,
    hub_address,
    hub_library,
    refused_by_hub,
)
from fedunseen.experiment.result.run import Run
from fedunseen.pages.report.card import model_card

_NAMED = 10  # classes in the list of what is uploaded


@contextmanager
def hub_files(run: Run, repository: str) -> Iterator[Mapping[str, Path]]:
    """Yield name -> file of what is uploaded, in a folder that is removed afterwards.

    Raises:
        DataError: ``repository`` is no name of one.
        ExperimentError: every client of the run has a model of its own.
    """
    name, revision = hub_address(repository)
    if revision:
        raise ExperimentError(
            f"{repository}: a new revision is written to the repository: leave out @{revision}",
            "hub-name",
        )
    first = run.first
    first.check_one_model("to be uploaded")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / MODEL_FILE
        first.model.save(model)
        card = Path(folder) / "README.md"
        card.write_text(model_card(run, hub=name), "utf-8")
        yield {path.name: path for path in (card, model)}


def contents(run: Run, files: Mapping[str, Path]) -> list[str]:
    """Return lines that say what the files tell others."""
    space = run.first.space
    names = ", ".join(space.names[:_NAMED]) + (", ..." if len(space.names) > _NAMED else "")
    return [
        *(f"{name}  {path.stat().st_size:,} bytes" for name, path in files.items()),
        f"They name {len(space.names)} classes ({names}), and hold the model's parameters: means "
        "and numbers of samples of classes among them. No sample and no statistics of a party.",
    ]


def push(files: Mapping[str, Path], repository: str, public: bool = False) -> str:
    """Upload files to a repository, which is made where there is none, in one commit.

    Returns:
        ``hf://OWNER/NAME@COMMIT``.

    Raises:
        DataError: the hub refuses, or does not answer.
    """
    name, _ = hub_address(repository)
    library = hub_library()
    api = library.HfApi(endpoint=endpoint())
    operations = [library.CommitOperationAdd(each, str(path)) for each, path in files.items()]
    with refused_by_hub(repository):
        api.create_repo(name, private=not public, exist_ok=True)
        commit = api.create_commit(name, operations, commit_message="Upload a FedUnseen model")
    return f"hf://{name}@{commit.oid}"
