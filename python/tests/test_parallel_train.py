"""Training on several ranks: the bits of one rank on 2 and 4, whatever they divide among them; checkpoints
that any number of ranks goes on from; and what all of them refuse or pass over together."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file

from torchrun import environment_of_ranks, run_ranks
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
pytestmark = pytest.mark.usefixtures("extension")


def sets(**fields):
    """--set words; a double underscore stands for the dot."""
    pairs = ((name.replace("__", "."), value) for name, value in fields.items())
    return [word for name, value in pairs for word in ("--set", f"{name}={value}")]


OPTIMIZER, GRADIENTS = sets(parallel__shard="optimizer"), sets(parallel__shard="gradients")
PARAMETERS = sets(parallel__shard="parameters")
MUON = sets(optimizer__kind="muon")
SEQUENCE = sets(parallel__sequence=2, run__precision="fp64")
THREE = sets(batch__size=12, run__steps=4)
CLIPS = sets(  # whose prompt changes
    data__kind="sprites",
    data__frames=8,
    data__changes=0.5,
    data__change_every=2,
    data__validation=20,
    batch__cut=0.5,
    batch__cut_frames=4,
    network__kind="vdipom",
    network__patch=4,
    network__window=2,
    text__width=8,
    text__limit=24,
    run__steps=4,
)
LATENTS = sets(data__kind="latents", data__path="data", data__validation=0, run__steps=40)
LARGE = sets(data__size="[128,128]", network__patch=1, network__dim=128, parallel__sequence=2)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("recipe"), RECIPE)


@pytest.fixture(scope="module")
def alone(recipe, tmp_path_factory):
    """Runs of one process without torchrun."""
    folder = tmp_path_factory.mktemp("alone")
    for name, more in {
        "adamw": [],
        "muon": MUON,
        "fp64": sets(run__precision="fp64"),
        "three": THREE,
        "clips": CLIPS,
        "clips, fp64": [*CLIPS, *sets(run__precision="fp64")],
    }.items():
        result = pom_train(recipe, "-o", folder / name, "--quiet", *more)
        assert result.returncode == 0, result.stderr
    return folder


def write_latents(folder, poisoned=()):
    """16 latents of 2 classes; some are not numbers."""
    draw = torch.Generator().manual_seed(3)
    for i in range(16):
        mean = torch.randn(3, 8, 8, generator=draw)
        path = folder / "data" / "ab"[i % 2] / f"{i:02d}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"mean": mean.fill_(float("nan")) if i in poisoned else mean}, path)
    return str(folder)


class Trainings:
    """What all the trainings of one start of four ranks left behind."""

    def __init__(self, folder):
        self.folder, self.rounds = folder, []

    def job(self, name, ranks, recipe, *more, **fields):
        words = [str(word) for word in ("train", recipe, "-o", self.folder / name, *more)]
        return {"name": name, "ranks": list(ranks), "words": words, **fields}

    def ended(self, name, rank=0):
        result = json.loads((self.folder / f"{name}.{rank}.json").read_text())
        return result["code"], result["said"]

    def of(self, name):
        """The folder of a run that ended well."""
        code, said = self.ended(name)
        assert code == 0, said
        return self.folder / name


@pytest.fixture(scope="module")
def trainings(recipe, tmp_path_factory):
    """All of them, by four ranks or parts of them: a start takes longer than any."""
    made = Trainings(tmp_path_factory.mktemp("trainings"))
    all_four, pairs = range(4), (range(2), range(2, 4))
    other = made.folder / "other.toml"
    other.write_text(RECIPE.replace("dim = 32", "dim = 64"))
    clean = write_latents(made.folder / "clean")
    poisoned = write_latents(made.folder / "poisoned", poisoned=(5,))

    def job(name, ranks, *more, **fields):
        return made.job(name, ranks, recipe, "--quiet", *more, **fields)

    def loud(name, ranks, *more, **fields):
        return made.job(name, ranks, recipe, *more, **fields)

    refused = made.job("another recipe", pairs[0], recipe, "--quiet")
    refused["words_of"] = {"1": made.job("another recipe", pairs[0], other, "--quiet")["words"]}
    resume = ["train", str(made.folder / "changes"), "--resume", "--quiet"]
    rounds = [
        [job("a bucket is not sent", all_four)],  # first, as POM_FAILPOINT counts from the start
        [job("2 ranks", pairs[0]), job("2 ranks, optimizer", pairs[1], *OPTIMIZER)],
        [job("2 ranks, muon", pairs[0], *OPTIMIZER, *MUON), job("2 ranks, tokens", pairs[1], *SEQUENCE)],
        [
            job("2 ranks, parameters", pairs[0], *PARAMETERS),
            job("2 ranks, layers again", pairs[1], *PARAMETERS, *sets(batch__checkpointing="true")),
        ],
        [job("2 ranks, clips", pairs[0], *CLIPS), job("2 ranks, blocks", pairs[1], *CLIPS, *SEQUENCE)],
        [job("4 ranks", all_four)],
        [job("4 ranks, muon and parameters", all_four, *PARAMETERS, *MUON)],
        [job("4 ranks, gradients", all_four, *GRADIENTS)],
        [job("4 ranks, muon", all_four, *GRADIENTS, *MUON)],
        [job("4 ranks, tokens", all_four, *SEQUENCE, *OPTIMIZER)],
        [job("changes", all_four, *sets(run__steps=4))],
        [
            {"name": "changes to 2", "ranks": [0, 1], "words": [*resume, *sets(run__steps=6), *OPTIMIZER]},
            loud("not a number", pairs[1], *LATENTS, folder_of={"0": clean, "1": poisoned}),
        ],
        [refused, job("numbers", pairs[1], *LATENTS, folder_of={"0": clean, "1": clean})],
        [loud("three ranks", range(3), *THREE), job("1 rank", [3])],
        [job("a batch of 8 for three", range(3))],
        [job("no memory", all_four, *LARGE, memory_of={"3": 200 << 20}, leaves=True)],
    ]
    path = made.folder / "rounds.json"
    path.write_text(json.dumps(rounds))
    env = environment_of_ranks(POM_FAILPOINT="gradient_sum.send:40:EIO")
    result = run_ranks(4, path, env=env, module="trainings_program")
    assert (made.folder / "no memory.3.json").is_file(), result.stderr
    return made


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


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("1 rank", "adamw"),
        ("2 ranks", "adamw"),
        ("4 ranks", "adamw"),
        ("2 ranks, optimizer", "adamw"),
        ("4 ranks, gradients", "adamw"),
        ("2 ranks, parameters", "adamw"),
        ("2 ranks, layers again", "adamw"),
        ("2 ranks, muon", "muon"),
        ("4 ranks, muon and parameters", "muon"),
        ("4 ranks, muon", "muon"),
        ("2 ranks, clips", "clips"),
    ],
)
def test_any_number_of_ranks_gives_the_bits_of_one(name, kind, trainings, alone):
    assert_same_run(trainings.of(name), alone / kind)


def test_a_gradient_that_is_not_sent_is_noticed(trainings, alone):
    """The control of the test above: one bucket of one step stays at home."""
    assert figures(trainings.of("a bucket is not sent")) != figures(alone / "adamw")


def test_a_run_changes_its_number_of_ranks(trainings, alone):
    trainings.of("changes")
    assert trainings.ended("changes to 2") == (0, trainings.ended("changes to 2")[1])
    run = trainings.folder / "changes"
    third = pom_train(run, "--resume", "--quiet", *sets(run__steps=8))
    assert third.returncode == 0, third.stderr
    assert not differences(run, alone / "adamw")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("2 ranks, tokens", "fp64"), ("4 ranks, tokens", "fp64"), ("2 ranks, blocks", "clips, fp64")],
)
def test_ranks_share_the_tokens_of_an_example(name, kind, trainings, alone):
    """Sums over tokens in two halves: equal up to rounding."""
    for a, b in zip(figures(trainings.of(name)), figures(alone / kind), strict=True):
        for key in a.keys() - {"loss_by_time"}:
            assert a[key] == pytest.approx(b[key], rel=1e-6), key


def test_other_numbers_of_ranks_train_too(trainings, alone):
    """Three ranks: the same batches, sums in another order, and it is said."""
    assert "does not give the bits of one rank" in trainings.ended("three ranks")[1]
    for a, b in zip(figures(trainings.of("three ranks")), figures(alone / "three"), strict=True):
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-4)


def test_a_step_that_is_not_a_number_on_one_rank_is_skipped_on_all(trainings):
    """One of the latents that the second rank reads is not one; the first has them whole."""
    run = trainings.of("not a number")
    assert trainings.ended("not a number", 1)[0] == 0
    lines = [line for line in (run / "log.txt").read_text().splitlines() if "not finite, skipped" in line]
    assert lines and all("first in the data on rank 1 " in line for line in lines), lines
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    assert last["skipped"] == len(lines)
    control = (trainings.of("numbers") / "log.txt").read_text()
    assert "not finite" not in control and "rolled back" not in (run / "log.txt").read_text()


def test_another_recipe_on_one_rank_is_refused(trainings):
    for rank in (0, 1):
        code, said = trainings.ended("another recipe", rank)
        assert code != 0 and "network.dim: 32 on rank 0, 64 on rank 1" in said, said
    assert not (trainings.folder / "another recipe").exists()


def test_a_batch_that_ranks_do_not_divide_is_refused(trainings):
    code, said = trainings.ended("a batch of 8 for three")
    assert code != 0 and "batch.size: expected a multiple of the 3 ranks that share it, got 8" in said, said
    assert not (trainings.folder / "a batch of 8 for three").exists()


def test_a_rank_without_memory_is_named(trainings):
    """By the one that shares tokens with it, as second of two, with its number among all four."""
    code, said = trainings.ended("no memory", 3)
    assert code != 0 and "can't allocate memory" in said, said
    code, said = trainings.ended("no memory", 2)
    assert code != 0 and re.search(r"of 2 ranks failed on rank 2: rank 3 left: .*can't allocate", said), said


def test_gpus_starts_torchrun(recipe, alone, tmp_path):
    result = pom_train(
        recipe, "-o", tmp_path / "run", "--gpus", 2, "--json", env=environment_of_ranks(PYTHONPATH="")
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.strip().splitlines()[-1])["end"] == "finished"
    assert_same_run(tmp_path / "run", alone / "adamw")
