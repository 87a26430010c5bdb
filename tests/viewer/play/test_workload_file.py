"""Workload files: what they may say, and how they are told what is wrong with them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.viewer.play.plan_notes import ScriptError
from paceline.viewer.play.synthetic_model import NEVER, STOP_TOKEN
from paceline.viewer.play.workload_file import SMALL, Script, build, built_in, built_in_names, load

ONE = {"id": "a", "prompt_tokens": 5}


def script(*requests: Any, overrides: dict[str, Any] | None = None, **top: Any) -> Script:
    return build({"requests": list(requests), **top}, "w.json", overrides or {})


def complaint(content: Any, **overrides: Any) -> str:
    with pytest.raises(ScriptError) as caught:
        build(content, "w.json", overrides)
    return str(caught.value)


def complaint_about(**request: Any) -> str:
    """What is wrong with one request."""
    return complaint({"requests": [{**ONE, **request}]})


# -- what a workload may say ------------------------------------------------


def test_a_request_needs_no_more_than_an_id_and_a_prompt() -> None:
    (ask,) = script(ONE).requests
    assert len(ask.request.prompt) == 5
    assert (ask.arrive_step, ask.arrive_s, ask.parked) == (1, 0.0, "")
    assert (ask.abort_step, ask.stop_at) == (NEVER, (NEVER,))
    assert (ask.request.width, ask.request.silent) == (1, False)
    assert ask.request.drafts is None
    assert ask.request.deadline is None


def test_every_field_arrives_at_the_request() -> None:
    (ask,) = script(
        {
            "id": "a",
            "arrive": 3,
            "prompt": [5, 6, 7],
            "max_tokens": 9,
            "priority": -2,
            "tenant": "t",
            "deadline": "80ms",
            "token_deadline": 0.5,
            "adapter": "sql",
            "cache_salt": "s",
            "drafts": 2,
            "abort_at": 12,
            "stop_at": 4,
            "park": {"for": "grammar", "until": 6},
        }
    ).requests
    request = ask.request
    assert request.prompt.tolist() == [5, 6, 7]
    assert (request.max_tokens, request.priority, request.tenant) == (9, -2, "t")
    assert (request.deadline, request.token_deadline) == (pytest.approx(0.08), 0.5)
    assert (request.adapter, request.cache_salt, request.drafts) == ("sql", "s", 2)
    assert request.eos_token_ids == (STOP_TOKEN,)
    assert (ask.arrive_step, ask.abort_step, ask.stop_at) == (3, 12, (4,))
    assert (ask.parked, ask.wake_step) == ("grammar", 6)


def test_a_family_arrives_at_the_request() -> None:
    sampled, best, beams = script(
        {**ONE, "n": 3},
        {**ONE, "id": "b", "n": 2, "best_of": 4},
        {
            **ONE,
            "id": "c",
            "beam_width": 3,
            "n": 2,
            "length_penalty": 0.5,
            "early_stopping": "never",
        },
    ).requests
    assert (sampled.request.n, sampled.request.width, sampled.request.silent) == (3, 3, False)
    assert (best.request.best_of, best.request.width, best.request.silent) == (4, 4, True)
    request = beams.request
    assert (request.beam_width, request.length_penalty) == (3, 0.5)
    assert request.early_stopping == "never"


@pytest.mark.parametrize(
    ("fields", "stops"),
    [
        ({"n": 3}, (NEVER,) * 3),
        ({"n": 3, "stop_at": 4}, (4, 4, 4)),
        ({"n": 3, "stop_at": [4, 2, 9]}, (4, 2, 9)),
        ({"beam_width": 2, "stop_at": 4}, (4, 4)),
        ({"stop_at": [4]}, (4,)),
    ],
)
def test_each_sequence_has_its_stop(fields: dict[str, Any], stops: tuple[int, ...]) -> None:
    (ask,) = script({**ONE, **fields}).requests
    assert ask.stop_at == stops
    assert ask.request.eos_token_ids == ((STOP_TOKEN,) if "stop_at" in fields else ())


def test_disciplines_and_swapping_are_settings() -> None:
    settings = {
        "discipline": "prefill_first",
        "max_wait": 0.25,
        "preemption_mode": "auto",
        "swap_space": 12,
        "recompute_tokens_per_s": 500,
        "swap_blocks_per_s": 40.5,
    }
    assert script(ONE, settings=settings).settings == SMALL | settings


def test_arrival_is_a_step_or_a_time() -> None:
    by_step, by_time = script({**ONE, "arrive": 4}, {**ONE, "id": "b", "arrive": "1.5 s"}).requests
    assert (by_step.arrive_step, by_step.arrive_s, by_step.request.arrival) == (4, 0.0, None)
    assert (by_time.arrive_step, by_time.arrive_s, by_time.request.arrival) == (1, 1.5, 1.5)


def test_prompts_share_exactly_their_named_prefix() -> None:
    def prompt(name: str, tokens: int, prefix: str, shared: int) -> list[int]:
        one = {
            "id": name,
            "prompt_tokens": tokens,
            "prefix": {"name": prefix, "tokens": shared},
        }
        return script(one).requests[0].request.prompt.tolist()

    a, b, other = prompt("a", 12, "sys", 8), prompt("b", 10, "sys", 6), prompt("c", 12, "x", 8)
    assert a[:6] == b[:6]
    assert a[6:10] != b[6:10]
    assert a[:8] != other[:8]
    assert (len(a), len(b)) == (12, 10)


def test_an_id_may_be_a_number() -> None:
    assert script({"id": 7, "prompt_tokens": 2}).requests[0].request.id == "7"


def test_nothing_means_the_default() -> None:
    ask = script({**ONE, "tenant": None, "drafts": None, "max_tokens": None}).requests[0]
    assert (ask.request.tenant, ask.request.drafts) == ("", None)


def test_the_command_line_outranks_the_file_and_the_file_the_small_defaults() -> None:
    made = script(ONE, settings={"block_size": 4, "max_num_seqs": 2}, overrides={"max_num_seqs": 3})
    assert made.settings == {**SMALL, "block_size": 4, "max_num_seqs": 3}


def test_the_seed_changes_the_prompt() -> None:
    prompts = [script(ONE, seed=seed).requests[0].request.prompt.tolist() for seed in (0, 0, 1)]
    assert prompts[0] == prompts[1] != prompts[2]


@pytest.mark.parametrize("name", built_in_names())
def test_built_ins_are_in_order_and_say_what_they_show(name: str) -> None:
    made = build(json.loads(built_in(name)), name, {})
    assert made.about
    steps = [ask.arrive_step for ask in made.requests if not made.about.startswith("Two tenants")]
    assert steps == sorted(steps)


# -- reading files ----------------------------------------------------------


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    content = {"settings": {"block_size": 4}, "requests": [ONE]}
    as_json, as_yaml, unnamed = (tmp_path / name for name in ("w.json", "w.yaml", "w"))
    as_json.write_text(json.dumps(content))
    as_yaml.write_text("settings: {block_size: 4}\nrequests:\n  - id: a\n    prompt_tokens: 5\n")
    unnamed.write_text(as_yaml.read_text())
    assert load(str(as_json)) == load(str(as_yaml)) == load(str(unnamed)) == content


def test_yaml_without_pyyaml_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "w.yaml"
    path.write_text("requests: []")
    with pytest.raises(ScriptError, match=r"pip install 'paceline\[cli\]'"):
        load(str(path))


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("w.json", '{"requests": [\n  {"id": }]}', "w.json:2:10: is not JSON"),
        ("w.yaml", "requests:\n  - {id: a\n", "w.yaml:3:1: is not YAML"),
        ("w.yaml", "day: 2024-99-99", "w.yaml: is not YAML"),
        ("w.json", "[" * 100_000, "w.json: is not JSON that can be read: nested too deeply"),
        ("w.json", "9" * 5_000, "w.json: is not JSON that can be read: a number has thousands"),
    ],
)
def test_a_file_that_cannot_be_parsed_names_the_place(
    tmp_path: Path, name: str, text: str, place: str
) -> None:
    if name.endswith("yaml"):
        pytest.importorskip("yaml")
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ScriptError) as caught:
        load(str(path))
    assert place in str(caught.value)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="nowhere: no such file; built-in workloads, with"):
        load(str(tmp_path / "nowhere"))
    with pytest.raises(ScriptError, match="cannot be read: Is a directory"):
        load(str(tmp_path))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScriptError, match="is not UTF-8 text"):
        load(str(tmp_path / "bytes"))


# -- what is wrong, and where -----------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([], "w.json: must be a mapping of fields, not a list"),
        (None, "w.json: must be a mapping of fields, not nothing"),
        ({}, "w.json: needs the field requests"),
        ({"requests": []}, "w.json: requests: is empty"),
        ({"requests": {"a": 1}}, "w.json: requests: must be a list"),
        ({"requests": ["a"]}, "w.json: requests[0]: must be a mapping of fields, not 'a'"),
        ({"requests": [ONE], "setings": {}}, "unknown field 'setings'; did you mean 'settings'?"),
        ({"requests": [ONE], "settings": []}, "w.json: settings: must be a mapping, not []"),
        ({"requests": [ONE], "settings": {3: 4}}, "w.json: settings: has an unknown field 3"),
        ({"requests": [ONE], "acceptance": 2}, "acceptance: must be a number from 0 to 1, not 2"),
        ({"requests": [ONE], "about": "a\nb"}, "about: must be a line of text"),
        ({"requests": [ONE, ONE]}, "requests[1].id: 'a' is already the id of requests[0]"),
        ({"requests": [{"prompt_tokens": 4}]}, "w.json: requests[0]: needs the field id"),
        ({"requests": [{"id": "a"}]}, "requests[0]: needs one of prompt"),
    ],
)
def test_content_that_is_no_workload(content: Any, expected: str) -> None:
    assert expected in complaint(content)


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        ({"max_tokns": 3}, "requests[0]: has an unknown field 'max_tokns'; did you mean 'max_tok"),
        ({"max_tokens": "ten"}, "requests[0].max_tokens: must be a whole number, not 'ten'"),
        ({"max_tokens": 0}, "requests[0].max_tokens: must be at least 1, not 0"),
        ({"max_tokens": 10**9}, "requests[0].max_tokens: must be at most 100,000"),
        ({"priority": True}, "requests[0].priority: must be a whole number, not True"),
        ({"id": ""}, "requests[0].id: must be a name"),
        ({"id": "a\x1b[2J"}, "requests[0].id: must be a name"),
        ({"id": "a" * 65}, "requests[0].id: must be a name"),
        ({"tenant": 3}, "requests[0].tenant: must be a line of text, not 3"),
        ({"arrive": 0}, "requests[0].arrive: must be a step from 1 on, or a time like '120ms'"),
        ({"arrive": 1.5}, "requests[0].arrive: must be a step"),
        ({"arrive": "soon"}, "requests[0].arrive: must be a step"),
        ({"arrive": "9" * 400 + "s"}, "requests[0].arrive: must be a step"),
        ({"arrive": 10**30}, "requests[0].arrive: must be at most 9,223,372,036,854,775,807"),
        ({"deadline": -1}, "requests[0].deadline: must be a time"),
        ({"deadline": "never"}, "requests[0].deadline: must be a time"),
        ({"deadline": 10**400}, "requests[0].deadline: must be a time that fits a float, not 1000"),
        ({"deadline": 10**5000}, "that fits a float, not a number of thousands of digits"),
        ({"id": 10**64}, "requests[0].id: must be a name of 1 to 64 letters"),
        ({"id": 10**5000}, "requests[0].id: must be a name of 1 to 64 letters"),
        ({"prompt": [1]}, "requests[0]: needs one of prompt"),
        ({"prompt_tokens": None, "prompt": [1, -1]}, "requests[0]: the prompt of 'a' has a negat"),
        ({"prompt_tokens": None, "prompt": ["x"]}, "requests[0]: the prompt of 'a' must be"),
        ({"prompt_tokens": None, "prompt": [2**40]}, "requests[0]: the prompt of 'a' must be"),
        ({"prompt_tokens": None, "prompt": "text"}, "requests[0].prompt: must be a list"),
        ({"prefix": "system"}, "requests[0].prefix: must be a mapping of fields"),
        ({"prefix": {}}, "requests[0].prefix: needs the field name"),
        ({"prefix": {"name": "s", "tokens": 6}}, "requests[0].prefix.tokens: is 6, more than the"),
        ({"park": {"for": "grammar"}}, "requests[0].park: needs the field until"),
        ({"park": {"for": "", "until": 3}}, "requests[0].park.for: must be a line of text"),
        ({"arrive": 5, "abort_at": 3}, "requests[0].abort_at: is step 3, before the request arr"),
        ({"arrive": 5, "park": {"for": "x", "until": 3}}, "requests[0].park.until: is step 3"),
        ({"stop_at": 0}, "requests[0].stop_at: must be at least 1"),
        ({"stop_at": "x"}, "requests[0].stop_at: must be a whole number, not 'x'"),
        ({"n": 2, "stop_at": [1, 0]}, "requests[0].stop_at: must be a list of whole numbers from"),
        ({"n": 3, "stop_at": [1, 2]}, "requests[0].stop_at: lists 2 numbers for 3 sequences"),
        ({"beam_width": 2, "stop_at": [1, 2]}, "requests[0].stop_at: is one number for all beams"),
        ({"n": 0}, "requests[0].n: must be at least 1, not 0"),
        ({"n": 2.5}, "requests[0].n: must be a whole number, not 2.5"),
        ({"n": 65}, "requests[0].n: must be at most 64, not 65"),
        ({"n": 2, "best_of": 1}, "requests[0]: request 'a': best_of is 1; at least n (2)"),
        ({"beam_width": 1}, "requests[0]: request 'a': beam_width is 1; it must be at least 2"),
        (
            {"n": 3, "beam_width": 2},
            "requests[0]: request 'a': beam_width is 2; it must be at least 2, and at least n (3)",
        ),
        ({"beam_width": 2, "best_of": 3}, "requests[0]: request 'a': best_of is for sampling"),
        ({"beam_width": 2, "early_stopping": 1}, "early_stopping: must be true, false or 'never'"),
        ({"beam_width": 2, "early_stopping": "no"}, "early_stopping: must be true, false or"),
        ({"beam_width": 2, "length_penalty": "x"}, "length_penalty: must be a number from -10 to"),
        ({"length_penalty": 2}, "requests[0].length_penalty: goes with beam_width"),
        ({"early_stopping": False}, "requests[0].early_stopping: goes with beam_width"),
        ({"beem_width": 2}, "has an unknown field 'beem_width'; did you mean 'beam_width'?"),
        ({"n": 5}, "requests[0]: request 'a' asks for 5 sequences at once, and max_num_seqs is 4"),
    ],
)
def test_a_request_that_is_none(request_fields: dict[str, Any], expected: str) -> None:
    told = complaint_about(**request_fields)
    assert told.startswith("w.json: requests[0]")
    assert expected in told


@pytest.mark.parametrize("name", ["0_a", "2_a"])
def test_sequences_have_names_that_nobody_else_may_have(name: str) -> None:
    family, other = {**ONE, "n": 3}, {**ONE, "id": name}
    told = complaint({"requests": [family, other]})
    assert (
        told == f"w.json: requests[1].id: {name!r} is already the name of a sequence of requests[0]"
    )
    told = complaint({"requests": [other, family]})
    assert told == f"w.json: requests[1].id: {name!r} is already the id of requests[0]"
    assert len(script(family, {**ONE, "id": "3_a"}).requests) == 2


def test_a_prefix_goes_with_a_count_of_tokens() -> None:
    request = {"id": "a", "prompt": [1, 2], "prefix": {"name": "s", "tokens": 1}}
    assert "requests[0].prefix: goes with prompt_tokens" in complaint({"requests": [request]})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"max_num_seq": 3},
            "settings: unknown setting 'max_num_seq'; did you mean 'max_num_seqs'",
        ),
        ({"max_num_seqs": 2.5}, "settings.max_num_seqs: must be a whole number, not 2.5"),
        ({"max_num_seqs": True}, "settings.max_num_seqs: must be a whole number, not True"),
        ({"max_num_seqs": 0}, "settings: max_num_seqs is 0; it must be positive"),
        ({"max_num_seqs": 99}, "settings: max_num_batched_tokens (32) is less than max_num_seqs"),
        ({"num_blocks": 10**12}, "settings.num_blocks: is 1,000,000,000,000; at most 100,000"),
        ({"block_size": 10**10}, "settings.block_size: is 10,000,000,000; at most 1,000,000,000"),
        ({"block_size": 10**5000}, "settings.block_size: is a number of thousands of digits; at"),
        ({"enable_prefix_caching": 1}, "settings.enable_prefix_caching: must be true or false"),
        ({"watermark": "much"}, "settings.watermark: must be a number, not 'much'"),
        ({"policy": 3}, "settings.policy: must be a name, not 3"),
        ({"discipline": 3}, "settings.discipline: must be a name, not 3"),
        ({"discipline": "lax"}, "settings: no discipline 'lax'"),
        ({"max_wait": "long"}, "settings.max_wait: must be a number, not 'long'"),
        ({"max_wait": -1}, "settings: max_wait is -1; it cannot be negative"),
        ({"preemption_mode": "drop"}, "settings: preemption_mode is 'drop'; choose one of recomp"),
        ({"preemption_mode": "swap"}, "settings: preemption_mode 'swap' needs a swap_space"),
        ({"swap_space": -1}, "settings: swap_space is -1; it cannot be negative"),
        ({"swap_space": 10**6}, "settings.swap_space: is 1,000,000; at most 100,000 can be played"),
        ({"swap_blocks_per_s": 0}, "settings: swap_blocks_per_s is 0; it must be positive"),
        ({"swapspace": 1}, "settings: unknown setting 'swapspace'; did you mean 'swap_space'"),
        ({"policy": "best"}, "settings: no policy 'best'"),
        ({"policy": "..x"}, "settings: "),
        ({"tenant_weights": [1]}, "settings.tenant_weights: must be a mapping of numbers"),
        ({"tenant_weights": {"a": "b"}}, "settings: tenant_weights is"),
    ],
)
def test_settings_that_are_none(settings: dict[str, Any], expected: str) -> None:
    assert f"w.json: {expected}" in complaint({"settings": settings, "requests": [ONE]})


def test_an_override_of_the_wrong_type_names_its_option() -> None:
    told = complaint({"requests": [ONE]}, max_num_seqs="many")
    assert told == "--set max_num_seqs: must be a whole number, not 'many'"


def test_what_can_never_run_is_refused_with_the_numbers() -> None:
    too_long = complaint_about(prompt_tokens=600)
    assert "requests[0]: request 'a': a prompt of 600 tokens leaves no room" in too_long
    too_large = complaint_about(prompt_tokens=300, max_tokens=100)
    assert "need 50 blocks of 8, and the whole pool has 32" in too_large
