"""Numbers that anyone can make again, by name (tests/eval/golden_numbers.h has them in C++), and the weights
and pictures made of them that the published implementations of scores were asked about."""

import numpy


def splitmix(name, count):
    """z_0, z_1, … of the key that is the name's FNV-1a."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = (key ^ byte) * 0x100000001B3 % 2**64
    step = numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    z = step + numpy.uint64(key)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def symmetric(name, shape):
    u = (splitmix(name, int(numpy.prod(shape))) >> numpy.uint64(11)) * 2.0**-53
    return (2 * u - 1).reshape(shape)


def pictures(name):
    """(24, 32, 32, 3), as files keep them."""
    data = (splitmix(name, 24 * 3 * 32 * 32) >> numpy.uint64(56)).astype(numpy.uint8)
    return data.reshape(24, 3, 32, 32).transpose(0, 2, 3, 1)


def convolutions():
    """(name, out, in, height, width) of all 94."""
    yield from [
        ("Conv2d_1a_3x3", 32, 3, 3, 3), ("Conv2d_2a_3x3", 32, 32, 3, 3), ("Conv2d_2b_3x3", 64, 32, 3, 3),
        ("Conv2d_3b_1x1", 80, 64, 1, 1), ("Conv2d_4a_3x3", 192, 80, 3, 3),
    ]  # fmt: skip

    def block(name, *branches):
        for branch, *shape in branches:
            yield (f"{name}.branch{branch}", *shape)

    def double(i):
        return ("3x3dbl_1", 64, i, 1, 1), ("3x3dbl_2", 96, 64, 3, 3), ("3x3dbl_3", 96, 96, 3, 3)

    for name, i, pool in (("Mixed_5b", 192, 32), ("Mixed_5c", 256, 64), ("Mixed_5d", 288, 64)):
        five = ("5x5_1", 48, i, 1, 1), ("5x5_2", 64, 48, 5, 5)
        yield from block(name, ("1x1", 64, i, 1, 1), *five, *double(i), ("_pool", pool, i, 1, 1))
    yield from block("Mixed_6a", ("3x3", 384, 288, 3, 3), *double(288))
    for name, c in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        yield from block(
            name, ("1x1", 192, 768, 1, 1), ("7x7_1", c, 768, 1, 1), ("7x7_2", c, c, 1, 7),
            ("7x7_3", 192, c, 7, 1), ("7x7dbl_1", c, 768, 1, 1), ("7x7dbl_2", c, c, 7, 1),
            ("7x7dbl_3", c, c, 1, 7), ("7x7dbl_4", c, c, 7, 1), ("7x7dbl_5", 192, c, 1, 7),
            ("_pool", 192, 768, 1, 1),
        )  # fmt: skip
    yield from block(
        "Mixed_7a", ("3x3_1", 192, 768, 1, 1), ("3x3_2", 320, 192, 3, 3), ("7x7x3_1", 192, 768, 1, 1),
        ("7x7x3_2", 192, 192, 1, 7), ("7x7x3_3", 192, 192, 7, 1), ("7x7x3_4", 192, 192, 3, 3),
    )  # fmt: skip
    for name, i in (("Mixed_7b", 1280), ("Mixed_7c", 2048)):
        yield from block(
            name, ("1x1", 320, i, 1, 1), ("3x3_1", 384, i, 1, 1), ("3x3_2a", 384, 384, 1, 3),
            ("3x3_2b", 384, 384, 3, 1), ("3x3dbl_1", 448, i, 1, 1), ("3x3dbl_2", 384, 448, 3, 3),
            ("3x3dbl_3a", 384, 384, 1, 3), ("3x3dbl_3b", 384, 384, 3, 1), ("_pool", 192, i, 1, 1),
        )  # fmt: skip


def inception_weights():
    """The 472 tensors of Inception-v3, of numbers that follow from their names."""
    shapes = {"fc.weight": (1008, 2048), "fc.bias": (1008,)}
    for name, out, *rest in convolutions():
        shapes[f"{name}.conv.weight"] = (out, *rest)
        for norm in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.bn.{norm}"] = (out,)
    assert len(shapes) == 472
    tensors = {}
    for name, shape in shapes.items():
        s = symmetric(name, shape)
        if name.endswith("conv.weight"):
            value = s * numpy.sqrt(6 / numpy.prod(shape[1:]))
        elif name.endswith("bn.weight"):
            value = 1 + 0.1 * s
        elif name.endswith("running_var"):
            value = 1 + 0.5 * s
        else:
            value = s if name == "fc.bias" else 0.1 * s
        tensors[name] = value.astype(numpy.float32)
    return tensors
