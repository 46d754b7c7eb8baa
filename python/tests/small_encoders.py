"""Small autoencoders and a small T5 with random weights, in folders as diffusers and transformers write them,
and pictures and clips to encode with them."""

import numpy as np
import torch

from tools import referee

diffusers = referee("diffusers")
transformers = referee("transformers")
sentencepiece = referee("sentencepiece")
Image = referee("PIL.Image")

SENTENCES = ["a red star drifts up", "a blue ball falls down", "the moon and the sun"]


def randomised(model, seed):
    """Every tensor, also those that start at 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            r = torch.randn(p.shape, generator=generator)
            p.copy_(r / p[0].numel() ** 0.5 if p.dim() > 1 else 1 + 0.1 * r if "norm" in name else 0.1 * r)
    return model.eval()


def small_vae(folder, scale=0.6, shift=0.1, seed=1):
    """Factor 2, four latent channels."""
    vae = diffusers.AutoencoderKL(
        block_out_channels=[8, 8], norm_num_groups=4, latent_channels=4, layers_per_block=1,
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2,
        scaling_factor=scale, shift_factor=shift,
    )  # fmt: skip
    randomised(vae, seed).save_pretrained(folder)
    return vae


def small_video_vae(folder, scale=0.7, seed=1):
    """Factor 4 in space and in time, four latent channels."""
    vae = diffusers.AutoencoderKLCogVideoX(
        block_out_channels=[8, 8, 8], norm_num_groups=4, latent_channels=4, layers_per_block=1,
        down_block_types=["CogVideoXDownBlock3D"] * 3, up_block_types=["CogVideoXUpBlock3D"] * 3,
        scaling_factor=scale,
    )  # fmt: skip
    randomised(vae, seed).save_pretrained(folder)
    return vae


def small_t5(folder, width=16):
    """With a vocabulary of its own in spiece.model."""
    config = transformers.T5Config(
        vocab_size=200, d_model=width, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    torch.manual_seed(5)
    encoder = transformers.T5EncoderModel(config).eval()
    encoder.save_pretrained(folder)
    words = folder / "words.txt"
    words.write_text("\n".join(SENTENCES * 30))
    sentencepiece.SentencePieceTrainer.train(
        input=str(words), model_prefix=str(folder / "spiece"), vocab_size=60, model_type="unigram",
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    words.unlink()
    (folder / "spiece.vocab").unlink()
    return encoder


def smooth(width, height, noise):
    small = noise.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.BICUBIC)


def pictures(folder, each=12):
    """Two classes, all sizes."""
    noise = np.random.default_rng(7)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            smooth(20 + 5 * (i % 5), 40 - 3 * (i % 6), noise).save(folder / name / f"{i:03d}.png")
    return folder


def write_y4m(path, frames, rate=16):
    """RGB frames (H, W, 3) as 4:4:4."""
    height, width, _ = frames[0].shape
    with open(path, "wb") as file:
        file.write(f"YUV4MPEG2 W{width} H{height} F{rate}:1 Ip A1:1 C444\n".encode())
        for frame in frames:
            planes = np.array(Image.fromarray(frame).convert("YCbCr")).transpose(2, 0, 1)
            file.write(b"FRAME\n" + np.ascontiguousarray(planes).tobytes())


def clips(folder, count=6, frames=16, width=24, height=16):
    """With a caption each."""
    noise = np.random.default_rng(8)
    folder.mkdir(parents=True)
    for i in range(count):
        write_y4m(folder / f"{i}.y4m", [np.array(smooth(width, height, noise)) for _ in range(frames)])
        (folder / f"{i}.txt").write_text(SENTENCES[i % len(SENTENCES)])
    return folder
