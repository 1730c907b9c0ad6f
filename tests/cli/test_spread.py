"""Statistics and features block by block: the sums of one process, whatever is killed or damaged."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedunseen import Statistics, ZeroShotClassifier, load_run
from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.toml import toml_text
from fedunseen.data.benchmarks.folder import Folder
from fedunseen.deploy.engines import ray_engine, spread
from fedunseen.deploy.engines.engine import Loop
from fedunseen.experiment.party_statistics import write_statistics
from noted_tasks import Noted, lines
from photo_runs import ANIMALS, archive, png, tiles

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def whole(counting_run, run_samples):
    """The statistics of all samples, added at once."""
    return Statistics.plan(load_run(counting_run).model).add(
        run_samples[0], run_samples[1].tolist()
    )


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """Note what tasks begin, and return how to read it."""
    journal = tmp_path / "journal"

    def make(plan, source, parts):
        return Noted(plan, source, parts, str(journal), 0)

    monkeypatch.setattr(spread, "Counting", make)
    return lambda: [line[1] for line in lines(journal) if line[0] == "begun"]


class Killed(Loop):
    """A loop that is killed after some items."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def map(self, make, items):
        for number, result in enumerate(super().map(make, items)):
            if number == self.after:
                raise KeyboardInterrupt
            yield result


@pytest.mark.parametrize("fan", [2, 3, 8, 100])
def test_any_tree_of_blocks_has_the_sums_of_one_call(
    fan, counting_run, parquet, whole, tmp_path, monkeypatch
):
    monkeypatch.setattr(spread, "FAN", fan)
    told = []
    total = spread.statistics(
        counting_run, str(parquet), tmp_path / "sums", Loop(), lambda *done: told.append(done)
    )
    assert total.sha256 == whole.sha256
    assert Statistics.load(tmp_path / "sums") == total
    assert told == [(done, 15) for done in range(1, 16)]
    assert not (tmp_path / "sums.blocks").exists()
    with pytest.raises(DataError) as raised:
        total + Statistics.load(tmp_path / "sums")
    assert raised.value.code == "added-twice"


@pytest.mark.slow
def test_blocks_that_were_done_are_not_done_again(counting_run, parquet, whole, tmp_path, noted):
    given = (counting_run, str(parquet), tmp_path / "sums")
    for after in (4, 3):
        with pytest.raises(KeyboardInterrupt):
            spread.statistics(*given, Killed(after))
        assert not (tmp_path / "sums").exists()
    assert spread.statistics(*given, Loop()).sha256 == whole.sha256
    assert sorted(noted()) == [f"{number:06d}.statistics" for number in range(15)]


@pytest.mark.slow
def test_a_damaged_block_is_made_again(counting_run, parquet, whole, tmp_path, noted):
    given = (counting_run, str(parquet), tmp_path / "sums")
    with pytest.raises(KeyboardInterrupt):
        spread.statistics(*given, Killed(4))
    damaged = tmp_path / "sums.blocks" / "000001.statistics"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(DataError, match="repeat the command, which makes this block again"):
        spread.statistics(*given, Loop())
    assert spread.statistics(*given, Loop()).sha256 == whole.sha256
    assert sorted(noted()).count("000001.statistics") == 2


def test_a_store_that_fails_half_way_loses_nothing(
    counting_run, run_samples, whole, parquet, tmp_path, monkeypatch, noted
):
    store = fsspec.filesystem("memory")
    for file in parquet.iterdir():
        store.pipe_file(f"/bucket/{file.name}", file.read_bytes())
    given = (counting_run, "memory://bucket", tmp_path / "sums")
    opened = type(store).open
    with monkeypatch.context() as patch:
        reads = []

        def fails(self, path, *given, **more):
            reads.append(path)
            if len(reads) > 9:
                raise OSError("the bucket is gone")
            return opened(self, path, *given, **more)

        patch.setattr(type(store), "open", fails)
        with pytest.raises(DataError, match=r"the bucket is gone.*continues behind the blocks"):
            spread.statistics(*given, Loop())
    done = len(list((tmp_path / "sums.blocks").glob("*.statistics")))
    assert done == 6
    assert spread.statistics(*given, Loop()).sha256 == whole.sha256
    assert len(noted()) == 16  # and the one that failed


def test_blocks_of_other_samples_are_not_gone_on_with(counting_run, parquet, tmp_path):
    given = (counting_run, str(parquet), tmp_path / "sums")
    with pytest.raises(KeyboardInterrupt):
        spread.statistics(*given, Killed(1))
    (parquet / "0.parquet").rename(parquet / "9.parquet")
    with pytest.raises(DataError) as raised:
        spread.statistics(*given, Loop())
    assert raised.value.code == "other-samples"


def test_a_folder_has_the_statistics_and_marks_of_the_command_without_engine(
    counting_run, run_samples, tmp_path
):
    run = load_run(counting_run)
    folder = tmp_path / "party"
    folder.mkdir()
    run.space.save(folder / "classes.csv")
    rows, names = run_samples
    arrays = {"features": rows, "labels": names, "split": np.full(len(rows), "train")}
    np.savez(folder / "features.npz", **arrays)
    (tmp_path / "linked.partial").symlink_to(tmp_path / "of the user")
    with pytest.raises(DataError) as refused:
        write_statistics(run.first, folder, tmp_path / "linked")
    assert refused.value.code == "run-link"
    assert not (tmp_path / "of the user").exists()
    here = write_statistics(run.first, folder, tmp_path / "here")
    assert spread.statistics(counting_run, str(folder), tmp_path / "there", Loop()) == here


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "classifier", "experiment"])
def test_whatever_plans_statistics_counts_a_source(
    kind, counting_run, run_samples, parquet, tmp_path, works
):
    run, place = load_run(counting_run), tmp_path / "plan.safetensors"
    rows, names = run_samples
    source = run.model if kind == "model" else run.experiment
    if kind == "classifier":
        source = ZeroShotClassifier().fit(rows, names)
    if kind == "experiment":
        place = tmp_path / "plan.toml"
        place.write_text(toml_text(source.to_dict()))
    else:
        source.save(place)
    expected = Statistics.plan(source).add(rows, names.tolist())
    out = tmp_path / "sums"
    done = works("statistics", parquet, "--plan", place, "--out", out, "--json").answer
    assert done["sha256"] == expected.sha256
    if kind != "classifier":
        assert done["sums_sha256"] == run.result["sums_sha256"]


def written(folder, table):
    from pyarrow.parquet import write_table

    write_table(table, folder / "0.parquet")


@pytest.mark.slow
def test_what_cannot_be_counted_is_refused_in_one_sentence(
    counting_run, parquet, run_samples, tmp_path, refused
):
    import pyarrow as pa

    rows, names = run_samples
    vectors = pa.array(list(rows[:2]))
    cases = (
        (pa.table({"features": vectors}), "has no column 'label'"),
        (pa.table({"features": vectors, "label": ["no such", names[0]]}), "'no such' is no class"),
        (pa.table({"features": [[1.0], [1.0, 2.0]], "label": names[:2]}), "different lengths"),
        (pa.table({"text": ["a", "b"], "label": names[:2]}), "keep one column of vectors"),
        (pa.table({"features": [[1.0], [2.0]], "label": names[:2]}), "X is float64 of the shape"),
    )
    words = ("statistics", tmp_path / "made", "--plan", counting_run, "--out", tmp_path / "sums")
    (tmp_path / "made").mkdir()
    for table, told in cases:
        written(tmp_path / "made", table)
        assert told in refused(*words)
        assert not (tmp_path / "sums").exists()
        spread.shutil.rmtree(tmp_path / "sums.blocks")
    (tmp_path / "made" / "0.parquet").write_bytes(b"no parquet")
    assert "look at the store and the file" in refused(*words)
    (tmp_path / "made" / "0.parquet").unlink()
    assert "has no file that ends in" in refused(*words)
    rest = ("--plan", counting_run, "--out", tmp_path / "sums")
    assert "does not exist" in refused("statistics", tmp_path / "none", *rest)
    assert "correct SOURCE" in refused("statistics", "nosuch://bucket", *rest)
    assert "unknown engine 'spark'" in refused("statistics", parquet, *rest, "--engine", "spark")
    assert "are for --engine ray" in refused("statistics", parquet, *rest, "--workers", 2)
    assert "name the run" in refused("statistics", parquet, "--out", tmp_path / "sums")
    assert "does not exist" in refused("encode", tmp_path / "photos.tar", *rest)


@pytest.mark.slow
def test_pictures_of_all_sources_become_the_same_features(
    own_photos, real_data, tmp_path, works, refused
):
    import pyarrow as pa

    path = own_photos
    run = load_run(path)
    some = [(png(tile), name) for name in ANIMALS[:3] for tile in tiles(real_data, name, 5, 24)]
    for name, content in (("cls", b"%d"), ("txt", b"%s"), ("json", b'{"label": "%s"}')):
        (tmp_path / name).mkdir()

        def label(animal, name=name, content=content):
            is_row = name == "cls"
            row = run.space.names.index(animal)
            return name, content % (row if is_row else animal.encode())

        archive(tmp_path / name / "0.tar", some[:7], label)
        archive(tmp_path / name / "1.tar", some[7:], label)
    for number, (picture, name) in enumerate(some):
        file = tmp_path / "folders" / name / f"{number:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture)
    (tmp_path / "parquet").mkdir()
    cells = [{"bytes": picture, "path": None} for picture, _ in some]
    written(tmp_path / "parquet", pa.table({"image": cells, "label": [name for _, name in some]}))
    images = np.concatenate(
        [
            run.first.reader.read(tmp_path / "folders" / n / f"{i:03}.png")
            for i, (_, n) in enumerate(some)
        ]
    )
    expected = run.first.encoded(images)
    counted = set()
    for source in ("cls", "txt", "json", "folders", "parquet"):
        out = tmp_path / f"of-{source}"
        done = works("encode", tmp_path / source, "--plan", path, "--out", out, "--json").answer
        assert done["samples"] == len(some)
        read = Folder.load(Folder.Settings(name="folder", root=out, part=True), 0)
        assert [read.space.names[c] for c in read.labels] == [name for _, name in some]
        np.testing.assert_allclose(read.features, expected, rtol=0, atol=2e-5)
        rest = ("--plan", path, "--out", tmp_path / f"sums-{source}", "--json")
        counted.add(works("statistics", out, *rest).answer["sums_sha256"])
    assert len(counted) <= 2  # two archives are two batches of pictures
    (tmp_path / "plan.toml").write_text(toml_text(run.experiment.to_dict()))
    works("encode", tmp_path / "folders", "--plan", tmp_path / "plan.toml", "--out", tmp_path / "e")
    once, again = (np.load(tmp_path / name / "features.npz") for name in ("of-folders", "e"))
    np.testing.assert_array_equal(once["features"], again["features"])
    run.model.save(tmp_path / "model.safetensors")
    words = ("encode", tmp_path / "folders", "--plan", tmp_path / "model.safetensors")
    assert "holds a model without its encoder" in refused(*words, "--out", tmp_path / "f")


MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.50.0
    Python: 3.12.1
This process on node 192.0.2.2 was started with:
    Ray: 2.55.1
    Python: 3.11.7
"""  # as Ray 2.55.1 raises it


@pytest.fixture
def fake_ray(monkeypatch):
    """Ray whose init notes its arguments, and raises ``problem`` if it is set."""
    fake = SimpleNamespace(problem="", asked=[], is_initialized=lambda: False)
    context = SimpleNamespace(get_current=SimpleNamespace)

    def init(**words):
        fake.asked.append(words)
        if fake.problem:
            raise RuntimeError(fake.problem)

    fake.init = init
    data = SimpleNamespace(DataContext=context)
    monkeypatch.setattr(ray_engine, "_ray", lambda: (fake, data))
    monkeypatch.setattr(ray_engine, "_check_reached", lambda address: None)
    monkeypatch.setattr(ray_engine, "_keep_others_out", lambda address: None)
    return fake


@pytest.mark.parametrize(
    ("problem", "code", "words"),
    [
        (MISMATCH, "other-ray", "has Ray 2.50.0 on Python 3.12.1, and this process has Ray 2.55.1"),
        ("no answer\nin a minute", "no-cluster", "cannot be used (no answer)"),
    ],
)
def test_a_cluster_of_another_ray_and_a_silent_one_are_told_apart(fake_ray, problem, code, words):
    fake_ray.problem = problem
    with pytest.raises(ExperimentError) as raised:
        ray_engine.RayEngine("192.0.2.2:6379")
    assert raised.value.code == code
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("given", "asked"), [("", "local"), ("192.0.2.2:6379", "192.0.2.2:6379")])
def test_without_an_address_no_cluster_that_stands_here_is_used(fake_ray, given, asked):
    ray_engine.RayEngine(given)
    assert fake_ray.asked[0]["address"] == asked
