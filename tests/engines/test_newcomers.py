"""A finished run that is to go on with a party more stays finished until that party has sent its
statistics.
"""

import shutil

import pytest

from fedunseen import load_run
from fedunseen.core.errors import QuorumError
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.existing_federation import coordinated
from fedunseen.deploy.remote.party import Party
from fedunseen.deploy.rosters import read
from fedunseen.deploy.site import Owner, Site
from fedunseen.federation.run_directory import RunDirectory
from links import session
from small_federation import NAMES, Recorder, write_all

pytestmark = pytest.mark.usefixtures("quick_coordinator")
EXPERIMENT = """
[data]
name = "folder"
root = "{root}"
part = true
quantization = 8
features = ["centre", "l2"]
[method]
name = "gaussian"
[evaluation]
selection = "last"
theory = false
embedding = false
[engine]
name = "nvflare"
patience = 0.2
"""
FOUR = (*NAMES, "east")


class Coordinated:
    """Jobs of one experiment into one run directory, each with processes of its own."""

    def __init__(self, folder):
        self.folder, self.run, self.jobs = folder, folder / "run", 0
        self.data = write_all(folder / "data")
        shutil.copytree(self.data / "north", self.data / "east")
        self.source = folder / "experiment.toml"
        self.source.write_text(EXPERIMENT.format(root=self.data / "coordinator"))

    def job(self, names, present, limit=None):
        """Run a job of these parties, of which some are there; ``limit`` is of the last one."""
        self.jobs += 1
        parties = {}
        for name in present:
            owner = Owner(self.data / name, epsilon_limit=limit if name == present[-1] else None)
            site = Site(self.folder / f"state{self.jobs}" / name, owner)
            parties[name] = Party(PartyData(self.data / name).prepare, site)
        coordinated(session(Recorder(parties), names), str(self.source), {}, self.run)

    def files(self):
        """Return the content of what a run is."""
        paths = (path for path in self.run.rglob("*") if path.is_file() and path.name != ".lock")
        names = {str(path.relative_to(self.run)): path.read_bytes() for path in paths}
        return {n: b for n, b in names.items() if not n.startswith(("engine/", "further/"))}


@pytest.mark.slow
def test_a_newcomer_that_is_away_or_refuses_leaves_the_result(tmp_path):
    """The attack on availability: one name more in a list cost a run its result for good."""
    jobs = Coordinated(tmp_path)
    jobs.job(NAMES, NAMES)
    before = jobs.files()
    assert "result.json" in before
    assert "confidence/counts.safetensors" in before
    for present, limit in ((NAMES, None), (FOUR, 1.0)):
        with pytest.raises(QuorumError):
            jobs.job(FOUR, present, limit)
        assert RunDirectory(jobs.run).further_manifest.exists()
        assert jobs.files() == before
        assert len(load_run(jobs.run).metrics) == 1
    jobs.job(NAMES, NAMES)  # the list of before: the run is complete
    assert not RunDirectory(jobs.run).further_manifest.exists()
    assert jobs.files() == before
    jobs.job(FOUR, ("east",))  # the others are not asked
    assert not RunDirectory(jobs.run).further_manifest.exists()
    assert [line["participants"] for line in load_run(jobs.run).metrics] == [[0, 1, 2], [3]]
    assert [version.parties for version in read(jobs.run)] == [NAMES, FOUR]
    assert jobs.files()["result.json"] != before["result.json"]
