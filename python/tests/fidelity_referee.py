"""What torch-fidelity, pytorch-fid and clean-fid say, for test_score_referees.py, in a process of its own:

    python fidelity_referee.py QUESTIONS.npz WEIGHTS.pth ANSWERS.npz

They import torchvision for data sets and for networks that nobody asks about here. Where it is not installed
its modules are empty: what they would need of it fails, and what does without it is theirs."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

import numpy
import torch


class Empty(types.ModuleType):
    """Every name in it is a class without anything."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class EmptyTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        known = name.split(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


def fidelity(asked, weights):
    """torch-fidelity: its network, and its scores of features."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
    from torch_fidelity.metric_isc import isc_features_to_metric
    from torch_fidelity.metric_kid import kid_features_to_metric
    from torch_fidelity.metric_prc import prc_features_to_metric

    network = FeatureExtractorInceptionV3("inception", ["2048", "logits_unbiased"], weights)
    planes = torch.from_numpy(asked["pictures"]).permute(0, 3, 1, 2).contiguous()
    with torch.no_grad():
        pool3, logits = network(planes)
    a, b = torch.from_numpy(asked["a"]), torch.from_numpy(asked["b"])
    frechet = fid_statistics_to_metric(fid_features_to_statistics(a), fid_features_to_statistics(b), False)
    kid = kid_features_to_metric(a, b, kid_subsets=20, kid_subset_size=50, verbose=False)
    isc = isc_features_to_metric(torch.from_numpy(asked["logits"]), 10, True, 2020)
    prc = prc_features_to_metric(a, b, prc_neighborhood=3, verbose=False)  # a is what was made
    return {
        "pool3": pool3.numpy(),
        "unbiased_logits": logits.numpy(),
        "fidelity_frechet": list(frechet.values()),
        "fidelity_kernel": list(kid.values()),
        "fidelity_inception": list(isc.values()),
        "fidelity_neighbours": [prc["precision"], prc["recall"]],
    }


def others(asked):
    import torchvision.models.inception  # noqa: F401  pytorch-fid only names it
    from cleanfid.resize import build_resizer
    from pytorch_fid.fid_score import calculate_frechet_distance

    a, b = asked["a"], asked["b"]
    moments = [a.mean(0), numpy.cov(a, rowvar=False), b.mean(0), numpy.cov(b, rowvar=False)]
    return {
        "pytorch_fid": calculate_frechet_distance(*moments),
        "clean": numpy.stack([build_resizer("clean")(picture) for picture in asked["pictures"]]),
    }


def main():
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(EmptyTorchvision())
    questions, weights, answers = sys.argv[1:]
    asked = dict(numpy.load(questions))
    numpy.savez(answers, **fidelity(asked, weights), **others(asked))


if __name__ == "__main__":
    main()
