"""TensorBoard itself as referee of libpom's event files: it has to read the scalars, texts and pictures that
were written, from several files in a folder, and all whole records of a file that a crash has cut.

LIBPOM_EVENTS_TOOL names the program of tests/tools/events_tool.cpp. Where it is unset the one built beside
the library is taken, or the program is compiled for the session, which takes seconds and no LibTorch.
"""

import io
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tools import referee

referee("tensorboard")
from tensorboard.backend.event_processing import event_accumulator, event_file_loader  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["tests/tools/events_tool", "pom/io/events", "pom/io/json_header", "pom/io/safetensors_error"]
SECONDS = 1700000000.25


@pytest.fixture(scope="session")
def tool(tmp_path_factory):
    given = os.environ.get("LIBPOM_EVENTS_TOOL")
    if given:
        return given
    built = Path(os.environ.get("LIBPOM_LIBRARY", "nowhere")).parent / "tests" / "events_tool"
    if built.is_file():
        return str(built)
    program = tmp_path_factory.mktemp("tool") / "events_tool"
    sources = [ROOT / f"{name}.cpp" for name in SOURCES]
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-std=c++20", "-O1", f"-I{ROOT}", *sources, "-o", program], check=True)
    return str(program)


def write(tool, folder, lines, seconds=SECONDS):
    """The path of an event file with these events."""
    text = "".join(line + "\n" for line in lines)
    words = [tool, str(folder), repr(seconds)]
    return Path(subprocess.run(words, input=text, text=True, check=True, capture_output=True).stdout.strip())


def accumulate(folder):
    guidance = {"scalars": 0, "tensors": 0, "images": 0}  # 0: all of them
    accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance=guidance)
    return accumulator.Reload()


def events(path):
    return list(event_file_loader.LegacyEventFileLoader(str(path)).Load())


def test_version_comes_first(tool, tmp_path):
    path = write(tool, tmp_path, [])
    (first,) = events(path)
    assert first.file_version == "brain.Event:2"
    assert first.wall_time == SECONDS
    assert path.name == "events.out.tfevents.1700000000.pom"


def test_scalars(tool, tmp_path):
    values = [0.1, -2.5, 0.0, 1e-30, 1e30, 7.0]
    steps = [0, 1, 127, 128, 300, 2**40]
    lines = [f"scalar train/loss {s} {SECONDS + s} {v}" for s, v in zip(steps, values, strict=True)]
    write(tool, tmp_path, [*lines, "scalar lr 5 6.5 0.001"])
    accumulator = accumulate(tmp_path)
    assert sorted(accumulator.Tags()["scalars"]) == ["lr", "train/loss"]
    found = accumulator.Scalars("train/loss")
    assert [event.step for event in found] == steps
    assert [event.wall_time for event in found] == [SECONDS + s for s in steps]
    assert [np.float32(event.value) for event in found] == [np.float32(v) for v in values]
    assert accumulator.Scalars("lr")[0].wall_time == 6.5


def test_scalars_that_are_not_finite(tool, tmp_path):
    write(tool, tmp_path, [f"scalar a {i} 1 {v}" for i, v in enumerate(["nan", "inf", "-inf", "1e300"])])
    values = [event.value for event in accumulate(tmp_path).Scalars("a")]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, math.inf]


def test_text(tool, tmp_path):
    write(tool, tmp_path, ["text recipe 3 4.5 # run\\nname = “é”", "text recipe 4 5.5 again"])
    accumulator = accumulate(tmp_path)
    assert accumulator.Tags()["tensors"] == ["recipe"]
    assert accumulator.SummaryMetadata("recipe").plugin_data.plugin_name == "text"
    first, second = accumulator.Tensors("recipe")
    assert (first.step, first.wall_time) == (3, 4.5)
    assert first.tensor_proto.dtype == 7  # DT_STRING
    assert [dim.size for dim in first.tensor_proto.tensor_shape.dim] == [1]
    assert list(first.tensor_proto.string_val) == ["# run\nname = “é”".encode()]
    assert list(second.tensor_proto.string_val) == [b"again"]


def picture(width, height):
    pixels = np.random.default_rng(7).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return pixels, file.getvalue()


def test_images(tool, tmp_path):
    pixels, png = picture(130, 67)
    (tmp_path / "a.png").write_bytes(png)
    write(tool, tmp_path, [f"image samples 200 9.5 130 67 {tmp_path / 'a.png'}"])
    (image,) = accumulate(tmp_path).Images("samples")
    assert (image.step, image.wall_time, image.width, image.height) == (200, 9.5, 130, 67)
    assert image.encoded_image_string == png
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(image.encoded_image_string))), pixels)


def test_the_modern_loader_gives_each_its_plugin(tool, tmp_path):
    """What the web page reads: values migrated to tensors, each with the plugin that shows it."""
    _, png = picture(4, 3)
    (tmp_path / "a.png").write_bytes(png)
    lines = ["scalar a 1 1 2.5", "text b 1 1 words", f"image c 1 1 4 3 {tmp_path / 'a.png'}"]
    path = write(tool, tmp_path, lines)
    plugins = {}
    for event in event_file_loader.EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            plugins[value.tag] = value.metadata.plugin_data.plugin_name
            assert value.HasField("tensor")
    assert plugins == {"a": "scalars", "b": "text", "c": "images"}


def test_files_of_one_folder_are_one_run(tool, tmp_path):
    """A run that was resumed, twice in the same second."""
    paths = [
        write(tool, tmp_path, [f"scalar a {i} {i} {i}"], seconds) for i, seconds in enumerate([8, 9, 9, 11])
    ]
    assert len(set(paths)) == 4
    assert paths == sorted(paths)
    found = accumulate(tmp_path).Scalars("a")
    assert [(event.step, event.value) for event in found] == [(i, i) for i in range(4)]


def test_a_file_cut_anywhere_gives_all_whole_records(tool, tmp_path):
    (tmp_path / "a.png").write_bytes(picture(4, 3)[1])
    lines = [
        "scalar a 1 1 2.5",
        "text b 2 1 words",
        f"image c 3 1 4 3 {tmp_path / 'a.png'}",
        "scalar a 4 1 3",
    ]
    data = write(tool, tmp_path, lines).read_bytes()
    ends = [0]
    while ends[-1] < len(data):
        size = int.from_bytes(data[ends[-1] : ends[-1] + 8], "little")
        ends.append(ends[-1] + 16 + size)
    assert ends[-1] == len(data) and len(ends) == 6
    cut = tmp_path / "cut"
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        whole = sum(end <= size for end in ends) - 1
        assert [event.step for event in events(cut)] == [0, 1, 2, 3, 4][:whole], size


def test_a_damaged_record_is_noticed(tool, tmp_path):
    """The sums are right, or this would find nothing: the reader stops at the record whose byte is wrong."""
    path = write(tool, tmp_path, ["scalar a 1 1 2.5", "scalar a 2 1 2.5"])
    data = bytearray(path.read_bytes())
    assert [event.step for event in events(path)] == [0, 1, 2]
    data[-6] ^= 1
    path.write_bytes(data)
    assert [event.step for event in events(path)] == [0, 1]
