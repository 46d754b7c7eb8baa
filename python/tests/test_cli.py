"""The program `pom`, as a person meets it: exit codes, messages, files, and nothing half-written.

It stands beside libpom.so ($LIBPOM_LIBRARY). The model is a tiny network of random
weights, which draws noise in colours and is enough for everything but beauty.
"""

import errno
import json
import os
import pty
import re
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import time
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from reference_dipom import ReferenceDiPoM, randomise
from tools import bound_by_permissions, built_program, referee
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


class TestOutput:
    def test_existing_file_is_kept(self, sample, tmp_path):
        (tmp_path / "a_1.png").write_text("mine")
        result = sample("--class", "circle", "--count", 3, "-o", "a_%d.png")
        is_usage_error(result, "a_1.png already exists", "-y")
        assert [path.name for path in tmp_path.iterdir()] == ["a_1.png"]
        assert (tmp_path / "a_1.png").read_text() == "mine"
        assert sample("--class", "circle", "--count", 3, "-o", "a_%d.png", "-y").returncode == 0
        assert png_size(tmp_path / "a_1.png") == (16, 16)

    def test_many_pictures_in_one_file(self, sample, tmp_path):
        result = sample("--class", "circle", "--count", 2, "-o", "a.png")
        is_usage_error(result, "a_%03d.png", "--grid")
        leaves_nothing(tmp_path)

    @pytest.mark.parametrize("output", ["a.gif", "a", "a_%s.png", "a_%.png", "a_%999999d.png"])
    def test_names_that_make_no_sense(self, sample, tmp_path, output):
        is_usage_error(sample("--class", "circle", "-o", output), "--output: expected", output)
        leaves_nothing(tmp_path)

    def test_folder_that_cannot_be_written(self, sample, tmp_path):
        is_failure(sample("--class", "circle", "-o", "/proc/self/a.png"), "cannot write into /proc")
        (tmp_path / "file").write_text("")
        is_failure(sample("--class", "circle", "-o", "file/a.png"), "file is not a folder")

    @pytest.mark.parametrize(
        "output", [["a" * 300 + ".png"], ["new/" + "a" * 300 + ".png"], ["a" * 245 + ".png", "--preview", 1]]
    )
    def test_names_too_long(self, sample, tmp_path, output):
        is_failure(sample("--class", "circle", "-o", *output), "--output: the name is too long")
        leaves_nothing(tmp_path)

    def test_link_that_leads_nowhere(self, sample, tmp_path):
        (tmp_path / "link").symlink_to("nowhere")
        is_failure(sample("--class", "circle", "-o", "link/a.png"), "link is not a folder")
        assert sample("--class", "circle", "-o", "link/../a.png").returncode == 1

    def test_pipe_is_not_replaced(self, sample, tmp_path):
        os.mkfifo(tmp_path / "a.png")
        is_usage_error(sample("--class", "circle", "-o", "a.png"), "a.png already exists")
        is_failure(sample("--class", "circle", "-y", "-o", "a.png"), "a.png is not an ordinary file")
        assert (tmp_path / "a.png").is_fifo()

    def test_folder_without_permission(self, model, tmp_path):
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o555)
        words = [program(), "sample", "--model", model, "--class", "circle", "-o", folder / "a.png"]
        words = [*bound_by_permissions(), *words]
        result = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment())
        is_failure(result, f"cannot write into {folder}", os.strerror(errno.EACCES))
        leaves_nothing(folder)

    def test_disk_full(self, sample, tmp_path):
        """A limit on the size of files stands for the full disk: writing fails in the middle of a picture."""

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        result = sample("--class", "circle", "-o", "a.png", preexec_fn=small_files)
        is_failure(result, "a.png", os.strerror(errno.EFBIG))
        leaves_nothing(tmp_path)

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
    def test_full_stdout(self, tmp_path):
        with open("/dev/full", "w") as full:
            result = pom(
                "info", "DiPoM-S/2", cwd=tmp_path, capture_output=False, stdout=full, stderr=subprocess.PIPE
            )
        assert result.returncode == 1 and os.strerror(errno.ENOSPC) in result.stderr

    def test_closed_pipe(self, model, tmp_path):
        """A reader that goes away ends the list of paths, not the pictures."""
        words = [program(), "sample", "--model", model, "--class", "circle", "--count", "4", "-o", "a_%d.png"]
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run(
            list(map(str, words)), cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, env=environment()
        )
        os.close(writer)
        assert result.returncode == 0, result.stderr
        assert len(list(tmp_path.glob("a_*.png"))) == 4

    def test_stdout_that_is_closed(self, sample, tmp_path):
        """Nobody was told, which is a failure; what was made is there."""
        result = sample("--class", "circle", "-o", "a.png", preexec_fn=lambda: os.close(1))
        assert result.returncode == 1 and "stdout: cannot write" in result.stderr
        assert png_size(tmp_path / "a.png") == (16, 16)

    def test_device_is_not_replaced(self, sample):
        is_failure(sample("--class", "circle", "-y", "-o", "/dev/null/a.png"), "/dev/null is not a folder")


class TestSheet:
    def test_sheet(self, sample, tmp_path):
        result = sample("--count", 2, "--seed", 1, "--grid", "-o", "sheet.png")
        assert result.stdout == "sheet.png\n", result.stderr
        width, height = png_size(tmp_path / "sheet.png")
        assert width >= 2 * 16 and height >= 3 * 16
        text = png_text(tmp_path / "sheet.png")
        run = json.loads(text["pom sheet"])
        assert run["count"] == 2 and run["class"] == "all" and run["seed"] == 1 and run["steps"] == 3
        first, settings = text["parameters"].splitlines()
        assert first == "sheet of 6 images: circle, square, star; seeds 1 to 6"
        assert settings.startswith("Steps: 3, ")
        assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]

    def test_reproduce(self, sample, model, tmp_path):
        for flags in (["--count", 2], ["--class", "circle"]):
            assert sample(*flags, "--grid", "-y", "-o", "sheet.png").returncode == 0
            result = pom("reproduce", "sheet.png", "--model", model, "-y", "-o", "again.png", cwd=tmp_path)
            assert result.returncode == 0 and result.stdout == "the pixels agree\n", result.stderr
            assert png_text(tmp_path / "again.png") == png_text(tmp_path / "sheet.png")

    def test_reproduce_believes_no_sheet(self, sample, model, tmp_path):
        """What a sheet says it holds must fit on it, and make a sheet of its size."""
        sample("--count", 2, "--grid", "-o", "sheet.png")
        original = (tmp_path / "sheet.png").read_bytes()
        width, height = png_size(tmp_path / "sheet.png")
        for change, words in (
            ({"count": 1_000_000}, ["at most", f"on {width}x{height} pixels", "got 1000000"]),
            ({"class": "0-2," * 1000 + "0"}, ["at most", "got 6002"]),
            ({"count": 3}, [f"expected what makes {width}x{height} pixels"]),
            ({"width": 4096, "height": 4096}, ["at most 0 images"]),
        ):
            (tmp_path / "sheet.png").write_bytes(original)
            change_settings(tmp_path / "sheet.png", lambda run, c=change: run.update(c), keyword="pom sheet")
            result = pom("reproduce", "sheet.png", "--model", model, cwd=tmp_path)
            is_failure(result, "the settings of the sheet: ", *words)

    def test_too_large_a_sheet_is_refused_before_the_work(self, sample, tmp_path):
        result = sample(
            "--class", "circle", "--count", 300, "--size", 1024, "--grid", "-o", "a.png", timeout=20
        )
        is_usage_error(result, "--grid: expected at most 256 images of 1024x1024", "got 300")
        leaves_nothing(tmp_path)

    @staticmethod
    def place(sheet, alone):
        """Where a picture stands on a sheet, enlarged to 96 pixels; nothing where it does not."""
        image = referee("PIL.Image")
        large = alone.resize((96, 96), image.NEAREST)
        for y in range(sheet.height - 95):
            for x in range(sheet.width - 95):
                if sheet.getpixel((x, y)) != large.getpixel((0, 0)):
                    continue
                if sheet.crop((x, y, x + 96, y + 96)).tobytes() == large.tobytes():
                    return x, y
        return None

    @pytest.mark.parametrize(
        "flags", [["--class", "circle"], ["--count", 2], ["--class", "0-1", "--count", 3]]
    )
    def test_a_sheet_has_every_picture_in_its_place(self, sample, tmp_path, flags):
        """Rows of one class; columns where there are more classes than pictures of each."""
        image = referee("PIL.Image")
        assert sample(*flags, "--seed", 3, "-o", "alone/{class}_%d.png").returncode == 0
        assert sample(*flags, "--seed", 3, "--grid", "-o", "sheet.png").returncode == 0
        sheet = image.open(tmp_path / "sheet.png").convert("RGB")
        places = {}
        for path in sorted((tmp_path / "alone").iterdir(), key=lambda path: int(path.stem.split("_")[1])):
            at = self.place(sheet, image.open(path).convert("RGB"))
            assert at is not None, path
            places.setdefault(path.stem.split("_")[0], []).append(at)
        axis = 1 if len(places) > len(next(iter(places.values()))) else 0  # along which a class goes on
        for spots in places.values():
            assert len({spot[1 - axis] for spot in spots}) == 1 and spots == sorted(
                spots, key=lambda s: s[axis]
            )
        firsts = [spots[0][1 - axis] for spots in places.values()]
        assert firsts == sorted(set(firsts))


class TestReproduce:
    @pytest.fixture
    def picture(self, sample, tmp_path):
        assert sample("--class", "star", "--seed", 9, "--sampler", "heun", "-o", "star.png").returncode == 0
        return tmp_path / "star.png"

    def test_agrees(self, picture, model, tmp_path):
        result = pom("reproduce", picture, "--model", model, "-o", "again.png", cwd=tmp_path)
        assert result.returncode == 0 and result.stdout == "the pixels agree\n", result.stderr
        assert (tmp_path / "again.png").read_bytes() == picture.read_bytes()
        answer = json.loads(pom("reproduce", picture, "--model", model, "--json", cwd=tmp_path).stdout)
        assert answer["agree"] and answer["same_weights"] and answer["different_pixels"] == 0

    def test_made_when_clamp_was_called_clip(self, picture, model, tmp_path):
        def rename(settings):
            settings["request"]["clip"] = settings["request"].pop("clamp")

        change_settings(picture, rename)
        assert pom("reproduce", picture, "--model", model, cwd=tmp_path).stdout == "the pixels agree\n"

    def test_finds_the_model(self, picture, model, tmp_path):
        is_failure(pom("reproduce", picture, cwd=tmp_path), '"tiny" was not found', "--model")
        found = pom(
            "reproduce", picture, cwd=tmp_path, env=environment(POM_MODELS=f"/nowhere:{model.parent}")
        )
        assert found.returncode == 0, found.stderr
        for place in ("assets", "models", "."):
            copy = shutil.copytree(model, tmp_path / place / "tiny")
            assert pom("reproduce", picture, cwd=tmp_path).returncode == 0, place
            shutil.rmtree(copy)

    def test_other_weights(self, picture, model, tmp_path):
        weights = load_file(model / "model.safetensors")
        weights["out_proj.bias"] += 0.05
        other = write_model(tmp_path / "other", weights=weights)
        result = pom("reproduce", picture, "--model", other, cwd=tmp_path)
        assert result.returncode == 1
        assert "the weights differ: the file was made with" in result.stderr
        assert re.match(r"\d+ of 256 pixels differ, by at most \d+ grey levels?\n", result.stdout)

    def test_pictures_that_do_not_tell(self, sample, tmp_path):
        foreign = plain_png(tmp_path / "foreign.png")
        is_failure(pom("reproduce", foreign, cwd=tmp_path), "foreign.png", "pom", "another program")
        sample("--class", "circle", "-o", "a.jpg")
        Image = referee("PIL.Image")
        Image.open(tmp_path / "a.jpg").save(tmp_path / "edited.jpg", comment="")
        is_failure(pom("reproduce", "edited.jpg", cwd=tmp_path), "edited.jpg", "pom", "took the text away")
        is_failure(pom("reproduce", "gone.png", cwd=tmp_path), "gone.png")
        is_usage_error(pom("reproduce", cwd=tmp_path), "expected an image or a clip, got nothing")

    def test_damaged_metadata(self, picture, model, tmp_path):
        data = picture.read_bytes().replace(b'"seed":9', b'"seed":x')
        (tmp_path / "bad.png").write_bytes(data)
        is_failure(pom("reproduce", "bad.png", "--model", model, cwd=tmp_path), "bad.png")

    def test_several_classes(self, picture, model, tmp_path):
        """One picture comes of one class: a list in its settings would draw more, and compare the first."""
        change_settings(picture, lambda settings: settings["request"].update({"class": "star,0-1"}))
        is_failure(pom("reproduce", picture, "--model", model, cwd=tmp_path), "one image", "star,0-1")

    def test_names_cannot_work_the_terminal(self, picture, tmp_path):
        change_settings(picture, lambda settings: settings["model"].update(name="a\x1b]0;b\x07c\x9bd"))
        is_failure(pom("reproduce", picture, cwd=tmp_path), r'"a\x1b]0;b\x07c\u009bd" was not found')

    def test_foreign_text_stays_in_its_line(self, picture, tmp_path):
        """No line of its own, nothing turned around, no more than can be read; of a result too."""
        name = "a\nsha256      0000\u202egnp" + "x" * 100_000
        change_settings(picture, lambda settings: settings["model"].update(name=name))
        shown = r"a\nsha256      0000\u202egnp" + "x" * 98 + "…"
        is_failure(pom("reproduce", picture, cwd=tmp_path), f'model "{shown}" was not found')
        lines = pom("info", "--picture", picture, cwd=tmp_path).stdout.splitlines()
        assert lines[0] == f"model       {shown}" and lines[1].startswith("sha256 ")

    def test_another_size_is_refused_before_sampling(self, picture, model, tmp_path):
        def larger(settings):
            settings["request"].update(width=4096, height=4096, steps=10000)

        change_settings(picture, larger)
        result = pom("reproduce", picture, "--model", model, cwd=tmp_path, timeout=30)
        is_failure(result, "expected the file's size, 16x16, got 4096x4096")

    def test_long_work_is_told_before_it_begins(self, picture, model, tmp_path):
        change_settings(picture, lambda settings: settings["request"].update(steps=10000))
        words = [program(), "reproduce", picture, "--model", model]
        run = subprocess.Popen(
            list(map(str, words)), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
        )
        told = run.stderr.readline()
        assert re.fullmatch(r"1 image, 10000 steps, 19999 evaluations: about .*\n", told)
        time.sleep(0.5)  # it is sampling, and far from done
        run.send_signal(signal.SIGINT)
        assert "stopped" in run.communicate(timeout=60)[1] and run.returncode == 130

    def test_a_name_is_no_path(self, picture, model, tmp_path):
        """Somebody else's picture must not make us open ../../anything."""
        (tmp_path / "models").mkdir()
        shutil.copytree(model, tmp_path / "tiny")  # which models/../tiny would be
        change_settings(picture, lambda settings: settings["model"].update(name="../tiny"))
        is_failure(pom("reproduce", picture, cwd=tmp_path), '"../tiny" was not found')


class TestInfo:
    def test_picture(self, sample, tmp_path):
        sample("--class", "star", "--seed", 9, "-o", "star.png")
        result = pom("info", "--picture", "star.png", cwd=tmp_path)
        lines = dict(line.split(None, 1) for line in result.stdout.splitlines())
        assert lines["model"] == "tiny" and lines["class"] == "star" and lines["seed"] == "9"
        assert lines["sampler"] == "euler" and lines["cfg_scale"] == "2"
        answer = json.loads(pom("info", "--picture", "star.png", "--json", cwd=tmp_path).stdout)
        assert answer["request"]["class"] == "star" and answer["model"]["name"] == "tiny"
        is_failure(pom("info", "--picture", plain_png(tmp_path / "x.png"), cwd=tmp_path), "x.png")

    @pytest.mark.parametrize("name", ["DiPoM-S/2", "DiT-B/4"])
    def test_variant(self, name, tmp_path):
        from reference_dipom import variants

        with torch.device("meta"):
            network = ReferenceDiPoM(**variants()[name])
        answer = json.loads(pom("info", name.lower(), "--json", cwd=tmp_path).stdout)
        assert answer["parameters"] == sum(p.numel() for p in network.parameters())
        assert answer["macs"] > answer["parameters"]
        sampling, training = answer["memory"]["sampling"], answer["memory"]["training"]
        assert 4 * answer["parameters"] < sampling["fp32"]["unguided"] < sampling["fp32"]["guided"]
        assert sampling["bf16"]["guided"] < sampling["fp32"]["guided"] < training["fp32"]

    def test_size(self, tmp_path):
        small, large = (
            json.loads(pom("info", "DiPoM-S/2", "--size", size, "--json", cwd=tmp_path).stdout)
            for size in ("256x256", "512x256")
        )
        assert large["tokens"] == 2 * small["tokens"] == 512
        assert 1.9 < large["macs"] / small["macs"] < 2.1
        is_usage_error(
            pom("info", "DiPoM-S/2", "--size", "100x100", cwd=tmp_path), "multiples of 16", "100x100"
        )

    def test_table(self, tmp_path):
        lines = pom("info", cwd=tmp_path).stdout.splitlines()
        assert len(lines) == 1 + 32 + 1 and lines[1].startswith("DiPoM-S/2 ")
        assert len(json.loads(pom("info", "--json", cwd=tmp_path).stdout)["variants"]) == 32

    def test_folder(self, model, tmp_path):
        text = pom("info", model, cwd=tmp_path).stdout
        assert "tiny" in text and "circle, square, star" in text and "euler, 3 steps" in text
        answer = json.loads(pom("info", model, "--json", cwd=tmp_path).stdout)
        weights = load_file(model / "model.safetensors")
        assert answer["parameters"] == sum(tensor.numel() for tensor in weights.values())
        assert answer["size"] == [16, 16] and answer["class_names"] == CLASSES
        assert answer["config"]["network"]["dim"] == 16

    def test_mistakes(self, tmp_path):
        near = pom("info", "DiPoM-S/3", cwd=tmp_path)
        is_usage_error(near, "neither a variant nor a folder", "did you mean DiPoM-S/2?")
        is_usage_error(pom("info", "no/where", cwd=tmp_path), "neither a variant nor a folder")
        is_usage_error(pom("info", "--piture", "x", cwd=tmp_path), "did you mean --picture?")


class TestModelFolder:
    """Folders that are not well: told by sample and by doctor, with the name of what is wrong."""

    def both(self, folder, tmp_path, *words):
        is_failure(pom("sample", "--model", folder, "--class", 0, "-o", "a.png", cwd=tmp_path), *words)
        assert not (tmp_path / "a.png").exists()
        result = pom("doctor", folder, cwd=tmp_path)
        assert result.returncode == 1 and "\nproblem " in result.stdout and "-> " in result.stdout

    def test_no_folder(self, tmp_path):
        self.both(tmp_path / "nowhere", tmp_path, "nowhere")

    def test_no_weights(self, model, tmp_path):
        folder = shutil.copytree(model, tmp_path / "m")
        (folder / "model.safetensors").unlink()
        self.both(folder, tmp_path, "model.safetensors")

    def test_truncated_weights(self, model, tmp_path):
        folder = shutil.copytree(model, tmp_path / "m")
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
        self.both(folder, tmp_path, "model.safetensors")

    def test_foreign_weights(self, model, tmp_path):
        folder = shutil.copytree(model, tmp_path / "m")
        (folder / "model.safetensors").write_bytes(b"PK\x03\x04" + bytes(range(256)) * 8)
        self.both(folder, tmp_path, "model.safetensors")

    def test_wrong_tensor(self, model, tmp_path):
        weights = load_file(model / "model.safetensors")
        weights["out_proj.bias"] = torch.zeros(7)
        self.both(write_model(tmp_path / "m", weights=weights), tmp_path, "out_proj.bias", "7")

    def test_prefix(self, model, tmp_path):
        weights = {f"model.{k}": v for k, v in load_file(model / "model.safetensors").items()}
        self.both(write_model(tmp_path / "m", weights=weights), tmp_path, "model.")

    def test_unknown_field(self, tmp_path):
        config = CONFIG | {"network": CONFIG["network"] | {"dpeth": 2}}
        self.both(write_model(tmp_path / "m", config=config), tmp_path, "dpeth", "depth")

    def test_ill_typed_field(self, tmp_path):
        config = CONFIG | {"network": CONFIG["network"] | {"depth": "two"}}
        self.both(write_model(tmp_path / "m", config=config), tmp_path, "depth", "two")

    @pytest.mark.parametrize(
        "text",
        [
            '{"format": 1, "name": "%s"}' % ("n" * 10_000_000),
            '{"format": %s}' % ("1" * 1_000_000),
            '{"format": 1, "%s": 1}' % ("k" * 100_000),
            '{"format": 1, "network": {"kind": "%s"}}' % ("v" * 100_000),
            '{"format": 1, "network": {"variant": "%s"}}' % ("v" * 100_000),
            '{{"{0}": 1, "{0}": 2}}'.format("k" * 100_000),
        ],
        ids=["name", "number", "field", "value", "variant", "twice"],
    )
    def test_no_more_is_echoed_than_can_be_read(self, tmp_path, text):
        folder = write_model(tmp_path / "m")
        (folder / "config.json").write_text(text)
        result = pom("sample", "--model", folder, cwd=tmp_path)
        is_failure(result, "config.json: ")
        assert len(result.stderr) < 1000

    def test_no_json(self, model, tmp_path):
        folder = shutil.copytree(model, tmp_path / "m")
        (folder / "config.json").write_text("{")
        self.both(folder, tmp_path, "config.json")

    def test_not_finite(self, model, tmp_path):
        weights = load_file(model / "model.safetensors")
        weights["in_conv.bias"][3] = float("nan")
        result = pom("doctor", write_model(tmp_path / "m", weights=weights), cwd=tmp_path)
        assert result.returncode == 1 and "in_conv.bias: expected finite values" in result.stdout


class TestDoctor:
    def test_machine(self, tmp_path):
        result = pom("doctor", cwd=tmp_path)
        assert result.returncode == 0 and "\nproblem" not in result.stdout
        for subject in (
            "libpom",
            "LibTorch",
            "processor",
            "kernels",
            "threads",
            "memory",
            "GPU",
            "pictures",
            "disk",
        ):
            assert re.search(rf"^(ok|note) +{subject}: ", result.stdout, re.M), subject
        assert "terminal: stderr is not a terminal: " in result.stdout

    def test_model(self, model, tmp_path):
        result = pom("doctor", model, "--json", cwd=tmp_path)
        answer = json.loads(result.stdout)
        assert result.returncode == 0 and answer["ok"]
        states = {check["subject"]: check["state"] for check in answer["checks"]}
        assert states["model config"] == states["model weights"] == states["model runs"] == "ok"
        leaves_nothing(tmp_path)

    def test_lowered_kernels(self, tmp_path):
        lowered = pom("doctor", cwd=tmp_path, env=environment(POM_CPU_ISA="base"))
        assert re.search(r"^note +kernels: base.*POM_CPU_ISA=base", lowered.stdout, re.M)
        wrong = pom("doctor", cwd=tmp_path, env=environment(POM_CPU_ISA="quantum"))
        assert wrong.returncode == 1 and re.search(r"^problem +kernels: .*POM_CPU_ISA", wrong.stdout, re.M)


class TestPath:
    def test_composed_pictures(self, model, tmp_path):
        image = referee("PIL.Image")
        words = ["sample", "--model", model, "--class", 0, "--steps", 2, "-q", "-o"]
        for name, path in (("a.png", "composed"), ("b.png", "fused")):
            made = pom(*words, name, cwd=tmp_path, env=environment(POM_PATH=path))
            assert made.returncode == 0, made.stderr
        a, b = (image.open(tmp_path / name).tobytes() for name in ("a.png", "b.png"))
        assert max(abs(x - y) for x, y in zip(a, b, strict=True)) <= 1

    def test_unknown_path(self, model, tmp_path):
        words = ["sample", "--model", model, "--class", 0, "--steps", 2, "-o", "a.png"]
        wrong = pom(*words, cwd=tmp_path, env=environment(POM_PATH="quick"))
        assert wrong.returncode == 1
        assert "POM_PATH: expected automatic, fused or composed, got quick" in wrong.stderr
        leaves_nothing(tmp_path)


class TestTerminal:
    def on_terminal(self, words, cwd, env):
        """What a person sees: stdout and stderr on a terminal of their own."""
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            list(map(str, words)), cwd=cwd, env=env, stdin=follower, stdout=follower, stderr=follower
        )
        os.close(follower)
        seen = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # the last writer has gone
                break
            if not part:
                break
            seen += part
        os.close(leader)
        return process.wait(), seen.decode()

    def test_bar_and_colour(self, model, tmp_path):
        words = [program(), "sample", "--model", model, "--class", "circle", "-o", "a.png"]
        code, seen = self.on_terminal(words, tmp_path, environment(TERM="xterm"))
        assert code == 0 and "\r" in seen and "a.png" in seen
        _, help_text = self.on_terminal([program(), "--help"], tmp_path, environment(TERM="xterm"))
        assert "\x1b[1m" in help_text
        _, plain = self.on_terminal([program(), "--help"], tmp_path, environment(TERM="xterm", NO_COLOR=1))
        assert "\x1b[1m" not in plain

    def test_plain_lines_elsewhere(self, sample):
        result = sample("--class", "circle", "-o", "a.png")
        assert "\r" not in result.stderr and "\x1b" not in result.stderr and "sampling" in result.stderr


class TestSignals:
    def start(self, model, folder, *flags):
        words = [
            program(),
            "sample",
            "--model",
            model,
            "--class",
            "circle",
            "--steps",
            10000,
            "--count",
            2,
            *flags,
        ]
        process = subprocess.Popen(
            list(map(str, words)),
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        preview = folder / "a_0_preview_001.png"
        deadline = time.monotonic() + 60
        while not preview.exists():  # the first step is done: it is in the middle of its work
            assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
            time.sleep(0.01)
        return process

    @pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
    def test_stops(self, model, tmp_path, sent):
        process = self.start(model, tmp_path, "-o", "a_%d.png", "--preview", 1)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + sent
        assert "stopped; no image was written" in err and out == ""
        names = {path.name for path in tmp_path.iterdir()}
        assert all(re.fullmatch(r"a_0_preview_\d+\.png|a_1_preview_\d+\.png", name) for name in names)
        for path in tmp_path.iterdir():
            assert path.read_bytes().endswith(b"IEND\xaeB`\x82")

    def test_says_what_was_written(self, model, tmp_path):
        words = ["--batch", 1, "--steps", 300, "--count", 500, "-o", "a_%d.png", "--preview", 1, "--json"]
        process = self.start(model, tmp_path, *words)
        deadline = time.monotonic() + 60
        while not (tmp_path / "a_0.png").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        answer = json.loads(out)
        assert answer["stopped"] and answer["files"][0] == "a_0.png"
        assert len(answer["files"]) == len(answer["seeds"]) == len(list(tmp_path.glob("a_?.png")))
        assert f"stopped; {len(answer['files'])} of 500 images were written" in err
