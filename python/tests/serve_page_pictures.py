"""Made-up pictures for the mock of `pom serve`: coloured shapes as shapes64 and sprites32 make them, as PNG,
GIF and MP4, by the standard library alone."""

import base64
import math
import random
import struct
import zlib

CLASSES = ["circle", "square", "triangle", "star", "heart", "ring", "cross", "moon", "diamond", "hexagon"]
COLORS = {
    "red": (235, 33, 28),
    "orange": (255, 140, 28),
    "yellow": (255, 228, 30),
    "green": (30, 172, 56),
    "cyan": (16, 200, 230),
    "blue": (24, 68, 230),
    "purple": (146, 32, 200),
    "pink": (255, 102, 178),
    "white": (244, 246, 244),
    "black": (16, 14, 20),
}
# Two seconds of 32x32 at 8 frames a second; ffmpeg made it once.
MP4 = base64.b64decode("""
AAAAIGZ0eXBpc29tAAACAGlzb21pc28yYXZjMW1wNDEAAAO5bW9vdgAAAGxtdmhkAAAAAAAAAAAAAAAAAAAD6AAAB9AAAQAAAQAAAAAAAAAA
AAAAAAEAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAgAAAuN0cmFrAAAAXHRr
aGQAAAADAAAAAAAAAAAAAAABAAAAAAAAB9AAAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAABAAAAAACAA
AAAgAAAAAAAkZWR0cwAAABxlbHN0AAAAAAAAAAEAAAfQAAAQAAABAAAAAAJbbWRpYQAAACBtZGhkAAAAAAAAAAAAAAAAAABAAAAAgABVxAAA
AAAALWhkbHIAAAAAAAAAAHZpZGUAAAAAAAAAAAAAAABWaWRlb0hhbmRsZXIAAAACBm1pbmYAAAAUdm1oZAAAAAEAAAAAAAAAAAAAACRkaW5m
AAAAHGRyZWYAAAAAAAAAAQAAAAx1cmwgAAAAAQAAAcZzdGJsAAAArnN0c2QAAAAAAAAAAQAAAJ5hdmMxAAAAAAAAAAEAAAAAAAAAAAAAAAAA
AAAAACAAIABIAAAASAAAAAAAAAABFUxhdmM1OS4zNy4xMDAgbGlieDI2NAAAAAAAAAAAAAAAGP//AAAANGF2Y0MBZAAK/+EAF2dkAAqscgRJ
aEAAAAMAQAAABAPEiWEYAQAGaOhDssiw/fj4AAAAABRidHJ0AAAAAAAAB3gAAAd4AAAAGHN0dHMAAAAAAAAAAQAAABAAAAgAAAAAFHN0c3MA
AAAAAAAAAQAAAAEAAABgY3R0cwAAAAAAAAAKAAAAAQAAEAAAAAABAABIAAAAAAEAACAAAAAAAwAAAAAAAAADAAAIAAAAAAEAACAAAAAAAgAA
CAAAAAABAAAQAAAAAAEAACAAAAAAAgAACAAAAAAcc3RzYwAAAAAAAAABAAAAAQAAABAAAAABAAAAVHN0c3oAAAAAAAAAAAAAABAAAADEAAAA
KQAAAA8AAAAPAAAADgAAABAAAAAOAAAADwAAABAAAAAZAAAAEAAAABAAAAAYAAAAGAAAAA8AAAAQAAAAFHN0Y28AAAAAAAAAAQAAA+kAAABi
dWR0YQAAAFptZXRhAAAAAAAAACFoZGxyAAAAAAAAAABtZGlyYXBwbAAAAAAAAAAAAAAAAC1pbHN0AAAAJal0b28AAAAdZGF0YQAAAAEAAAAA
TGF2ZjU5LjI3LjEwMAAAAAhmcmVlAAAB5m1kYXQAAADAZYiBABP/0wtMf70/+EIwR1boIcvSxADY8S/PmqfzGSZnh0huuSSVRRYEgca9f6EC
fAUOqqfgoi8Y0ya36X0w4f2gKq6TI8y3fUuIeV3OtmF4dIEPYBBXcgV05MYi+UdT2w3DwvmPyCU94H0tKM0iPO38LXusCJ3ZdyVCvDTo2RAi
q6S5x5Xbq/VNcudexpcHu7BgxApaRzRWvivdHkl9sdT6cBYhbdFoNHP9ewy+5hUK9xg1vBMqz9QbrHhpRyMVAAAAJUGaCQ2JP8jwjEIgA2FA
HhUdLuDymsq0bpTpqHU1vZ/lnnLID+AAAAALQZ4QhxJ/9fjmlK0AAAALAZ4YJojv+thn/aAAAAAKAZ4YTojv+pSCoQAAAAwBnhhuiO/9GODA
0mEAAAAKAZ4YrUjv+awKoQAAAAsBnhjNSO/5ewXYwQAAAAwBnhjtSO/0BuFjir4AAAAVQZoZaTUCAtEymBN/xpGoeVKAbsDwAAAADEGeIS3E
Z/3rVwNotQAAAAwBnilMkjv/+avUIE4AAAAUQZopibUCAtrRMpgBEf/QQ0yxMtwAAAAUQZox6fwIFLa0TKYAEd/oJx8qw4EAAAALQZ45rNEZ
//tmRoUAAAAMAZ5BzPI7//QIK8oj
""")


def polygon(corners, turn, inner=1.0):
    """The test of a regular polygon, or of a star where the corners between are nearer."""
    points = []
    for k in range(corners if inner == 1 else 2 * corners):
        angle = turn + 2 * math.pi * k / (corners if inner == 1 else 2 * corners)
        radius = 1 if inner == 1 or k % 2 == 0 else inner
        points.append((radius * math.sin(angle), -radius * math.cos(angle)))

    def inside(x, y):
        odd = False
        for (ax, ay), (bx, by) in zip(points, points[1:] + points[:1], strict=True):
            if (ay > y) != (by > y) and x < (bx - ax) * (y - ay) / (by - ay) + ax:
                odd = not odd
        return odd

    return inside


SHAPES = {
    "circle": lambda x, y: x * x + y * y < 1,
    "square": lambda x, y: max(abs(x), abs(y)) < 0.85,
    "triangle": polygon(3, 0),
    "star": polygon(5, 0, inner=0.42),
    "heart": lambda x, y: (x * x + y * y - 0.55) ** 3 + x * x * y**3 < 0,
    "ring": lambda x, y: 0.3 < x * x + y * y < 1,
    "cross": lambda x, y: min(abs(x), abs(y)) < 0.32 and max(abs(x), abs(y)) < 0.95,
    "moon": lambda x, y: x * x + y * y < 1 and (x - 0.42) ** 2 + (y + 0.12) ** 2 > 0.62,
    "diamond": lambda x, y: abs(x) / 0.6 + abs(y) < 1,
    "hexagon": polygon(6, 0.3),
}


def bounce(at, least, most):
    """A place on the way to and fro between two walls."""
    way = (at - least) % (2 * (most - least))
    return least + min(way, 2 * (most - least) - way)


class Scene:
    """A shape on a background, both drawn by lot of the seed where the words do not say."""

    def __init__(self, subject, seed, side):
        lot = random.Random(seed * 7919 + sum(subject.encode()))
        words = subject.replace(",", " ").split()
        colors = [word for word in words if word in COLORS]
        self.shape = SHAPES[next((word for word in words if word in SHAPES), lot.choice(CLASSES))]
        self.color = COLORS[colors[0] if colors else lot.choice(list(COLORS)[:8])]
        dark = lot.random() < 0.5
        tint = [lot.uniform(14, 60) if dark else lot.uniform(185, 250) for _ in range(3)]
        self.ground = COLORS[colors[1]] if len(colors) > 1 else tint
        self.slope = [lot.uniform(-0.4, 0.4) for _ in range(4)] if len(colors) < 2 else [0, 0, 0, 0]
        self.grain = lot.choice([0, 0, 9]) if len(colors) < 2 else 0
        self.specks = [lot.uniform(-1, 1) for _ in range(256)]
        self.side, self.size = side, lot.uniform(0.24, 0.4) * side
        self.turn = lot.uniform(-0.4, 0.4)
        self.x, self.y = (side * lot.uniform(0.38, 0.62) for _ in range(2))
        self.step = (0.0, 0.0)
        for word, step in (("left", (-1, 0)), ("right", (1, 0)), ("up", (0, -1)), ("down", (0, 1))):
            if word in words:
                self.step = step

    def pixels(self, frame=0, noise=0.0, lot=random):
        """Rows of RGB bytes; `noise` from 0, the picture, to 1."""
        side, rows = self.side, []
        cx = bounce(self.x + self.step[0] * frame, self.size, side - self.size)
        cy = bounce(self.y + self.step[1] * frame, self.size, side - self.size)
        cos, sin = math.cos(self.turn) / self.size, math.sin(self.turn) / self.size
        for y in range(side):
            row = bytearray()
            for x in range(side):
                dx, dy = x + 0.5 - cx, y + 0.5 - cy
                if self.shape(cos * dx + sin * dy, cos * dy - sin * dx):
                    color = self.color
                else:
                    speck = self.grain * self.specks[(x // 4 + 17 * (y // 4)) % 256]
                    light = self.slope[0] * (x - side / 2) + self.slope[1] * (y - side / 2) + speck
                    color = [part + light for part in self.ground]
                if noise:
                    color = [part * (1 - noise) + noise * lot.gauss(128, 70) for part in color]
                row.extend(min(255, max(0, int(part))) for part in color)
            rows.append(bytes(row))
        return rows


def png(rows):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def gif(clip, fps):
    """An endless GIF of 6 x 7 x 3 levels. Codes stay 8 bits wide: the table is cleared before it grows."""
    width, height = len(clip[0][0]) // 3, len(clip[0])
    levels = [(r * 51, g * 42, b * 127) for r in range(6) for g in range(7) for b in range(3)]
    palette = b"".join(bytes(color) for color in levels).ljust(3 * 128, b"\0")
    out = b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF6, 0, 0) + palette
    out += b"\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0"
    for rows in clip:
        flat = b"".join(rows)
        codes = [
            flat[i] // 43 * 21 + flat[i + 1] // 37 * 3 + flat[i + 2] // 86 for i in range(0, len(flat), 3)
        ]
        data = bytearray()
        for start in range(0, len(codes), 100):
            data += bytes([128, *codes[start : start + 100]])
        data.append(129)
        out += struct.pack("<BBBBHBB", 0x21, 0xF9, 4, 0, round(100 / fps), 0, 0)
        out += struct.pack("<BHHHHBB", 0x2C, 0, 0, width, height, 0, 7)
        for start in range(0, len(data), 255):
            block = data[start : start + 255]
            out += bytes([len(block)]) + block
        out += b"\0"
    return out + b";"
