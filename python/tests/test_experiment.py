"""`pom experiment`: from a file to the table, also after kill -9; and what is wrong with a file."""

import fcntl
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training import environment, kill_at, kill_in_save, program

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which came with pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "recipes/experiments").glob("*.toml"))
# Smaller than --quick where only the machinery is looked at.
TINY = [
    "judge.steps=4",
    "judge.count=20",
    "judge.reference=40",
    "recipe.run.steps=6",
    "recipe.sample.steps=2",
]
TINY += ["recipe.optimizer.warmup=1", "recipe.optimizer.cooldown=2", "recipe.log.checkpoint_every=2"]


def words_of(*arguments):
    return [program(), "experiment", *map(str, arguments)]


def experiment(*arguments):
    return subprocess.run(
        words_of(*arguments), env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def tiny(*arguments):
    sets = [word for assignment in TINY for word in ("--set", assignment)]
    return experiment(*arguments, "--quick", "-q", *sets)


def processes_with(word):
    """Those whose command has the word in it."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in file.read_bytes().split(b"\0"):
                found.append(file.parent.name)
        except OSError:  # ended meanwhile
            continue
    return found


def rows_of(table):
    """The first table of a report, its cells by row."""
    lines = next(part for part in table.split("\n\n") if part.startswith("|")).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[2:]}


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """A quick one that nothing disturbed, what it printed, and how long it took."""
    folder = tmp_path_factory.mktemp("degrees") / "out"
    began = time.monotonic()
    result = experiment("degrees", "--quick", "-q", "-o", folder)
    assert result.returncode == 0, result.stderr
    return folder, result.stdout, time.monotonic() - began


@pytest.fixture(scope="module")
def degrees(timed):
    return timed[:2]


def test_ends_in_a_table(degrees):
    folder, printed = degrees
    table = (folder / "table.md").read_text()
    assert printed == table
    rows = rows_of(table)
    assert list(rows) == ["1x12", "2x6", "3x4", "drawings"]
    assert len({rows[name]["parameters"] for name in ("1x12", "2x6", "3x4")}) == 1
    assert len({rows[name]["MACs"] for name in ("1x12", "2x6", "3x4")}) == 1
    assert rows["2x6"]["paper: FID"] == "87.0" and rows["2x6"]["n"] == "2"
    assert "frechet: 1x12 > 2x6" in table and "p (Holm)" in table
    assert "**A quick run: every part works" in table
    assert "nan" not in table
    assert (folder / "plot.svg").read_text().startswith("<svg")
    assert len(list((folder / "sheets").glob("*.png"))) == 3
    spoilt = rows_of(table[table.index("## What spoilt drawings score") :])
    assert next(iter(spoilt)) == "drawings" and len(spoilt) == 7
    assert float(spoilt["blurred"]["clean, %"]) < 50 < float(spoilt["drawings"]["clean, %"])
    assert float(spoilt["1 in 20 another's"]["all right, %"]) == pytest.approx(100 * 22 / 24, abs=0.01)


def test_results_for_programs(degrees):
    folder, _ = degrees
    results = json.loads((folder / "results.json").read_text())
    assert results["complete"] and results["done"] == results["all"] == 6
    for row in results["rows"]:
        assert [run["seed"] for run in row["runs"]] == [1, 2]
        values = [run["frechet"] for run in row["runs"]]
        assert row["means"]["frechet"]["mean"] == pytest.approx(sum(values) / 2)
        judged = json.loads((folder / row["name"] / "seed-1" / "judged-usual.json").read_text())
        assert judged["scores"]["frechet"] == row["runs"][0]["frechet"]
    one, two = ([run["frechet"] for run in row["runs"]] for row in results["rows"][:2])
    differences = [a - b for a, b in zip(one, two, strict=True)]
    assert results["tests"][0]["difference"] == pytest.approx(sum(differences) / 2)
    # With two pairs Student's t is Cauchy's distribution: the interval's half is 12.706 standard errors.
    half = 12.7062047 * abs(differences[0] - differences[1]) / 2
    assert results["tests"][0]["high"] - results["tests"][0]["difference"] == pytest.approx(half, rel=1e-6)


def test_killed_and_resumed_it_ends_in_the_same_table(timed, tmp_path):
    """Killed at any time, and in the middle of writing a file."""
    folder, printed, seconds = timed
    chance = random.Random(11)
    out = tmp_path / "out"
    first = words_of("degrees", "--quick", "-q", "-o", out)
    words = [*first, "--resume"]
    early = subprocess.run(words, env=environment(POM_FAILPOINT="atomic_file.rename:1"), capture_output=True)
    assert early.returncode == -9 and not (out / "experiment.toml").exists()
    statuses = [kill_at(chance.uniform(0.1, 0.4) * seconds, words), kill_in_save(words, chance)]
    statuses += [kill_at(chance.uniform(0.1, 0.4) * seconds, words), kill_in_save(words, chance)]
    assert statuses.count(-9) >= 2 and set(statuses) <= {-9, 0}
    result = subprocess.run(words, env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout == printed, result.stderr
    assert (out / "table.md").read_text() == printed
    assert (out / "plot.svg").read_bytes() == (folder / "plot.svg").read_bytes()


def test_several_at_once_end_in_the_same_table(degrees, tmp_path):
    """Each training is a process of its own, which ends with the one that started it."""
    folder, printed = degrees
    out = tmp_path / "out"
    words = words_of("degrees", "--quick", "-q", "-o", out, "--jobs", "2")
    process = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL)
    while not list(out.rglob("trained.json")):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    for _ in range(300):
        if not processes_with(str(out)):
            break
        time.sleep(0.1)
    assert processes_with(str(out)) == []
    result = subprocess.run([*words, "--resume"], env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout == printed, result.stderr
    assert (out / "plot.svg").read_bytes() == (folder / "plot.svg").read_bytes()


def test_several_at_once_wait_for_what_they_begin_with(tmp_path):
    one = tiny("resolution", "-o", tmp_path / "one", "--set", "recipe.network.dim=16")
    many = tiny(
        "resolution", "-o", tmp_path / "many", "--set", "recipe.network.dim=16", "--jobs", "3", "--lean"
    )
    assert many.returncode == 0 and many.stdout == one.stdout, many.stderr
    assert list((tmp_path / "many").rglob("model.safetensors")) == []


def test_one_run_alone(tmp_path):
    """What --jobs starts, by hand; and its mistakes."""
    out = tmp_path / "out"
    early = tiny("guidance", "-o", out, "--only", "dipom/seed-1")
    assert early.returncode == 2 and "expected the folder of an experiment that has begun" in early.stderr
    assert not out.exists()
    begun = tiny("guidance", "-o", out, "--minutes", "0.001")
    assert begun.returncode == 0, begun.stderr
    wrong = tiny("guidance", "-o", out, "--only", "dipom/seed-9")
    assert wrong.returncode == 2 and "expected a run of the experiment such as dipom/seed-1" in wrong.stderr
    done = tiny("guidance", "-o", out, "--only", "dipom/seed-2")
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert [path.parent.name for path in out.rglob("trained.json")] == ["seed-2"]


def test_minutes_stop_and_resume_goes_on(tmp_path):
    out = tmp_path / "out"
    stopped = tiny("guidance", "-o", out, "--minutes", "0.001")
    assert stopped.returncode == 0 and "time is up" in stopped.stderr
    assert "**Not complete: 0 of 9 are done.**" in stopped.stdout
    done = tiny("guidance", "-o", out, "--resume", "--lean")
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    assert list(rows) == ["0", "1", "6", "drawings"]
    assert "lowest inside" in done.stdout and "best less 0" in done.stdout
    assert list(out.rglob("model.safetensors")) == [] and list(out.rglob("checkpoints")) == []
    again = tiny("guidance", "-o", out, "--resume")  # nothing is left to do, and no model is needed
    assert again.stdout == done.stdout


def test_stages_and_equal_costs(tmp_path):
    """A network that goes on from another's weights, one without a training, one of equal multiply-adds."""
    result = tiny("resolution", "-o", tmp_path / "out", "--set", "recipe.network.dim=16")
    assert result.returncode == 0, result.stderr
    rows = rows_of(result.stdout)
    assert list(rows) == ["none", "fine", "scratch", "drawings"]
    note = (tmp_path / "out/fine/seed-1/run.json").read_text()
    assert str(Path("small") / "seed-1" / "model") in note
    assert int(rows["scratch"]["steps"]) == round(6 / 4 + 10)  # four times the tokens


def test_a_sweep_chooses(tmp_path):
    attention = "attention: network.mixer=attention network.heads=4 steps=seconds:pom"
    few = ["sweep.steps=2", "sweep.seeds=[101]", "seeds=[1]", f'arms=["pom:", "{attention}"]']
    few += ['tests=["frechet: pom = attention within 10 %"]']
    sets = [word for assignment in few for word in ("--set", assignment)]
    result = tiny("mixer-vs-attention", "-o", tmp_path / "out", *sets)
    assert result.returncode == 0, result.stderr
    assert "Chosen by each arm (optimizer.lr" in result.stdout
    scores = {}
    for file in (tmp_path / "out/sweep/pom").rglob("judged-sweep.json"):
        value = file.parts[-3]
        scores[value] = scores.get(value, 0) + json.loads(file.read_text())["scores"]["frechet"]
    best = min(scores, key=scores.get)
    recipe = tomllib.loads((tmp_path / "out/pom/seed-1/recipe.toml").read_text())
    assert recipe["optimizer"]["lr"] == float(best) and len(scores) == 2
    assert "| not known |" in result.stdout  # one seed is none


@pytest.mark.parametrize("name", ["streaming", "figure1"])
def test_what_is_timed(name, tmp_path):
    result = experiment(name, "--quick", "-q", "-o", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    rows = rows_of(result.stdout)
    if name == "streaming":
        assert rows["2"]["PoM's state, KiB"] == rows["6"]["PoM's state, KiB"]
        assert "pom_state: 6 = 2 within 1 %" in result.stdout
    else:
        assert list(rows) == ["16", "64", "256"] and float(rows["256"]["PoM, ms"].split()[0]) > 0


def test_clips(tmp_path):
    result = experiment("causal", "--quick", "-q", "-o", tmp_path / "out", "--set", "seeds=[1]")
    assert result.returncode == 0, result.stderr
    rows = rows_of(result.stdout)
    assert list(rows) == ["none", "block-causal", "window-3", "drawings"]
    assert float(rows["drawings"]["shape, %"]) > 80 > float(rows["none"]["shape, %"])
    assert float(rows["drawings"]["FD of frames"]) < float(rows["none"]["FD of frames"])


def test_distances_by_a_network_of_drawn_weights(tmp_path):
    sets = ["--set", "seeds=[1]", "--set", "judge.inception=true"]
    result = tiny("guidance", "-o", tmp_path / "out", *sets)
    assert result.returncode == 0, result.stderr
    rows = rows_of(result.stdout)
    found = {name: float(row["FD, random Inception"]) for name, row in rows.items()}
    assert found["drawings"] < min(found[name] for name in rows if name != "drawings")
    refused = tiny("guidance", "-o", tmp_path / "other", "--set", 'tests=["frechet_inception: falls"]')
    assert refused.returncode == 2 and "expected judge.inception = true, got false" in refused.stderr


def test_a_judge_that_has_learnt(tmp_path):
    """From the project's folder, or none; it is the folder's own from then on."""
    first = tiny("degrees", "-o", tmp_path / "first", "--set", "seeds=[1]")
    assert first.returncode == 0, first.stderr
    judge = tmp_path / "first/judge-1.safetensors"
    words = ["--set", "seeds=[1]", "--set", f"judge.file={judge}"]
    again = tiny("degrees", "-o", tmp_path / "again", "--set", "judge.steps=9", *words)
    assert again.returncode == 0 and again.stdout == first.stdout, again.stderr
    assert (tmp_path / "again/judge-1.safetensors").read_bytes() == judge.read_bytes()
    for wrong, message in (("nowhere.safetensors", "which is not there"), (tmp_path, "which is no file")):
        out = tmp_path / message
        refused = tiny("degrees", "-o", out, "--set", f"judge.file={wrong}")
        assert refused.returncode == 1 and message in refused.stderr
        assert not (out / "judge-1.safetensors").exists()


def test_times_are_of_one_device(tmp_path):
    """`--resume` on another device; a stream is timed on the CPU alone."""
    out = tmp_path / "out"
    words = ["--quick", "-q", "-o", out, "--set", "seeds=[1]"]
    refused = experiment("streaming", *words, "--device", "cuda")
    assert refused.returncode == 2 and "expected cpu where a stream is timed" in refused.stderr
    first = experiment("streaming", *words, "--json")
    assert first.returncode == 0 and json.loads(first.stdout)["device"] == "cpu", first.stderr
    assert "Timed on cpu." in (out / "table.md").read_text()
    (out / "device.json").write_text('{"device": "cuda:0"}')
    other = experiment("streaming", *words, "--resume")
    assert other.returncode == 2 and "expected cuda:0, got cpu" in other.stderr


def test_a_folder_in_use_is_left_alone(tmp_path):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = tiny("guidance", "-o", tmp_path)
    assert result.returncode == 1 and "is held by" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_another_experiment_is_refused(degrees):
    folder, _ = degrees
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    again = experiment("degrees", "--quick", "-o", folder)
    assert again.returncode == 2 and "--resume continues it" in again.stderr
    other = experiment("degrees", "--quick", "-o", folder, "--resume", "--set", "recipe.run.steps=41")
    assert other.returncode == 2 and "recipe.run.steps: 24 -> 41" in other.stderr
    assert before == {path: path.read_bytes() for path in folder.rglob("*.json")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('tests=["frechet: 1x12 >> 2x6"]', 'tests: expected "METRIC: A < B"'),
        ('tests=["frechet: 1x12 > 2x7"]', 'rows: expected one of them, got 2x7; did you mean "2x6"?'),
        ('tests=["freshet: 1x12 > 2x6"]', "expected a metric of the judge scenes, got freshet"),
        ('tests=["frechet: falls"]', "expected an axis, got none"),
        ('arms=["a: network.ordre=1"]', "network.ordre"),
        ('arms=["a: from=b", "b: run.steps=1"]', "a: expected an arm that comes before it, got b"),
        ('arms=["a: run.steps=1", "a: run.steps=2"]', "expected each name once, got a twice"),
        ('arms=["a: steps=seconds"]', "expected flops:ARM or seconds:ARM"),
        ("seeds=[1, 1]", "seeds: expected each once"),
        ("judge.knid=1", "judge.knid"),
    ],
)
def test_mistakes_in_a_file(change, message, tmp_path):
    sets = ["--set", "tests=[]", "--set", change]
    result = experiment("degrees", "--quick", "-o", tmp_path / "out", *sets)
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert not (tmp_path / "out").exists()


def test_unknown_experiment():
    result = experiment("degreees")
    assert result.returncode == 2 and 'did you mean "degrees"?' in result.stderr


def test_list_and_forecast():
    listed = experiment("--list")
    assert listed.returncode == 0
    for path in FILES:
        assert re.search(rf"^{path.stem}  ", listed.stdout, re.MULTILINE), path.stem
    forecast = json.loads(experiment("degrees", "--dry-run", "--json").stdout)
    assert forecast["trainings"] == 25 and len({arm["macs"] for arm in forecast["arms"]}) == 1


def test_files():
    """All that were asked for, each with its command at the head, a claim and tests."""
    names = {path.stem for path in FILES}
    assert names == {
        *("degrees", "expansion", "scaling", "scaling-flops", "guidance", "mixer-vs-attention", "resolution"),
        "causal",
        *("figure1", "streaming"),
    }
    for path in FILES:
        text = path.read_text()
        assert re.search(rf"^#   pom experiment {path.stem}( |$)", text, re.MULTILINE), path.stem
        file = tomllib.loads(text)
        assert file["claim"] and file["tests"] and file["quick"] and len(file["seeds"]) >= 3
    scaling = json.loads(experiment("scaling", "--dry-run", "--json").stdout)["arms"]
    assert len(scaling) >= 4 and scaling[-1]["macs"] >= 16 * scaling[0]["macs"]
    assert len(tomllib.loads((ROOT / "recipes/experiments/guidance.toml").read_text())["points"]) == 10
