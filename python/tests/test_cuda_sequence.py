"""Tokens split over two processes that share a GPU: the fused kernels against one process in fp64."""

import pytest
import torch

import ranks

pytestmark = [
    pytest.mark.usefixtures("extension"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]


@pytest.fixture(scope="module")
def found():
    return ranks.run("split_cuda.py", 2)


def test_fused_kernels_round_no_worse_than_plain_torch(found):
    assert len(found["fused"]) == 12
    for name, case in found["fused"].items():
        unit = torch.finfo(torch.bfloat16 if "bfloat16" in name else torch.float32).eps
        for error, plain in zip(case["errors"], case["plain"], strict=True):
            assert error <= 2 * plain + 2 * unit, (name, case)


def test_composed_in_fp64(found):
    assert len(found["composed"]) == 2
    for name, case in found["composed"].items():
        assert max(case["errors"]) < 1e-12, (name, case)


def test_a_layer_hands_in_sums_only(found):
    rows = {name: case["numbers"] / found["row"] for name, case in found["fused"].items()}
    assert all(2 < count < 2.1 for name, count in rows.items() if "keys" in name)  # and their counts
    assert {count for name, count in rows.items() if "keys" not in name and "window" not in name} == {2}
