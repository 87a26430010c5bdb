"""An EAGLE-3 head computes what a plain implementation of it does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.runner.attention_backend import load
from paceline.runner.kv_store import KVStore
from paceline.runner.models.eagle3 import Eagle3Head
from paceline.runner.weights.eagle3 import Eagle3Folder
from tests.runner.eagle3 import PlainHead, head_config, head_folder, head_tensors
from tests.runner.support import Piece, batch_of, tiny

MODEL = tiny()


@pytest.mark.parametrize("attention", ["paged", "native"])
@pytest.mark.parametrize("changes", [{}, {"norm_before_residual": True, "hidden_size": 40}])
def test_hidden_states_and_logits_are_those_of_a_plain_head(
    changes: dict[str, Any], attention: str, tmp_path: Path
) -> None:
    changes = {**changes, "target_hidden_size": MODEL.width}
    folder = Eagle3Folder(head_folder(tmp_path, MODEL, **changes))
    config = head_config(MODEL, **changes)
    plain = PlainHead(head_tensors(config, MODEL), config)
    head = Eagle3Head.load(folder, folder.head)
    random = torch.Generator().manual_seed(1)
    width = config["hidden_size"]
    states = torch.randn(11, 3 * MODEL.width, generator=random)
    embedded = torch.randn(11, width, generator=random)
    kv, found = KVStore(folder.config, 4, 4), []
    for piece in (slice(0, 4), slice(4, 10), slice(10, 11)):  # in chunks, the last one a decode
        tokens = [0] * (piece.stop - piece.start)
        batch = batch_of([Piece(tokens, piece.start, [2, 0, 3])], 4)
        fused = head.fuse(states[piece])
        found.append(head.forward(embedded[piece], fused, batch, kv, load(attention)))
    expected = plain.hidden(embedded, plain.fused(states))
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        head.logits(found[-1]), plain.logits(expected[-1:]), rtol=1e-4, atol=1e-5
    )
