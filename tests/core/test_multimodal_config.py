"""The settings of multimodal input."""

from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.core.settings.config import Config


def test_budget_and_capacity_are_those_of_a_step_unless_they_are_set() -> None:
    config = Config.of(max_num_batched_tokens=300)
    assert (config.encoder_budget, config.encoder_capacity) == (300, 300)
    config = Config.of(max_num_encoder_input_tokens=7, encoder_cache_size=9)
    assert (config.encoder_budget, config.encoder_capacity) == (7, 9)


@pytest.mark.parametrize(
    "settings", [{"max_num_encoder_input_tokens": -1}, {"encoder_cache_size": -1}]
)
def test_a_negative_size_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be negative"):
        Config.of(**settings)
