"""Groups of layers, and backends that refuse models which they cannot compute."""

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.layers.decoder_layer import TorchStack
from paceline.runner.layers.linear_choice import choose
from paceline.runner.layers.native_stack import NATIVE, NativeStack
from paceline.runner.layers.torch_features import TORCH
from paceline.runner.models import model as module
from paceline.runner.models.architecture import (
    AttentionSpec,
    DecoderSpec,
    HeadNorms,
    LayerSpec,
    MLPSpec,
)
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.experts import ExpertLatentSpec, MoESpec, Routing, SharedExpertSpec
from paceline.runner.models.latent import LatentAttentionSpec, LatentQuerySpec
from paceline.runner.models.layer_groups import (
    BackendSupport,
    LayerGroups,
    Window,
    features_of,
    layer_groups,
    one_group,
)
from paceline.runner.models.linear_spec import NormSpec
from paceline.runner.models.model import Model
from paceline.runner.models.rope import Rope
from paceline.runner.vision.spec import TowerSpec
from paceline.runner.weights.dummy import Dummy
from tests.runner.support import tiny


def layout(kinds: str, window: int = 8) -> tuple[Window, ...]:
    """A window for each `w`, and none for each dot."""
    return tuple(window if kind == "w" else None for kind in kinds)


def test_layers_of_one_kind_are_one_group() -> None:
    assert layer_groups(layout("....")) == one_group([None] * 4)
    assert layer_groups(layout("www")) == LayerGroups((8,), (0, 0, 0), (0, 1, 2), 3)


def test_groups_have_as_many_places_as_the_rarest_kind_has_layers() -> None:
    found = layer_groups(layout("ww.ww.ww"))
    assert found.windows == (None, 8, 8, 8)
    assert found.group == (1, 2, 0, 3, 1, 0, 2, 3)
    assert found.index == (0, 0, 0, 0, 1, 1, 1, 1)
    assert found.layers_per_block == 2


def test_nearly_equal_kinds_have_one_group_each() -> None:
    """Of six and five layers, the larger number: a few indices stay empty."""
    found = layer_groups(layout("w.w.w.w.w.w"))
    assert (found.windows, found.layers_per_block) == ((None, 8), 6)


def test_windows_of_several_lengths_have_groups_of_their_own() -> None:
    found = layer_groups((4, None, 16, 4, None, 4))
    assert found == LayerGroups((None, None, 4, 4, 4, 16), (2, 0, 5, 3, 1, 4), (0,) * 6, 1)


@pytest.mark.parametrize(
    "kinds", ["wwwww." * 4 + "ww", "w." * 12, "wwwww." * 10 + "ww", "ww.", "."]
)
def test_each_layer_has_a_place_of_its_own(kinds: str) -> None:
    found = layer_groups(layout(kinds))
    indices = set(zip(found.group, found.index, strict=True))
    assert len(indices) == len(kinds)
    assert max(found.index) < found.layers_per_block
    assert [found.windows[group] for group in found.group] == list(layout(kinds))


def test_a_layer_that_reads_what_another_keeps_has_its_place() -> None:
    own = layer_groups([None, 7, 7])
    found = own.with_readers([None, None, None, 0, 2])
    assert found.group == (*own.group, own.group[0], own.group[2])
    assert found.index == (*own.index, own.index[0], own.index[2])
    assert (len(found), found.layers_per_block) == (len(own), own.layers_per_block)


PLAIN = BackendSupport("plain", frozenset())
ADVISED = BackendSupport("plain", frozenset(), instead='use device="cpu"')
EXPERT_SPECS = (MoESpec, Routing, SharedExpertSpec, ExpertLatentSpec)
NORM_SPECS, LATENT_SPECS = (NormSpec, HeadNorms), (LatentAttentionSpec, LatentQuerySpec)
SPECS = (
    *(DecoderSpec, LayerSpec, AttentionSpec, MLPSpec, *EXPERT_SPECS, *NORM_SPECS, *LATENT_SPECS),
    *(Rope, TowerSpec),
)


@dataclass(frozen=True, slots=True)
class SinkAttentionSpec(AttentionSpec):
    """Attention with a feature that no backend knows."""

    sink: float | None = None


def described(family: str = "Llama", **changes: Any) -> DecoderSpec:
    return describe(tiny(architectures=[f"{family}ForCausalLM"], **changes))


def with_layer(spec: DecoderSpec, layer: LayerSpec) -> DecoderSpec:
    """The same with another last layer."""
    return replace(spec, layers=(*spec.layers[:-1], layer))


def with_sink(spec: DecoderSpec, sink: float | None) -> DecoderSpec:
    last = spec.layers[-1]
    own = {one.name: getattr(last.attention, one.name) for one in fields(AttentionSpec)}
    return with_layer(spec, replace(last, attention=SinkAttentionSpec(**own, sink=sink)))


def test_features_are_fields_with_other_values_than_their_defaults() -> None:
    assert features_of(described()) == frozenset()
    assert features_of(described("Qwen2")) == {"layers.attention.qkv.biases"}
    assert features_of(described("Qwen3")) == {"layers.attention.head_norms"}
    assert features_of(described("Mistral", sliding_window=4)) == {"layers.attention.window"}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    assert features_of(described("Mixtral", **experts)) == {"layers.mlp=moe"}
    assert features_of(described("Gemma3", sliding_window=4)) == {
        "embedding_scale",
        "layers.attention.head_norms",
        "layers.attention.window",
        "layers.attention.output_norm",
        "layers.mlp.activation=gelu_pytorch_tanh",
        "layers.mlp.output_norm",
    }


def test_every_feature_that_a_backend_lists_is_one() -> None:
    """A name that is misspelt would never be compared with anything."""
    possible = {one.name for kind in SPECS for one in fields(kind)}
    for backend in (TORCH, NATIVE):
        for feature in backend.features:
            path = feature.partition("=")[0].removesuffix(".biases").split(".")
            assert path[-1] in possible, feature


@pytest.mark.parametrize("backend", [TORCH, NATIVE, PLAIN], ids=lambda one: one.backend)
def test_a_feature_that_is_not_listed_is_refused(backend: BackendSupport) -> None:
    assert backend.supports(with_sink(described(), None)) is None
    reason = backend.supports(with_sink(described(), 30.0))
    assert reason == "it does not implement layers.attention.sink"
    with pytest.raises(ConfigError, match=f"the {backend.backend} backend cannot compute 'llama'"):
        backend.require(with_sink(described(), 30.0))


def test_an_error_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r'sink; use device="cpu"$'):
        ADVISED.require(with_sink(described(), 30.0))


def test_one_value_for_all_layers() -> None:
    spec = described()
    last = spec.layers[-1]
    scaled = with_layer(spec, replace(last, attention=replace(last.attention, scale=0.5)))
    assert TORCH.supports(scaled) is None
    assert str(NATIVE.supports(scaled)).startswith("it takes one query scale for all layers")
    assert isinstance(last.mlp, MLPSpec)
    norm = replace(last.mlp.norm, eps=0.25)
    normed = with_layer(spec, replace(last, mlp=replace(last.mlp, norm=norm)))
    assert "norm eps for all layers, and the model has [1e-05, 0.25]" in str(
        NATIVE.supports(normed)
    )
    narrow = with_layer(spec, replace(last, attention=replace(last.attention, kv_heads=1)))
    assert TORCH.supports(narrow) is None
    assert "heads of keys" in str(NATIVE.supports(narrow))


def test_a_model_is_refused_before_its_tensors_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unread(Dummy):
        def read(self, name: str) -> Any:
            raise AssertionError(f"{name} was read")

    monkeypatch.setattr(module, "describe", lambda config, _: with_sink(describe(config), 30.0))
    with pytest.raises(ConfigError, match="the torch backend cannot compute"):
        Model.load(Unread(tiny()))


def test_linears_of_integers_need_no_decoder_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(config: ModelConfig, _: int | None = None) -> DecoderSpec:
        spec = describe(config)
        last = spec.layers[-1]
        return with_layer(spec, replace(last, attention=replace(last.attention, scale=0.5)))

    monkeypatch.setattr(module, "describe", scaled)
    monkeypatch.setattr("paceline.runner.layers.linear_choice.describe", scaled)
    dummy = Dummy(tiny())
    dummy.is_quantized = True
    choice = choose("auto", dummy)
    assert choice.is_native
    assert "torch computes the rest: it takes one query scale for all layers" in choice.reason
    assert isinstance(Model.load(dummy, weights=choice.name)._layers, TorchStack)
    monkeypatch.undo()
    assert isinstance(Model.load(dummy, weights=choice.name)._layers, NativeStack)
