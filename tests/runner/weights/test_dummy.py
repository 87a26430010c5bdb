import pytest
import torch

from paceline.runner.models.describe import manifest
from paceline.runner.weights import dummy
from paceline.runner.weights.checkpoint import verify
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case, architectures
from tests.runner.support import tiny


def test_weights_follow_from_seed_and_name_alone() -> None:
    one, other = Dummy(tiny(), seed=3), Dummy(tiny(), seed=3)
    names = list(manifest(tiny()))
    forward = {name: one.read(name) for name in names}
    backward = {name: other.read(name) for name in reversed(names)}
    assert all(torch.equal(forward[name], backward[name]) for name in names)
    another = Dummy(tiny(), seed=4)
    assert not any(torch.equal(forward[name], another.read(name)) for name in names)


def test_no_two_tensors_are_drawn_alike() -> None:
    weights = Dummy(tiny())
    q, o = (weights.read(f"model.layers.{n}.self_attn.q_proj.weight") for n in (0, 1))
    assert not torch.equal(q, o)


def test_a_large_tensor_repeats_few_numbers_and_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dummy, "MOST_DRAWN", 97)
    weight = Dummy(tiny()).read("model.embed_tokens.weight")
    assert len(weight.unique()) == 97
    assert len(weight.unique(dim=0)) == min(len(weight), 97)


def test_it_is_a_checkpoint() -> None:
    for architecture in architectures():
        weights = Dummy(Case(architecture).config())
        verify(weights)
        assert all(weights.read(name).shape == shape for name, shape in weights.shapes.items())


def test_norms_multiply_by_about_one_whatever_the_file_stores() -> None:
    for architecture, stored in (("Llama", 1.0), ("Gemma3", 0.0)):
        weights = Dummy(tiny(architectures=[f"{architecture}ForCausalLM"]))
        assert abs(weights.read("model.norm.weight").mean() - stored) < 0.1
