#!/usr/bin/env python3
"""Makes the hostile clips beside this script, from small good ones that ffmpeg writes. What error each one
is, expected.tsv says, which the test writes (tests/hostile/judge.h); the files are committed, so that
no test needs Python or ffmpeg.
"""

import struct
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = ["-f", "lavfi", "-i", "testsrc=size=16x16:rate=8:duration=0.5"]
EXACT = ["-fflags", "+bitexact", "-flags:v", "+bitexact", "-map_metadata", "-1"]
SETTINGS = {
    "gif": [],
    "mp4": ["-c:v", "libx264", "-preset", "ultrafast", "-qp", "40", "-pix_fmt", "yuv420p"],
    "webm": ["-c:v", "libvpx", "-b:v", "20k", "-pix_fmt", "yuv420p"],
    "avi": ["-c:v", "mpeg4", "-q:v", "20"],
}


def good(kind):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"good.{kind}"
        command = ["ffmpeg", "-v", "error", *SOURCE, "-threads", "1", *EXACT, *SETTINGS[kind], path]
        subprocess.run(command, check=True)
        return path.read_bytes()


def y4m(head="W4 H4 F8:1 Ip A1:1 C444", frames=2, cut=0):
    data = f"YUV4MPEG2 {head}\n".encode() + (b"FRAME\n" + bytes(48)) * frames
    return data[: len(data) - cut]


def changed(data, old, new):
    assert data.count(old) >= 1, old
    return data.replace(old, new)


def at(data, place, new):
    return data[:place] + new + data[place + len(new) :]


def box(name, content=b"", size=None):
    return struct.pack(">I", 8 + len(content) if size is None else size) + name + content


def nested(depth):
    content = b""
    for _ in range(depth):
        content = box(b"moov", content)
    return content


FTYP = box(b"ftyp", b"isom\0\0\2\0isomiso2avc1mp41")


def cases(gif, mp4, webm, avi):
    key_frame = webm.index(b"\x9d\x01\x2a")  # of VP8: width and height follow
    moov = mp4.index(b"moov") - 4
    yield "empty.mp4", b""
    yield "one_byte.mp4", b"\0"
    yield "zeros.mp4", bytes(4096)
    yield "text.mp4", b"this is no clip\n" * 20
    yield "html.mp4", b"<!doctype html><title>404</title>\n"
    yield "zip.mp4", b"PK\x03\x04" + bytes(26)
    yield "program.mp4", b"\x7fELF\x02\x01\x01" + bytes(57)
    # Files that name others.
    yield "playlist.mp4", b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/hostname\n#EXT-X-ENDLIST\n"
    yield (
        "playlist_key.mp4",
        b'#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="file:///etc/hostname"\n#EXTINF:1,\ngood.mp4\n',
    )
    yield "concat.mp4", b"ffconcat version 1.0\nfile good.mp4\n"
    yield "concat_absolute.mp4", b"ffconcat version 1.0\nfile '/etc/hostname'\n"
    yield (
        "dash.mp4",
        b'<MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>/etc/hostname</BaseURL></MPD>',
    )
    yield (
        "sdp.mp4",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=-\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5000 RTP/AVP 96\n",
    )
    yield "subtitles.mp4", b"1\n00:00:00,000 --> 00:00:01,000\nhello\n"
    # Sound alone.
    yield (
        "sound.mp4",
        b"RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\x08\0\0\0"
        + bytes(8),
    )
    # .y4m
    yield "y4m_no_size.y4m", y4m("F8:1")
    yield "y4m_size_zero.y4m", y4m("W0 H0 F8:1")
    yield "y4m_size_negative.y4m", y4m("W-4 H4 F8:1")
    yield "y4m_size_huge.y4m", y4m("W65536 H65536 F8:1")
    yield "y4m_size_beyond_limit.y4m", y4m("W30000 H30000 F8:1")
    yield "y4m_size_overflow.y4m", y4m("W2147483647 H2147483647 F8:1")
    yield "y4m_colours_unknown.y4m", y4m("W4 H4 F8:1 C999")
    yield "y4m_no_frames.y4m", y4m(frames=0)
    yield "y4m_no_newline.y4m", b"YUV4MPEG2 W4 H4 F8:1"
    yield "y4m_head_long.y4m", y4m("W4 H4 F8:1 " + "X" * 300)
    yield "y4m_first_frame_cut.y4m", y4m(frames=1, cut=20)
    yield "y4m_frame_head_wrong.y4m", changed(y4m(), b"FRAME\n", b"FRAMF\n")
    # .gif
    yield "gif_cut_in_head.gif", gif[:8]
    yield "gif_no_frames.gif", gif[: gif.index(b"\x2c\0\0\0\0")] + b"\x3b"
    yield "gif_size_zero.gif", at(gif, 6, bytes(4))
    yield "gif_size_huge.gif", at(gif, 6, b"\xff\xff\xff\xff")
    # .mp4
    yield "mp4_head_alone.mp4", FTYP
    yield "mp4_cut_before_index.mp4", mp4[: moov - 10] if moov > 600 else mp4[: len(mp4) // 4]
    yield "mp4_cut_in_index.mp4", mp4[: moov + 200]
    yield "mp4_index_empty.mp4", FTYP + box(b"moov") + box(b"mdat", bytes(16))
    yield "mp4_box_of_size_one.mp4", FTYP + box(b"moov", size=1) + b"\xff" * 8
    yield "mp4_box_of_two_to_32.mp4", FTYP + box(b"moov", size=0xFFFFFFFF)
    yield "mp4_nested.mp4", FTYP + nested(1000)
    yield "mp4_no_samples.mp4", changed(mp4, b"stsz", b"free")
    yield "mp4_no_places.mp4", changed(mp4, b"stco", b"free")
    yield "mp4_samples_two_to_31.mp4", at(mp4, mp4.index(b"stsz") + 12, b"\x7f\xff\xff\xff")
    yield "mp4_codec_unknown.mp4", changed(mp4, b"avc1\0", b"xxxx\0")
    yield "mp4_settings_wrong.mp4", changed(mp4, b"avcC\x01", b"avcC\x09")
    yield (
        "mp4_data_zero.mp4",
        at(
            mp4,
            mp4.index(b"mdat") + 4,
            bytes(struct.unpack(">I", mp4[mp4.index(b"mdat") - 4 : mp4.index(b"mdat")])[0] - 8),
        ),
    )
    # .webm
    yield "webm_head_alone.webm", webm[: webm.index(b"\x18\x53\x80\x67")]
    yield "webm_cut.webm", webm[: webm.index(b"\x16\x54\xae\x6b") + 6]
    yield "webm_no_tracks.webm", changed(webm, b"\x16\x54\xae\x6b", b"\x16\x54\xae\x6c")
    yield "webm_codec_unknown.webm", changed(webm, b"V_VP8", b"V_XX8")
    yield "webm_no_clusters.webm", webm[: webm.index(b"\x1f\x43\xb6\x75")]
    yield "webm_frame_of_another_size.webm", at(webm, key_frame + 3, struct.pack("<HH", 16383, 16383))
    yield "webm_frame_empty_size.webm", at(webm, key_frame + 3, bytes(4))
    yield "webm_element_endless.webm", webm[:4] + b"\x01" + b"\xff" * 7 + webm[12:]
    # .avi
    yield "avi_cut.avi", avi[:100]
    yield "avi_no_frames.avi", avi[: avi.index(b"movi") + 4]
    yield "avi_codec_unknown.avi", changed(avi, b"FMP4", b"XXXX")
    yield "good.gif", gif
    yield "good.mp4", mp4
    yield "good.webm", webm
    yield "good.avi", avi
    yield "good.y4m", y4m()


def main():
    clips = [good(kind) for kind in ("gif", "mp4", "webm", "avi")]
    for old in HERE.iterdir():
        if old.suffix in {".gif", ".mp4", ".webm", ".avi", ".y4m"}:
            old.unlink()
    for name, content in cases(*clips):
        (HERE / name).write_bytes(content)


if __name__ == "__main__":
    main()
