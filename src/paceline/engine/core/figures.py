"""The answer of an engine to "gauges", before it has any requests and when it does not answer."""

from dataclasses import asdict
from typing import Any

from paceline.engine.core.messages import Capacity
from paceline.engine.core.step_counts import StepCounts
from paceline.sched.stats import Stats
from paceline.structured.grammar_counts import GrammarCounts

WAITING_FOR_GRAMMAR = "waiting_for_grammar"
NO_REQUESTS: dict[str, Any] = dict.fromkeys(
    (
        *("running", "waiting", "parked", "swapped", "kv_usage", "drafting_paused", "pid"),
        WAITING_FOR_GRAMMAR,
    ),
    0,
)


def first_figures(capacity: Capacity) -> dict[str, Any]:
    """The answer to "gauges" of an engine without any request so far."""
    size = {
        "total_blocks": capacity.num_blocks,
        "block_size": capacity.block_size,
        "enable_prefix_caching": capacity.enable_prefix_caching,
    }
    totals = Stats().to_dict() | asdict(GrammarCounts()) | StepCounts().to_dict()
    return NO_REQUESTS | totals | size
