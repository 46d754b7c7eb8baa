"""Where `pom sample` writes, sheets of images, and images made again from their own settings."""

# ruff: noqa: F811 (fixtures)
import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from test_cli import (  # noqa: F401
    _program_is_there,
    change_settings,
    environment,
    is_failure,
    is_usage_error,
    leaves_nothing,
    model,
    plain_png,
    png_size,
    png_text,
    pom,
    program,
    sample,
    write_model,
)
from tools import bound_by_permissions, referee


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
