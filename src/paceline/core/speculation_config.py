"""The settings of speculation."""

from dataclasses import dataclass

from paceline.core.setting_checks import check_types, not_negative, positive, require

MOST_LOOKUP = 64  # tokens; a proposer compares each of them with the whole sequence


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Draft tokens: who proposes them, and how many a step verifies.

    `num_speculative_tokens`, `prompt_lookup_min` and `prompt_lookup_max` are the names that vLLM
    has in its `speculative_config`; `proposer` is its `method`.
    """

    num_speculative_tokens: int = 0  # drafts per sequence and step, where a request names none
    proposer: str = "ngram"  # a module in runner/proposers, or a dotted path to a class
    prompt_lookup_min: int = 2  # ngram: fewest latest tokens that must have occurred before
    prompt_lookup_max: int = 4  # ngram: most latest tokens that are looked for
    speculation: str = "adaptive"  # a class in sched/speculation, or a dotted path
    speculation_max_batch_tokens: int = 0  # most rows and drafts of a step; 0: as step times say
    lookahead_slots: int = 0  # further KV positions a drafter writes beyond the row

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, "num_speculative_tokens", "lookahead_slots")
        not_negative(self, "speculation_max_batch_tokens")
        positive(self, "prompt_lookup_min")
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        require(
            least <= most <= MOST_LOOKUP,
            f"prompt_lookup_max is {most}; it must lie between prompt_lookup_min ({least}) and "
            f"{MOST_LOOKUP}",
        )
