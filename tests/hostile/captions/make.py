#!/usr/bin/env python3
"""Makes the hostile captions.csv files beside this script. The test puts each into a folder with clip.mp4,
a folder named folder, and links that lead out of it. What error each one is, expected.tsv says, which
the test writes (tests/hostile/judge.h); the files are committed, so that no test needs Python.
"""

from pathlib import Path

HERE = Path(__file__).parent
HEAD = "file,caption\n"
CASES = {
    "empty": "",
    "only_lines": "\n\n\r\n",
    "only_byte_order_mark": b"\xef\xbb\xbf",
    "only_head": HEAD,
    "no_file_column": "name,caption\nclip.mp4,a star\n",
    "no_caption_column": "file,label\nclip.mp4,a star\n",
    "no_head": "clip.mp4,a star\n",
    "tabs": "file\tcaption\nclip.mp4\ta star\n",
    "semicolons": "file;caption\nclip.mp4;a star\n",
    "utf16": (HEAD + "clip.mp4,a star\n").encode("utf-16"),
    "zip": b"PK\x03\x04" + bytes(26),
    "json": '[{"file": "clip.mp4", "caption": "a star"}]',
    "row_too_short": HEAD + "clip.mp4\n",
    "row_too_short_later": HEAD + "clip.mp4,a star\nclip.mp4\n",
    "row_too_long": HEAD + "clip.mp4,a star, and a moon\n",
    "quote_not_closed": HEAD + 'clip.mp4,"a star\n',
    "quote_not_closed_in_head": '"file,caption\nclip.mp4,a star\n',
    "quote_not_closed_at_end": HEAD + 'clip.mp4,a star\nclip.mp4,"',
    "quote_then_letters": HEAD + 'clip.mp4,"a" star\n',
    "file_empty": HEAD + ",a star\n",
    "file_space": HEAD + " ,a star\n",
    "file_dot": HEAD + ".,a star\n",
    "file_absolute": HEAD + "/etc/hostname,a star\n",
    "file_above": HEAD + "../secret.mp4,a star\n",
    "file_above_inside": HEAD + "folder/../../secret.mp4,a star\n",
    "file_above_later": HEAD + "clip.mp4,a star\n../secret.mp4,a star\n",
    "file_by_link": HEAD + "link.mp4,a star\n",
    "file_by_link_of_folder": HEAD + "links/secret.mp4,a star\n",
    "file_is_a_folder": HEAD + "folder,a star\n",
    "file_missing": HEAD + "missing.mp4,a star\n",
    "file_with_nul": HEAD + "clip.mp4\0.txt,a star\n",
    "file_with_newline": HEAD + '"clip\n.mp4",a star\n',
    "file_long": HEAD + "x" * 5000 + ".mp4,a star\n",
    "file_url": HEAD + "https://example.org/clip.mp4,a star\n",
    "file_protocol": HEAD + "concat:clip.mp4|clip.mp4,a star\n",
    "file_not_utf8": HEAD.encode() + b"clip\xff.mp4,a star\n",
    "caption_not_utf8": HEAD.encode() + b"clip.mp4,a \xff star\n",
    "caption_overlong": HEAD.encode() + b"clip.mp4,a \xc0\xaf star\n",
    "caption_surrogate": HEAD.encode() + b"clip.mp4,a \xed\xa0\x80 star\n",
    "caption_cut": HEAD.encode() + b"clip.mp4,a star \xe2\x82\n",
    "caption_latin1": HEAD.encode() + "clip.mp4,un clair de lune d'été\n".encode("latin-1"),
    "caption_with_nul": HEAD + "clip.mp4,a\0star\n",
    "caption_empty": HEAD + "clip.mp4,\n",
}


def main():
    for old in HERE.glob("*.csv"):
        old.unlink()
    good = HEAD + 'clip.mp4,"a star, and a ""moon"""\r\n'
    for name, content in (CASES | {"good": good}).items():
        (HERE / f"{name}.csv").write_bytes(content.encode() if isinstance(content, str) else content)


if __name__ == "__main__":
    main()
