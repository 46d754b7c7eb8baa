"""`pom info` and `pom doctor`, model folders that are not well, and the paths of the kernels."""

# ruff: noqa: F811 (fixtures)
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from reference_dipom import ReferenceDiPoM
from test_cli import (  # noqa: F401
    CLASSES,
    CONFIG,
    _program_is_there,
    environment,
    is_failure,
    is_usage_error,
    leaves_nothing,
    model,
    plain_png,
    pom,
    sample,
    write_model,
)
from tools import referee


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
