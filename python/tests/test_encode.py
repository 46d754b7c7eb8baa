"""`pom encode`: diffusers' own encoder and Pillow are the referees of what lies in the shards, the package
webdataset reads them, and runs that were killed or shared are compared with undisturbed ones, byte for
byte."""

import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time

import numpy as np
import pytest
import torch

import libpom
import small_encoders
from tools import built_program, ffmpeg_is_there, referee

webdataset = referee("webdataset")
Image = referee("PIL.Image")
diffusers = referee("diffusers")

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def command(*words):
    return [str(built_program()), "encode", *map(str, words)]


def encode(*words, code=0, **more):
    environment = os.environ | ENVIRONMENT | more
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == code, done.stderr
    return done


def result_of(*words, **more):
    return json.loads(encode(*words, "--json", "-q", **more).stdout)


def randomised(module):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return module.eval()


@pytest.fixture(scope="module")
def vae(tmp_path_factory):
    blocks = 2
    module = diffusers.AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        norm_num_groups=4,
        latent_channels=3,
        scaling_factor=0.5,
    )
    folder = tmp_path_factory.mktemp("vae")
    randomised(module).save_pretrained(folder)
    return folder, module


def picture(width, height, seed):
    noise = np.random.default_rng(seed)
    small = noise.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.BICUBIC)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two classes, 23 files, one of which is broken."""
    root = tmp_path_factory.mktemp("pictures")
    for label, (name, count) in enumerate((("cat", 12), ("dog", 11))):
        (root / name).mkdir()
        for i in range(count):
            path = root / name / f"{i:02d}.{'png' if i % 2 else 'jpg'}"
            picture(20 + 13 * (i % 5), 64 - 7 * (i % 6), 100 * label + i).save(path)
    (root / "cat" / "03.png").write_bytes(b"no picture at all")
    return root


def resized(image, size, resample):
    """The width first, as the Pillow of ADM's time did it: a newer one begins with the height where a picture
    is tall, and rounds differently."""
    return image.resize((size[0], image.height), resample=resample).resize(size, resample=resample)


def adm(image, size):
    """ADM's center_crop_arr, as REFERENCE has it."""
    while min(*image.size) >= 2 * size:
        image = resized(image, tuple(x // 2 for x in image.size), Image.BOX)
    scale = size / min(*image.size)
    image = resized(image, tuple(round(x * scale) for x in image.size), Image.BICUBIC)
    pixels = np.array(image)
    y, x = (pixels.shape[0] - size) // 2, (pixels.shape[1] - size) // 2
    return pixels[y : y + size, x : x + size]


def opened(path):
    """Both decode JPEG with libjpeg-turbo, whose versions agree in what these pictures are."""
    return Image.open(path).convert("RGB")


def moments_of(module, pixels):
    x = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
    with torch.no_grad():
        return module.encode(x).latent_dist.parameters[0].numpy()


def samples_in(folder, **options):
    info = json.loads((folder / "dataset.json").read_text())
    urls = [str(folder / name) for name in info["shard_names"]]
    return info, list(webdataset.WebDataset(urls, shardshuffle=False, **options).decode())


def files_of(folder):
    """All that a run leaves, apart from its lock."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if not p.name.startswith(".")}


FEW = ("--size", 16, "--per-shard", 5, "--workers", 2, "--device", "cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, vae, pictures):
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("whole") / "latents"
    encode("pictures", pictures, "--vae", vae[0], "-o", folder, "-q", *FEW)
    return folder


def test_moments_are_those_of_diffusers(tmp_path, vae, pictures):
    folder, module = vae
    words = (
        "pictures",
        pictures,
        "--vae",
        folder,
        "-o",
        tmp_path / "out",
        *FEW,
        "--mirror",
        "--per-shard",
        10,
    )
    result = result_of(*words, "--stored-dtype", "fp32")
    assert result["samples"] == 44 and result["broken"] == 1 and result["whole"]
    info, samples = samples_in(tmp_path / "out")
    assert info["classes"] == ["cat", "dog"] and info["codec"] == "autoencoder-kl" and info["mirror"]
    assert info["scale"] == 0.5 and info["shift"] == 0 and info["stored"] == "moments"
    assert info["shard_counts"] == [8, 10, 10, 10, 6]  # five images each, broken ones too
    keys = [sample["__key__"] for sample in samples]
    assert len(set(keys)) == 44 and keys[:2] == ["000000000", "000000000m"] and "000000003" not in keys
    for sample in samples:
        said = sample["json"]
        pixels = adm(opened(pictures / said["source"]), 16)
        expected = moments_of(module, pixels[:, ::-1] if said["mirrored"] else pixels)
        bound = 5e-6 * np.abs(expected).max()
        np.testing.assert_allclose(sample["moments.npy"], expected, rtol=0, atol=bound)
        assert info["classes"][sample["cls"]] == said["source"].split("/")[0]


def test_fp16_and_drawn_latents(tmp_path, vae, pictures, whole):
    samples = samples_in(whole)[1]
    assert samples[0]["moments.npy"].dtype == np.float16 and samples[0]["moments.npy"].shape == (6, 8, 8)
    words = ("pictures", pictures, "--vae", vae[0], *FEW, "--store", "latent", "--stored-dtype", "fp32")
    encode(*words, "-o", tmp_path / "a")
    encode(*words, "-o", tmp_path / "b", "--seed", 1)
    drawn, other = samples_in(tmp_path / "a")[1], samples_in(tmp_path / "b")[1]
    for sample, draw, another in zip(samples, drawn, other, strict=True):
        mean, variance = np.split(sample["moments.npy"].astype(np.float32), 2)
        normal = (draw["latent.npy"] - mean) / np.exp(0.5 * variance)
        assert np.abs(normal).max() < 6 and not np.array_equal(draw["latent.npy"], another["latent.npy"])


def test_does_not_depend_on_batches_and_workers(tmp_path, vae, pictures, whole):
    for batch, workers in ((1, 1), (3, 5)):
        out = tmp_path / f"{batch}"
        encode("pictures", pictures, "--vae", vae[0], "-o", out, *FEW, "--batch", batch, "--workers", workers)
        assert files_of(out) == files_of(whole)


@pytest.mark.parametrize("place", ["atomic_file.rename:1", "atomic_file.rename:4", "atomic_file.sync:5"])
def test_goes_on_after_a_kill_at_a_bad_moment(tmp_path, vae, pictures, whole, place):
    words = ("pictures", pictures, "--vae", vae[0], "-o", tmp_path / "out", *FEW)
    encode(*words, code=-9, POM_FAILPOINT=place)
    encode(*words)
    assert files_of(tmp_path / "out") == files_of(whole)


def test_parts_are_the_whole(tmp_path, vae, pictures, whole):
    out = tmp_path / "out"
    words = ("pictures", pictures, "--vae", vae[0], "-o", out, *FEW)
    second = result_of(*words, "--part", "1/2")
    assert not second["whole"] and not (out / "dataset.json").exists()
    encode(*words, "--part", "0/2", code=-9, POM_FAILPOINT="atomic_file.rename:4")
    first = result_of(*words, "--part", "0/2")
    assert first["whole"] and first["samples"] + second["samples"] == 22
    mine, theirs = files_of(out), files_of(whole)
    assert mine["dataset.json"] == theirs["dataset.json"]
    tars = {name for name in theirs if name.endswith(".tar")}
    assert tars == {name for name in mine if name.endswith(".tar")}
    assert all(mine[name] == theirs[name] for name in tars)
    assert "begun, got" in encode(*words, "--part", "0/3", code=1).stderr


def test_processes_are_the_whole(tmp_path, vae, pictures, whole):
    """Two, which torchrun starts; the first says what both have done."""
    out = tmp_path / "out"
    words = ("pictures", pictures, "--vae", vae[0], "-o", out, *FEW, "--gpus", 2)
    done = result_of(*words, OMP_NUM_THREADS="1")
    assert done["whole"] and done["samples"] == 22 and not done["stopped"]
    mine, theirs = files_of(out), files_of(whole)
    kept = {name for name in theirs if name.endswith(".tar") or name == "dataset.json"}
    assert len(kept) > 2 and all(mine[name] == theirs[name] for name in kept)
    assert "finished before" in encode(*words, OMP_NUM_THREADS="1").stderr


def stopped_in_its_work(words, lock):
    """A process that holds this lock and is stopped: it may go on later."""
    for _ in range(10):
        process = subprocess.Popen(command(*words), env=os.environ | ENVIRONMENT, stdout=subprocess.DEVNULL)
        while process.poll() is None and not lock.exists():
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        if lock.exists() and lock.read_text() == f"{process.pid}\n" and process.poll() is None:
            return process
        process.kill()
        process.wait()
        shutil.rmtree(lock.parent, ignore_errors=True)  # it was done before it could be stopped
    pytest.fail("no process could be stopped in its work")


def test_a_part_has_one_process_at_a_time(tmp_path, vae, pictures, whole):
    """Parts run side by side; a second process of one, or of the whole, is refused and changes nothing."""
    out = tmp_path / "out"
    words = ("pictures", pictures, "--vae", vae[0], "-o", out, "-q", *FEW)
    process = stopped_in_its_work((*words, "--part", "0/2"), out / ".part-0-of-2.lock")
    try:
        refused = encode(*words, "--part", "0/2", code=1).stderr
        assert f"{out}: part-0-of-2 is held by process {process.pid}" in refused
        assert f"{out} is held by another process" in encode(*words, code=1).stderr
        assert not result_of(*words, "--part", "1/2")["whole"]
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
    mine, theirs = files_of(out), files_of(whole)
    assert all(mine[name] == data for name, data in theirs.items() if name != "encode.json")


def test_broken_files_are_named_and_counted(tmp_path, vae, pictures):
    done = encode("pictures", pictures, "--vae", vae[0], "-o", tmp_path / "out", *FEW, "--json")
    assert "skipped cat/03.png: " in done.stderr and "1 broken pictures were left out" in done.stderr
    assert json.loads(done.stdout)["broken_files"] == ["cat/03.png"]
    nothing = tmp_path / "nothing"
    (nothing / "a").mkdir(parents=True)
    (nothing / "a" / "x.png").write_bytes(b"x")
    done = encode("pictures", nothing, "--vae", vae[0], "-o", tmp_path / "none", *FEW, code=1)
    assert "expected at least one item that can be read, got none of 1" in done.stderr
    assert not (tmp_path / "none" / "dataset.json").exists()


def test_nothing_is_overwritten_unasked(tmp_path, vae, pictures, whole):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    words = ("pictures", pictures, "--vae", vae[0], "-o", out, *FEW)
    assert "finished before" in encode(*words).stderr
    assert "-y begins anew" in encode(*words, "--per-shard", 7, code=1).stderr
    assert "another crop; -y begins anew" in encode(*words, "--crop", "homm", code=1).stderr
    assert files_of(out) == files_of(whole)
    encode(*words, "--per-shard", 7, "-y")
    assert len(samples_in(out)[0]["shard_names"]) == 4
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "dataset.json").write_text('{"labels": []}')
    assert "not made by this command" in encode(*words[:4], "-o", foreign, *FEW, code=1).stderr
    assert (foreign / "dataset.json").read_text() == '{"labels": []}'


def test_another_list_of_files_is_refused(tmp_path, vae, pictures):
    source = tmp_path / "source"
    shutil.copytree(pictures, source)
    words = ("pictures", source, "--vae", vae[0], "-o", tmp_path / "out", *FEW)
    encode(*words, code=-9, POM_FAILPOINT="atomic_file.rename:4")
    picture(30, 30, 9).save(source / "cat" / "99.png")
    assert 'expected {"items":23}' in encode(*words, code=1).stderr


def test_webdatasets_tars(tmp_path, vae, pictures):
    files = [p for p in sorted(pictures.rglob("*.*")) if p != pictures / "cat" / "03.png"]
    for shard in range(2):
        with webdataset.TarWriter(str(tmp_path / f"data-{shard:06d}.tar")) as tar:
            for i, path in enumerate(files[shard::2]):
                label = 5 if path.parent.name == "dog" else 2
                tar.write({"__key__": f"{i:04d}", path.suffix[1:]: path.read_bytes(), "cls": label})
    out = tmp_path / "out"
    encode("pictures", tmp_path / "data-{000000..000001}.tar", "--vae", vae[0], "-o", out, *FEW)
    info, samples = samples_in(out)
    assert info["classes"] == [str(i) for i in range(6)] and info["samples"] == 22
    for sample, path in zip(samples, [*files[::2], *files[1::2]], strict=True):
        assert sample["cls"] == (5 if path.parent.name == "dog" else 2)
        expected = moments_of(vae[1], adm(opened(path), 16))
        np.testing.assert_allclose(  # fp16
            sample["moments.npy"], expected, rtol=0, atol=1e-3 * np.abs(expected).max()
        )


def test_dry_run_says_how_much_it_is(tmp_path, vae, pictures, whole):
    words = ("pictures", pictures, "--vae", vae[0], "-o", tmp_path / "out", *FEW)
    plan = json.loads(encode(*words, "--dry-run", "--json").stdout)
    assert (plan["samples"], plan["shards"]) == (23, 5)
    real = sum(len(data) for name, data in files_of(whole).items() if name.endswith(".tar"))
    assert abs(plan["bytes"] / real - 1) < 0.1
    assert not (tmp_path / "out").exists()


def test_mistakes_are_named(tmp_path, vae, pictures):
    words = ("pictures", pictures, "-o", tmp_path / "out", "--device", "cpu")
    (tmp_path / "empty").mkdir()
    assert (
        "expected config.json of an autoencoder" in encode(*words, "--vae", tmp_path / "empty", code=1).stderr
    )
    assert "no such folder" in encode("pictures", tmp_path / "x", *words[2:], "--vae", vae[0], code=1).stderr
    assert "multiples of 2" in encode(*words, "--vae", vae[0], "--size", 15, code=1).stderr
    assert "expected a square" in encode(*words, "--vae", vae[0], "--size", "16x32", code=1).stderr
    assert "--part: expected I/N" in encode(*words, "--vae", vae[0], "--part", "2/2", code=2).stderr
    assert (
        "autoencoder of clips"
        in encode("clips", *make_clips(tmp_path), "--vae", vae[0], "-o", "x", code=1).stderr
    )
    assert not (tmp_path / "out").exists()


# ---- clips


def make_clips(folder):
    """A folder of y4m clips with captions, 20 frames of 40x24 at 16 a second."""
    root = folder / "clips"
    root.mkdir()
    for number in range(3):
        noise = np.random.default_rng(number)
        small = [Image.fromarray(noise.integers(0, 256, (3, 5, 3), dtype=np.uint8)) for _ in range(20)]
        with open(root / f"{number}.y4m", "wb") as file:
            file.write(b"YUV4MPEG2 W40 H24 F16:1 Ip A1:1 C444\n")
            for image in small:
                planes = np.array(image.resize((40, 24), Image.BICUBIC).convert("YCbCr")).transpose(2, 0, 1)
                file.write(b"FRAME\n" + np.ascontiguousarray(planes).tobytes())
        (root / f"{number}.txt").write_text(f"clip number {number}")
    return [root]


@pytest.fixture(scope="module")
def video_vae(tmp_path_factory):
    levels = 2
    module = diffusers.AutoencoderKLCogVideoX(
        block_out_channels=(8, 16),
        down_block_types=("CogVideoXDownBlock3D",) * levels,
        up_block_types=("CogVideoXUpBlock3D",) * levels,
        norm_num_groups=4,
        latent_channels=4,
        layers_per_block=1,
        temporal_compression_ratio=2,
    )
    folder = tmp_path_factory.mktemp("video-vae")
    randomised(module).save_pretrained(folder)
    return folder, module


def test_clips_with_captions(tmp_path, video_vae):
    (root,) = make_clips(tmp_path)
    table = root / "webvid.csv"
    rows = [f"{i},https://www.shutterstock.com/{i},PT1S,A clip {i},{i}.y4m" for i in range(3)]
    table.write_text("\n".join(rows))
    common = (
        "--vae",
        video_vae[0],
        "--size",
        "24x16",
        "--frames",
        16,
        "--device",
        "cpu",
        "--stored-dtype",
        "fp32",
    )
    encode("clips", root, *common, "-o", tmp_path / "cached")
    encode("clips", table, *common, "-o", tmp_path / "alone", "--chunks", "alone", "--crop", "homm-clips")
    info, samples = samples_in(tmp_path / "cached")
    assert (info["kind"], info["frames"], info["fps"], info["size"]) == ("clips", 16, 16, [24, 16])
    assert info["scale"] == pytest.approx(video_vae[1].config.scaling_factor)
    assert [sample["txt"] for sample in samples] == [f"clip number {i}" for i in range(3)]
    assert samples[0]["moments.npy"].shape[0] == 8 and samples[0]["moments.npy"].shape[2:] == (8, 12)
    info, samples = samples_in(tmp_path / "alone")
    assert info["scale"] == 1 and info["crop"] == "homm-clips"
    assert [sample["txt"] for sample in samples] == [f"A clip {i}, shutterstock watermark" for i in range(3)]
    assert (
        "multiple of 8"
        in encode("clips", root, *common, "-o", "x", "--chunks", "alone", "--frames", 12, code=1).stderr
    )


def test_clips_in_tars(tmp_path, video_vae):
    (root,) = make_clips(tmp_path)
    with tarfile.open(tmp_path / "clips.tar", "w") as tar:
        for i in range(3):
            for ending in ("y4m", "txt"):
                data = (root / f"{i}.{ending}").read_bytes()
                member = tarfile.TarInfo(f"{i}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    common = ("--vae", video_vae[0], "--size", "24x16", "--frames", 8, "--device", "cpu")
    encode("clips", root, *common, "-o", tmp_path / "folder")
    encode("clips", tmp_path / "clips.tar", *common, "-o", tmp_path / "tars")
    one, other = samples_in(tmp_path / "folder")[1], samples_in(tmp_path / "tars")[1]
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(a["moments.npy"], b["moments.npy"]) and a["txt"] == b["txt"]


def gif(path, frames, seed):
    """Frames of few colours, which a GIF keeps as they are; ten a second."""
    noise = np.random.default_rng(seed)
    images = [Image.fromarray(noise.integers(0, 256, (4, 6, 3), dtype=np.uint8)) for _ in range(frames)]
    images = [image.resize((24, 16), Image.NEAREST) for image in images]
    images[0].save(path, save_all=True, append_images=images[1:], duration=100, loop=0)
    with Image.open(path) as written:
        assert written.n_frames == frames
        shown = []
        for i in range(frames):
            written.seek(i)
            shown.append(np.array(written.convert("RGB")))
    assert all(np.array_equal(a, b) for a, b in zip(shown, images, strict=True))
    return np.stack(shown)


@pytest.mark.parametrize(("frames", "chunks"), [(16, "cached"), (17, "cached"), (16, "alone"), (8, "alone")])
def test_moments_of_clips_are_those_of_diffusers(tmp_path, frames, chunks):
    """With caches as diffusers' own encode has them, or each 8 frames by a call of their own."""
    ffmpeg_is_there()
    module = small_encoders.small_video_vae(tmp_path / "vae")
    small_encoders.small_t5(tmp_path / "text")
    (tmp_path / "clips").mkdir()
    clips = [gif(tmp_path / "clips" / f"{i}.gif", 20, i)[:frames] for i in range(3)]
    for i in range(3):
        (tmp_path / "clips" / f"{i}.txt").write_text(small_encoders.SENTENCES[i])
    encode("clips", tmp_path / "clips", "--vae", tmp_path / "vae", "--size", "24x16", "--fps", 10, "--frames",
           frames, "--chunks", chunks, "--stored-dtype", "fp32", "--device", "cpu", "-o", tmp_path / "out",
           "--text", tmp_path / "text", "--text-limit", 24)  # fmt: skip
    info, samples = samples_in(tmp_path / "out")
    assert info["scale"] == (1 if chunks == "alone" else 0.7) and info["text_tokens"] == 24
    states = libpom.codecs.load(tmp_path / "text", limit=24)
    for sample, clip in zip(samples, clips, strict=True):
        x = torch.from_numpy(clip).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
        parts = [x] if chunks == "cached" else x.split(8, dim=2)
        with torch.no_grad():
            expected = torch.cat([module.encode(part).latent_dist.parameters for part in parts], 2)[0].numpy()
        bound = 5e-6 * np.abs(expected).max()
        np.testing.assert_allclose(sample["moments.npy"], expected, rtol=0, atol=bound)
        tokens, mask = states.encode(sample["txt"])
        assert np.array_equal(sample["mask.npy"].astype(bool), mask[0].numpy().astype(bool))
        assert np.array_equal(sample["text.npy"], tokens[0].half().numpy())
