"""`pom bench` as a person meets it, tiny and on the processor: what its tables, files and JSON say agrees.

How long anything takes is nothing a test can judge, and none of these does.
"""

import json
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree

import pytest

from test_cli import environment, is_usage_error, leaves_nothing, pom, program
from tools import built_program, lacking

SMALL = ["--device", "cpu", "--dim", 32, "--heads", 2, "--budget", 0, "--threads", 1]
FIGURE = ["bench", "figure1", *SMALL, "--depth", 2, "--tokens", "16,64"]
OPERATOR = ["bench", "operator", *SMALL, "--tokens", "8,33"]
CLIPS = ["--tokens", 6, "--blocks", "1,3", "--before", "0,4", "--streams", "2,3"]
VIDEO = ["bench", "video", *SMALL, "--depth", 2, *CLIPS]
RATIOS = ["PoM/products", "attention/PoM"]
FIGURE_COLUMNS = ["tokens", "products", "PoM", "attention", *RATIOS]
STREAM_COLUMNS = ["blocks before", *FIGURE_COLUMNS[1:]]
STREAMS_COLUMNS = ["streams", *FIGURE_COLUMNS[1:]]
OPERATOR_COLUMNS = ["tokens", "products", "PoM", "attention", "TFLOP/s", "of peak", *RATIOS]


@pytest.fixture(scope="module", autouse=True)
def _program_is_there():
    if not re.search(r"^  bench ", pom("--help", cwd=built_program().parent).stdout, re.M):
        lacking("the program was built without training, and so without bench")


def done(*arguments, cwd):
    result = pom(*arguments, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result


def tables(text):
    """The cells of each table, the names of the columns first."""
    found, inside = [], False
    for line in text.splitlines():
        if line.startswith("|"):
            if not inside:
                found.append([])
            if "---" not in line:
                found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        inside = line.startswith("|")
    return found


def milliseconds(cell):
    assert re.fullmatch(r"[\d.]+ ±\d+\.\d%", cell), cell
    return float(cell.split()[0])


def check_table(table, columns, tokens):
    assert table[0] == columns
    assert [row[0] for row in table[1:]] == tokens
    for row in table[1:]:
        products, mixer, attention = map(milliseconds, row[1:4])
        assert min(products, mixer, attention) > 0
        assert float(row[-2]) == pytest.approx(mixer / products, rel=2e-3, abs=1e-3)
        assert float(row[-1]) == pytest.approx(attention / mixer, rel=2e-3, abs=1e-3)


def check_rows(rows, tokens, batch, first="tokens"):
    assert [(row[first], row["batch"]) for row in rows] == [(n, batch) for n in tokens]
    for row in rows:
        for name in ("products", "pom", "attention"):
            assert row[name]["ms"] > 0 and row[name]["spread"] >= 0 and row[name]["rounds"] >= 3
        assert row["pom_over_products"] == pytest.approx(row["pom"]["ms"] / row["products"]["ms"])
        assert row["attention_over_pom"] == pytest.approx(row["attention"]["ms"] / row["pom"]["ms"])


def test_figure1_table_and_files(tmp_path):
    folder = tmp_path / "report"
    words = [*FIGURE, "-o", folder]
    result = done(*words, cwd=tmp_path)
    assert "2 blocks of 32, feed-forward 4, 2 heads, fp32, batch 1" in result.stdout
    forward, both = tables(result.stdout)
    check_table(forward, FIGURE_COLUMNS, ["16", "64"])
    check_table(both, FIGURE_COLUMNS, ["16", "64"])
    assert sorted(path.name for path in folder.iterdir()) == ["figure1.json", "figure1.md", "figure1.svg"]
    page = (folder / "figure1.md").read_text()
    assert tables(page) == [forward, both]
    command = f"pom bench figure1 --tokens 16,64 --dim 32 --depth 2 --heads 2 --output {folder} --device cpu"
    assert f"{command} --budget 0 --threads 1\n" in page and f"{command} --budget 0" in result.stdout
    assert re.search(r"^- cpu: .*1 threads?, kernels \w+$", page, re.M)
    assert re.search(r"^- libpom \d.*, torch \d", page, re.M)
    assert re.search(r"^- \d{4}-\d\d-\d\d \d\d:\d\d UTC$", page, re.M)
    written = json.loads((folder / "figure1.json").read_text())
    assert written["forward"][1]["pom"]["ms"] == pytest.approx(milliseconds(forward[2][2]), rel=1e-3)
    again = pom(*words, cwd=tmp_path)
    assert again.returncode == 2 and "figure1.md" in again.stderr and again.stdout == ""
    done(*words, "-y", "--no-backward", cwd=tmp_path)
    assert "forward_backward" not in json.loads((folder / "figure1.json").read_text())


def test_figure1_plot(tmp_path):
    done(*FIGURE, "-o", tmp_path, cwd=tmp_path)
    root = ElementTree.parse(tmp_path / "figure1.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert root.tag == name + "svg"
    lines = root.findall(name + "polyline")
    assert len(lines) == 6  # three in each of two panels
    width, height = float(root.get("width")), float(root.get("height"))
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        assert len(points) == 2 and points[0][0] < points[1][0]
        assert all(0 < x < width and 0 < y < height for x, y in points)
    words = [text.text for text in root.iter(name + "text")]
    for word in ("products", "PoM", "attention"):
        assert words.count(word) == 2
    assert "prefers-color-scheme: dark" in root.find(name + "style").text
    assert {"16", "64", "tokens"} <= set(words)


def test_figure1_json(tmp_path):
    result = json.loads(done(*FIGURE, "--json", "--batch", 3, "--dtype", "bf16", cwd=tmp_path).stdout)
    assert (result["what"], result["dtype"], result["unit"]) == ("figure1", "bf16", "ms per image")
    assert result["command"].startswith("pom bench figure1 --dtype bf16 --tokens 16,64 --batch 3")
    expected = {"dim": 32, "depth": 2, "order": 2, "expand": 2, "heads": 2, "patch": 2}
    expected |= {"ffw_expand": 4, "attention_ffw_expand": 4, "optimizer_inside": False}
    assert result["settings"] == expected
    assert {"date", "device", "libpom", "torch", "notes"} <= set(result)
    check_rows(result["forward"], [16, 64], 3)
    check_rows(result["forward_backward"], [16, 64], 3)
    leaves_nothing(tmp_path)


def test_figure1_of_the_paper(tmp_path):
    result = json.loads(done(*FIGURE, "--paper", "--json", cwd=tmp_path).stdout)
    settings = result["settings"]
    assert (settings["ffw_expand"], settings["attention_ffw_expand"]) == (2, 4)
    assert settings["optimizer_inside"] is True and result["dtype"] == "fp32"
    check_rows(result["forward_backward"], [16, 64], 4)
    assert [row["label"] for row in result["forward"]] == [128, 256]  # (L / 32)² tokens
    text = done(*FIGURE, "--paper", cwd=tmp_path).stdout
    assert "Forward + backward + AdamW" in text
    check_table(tables(text)[1], FIGURE_COLUMNS, ["16 (128)", "64 (256)"])


def test_figure1_without_a_backward_pass(tmp_path):
    result = json.loads(done(*FIGURE, "--dtype", "fp16", "--json", cwd=tmp_path).stdout)
    assert "forward_backward" not in result
    assert result["notes"] == ["No backward pass: training is in bf16 or fp32, not in fp16."]


def test_what_takes_too_long_is_skipped(tmp_path):
    words = [*FIGURE, "--no-backward", "--longest", 0]
    table = tables(done(*words, cwd=tmp_path).stdout)[0]
    check_table(table[:2], FIGURE_COLUMNS, ["16"])  # of the first length nothing is known before
    assert all(re.fullmatch(r"skipped: about .* s a call", cell) for cell in table[2][1:4])
    assert table[2][4:] == ["-", "-"]
    row = json.loads(done(*words, "--json", cwd=tmp_path).stdout)["forward"][1]
    assert row["pom"].keys() == {"note"} and row["pom_over_products"] is None


@pytest.mark.parametrize("mask", ["none", "causal", "block:4"])
def test_operator(tmp_path, mask):
    words = [*OPERATOR, "--order", 3, "--expand", 1, "--mask", mask, "-o", tmp_path / "out"]
    text = done(*words, cwd=tmp_path).stdout
    assert f"a layer of 32, degree 3, expansion 1, 2 heads, mask {mask}, fp32" in text
    peak = float(re.search(r"^peak: ([\d.]+) TFLOP/s$", text, re.M)[1])
    result = json.loads((tmp_path / "out" / "operator.json").read_text())
    assert result["peak_tflops"] == pytest.approx(peak, rel=1e-3)
    for table, key, passes in zip(tables(text), ["forward", "forward_backward"], [1, 3], strict=True):
        check_table(table, OPERATOR_COLUMNS, ["8", "33"])
        check_rows(result[key], [8, 33], 1)
        for row, cells in zip(result[key], table[1:], strict=True):
            flops = passes * 2 * 3 * row["tokens"] * 32 * 3 * 32
            assert row["tflops"] == pytest.approx(flops / row["pom"]["ms"] / 1e9)
            assert row["share_of_peak"] == pytest.approx(row["tflops"] / result["peak_tflops"])
            assert row["share_of_products"] == pytest.approx(row["products"]["ms"] / row["pom"]["ms"])
            assert float(cells[5].rstrip("%")) == pytest.approx(100 * row["share_of_peak"], abs=0.051)
    ElementTree.parse(tmp_path / "out" / "operator.svg")
    assert tables((tmp_path / "out" / "operator.md").read_text()) == tables(text)


def test_video(tmp_path):
    text = done(*VIDEO, "-o", tmp_path / "out", cwd=tmp_path).stdout
    assert "2 layers of 32, feed-forward 4, 2 heads, fp32, blocks of 6 tokens (8 frames)" in text
    assert "one block, ms per block\n" in text and text.count(", ms per clip\n") == 2
    whole, stream, streams, training = tables(text)
    check_table(whole, FIGURE_COLUMNS, ["6", "18"])
    check_table(stream, STREAM_COLUMNS, ["0", "4"])
    check_table(streams, STREAMS_COLUMNS, ["2", "3"])
    check_table(training, FIGURE_COLUMNS, ["6", "18"])
    assert tables((tmp_path / "out" / "video.md").read_text()) == [whole, stream, streams, training]
    result = json.loads((tmp_path / "out" / "video.json").read_text())
    assert (result["what"], result["unit"]) == ("video", "ms per clip")
    check_rows(result["whole"], [6, 18], 1)
    check_rows(result["stream"], [0, 4], 1, "blocks_before")
    for row, count in zip(result["streams"], [2, 3], strict=True):
        check_rows([row], [count], count, "streams")
        seconds = 20 * count * row["pom"]["ms"] / 1e3
        said = re.search(
            rf"{count} streams in one batch, .* frames of each: (\S+) s, (\S+) frames a second",
            "\n".join(result["notes"]),
        )
        assert float(said[1]) == pytest.approx(seconds, rel=5e-3)
        assert float(said[2]) == pytest.approx(8 * count / seconds, rel=5e-3)
    check_rows(result["forward_backward"], [6, 18], 1)
    seconds = 20 * result["stream"][1]["pom"]["ms"] / 1e3
    said = re.search(r"block of 8 frames: (\S+) s, (\S+) frames a second", " ".join(result["notes"]))
    assert float(said[1]) == pytest.approx(seconds, rel=5e-3)
    assert float(said[2]) == pytest.approx(8 / seconds, rel=5e-3)
    words = [text.text for text in ElementTree.parse(tmp_path / "out" / "video.svg").getroot().iter()]
    assert words.count("tokens") == 2 and words.count("blocks before") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["expected what to time, got nothing"]),
        (["figure2"], ["figure2", "figure1"]),
        ([*FIGURE[1:], "--tokens", "16,50"], ["--tokens: expected squares", "got 50 (near: 49)"]),
        ([*FIGURE[1:], "--tokens", "16,x"], ["--tokens: expected a whole number", '"x"']),
        ([*FIGURE[1:], "--tokens", "0"], ["--tokens", "0"]),
        ([*FIGURE[1:], "--batch", "0"], ["--batch: expected 1 to 65536"]),
        ([*FIGURE[1:], "--dtype", "fp7"], ["--dtype", "fp7"]),
        ([*FIGURE[1:], "--dtype", "fp8"], ["--dtype: fp8 needs a GPU"]),
        ([*FIGURE[1:], "--heads", "3"], ["heads"]),
        ([*FIGURE[1:], "--dim", "30"], ["dim"]),
        ([*FIGURE[1:], "--variant", "XXL"], ["XXL"]),
        ([*FIGURE[1:], "--mask", "causal"], ["--mask: is for pom bench operator"]),
        ([*FIGURE[1:], "--paper", "--dtype", "bf16"], ["--dtype: expected fp32 with --paper"]),
        ([*FIGURE[1:], "--paper", "--ffw-expand", "3"], ["--ffw-expand: expected without --paper"]),
        ([*FIGURE[1:], "--device", "gpu"], ["device", '"gpu"']),
        ([*FIGURE[1:], "--tokans", "16"], ["unknown flag --tokans", "did you mean --tokens?"]),
        ([*OPERATOR[1:], "--mask", "block:0"], ["--mask: expected none, causal or block:K", "block:0"]),
        ([*OPERATOR[1:], "--mask", "window"], ["--mask: expected none, causal or block:K", "window"]),
        ([*OPERATOR[1:], "--depth", "3"], ["--depth: is for pom bench figure1"]),
        ([*OPERATOR[1:], "--before", "3"], ["--before: is for pom bench video"]),
        ([*FIGURE[1:], "--blocks", "3"], ["--blocks: is for pom bench video"]),
        ([*FIGURE[1:], "--streams", "3"], ["--streams: is for pom bench video"]),
        ([*VIDEO[1:], "--streams", "0"], ["--streams: expected 1 to"]),
        ([*VIDEO[1:], "--dtype", "fp8"], ["--dtype: fp8 needs a GPU"]),
        ([*VIDEO[1:], "--tokens", "4,5"], ["--tokens: expected one number with video"]),
        ([*VIDEO[1:], "--mask", "causal"], ["--mask: is for pom bench operator"]),
        ([*VIDEO[1:], "--paper"], ["--paper: is for pom bench figure1"]),
        ([*VIDEO[1:], "--variant", "XXL"], ["V-DiPoM-XXL/2"]),
        ([*VIDEO[1:], "--before", "-1"], ["--before: expected 0 to"]),
        ([*OPERATOR[1:], "--paper"], ["--paper: is for pom bench figure1"]),
        ([*OPERATOR[1:], "--heads", "3"], ["--heads: expected a divisor of dim = 32, got 3"]),
    ],
)
def test_wrong_flags(tmp_path, arguments, words):
    is_usage_error(pom("bench", *arguments, cwd=tmp_path), *words)
    leaves_nothing(tmp_path)


def test_variant_gives_the_sizes(tmp_path):
    words = ["bench", "figure1", "--device", "cpu", "--tokens", 1, "--no-backward", "--budget", 0, "--json"]
    settings = json.loads(done(*words, "--variant", "s/2", "--depth", 1, cwd=tmp_path).stdout)["settings"]
    assert (settings["dim"], settings["depth"], settings["heads"], settings["ffw_expand"]) == (384, 1, 6, 4)


def test_interrupt_leaves_no_report(tmp_path):
    words = [str(program()), *map(str, FIGURE), "--budget", "600", "-o", str(tmp_path / "out")]
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while "products" not in process.stdout.readline():  # the head of the first table
        pass
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped; no report was written" in said
    leaves_nothing(tmp_path)


def test_examples_run(tmp_path):
    text = pom("bench", "--help", cwd=tmp_path).stdout
    assert max(map(len, text.splitlines())) <= 80
    examples = text[text.index("\nExamples\n") :].splitlines()[2:]
    assert len(examples) == 3
    for line in examples:
        done(*line.split()[1:], cwd=tmp_path)
