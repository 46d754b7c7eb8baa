#!/usr/bin/env python3
"""Makes the hostile files beside this script and expected.tsv, which says what error each one is.

Columns: file, kind of pom::io::SafetensorsError, what the reference implementation does ("refuses", or
"accepts: " and why we do not). Run it after adding a line; the files are committed, so that no test needs
Python.
"""

import struct
from pathlib import Path

HERE = Path(__file__).parent
DATA = b"\1\2\3\4"
GOOD = '"dtype":"U8","shape":[4],"data_offsets":[0,4]'


def framed(header, data=b""):
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header)) + header + data


def tensor(dtype='"U8"', shape="[4]", offsets="[0,4]", name='"t"', data=DATA):
    return framed(f'{{{name}:{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}', data)


def nothing(shape, dtype='"U8"'):
    """A tensor that says it has no data."""
    return tensor(dtype, shape, "[0,0]", data=b"")


def filled(header, data=DATA):
    """A header in which GOOD stands for the fields of a tensor of these four bytes."""
    return framed(header.replace("GOOD", GOOD), data)


def pair(first, second, data):
    """Two tensors of bytes, a and b, at the given offsets."""
    entry = '"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}'
    entries = [entry.format(n, e - b, b, e) for n, (b, e) in (("a", first), ("b", second))]
    return framed("{" + ",".join(entries) + "}", data)


HUGE = "18446744073709551615"

CASES = [
    # The frame.
    ("empty_file", "FileTooSmall", b""),
    ("seven_bytes", "FileTooSmall", b"\2\0\0\0\0\0\0"),
    ("header_over_limit", "HeaderTooLarge", struct.pack("<Q", 100_000_001) + b"{}"),
    ("header_2_to_63", "HeaderTooLarge", struct.pack("<Q", 1 << 63) + b"{}"),
    ("header_all_ones", "HeaderTooLarge", b"\xff" * 8 + b"{}"),
    ("header_big_endian", "HeaderTooLarge", struct.pack(">Q", 2) + b"{}"),
    ("header_beyond_file", "HeaderBeyondFile", struct.pack("<Q", 3) + b"{}"),
    ("header_at_limit_beyond_file", "HeaderBeyondFile", struct.pack("<Q", 100_000_000) + b"{}"),
    ("header_empty", "HeaderStart", framed("")),
    ("header_array", "HeaderStart", framed("[]")),
    ("header_null", "HeaderStart", framed("null")),
    ("header_byte_order_mark", "HeaderStart", framed("\ufeff{}")),
    ("header_zip", "HeaderStart", framed(b"PK\3\4" + bytes(28))),
    ("header_leading_space", "HeaderStart", framed(" {}"), "the format says the header MUST begin with '{'"),
    (
        "header_leading_newline",
        "HeaderStart",
        framed("\n{}"),
        "the format says the header MUST begin with '{'",
    ),
    # JSON.
    ("utf8_stray_byte", "InvalidUtf8", framed(b'{"\xff":{}}')),
    ("utf8_overlong", "InvalidUtf8", framed(b'{"\xc0\xaf":{' + GOOD.encode() + b"}}", DATA)),
    ("utf8_overlong_3", "InvalidUtf8", framed(b'{"\xe0\x80\xaf":{' + GOOD.encode() + b"}}", DATA)),
    ("utf8_overlong_4", "InvalidUtf8", framed(b'{"\xf0\x80\x80\xaf":{' + GOOD.encode() + b"}}", DATA)),
    ("utf8_cut_by_header", "InvalidUtf8", framed(b"{}\xe2\x82", b"\xac")),
    ("utf8_surrogate", "InvalidUtf8", framed(b'{"\xed\xa0\x80":{' + GOOD.encode() + b"}}", DATA)),
    ("utf8_above_10ffff", "InvalidUtf8", framed(b'{"\xf4\x90\x80\x80":{' + GOOD.encode() + b"}}", DATA)),
    ("utf8_cut", "InvalidUtf8", framed(b'{"\xe2\x82":{' + GOOD.encode() + b"}}", DATA)),
    ("utf8_in_padding", "InvalidUtf8", framed(b"{}  \x80")),
    ("json_no_colon", "JsonSyntax", framed('{"t" {}}')),
    ("json_unquoted_key", "JsonSyntax", framed("{t:{}}")),
    ("json_single_quotes", "JsonSyntax", framed("{'t':{}}")),
    ("json_trailing_comma", "JsonSyntax", filled('{"t":{GOOD},}')),
    ("json_double_comma", "JsonSyntax", filled('{"t":{GOOD},,"u":{}}')),
    ("json_comment", "JsonSyntax", framed("{/* */}")),
    ("json_plus_sign", "JsonSyntax", tensor(shape="[+4]")),
    ("json_shape_trailing_comma", "JsonSyntax", tensor(shape="[4,]")),
    ("json_missing_comma", "JsonSyntax", tensor(shape="[2 2]")),
    ("json_hex_number", "JsonSyntax", tensor(shape="[0x4]")),
    ("json_wrong_bracket", "JsonSyntax", tensor(shape="[4}")),
    ("json_form_feed", "JsonSyntax", framed("{\f}")),
    ("json_nul_in_padding", "JsonTrailing", framed("{}\0\0\0\0\0\0")),
    ("json_open_object", "JsonTruncated", framed("{")),
    ("json_open_key", "JsonTruncated", framed('{"t')),
    ("json_open_tensor", "JsonTruncated", framed('{"t":{"dtype":"U8"')),
    ("json_open_array", "JsonTruncated", framed('{"t":{"dtype":"U8","shape":[4')),
    ("json_open_escape", "JsonTruncated", framed('{"t\\')),
    ("json_open_unicode_escape", "JsonTruncated", framed('{"t\\u00')),
    ("json_two_documents", "JsonTrailing", framed("{}{}")),
    # What the reference itself writes for no tensors and empty metadata, and then cannot read.
    ("json_written_by_reference", "JsonTrailing", framed('{},"__metadata__":{}}   ')),
    ("json_text_after", "JsonTrailing", framed("{} x")),
    ("control_newline_in_name", "ControlCharacter", filled('{"a\nb":{GOOD}}')),
    ("control_nul_in_name", "ControlCharacter", filled('{"a\0b":{GOOD}}')),
    ("control_tab_in_metadata", "ControlCharacter", framed('{"__metadata__":{"a":"\t"}}')),
    ("escape_unknown", "BadEscape", filled('{"\\x41":{GOOD}}')),
    ("escape_octal", "BadEscape", filled('{"\\0":{GOOD}}')),
    ("escape_not_hex", "BadEscape", filled('{"\\u00g0":{GOOD}}')),
    ("escape_short_hex", "BadEscape", filled('{"\\u41":{GOOD}}')),
    ("surrogate_high_alone", "LoneSurrogate", filled('{"\\ud800":{GOOD}}')),
    ("surrogate_high_then_letter", "LoneSurrogate", filled('{"\\ud800\\u0041":{GOOD}}')),
    ("surrogate_two_high", "LoneSurrogate", filled('{"\\ud800\\ud800":{GOOD}}')),
    ("surrogate_high_then_private", "LoneSurrogate", filled('{"\\ud800\\ue000":{GOOD}}')),
    ("surrogate_two_low", "LoneSurrogate", filled('{"\\udc00\\udc00":{GOOD}}')),
    ("surrogate_low_first", "LoneSurrogate", filled('{"\\udc00\\ud800":{GOOD}}')),
    ("number_negative_dimension", "NumberNegative", tensor(shape="[-4]")),
    ("number_negative_offset", "NumberNegative", tensor(offsets="[-4,0]")),
    ("number_negative_zero", "NumberNegative", tensor(offsets="[-0,4]")),
    ("number_fraction", "NumberFractional", tensor(shape="[4.0]")),
    ("number_exponent", "NumberFractional", tensor(shape="[4e0]")),
    ("number_fraction_offset", "NumberFractional", tensor(offsets="[0,4.5]")),
    ("number_leading_zero", "NumberLeadingZero", tensor(shape="[04]")),
    ("number_double_zero", "NumberLeadingZero", tensor(offsets="[00,4]")),
    ("number_2_to_64", "NumberOverflow", tensor(shape="[18446744073709551616]")),
    ("number_wraps_to_4", "NumberOverflow", tensor(offsets="[0,18446744073709551620]")),
    ("number_400_digits", "NumberOverflow", tensor(offsets="[0,1%s]" % ("0" * 400))),
    # Types.
    ("metadata_array", "MetadataNotObject", framed('{"__metadata__":[]}')),
    ("metadata_string", "MetadataNotObject", framed('{"__metadata__":"x"}')),
    (
        "metadata_tensor",
        "MetadataValueNotString",
        framed('{"__metadata__":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
    ),
    (
        "metadata_null",
        "MetadataNotObject",
        framed('{"__metadata__":null}'),
        "the format allows a map of strings only",
    ),
    ("metadata_number", "MetadataValueNotString", framed('{"__metadata__":{"epoch":3}}')),
    ("metadata_value_null", "MetadataValueNotString", framed('{"__metadata__":{"epoch":null}}')),
    ("metadata_nested", "MetadataValueNotString", framed('{"__metadata__":{"a":{"b":"c"}}}')),
    ("tensor_null", "TensorNotObject", framed('{"t":null}')),
    ("tensor_string", "TensorNotObject", framed('{"t":"F32"}')),
    ("tensor_number", "TensorNotObject", framed('{"t":1}')),
    (
        "tensor_array",
        "TensorNotObject",
        framed('{"t":["U8",[4],[0,4]]}', DATA),
        "serde reads a struct from an array too; the format says an object",
    ),
    ("nested_1000", "TensorNotObject", framed('{"t":' + "[" * 1000 + "]" * 1000 + "}")),
    ("nested_1000_in_shape", "NotAnInteger", tensor(shape="[" * 1000 + "]" * 1000)),
    ("dtype_number", "DtypeNotString", tensor(dtype="8")),
    ("dtype_null", "DtypeNotString", tensor(dtype="null")),
    (
        "dtype_object",
        "DtypeNotString",
        tensor(dtype='{"U8":null}'),
        "serde reads an enum from a map too; the format says a string",
    ),
    ("dtype_unknown", "UnknownDtype", tensor(dtype='"F128"')),
    ("dtype_lower_case", "UnknownDtype", tensor(dtype='"u8"')),
    ("dtype_empty", "UnknownDtype", tensor(dtype='""')),
    ("dtype_with_nul", "UnknownDtype", tensor(dtype='"U8\\u0000"')),
    ("shape_number", "ShapeNotArray", tensor(shape="4")),
    ("shape_null", "ShapeNotArray", tensor(shape="null")),
    ("shape_string", "ShapeNotArray", tensor(shape='"4"')),
    ("shape_object", "ShapeNotArray", tensor(shape="{}")),
    ("shape_of_strings", "NotAnInteger", tensor(shape='["4"]')),
    ("shape_of_null", "NotAnInteger", tensor(shape="[null]")),
    ("shape_of_true", "NotAnInteger", tensor(shape="[true,4]")),
    ("offsets_of_strings", "NotAnInteger", tensor(offsets='["0","4"]')),
    ("offsets_none", "OffsetsNotPair", tensor(offsets="[]")),
    ("offsets_one", "OffsetsNotPair", tensor(offsets="[4]")),
    ("offsets_three", "OffsetsNotPair", tensor(offsets="[0,4,4]")),
    ("offsets_object", "OffsetsNotPair", tensor(offsets='{"begin":0,"end":4}')),
    ("offsets_number", "OffsetsNotPair", tensor(offsets="4")),
    # Fields.
    ("field_extra", "UnknownField", filled('{"t":{GOOD,"strides":[1]}}'), "the format has three fields only"),
    (
        "field_upper_case",
        "UnknownField",
        framed('{"t":{"DTYPE":"U8","shape":[4],"data_offsets":[0,4]}}', DATA),
    ),
    ("field_none", "MissingField", framed('{"t":{}}')),
    ("field_no_dtype", "MissingField", framed('{"t":{"shape":[4],"data_offsets":[0,4]}}', DATA)),
    ("field_no_shape", "MissingField", framed('{"t":{"dtype":"U8","data_offsets":[0,4]}}', DATA)),
    ("field_no_offsets", "MissingField", framed('{"t":{"dtype":"U8","shape":[4]}}', DATA)),
    ("field_dtype_twice", "DuplicateField", filled('{"t":{GOOD,"dtype":"U8"}}')),
    ("field_shape_twice", "DuplicateField", filled('{"t":{GOOD,"shape":[4]}}')),
    ("field_offsets_twice", "DuplicateField", filled('{"t":{GOOD,"data_offsets":[0,4]}}')),
    ("field_twice_by_escape", "DuplicateField", filled('{"t":{GOOD,"d\\u0074ype":"U8"}}')),
    (
        "tensor_twice",
        "DuplicateTensor",
        filled('{"t":{GOOD},"t":{GOOD}}'),
        "the format disallows duplicate keys; serde keeps the last",
    ),
    (
        "tensor_twice_first_wrong",
        "DuplicateTensor",
        filled('{"t":{"dtype":"U8","shape":[9],"data_offsets":[7,3]},"t":{GOOD}}'),
        "the format disallows duplicate keys; serde keeps the last",
    ),
    (
        "tensor_twice_by_escape",
        "DuplicateTensor",
        filled('{"t":{GOOD},"\\u0074":{GOOD}}'),
        "the format disallows duplicate keys; serde keeps the last",
    ),
    ("metadata_twice", "DuplicateMetadata", framed('{"__metadata__":{},"__metadata__":{}}')),
    (
        "metadata_key_twice",
        "DuplicateMetadataKey",
        framed('{"__metadata__":{"a":"1","a":"2"}}'),
        "the format disallows duplicate keys; serde keeps the last",
    ),
    # Sizes and offsets.
    ("shape_product_overflow", "ShapeOverflow", nothing("[4294967296,4294967296]")),
    ("shape_overflow_before_zero", "ShapeOverflow", nothing("[4294967296,4294967296,0]")),
    ("shape_wraps_to_4", "ShapeOverflow", tensor(shape="[4611686018427387905,4]")),
    ("shape_bits_overflow", "ShapeOverflow", nothing("[2305843009213693952]", '"F64"')),
    (
        "shape_dimension_2_to_63",
        "ShapeOverflow",
        nothing("[0,9223372036854775808]"),
        "torch counts in signed 64 bits and could not make the tensor",
    ),
    ("f4_odd", "PartialByte", tensor(dtype='"F4"', shape="[3]", offsets="[0,1]", data=b"\1")),
    ("f6_odd", "PartialByte", tensor(dtype='"F6_E2M3"', shape="[3]", offsets="[0,2]", data=b"\1\2")),
    ("size_too_small", "SizeMismatch", tensor(shape="[3]")),
    ("size_too_large", "SizeMismatch", tensor(shape="[5]")),
    ("size_of_other_dtype", "SizeMismatch", tensor(dtype='"F32"')),
    ("size_empty_with_data", "SizeMismatch", tensor(shape="[0]")),
    ("size_scalar", "SizeMismatch", tensor(shape="[]")),
    ("size_f4_counted_in_bytes", "SizeMismatch", tensor(dtype='"F4"')),
    ("offsets_reversed", "OffsetsReversed", tensor(offsets="[4,0]")),
    ("offsets_reversed_huge", "OffsetsReversed", tensor(offsets=f"[{HUGE},3]")),
    ("offsets_past_end", "OffsetsOutOfRange", tensor(shape="[5]", offsets="[0,5]")),
    ("offsets_huge", "OffsetsOutOfRange", tensor(offsets=f"[0,{HUGE}]")),
    ("offsets_wrap", "OffsetsOutOfRange", tensor(offsets="[18446744073709551611,18446744073709551615]")),
    ("data_truncated", "OffsetsOutOfRange", tensor(data=b"\1\2\3")),
    ("data_missing", "OffsetsOutOfRange", tensor(data=b"")),
    ("offsets_absolute", "OffsetsOutOfRange", tensor(offsets="[70,74]")),
    ("overlap_partial", "Overlap", pair((0, 4), (2, 6), bytes(6))),
    ("overlap_whole", "Overlap", pair((0, 4), (0, 4), bytes(4))),
    ("overlap_inside", "Overlap", pair((0, 6), (2, 4), bytes(6))),
    ("overlap_empty_inside", "Overlap", pair((0, 4), (2, 2), bytes(4))),
    ("hole_at_start", "Hole", tensor(offsets="[1,5]", data=bytes(5))),
    ("hole_between", "Hole", pair((0, 2), (3, 5), bytes(5))),
    ("hole_before_empty", "Hole", pair((0, 2), (4, 4), bytes(4))),
    ("tail_one_byte", "TrailingBytes", tensor(data=DATA + b"\0")),
    ("tail_polyglot", "TrailingBytes", tensor(data=DATA + b"PK\5\6" + bytes(18))),
    ("tail_without_tensors", "TrailingBytes", framed("{}", b"x")),
]


def main():
    for old in HERE.glob("*.safetensors"):
        old.unlink()
    lines = []
    for name, kind, content, *why in CASES:
        (HERE / f"{name}.safetensors").write_bytes(content)
        lines.append(f"{name}.safetensors\t{kind}\t{'accepts: ' + why[0] if why else 'refuses'}\n")
    assert len({line.split("\t")[0] for line in lines}) == len(CASES), "two cases have one name"
    (HERE / "expected.tsv").write_text("".join(lines))


if __name__ == "__main__":
    main()
