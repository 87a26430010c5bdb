"""Drafts of an EAGLE-3 head under a scheduler are those of a plain head over whole sequences."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline import Scheduler
from paceline.core.errors import ConfigError
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import load as load_attention
from paceline.runner.batch import ImageEmbeddings
from paceline.runner.draft_heads.eagle3 import Eagle3Head
from paceline.runner.draft_heads.eagle3_folder import Eagle3Folder
from paceline.runner.draft_heads.head_drafter import show
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.models.model import Model
from paceline.runner.proposer import DraftInput, Drafts
from paceline.runner.proposers.eagle3 import Eagle3
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from tests.runner.driving import SETTINGS, TIGHT, drive, requests
from tests.runner.eagle3 import PlainHead, head_config, head_folder, head_tensors
from tests.runner.support import Piece, batch_of, tiny

DRAFTS = {"proposer": "eagle3", "num_speculative_tokens": 3, "speculation": "fixed"}
LAYERS = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
PAGED = load_attention("paged")


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(Dummy(tiny(num_hidden_layers=4), seed=3))


class Noted(Eagle3):
    """Notes the tokens of every row, and its drafts."""

    def __init__(self, config: SpeculationConfig) -> None:
        super().__init__(config)
        self.noted: list[tuple[Tensor, list[int]]] = []
        self.empty = 0

    def draft(self, rows: DraftInput) -> Drafts:
        found = super().draft(rows)
        wanted = zip(rows.tokens, rows.known.tolist(), found.ids.tolist(), strict=True)
        for (tokens, known, ids), number in zip(wanted, rows.number.tolist(), strict=True):
            drafts = [one for one in ids if one >= 0]
            assert len(drafts) in (0, number)
            if drafts:
                self.noted.append((tokens[:known].clone(), drafts))
            else:
                self.empty += number > 0
        return found


def using(kind: type[Eagle3], folder: Path) -> Any:
    drafter, files = kind(SpeculationConfig(**DRAFTS)), Eagle3Folder(folder)
    embedding = None if files.embedding is None else files.read(files.embedding)
    drafter.use(Eagle3Head.load(files, files.head), files.target_ids(), embedding, PAGED)
    return drafter


def states_of(model: Model, tokens: Tensor) -> Tensor:
    """What the layers read, of all tokens but the last."""
    kept = LayerInputs((1, 2, 3), torch.empty(len(tokens) - 1, 3 * model.config.width))
    blocks = -(-len(tokens) // 4)
    batch = batch_of([Piece(tokens[:-1].tolist(), 0, range(blocks))], 4)
    model.forward(batch, KVStore(model.config, blocks, 4), PAGED, None, kept)
    return kept.rows


WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "ahead, in small pieces": {"max_num_batched_tokens": 8, "depth": 3},
    "recomputed": {**TIGHT, "depth": 2},
    "swapped": {**TIGHT, "preemption_mode": "swap", "swap_space": 32},
}


@pytest.mark.parametrize("way", WAYS)
def test_drafts_are_those_of_a_plain_head(model: Model, way: str, tmp_path: Path) -> None:
    changes = {"depth": 1, "enable_prefix_caching": False, **WAYS[way]}
    depth = changes.pop("depth")
    scheduler = Scheduler.create(**{**SETTINGS, **DRAFTS, **changes})
    drafter = using(Noted, head_folder(tmp_path, model.config, **LAYERS))
    kv = KVStore(model.config, scheduler.config.cache.num_blocks, 4)
    runner = TorchRunner(model, kv, PAGED, drafter, 8, 64)
    runner.reserve_host(scheduler.config.preemption.swap_space)
    drive(scheduler, runner, requests(), depth)
    config = head_config(model.config, **LAYERS)
    plain = PlainHead(head_tensors(config, model.config), config)
    assert len(drafter.noted) > 30
    for tokens, drafts in drafter.noted[:: 1 + len(drafter.noted) // 15]:
        states = states_of(model, tokens)
        expected = plain.drafts(model.plain_embedding(), tokens, states, len(drafts))
        assert drafts == expected
    if "num_blocks" in changes:
        assert scheduler.stats.preemptions, "the pool was not tight"
    assert not drafter.empty  # the first step of a resumed sequence has no drafts


def test_a_head_may_have_an_embedding_of_its_own(model: Model, tmp_path: Path) -> None:
    folder = head_folder(tmp_path, model.config, **LAYERS)
    tensors = load_file(folder / "model.safetensors")
    own = torch.randn(model.config.vocab, model.config.width)
    save_file({**tensors, "embed_tokens.weight": own}, folder / "model.safetensors")
    drafter = using(Eagle3, folder)
    TorchRunner(model, KVStore(model.config, 4, 4), PAGED, drafter, 2, 16)
    assert torch.equal(drafter._embedding, own)


def test_a_head_needs_weights_for_the_model(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a head: name it in speculative_config"):
        _ = Eagle3(SpeculationConfig(**DRAFTS)).cell_bytes
    drafter = using(Eagle3, head_folder(tmp_path, tiny(vocab_size=99)))
    assert drafter.cell_bytes == 2 * 2 * 8 * 4
    with pytest.raises(ConfigError, match="is for a model of width 24 with a vocabulary of 99"):
        TorchRunner(model, KVStore(model.config, 4, 4), PAGED, drafter, 2, 16)


def test_images_are_read_in_the_place_of_tokens() -> None:
    """Rows begin at 0 and 3. Position i reads what follows it, if that is in the same row."""
    following, values = torch.zeros(6, 2), torch.arange(1.0, 9.0).view(4, 2)
    images = ImageEmbeddings(torch.tensor([0, 1, 3, 5]), values)
    show(following, images, torch.tensor([0, 3]))
    expected = torch.zeros(6, 2)
    expected[0], expected[4] = values[1], values[3]
    assert torch.equal(following, expected)
