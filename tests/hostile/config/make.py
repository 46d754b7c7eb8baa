#!/usr/bin/env python3
"""Makes the hostile config.json files beside this script. What error each one is, expected.tsv says, which
the test writes (tests/hostile/judge.h); the files are committed, so that no test needs Python.
"""

import copy
import json
from pathlib import Path

HERE = Path(__file__).parent
NETWORK = {"kind": "dipom", "dim": 48, "depth": 2, "patch": 2, "channels": 3, "classes": 2, "mixer": "pom"}
SAMPLE = {"size": [16, 16], "sampler": "heun", "steps": 4}
GOOD = {"format": 1, "name": "tiny", "network": NETWORK, "sample": SAMPLE, "classes": ["cat", "dog"]}
CLIPS = {
    "format": 1,
    "network": NETWORK | {"kind": "vdipom", "classes": 1, "patch_time": 2, "text_width": 4},
    "sample": SAMPLE,
}


def changed(path, value, base=GOOD):
    """The good one with one value changed; `...` takes it away."""
    config = copy.deepcopy(base)
    *inner, last = path.split(".")
    at = config
    for key in inner:
        at = at.setdefault(key, {})
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return json.dumps(config)


def clips(path, value):
    return changed(path, value, CLIPS)


def raw(path, text):
    """One value changed to what json would not write."""
    return changed(path, "RAW").replace('"RAW"', text)


CASES = {
    # No JSON.
    "empty": "",
    "only_space": " \n\t ",
    "cut_in_object": json.dumps(GOOD)[:60],
    "cut_in_text": '{"format": 1, "name": "ti',
    "cut_in_escape": '{"format": 1, "name": "\\u00',
    "two_documents": json.dumps(GOOD) + json.dumps(GOOD),
    "trailing_comma": '{"format": 1,}',
    "comment": '{"format": 1 /* one */}',
    "single_quotes": "{'format': 1}",
    "nan": raw("sample.shift", "NaN"),
    "infinity": raw("sample.shift", "Infinity"),
    "leading_zero": raw("network.dim", "048"),
    "plus_sign": raw("network.dim", "+48"),
    "hexadecimal": raw("network.dim", "0x30"),
    "nul_after": json.dumps(GOOD).encode() + b"\0",
    "nul_inside": b'{"format": 1, \0}',
    "control_in_text": '{"format": 1, "name": "a\nb"}',
    "byte_order_mark_utf16": json.dumps(GOOD).encode("utf-16"),
    "utf8_stray_byte": b'{"format": 1, "name": "\xff"}',
    "utf8_overlong": b'{"format": 1, "name": "\xc0\xaf"}',
    "utf8_surrogate": b'{"format": 1, "name": "\xed\xa0\x80"}',
    "escape_unknown": '{"format": 1, "name": "\\x41"}',
    "surrogate_alone": '{"format": 1, "name": "\\ud800"}',
    "zip": b"PK\x03\x04" + bytes(26),
    "html": "<!doctype html><title>404</title>",
    "pickle": b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x08builtins\x94.",
    "nested": raw("name", "[" * 40 + "]" * 40),
    "nested_objects": raw("name", '{"a":' * 40 + "1" + "}" * 40),
    # JSON of another shape.
    "array": "[]",
    "number": "1",
    "null": "null",
    "text": '"config"',
    "no_format": changed("format", ...),
    "no_network": changed("network", ...),
    "format_2": changed("format", 2),
    "format_text": changed("format", "1"),
    "key_twice": '{"format": 1, "network": {}, "format": 1}',
    "key_twice_inside": '{"format": 1, "network": {"dim": 48, "dim": 96}}',
    "key_twice_by_escape": '{"format": 1, "\\u0066ormat": 1}',
    "unknown_field": changed("networks", {}),
    "unknown_field_inside": changed("network.dimension", 48),
    "unknown_field_long": changed("x" * 300, 1),
    "unknown_field_control": changed("a\x1b[31mb", 1),
    "field_upper_case": changed("Name", "tiny"),
    "object_for_text": changed("name", {"a": 1}),
    "object_for_number": changed("network.dim", {"a": 1}),
    "network_array": changed("network", []),
    "network_null": changed("network", None),
    "classes_object": changed("classes", {"0": "cat"}),
    "classes_of_numbers": changed("classes", [0, 1]),
    "size_of_texts": changed("sample.size", ["16", "16"]),
    "size_nested": changed("sample.size", [[16, 16]]),
    # Values.
    "dim_fraction": changed("network.dim", 48.0),
    "dim_text": changed("network.dim", "big"),
    "dim_true": changed("network.dim", True),
    "dim_zero": changed("network.dim", 0),
    "dim_negative": changed("network.dim", -48),
    "dim_two_to_63": changed("network.dim", 1 << 63),
    "dim_two_to_64": changed("network.dim", 1 << 64),
    "dim_wraps": changed("network.dim", (1 << 64) + 48),
    "dim_exponent": raw("network.dim", "48e0"),
    "dim_not_of_four": changed("network.dim", 50),
    "depth_million": changed("network.depth", 1_000_000),
    "classes_billion": changed("network.classes", 1_000_000_000),
    "shift_too_large_for_double": raw("sample.shift", "1e400"),
    "shift_denormal": raw("sample.shift", "1e-400"),
    "kind_unknown": changed("network.kind", "dipon"),
    "mixer_unknown": changed("network.mixer", "pom\0"),
    "variant_unknown": changed("network.variant", "DiPoM-M/2"),
    "variant_of_another_size": changed("network.variant", "DiPoM-S/2"),
    "variant_long": changed("network.variant", "v" * 300),
    "heads_do_not_divide": changed("network", NETWORK | {"mixer": "attention", "heads": 5}),
    "path_unknown": changed("diffusion", {"path": "flows"}),
    "variance_unknown": changed("diffusion", {"path": "epsilon", "variance": "none"}),
    "codec_unknown": changed("codec", {"kind": "../codec.so"}),
    "codec_scale_zero": changed("codec", {"scale": 0}),
    # What goes together.
    "name_with_newline": changed("name", "a\nb"),
    "name_with_escape_sequence": changed("name", "\x1b]0;title\x07"),
    "class_empty": changed("classes", ["", "dog"]),
    "class_space_around": changed("classes", [" cat", "dog"]),
    "class_with_nul": changed("classes", ["c\0t", "dog"]),
    "class_number_of_another": changed("classes", ["1", "0"]),
    "class_too_few": changed("classes", ["cat"]),
    "size_of_three": changed("sample.size", [16, 16, 3]),
    "size_empty": changed("sample.size", []),
    "size_not_of_patches": changed("sample.size", [15, 16]),
    "size_huge": changed("sample.size", [1 << 40, 16]),
    "sampler_unknown": changed("sample.sampler", "heum"),
    "sampler_long": changed("sample.sampler", "s" * 300),
    "eta_without_ddim": changed("sample.eta", 0.5),
    "cfg_reversed": changed("sample", SAMPLE | {"cfg_from": 0.9, "cfg_to": 0.1}),
    "steps_zero": changed("sample.steps", 0),
    "frames_too_many": clips("sample.frames", 10_000_000_000),
    "fps_negative": clips("sample.fps", -8),
    "clip_window_without_mask": clips("network", CLIPS["network"] | {"temporal_mask": "none", "window": 2}),
    "clip_own_every_one": clips("network.own_every", 1),
    "position_unknown": changed("network.position", "narow"),
    "clip_narrow_dim": clips("network", CLIPS["network"] | {"position": "narrow", "dim": 44}),
    "clip_no_text_of_attention": clips(
        "network", CLIPS["network"] | {"mixer": "attention", "no_text": "mask"}
    ),
    "clip_dim_four": clips("network.dim", 4),
    "text_kind_unknown": clips("text", {"kind": "clip"}),
    "text_width_zero": clips("text", {"width": 0}),
    "text_limit_huge": clips("text", {"limit": 1 << 40}),
}


def main():
    for old in HERE.glob("*.json"):
        old.unlink()
    for name, content in (CASES | {"good": json.dumps(GOOD), "good_clips": json.dumps(CLIPS)}).items():
        (HERE / f"{name}.json").write_bytes(content.encode() if isinstance(content, str) else content)


if __name__ == "__main__":
    main()
