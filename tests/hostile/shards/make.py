#!/usr/bin/env python3
"""Makes the hostile lists of shards beside this script: set_… are dataset.json of ours, labels_… of EDM2.
What error each one is, expected.tsv says, which the test writes (tests/hostile/judge.h); the files are
committed, so that no test needs Python.
"""

import json
from pathlib import Path

HERE = Path(__file__).parent
SET = {
    "format": 1,
    "kind": "pictures",
    "stored": "moments",
    "codec": "kl",
    "codec_hash": "a" * 64,
    "scale": 0.18215,
    "shift": 0.0,
    "channels": 4,
    "size": [256, 256],
    "frames": 0,
    "fps": 0.0,
    "crop": "adm",
    "mirror": True,
    "text_hash": "",
    "text_tokens": 0,
    "text_width": 0,
    "classes": ["cat", "dog"],
    "samples": 3,
    "shard_names": ["a-000000.tar", "a-000001.tar"],
    "shard_counts": [2, 1],
    "shard_bytes": [5120, 3072],
}


def changed(**fields):
    return json.dumps({**SET, **fields})


def without(name):
    return json.dumps({key: value for key, value in SET.items() if key != name})


CASES = {
    "set_good": changed(),
    "set_empty": "",
    "set_list": "[]",
    "set_format_2": changed(format=2),
    "set_format_text": changed(format="1"),
    "set_kind": changed(kind="picture"),
    "set_stored": changed(stored="std"),
    "set_scale_0": changed(scale=0),
    "set_scale_text": changed(scale="x"),
    "set_channels_0": changed(channels=0),
    "set_channels_huge": changed(channels=1 << 62),
    "set_size_one": changed(size=[256]),
    "set_size_negative": changed(size=[-1, 5]),
    "set_clips_without_frames": changed(kind="clips"),
    "set_text_without_width": changed(text_hash="b" * 64),
    "set_counts_short": changed(shard_counts=[3]),
    "set_bytes_short": changed(shard_bytes=[3]),
    "set_counts_negative": changed(shard_counts=[4, -1]),
    "set_counts_huge": changed(shard_counts=[1 << 62, 1 << 62]),
    "set_samples_lie": changed(samples=4),
    "set_name_above": changed(shard_names=["../a.tar", "b.tar"]),
    "set_name_absolute": changed(shard_names=["/a.tar", "b.tar"]),
    "set_name_below": changed(shard_names=["a/b.tar", "b.tar"]),
    "set_name_hidden": changed(shard_names=[".a.tar", "b.tar"]),
    "set_name_empty": changed(shard_names=["", "b.tar"]),
    "set_name_with_nul": changed(shard_names=["a\0.tar", "b.tar"]),
    "set_name_twice": changed(shard_names=["b.tar", "b.tar"]),
    "set_name_escape": changed(shard_names=["\x1b[2J/", "b.tar"]),
    "set_unknown_field": changed(shards=1),
    "set_no_stored": without("stored"),
    "set_no_scale": without("scale"),
    "set_no_names": without("shard_names"),
    "set_twice": changed()[:-1] + ', "scale": 1}',
    "set_deep": '{"size": ' + "[" * 100,
    "set_labels": '{"labels": [["a.npy", 1]]}',
    "labels_good": '{"other": {"a": [1, {}]}, "labels": [["a.npy", 1], ["b/c.npy", 0]]}',
    "labels_good_none": '{"labels": []}',
    "labels_good_null": '{"labels": null}',
    "labels_empty": "",
    "labels_list": '[["a.npy", 1]]',
    "labels_number": '{"labels": 7}',
    "labels_object": '{"labels": {"a.npy": 1}}',
    "labels_flat": '{"labels": ["a.npy", 1]}',
    "labels_deep": '{"labels": [[["a.npy", 1]]]}',
    "labels_deeper": '{"other": ' + "[" * 100,
    "labels_reversed": '{"labels": [[1, "a.npy"]]}',
    "labels_short": '{"labels": [["a.npy"]]}',
    "labels_long": '{"labels": [["a.npy", 1, 2]]}',
    "labels_negative": '{"labels": [["a.npy", -1]]}',
    "labels_huge": '{"labels": [["a.npy", 18446744073709551615]]}',
    "labels_fraction": '{"labels": [["a.npy", 1.0]]}',
    "labels_null_class": '{"labels": [["a.npy", null]]}',
    "labels_twice": '{"labels": [], "labels": []}',
    "labels_cut": '{"labels": [["a.npy", 1], ["b',
    "labels_with_nul": '{"labels": [["a\0.npy", 1]]}',
    "labels_not_utf8": b'{"labels": [["\xff.npy", 1]]}',
    "labels_after": '{"labels": []} x',
}

for path in HERE.glob("*.json"):
    path.unlink()
for name, text in CASES.items():
    (HERE / f"{name}.json").write_bytes(text if isinstance(text, bytes) else text.encode())
