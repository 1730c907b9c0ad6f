"""``--engine ray``: real processes on one machine, three nodes of which one is killed."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import noted_tasks
from fedunseen import Statistics, load_run
from fedunseen.core.errors import MissingDependencyError
from fedunseen.core.toml import toml_text
from fedunseen.deploy.engines import ray_engine, spread
from fedunseen.deploy.engines.engine import engine_of
from fedunseen.experiment.deal import deal
from fedunseen.experiment.party_statistics import merge_files
from fedunseen.research.sweep.runner import run_sweep
from fedunseen.research.sweep.schema import read_sweep
from noted_tasks import Noted, lines, workers
from processes import is_running
from same import noted

pytestmark = pytest.mark.slow
GUARD = 900.0


@pytest.fixture
def ray(monkeypatch):
    """Ray, where it is installed; its workers find the modules of tests."""
    found = pytest.importorskip("ray", reason="pip install 'fedunseen[ray]'")
    place = [str(Path(noted_tasks.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(place))
    yield found
    found.shutdown()


@pytest.fixture
def nodes(ray):
    """Three nodes of a cluster, one processor each; the first is the head."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 2**27}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    cluster.others = [cluster.add_node(**small) for _ in range(2)]
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def expected(counting_run, run_samples):
    return Statistics.plan(load_run(counting_run).model).add(
        run_samples[0], run_samples[1].tolist()
    )


def test_a_node_that_is_killed_costs_its_blocks_in_flight_alone(
    nodes, counting_run, parquet, expected, tmp_path, monkeypatch
):
    journal = tmp_path / "journal"
    make = partial(Noted, journal=str(journal), pause=0.5, together=3)
    monkeypatch.setattr(spread, "Counting", make)
    killed = []

    def kill():
        began = time.monotonic()
        while time.monotonic() - began < GUARD:
            if len(workers(journal)) == 3:  # each node has done a block
                victim = nodes.others[0]
                nodes.remove_node(victim, allow_graceful=False)
                killed.extend(lines(journal))
                return
            time.sleep(0.1)

    killer = threading.Thread(target=kill)
    killer.start()
    engine = engine_of("ray", nodes.address)
    total = spread.statistics(counting_run, str(parquet), tmp_path / "sums", engine)
    killer.join()
    engine.close()
    assert killed
    assert total.sha256 == expected.sha256
    assert total.sums_sha256 == load_run(counting_run).result["sums_sha256"]
    noted("Ray", "one party's samples on three nodes, one of them killed", total.sums_sha256)
    notes = lines(journal)
    assert len({name for what, name, *_ in notes if what == "done"}) == 15
    begun = [(name, process) for what, name, process, _ in notes if what == "begun"]
    gone = {process for _, process in begun if not is_running(process)}
    again = [name for name, _ in begun if [n for n, _ in begun].count(name) > 1]
    done = {name for what, name, process, _ in killed if what == "done"}
    assert not done & set(again)  # what was whole before the kill was not done again
    assert len(set(again)) <= 1  # of one node, that does one block at a time
    assert gone or not again


def test_a_cluster_of_its_own_has_the_sums_of_a_loop(
    ray, counting_run, parquet, expected, tmp_path, works
):
    words = ("--plan", counting_run, "--engine", "ray", "--workers", 2, "--json")
    done = works("statistics", parquet, *words, "--out", tmp_path / "sums")
    assert done.answer["sha256"] == expected.sha256
    assert "15 of 15 blocks" in done.err


OWNER = """
import os, subprocess, sys
from fedunseen.deploy.engines.ray_engine import RayEngine

engine = RayEngine("", 1)
code = f'''
import ray
ray.init(address={engine.ray.get_runtime_context().gcs_address!r}, log_to_driver=False)
@ray.remote(num_cpus=0)
def called():
    return 2
print("ran", ray.get(called.remote()))
'''
for name in "owner", "stranger":
    env = {k: v for k, v in os.environ.items() if name == "owner" or not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env | {"HOME": sys.argv[1]}, capture_output=True, text=True
    )
    print(name, done.stdout.strip(), "ConnectionError" in done.stderr)
engine.close()
"""


def test_a_cluster_of_its_own_runs_no_code_of_strangers(ray, tmp_path):
    words = [sys.executable, "-W", "ignore", "-c", OWNER, str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert "owner ran 2 False" in done.stdout
    assert "stranger  True" in done.stdout


def test_what_a_worker_refuses_and_a_cluster_that_is_not_there_are_one_sentence(
    ray, counting_run, parquet, tmp_path, refused, command
):
    pq = pytest.importorskip("pyarrow.parquet", reason="pip install 'fedunseen[arrow]'")
    words = ("statistics", parquet, "--plan", counting_run, "--out", tmp_path / "sums")
    gone = (*words, "--engine", "ray", "--address")
    assert "start one with `ray start --head`" in refused(*gone, "127.0.0.1:1")
    file = parquet / "1.parquet"
    table = pq.read_table(file)
    names = ["no such", *table["label"].to_pylist()[1:]]
    pq.write_table(table.set_column(1, "label", [names]), file, row_group_size=32)
    done = command(*words, "--engine", "ray", "--workers", 1)
    told = done.err.splitlines()
    assert done.code == 2
    assert "14 of 15 blocks" in told  # the other blocks are done
    assert str(file) in told[-1]
    assert "'no such' is no class of the plan" in told[-1]
    assert not (tmp_path / "sums").exists()


def test_parties_on_ray_add_up_to_the_digest_of_the_run(ray, counting_run, tmp_path):
    parties = ("north", "south", "west")
    deal(load_run(counting_run).experiment, tmp_path / "data", parties)
    engine = engine_of("ray", workers=1)
    files = [tmp_path / f"{name}.statistics" for name in parties]
    for name, file in zip(parties, files, strict=True):
        spread.statistics(counting_run, str(tmp_path / "data" / name), file, engine)
    engine.close()
    total = merge_files(files, tmp_path / "total")
    assert total.sums_sha256 == load_run(counting_run).result["sums_sha256"]


def test_a_sweep_on_a_cluster_has_the_results_of_one_process(ray, tmp_path, works):
    base = {"data.train_per_class": 4, "data.test_per_class": 2, "partition.clients": 2}
    axes = {"method.shrinkage": [0.1, 0.5]}
    text = toml_text({"title": "t", "base": "digit-pairs-gaussian"})
    text += "".join(f"experiment.{key} = {value}\n" for key, value in base.items())
    text += 'experiment.evaluation = { selection = "last", embedding = false }\n'
    text += "".join(f'[axes]\n"{key}" = {values}\n' for key, values in axes.items())
    (tmp_path / "small.toml").write_text(text)
    digests = []
    for name, words in (("here", ()), ("there", ("--engine", "ray"))):
        out = tmp_path / name
        done = works("sweep", tmp_path / "small.toml", "--out", out, "--json", *words).answer
        assert done["done"] == 2
        digests.append(
            [load_run(out / cell["run"]).result["sums_sha256"] for cell in done["cells"]]
        )
    assert digests[0] == digests[1]


SWEEP = """
title = "t"
base = "digit-pairs-gaussian"
experiment.data = { train_per_class = 4, test_per_class = 2 }
experiment.partition.clients = 2
experiment.evaluation = { selection = "last", embedding = false }
[axes]
"method.shrinkage" = [0.1, 0.2, 0.3, 0.4]
"""


class Held(Executor):
    """An executor whose calls wait for a file."""

    def __init__(self, executor, *words):
        self.executor, self.words = executor, words

    def submit(self, fn, /, *args):
        return self.executor.submit(noted_tasks.held, *self.words, fn, *args)


@pytest.fixture
def kill_one(nodes, tmp_path):
    """Kill a node once each of three is at a call, and let the other calls go on."""
    journal, gate = str(tmp_path / "journal"), str(tmp_path / "gate")
    calls = []

    def kill():
        processes = set()
        while len(processes) < 3:
            time.sleep(0.1)
            processes = {process for _, _, process, _ in lines(Path(journal))}
        calls.extend(lines(Path(journal)))
        nodes.remove_node(nodes.others[0], allow_graceful=False)
        while all(map(is_running, processes)):
            time.sleep(0.1)
        Path(gate).touch()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    yield journal, gate, calls
    killer.join(GUARD)


def test_a_node_that_is_killed_costs_a_sweep_its_cell_alone(nodes, kill_one, tmp_path):
    journal, gate, calls = kill_one
    (tmp_path / "small.toml").write_text(SWEEP)
    sweep = read_sweep(tmp_path / "small.toml")
    with ray_engine.RayExecutor(nodes.address) as executor:
        rows = run_sweep(sweep, tmp_path / "out", executor=Held(executor, journal, gate))
        assert len(calls) == 3  # one on each node
        assert sorted(row.status for row in rows) == ["done", "done", "done", "failed"]
        (problem,) = (row.problem for row in rows if row.problem)
        assert "its worker has failed: " in problem
        assert "node" in problem
        begun = len(lines(Path(journal)))
        rows = run_sweep(
            sweep, tmp_path / "out", resume=True, executor=Held(executor, journal, gate)
        )
    assert len(lines(Path(journal))) == begun + 1 == 5  # the one that failed is run again
    run_sweep(sweep, tmp_path / "here")
    for row in rows:
        runs = [load_run(tmp_path / name / row.run) for name in ("out", "here")]
        digests = {run.result["sums_sha256"] for run in runs}
        assert len(digests) == 1


def test_a_node_that_is_killed_changes_no_digest_of_a_tree(nodes, kill_one, monkeypatch, capsys):
    journal, gate, calls = kill_one
    spec = spec_from_file_location("tree", Path(__file__).parents[2] / "benchmarks/scale/tree.py")
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tree", module)
    spec.loader.exec_module(module)
    import_module("ray.cloudpickle").register_pickle_by_value(module)  # workers lack the file
    first_level = module.first_level

    def first(*words):
        return noted_tasks.held(journal, gate, first_level, *words)

    monkeypatch.setattr(module, "first_level", first)
    tree = module.Tree(30, 10, 8, 10, 4, False)
    assert module.simulate(tree, lambda: module.on_ray(tree, nodes.address, 0))
    assert "the same sums_sha256" in capsys.readouterr().out
    assert len(calls) == 3
    again = len(lines(Path(journal))) - tree.members(1)
    assert again >= 1  # what the node was at


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"fedunseen\[ray\]"):
        engine_of("ray")


def test_another_version_on_a_node_is_refused():
    actor = ray_engine._Actor(lambda: None, "0.0.1")
    answer = actor({"item": ["1"]})["answer"][0]
    assert "install the same version everywhere" in answer
