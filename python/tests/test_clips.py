"""ffprobe, ffmpeg, Pillow and numpy as referees of libpom's clips.

tests/tools/clip_tool stands beside libpom.so ($LIBPOM_LIBRARY); LIBPOM_CLIP_TOOL names another. The C++ side
is tests/io/clip.cpp and tests/data/clips.cpp.
"""

import json
import os
import subprocess
from fractions import Fraction

import numpy as np
import pytest

from tools import built_tool, ffmpeg_is_there, lacking, referee

Image = referee("PIL.Image")


@pytest.fixture(scope="module")
def tool():
    return os.environ.get("LIBPOM_CLIP_TOOL") or str(built_tool("clip_tool"))


@pytest.fixture(scope="module")
def ffmpeg():
    ffmpeg_is_there()


def frames_of(width, height, count):
    """(count, H, W, 3): a slope of two colours, and a bright square that moves."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    clip = np.empty((count, height, width, 3), np.uint8)
    for i in range(count):
        clip[i, ..., 0] = 40 + 150 * x / max(width, 2)
        clip[i, ..., 1] = 60 + 120 * y / max(height, 2)
        clip[i, ..., 2] = 90 + 3 * i % 100
        left = (2 * i) % max(width - 4, 1)
        clip[i, height // 3 : height // 3 + 6, left : left + 6] = (240, 220, 40)
    return clip


def write(tool, path, clip, fps, *words):
    size = [str(clip.shape[2]), str(clip.shape[1]), str(fps)]
    done = subprocess.run(
        [tool, "write", str(path), *size, *words], input=clip.tobytes(), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def read(tool, path, *words):
    """What our reader makes of a file: (F, H, W, 3)."""
    words = [tool, "read", str(path), *map(str, words)]
    done = subprocess.run(words, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    data, frames = done.stdout, []
    while data:
        line, data = data.split(b"\n", 1)
        width, height = map(int, line.split())
        frames.append(np.frombuffer(data[: 3 * width * height], np.uint8).reshape(height, width, 3))
        data = data[3 * width * height :]
    return np.stack(frames)


def probe(path):
    """The one stream of a file, its frames counted by decoding them."""
    words = ["ffprobe", "-v", "error", "-count_frames", "-show_streams", "-show_format", "-of", "json", path]
    found = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    assert len(found["streams"]) == 1
    return found["streams"][0] | {"tags": found["format"].get("tags", {}), "format": found["format"]}


def decoded(path, width, height):
    """By ffmpeg itself, at its best: (F, H, W, 3)."""
    flags = ["-sws_flags", "area+accurate_rnd+full_chroma_int"]
    words = ["ffmpeg", "-v", "error", "-i", path, *flags, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    data = subprocess.run(words, capture_output=True, check=True).stdout
    return np.frombuffer(data, np.uint8).reshape(-1, height, width, 3)


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("fps", [8, 16, 29.97, 12.5])
@pytest.mark.parametrize(("ending", "codec"), [("mp4", "h264"), ("webm", ("vp9", "vp8"))])
def test_ffprobe_agrees(tool, ffmpeg, tmp_path, ending, codec, fps, growing):
    clip = frames_of(64, 40, 21)
    path = tmp_path / f"a.{ending}"
    write(tool, path, clip, fps, *(["growing"] if growing else []))
    stream = probe(path)
    assert stream["codec_name"] in codec
    assert stream["pix_fmt"] == "yuv420p"
    assert (stream["width"], stream["height"]) == (64, 40)
    assert int(stream["nb_read_frames"]) == 21
    expected = Fraction(30000, 1001) if fps == 29.97 else Fraction(fps).limit_denominator(100)
    # WebM has times in thousandths of a second.
    assert float(Fraction(stream["avg_frame_rate"])) == pytest.approx(float(expected), rel=5e-3)
    if ending == "mp4":
        assert Fraction(stream["r_frame_rate"]) == expected
        assert stream["color_space"] == "bt709" and stream["color_range"] == "tv"
    if not growing:
        assert float(stream["format"]["duration"]) == pytest.approx(21 / float(expected), abs=0.06)
        if ending == "mp4":
            assert int(stream["nb_frames"]) == 21
            assert path.read_bytes().index(b"moov") < path.read_bytes().index(b"mdat")
    difference = np.abs(decoded(path, 64, 40).astype(int) - clip)
    assert difference.mean() < 4


@pytest.mark.parametrize(("width", "height"), [(33, 17), (17, 32), (1, 1), (2, 3)])
def test_odd_sizes(tool, ffmpeg, tmp_path, width, height):
    clip = frames_of(width, height, 3)
    write(tool, tmp_path / "a.mp4", clip, 8)
    stream = probe(tmp_path / "a.mp4")
    assert (stream["width"], stream["height"]) == (width + width % 2, height + height % 2)
    assert stream["pix_fmt"] == "yuv420p" and int(stream["nb_read_frames"]) == 3
    write(tool, tmp_path / "a.webm", clip, 8)
    stream = probe(tmp_path / "a.webm")
    assert (stream["width"], stream["height"]) == (width, height)


PARAMETERS = "a red star → left\nSteps: 20, Sampler: Heun, Seed: 7"
SETTINGS = '{"format":1,"request":{"prompt":"a \\"red\\" star → left\\n","seed":7}}'
ALL_TEXT = f"parameters: {PARAMETERS}\npom: {SETTINGS}".replace("\nSteps", "\n Steps")


def text_of(tool, path):
    """What our reader finds in a file: {keyword: text}."""
    done = subprocess.run([tool, "text", str(path)], capture_output=True, check=True)
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("ending", ["mp4", "webm", "gif", "y4m"])
def test_settings_are_in_the_file(tool, ffmpeg, tmp_path, ending, growing):
    path, clip = tmp_path / f"a.{ending}", frames_of(32, 32, 3)
    words = ["growing"] if growing else []
    write(tool, path, clip, 8, f"text={PARAMETERS}", f"json={SETTINGS}", *words)
    stream = probe(path)
    assert int(stream["nb_read_frames"]) == 3
    tags = {key.lower(): value for key, value in stream["tags"].items()}
    if ending in {"mp4", "webm"}:  # what players show, and what we read
        assert tags["comment"] == PARAMETERS and tags["synopsis"] == ALL_TEXT
    elif ending == "gif":
        assert tags["comment"] == ALL_TEXT
    assert text_of(tool, path) == {"parameters": PARAMETERS, "pom": SETTINGS}
    # No frame is another one for it, and ffmpeg has nothing to complain of.
    bare = tmp_path / f"bare.{ending}"
    write(tool, bare, clip, 8, *words)
    assert np.array_equal(decoded(path, 32, 32), decoded(bare, 32, 32))
    words = ["ffmpeg", "-v", "warning", "-i", path, "-f", "null", "-"]
    assert subprocess.run(words, capture_output=True, check=True).stderr == b""


def test_text_that_ffmpeg_copies_to_another_file(tool, ffmpeg, tmp_path):
    write(tool, tmp_path / "a.mp4", frames_of(32, 32, 3), 8, f"text={PARAMETERS}", f"json={SETTINGS}")
    for name in ("b.mp4", "c.webm"):
        words = ["ffmpeg", "-v", "error", "-i", tmp_path / "a.mp4", tmp_path / name]
        subprocess.run(words, check=True)
        assert text_of(tool, tmp_path / name) == {"parameters": PARAMETERS, "pom": SETTINGS}


def test_text_of_an_y4m_that_is_piped(tool, ffmpeg, tmp_path):
    path = tmp_path / "a.y4m"
    write(tool, path, frames_of(32, 32, 3), 8, f"text={PARAMETERS}", f"json={SETTINGS}")
    words = [
        "ffmpeg",
        "-v",
        "warning",
        "-f",
        "yuv4mpegpipe",
        "-i",
        "-",
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-",
    ]
    done = subprocess.run(words, input=path.read_bytes(), capture_output=True, check=True)
    assert len(done.stdout) == 3 * 32 * 32 * 3 and done.stderr == b""


def test_text_of_frames_in_a_folder(tool, tmp_path):
    clip = frames_of(32, 24, 3)
    write(tool, tmp_path / "frames", clip, 8, f"text={PARAMETERS}", f"json={SETTINGS}")
    for i in range(3):
        with Image.open(tmp_path / "frames" / f"{i:06d}.png") as frame:
            assert frame.text == {"parameters": PARAMETERS, "pom": SETTINGS}
    assert text_of(tool, tmp_path / "frames") == {"parameters": PARAMETERS, "pom": SETTINGS}
    assert np.array_equal(read(tool, tmp_path / "frames"), clip)


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("fps", [4, 8, 12, 25])
def test_gif_by_pillow(tool, tmp_path, growing, fps):
    clip = frames_of(32, 24, 9)
    clip &= 0xF0  # few colours: no loss
    write(tool, tmp_path / "a.gif", clip, fps, *(["growing"] if growing else []), "text=hello")
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 9 and gif.size == (32, 24)
        assert gif.info["loop"] == 0
        assert gif.info["comment"] == b"parameters: hello"
        total = 0
        for i in range(9):
            gif.seek(i)
            total += gif.info["duration"]
            assert np.array_equal(np.asarray(gif.convert("RGB")), clip[i])
    assert total == pytest.approx(9000 / fps, abs=10)


def test_gif_of_many_colours(tool, tmp_path):
    y, x = np.mgrid[0:120, 0:160].astype(float)
    clip = np.stack(
        [np.stack([x * 1.5, y * 2, 128 + 100 * np.sin(x / 30 + y / 20 + i)], -1) for i in range(4)]
    )
    clip = clip.astype(np.uint8)
    write(tool, tmp_path / "a.gif", clip, 8)
    with Image.open(tmp_path / "a.gif") as gif:
        for i in range(4):
            gif.seek(i)
            difference = np.abs(np.asarray(gif.convert("RGB")).astype(int) - clip[i])
            assert difference.mean() < 8 and difference.max() < 80


def test_y4m_for_a_player(tool, ffmpeg, tmp_path):
    clip = frames_of(31, 18, 5)
    done = subprocess.run(
        [tool, "y4m", "31", "18", "8"], input=clip.tobytes(), capture_output=True, check=True
    )
    (tmp_path / "a.y4m").write_bytes(done.stdout)
    stream = probe(tmp_path / "a.y4m")
    assert stream["pix_fmt"] == "yuv444p" and stream["r_frame_rate"] == "8/1"
    assert int(stream["nb_read_frames"]) == 5
    assert np.abs(decoded(tmp_path / "a.y4m", 31, 18).astype(int) - clip).max() <= 4


def test_a_closed_pipe_is_told_apart(tool):
    clip = frames_of(64, 64, 200)
    writer = subprocess.Popen(
        [tool, "y4m", "64", "64", "8"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    writer.stdin.write(clip[:2].tobytes())
    writer.stdin.flush()
    writer.stdout.read(1000)
    writer.stdout.close()
    try:
        writer.stdin.write(clip.tobytes())
        writer.stdin.close()
    except BrokenPipeError:
        pass
    message = writer.stderr.read().decode()
    assert writer.wait(timeout=60) == 3, message
    assert "nobody reads" in message


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_growing_mp4_that_was_cut_plays(tool, ffmpeg, tmp_path, share):
    write(tool, tmp_path / "a.mp4", frames_of(64, 64, 64), 8, "growing")
    data = (tmp_path / "a.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: int(len(data) * share)])
    words = ["ffmpeg", "-v", "quiet", "-i", tmp_path / "cut.mp4", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    frames = len(subprocess.run(words, capture_output=True).stdout) // (64 * 64 * 3)
    assert int(64 * share) - 16 <= frames <= int(64 * share) + 16 and frames > 0


def test_a_program_that_is_killed_leaves_a_file_that_plays(tool, ffmpeg, tmp_path):
    words = [tool, "write", str(tmp_path / "a.mp4"), "64", "64", "8", "growing"]
    writer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    writer.stdin.write(frames_of(64, 64, 40).tobytes())
    writer.stdin.flush()
    path = tmp_path / "a.mp4"
    while not path.exists() or path.read_bytes().count(b"moof") < 4:
        assert writer.poll() is None
    writer.kill()
    writer.wait()
    assert int(probe(path)["nb_read_frames"]) >= 32


@pytest.mark.parametrize(
    "ending", ["mp4", "mkv", "avi", "mov", "webm", "gif", "mpg", "ts", "flv", "wmv", "ogv", "m4v"]
)
def test_files_of_ffmpeg_by_ours(tool, ffmpeg, tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    source = "testsrc=size=96x64:rate=25:duration=2"
    subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", source, "-y", path], check=True)
    ours, theirs = read(tool, path), decoded(path, 96, 64)
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(int) - theirs).mean() < 4
    # At 10 every other time is the very end of a frame, which a .ts, whose clock begins elsewhere, rounds.
    for fps in (5,) if ending == "ts" else (5, 10):
        few = read(tool, path, 0, 0, fps, 0)
        assert len(few) == 2 * fps
        step = 25 / fps
        for i, frame in enumerate(few):
            assert np.abs(frame.astype(int) - ours[int(i * step + 0.5)]).mean() < 1e-9, (fps, i)
    small = read(tool, path, 32, 32, 5, 1)
    assert small.shape == (5, 32, 32, 3)


def test_rare_codecs_stay_closed(tool, ffmpeg, tmp_path):
    source = "testsrc=size=32x32:rate=8:duration=1"
    words = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", source, "-c:v", "zmbv", "-y", tmp_path / "a.avi"]
    subprocess.run(words, check=True)
    done = subprocess.run([tool, "read", str(tmp_path / "a.avi")], capture_output=True, text=True)
    assert done.returncode == 1 and "a.avi: expected pictures of a usual codec" in done.stderr, done.stderr


@pytest.mark.parametrize("ending", ["mpg", "ts"])
def test_sizes_of_streams_that_have_no_header(tool, ffmpeg, tmp_path, ending):
    """FFmpeg meets these streams as it looks for them, and must not make a frame of what they claim."""
    path, source = tmp_path / f"a.{ending}", "testsrc=size=64x64:rate=25:duration=1"
    words = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", source, "-c:v", "mpeg2video", "-y", path]
    subprocess.run(words, check=True)
    data = bytearray(path.read_bytes())
    sizes = [i for i in range(len(data)) if data[i : i + 4] == b"\0\0\1\xb3"]
    extensions = [i for i in range(len(data)) if data[i : i + 4] == b"\0\0\1\xb5" and data[i + 4] >> 4 == 1]
    assert sizes and len(extensions) == len(sizes)
    for i in sizes:  # 16000 x 16000: the lower 12 bits of each, then the upper 2 in the extension
        data[i + 4 : i + 7] = b"\xe8\x0e\x80"
    for i in extensions:
        data[i + 5] |= 1
        data[i + 6] |= 0xE0
    path.write_bytes(data)
    done = subprocess.run([tool, "read", str(path)], capture_output=True, text=True)
    # By FFmpeg's decoder, which was given a limit: the size never became the stream's.
    assert done.returncode == 1 and "cannot find the size of its pictures" in done.stderr, done.stderr


def test_a_clip_on_its_side_is_turned(tool, ffmpeg, tmp_path):
    upright, turned = tmp_path / "a.mp4", tmp_path / "b.mp4"
    marked = "color=red:size=64x32:rate=8:duration=1,drawbox=x=0:y=0:w=16:h=16:color=blue:t=fill"
    subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", marked, "-y", upright], check=True)
    # An older ffmpeg takes the one, a newer one the other.
    for before, after in (([], ["-metadata:s:v:0", "rotate=90"]), (["-display_rotation", "90"], [])):
        words = ["ffmpeg", "-v", "error", *before, "-i", upright, *after, "-c", "copy", "-y", turned]
        if subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0 and "side_data_list" in probe(
            turned
        ):
            break
    else:
        lacking("this ffmpeg turns no clip")
    clip = read(tool, turned)
    assert clip.shape[1:3] == (64, 32)
    assert np.abs(clip.astype(int) - decoded(turned, 32, 64)).mean() < 4


def test_broken_files_are_named(tool, tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"\0" * 100)
    done = subprocess.run([tool, "read", str(tmp_path / "a.mp4")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "a.mp4" in done.stderr and done.stderr.count("\n") == 1  # ours alone: FFmpeg prints nothing


# --- folders of clips


def batch_of(folder, count, size=(16, 16), frames=4, fps=8):
    """What training sees: [(caption, (3, F, H, W))], and what the loader said."""
    tool = os.environ.get("LIBPOM_DATASET_TOOL") or str(built_tool("dataset_tool"))
    words = [tool, "clips", str(folder), *map(str, size), "0", "0", str(count), str(frames), str(fps)]
    done = subprocess.run(words, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    data, clips = done.stdout, []
    while data:
        line, data = data.split(b"\n", 1)
        size_bytes, caption = line.decode().split(" ", 1)
        pixels = np.frombuffer(data[: int(size_bytes)], np.uint8).reshape(3, frames, size[1], size[0])
        clips.append((caption, pixels))
        data = data[int(size_bytes) :]
    return clips, done.stderr.decode()


def colour_clip(path, colour, seconds=1.0, rate=24, size="64x32"):
    source = f"color={colour}:size={size}:rate={rate}:duration={seconds}"
    subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", source, "-y", path], check=True)


COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255), "white": (255, 255, 255), "black": (0, 0, 0)}


def test_a_folder_of_many_formats(ffmpeg, tmp_path):
    for name, colour in (("a.mp4", "red"), ("b.webm", "blue"), ("c.avi", "white"), ("d.mkv", "black")):
        colour_clip(tmp_path / name, colour)
        (tmp_path / name).with_suffix(".txt").write_text(f"all {colour}\n")
    clips, said = batch_of(tmp_path, 4)
    assert said == "0 passed over\n"
    assert sorted(caption for caption, _ in clips) == ["all black", "all blue", "all red", "all white"]
    for caption, pixels in clips:
        expected = np.array(COLOURS[caption.split()[1]]).reshape(3, 1, 1, 1)
        assert np.abs(pixels.astype(int) - expected).max() <= 6, caption


def test_captions_in_a_table(ffmpeg, tmp_path):
    (tmp_path / "deep").mkdir()
    colour_clip(tmp_path / "deep/one.mp4", "red")
    colour_clip(tmp_path / "unlisted.mp4", "blue")
    (tmp_path / "metadata.csv").write_text('file_name,text\ndeep/one.mp4,"red, all of it"\n')
    clips, _ = batch_of(tmp_path, 2)
    assert [caption for caption, _ in clips] == ["red, all of it"] * 2


def test_what_is_broken_is_skipped_counted_and_named(ffmpeg, tmp_path):
    colour_clip(tmp_path / "good.mp4", "red")
    colour_clip(tmp_path / "short.mp4", "red", seconds=0.2)
    whole = (tmp_path / "good.mp4").read_bytes()
    (tmp_path / "headless.mp4").write_bytes(whole[len(whole) // 2 :])
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "noise.webm").write_bytes(np.random.default_rng(0).bytes(5000))
    subprocess.run(
        ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "sine=duration=1", "-y", tmp_path / "sound.mkv"],
        check=True,
    )
    for path in list(tmp_path.iterdir()):
        path.with_suffix(".txt").write_text(path.stem)
    clips, said = batch_of(tmp_path, 12)
    assert {caption for caption, _ in clips} == {"good"}
    lines = said.splitlines()
    assert lines[-1] == "5 passed over" and len(lines) == 6
    for name in ("short.mp4", "headless.mp4", "empty.mp4", "noise.webm", "sound.mkv"):
        assert sum(name in line for line in lines) == 1, name
