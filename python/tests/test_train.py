"""`pom train` as a person meets it: what it leaves, how it goes on, and what it says about mistakes."""

import json
import shutil
import signal
import subprocess
import time

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tools import bound_by_permissions, referee
from training import (
    RECIPE,
    checkpoints,
    differences,
    environment,
    files,
    full_disk_at,
    pom_train,
    program,
    read_checkpoint,
    state_of,
    write_recipe,
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run that is done, and its recipe."""
    folder = tmp_path_factory.mktemp("done")
    recipe = write_recipe(folder)
    result = pom_train(
        recipe, "-o", folder / "run", "--set", "log.sample_every=120", "--set", "sample.steps=4"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(folder / "run" / "model")
    return recipe, folder / "run"


@pytest.fixture
def copy(done, tmp_path):
    """A copy of it that a test may spoil."""
    shutil.copytree(done[1], tmp_path / "run")
    return done[0], tmp_path / "run"


def records(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


FOLDER = [*("--set", "data.kind=folder", "--set", "data.validation=2", "--set", "run.steps=40")]


# ---- what a run leaves ----


def test_the_folder_explains_itself(done):
    _, run = done
    recipe = (run / "recipe.toml").read_text()
    assert "lr = 0.002" in recipe and "classes = 10" in recipe and "# learning rate" in recipe
    starts = json.loads((run / "run.json").read_text())
    assert starts[0]["parameters"] > 1000 and "tiny.toml" in starts[0]["command"] and starts[0]["version"]
    assert [r["step"] for r in records(run) if "loss" in r] == list(range(20, 241, 20))
    assert [r["step"] for r in records(run) if "validation_loss" in r] == [80, 160, 240]
    assert all(len(r["loss_by_time"]) == 10 for r in records(run) if "loss" in r)
    assert "validation loss" in (run / "log.txt").read_text()
    sheets = sorted(path.name for path in (run / "samples").iterdir())
    assert sheets == ["step_00000120.png", "step_00000240.png"]
    with Image.open(run / "samples" / sheets[0]) as sheet:
        assert sheet.width > 100
    assert [path.name for path in checkpoints(run)] == [f"step_{n:08d}.safetensors" for n in (200, 220, 240)]


def test_it_learns(done):
    losses = [r["loss"] for r in records(done[1]) if "loss" in r]
    assert losses[-1] < 0.75 * losses[0]
    validation = [r["validation_loss"] for r in records(done[1]) if "validation_loss" in r]
    assert validation[-1] < validation[0]


def test_the_model_is_the_average_and_samples(done, tmp_path):
    _, run = done
    model = load_file(run / "model" / "model.safetensors")
    tensors, _ = read_checkpoint(checkpoints(run)[-1])
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, tensors["ema/" + name].to(torch.bfloat16), rtol=0, atol=0)
    words = ["sample", "--model", run / "model", "--class", "star", "--steps", "2", "-o", tmp_path / "a.png"]
    subprocess.run([program(), *map(str, words)], check=True, env=environment())
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (8, 8)


def test_tensorboard_reads_the_events(done):
    accumulator = referee("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(done[1])).Reload()
    tags = events.Tags()
    assert {"train/loss", "train/rate", "validation/loss"} <= set(tags["scalars"])
    assert tags["images"] == ["samples"]
    assert b"lr = 0.002" in events.Tensors("recipe")[0].tensor_proto.string_val[0]
    ours = {r["step"]: r["loss"] for r in records(done[1]) if "loss" in r}
    theirs = {e.step: e.value for e in events.Scalars("train/loss")}
    assert theirs == pytest.approx(ours, rel=1e-6)


# ---- going on ----


def test_resume_of_a_finished_run_changes_nothing(copy):
    recipe, run = copy
    before = checkpoints(run)[-1].read_bytes()
    result = pom_train(recipe, "-o", run, "--resume")
    assert result.returncode == 0 and "resuming from step 240" in result.stderr
    assert checkpoints(run)[-1].read_bytes() == before


def test_resume_from_the_run_folder_alone(copy):
    _, run = copy
    result = pom_train(run, "--resume", "--set", "run.steps=260", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["step"] == 260


def endless(tmp_path, hangup):
    """A run without end that has saved; `hangup` is what it does with SIGHUP unless it says otherwise."""
    recipe = write_recipe(tmp_path)
    words = [program(), "train", str(recipe), "-o", str(tmp_path / "run"), "--set", "run.steps=1000000"]
    process = subprocess.Popen(
        words,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),
    )
    wait_for_step(tmp_path / "run", 1, process)
    return recipe, process


def wait_for_step(run, least, process):
    """Until there is a checkpoint of this step or a later one; its step."""
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline and process.poll() is None
        steps = [int(path.stem.removeprefix("step_")) for path in checkpoints(run)]
        if steps and steps[-1] >= least:
            return steps[-1]
        time.sleep(0.01)


def saved_and_left(process, number, run):
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    step = json.loads(read_checkpoint(checkpoints(run)[-1])[1]["state"])["step"]
    assert f"saved at step {step}" in said
    return step


def test_ctrl_c_saves_and_leaves(tmp_path):
    recipe, process = endless(tmp_path, signal.SIG_DFL)
    process.send_signal(signal.SIGINT)
    step = saved_and_left(process, signal.SIGINT, tmp_path / "run")
    # What was saved at that odd step goes on as if nothing had happened.
    target = step + 20 - step % 20
    for run, more in ((tmp_path / "run", ["--resume"]), (tmp_path / "whole", [])):
        result = pom_train(recipe, "-o", run, "--set", f"run.steps={target}", *more)
        assert result.returncode == 0, result.stderr
    assert differences(tmp_path / "run", tmp_path / "whole") == []


def test_a_closed_terminal_saves_and_leaves(tmp_path):
    """Also where it is told twice, by the shell and by the system."""
    _, process = endless(tmp_path, signal.SIG_DFL)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    saved_and_left(process, signal.SIGHUP, tmp_path / "run")


def test_under_nohup_only_sigterm_saves_and_leaves(tmp_path):
    _, process = endless(tmp_path, signal.SIG_IGN)
    process.send_signal(signal.SIGHUP)
    step = wait_for_step(tmp_path / "run", 1, process)
    wait_for_step(tmp_path / "run", step + 40, process)
    process.send_signal(signal.SIGTERM)
    saved_and_left(process, signal.SIGTERM, tmp_path / "run")


def test_minutes_save_and_leave(tmp_path):
    recipe = write_recipe(tmp_path)
    result = pom_train(
        recipe, "-o", tmp_path / "run", "--minutes", "0.01", "--set", "run.steps=10000000", "--json"
    )
    assert result.returncode == 0 and json.loads(result.stdout)["end"] == "out of time"
    assert "use --resume to continue" in result.stderr


def test_cooldown_from_a_checkpoint(copy):
    recipe, run = copy
    result = pom_train(recipe, "-o", run, "--resume", "--cooldown", "40")
    assert result.returncode == 0, result.stderr
    rates = {r["step"]: r["rate"] for r in records(run) if "rate" in r}
    assert max(rates) == 280
    assert rates[260] == pytest.approx(2e-3 * (1 - (19 / 40) ** 0.5))
    assert rates[280] == pytest.approx(2e-3 * (1 - (39 / 40) ** 0.5))


def test_a_branch_from_an_earlier_checkpoint(copy, tmp_path):
    """The trunk stays as it is, and the branch equals a run that planned this end."""
    recipe, run = copy
    early = next(path for path in checkpoints(run) if "00000200" in path.name)
    branch, planned = tmp_path / "branch", tmp_path / "planned"
    before = sorted(path.name for path in checkpoints(run))
    result = pom_train(recipe, "--from", early, "--cooldown", "40", "-o", branch)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in checkpoints(run)) == before
    words = ["--set", "run.steps=240", "--set", "optimizer.cooldown=40"]
    assert pom_train(recipe, "-o", planned, *words).returncode == 0
    assert [name for name in differences(branch, planned) if not name.startswith("cooldown")] == []
    refused(pom_train(recipe, "--from", early, "-o", run), "already holds a run", code=2)
    refused(pom_train(recipe, "--from", early), "--from", code=2)
    refused(pom_train(recipe, "--from", recipe, "-o", tmp_path / "other"), "tiny.toml")
    assert not (tmp_path / "other").exists()


def test_other_data_is_noticed(pictures, tmp_path):
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    words = [*FOLDER, "--set", f"data.path={pictures}"]
    assert pom_train(recipe, "-o", run, *words).returncode == 0
    shutil.copy(pictures / "red" / "01.jpg", pictures / "red" / "99.jpg")
    result = pom_train(recipe, "-o", run, "--resume", *words, "--set", "run.steps=50")
    assert result.returncode == 0 and "had 22" in result.stderr, result.stderr
    (pictures / "red").rename(pictures / "amber")
    refused(pom_train(recipe, "-o", run, "--resume", *words), "the classes of the data", code=2)


def test_a_cooldown_goes_on_after_a_stop(copy, tmp_path):
    recipe, run = copy
    shutil.copytree(run, tmp_path / "other")
    assert pom_train(recipe, "-o", run, "--resume", "--cooldown", "40").returncode == 0
    half = tmp_path / "other"
    assert pom_train(recipe, "-o", half, "--resume", "--cooldown", "40", "--minutes", "0.001").returncode == 0
    assert pom_train(recipe, "-o", half, "--resume").returncode == 0
    assert differences(run, half) == []


def test_init_from_a_model_of_another_size(done, tmp_path):
    recipe, run = done
    result = pom_train(
        *(recipe, "-o", tmp_path / "large", "--init-from", run / "model"),
        *("--set", "data.size=[16, 16]", "--set", "run.steps=20", "--set", "optimizer.lr=0"),
    )
    assert result.returncode == 0, result.stderr
    before, after = (load_file(r / "model/model.safetensors") for r in (run, tmp_path / "large"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((tmp_path / "large/model/config.json").read_text())["sample"]["size"] == [16, 16]


def test_init_from_another_network_is_refused(done, tmp_path):
    recipe, run = done
    result = pom_train(
        *(recipe, "-o", tmp_path / "x", "--init-from", run / "model"),
        *("--set", "network.order=3", "--set", "network.depth=5"),
    )
    depth = json.loads((run / "model/config.json").read_text())["network"]["depth"]
    lines = [
        f"network.depth: {depth} in the model, 5 in the recipe",
        "network.order: 2 in the model, 3 in the",
    ]
    refused(result, *lines, code=2)
    assert "tensor" not in result.stderr and "network.dim" not in result.stderr
    assert not (tmp_path / "x").exists()


def test_batches_in_parts_are_the_same_batches(tmp_path):
    recipe = write_recipe(tmp_path)
    losses = []
    for parts in (1, 2):
        run = tmp_path / f"parts_{parts}"
        words = ["--set", f"batch.accumulate={parts}", "--set", "run.precision=fp64", "--set", "run.steps=40"]
        assert pom_train(recipe, "-o", run, *words).returncode == 0
        losses.append([r["loss"] for r in records(run) if "loss" in r])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_bf16_learns_like_fp32(done, tmp_path):
    recipe, whole = done
    result = pom_train(recipe, "-o", tmp_path / "run", "--set", "run.precision=bf16")
    assert result.returncode == 0, result.stderr
    losses = []
    for run in (whole, tmp_path / "run"):
        losses.append(records(run)[-1]["validation_loss"])
        tensors, _ = read_checkpoint(checkpoints(run)[-1])
        assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    assert losses[1] == pytest.approx(losses[0], rel=0.02) and losses[0] != losses[1]


# ---- mistakes ----


def refused(result, *words, code=1):
    assert result.returncode == code, (result.returncode, result.stderr)
    for word in words:
        assert word in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("lr = 2e-3", "learning_rate = 2e-3"), ["line", "learning_rate", "unknown field"]),
        (("lr = 2e-3", "ir = 2e-3"), ["optimizer.ir", '"lr"']),
        (("lr = 2e-3", 'lr = "fast"'), ["optimizer.lr: expected a number"]),
        (("size = 4", "size = 4.5"), ["batch.size: expected an integer"]),
        (("[optimizer]", "[optimiser]"), ["optimiser", '"optimizer"']),
        (("lr = 2e-3", "lr = 1e9"), ["optimizer.lr: expected 0 to 100"]),
        (
            ("warmup = 10", "cooldown = 9999"),
            ["optimizer.cooldown: expected at most run.steps (240), got 9999"],
        ),
        (("size = [8, 8]", "size = [9, 8]"), ["data.size: expected sides that network.patch (2) divides"]),
        (("size = 4\n", "size = 4\naccumulate = 3\n"), ["batch.accumulate: expected a divisor"]),
        (("dim = 16", 'variant = "DiPoM-Q/2"'), ["unknown name", "DiPoM-"]),
        (("[data]", '[data]\nkind = "folder"'), ["data.path: expected the folder of the images"]),
        (("steps = 240", "steps = "), ["line 3"]),
        (("steps = 240", 'device = "cuda:7"'), ["cuda:7"]),
        (("steps = 240", 'device = "gpu"'), ["expected cpu, cuda, cuda:N or auto"]),
    ],
)
def test_recipes_with_a_mistake(tmp_path, change, words):
    assert change[0] in RECIPE
    recipe = write_recipe(tmp_path, RECIPE.replace(change[0], change[1], 1))
    refused(pom_train(recipe, "-o", tmp_path / "run"), *words, code=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "optimizer.lr"], "expected field=value"),
        (["--set", "optimizer.rate=3"], "unknown field"),
        (["--set", "batch.size=four"], "batch.size: expected an integer"),
        (["--set", "run.name=../../../x"], "run.name: expected at most 200 letters, digits"),
        (["--set", "run.name=/tmp/x"], 'got "/tmp/x"'),
        (["--set", 'run.name="a\\nb"'], 'got "a\\nb"'),
        (["--set", "sample.sampler=xx"], 'sampler: there is no "xx"'),
        (["--set", "network.classes=12"], "network.classes: expected 10, as the data has, got 12"),
        (["--cooldown", "5"], "--cooldown: needs --resume"),
        (["--resume", "--init-from", "x"], "--init-from: starts a new run"),
        (["--steps", "5"], "--steps"),
    ],
)
def test_flags_with_a_mistake(tmp_path, words, said):
    recipe = write_recipe(tmp_path)
    refused(pom_train(recipe, "-o", tmp_path / "run", *words), said, code=2)
    refused(pom_train(recipe, "--dry-run", *words, cwd=tmp_path), said, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


def test_no_recipe(tmp_path):
    refused(pom_train(cwd=tmp_path), "expected a recipe", code=2)
    refused(pom_train(tmp_path / "nothing.toml"), "nothing.toml", code=2)
    refused(pom_train(tmp_path), "is a folder", code=2)


@pytest.mark.parametrize("more", [[], ["--from", "CHECKPOINT"], ["--init-from", "MODEL"]])
def test_a_folder_with_a_run_takes_no_other(copy, tmp_path, more):
    """With its checkpoints, and without them: people remove them, they are large."""
    recipe, run = copy
    kept = shutil.copy(checkpoints(run)[0], tmp_path / "kept.safetensors")
    more = [{"CHECKPOINT": kept, "MODEL": run / "model"}.get(word, word) for word in more]
    ways = ["already holds a run", "--resume", "-o DIR", f"--init-from {run / 'model'}"]
    for _ in range(2):
        before = files(run)
        refused(pom_train(recipe, "-o", run, *more), *ways, code=2)
        assert files(run) == before
        shutil.rmtree(run / "checkpoints", ignore_errors=True)


def test_going_on_without_a_checkpoint_is_refused(copy, tmp_path):
    recipe, run = copy
    shutil.rmtree(run / "checkpoints")
    before = files(run)
    for words in ([recipe, "-o", run], [run], [run, "--cooldown", "10"]):
        refused(pom_train(*words, "--resume"), "expected a checkpoint", "--init-from", "-o DIR", code=2)
    assert files(run) == before
    refused(pom_train(run, "--resume", "-o", tmp_path / "elsewhere"), "which holds none", code=2)
    assert not (tmp_path / "elsewhere").exists()


def test_a_model_is_not_replaced_by_an_earlier_one(copy):
    """Neither by a run that would end before it, nor on the way to where it was."""
    recipe, run = copy
    for path in checkpoints(run)[1:]:
        path.unlink()
    before = files(run / "model")
    result = pom_train(recipe, "-o", run, "--resume", "--set", "run.steps=220")
    refused(result, "holds the weights of step 240", "step 200 to step 220", "--from", code=2)
    words = ["--resume", "--set", "optimizer.lr=1e-3"]
    env = environment(
        POM_FAILPOINT="atomic_file.rename:4"
    )  # after recipe, run.json and the checkpoint of 220
    assert pom_train(recipe, "-o", run, *words, env=env).returncode == -signal.SIGKILL
    assert files(run / "model") == before
    result = pom_train(recipe, "-o", run, *words)
    assert result.returncode == 0 and "keeps the weights of step 240 until then" in result.stderr
    model, tensors = load_file(run / "model/model.safetensors"), read_checkpoint(checkpoints(run)[-1])[0]
    assert all(torch.equal(model[name], tensors["ema/" + name].to(torch.bfloat16)) for name in model)
    assert files(run / "model") != before


def test_a_model_that_was_removed_is_made_again(copy):
    _, run = copy
    before = files(run / "model")
    shutil.rmtree(run / "model")
    assert pom_train(run, "--resume").returncode == 0
    assert files(run / "model") == before


def test_two_trainers_in_one_folder(tmp_path):
    recipe = write_recipe(tmp_path)
    words = [program(), "train", str(recipe), "-o", str(tmp_path / "run"), "--set", "run.steps=1000000"]
    process = subprocess.Popen(words, env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not checkpoints(tmp_path / "run"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        refused(pom_train(recipe, "-o", tmp_path / "run", "--resume"), str(process.pid))
    finally:
        process.kill()
        process.wait()
    assert pom_train(recipe, "-o", tmp_path / "run", "--resume", "--minutes", "0.001").returncode == 0


def test_resume_with_a_changed_recipe(copy):
    recipe, run = copy
    result = pom_train(recipe, "-o", run, "--resume", "--set", "network.dim=32", "--set", "optimizer.lr=1e-3")
    refused(result, "network.dim: 16 -> 32", "everything else may change", "--init-from", code=2)
    assert "optimizer.lr" not in result.stderr
    result = pom_train(recipe, "-o", run, "--resume", "--set", "optimizer.kind=muon")
    refused(result, 'optimizer.kind: "adamw" -> "muon"', code=2)
    result = pom_train(recipe, "-o", run, "--resume", "--set", "optimizer.lr=1e-3", "--set", "run.steps=250")
    assert result.returncode == 0
    assert "optimizer.lr: 0.002 -> 0.001" in result.stderr and "run.steps: 240 -> 250" in result.stderr


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_a_damaged_checkpoint_is_left_out(copy, damage):
    recipe, run = copy
    newest = checkpoints(run)[-1]
    data = bytearray(newest.read_bytes())
    if damage == "flipped":
        data[-100] ^= 1
    newest.write_bytes({"cut": data[:-7], "flipped": data, "empty": b"", "text": b"not a checkpoint"}[damage])
    result = pom_train(recipe, "-o", run, "--resume")
    assert result.returncode == 0, result.stderr
    assert "skipped step_00000240.safetensors" in result.stderr and "resuming from step 220" in result.stderr
    assert state_of(read_checkpoint(checkpoints(run)[-1])[1])["step"] == 240


def test_a_full_disk(copy):
    """At each file in turn, the last of them the checkpoint. What was logged stays, and is made again."""
    recipe, run = copy
    before = {path.name: path.read_bytes() for path in checkpoints(run)}
    words = [recipe, "-o", run, "--resume", "--set", "run.steps=260"]
    full_disk_at("checkpoints/step_00000260.safetensors", *words)
    assert {path.name: path.read_bytes() for path in checkpoints(run)} == before
    assert not list(run.rglob(".pom-tmp-*"))
    assert records(run)[-1]["step"] == 260
    again = pom_train(*words)
    assert again.returncode == 0 and state_of(read_checkpoint(checkpoints(run)[-1])[1])["step"] == 260


def test_a_full_disk_within_a_checkpoint(copy):
    recipe, run = copy
    before = {path.name: path.read_bytes() for path in checkpoints(run)}
    env = environment(POM_FAILPOINT="atomic_file.write:60:ENOSPC")
    result = pom_train(recipe, "-o", run, "--resume", "--set", "run.steps=300", env=env)
    refused(result, "No space left on device", "checkpoints/step_00000260.safetensors")
    assert {path.name: path.read_bytes() for path in checkpoints(run)} == before
    assert not list(run.rglob(".pom-tmp-*"))


def test_a_full_disk_is_found_before_the_work(tmp_path):
    recipe = write_recipe(tmp_path)
    env = environment(POM_FAILPOINT="atomic_file.write:3:ENOSPC")
    result = pom_train(recipe, "-o", tmp_path / "run", env=env)
    refused(result, "No space left on device")
    assert not (tmp_path / "run/log.jsonl").exists()
    assert pom_train(recipe, "-o", tmp_path / "run", "--set", "run.steps=20").returncode == 0


def test_a_folder_that_cannot_be_made(tmp_path):
    result = pom_train(write_recipe(tmp_path), "-o", "/proc/pom/run")
    refused(result, "/proc/pom", "cannot create the folder")


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    words = [program(), "train", write_recipe(tmp_path), "-o", tmp_path / "locked" / "run"]
    words = list(map(str, [*bound_by_permissions(), *words]))
    refused(subprocess.run(words, env=environment(), capture_output=True, text=True), "Permission denied")


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "run").write_text("mine")
    refused(pom_train(write_recipe(tmp_path), "-o", tmp_path / "run"), str(tmp_path / "run"))
    assert (tmp_path / "run").read_text() == "mine"


# ---- pictures from folders ----


@pytest.fixture
def pictures(tmp_path):
    """Two classes of small pictures, one of which is broken."""
    for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(12):
            shade = tuple(c + 2 * i for c in colour)
            Image.new("RGB", (20, 12 + i), shade).save(tmp_path / "data" / name / f"{i:02d}.jpg")
    return tmp_path / "data"


def test_training_on_a_folder(pictures, tmp_path):
    (pictures / "red" / "03.jpg").write_bytes((pictures / "red" / "03.jpg").read_bytes()[:50])
    result = pom_train(
        write_recipe(tmp_path), "-o", tmp_path / "run", *FOLDER, "--set", f"data.path={pictures}"
    )
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stderr.splitlines() if "skipped" in line]
    assert len(said) == 1 and "03.jpg" in said[0] and "1 so far" in said[0]
    config = json.loads((tmp_path / "run/model/config.json").read_text())
    assert config["classes"] == ["blue", "red"] and config["network"]["classes"] == 2


def test_folders_with_a_mistake(pictures, tmp_path):
    recipe = write_recipe(tmp_path)

    def train(path):
        return pom_train(recipe, "-o", tmp_path / "run", *FOLDER, "--set", f"data.path={path}")

    refused(train(tmp_path / "nowhere"), "nowhere")
    refused(train(pictures / "red" / "03.jpg"), "03.jpg")
    shutil.copytree(pictures / "red", pictures / "1")
    refused(train(pictures), "classes[0]: expected a name, or its own index, got the number 1", code=2)
    (pictures / "green").mkdir()
    refused(train(pictures), "green")
    assert not (tmp_path / "run").exists()


# ---- steps that are not finite ----


def test_steps_that_are_not_finite(tmp_path):
    """A rate so high that the weights overflow: steps are skipped and named, the run goes back, and ends."""
    recipe = write_recipe(
        tmp_path, RECIPE.replace("lr = 2e-3\nwarmup = 10", "lr = 100.0\nclip = 0.0\neps = 0.0")
    )
    result = pom_train(
        *(recipe, "-o", tmp_path / "run", "--set", "run.steps=2000", "--set", "log.checkpoint_every=2000")
    )
    refused(result, "not finite, skipped; first in the", "rolled back to step 0", "still not finite after")
    text = (tmp_path / "run/log.txt").read_text()
    assert "not finite" in text
