"""The fields of vLLM's request schemas, read from its sources without running them.

`python -m tests.server.vllm_fields FOLDER` renews `vllm_fields.json`; the folder is what
`pip download --no-deps --no-binary :all: vllm` brings, unpacked.
"""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
SCHEMAS = {
    "/v1/chat/completions": ("ChatCompletionRequest",),
    "/v1/chat/completions/batch": ("BatchChatCompletionRequest",),
    "/v1/completions": ("CompletionRequest",),
    "/v1/responses": ("ResponsesRequest",),
    "/v1/messages": ("AnthropicMessagesRequest",),
    "/v1/messages/count_tokens": ("AnthropicCountTokensRequest",),
    "/tokenize": ("TokenizeCompletionRequest", "TokenizeChatRequest"),
    "/detokenize": ("DetokenizeRequest",),
}


def classes(folder: Path) -> dict[str, ast.ClassDef]:
    """The schemas of all routes, by name."""
    found: dict[str, ast.ClassDef] = {}
    for file in sorted(folder.glob("vllm/entrypoints/**/protocol.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = node
    return found


def fields(name: str, known: dict[str, ast.ClassDef]) -> set[str]:
    """The fields of a schema and of those that it extends."""
    if name not in known:
        return set()
    found: set[str] = set()
    for base in known[name].bases:
        found |= fields(ast.unparse(base).partition("[")[0], known)
    for node in known[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_field = "ClassVar" not in ast.unparse(node.annotation)
            found |= {node.target.id} if is_field else set()
    return {one for one in found if not one.startswith("_")}


def read(folder: Path) -> dict[str, Any]:
    known = classes(folder)
    described = re.search(r"^Version: (.+)$", (folder / "PKG-INFO").read_text(), re.MULTILINE)
    assert described is not None, "the folder is no source distribution"
    return {
        "vllm": described[1],
        "renewed by": "python -m tests.server.vllm_fields FOLDER",
        "routes": {
            route: sorted(set[str]().union(*(fields(name, known) for name in names)))
            for route, names in SCHEMAS.items()
        },
    }


def main() -> None:
    found = read(Path(sys.argv[1]))
    FILE.write_text(json.dumps(found, indent=1) + "\n")
    print({route: len(names) for route, names in found["routes"].items()})


if __name__ == "__main__":
    main()
