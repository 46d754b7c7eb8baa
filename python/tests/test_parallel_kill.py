"""Trainings on 2 and 4 ranks of one machine or two, whose ranks are killed (-9) at random moments, or a whole
machine with its agent: torchrun starts them again, and the run ends with the bits of one that nobody touched.

POM_KILLS=20 kills on all layouts, and no more often than that; else it is a kill on two of them.
POM_KILL_SEED draws other moments.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time

import pytest

from machines import rendezvous, two_machines
from test_parallel_train import RECIPE, assert_same_run
from torchrun import environment_of_ranks, newest, torchrun, wait_for_step, wait_until, workers_of
from training import differences, pom_train, write_recipe

STEPS = 120
KILLS = min(int(os.environ.get("POM_KILLS", "0")), 20)
SEED = os.environ.get("POM_KILL_SEED", "1")
RESTARTS = ("--max-restarts", "100")
ELASTIC = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1}  # docs/cluster.md says why
pytestmark = pytest.mark.usefixtures("extension")


def share(number):
    """Of the kills for each of five layouts."""
    return KILLS // 5 + (number < KILLS % 5)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """The recipe, and the run of one process."""
    folder = tmp_path_factory.mktemp("untouched")
    text = RECIPE.replace("steps = 8", f"steps = {STEPS}").replace("validate_every = 4", "validate_every = 0")
    for field in ("every = 2", "checkpoint_every = 2"):
        text = text.replace(f"\n{field}\n", f"\n{field[:-1]}10\n")
    text = text.replace("dim = 32\ndepth = 2", "dim = 16\ndepth = 1")
    recipe = write_recipe(folder, text)
    result = pom_train(recipe, "-o", folder / "run", "--quiet")
    assert result.returncode == 0, result.stderr
    return recipe, folder / "run"


class Job:
    """A training, by one torchrun or one on each of two machines."""

    def __init__(self, words, ranks, agent, machines=(None,), **variables):
        self.words, self.ranks, self.agent, self.machines = words, ranks, agent, machines
        self.env = environment_of_ranks(**variables)
        self.agents, self.said = {}, {}
        self.killed = set()
        for number in range(len(machines)):
            self.start(number)

    def start(self, number):
        machine = self.machines[number]
        command = torchrun(self.ranks, *self.words, agent=self.agent)
        self.said[number] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.agents[number] = subprocess.Popen(
            machine.command(*command) if machine else command,
            env=self.env,
            stdout=self.said[number],
            stderr=subprocess.STDOUT,
        )

    def output(self, number=0):
        self.said[number].seek(0)
        return self.said[number].read()

    def workers(self):
        """By their ranks, those that live."""
        return {rank: pid for agent in self.agents.values() for rank, pid in workers_of(agent).items()}

    def has_ended(self):
        return all(agent.poll() is not None for agent in self.agents.values())

    def kill_rank(self, chance):
        """Which one; None where none is left."""
        workers = self.workers()
        if not workers:
            return None
        victim = chance.choice(sorted(workers))
        self.killed.add(workers[victim])
        with contextlib.suppress(ProcessLookupError):  # it has ended in this moment
            os.kill(workers[victim], signal.SIGKILL)
        return victim

    def lose(self, number):
        """A machine without power: its agent and all its ranks at once."""
        agent = self.agents.pop(number)
        for pid in [agent.pid, *workers_of(agent).values()]:
            os.kill(pid, signal.SIGKILL)
        agent.wait()

    def finish(self):
        for number, agent in self.agents.items():
            assert agent.wait(timeout=300) == 0, self.output(number)

    def close(self):
        for number in list(self.agents):
            if self.agents[number].poll() is None:
                self.lose(number)


@contextlib.contextmanager
def job(*arguments, **options):
    made = Job(*arguments, **options)
    try:
        yield made
    except BaseException:
        for number in made.said:
            print(f"torchrun {number}:\n{made.output(number)}")
        raise
    finally:
        made.close()


def kill_at_step(job, run, chance):
    step = newest(run) + chance.randint(1, STEPS // 3)
    wait_until(f"step {step}", lambda: job.has_ended() or newest(run) >= min(step, STEPS))
    time.sleep(chance.uniform(0, 0.1))
    return job.kill_rank(chance)


def kill_at_start(job, chance):
    """Some time after all ranks have been started: while they load, meet, or save first."""
    everybody = job.ranks * len(job.machines)

    def all_are_there():
        return len(set(job.workers().values()) - job.killed) == everybody

    wait_until("all ranks", lambda: job.has_ended() or all_are_there())
    time.sleep(chance.uniform(0, 6))
    return job.kill_rank(chance)


def kill_often(untouched, folder, count, ranks, agent, machines=(None,)):
    recipe, whole = untouched
    chance = random.Random(f"{SEED} {ranks} {len(machines)}")
    kills = rounds = 0
    while kills < count:
        run = folder / f"round_{rounds}"
        with job(["train", recipe, "-o", run, "--quiet"], ranks, agent, machines) as training:
            first = victim = kill_at_step(training, run, chance)
            while victim is not None:
                kills += 1
                if kills == count:
                    break
                early = chance.random() < 0.4
                victim = kill_at_start(training, chance) if early else kill_at_step(training, run, chance)
            training.finish()
            said = "".join(training.output(number) for number in training.said)
        assert first is None or f"rank {first} is gone" in said, said
        assert_same_run(run, whole)
        assert not list(run.rglob(".pom-tmp-*")), "temporaries of killed processes were left"
        rounds += 1
        assert rounds <= 2 * count, "runs end before anything is killed"
    print(f"{kills} kills in {rounds} runs")


@pytest.mark.parametrize(("ranks", "count"), [(2, share(0) or 1), *([(4, share(1))] if share(1) else [])])
def test_killed_ranks_are_started_again_and_the_run_goes_on(ranks, count, untouched, tmp_path):
    kill_often(untouched, tmp_path, count, ranks, ("--standalone", *RESTARTS))


if share(2):

    @pytest.mark.parametrize(("ranks", "count"), [(1, share(2)), *([(2, share(3))] if share(3) else [])])
    def test_killed_ranks_of_two_machines(ranks, count, untouched, tmp_path):
        with two_machines() as machines:
            kill_often(untouched, tmp_path, count, ranks, rendezvous("2", *RESTARTS), machines)


@pytest.mark.parametrize("number", range(share(4) or 1))
def test_a_machine_is_lost_and_comes_back(number, untouched, tmp_path):
    """The one that is left goes on alone. While it waits for the other it does not get to the end: it is
    stopped for that time."""
    recipe, whole = untouched
    run = tmp_path / "run"
    words, agent = ["train", recipe, "-o", run, "--quiet"], rendezvous("1:2", *RESTARTS)
    with contextlib.ExitStack() as stack:
        machines = stack.enter_context(two_machines())
        training = stack.enter_context(job(words, 1, agent, machines, LOGLEVEL="INFO", **ELASTIC))
        wait_for_step(run, random.Random(f"{SEED} {number}").randint(1, STEPS // 3))
        training.lose(1)
        wait_for_step(run, newest(run) + 1)
        (alone,) = workers_of(training.agents[0]).values()
        os.kill(alone, signal.SIGSTOP)
        known = training.output().count("Detected 1 new nodes")
        training.start(1)
        wait_until("the machine is back", lambda: training.output().count("Detected 1 new nodes") > known)
        os.kill(alone, signal.SIGCONT)
        training.finish()
    assert differences(run, whole) == []
    model = "model/model.safetensors"
    assert (run / model).read_bytes() == (whole / model).read_bytes()
    starts = json.loads((run / "run.json").read_text())
    assert [start["ranks"] for start in starts] == [2, 1, 2]
