"""What sampling parameters are when a request leaves them out, and how large they may be."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from paceline.core.errors import ConfigError, RequestError
from paceline.core.sampling import EVERY, MOST_LOGPROBS, alternatives
from paceline.engine.params import SamplingParams
from paceline.text.pooling_files import NO_DEFAULTS, EmbeddingDefaults

# The names in generation_config.json, and those of `SamplingParams`.
DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
LIMIT = "max_new_tokens"

MODEL_DEFAULTS = SamplingParams()  # stands for "none were given"


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """Defaults that come with a model, and limits of an engine.

    A request that sets a field overrides the default of that field alone. Beam search takes no
    defaults: it uses the probabilities of the model.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    max_tokens: int | None = None  # most tokens of an output; None: no limit
    max_logprobs: int = MOST_LOGPROBS  # most alternatives per token; -1: no limit
    embedding: EmbeddingDefaults = NO_DEFAULTS  # how prompts are embedded
    seed: int = 0  # of the engine, for requests without one; 0: the runner takes their ids

    @classmethod
    def of(cls, recommended: Mapping[str, Any], max_logprobs: int) -> "SamplingRules":
        """ConfigError if what the files of the model recommend is out of range."""
        found = {name: recommended[name] for name in DEFAULTED if name in recommended}
        try:
            rules = cls(found, recommended.get(LIMIT), max_logprobs)
            rules.params()
        except RequestError as error:
            raise ConfigError(
                f"the model recommends wrong sampling parameters: {error}; set generation_config "
                "to 'none' to ignore them"
            ) from None
        return rules

    def params(self, **given: Any) -> SamplingParams:
        """The given parameters, completed by the defaults of the model."""
        chosen: dict[str, Any] = given if searches(given) else {**self.defaults, **given}
        limit = self.max_tokens
        if limit is not None:
            wanted = given.get("max_tokens", MODEL_DEFAULTS.max_tokens)
            chosen = {**chosen, "max_tokens": limit if wanted is None else min(wanted, limit)}
        return SamplingParams(**chosen)

    def seed_of(self, params: SamplingParams, request_id: str) -> int | None:
        """The seed of a request: its own, or one made from that of the engine and its id."""
        if params.seed is not None or not self.seed:
            return params.seed
        named = f"{self.seed} {request_id}".encode(errors="surrogatepass")
        return int.from_bytes(blake2b(named, digest_size=8).digest(), "little", signed=True)

    def check(self, params: SamplingParams) -> None:
        """RequestError if more alternatives are wanted than the engine returns."""
        named = "the number of logprob_token_ids" if params.logprob_token_ids else "logprobs"
        self.check_logprobs(named, params.logprobs)
        self.check_logprobs("prompt_logprobs", params.prompt_logprobs)

    def check_logprobs(self, name: str, wanted: int | None) -> None:
        if wanted is not None and 0 <= self.max_logprobs < alternatives(wanted):
            shown = -1 if wanted == EVERY else wanted
            raise RequestError(
                f"{name} is {shown}; it must lie in 0..{self.max_logprobs}, which max_logprobs sets"
            )

    @property
    def summary(self) -> str:
        """The defaults in one line; empty if there are none."""
        values = dict(self.defaults)
        if self.max_tokens is not None:
            values["at most max_tokens"] = self.max_tokens
        return ", ".join(f"{name} {value}" for name, value in values.items())


def searches(given: Mapping[str, Any]) -> bool:
    return bool(given.get("use_beam_search") or given.get("beam_width"))


NO_RULES = SamplingRules()
