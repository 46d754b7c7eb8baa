"""What a training on several ranks says and leaves when one of them does not come, hangs, runs on a full disk
or comes from another build. More of this is in test_parallel_train.py (a step that is not a number, a rank
without memory, another recipe) and test_parallel_kill.py (a rank is killed, a machine lost)."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from libpom import _library
from test_parallel_train import RECIPE
from torchrun import environment_of_ranks, run_ranks, start, torchrun, wait_for_step, workers_of
from training import checkpoints, differences, pom_train, read_checkpoint, write_recipe

# Longer than any test waits.
ENDLESS = ["--set", "run.steps=1000000", "--set", "log.validate_every=0"]
pytestmark = pytest.mark.usefixtures("extension")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("recipe"), RECIPE)


def test_a_rank_that_does_not_come_is_missed(recipe, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    first = {
        "RANK": 0,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    result = subprocess.run(
        [sys.executable, "-m", "libpom", "train", str(recipe), "-o", str(tmp_path / "run")],
        env=environment_of_ranks(**first, LIBPOM_TIMEOUT=1),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    assert re.search(
        r"rank 0 on \S+: expected all 2 ranks to meet within 1 s \(LIBPOM_TIMEOUT\)", result.stderr
    )
    assert "Traceback" not in result.stderr and not (tmp_path / "run").exists()


def test_a_rank_that_does_not_answer_ends_the_others_in_time(recipe, tmp_path):
    """Wherever they wait for it, also in the group that shares tokens."""
    run = tmp_path / "run"
    words = [*ENDLESS, "--set", "parallel.timeout=4", "--set", "parallel.sequence=2"]
    process = start(2, "train", recipe, "-o", run, "--quiet", *words)
    wait_for_step(run, 4)
    workers = workers_of(process)
    os.kill(workers[1], signal.SIGSTOP)
    # The first ends by itself. Then the other may go on: torchrun would wait for it for half a minute.
    until = time.monotonic() + 120
    while time.monotonic() < until and 0 in workers_of(process):
        time.sleep(0.05)
    os.kill(workers[1], signal.SIGCONT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Timed out" in output and "rank 1 is gone" in output, output


def test_all_ranks_stop_at_one_step_and_save(recipe, tmp_path):
    run = tmp_path / "run"
    process = start(2, "train", recipe, "-o", run, *ENDLESS)
    wait_for_step(run, 4)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    saved = re.search(r"stopped and saved at step (\d+)", output)
    assert saved, output
    assert checkpoints(run)[-1].name == f"step_{int(saved[1]):08d}.safetensors"


def test_a_full_disk_ends_all_and_keeps_what_was_there(recipe, tmp_path):
    run = tmp_path / "run"
    env = environment_of_ranks(POM_FAILPOINT="atomic_file.sync:16:ENOSPC")
    result = run_ranks(2, "train", recipe, "-o", run, "--quiet", env=env)
    assert result.returncode != 0
    assert re.search(r"failed on rank 1: rank 0 left: .*No space left on device", result.stderr), (
        result.stderr
    )
    assert not list(run.rglob(".pom-tmp-*"))
    kept = checkpoints(run)
    assert kept and kept[-1].name != "step_00000008.safetensors"
    for path in kept:
        read_checkpoint(path)
    again = pom_train(run, "--resume", "--quiet")  # there is room again
    assert again.returncode == 0, again.stderr
    whole = pom_train(recipe, "-o", tmp_path / "whole", "--quiet")
    assert whole.returncode == 0, whole.stderr
    assert differences(run, tmp_path / "whole") == []


@pytest.fixture(scope="module")
def another_build(tmp_path_factory):
    """The same library, which says that another compiler made it."""
    folder = tmp_path_factory.mktemp("build")
    compiler = re.search(r"[(, ]((?:g\+\+|clang) [\d.]+)", _library.build()["line"])[1].encode()
    library = os.path.realpath(_library.path)
    with open(library, "rb") as file:
        data = file.read()
    assert data.count(compiler + b"\0") == 1
    (folder / "libpom.so").write_bytes(data.replace(compiler + b"\0", compiler[:-1] + b"x\0"))
    shutil.copy(os.path.join(os.path.dirname(library), "libpom_program.so"), folder)
    return folder / "libpom.so"


def test_another_build_on_one_rank_is_refused(another_build, recipe, tmp_path):
    script = tmp_path / "two.sh"
    script.write_text(
        f'[ "$RANK" = 1 ] && export LIBPOM_LIBRARY={another_build}\n'
        f'exec "$PY" -m libpom train {recipe} -o {tmp_path / "run"} --quiet\n'
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
    said = "train: the build of libpom: expected the same on all ranks, got"
    assert re.search(rf"{said}\n  rank 0: libpom .*\n  rank 1: libpom .*x", result.stderr), result.stderr
    assert not (tmp_path / "run").exists()
