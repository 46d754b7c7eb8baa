#!/usr/bin/env python3
"""Makes the hostile recipes (*.toml) and assignments of --set (*.set, on good.toml) beside this script.
What error each one is, expected.tsv says, which the test writes (tests/hostile/judge.h); the files are
committed, so that no test needs Python.
"""

from pathlib import Path

HERE = Path(__file__).parent
GOOD = """[run]
about = "a recipe that is as it should be"
steps = 10

[data]
kind = "shapes"
size = [16, 16]

[network]
dim = 48
depth = 2
patch = 2

[sample]
sampler = "heun"
steps = 4
"""
CLIPS = GOOD.replace('"shapes"', '"sprites"').replace("[network]", '[network]\nkind = "vdipom"')


def changed(old, new, base=GOOD):
    assert base.count(old) == 1, old
    return base.replace(old, new)


def added(table, line, base=GOOD):
    return changed(f"[{table}]\n", f"[{table}]\n{line}\n", base)


RECIPES = {
    # No TOML.
    "json": '{"run": {"steps": 10}}',
    "binary": bytes(range(256)),
    "zip": b"PK\x03\x04" + bytes(26),
    "utf8_stray_byte": GOOD.encode().replace(b"as it should be", b"\xff"),
    "utf8_overlong": GOOD.encode().replace(b"as it should be", b"\xc0\xaf"),
    "utf8_surrogate": GOOD.encode().replace(b"as it should be", b"\xed\xa0\x80"),
    "utf16": GOOD.encode("utf-16"),
    "nul": GOOD.encode() + b"\0",
    "text_not_closed": changed('should be"', "should be"),
    "text_of_lines_not_closed": GOOD + 'a = """',
    "text_with_newline": changed("that is", "that\nis"),
    "escape_unknown": changed("that is", "\\x41"),
    "escape_surrogate": changed("that is", "\\ud800"),
    "escape_beyond_unicode": changed("that is", "\\U00110000"),
    "table_not_closed": changed("[data]", "[data"),
    "table_sign": changed("[data]", "[+data]"),
    "table_of_dots": changed("[data]", "[...]"),
    "table_of_tables_sign": changed("[data]", "[[+data]]"),
    "key_sign": added("run", "+seed = 1"),
    "key_sign_behind_dot": added("run", "a.+b = 1"),
    "key_sign_within": added("run", "seed = {+a = 1}"),
    "letter_for_space": added("run", "seed \u00e9= 1"),
    "letter_for_space_behind": added("run", "seed = 1 \u0498"),
    "letter_behind_backslash": added("run", 'name = """\\\u00e9"""'),
    "space_of_another_script": added("run", "seed\u00a0= 1"),
    "table_twice": GOOD + "[run]\nseed = 1\n",
    "key_twice": added("run", "steps = 11"),
    "key_and_table": "network = 1\n" + GOOD,
    "key_without_value": added("run", "seed ="),
    "two_values": added("run", "seed = 1 2"),
    "array_not_closed": changed("[16, 16]", "[16, 16"),
    "array_of_arrays": changed("[16, 16]", "[" * 40 + "]" * 40),
    "tables_within": added("run", "about2 = " + "{a = " * 40 + "1" + "}" * 40),
    "dotted_deep": ".".join("a" * 40) + " = 1\n",
    "table_deep": "[" + ".".join("a" * 40) + "]\n",
    "quoted_key_deep": ".".join(["'a'"] * 40) + " = 1\n",
    "number_two_to_63": added("run", "seed = 9223372036854775808"),
    "number_leading_zero": added("run", "seed = 07"),
    "number_underscores": added("run", "seed = 1__0"),
    "date_wrong": added("run", "seed = 2024-13-01"),
    # TOML of another shape.
    "unknown_table": GOOD + "[optimiser]\nlr = 1\n",
    "unknown_field": added("run", "step = 10"),
    "unknown_field_of_another_table": added("run", "lr = 1e-4"),
    "unknown_field_long": added("run", "x" * 300 + " = 1"),
    "unknown_field_control": added("run", '"a\\u001bb" = 1'),
    "array_of_tables": changed("[network]", "[[network]]"),
    "table_for_number": changed("steps = 10", "steps = {a = 1}"),
    "text_for_number": changed("steps = 10", 'steps = "ten"'),
    "fraction_for_integer": changed("steps = 10", "steps = 10.0"),
    "date_for_number": changed("steps = 10", "steps = 2024-01-01"),
    "truth_for_number": changed("steps = 10", "steps = true"),
    "number_for_text": changed('kind = "shapes"', "kind = 7"),
    "number_for_table": changed("[sample]\n", "").replace("[run]", "sample = 1\n[run]"),
    "size_of_texts": changed("[16, 16]", '["16", "16"]'),
    "size_of_three": changed("[16, 16]", "[16, 16, 16]"),
    "size_empty": changed("[16, 16]", "[]"),
    # Values.
    "steps_zero": changed("steps = 10", "steps = 0"),
    "steps_negative": changed("steps = 10", "steps = -1"),
    "lr_nan": GOOD + "[optimizer]\nlr = nan\n",
    "lr_infinite": GOOD + "[optimizer]\nlr = inf\n",
    "seed_negative": added("run", "seed = -1"),
    "kind_unknown": changed('kind = "shapes"', 'kind = "shape"'),
    "kind_long": changed('kind = "shapes"', f'kind = "{"k" * 300}"'),
    "variant_unknown": added("network", 'variant = "DiPoM-M/2"'),
    "variant_of_another_size": added("network", 'variant = "DiPoM-S/2"'),
    "dim_not_of_four": changed("dim = 48", "dim = 50"),
    # What goes together.
    "patch_does_not_divide": changed("[16, 16]", "[15, 16]"),
    "cooldown_longer_than_run": GOOD + "[optimizer]\ncooldown = 11\n",
    "accumulate_does_not_divide": GOOD + "[batch]\nsize = 4\naccumulate = 3\n",
    "path_missing": changed('kind = "shapes"', 'kind = "folder"'),
    "path_with_shapes": added("data", 'path = "/etc"'),
    "network_of_clips_for_pictures": added("network", 'kind = "vdipom"'),
    "network_of_pictures_for_clips": changed('kind = "shapes"', 'kind = "sprites"'),
    "frames_not_of_blocks": added("data", "frames = 15", CLIPS),
    "cut_without_frames": CLIPS + "[batch]\ncut = 0.5\n",
    "text_width_of_another": added("network", "text_width = 7", CLIPS),
    "sheets_of_clips": CLIPS + "[log]\nsample_every = 5\n",
    "sampler_unknown": changed('"heun"', '"xx"'),
    "eta_without_ddim": added("sample", "eta = 0.5"),
    "name_escapes": added("run", 'name = "../../../x"'),
    "name_absolute": added("run", 'name = "/tmp/x"'),
    "name_hidden": added("run", 'name = ".x"'),
    "name_with_newline": added("run", 'name = "a\\nb"'),
    "name_with_nul": added("run", 'name = "a\\u0000b"'),
}
SETS = {
    "set_empty": "",
    "set_no_value": "run.seed",
    "set_no_name": "=7",
    "set_nothing": "run.seed=",
    "set_unknown": "run.sed=7",
    "set_unknown_table": "runs.seed=7",
    "set_unknown_deep": "run.seed.more=7",
    "set_dots": "...=1",
    "set_table": "network=1",
    "set_of_lines": "run.seed=7\nrun.steps=9",
    "set_text_for_number": "run.seed=many",
    "set_list_for_number": "run.seed=[7]",
    "set_out_of_range": "run.steps=0",
    "set_text_not_closed": 'run.about="x',
    "set_nested": "data.size=" + "[" * 40 + "]" * 40,
    "set_long": "run.seed=" + "x" * 300,
    "set_name_escapes": "run.name=../../../x",
    "set_name_newline": "run.name=a\nb",
    "set_sampler_unknown": "sample.sampler=xx",
}


def main():
    for old in [*HERE.glob("*.toml"), *HERE.glob("*.set")]:
        old.unlink()
    line = 'about = "a recipe that is as it should be"'
    letters = changed(line, 'about = """\\\n  \u00e9t\u00e9"""')  # which toml++ once held for impossible
    good = {"good": GOOD, "good_clips": CLIPS, "good_letters": letters}
    for name, content in (RECIPES | good).items():
        (HERE / f"{name}.toml").write_bytes(content.encode() if isinstance(content, str) else content)
    for name, content in SETS.items():
        (HERE / f"{name}.set").write_text(content)


if __name__ == "__main__":
    main()
