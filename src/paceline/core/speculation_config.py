"""The settings of speculation."""

from dataclasses import dataclass

from paceline.core.setting_checks import check_types, not_negative, positive, require

MOST_LOOKUP = 64  # tokens; a proposer compares each of them with the whole sequence
LEAST_DEPTH, MOST_DEPTH = 3, 256  # tokens; each token of an output adds a path of so many


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Draft tokens: who proposes them, and how many a step verifies.

    Names that vLLM has in its `speculative_config` are the same here, except `proposer`, which is
    its `method`, and `speculative_model`, which is its `model`.
    """

    num_speculative_tokens: int = 0  # drafts per sequence and step, where a request names none
    proposer: str = "ngram"  # a module in runner/proposers, or a dotted path to a class
    speculative_model: str = ""  # draft_model, eagle3: the model that drafts
    prompt_lookup_min: int = 2  # ngram: fewest latest tokens that must have occurred before
    prompt_lookup_max: int = 4  # ngram: most latest tokens that are looked for
    suffix_decoding_max_tree_depth: int = 24  # suffix: tokens of a path in its tree
    suffix_decoding_max_cached_requests: int = 10000  # suffix: outputs kept; 0: of no other request
    suffix_decoding_max_spec_factor: float = 1.0  # suffix: most drafts for each token that matches
    suffix_decoding_min_token_prob: float = 0.1  # suffix: drafts less likely than this are left out
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
        self._check_suffixes()

    def _check_suffixes(self) -> None:
        depth, likely = self.suffix_decoding_max_tree_depth, self.suffix_decoding_min_token_prob
        require(
            LEAST_DEPTH <= depth <= MOST_DEPTH,
            f"suffix_decoding_max_tree_depth is {depth}; it must lie between "
            f"{LEAST_DEPTH} and {MOST_DEPTH}",
        )
        not_negative(self, "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor")
        require(
            0.0 <= likely <= 1.0,
            f"suffix_decoding_min_token_prob is {likely}; it must lie in [0, 1]",
        )
