"""Writes the files from which Dynamo's frontend makes its tokenizer and its chat template."""

import json
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from paceline.core.folders import stored
from paceline.core.json_file import json_object
from paceline.text.tokenizer import Tokenizer

CONFIG = "config.json"
NEEDED = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}  # Dynamo reads no GGUF


def card_folder(model: Path, tokenizer: Tokenizer, max_model_len: int) -> Path:
    """A folder with the files of a model but its weights, whatever format the model has.

    Workers of one model have the same folder: Dynamo's frontend rejects a worker whose folder has
    another name than that of the first one.
    """
    own = json_object(model / CONFIG) if (model / CONFIG).is_file() else dict[str, Any]()
    ends = {"bos_token_id": tokenizer.bos, "eos_token_id": list(tokenizer.eos)}
    config = {**NEEDED, **own, **ends, "max_position_embeddings": max_model_len}
    files = {
        **tokenizer.files(),
        CONFIG: json.dumps(config),
        "generation_config.json": json.dumps(ends),
    }
    folder = Path("dynamo") / sha256(json.dumps(files).encode()).hexdigest()[:16]
    (path, *_) = [stored(folder / name, partial(write, text)) for name, text in files.items()]
    return path.parent


def write(text: str, file: Path) -> None:
    file.write_text(text, encoding="utf-8")
