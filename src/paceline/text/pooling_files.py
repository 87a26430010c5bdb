"""How a model makes embeddings and scores, from config.json and the files that
sentence-transformers writes beside it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from paceline.core.arrays import F32
from paceline.core.errors import ConfigError
from paceline.core.pooling import CLASSIFIER, CLS, LAST, MEAN, DenseLayer, encoder_family
from paceline.core.system.files import json_object

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
WIDTHS = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
LENGTH = 8  # bytes that say how long the header of a file is


def stored_tensor(folder: Path, names: tuple[str, ...], rows: tuple[int, ...] = ()) -> F32:
    """The first of several tensors that is there; with `rows`, these rows of it alone."""
    for name in names:
        if (file := file_of(folder, name)) is None:
            continue
        header, begin = header_of(file)
        if (found := header.get(name)) is not None:
            return values_of(file, begin, found, rows)
    raise ConfigError(f"{folder} has no tensor {' or '.join(names)}")


def file_of(folder: Path, name: str) -> Path | None:
    """The file that has a tensor, or may have it."""
    index = folder / INDEX
    if not index.is_file():
        return folder / SINGLE if (folder / SINGLE).is_file() else None
    found = json_object(index).get("weight_map", {}).get(name)
    return folder / found if isinstance(found, str) else None


def header_of(file: Path) -> tuple[dict[str, Any], int]:
    """The header of a file of tensors, and where their bytes begin."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(LENGTH), "little")
            return json.loads(opened.read(min(size, file.stat().st_size))), LENGTH + size
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


def values_of(file: Path, begin: int, entry: dict[str, Any], rows: tuple[int, ...]) -> F32:
    shape, kind = entry["shape"], entry["dtype"]
    if kind not in WIDTHS:
        raise ConfigError(f"{file}: a tensor has type {kind}; supported are {', '.join(WIDTHS)}")
    offset = begin + entry["data_offsets"][0]
    try:
        whole = np.memmap(file, WIDTHS[kind], "r", offset, tuple(shape))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} is incomplete: {error}") from None
    raw = np.array(whole[list(rows)] if rows else whole)
    if kind == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)


MODES = {
    "pooling_mode_lasttoken": LAST,
    "pooling_mode_mean_tokens": MEAN,
    "pooling_mode_cls_token": CLS,
    "lasttoken": LAST,
    "mean": MEAN,
    "cls": CLS,
}
ACTIVATIONS = {"Identity": "", "Tanh": "tanh", "ReLU": "relu", "Sigmoid": "sigmoid"}
PROMPTS = "config_sentence_transformers.json"
INPUT = "sentence_embedding"  # what a Dense reads and writes
HEADS = ("lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight")
FROM_TOKENS = "classifier_from_token"  # in config.json: the tokens for no and yes
RERANKER = re.compile("qwen3-reranker", re.IGNORECASE)
NO_AND_YES = ("no", "yes")
MULTI_LABEL = "multi_label_classification"

# What Qwen3 rerankers were trained with.
RERANKING = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {{ instruction or 'Given a web search query, retrieve relevant "
    "passages that answer the query' }}\n<Query>: {{ messages[0].content }}\n"
    "<Document>: {{ messages[1].content }}<|im_end|>\n<|im_start|>assistant\n"
    "<think>\n\n</think>\n\n"
)

TokenId = Callable[[str], int | None]


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingDefaults:
    """pooling       which hidden states an embedding is made of; "": the files do not say
    normalize     whether embeddings have length 1
    problem       why the files are not supported
    classifies    whether the model has classes for texts, or for pairs of them: no embeddings
    dense         what the pooled vector goes through: to an embedding, or to logits of classes
    labels        names of the classes
    independent   whether a text may have several classes, each with a probability of its own
    pair_template the chat template for two texts; "": one text follows the other
    prefix        what stands in front of each text to embed
    """

    pooling: str = ""
    normalize: bool = True
    problem: str = ""
    classifies: bool = False
    dense: tuple[DenseLayer, ...] = ()
    labels: tuple[str, ...] = ()
    independent: bool = False
    pair_template: str = ""
    prefix: str = ""


NO_DEFAULTS = EmbeddingDefaults()


def embedding_defaults(
    folder: Path, config: Mapping[str, Any], token_id: TokenId
) -> EmbeddingDefaults:
    """Read config.json, `modules.json` and the files that it names, or take the usual defaults."""
    architecture = str((config.get("architectures") or [""])[0])
    if architecture.endswith(CLASSIFIER):
        return classifier(folder, config, encoder_family(architecture) is not None)
    modules = modules_in(folder / "modules.json")
    if (tokens := deciding_tokens(folder, architecture, config, modules, token_id)) is not None:
        return reranker(folder, tokens)
    if modules:
        return replace(followed(folder, modules), prefix=prefix_in(folder / PROMPTS))
    if encoder_family(architecture) is not None:
        return EmbeddingDefaults(CLS)
    return EmbeddingDefaults(MEAN) if config.get("use_bidirectional_attention") else NO_DEFAULTS


def classifier(folder: Path, config: Mapping[str, Any], is_encoder: bool) -> EmbeddingDefaults:
    """The head of an encoder is part of it. A decoder's is one linear of the last position."""
    names = cast("dict[Any, Any]", config.get("id2label") or {0: "LABEL_0", 1: "LABEL_1"})
    labels = tuple(str(names[key]) for key in sorted(names, key=int))
    independent = config.get("problem_type") == MULTI_LABEL
    dense = () if is_encoder else (DenseLayer(stored_tensor(folder, ("score.weight",))),)
    if dense and len(dense[0].weight) != len(labels):
        labels = tuple(f"LABEL_{index}" for index in range(len(dense[0].weight)))
    return EmbeddingDefaults(
        CLS if is_encoder else LAST,
        normalize=False,
        classifies=True,
        dense=dense,
        labels=labels,
        independent=independent,
    )


def deciding_tokens(
    folder: Path,
    architecture: str,
    config: Mapping[str, Any],
    modules: "list[Module]",
    token_id: TokenId,
) -> tuple[int, ...] | None:
    """The ids of the tokens for no and yes, of a model whose next token says whether two texts
    match; None: it is none. The first may be missing."""
    scoring = next((one for one in modules if one.kind == "LogitScore"), None)
    if scoring is not None:
        given = json_object(folder / scoring.path / "config.json")
        ids = (given.get("false_token_id"), given.get("true_token_id"))
        return tuple(int(one) for one in ids if one is not None)
    words: Any = config.get(FROM_TOKENS)
    # The published rerankers have no mark but their name.
    if words is None and architecture == "Qwen3ForCausalLM" and RERANKER.search(str(folder)):
        words = NO_AND_YES
    if words is None:
        return None
    found = [token_id(str(word)) for word in words]
    if len(found) != len(NO_AND_YES) or None in found:
        raise ConfigError(
            f"{folder}: {FROM_TOKENS} is {words!r}; it must be two tokens of the vocabulary, for "
            "no and for yes"
        )
    return tuple(one for one in found if one is not None)


def reranker(folder: Path, tokens: tuple[int, ...]) -> EmbeddingDefaults:
    """One class: by how much yes is likelier than no, from two rows of the head."""
    rows = stored_tensor(folder, HEADS, tokens)
    difference = rows[-1:] - rows[:1] if len(tokens) > 1 else rows
    return EmbeddingDefaults(
        LAST,
        normalize=False,
        classifies=True,
        dense=(DenseLayer(difference),),
        labels=("yes",),
        pair_template=RERANKING,
    )


@dataclass(frozen=True, slots=True)
class Module:
    """A step of sentence-transformers, and the folder of its files."""

    kind: str
    path: str


def modules_in(index: Path) -> list[Module]:
    """The steps that a model lists; none if it lists none."""
    if not index.is_file():
        return []
    try:
        modules = cast("list[dict[str, Any]]", json.loads(index.read_text(encoding="utf-8")))
        return [
            Module(str(one["type"]).rpartition(".")[2], str(one.get("path", ""))) for one in modules
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index} is no list of modules: {error!r}") from None


def followed(folder: Path, modules: list[Module]) -> EmbeddingDefaults:
    """Pooling, then any number of linears, then a norm."""
    kinds = [one.kind for one in modules]
    others = sorted({*kinds} - {"Transformer", "Pooling", "Dense", "Normalize"})
    if others:
        unknown = f"{folder / 'modules.json'} has a module {others[0]}, which is unknown"
        return EmbeddingDefaults(problem=unknown)
    pooling, problem, dense = "", "", list[DenseLayer]()
    for one in modules:
        if problem:
            break
        if one.kind == "Pooling":
            pooling, problem = pooling_in(folder / one.path / "config.json")
        elif one.kind == "Dense":
            layer, problem = dense_in(folder / one.path)
            if not pooling:
                problem = f"{folder / one.path} comes before the pooling, which is not supported"
            dense += [] if layer is None else [layer]
    return EmbeddingDefaults(pooling, "Normalize" in kinds, problem, dense=tuple(dense))


def prefix_in(file: Path) -> str:
    """The prompt that sentence-transformers puts in front of each text, unless it is asked for
    another one by name; empty: none."""
    if not file.is_file():
        return ""
    given = json_object(file)
    name: Any = given.get("default_prompt_name")
    prompts: Any = given.get("prompts") or {}
    if name is not None and name not in prompts:
        raise ConfigError(f"{file} has no prompt {name!r}, which its default_prompt_name names")
    return "" if name is None else str(prompts[name])


def pooling_in(file: Path) -> tuple[str, str]:
    """The pooling that a file asks for, or what is wrong with it."""
    if not file.is_file():
        return "", f"{file} is missing"
    given = json_object(file)
    modes = [name for name, on in given.items() if name.startswith("pooling_mode_") and on is True]
    newer: Any = given.get("pooling_mode")
    if newer is not None:
        modes = [newer] if isinstance(newer, str) else [str(one) for one in newer]
    if given.get("include_prompt") is False:
        return "", f"{file} leaves the prompt out of the pooling, which is not supported"
    if len(modes) == 1 and modes[0] in MODES:
        return MODES[modes[0]], ""
    return "", f"{file} asks for {' and '.join(modes) or 'nothing'}, which is unknown"


def dense_in(folder: Path) -> tuple[DenseLayer | None, str]:
    """The linear of a Dense module, or why it is not supported."""
    file = folder / "config.json"
    if not file.is_file():
        return None, f"{file} is missing"
    given = json_object(file)
    activation = str(given.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        return None, f"{file} has the activation {activation}; known are {', '.join(ACTIVATIONS)}"
    ends = {given.get(f"module_{end}_name", INPUT) for end in ("input", "output")} - {None}
    if given.get("use_residual") or ends != {INPUT}:
        return None, f"{file} does not read and write the embedding alone, which is not supported"
    try:
        weight = stored_tensor(folder, ("linear.weight",))
        bias = stored_tensor(folder, ("linear.bias",)) if given.get("bias", True) else None
    except ConfigError as error:
        return None, str(error)
    return DenseLayer(weight, bias, ACTIVATIONS[activation]), ""
