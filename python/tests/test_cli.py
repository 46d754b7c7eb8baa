"""The program `pom`, as a person meets it: exit codes, messages, files, and nothing half-written.

It stands beside libpom.so ($LIBPOM_LIBRARY). The model is a tiny network of random
weights, which draws noise in colours and is enough for everything but beauty.
"""

import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest
from safetensors.torch import save_file

from reference_dipom import ReferenceDiPoM, randomise
from tools import built_program
from training import RECIPE

COMMANDS = [
    "sample",
    "reproduce",
    "serve",
    "train",
    "plan",
    "dataset",
    "eval",
    "bench",
    "experiment",
    "info",
    "doctor",
]
CLASSES = ["circle", "square", "star"]
NETWORK = {"dim": 16, "depth": 2, "patch": 2, "channels": 3, "classes": 3, "order": 2, "order_expand": 2}
CONFIG = {
    "format": 1,
    "name": "tiny",
    "network": {"kind": "dipom", "mixer": "pom", "ffw_expand": 3, **NETWORK},
    "diffusion": {"path": "flow"},
    "codec": {"kind": "pixels"},
    "sample": {"size": [16, 16], "sampler": "euler", "steps": 3, "cfg_scale": 2.0},
    "classes": CLASSES,
}


def program():
    library = os.environ.get("LIBPOM_LIBRARY", "")
    return Path(library).parent / "pom" if library else None


@pytest.fixture(scope="session", autouse=True)
def _program_is_there():
    built_program()


def environment(**more):
    keep = {k: v for k, v in os.environ.items() if k not in ("POM_MODELS", "POM_CPU_ISA", "NO_COLOR")}
    return keep | {"OMP_WAIT_POLICY": "PASSIVE"} | {k: str(v) for k, v in more.items()}


def pom(*arguments, cwd, env=None, **options):
    """Runs the program and returns what came of it."""
    words = [str(program()), *map(str, arguments)]
    options = {"capture_output": True, "text": True, "timeout": 120} | options
    return subprocess.run(words, cwd=cwd, env=env or environment(), **options)


def write_model(folder, config=CONFIG, weights=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if weights is None:
        network = randomise(ReferenceDiPoM(ffw_expand=3, **NETWORK), seed=1)
        weights = {name: tensor.float().contiguous() for name, tensor in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def sample(model, tmp_path):
    """`pom sample --model tiny ...` in an empty folder."""
    return lambda *arguments, **options: pom(
        "sample", "--model", model, *arguments, **({"cwd": tmp_path} | options)
    )


def is_usage_error(result, *words):
    assert result.returncode == 2, result.stderr
    assert_message(result, *words)


def is_failure(result, *words):
    assert result.returncode == 1, result.stderr
    assert_message(result, *words)


def assert_message(result, *words):
    assert result.stdout == ""
    assert "terminate called" not in result.stderr and "Exception raised from" not in result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def leaves_nothing(folder):
    assert [path.name for path in sorted(Path(folder).rglob("*"))] == []


def png_size(path):
    return struct.unpack(">II", Path(path).read_bytes()[16:24])


def png_text(path):
    data, at, text = Path(path).read_bytes(), 8, {}
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        if kind == b"tEXt":
            keyword, value = body.split(b"\0", 1)
            text[keyword.decode("latin-1")] = value.decode("latin-1")
        at += 12 + length
    return text


def change_settings(path, change, keyword="pom"):
    """Rewrites the `pom` chunk of a picture, as somebody who means harm would."""
    data = Path(path).read_bytes()
    start = b"tEXt" + keyword.encode() + b"\0"
    before = start + png_text(path)[keyword].encode()
    settings = json.loads(png_text(path)[keyword])
    change(settings)
    after = start + json.dumps(settings).encode()

    def framed(body):
        return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))

    assert framed(before) in data
    Path(path).write_bytes(data.replace(framed(before), framed(after)))


def plain_png(path):
    """A PNG of one black pixel that nobody here made."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\0\0\0")
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )
    return path


class TestHelp:
    def test_program(self, tmp_path):
        result = pom("--help", cwd=tmp_path)
        assert result.returncode == 0 and result.stderr == ""
        for command in COMMANDS:
            assert f"\n  {command} " in result.stdout
        assert "Examples" in result.stdout and "Exit status" in result.stdout

    @pytest.mark.parametrize("command", COMMANDS)
    def test_command(self, command, tmp_path):
        result = pom(command, "--help", cwd=tmp_path)
        assert result.returncode == 0 and result.stderr == ""
        assert max(map(len, result.stdout.splitlines())) <= 80
        usage, examples = result.stdout.index("\nUsage\n"), result.stdout.index("\nExamples\n")
        assert usage < examples and f"  pom {command}" in result.stdout[examples:]
        assert "\n\n\n" not in result.stdout  # a group without a name
        assert "\x1b" not in result.stdout

    def test_every_field_of_a_request_is_a_flag_in_a_group(self, tmp_path):
        text = pom("sample", "--help", cwd=tmp_path).stdout
        for flag in (
            "class",
            "seed",
            "count",
            "size",
            "steps",
            "sampler",
            "cfg-scale",
            "omega",
            "eta",
            "dtype",
        ):
            assert re.search(rf"^ +--{flag} [A-Zx]+", text, re.M), flag
        groups = re.findall(r"^\n(\w[\w ]+)\n(?=  )", text, re.M)
        assert groups[:6] == ["Usage", "Model", "What to make", "How to sample", "Clips", "Where it goes"]
        assert "1 to 10000" in text and "dpm++2m" in text and "--clip" not in text

    def test_version(self, tmp_path):
        result = pom("--version", cwd=tmp_path)
        assert result.returncode == 0 and re.match(r"libpom \d+\.\d+\.\d+ ", result.stdout)

    def test_examples_run(self, tmp_path):
        """Each example, in the order of the commands, where a small model and small recipes are. Those of
        bench are left to test_bench.py, of eval and experiment, which train a judge, to test_eval.py and
        test_experiment.py, and that of serve, which does not end, to test_serve.py."""
        from test_cli_video import write_clip_model

        write_model(tmp_path / "assets" / "shapes64", config=CONFIG | {"name": "shapes64"})
        write_clip_model(tmp_path / "assets" / "sprites32")
        (tmp_path / "recipes").mkdir()
        for name in ("shapes", "shapes-tiny"):
            (tmp_path / "recipes" / f"{name}.toml").write_text(RECIPE.replace("steps = 240", "steps = 20"))
        for name in ("imagenet-xl2", "webvid-xl2"):
            shutil.copy(Path(__file__).parents[2] / "recipes" / f"{name}.toml", tmp_path / "recipes")
        (tmp_path / "list.txt").write_text("a red star\n")
        for command in (name for name in COMMANDS if name not in ("bench", "eval", "experiment", "serve")):
            text = pom(command, "--help", cwd=tmp_path).stdout
            for line in text[text.index("\nExamples\n") :].replace("\\\n", " ").splitlines()[2:]:
                result = pom(*shlex.split(line)[1:], cwd=tmp_path)
                assert result.returncode == 0, (line, result.stderr)


class TestUsage:
    def test_nothing(self, tmp_path):
        is_usage_error(pom(cwd=tmp_path), "expected a command", "pom --help")

    def test_unknown_command(self, tmp_path):
        is_usage_error(pom("smaple", cwd=tmp_path), 'unknown command "smaple"', 'did you mean "sample"?')

    def test_unknown_flag(self, sample):
        is_usage_error(
            sample("--setps", 3), "unknown flag --setps", "did you mean --steps?", "pom sample --help"
        )

    @pytest.mark.parametrize(
        ("flag", "answer"),
        [
            ("--guidance-scale", "use --cfg-scale"),
            ("--guidance_scale", "use --cfg-scale"),
            ("--num-inference-steps=20", "use --steps"),
            ("--scheduler", "use --sampler"),
            ("--num-images-per-prompt", "use --count"),
            ("--batch-size", "use --count for how many are made, --batch for how many at a time"),
        ],
    )
    def test_flags_of_others(self, sample, flag, answer, tmp_path):
        is_usage_error(sample(flag, 3), f"unknown flag {flag.split('=')[0]}: {answer}\n")
        leaves_nothing(tmp_path)

    def test_flags_of_others_where_they_mean_nothing(self, tmp_path):
        result = pom("doctor", "--guidance-scale", 3, cwd=tmp_path)
        is_usage_error(result, "unknown flag --guidance-scale")
        assert "--cfg-scale" not in result.stderr

    def test_given_twice(self, sample, tmp_path):
        """Where one may think that it adds up; of the others the last one counts."""
        result = sample("--class", "star", "--class", "circle", "-o", "a.png")
        is_usage_error(result, "--class: given twice; write --class a,b")
        is_usage_error(sample("--seed", 1, "--seed", 2), "--seed: given twice; write --seed 3,14")
        result = sample("--negative-prompt", "a", "--negative-prompt", "b")
        is_usage_error(result, "--negative-prompt: given twice; expected one text")
        leaves_nothing(tmp_path)
        assert sample("--class", "star", "--steps", 9, "--steps", 1, "-o", "a.png").returncode == 0
        assert json.loads(png_text(tmp_path / "a.png")["pom"])["request"]["steps"] == 1

    def test_flag_before_the_command(self, tmp_path):
        is_usage_error(pom("--seed", 3, cwd=tmp_path), "--seed")

    def test_surplus_argument(self, sample):
        is_usage_error(sample("circle"), 'unexpected argument "circle"')

    def test_missing_value(self, sample):
        is_usage_error(sample("--class"), "--class: expected a value, got nothing")
        is_usage_error(sample("--class", "--seed", 3), "--class: expected a value, got the flag --seed")

    def test_missing_model(self, tmp_path):
        is_usage_error(pom("sample", cwd=tmp_path), "--model: expected a model folder")

    def test_model_by_name(self, model, tmp_path):
        def sample(name, env=None):
            words = (
                "sample",
                "--model",
                name,
                "--class",
                "star",
                "--steps",
                1,
                "-y",
                "-o",
                "out/a.png",
                "--json",
            )
            return pom(*words, cwd=tmp_path, env=env)

        for place in ("assets", "models"):
            shutil.copytree(model, tmp_path / place / "tiny")
        other = shutil.copytree(model, tmp_path / "elsewhere" / "tiny")
        folders = []
        for env in (environment(POM_MODELS=f"/nowhere:{other.parent}"), None):
            folders.append(json.loads(sample("tiny", env).stdout)["model"]["folder"])
        assert folders == [str(other), "assets/tiny"]
        is_usage_error(sample("tinny"), '"tinny"', "assets (tiny), models (tiny)", "did you mean tiny?")
        shutil.copytree(model, tmp_path / "assets" / ".hidden")
        is_usage_error(sample(".hidden"), '".hidden"', "assets (tiny), models")
        is_failure(sample("x/../tiny"), "no such folder")
        assert "circle, square, star" in pom("info", "tiny", cwd=tmp_path).stdout
        assert pom("doctor", "tiny", cwd=tmp_path).returncode == 0
        is_usage_error(pom("eval", "shapes", "tinny", cwd=tmp_path), "did you mean tiny?")
        shutil.copytree(model, tmp_path / "tiny")  # a path wins
        assert json.loads(sample("tiny").stdout)["model"]["folder"] == "tiny"

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (["--class", "crcle"], ["crcle", '"circle"']),
            (["--class", "17"], ["17"]),
            (["--steps", "0"], ["--steps: expected 1 to 10000, got 0"]),
            (["--steps", "1000000"], ["--steps: expected 1 to 10000, got 1000000"]),
            (["--steps", "many"], ["--steps: expected a whole number, 1 to 10000", '"many"']),
            (["--steps", "3.5"], ["--steps: expected a whole number"]),
            (["--sampler", "huen"], ["huen", '"heun"']),
            (["--size", "17x16"], ["divisible by 2", "17x16"]),
            (["--size", "big"], ["big"]),
            (["--size", "16x16", "--width", "16"], ["--size"]),
            (["--count", "0"], ["--count: expected 1 to"]),
            (["--cfg-scale", "nan"], ["--cfg-scale: expected a number"]),
            (["--cfg-scale", "2", "--omega", "1"], ["omega"]),
            (["--omega", "some"], ["omega", "some"]),
            (["--eta", "2"], ["--eta: expected 0 to 1, got 2"]),
            (["--clip", "2"], ["--clip: expected its new name, --clamp"]),
            (["--seed", "99999999999999999999"], ["--seed: expected a whole number"]),
            (["--dtype", "fp33"], ["fp33", "fp32"]),
            (["--batch", "0"], ["--batch: expected 1 to"]),
            (["--memory-limit", "lots"], ["--memory-limit", "4G"]),
            (["--threads", "-1"], ["--threads: expected 1 to"]),
            (["--preview", "0"], ["--preview: expected 1 to"]),
        ],
    )
    def test_values(self, sample, tmp_path, flags, words):
        is_usage_error(sample(*flags), *words)
        leaves_nothing(tmp_path)


class TestSample:
    def test_one_picture(self, sample, tmp_path):
        result = sample("--class", "circle", "--seed", 7, "-o", "circle.png")
        assert result.returncode == 0, result.stderr
        assert result.stdout == "circle.png\n"
        assert png_size(tmp_path / "circle.png") == (16, 16)
        assert [path.name for path in tmp_path.iterdir()] == ["circle.png"]

    def test_metadata(self, sample, model, tmp_path):
        sample("--class", "star", "--seed", 7, "--omega", "0.5", "--size", "16x8", "-o", "star.png")
        text = png_text(tmp_path / "star.png")
        assert text["parameters"].startswith(
            "star\nSteps: 3, Sampler: Euler, CFG scale: 1.5, Seed: 7, Size: 16x8"
        )
        own = json.loads(text["pom"])
        assert own["request"] | {"class": "star", "seed": 7, "count": 1, "steps": 3} == own["request"]
        hashed = subprocess.run(["sha256sum", model / "model.safetensors"], capture_output=True, text=True)
        assert own["model"] == {"name": "tiny", "sha256": hashed.stdout.split()[0]}

    def test_default_names(self, sample, tmp_path):
        result = sample("--class", "circle,star", "--seed", 5)
        assert result.stdout.split() == ["out/circle_5.png", "out/star_6.png"]
        result = sample("--grid", "--seed", 5)
        assert result.stdout.split() == ["out/tiny_sheet_5.png"]

    @pytest.mark.parametrize(
        ("output", "names"),
        [
            ("a_%03d.png", ["a_000.png", "a_001.png"]),
            ("a%d.jpg", ["a0.jpg", "a1.jpg"]),
            ("new/", ["new/tiny_000.png", "new/tiny_001.png"]),
            ("deep/{class}/{seed}.png", ["deep/circle/7.png", "deep/star/8.png"]),
            ("100%%_%d.png", ["100%_0.png", "100%_1.png"]),
        ],
    )
    def test_patterns(self, sample, tmp_path, output, names):
        result = sample("--class", "circle,star", "--seed", 7, "-o", output)
        assert result.stdout.split() == names, result.stderr
        assert all((tmp_path / name).is_file() for name in names)

    def test_existing_folder(self, sample, tmp_path):
        (tmp_path / "there").mkdir()
        assert sample("--class", "circle", "-o", "there").stdout.split() == ["there/tiny_000.png"]

    def test_json(self, sample, model, tmp_path):
        result = sample("--class", "circle,star", "--count", 2, "--seed", 3, "-o", "p_%d.png", "--json")
        answer = json.loads(result.stdout)
        assert answer["files"] == [f"p_{i}.png" for i in range(4)]
        assert answer["seeds"] == [3, 4, 5, 6]
        assert answer["classes"] == ["circle", "circle", "star", "star"]
        assert answer["seconds"] > 0 and answer["model"]["name"] == "tiny"

    def test_random_seed_is_reported(self, sample, tmp_path):
        result = sample("--class", "circle", "--seed", -1, "-o", "a.png", "--json")
        (seed,) = json.loads(result.stdout)["seeds"]
        assert seed >= 0 and f"using random seed {seed}" in result.stderr
        assert json.loads(png_text(tmp_path / "a.png")["pom"])["request"]["seed"] == seed

    def test_previews(self, sample, tmp_path):
        result = sample("--class", "circle", "--steps", 4, "--preview", 2, "-o", "a.png")
        assert "a_preview_002.png" in result.stderr
        assert "a_preview_002.png" in {path.name for path in tmp_path.iterdir()}
        assert "pom" not in png_text(tmp_path / "a_preview_002.png")
        again = sample("--class", "circle", "--steps", 4, "--preview", 2, "-o", "b.png")
        assert again.returncode == 0
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()

    def test_one_seed_one_picture(self, sample, tmp_path):
        flags = ["--class", "circle", "--seed", 40]
        sample(*flags, "--count", 8, "-o", "all_%d.png", "--threads", 2)
        sample(*flags, "--count", 3, "-o", "three_%d.png", "--batch", 1, "--threads", 1)
        sample("--class", "circle", "--seed", 42, "-o", "alone.png", "--threads", 1)
        sample(*flags, "--count", 8, "-o", "split_%d.png", "--batch", 3)
        read = lambda name: (tmp_path / name).read_bytes()  # noqa: E731
        for i in range(8):
            assert read(f"all_{i}.png") == read(f"split_{i}.png")
        for i in range(3):
            assert read(f"all_{i}.png") == read(f"three_{i}.png")
        assert read("alone.png") == read("all_2.png")

    def test_another_size_is_remarked_on(self, sample):
        flags = ["--class", "circle", "--steps", 1, "-y", "-o", "a.png"]
        remark = "the model's own size is 16x16: at 16x24"
        assert remark in sample(*flags, "--size", "16x24").stderr
        assert remark not in sample(*flags, "--size", "16x24", "-q").stderr
        assert "own size" not in sample(*flags, "--size", "16").stderr

    def test_quiet(self, sample, tmp_path):
        result = sample("--class", "circle", "-q", "-o", "a.png")
        assert result.stderr == "" and result.stdout == "a.png\n"

    def test_dry_run(self, sample, tmp_path):
        result = sample("--class", "circle", "--dry-run", "--json")
        assert result.returncode == 0, result.stderr
        forecast = json.loads(result.stdout)
        assert forecast["fits"] and forecast["seconds"] > 0 and forecast["peak_bytes"] > 0
        assert "it fits" in sample("--class", "circle", "--dry-run").stdout
        leaves_nothing(tmp_path)

    def test_dry_run_that_does_not_fit(self, sample, tmp_path):
        result = sample("--class", "circle", "--dry-run", "--memory-limit", "1M")
        assert result.returncode == 1 and "does not fit: " in result.stdout
        assert "--" in result.stdout.split("does not fit: ")[1]
        leaves_nothing(tmp_path)

    def test_progress_counts_from_the_start(self, sample):
        """With one evaluation too: not from when it was done."""
        said = sample("--class", "star", "--sampler", "euler", "--steps", 1, "-o", "a.png").stderr
        (rate,) = re.findall(r"^sampling: 1/1 in [\d.]+ s, ([\d.]+) evaluation/s$", said, re.M)
        assert float(rate) < 20_000
