"""How a model makes embeddings, from the files that sentence-transformers writes beside it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from paceline.core.errors import ConfigError
from paceline.core.json_file import json_object
from paceline.core.pooling import CLS, LAST, MEAN

MODES = {
    "pooling_mode_lasttoken": LAST,
    "pooling_mode_mean_tokens": MEAN,
    "pooling_mode_cls_token": CLS,
}

ENCODERS = re.compile("(Bert|Roberta|XLMRoberta)(Model|ForMaskedLM)")


@dataclass(frozen=True, slots=True)
class EmbeddingDefaults:
    """pooling    which hidden states an embedding is made of; "": the files do not say
    normalize  whether embeddings have length 1
    problem    why the files cannot be followed
    classifies whether the model scores two texts at once, and makes no embeddings
    """

    pooling: str = ""
    normalize: bool = True
    problem: str = ""
    classifies: bool = False


NO_DEFAULTS = EmbeddingDefaults()


def embedding_defaults(folder: Path, architecture: str = "") -> EmbeddingDefaults:
    """What `modules.json` and the files that it names say, or else what is usual."""
    if architecture.endswith("ForSequenceClassification"):
        return EmbeddingDefaults(CLS, normalize=False, classifies=True)
    index = folder / "modules.json"
    if not index.is_file():
        return EmbeddingDefaults(CLS) if ENCODERS.fullmatch(architecture) else NO_DEFAULTS
    try:
        modules = cast("list[dict[str, Any]]", json.loads(index.read_text(encoding="utf-8")))
        kinds = {str(one["type"]).rpartition(".")[2]: str(one.get("path", "")) for one in modules}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index} is no list of modules: {error!r}") from None
    others = sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"})
    if others:
        return EmbeddingDefaults(problem=f"{index} has a module {others[0]}, which is unknown")
    pooling, problem = "", ""
    if "Pooling" in kinds:
        pooling, problem = pooling_in(folder / kinds["Pooling"] / "config.json")
    return EmbeddingDefaults(pooling, "Normalize" in kinds, problem)


def pooling_in(file: Path) -> tuple[str, str]:
    """The pooling that a file asks for, or what is wrong with it."""
    if not file.is_file():
        return "", f"{file} is missing"
    given = json_object(file)
    modes = [name for name, on in given.items() if name.startswith("pooling_mode_") and on is True]
    if len(modes) == 1 and modes[0] in MODES:
        return MODES[modes[0]], ""
    return "", f"{file} asks for {' and '.join(modes) or 'nothing'}, which is unknown"
