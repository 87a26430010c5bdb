"""adapter_config.json."""

from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.runner.adapters.targets import PeftConfig
from tests.runner.adapters.support import write_config

Q = "model.layers.1.self_attn.q_proj"
DOWN = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("fields", "adapts_q", "adapts_down"),
    [
        ({"target_modules": ["q_proj"]}, True, False),
        ({"target_modules": ["self_attn.q_proj", "mlp.down_proj"]}, True, True),
        ({"target_modules": ["proj"]}, False, False),
        ({"target_modules": r".*\.1\..*_proj"}, True, False),
        ({"target_modules": "q_proj"}, False, False),  # a text is a regular expression
        ({"target_modules": "all-linear"}, True, True),
        ({"target_modules": "all-linear", "exclude_modules": ["q_proj"]}, False, True),
        ({"target_modules": "all-linear", "layers_to_transform": [0]}, False, True),
        ({"target_modules": "all-linear", "layers_to_transform": 1}, True, False),
    ],
    ids=str,
)
def test_modules_are_chosen_as_by_peft(
    fields: dict[str, Any], adapts_q: bool, adapts_down: bool, tmp_path: Path
) -> None:
    config = write_config(tmp_path, **fields)
    assert (config.adapts(Q), config.adapts(DOWN)) == (adapts_q, adapts_down)


@pytest.mark.parametrize(
    ("fields", "rank", "scale"),
    [
        ({"r": 4, "lora_alpha": 8}, 4, 2.0),
        ({"r": 4, "lora_alpha": 8, "use_rslora": True}, 4, 4.0),
        ({"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 16}}, 16, 0.5),
        ({"r": 4, "lora_alpha": 8, "alpha_pattern": {"layers.1.self_attn.q_proj": 2}}, 4, 0.5),
        ({"r": 4, "lora_alpha": 8, "alpha_pattern": {"proj": 2}}, 4, 2.0),  # ends at a dot
    ],
    ids=str,
)
def test_ranks_and_scales(fields: dict[str, Any], rank: int, scale: float, tmp_path: Path) -> None:
    config = write_config(tmp_path, **fields)
    assert (config.rank_of(Q), config.scale_of(Q)) == (rank, scale)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"bias": "all"}, "bias is 'all'; biases are not adapted"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]; whole modules"),
        ({"use_dora": True}, "use_dora is True; DoRA is not supported"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA is supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the model too"),
        ({"r": 0}, "r is 0; it must be a positive number"),
        ({"lora_alpha": None}, "lora_alpha is None; it must be a positive number"),
        ({"target_modules": None}, "target_modules is None; it must be a list of modules"),
    ],
    ids=str,
)
def test_what_cannot_be_applied_is_refused(
    fields: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=problem):
        write_config(tmp_path, **fields)


def test_a_folder_without_the_file(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"is no adapter of PEFT: .*adapter_config.json"):
        PeftConfig.read(tmp_path)
