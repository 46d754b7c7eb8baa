"""Two machines (tests/two_machines.py) with torchrun on each, as docs/cluster.md starts them. Their folder
for runs is not shared. That a machine is lost and comes back is tested in test_parallel_kill.py."""

import json
import subprocess

import pytest

from machines import CABLE, rendezvous, two_machines
from test_parallel_train import RECIPE, assert_same_run
from torchrun import environment_of_ranks, torchrun
from training import pom_train, write_recipe

pytestmark = pytest.mark.usefixtures("extension")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of results, and the own folders of both machines."""
    folder = tmp_path_factory.mktemp("machines")
    recipe = write_recipe(folder, RECIPE)
    own = folder / "own"
    own.mkdir()

    def job(name, ranks, run):
        return {
            "name": name,
            "ranks": ranks,
            "words": ["train", str(recipe), "-o", str(own / run), "--quiet"],
        }

    rounds = [
        [job("both", [0, 1], "run")],
        [job("second", [1], "other")],
        [job("elsewhere", [0, 1], "other")],
    ]
    path = folder / "rounds.json"
    path.write_text(json.dumps(rounds))
    with two_machines(own) as machines:
        words = torchrun(1, path, agent=rendezvous("2"), module="trainings_program")
        env, pipes = environment_of_ranks(), {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        agents = [subprocess.Popen(m.command(*words), env=env, text=True, **pipes) for m in machines]
        said = [agent.communicate(timeout=300)[0] for agent in agents]
        assert [agent.returncode for agent in agents] == [0, 0], said
        yield folder, [machine.path(own) for machine in machines]


def ended(folder, name, rank):
    return json.loads((folder / f"{name}.{rank}.json").read_text())


def test_two_machines_give_the_bits_of_one(runs, tmp_path):
    folder, (first, second) = runs
    assert [ended(folder, "both", rank)["code"] for rank in (0, 1)] == [0, 0], ended(folder, "both", 0)
    alone = pom_train(folder / "tiny.toml", "-o", tmp_path / "run", "--quiet")
    assert alone.returncode == 0, alone.stderr
    assert_same_run(first / "run", tmp_path / "run")
    assert not (second / "run").exists()  # only the first rank writes


def test_ranks_meet_by_the_network_that_joins_them(runs):
    """Also on the machine for which its own name, that of the rendezvous, is an address of nobody else's."""
    assert [ended(runs[0], "both", rank)["interface"] for rank in (0, 1)] == [CABLE, CABLE]


def test_a_run_that_another_machine_has_is_not_started_over(runs):
    """As after a restart that makes another machine the first."""
    folder, (first, second) = runs
    assert ended(folder, "second", 0)["code"] == 0
    for rank in (0, 1):
        result = ended(folder, "elsewhere", rank)
        assert result["code"] != 0
        assert "rank 1 finds this run there at step 8, and the first rank" in result["said"], result["said"]
    assert (second / "other").is_dir() and not (first / "other").exists()
