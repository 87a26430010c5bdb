"""Measure what grammars cost with a real vocabulary; one JSON line per case and backend.

    python benchmarks/grammars.py MODEL.gguf --json results.jsonl

Times are CPU times of one thread. A text of each case is fed to its grammar token by token,
`--rounds` times with a new matcher; the first round is reported apart, since llguidance builds its
automata while it runs. `rows_us` is five rows, for four drafts. `forced` counts the tokens that are
the only one which the grammar allows.

    python benchmarks/grammars.py MODEL.gguf --decode 64

compares decoding of so many sequences under a schema with decoding without one, in CPU time of the
whole process.
"""

import argparse
import json
import platform
from pathlib import Path
from statistics import mean, median
from time import process_time, thread_time_ns
from typing import Any

import numpy as np

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.engine.api import SamplingParams
from paceline.llm import LLM
from paceline.structured.backend import BACKENDS, GrammarBackend, Matcher, backend_class
from paceline.structured.token_table import TokenTable
from paceline.text.tokenizer import Tokenizer

DRAFTS = 4
OUTPUT = 48  # tokens of each sequence that is decoded
TEXT = {"type": "string"}
ADDRESS = {
    "type": "object",
    "properties": {"street": TEXT, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
    "required": ["street", "zip"],
}
PERSON = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": TEXT},
        "address": ADDRESS,
        "kind": {"enum": ["reader", "writer"]},
    },
    "required": ["name", "age", "tags", "address", "kind"],
}
DOCUMENT = json.dumps(
    {
        "name": "Ada Lovelace, Countess",
        "age": 36,
        "tags": ["mathematics", "the first program"],
        "address": {"street": "12 St James's Square", "zip": "12345"},
        "kind": "writer",
    }
)
CASES: dict[str, tuple[Constraint, str]] = {
    "schema": (Constraint.json(PERSON), DOCUMENT),
    "schema, one spacing": (Constraint.json(PERSON, any_whitespace=False), DOCUMENT),
    "object": (Constraint.json_object(), DOCUMENT),
    "bounded string": (Constraint.json({"type": "string", "maxLength": 60}), '"a short text"'),
    "regex": (Constraint.regex(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}"), "2026-11-17T20:05"),
    "choice": (Constraint.choice(["positive", "negative", "neutral"]), "negative"),
}


class Times:
    """Times of one matcher's life, in nanoseconds."""

    def __init__(self, matcher: Matcher, tokens: list[int], words: int) -> None:
        self.fill: list[int] = []
        self.rows: list[int] = []
        self.accept: list[int] = []
        mask = np.zeros((DRAFTS + 1, words), np.int32)
        for at, token in enumerate(tokens):
            begin = thread_time_ns()
            matcher.fill(mask[0])
            filled = thread_time_ns()
            drafts = tokens[at : at + DRAFTS]
            matcher.fill_rows(mask, drafts)
            rows = thread_time_ns()
            assert matcher.accept(token), f"token {at} is refused"
            accepted = thread_time_ns()
            self.fill.append(filled - begin)
            self.accept.append(accepted - rows)
            if len(drafts) == DRAFTS:
                self.rows.append(rows - filled)
        assert matcher.finished


def forced(matcher: Matcher, tokens: list[int], words: int) -> int:
    """Of these tokens, how many are the only one that is allowed."""
    row, count = np.zeros(words, np.int32), 0
    for token in tokens:
        matcher.fill(row)
        count += int(np.bitwise_count(row).sum()) == 1
        assert matcher.accept(token)
    return count


def measured(
    backend: GrammarBackend, table: TokenTable, case: tuple[Constraint, str], rounds: int
) -> dict[str, Any]:
    constraint, text = case
    try:
        grammar = backend.compile(constraint)
    except RequestError as error:
        return {"refused": str(error)}
    compile_ns: list[int] = []
    for _ in range(3):
        begin = thread_time_ns()
        backend.compile(constraint)
        compile_ns.append(thread_time_ns() - begin)
    assert table.encode is not None
    tokens = table.encode(text)
    first, *others = [Times(grammar.matcher(), tokens, table.words) for _ in range(rounds)]
    fills = [one for times in others for one in times.fill]
    return {
        "compile_ms": round(median(compile_ns) / 1e6, 2),
        "size_bytes": grammar.size_bytes,
        "first_fill_us": round(mean(first.fill) / 1e3, 1),
        "fill_us": round(median(fills) / 1e3, 1),
        "fill_us_mean": round(mean(fills) / 1e3, 1),
        "fill_us_p99": round(float(np.percentile(fills, 99)) / 1e3, 1),
        "rows_us": round(median([r for times in others for r in times.rows] or [0]) / 1e3, 1),
        "accept_us": round(median([a for times in others for a in times.accept]) / 1e3, 1),
        "tokens": len(tokens),
        "forced": forced(grammar.matcher(), tokens, table.words),
    }


def decoding(model: Path, rows: int, threads: int, rounds: int = 3) -> dict[str, Any]:
    """CPU seconds of `rows` sequences of `OUTPUT` tokens, under a schema and without one."""
    people = {"type": "array", "items": PERSON, "minItems": 20}
    asked: dict[str, Any] = {"max_tokens": OUTPUT, "ignore_eos": True, "temperature": 0}
    cases = {
        "free": SamplingParams(**asked),
        "schema": SamplingParams(**asked, structured_outputs={"json": people}),
    }
    prompts = [f"Write a list of people, number {number}." for number in range(rows)]
    taken: dict[str, list[float]] = {case: [] for case in cases}
    settings: dict[str, Any] = {"max_num_seqs": rows, "max_model_len": 256, "threads": threads}
    with LLM(str(model), enable_prefix_caching=False, **settings) as llm:
        for number in range(1 + rounds):
            for case, params in cases.items():
                begin = process_time()
                llm.generate(prompts, params, progress=False)
                if number:  # the first round compiles the grammar
                    taken[case].append(process_time() - begin)
    ratios = [held / free for free, held in zip(*taken.values(), strict=True)]
    seconds = {f"{case}_s": [round(one, 2) for one in taken[case]] for case in cases}
    return {"case": "decoding", "rows": rows, "ratio": round(median(ratios), 3), **seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what grammars cost.")
    parser.add_argument("model", type=Path, help="a GGUF file, or a folder with a tokenizer.json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--decode", type=int, metavar="ROWS", help="compare decoding instead")
    parser.add_argument("--threads", type=int, default=1, help="for --decode")
    parser.add_argument("--json", type=Path, help="append the lines to this file too")
    options = parser.parse_args()
    if options.decode:
        found = decoding(options.model, options.decode, options.threads)
        print(json.dumps({**found, "machine": platform.machine(), "threads": options.threads}))
        return
    table = TokenTable.of(Tokenizer.load(options.model))
    for name in BACKENDS:
        backend = backend_class(name)(table)
        for label, case in CASES.items():
            line = {
                "case": label,
                "backend": name,
                "machine": platform.machine(),
                "vocabulary": table.vocab_size,
                **measured(backend, table, case, options.rounds),
            }
            print(json.dumps(line), flush=True)
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
