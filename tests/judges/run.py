"""Runs the server tests of another engine against `paceline serve`; compares with what is expected.

    python tests/judges/run.py vllm FOLDER [FILE ...]

FOLDER is the engine's source distribution, unpacked: of vllm, or of llama-cpp-python. The JSON file
beside this one says of each test that it passes, or why it does not; `--write FILE` keeps every
outcome with its error. Of vLLM, a tokenizer is read from the file of the embedded model, in
JUDGE_GGUF. JUDGE_SERVE, JUDGE_PORT and JUDGE_FOLDER change the command, port and place of logs.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODEL = Path.home() / ".cache/paceline/models/smollm2"


@dataclass(frozen=True, slots=True)
class Judge:
    """Where the tests of an engine are, and what stands in for the rest of it."""

    tests: str
    folder: str  # to run them in, above the tests
    mark: str  # in every file whose tests start a server
    options: tuple[str, ...]


JUDGES = {
    "vllm": Judge(
        "tests/entrypoints",
        ".",
        "RemoteOpenAIServer(",
        ("-p", "vllm_stand_in", "--confcutdir", "tests/entrypoints"),
    ),
    "llama.cpp": Judge(
        "unit", "vendor/llama.cpp/tools/server/tests", "ServerPreset", ("-p", "llama_cpp_stand_in")
    ),
}


def outcomes_of(judge: Judge, folder: Path, files: list[str], written: Path) -> dict[str, Any]:
    """What each test of these files came to, by its file, name and parameters."""
    written.unlink(missing_ok=True)
    options = ["-p", "outcomes", *judge.options, "--rootdir", ".", "-c", os.devnull]
    options += ["-p", "no:cacheprovider", "-q", "-W", "ignore", "--continue-on-collection-errors"]
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:.", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"JUDGE_OUTCOMES": str(written), "HF_HUB_OFFLINE": "1"}
    with (written.parent / "pytest.log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *(f"{judge.tests}/{one}" for one in files)],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            check=False,
        )
    seen: dict[str, Any] = json.loads(written.read_text())
    return {name.removeprefix(f"{judge.tests}/"): seen[name] for name in seen}


def judged(outcome: dict[str, Any]) -> str:
    """One word for a test: passes, fails, or none where no request reached the server."""
    if outcome["outcome"] == "passed":
        return "passes" if outcome["requests"] else "none"
    return "fails"


def surprises(seen: dict[str, Any], expected: dict[str, str]) -> list[str]:
    """What differs from the list, one line to a test."""
    lines: list[str] = []
    for name, outcome in seen.items():
        word = judged(outcome)
        wanted = expected.get(name, expected.get(name.partition("[")[0]))
        if wanted is None and word != "none":
            lines.append(f"{name}: {word}, and is not in the list")
        elif wanted == "passes" and word != "passes":
            lines.append(f"{name}: {word}: {outcome['error']}")
        elif wanted not in (None, "passes") and word == "passes":
            lines.append(f"{name}: passes, though: {wanted}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("judge", choices=JUDGES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--write", type=Path, help="where to keep every outcome with its error")
    chosen = parser.parse_args()
    judge = JUDGES[chosen.judge]
    kept = json.loads((HERE / f"{chosen.judge.replace('.', '_')}.json").read_text())
    expected = {name: kept["reasons"].get(why, why) for name, why in kept["tests"].items()}
    names = list(dict.fromkeys(name.partition("::")[0] for name in expected))
    os.environ.setdefault("JUDGE_GGUF", str(next(MODEL.glob("*.gguf"), MODEL)))
    scratch = Path(os.environ.setdefault("JUDGE_FOLDER", "/tmp/paceline-judges"))
    scratch.mkdir(parents=True, exist_ok=True)
    folder = chosen.folder / judge.folder
    seen = outcomes_of(judge, folder, chosen.files or names, scratch / "outcomes.json")
    if chosen.write:
        chosen.write.write_text(json.dumps(seen, indent=1))
    differing = surprises(seen, expected)
    print("\n".join(differing))
    counts = Counter(judged(outcome) for outcome in seen.values())
    print(
        f"{counts['passes']} pass, {counts['fails']} do not; {len(differing)} differ from the list"
    )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
