"""``fedunseen encode``, and ``fedunseen statistics`` on a cluster or of no folder of a party."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import print_json, say

if TYPE_CHECKING:
    from fedunseen.deploy.engines.engine import Engine
    from fedunseen.statistics import Statistics

PANEL = "Data"


def encode(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Pictures: your folder, or Parquet, WebDataset or picture files, also s3://...",
        ),
    ],
    plan: Annotated[
        str,
        typer.Option(
            metavar="PLAN", help="A run or experiment: its encoder and classes are taken."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The new folder.")],
    engine: opt.Engine = "loop",
    address: opt.ClusterAddress = "",
    workers: opt.Workers = 0,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Write the features of your pictures as a folder that all commands take: block by block, and
    on after a kill.
    """
    from fedunseen.deploy.engines import spread

    with _engine(engine, address, workers) as where:
        samples = spread.encode(plan, source, out, where, tell)
    say(
        f"samples: {samples}", f"folder:  {out}", f"next:    fedunseen data check {quote(str(out))}"
    )
    print_json(as_json, {"folder": str(out), "samples": samples})


def spread_statistics(
    source: str, out: Path, plan: str, engine: str, address: str, workers: int
) -> Statistics:
    """Write the statistics of a source, for ``fedunseen statistics``."""
    from fedunseen.deploy.engines import spread

    with _engine(engine, address, workers) as where:
        return spread.statistics(plan, source, out, where, tell)


@contextmanager
def _engine(name: str, address: str, workers: int) -> Iterator[Engine]:
    """Yield an engine, and end what it has started."""
    from fedunseen.cli.bars import preparation_bars

    with preparation_bars("reading samples"):
        from fedunseen.deploy.engines.engine import engine_of

        engine = engine_of(name, address, workers)
        try:
            yield engine
        finally:
            engine.close()


def tell(done: int, total: int) -> None:
    """Say how many blocks are done."""
    say(f"{done} of {total} blocks")
