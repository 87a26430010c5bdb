"""Embeddings, scores and classes of texts, for a script."""

from collections.abc import Iterable, Sequence

from paceline.core.arrays import F32
from paceline.core.errors import RequestError
from paceline.engine import embeddings as pooling
from paceline.engine.api import RequestOutput
from paceline.engine.embeddings import Classification, Embedding, Pooled, PoolingOutput, Score
from paceline.engine.offline.resident import ResidentEngine
from paceline.engine.prompts import Prompt, as_generation, several
from paceline.engine.vllm_forms import PoolingParams

NO_POOLING = PoolingParams()


class PoolingEngine(ResidentEngine):
    """A model to call from a script, which also embeds, scores and classifies texts."""

    def embed(
        self,
        prompts: Prompt | Iterable[Prompt],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        progress: bool = True,
    ) -> list[PoolingOutput[Embedding]]:
        """Turn each prompt into a vector, as the files of the model say, or the setting `pooling`.

        `dimensions` keeps the first numbers of each vector. `normalize` says whether vectors have
        length 1; None: as the model's files say.

        ```py
        vectors = [output.outputs.embedding for output in llm.embed(["one text", "another"])]
        ```
        """
        defaults = self._frontend.rules.embedding
        outputs = self._pooled(prompts, progress)
        scaled = defaults.normalize if normalize is None else normalize
        return pooling.embeddings(outputs, scaled, dimensions)

    def score(
        self, texts: str | Sequence[str], others: str | Sequence[str], *, progress: bool = True
    ) -> list[PoolingOutput[Score]]:
        """Say how well texts match: one with each of the others, or each with its counterpart.

        The score is that of the model if it is a classifier of two texts, and otherwise the cosine
        of the embeddings.
        """
        defaults = self._frontend.rules.embedding
        compared = pooling.Comparison(texts, others, self.get_tokenizer(), defaults)
        asked = [pooling.pooled(prompt, defaults) for prompt in compared.prompts]
        return compared.scores(self._run(asked, progress, raise_on_error=False))

    def classify(
        self, prompts: Prompt | Iterable[Prompt], *, progress: bool = True, use_tqdm: bool = True
    ) -> list[PoolingOutput[Classification]]:
        """The probability of each class of each prompt. RequestError if the model has no classes.

        ```py
        print(llm.classify("a fine film")[0].outputs.probs)
        ```
        """
        self._require_classes("classify")
        outputs, rules = self._pooled(prompts, progress and use_tqdm), self._frontend.rules
        return pooling.results(outputs, lambda one: pooling.classification(one, rules.embedding))

    def reward(
        self, prompts: Prompt | Iterable[Prompt], *, progress: bool = True, use_tqdm: bool = True
    ) -> list[PoolingOutput[Pooled]]:
        """What a reward model gives each prompt: the numbers of its classes, as they come."""
        self._require_classes("reward")
        return pooling.results(self._pooled(prompts, progress and use_tqdm), Pooled)

    def encode(
        self,
        prompts: Prompt | Iterable[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        pooling_task: str = "embed",
        progress: bool = True,
        use_tqdm: bool = True,
    ) -> list[PoolingOutput[Pooled]]:
        """What a model makes of each prompt as an array, `outputs.data`, for a task of vLLM.

        "embed" is the vector of `embed`, "classify" the probabilities of `classify`.
        """
        shown = progress and use_tqdm
        if pooling_task == "classify":
            self._require_classes("encode")
            outputs = self._pooled(prompts, shown)
            return pooling.results(outputs, lambda one: Pooled(self._classes(one)))
        if pooling_task != "embed":
            raise RequestError(
                f"pooling_task is {pooling_task!r}; there are embed and classify, and no "
                "vectors of single tokens"
            )
        asked = pooling_params or NO_POOLING
        normalize = self._frontend.rules.embedding.normalize
        scaled = normalize if asked.normalize is None else asked.normalize
        return pooling.results(
            self._pooled(prompts, shown),
            lambda vector: Pooled(pooling.embedding_of(vector, scaled, asked.dimensions)),
        )

    def _pooled(self, prompts: Prompt | Iterable[Prompt], progress: bool) -> list[RequestOutput]:
        defaults = self._frontend.rules.embedding
        asked = [pooling.pooled(as_generation(prompt), defaults) for prompt in several(prompts)]
        return self._run(asked, progress, raise_on_error=False)

    def _classes(self, logits: F32) -> F32:
        return pooling.probabilities(logits, self._frontend.rules.embedding.independent)

    def _require_classes(self, method: str) -> None:
        advice = f"{method} needs a model with classes, and {self.model} has none; use embed"
        pooling.require_classes(self._frontend.rules.embedding, advice)
