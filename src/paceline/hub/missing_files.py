"""Says what a folder or a repository without a model holds instead, and what to do with it."""

from collections.abc import Sequence

from paceline.hub.gguf_choice import gguf_files, listed

ADAPTER = "adapter_config.json"
PICKLED = ("pytorch_model", "consolidated")  # how files of other formats begin


def missing(needed: str, files: Sequence[str], prefix: str) -> str:
    """Why files without `needed` are not a model; `prefix` and a GGUF file would name one."""
    if ADAPTER in files:
        return (
            "it is a PEFT adapter, which paceline cannot load: merge it into its base model "
            "(merge_and_unload in peft), and save the result"
        )
    lacks = f"it has no {needed}"
    if found := gguf_files(files):
        return f"{lacks}, but GGUF files: name one, as in {prefix}{found[0]}; {listed(found)}"
    if pickled := [file for file in files if file.startswith(PICKLED)]:
        return (
            f"{lacks}, but {pickled[0]}: load it with transformers, and save it with "
            "save_pretrained, which writes safetensors"
        )
    return lacks
