"""Layers with adapters give what the merged weights give."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.errors import RequestError
from paceline.runner.adapters.weights import read_adapter
from paceline.runner.attention_backend import load
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.model import Model
from paceline.runner.models.traits import architectures
from paceline.runner.parallel.group import RankGroup
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.weight_format import Quantization
from tests.conformance.architectures import Case
from tests.runner.adapters.support import Merged, write_adapter
from tests.runner.parallel.ranks import on_ranks
from tests.runner.support import Piece, batch_of, tiny, with_states

TOKENS = [[5, 9, 2, 7, 1], [3, 8, 8], [40, 41, 42, 43], [7, 8, 9]]


def logits(model: Model, places: Tensor | None, **how: Any) -> list[Tensor]:
    """Of the last position of each row."""
    pieces = [Piece(tokens, 0, [2 * row, 2 * row + 1]) for row, tokens in enumerate(TOKENS)]
    batch = with_states(replace(batch_of(pieces, 4), adapters=places), model.config)
    kv = KVStore(model.config, 8, 4)
    attention = load(how.get("attention", "paged"))
    hidden = model.forward(batch, kv, attention, batch.sample_at)
    return list(model.logits(hidden))


def placed(model: Model, folders: list[Path], rows: list[int]) -> Tensor:
    """The places of positions, with the adapters in these places."""
    for place, folder in enumerate(folders):
        model.adapters[place] = read_adapter(folder, model.targets, 64)
    counts = torch.tensor([len(tokens) for tokens in TOKENS])
    return torch.tensor(rows).repeat_interleave(counts)


def check(config: ModelConfig, tmp_path: Path, targets: Any) -> None:
    base = Dummy(config, seed=3)
    folders = [
        write_adapter(tmp_path / "a", config, 1, target_modules=targets),
        write_adapter(tmp_path / "b", config, 2, r=7, use_rslora=True, target_modules=targets),
    ]
    model = Model.load(base)
    found = logits(model, placed(model, folders, [0, -1, 1, 0]))
    merged = [Model.load(Merged(base, folder)) for folder in folders]
    plain, a, b = (logits(one, None) for one in (model, *merged))
    expected = [a[0], plain[1], b[2], a[3]]
    for row, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, msg=f"row {row}")
        if row != 1:
            assert (ours - plain[row]).abs().max() > 0.1, "the adapter does nothing"


TEXT = [name for name, one in architectures().items() if not (one.vision or one.latent)]
CASES = [*map(Case, TEXT), Case("phi3", "parts of heads")]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_architecture(case: Case, tmp_path: Path) -> None:
    """Queries and keys in another order, fused files, factors of norms, mixtures."""
    config = case.config()
    targets: Any = "all-linear"
    if config.states is not None or config.altup is not None:
        targets = list(Model.load(Dummy(config)).targets.modules)
    check(config, tmp_path, targets)


def test_layers_with_states_are_not_adapted(tmp_path: Path) -> None:
    config = Case("qwen3_5").config()
    folder = write_adapter(tmp_path, config, target_modules="all-linear")
    with pytest.raises(RequestError, match=r"adapts .*linear_attn.* cannot adapt"):
        read_adapter(folder, Model.load(Dummy(config)).targets, 64)


def test_some_modules_only(tmp_path: Path) -> None:
    check(tiny(), tmp_path, ["v_proj", "up_proj"])


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_scales_of_the_kv_cache_are_in_adapters_too(architecture: str, tmp_path: Path) -> None:
    """Norms of heads hold the scales of keys, and linears those of values."""
    quantization = Quantization(has_kv_scales=True)
    check(replace(Case(architecture).config(), quantization=quantization), tmp_path, "all-linear")


@pytest.mark.parametrize("attention", ["native", "paged"])
def test_packed_weights(attention: str, tmp_path: Path) -> None:
    """The products of the adapter stay exact, beside those of quantised weights."""
    config = tiny()
    base, folder = Dummy(config, seed=3), write_adapter(tmp_path, config, 1)
    model = Model.load(base, weights="int8")
    found = logits(model, placed(model, [folder], [0, -1, 0, 0]), attention=attention)
    merged = logits(Model.load(Merged(base, folder)), None)
    plain = logits(model, None, attention=attention)
    torch.testing.assert_close(found[1], plain[1])
    for row in (0, 2, 3):
        torch.testing.assert_close(found[row], merged[row], rtol=0.05, atol=0.15)
        assert (found[row] - plain[row]).abs().max() > 0.3


@pytest.mark.parametrize("case", [Case("llama"), Case("phi3", "parts of heads")], ids=str)
def test_ranks_have_parts_of_an_adapter(case: Case, tmp_path: Path) -> None:
    """Of some inputs or some outputs of each module; fused files have several runs of outputs."""
    config = replace(case.config(), vocab=102)
    base = Dummy(config, seed=3)
    folder = write_adapter(tmp_path, config, 1, r=5, target_modules="all-linear")

    def adapted(group: RankGroup | None) -> list[Tensor]:
        model = Model.load(base, group=group)
        return logits(model, placed(model, [folder], [0, -1, 0, 0]))

    due, (found, _) = adapted(None), on_ranks(2, adapted)
    torch.testing.assert_close(found, due, rtol=1e-4, atol=1e-4)
