"""``fedunseen report``: the page of a run, written again."""

from fedunseen.cli import options as opt
from fedunseen.cli.console import print_json, say


def report(path: opt.RunPath, as_json: opt.Json = False) -> None:
    """Write a run's report.html again."""
    from fedunseen.cli.bars import preparation_bars
    from fedunseen.experiment.result.run import load_run
    from fedunseen.pages.report import write_report

    with preparation_bars("writing the report"):
        written = write_report(load_run(path))
    say(f"report: {written}")
    print_json(as_json, {"run": str(path), "report": str(written)})
