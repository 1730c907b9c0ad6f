"""``fedunseen learn``, ``adapt``, ``sums``, ``statistics`` and ``forget``: what changes a finished
run without training.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedunseen.cli import options as opt
from fedunseen.cli import texts
from fedunseen.cli.console import check_named, open_run, overrides_of, print_json, say, write_pages
from fedunseen.core.errors import ArgumentError, ExperimentError, counted
from fedunseen.core.extensions import added, at
from fedunseen.core.small_cells import MIN_SAMPLES, left_out_sentence
from fedunseen.experiment.traces import sentences

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run

New = Annotated[Path, typer.Option("--out", metavar="NEW", help="The new run directory.")]


def learn(
    path: opt.RunPath,
    out: New,
    classes: opt.Described = None,
    class_names: opt.Named = None,
    support: opt.Support = None,
    sums: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="What a party has written with fedunseen sums; repeatable."
        ),
    ] = None,
    client: opt.Client = None,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Add classes to a finished run for good: described, shown by examples, or both. Nothing is
    trained.
    """
    if sums and (class_names or classes is not None or support is not None):
        raise ArgumentError(
            "--sums brings its own descriptions and examples: learn from it and from others in turn"
        )
    check_named(class_names, classes)
    if classes is None and not class_names and support is None and not sums:
        raise ExperimentError(
            "there is nothing to learn: give --classes FILE, --class NAME, --support FOLDER or "
            "--sums FILE"
        )
    from fedunseen.cli.bars import preparation_bars
    from fedunseen.cli.predict import expectations

    outlook: list[dict[str, object]] = []
    with preparation_bars("learning classes"):
        run = open_run(path, client)
        if not sums:
            examples: Any = run.first.read_examples(support)
            outlook = expectations(run.first, class_names, classes, "all", examples or {})
            done = run.learn(class_names or classes, examples, out)
        else:
            from fedunseen.experiment.changed import read_all_class_sums
            from fedunseen.experiment.new_names import near_names, shown_by_examples

            run = run.first
            new, summed = read_all_class_sums(run, sums)
            counts = {name: int(part.count) for name, part in summed.items()}
            say(*near_names(run, list(counts)), *shown_by_examples(run, counts))
            done = run.learn(new or None, summed, out)
        pages = write_pages(done)
    added = done.result["learnt"]
    say(*texts.learned(added, run.result, done.result), *pages)
    answer: dict[str, object] = {
        "run": str(done.path),
        "learnt": added,
        "classes": len(done.space.names),
    }
    if effect := done.result.get("learn_effect"):
        answer["effect"] = effect
    if outlook:
        answer["new_classes"] = outlook
    print_json(as_json, answer)


def adapt(
    path: opt.RunPath,
    inputs: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Unlabelled samples: a folder of pictures or texts, a table or an array.",
        ),
    ],
    out: New,
    among: Annotated[
        str, typer.Option(help="The classes that samples may be of: all, or only unseen ones.")
    ] = "all",
    client: opt.Client = None,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Adapt a finished run to unlabelled samples: prototypes of unseen classes move to where
    samples lie.
    """
    if among not in ("all", "unseen"):
        raise ArgumentError(f"--among {among}: name all or unseen")
    from fedunseen.cli.bars import preparation_bars

    with preparation_bars("adapting"):
        done = open_run(path, client).adapt(inputs, out, among)
    say_adapted(done, as_json)


def say_adapted(done: Run, as_json: bool) -> None:
    """Write the card and the report of an adapted run, and say what each unseen class got."""
    note = done.result["adapted"]
    empty = {"before": None, "after": None}
    rows = [
        empty | dict(zip(note["classes"], row, strict=True))
        for row in zip(*note["classes"].values(), strict=True)
    ]
    say(*texts.adapted(note, rows, done.result))
    say(done.headline(), *write_pages(done))
    print_json(as_json, done.result)


def sums(
    path: opt.RunPath,
    data: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Your samples, as a party's: classes.csv with features, images, texts or a table.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The new file, FILE.safetensors.")
    ],
    removal: Annotated[
        bool, typer.Option("--removal", help="For fedunseen forget RUN --removal FILE.")
    ] = False,
    samples: opt.Removed = None,
    min_samples: opt.MinSamples = MIN_SAMPLES,
    consent: Annotated[
        bool,
        typer.Option(
            "--consent",
            help="Remove fewer samples than method.removal_batch, or some that sums show.",
        ),
    ] = False,
    moments: Annotated[
        bool, typer.Option("--moments", help="--removal: you joined with --consent moments.")
    ] = False,
    stated: opt.Stated = None,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Write the sums over a party's samples, for fedunseen learn RUN --sums FILE elsewhere: the
    samples stay here.
    """
    from fedunseen.cli.bars import preparation_bars
    from fedunseen.experiment.changed import write_class_sums

    owner_settings = overrides_of(stated)
    with preparation_bars("reading the run"):
        run = open_run(path, None)
    if removal:
        from fedunseen.experiment.forget import write_removal

        if min_samples > 1 and not run.experiment.deployed:
            raise ExperimentError(
                f"{path} says that its sums have classes of any size, since it is not of a "
                "deployment: give --min-samples 1 if the owner agrees"
            )
        agreed = samples or (), consent
        with preparation_bars("summing samples"):
            count = write_removal(run, data, out, *agreed, min_samples, moments, owner_settings)
        return say(f"to be removed: {counted(count, 'sample')}", f"file:   {out}")
    with preparation_bars("summing samples"):
        counts, left_out = write_class_sums(run.first, data, out, min_samples, owner_settings)
    if left_out:
        say(left_out_sentence(left_out, min_samples))
    say(
        f"summed: {', '.join(f'{name} ({count})' for name, count in counts.items())}",
        f"file:   {out}",
    )
    if alone := [name for name, count in counts.items() if count == 1]:
        say(f"the sum of a single sample is that sample: {', '.join(alone)}")
    print_json(as_json, {"file": str(out), "samples": counts})


def statistics(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Your samples, as for sums or encode; or files of statistics to add up.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The new file.")],
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            help="A run, experiment or model file: its classes, encoder and scaling are taken.",
        ),
    ] = None,
    engine: opt.Engine = "loop",
    address: opt.ClusterAddress = "",
    workers: opt.Workers = 0,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Write the statistics of your samples, or of several such files together: exact sums, which
    continue after a kill.
    """
    from fedunseen.cli.bars import preparation_bars
    from fedunseen.experiment.party_statistics import merge_files, write_statistics
    from fedunseen.experiment.result.run import load_run

    places = added("SPREAD")
    party = (Path(sources[0]) / "classes.csv").is_file() and engine == "loop" and not address
    party = party and plan is not None and Path(plan).is_dir()
    if plan is None:
        if not all(Path(source).is_file() for source in sources):
            raise ArgumentError("--plan: name the run whose plan counts these samples: --plan RUN")
        done = merge_files([Path(source) for source in sources], out)
    elif len(sources) > 1:
        raise ArgumentError("give one SOURCE with --plan RUN, or files of statistics without it")
    elif places and not party:
        done = at(places[0])(sources[0], out, plan, engine, address, workers)
    else:
        with preparation_bars("summing samples"):
            done = write_statistics(load_run(plan).first, Path(sources[0]), out, _tell)
    say(
        f"samples:     {done.samples}",
        f"sums_sha256: {done.sums_sha256}",
        f"file:        {out}",
        "note: the file shows sums of any number of samples, single ones too",
    )
    facts = {"file": str(out), "samples": done.samples, "sums_sha256": done.sums_sha256}
    print_json(as_json, {**facts, "sha256": done.sha256})


def _tell(done: int, total: int) -> None:
    """Say how many samples of a large folder are done."""
    if done < total:
        say(f"{done} of {total} samples")


def forget(
    path: opt.RunPath,
    out: New,
    party: Annotated[
        str, typer.Option(metavar="NAME", help="The party's name, or a client's number from 0.")
    ] = "",
    samples: opt.Removed = None,
    removal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What the party wrote: sums --removal.")
    ] = None,
    consent: Annotated[
        bool, typer.Option("--consent", help="Remove fewer samples than method.removal_batch.")
    ] = False,
    removing: Annotated[
        str,
        typer.Option(help="In place of --party: a,b, whose samples are removed in one masked sum."),
    ] = "",
    kit: Annotated[
        Path | None,
        typer.Option(help="--removing: your credentials folder, made by `fedunseen certs`."),
    ] = None,
    address: Annotated[
        str, typer.Option(help="--removing: where to listen: HOST or HOST:PORT.")
    ] = "127.0.0.1",
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Take a party, or samples, out of a run: a closed form follows bit for bit, a trained method
    is trained again.
    """
    if bool(party) == bool(removing):
        raise ArgumentError(
            "give --party NAME, also with --removal FILE, or --removing a,b with --kit: one of the "
            "two"
        )
    from fedunseen.cli.bars import preparation_bars
    from fedunseen.experiment.forget import forget as forget_party
    from fedunseen.experiment.result.run import load_run

    if removing:
        places = added("REMOTE_REMOVAL")
        if not places:
            raise ArgumentError(
                "--removing asks parties elsewhere, and fedunseen.deploy is missing"
            )
        host_removal = at(places[0])
        return say_forgotten(host_removal(load_run(path), removing, kit, address, out), as_json)
    with preparation_bars("removing samples"):
        done = forget_party(load_run(path), party, out, samples or (), removal, consent)
    say_forgotten(done, as_json)


def say_forgotten(done: Run, as_json: bool) -> None:
    """Write the card and the report of a run without some samples, and say what was removed."""
    say(f"removed: {done.result['forgotten'][-1]}", done.headline(), *write_pages(done))
    if "sums_sha256" in done.result:
        say(
            "note: an observer of the sums from before and after learns exactly the sums of what "
            "was removed"
        )
    say(*(f"stays: {sentence}" for sentence in sentences(done.result["stays"])))
    print_json(as_json, done.result)
