"""Training on several ranks: the bits of one rank on 2 and 4, whatever they divide among them; checkpoints
that any number of ranks goes on from; and what happens when one of them fails."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from torchrun import environment_of_ranks, run_ranks, torchrun
from training import checkpoints, differences, pom_train, write_recipe

RECIPE = """
[run]
steps = 8
seed = 5
threads = 1
[data]
size = [8, 8]
validation = 80
workers = 1
[network]
dim = 32
depth = 3
patch = 2
[batch]
size = 8
[optimizer]
lr = 2e-3
warmup = 4
[ema]
decay = 0.9
[log]
every = 2
validate_every = 4
checkpoint_every = 2
keep = 9
"""
MUON = ["--set", "optimizer.kind=muon"]
pytestmark = pytest.mark.usefixtures("extension")


def shard(what):
    return ["--set", f"parallel.shard={what}"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("recipe"), RECIPE)


@pytest.fixture(scope="module")
def alone(recipe, tmp_path_factory):
    """Runs of one process without torchrun, by optimizer."""
    folder = tmp_path_factory.mktemp("alone")
    for name, more in (("adamw", []), ("muon", MUON)):
        result = pom_train(recipe, "-o", folder / name, "--quiet", *more)
        assert result.returncode == 0, result.stderr
    return folder


def figures(run):
    """What the log says of losses, without what depends on the machine."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    wanted = ("step", "loss", "norm", "rate", "loss_by_time", "validation_loss")
    return [{key: line[key] for key in wanted if key in line} for line in lines]


def assert_same_run(one, other):
    assert [p.name for p in checkpoints(one)] == [p.name for p in checkpoints(other)]
    assert not differences(one, other)
    assert (one / "model" / "model.safetensors").read_bytes() == (
        other / "model" / "model.safetensors"
    ).read_bytes()
    assert figures(one) == figures(other)


CASES = [
    pytest.param(2, [], "adamw", id="2 ranks"),
    pytest.param(4, [], "adamw", id="4 ranks"),
    pytest.param(2, shard("optimizer"), "adamw", id="2 ranks, optimizer divided"),
    pytest.param(4, shard("gradients"), "adamw", id="4 ranks, gradients divided"),
    pytest.param(2, [*shard("optimizer"), *MUON], "muon", id="2 ranks, muon divided"),
    pytest.param(4, [*shard("gradients"), *MUON], "muon", id="4 ranks, muon and gradients divided"),
    pytest.param(2, shard("parameters"), "adamw", id="2 ranks, parameters divided"),
    pytest.param(4, [*shard("parameters"), *MUON], "muon", id="4 ranks, muon and parameters divided"),
    pytest.param(1, [], "adamw", id="a group of one"),
]


@pytest.mark.parametrize(("ranks", "more", "kind"), CASES)
def test_any_number_of_ranks_gives_the_bits_of_one(ranks, more, kind, recipe, alone, tmp_path):
    result = run_ranks(ranks, "train", recipe, "-o", tmp_path / "run", "--quiet", *more)
    assert result.returncode == 0, result.stderr
    assert_same_run(tmp_path / "run", alone / kind)


def test_a_gradient_that_is_not_sent_is_noticed(recipe, alone, tmp_path):
    """The control of the test above: one bucket of one step stays at home."""
    env = environment_of_ranks(POM_FAILPOINT="gradient_sum.send:40:EIO")
    result = run_ranks(2, "train", recipe, "-o", tmp_path / "run", "--quiet", env=env)
    assert result.returncode == 0, result.stderr
    assert figures(tmp_path / "run") != figures(alone / "adamw")


def test_a_run_changes_its_number_of_ranks(recipe, alone, tmp_path):
    run = tmp_path / "run"
    first = run_ranks(4, "train", recipe, "-o", run, "--quiet", "--set", "run.steps=4")
    assert first.returncode == 0, first.stderr
    second = run_ranks(2, "train", run, "--resume", "--quiet", "--set", "run.steps=6", *shard("optimizer"))
    assert second.returncode == 0, second.stderr
    third = pom_train(run, "--resume", "--quiet", "--set", "run.steps=8")
    assert third.returncode == 0, third.stderr
    assert not differences(run, alone / "adamw")


@pytest.mark.parametrize(
    ("ranks", "more"), [(2, []), (4, shard("optimizer"))], ids=["2 ranks", "2 by 2 ranks"]
)
def test_ranks_share_the_tokens_of_an_image(ranks, more, recipe, alone, tmp_path):
    """Sums over tokens in two halves: equal up to rounding."""
    words = ["--set", "parallel.sequence=2", "--set", "run.precision=fp64", *more]
    result = run_ranks(ranks, "train", recipe, "-o", tmp_path / "run", "--quiet", *words)
    assert result.returncode == 0, result.stderr
    whole = pom_train(recipe, "-o", tmp_path / "whole", "--quiet", "--set", "run.precision=fp64")
    assert whole.returncode == 0, whole.stderr
    for a, b in zip(figures(tmp_path / "run"), figures(tmp_path / "whole"), strict=True):
        for key in a.keys() - {"loss_by_time"}:
            assert a[key] == pytest.approx(b[key], rel=1e-6), key


def test_gpus_starts_torchrun(recipe, alone, tmp_path):
    result = pom_train(
        recipe, "-o", tmp_path / "run", "--gpus", 2, "--json", env=environment_of_ranks(PYTHONPATH="")
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.strip().splitlines()[-1])["end"] == "finished"
    assert_same_run(tmp_path / "run", alone / "adamw")


# ---- failures ----


def start(ranks, *arguments, env=None, agent=("--standalone",)):
    return subprocess.Popen(
        torchrun(ranks, *arguments, agent=agent),
        env=env or environment_of_ranks(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def workers_of(process, ranks):
    """The processes of the ranks, by their number."""
    found = {}
    children = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True
    ).stdout.split()
    for pid in children:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = dict(v.split(b"=", 1) for v in file.read().split(b"\0") if b"=" in v)
        except OSError:
            continue
        if b"RANK" in variables:
            found[int(variables[b"RANK"])] = int(pid)
    return found if len(found) == ranks else {}


def wait_for_step(run, step, seconds=120):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if any(int(re.search(r"step_(\d+)", p.name)[1]) >= step for p in checkpoints(run)):
            return
        time.sleep(0.02)
    raise AssertionError(f"no checkpoint of step {step} after {seconds} s")


LONG = ["--set", "run.steps=400", "--set", "log.validate_every=0"]


@pytest.fixture(scope="module")
def alone_long(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone_long")
    result = pom_train(recipe, "-o", folder / "run", "--quiet", *LONG)
    assert result.returncode == 0, result.stderr
    return folder / "run"


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_ranks_are_started_again_and_the_run_goes_on(victim, recipe, alone_long, tmp_path):
    run = tmp_path / "run"
    agent = ("--standalone", "--max-restarts", "3")
    process = start(2, "train", recipe, "-o", run, "--quiet", *LONG, agent=agent)
    for step in (20, 120):
        wait_for_step(run, step)
        os.kill(workers_of(process, 2)[victim], signal.SIGKILL)
        time.sleep(0.5)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert not differences(run, alone_long)


def test_a_rank_that_is_gone_is_named(recipe, tmp_path):
    run = tmp_path / "run"
    process = start(2, "train", recipe, "-o", run, "--quiet", *LONG)
    wait_for_step(run, 4)
    began = time.monotonic()
    os.kill(workers_of(process, 2)[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "rank 1 is gone" in output, output
    assert time.monotonic() - began < 60


def test_a_rank_that_does_not_answer_ends_the_others_in_time(recipe, tmp_path):
    run = tmp_path / "run"
    process = start(2, "train", recipe, "-o", run, "--quiet", *LONG, "--set", "parallel.timeout=3")
    wait_for_step(run, 4)
    stopped = workers_of(process, 2)[1]
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(6)
    os.kill(stopped, signal.SIGCONT)  # for torchrun, which would wait for it for half a minute
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Timed out" in output and "rank 1 is gone" in output, output


def test_all_ranks_stop_at_one_step_and_save(recipe, tmp_path):
    run = tmp_path / "run"
    process = start(2, "train", recipe, "-o", run, *LONG)
    wait_for_step(run, 4)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    saved = re.search(r"stopped and saved at step (\d+)", output)
    assert saved, output
    assert checkpoints(run)[-1].name == f"step_{int(saved[1]):08d}.safetensors"


def test_another_recipe_on_one_rank_is_refused(recipe, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(RECIPE.replace("dim = 32", "dim = 64"))
    script = tmp_path / "two.sh"
    script.write_text(
        f'[ "$RANK" = 1 ] && r={other} || r={recipe}\nexec "$PY" -m libpom train $r -o {tmp_path}/run -q\n'
    )
    words = torchrun(2)[:-2]
    result = subprocess.run(
        [*words, "--no-python", "bash", str(script)],
        env=environment_of_ranks(PY=words[0]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode != 0
    assert "network.dim: 32 on rank 0, 64 on rank 1" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_full_disk_ends_all_and_says_so(recipe, tmp_path):
    env = environment_of_ranks(POM_FAILPOINT="atomic_file.sync:9:ENOSPC")
    result = run_ranks(2, "train", recipe, "-o", tmp_path / "run", "--quiet", env=env)
    assert result.returncode != 0
    assert "No space left on device" in result.stderr
    assert re.search(r"rank 0 left: .*No space left on device", result.stderr), result.stderr


def test_a_batch_that_ranks_do_not_divide_is_refused(recipe, tmp_path):
    result = run_ranks(3, "train", recipe, "-o", tmp_path / "run", "--quiet")
    assert result.returncode != 0
    assert "batch.size: expected a multiple of the 3 ranks that share it, got 8" in result.stderr
    assert not (tmp_path / "run").exists()


def test_other_numbers_of_ranks_train_too(recipe, tmp_path):
    """Three ranks: the same batches, sums in another order, and it is said."""
    more = ["--set", "batch.size=12", "--set", "run.steps=4"]
    result = run_ranks(3, "train", recipe, "-o", tmp_path / "three", *more)
    assert result.returncode == 0, result.stderr
    assert "does not give the bits of one rank" in result.stderr
    one = pom_train(recipe, "-o", tmp_path / "one", "--quiet", *more)
    assert one.returncode == 0, one.stderr
    for a, b in zip(figures(tmp_path / "three"), figures(tmp_path / "one"), strict=True):
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-4)
