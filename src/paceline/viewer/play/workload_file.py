"""Read a workload file; errors say what is wrong and where."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from paceline.core.errors import PacelineError, RequestError
from paceline.core.request import Request, child_label
from paceline.core.settings.config import Config
from paceline.sched.scheduler import Scheduler
from paceline.viewer.play.plan_notes import Fields, ScriptError, shown, whole
from paceline.viewer.play.synthetic_model import NEVER, STOP_TOKEN, token

MOST_TOKENS = 100_000  # of a prompt or an output
MOST_SEQUENCES = 64  # of a request
LARGEST = {
    "num_blocks": 100_000,
    "swap_space": 100_000,
    "max_num_seqs": 1_024,
    "max_model_len": MOST_TOKENS,
}
LARGEST_NUMBER = 1_000_000_000  # of any other setting

# Defaults of a workload, small enough to watch; all others are those of `Config`.
SMALL = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "max_model_len": 512,
    "num_blocks": 32,
    "block_size": 8,
}
DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """One request, and when it arrives, wakes and is aborted. Steps are numbered from 1."""

    request: Request
    arrive_step: int  # submitted before this step is planned,
    arrive_s: float  # and not before this time
    abort_step: int  # aborted before this step is planned; NEVER
    wake_step: int  # woken before this step is planned, where it is parked
    parked: str  # why it is parked on arrival; "": it is not
    stop_at: tuple[int, ...]  # index of the stop token in each sequence, from 1; NEVER


@dataclass(frozen=True, slots=True)
class Script:
    """A workload whose settings and requests have been checked."""

    about: str
    settings: Mapping[str, Any]
    requests: tuple[ScriptedRequest, ...]
    seed: int
    acceptance: float  # probability that a draft is right


# -- where workloads come from ----------------------------------------------


def built_in_names() -> list[str]:
    folder = files("paceline.viewer.play") / "workloads"
    return sorted(one.name.removesuffix(".json") for one in folder.iterdir())


def built_in(name: str) -> str:
    """The text of a workload that comes with the package."""
    return (files("paceline.viewer.play") / "workloads" / f"{name}.json").read_text(
        encoding="utf-8"
    )


def load(path: str) -> Any:
    """The content of a JSON or YAML file; `-` is the standard input."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ScriptError(path, f"no such file; {suggestion(path)}") from None
    except OSError as error:
        raise ScriptError(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ScriptError(path, "is not UTF-8 text") from None
    is_yaml = path.endswith((".yaml", ".yml"))
    looks_like_json = path.endswith(".json") or text.lstrip().startswith("{")
    return parse_yaml(text, path) if is_yaml or not looks_like_json else parse_json(text, path)


def suggestion(path: str) -> str:
    """A hint at the built-in workloads."""
    names = built_in_names()
    if close := get_close_matches(path, names, 1):
        return f"did you mean --workload {close[0]}?"
    return f"built-in workloads, with --workload NAME: {', '.join(names)}"


def parse_json(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        location = f"{path}:{error.lineno}:{error.colno}"
        raise ScriptError(location, f"is not JSON: {error.msg}") from None
    except RecursionError:
        raise ScriptError(path, "is not JSON that can be read: nested too deeply") from None
    except ValueError:
        complaint = "is not JSON that can be read: a number has thousands of digits"
        raise ScriptError(path, complaint) from None


def parse_yaml(text: str, path: str) -> Any:
    try:
        yaml: Any = import_module("yaml")
    except ImportError:
        complaint = "YAML needs PyYAML: pip install 'paceline[cli]', or write the workload as JSON"
        raise ScriptError(path, complaint) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        location = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        problem = getattr(error, "problem", None) or str(error) or "nested too deeply"
        raise ScriptError(location, f"is not YAML: {problem}") from None


# -- from content to script -------------------------------------------------


def build(content: Any, path: str, overrides: Mapping[str, Any]) -> Script:
    """Check a workload; `overrides` are settings that replace those of the file."""
    top = Fields(content, path, root=True)
    about = top.text("about", "")
    seed = top.whole("seed", 0, 0, NEVER)
    acceptance = top.number("acceptance", 0.7, 0.0, 1.0)
    settings = read_settings(top.mapping("settings"), top.location_of("settings"), overrides)
    entries = top.items("requests")
    top.finish()
    if not entries:
        raise ScriptError(top.location_of("requests"), "is empty; a workload needs a request")
    requests = [read_scripted(Fields(one, location), seed) for location, one in entries]
    refuse_twins(requests, [location for location, _ in entries])
    refuse_impossible(requests, [location for location, _ in entries], settings, path)
    return Script(about, settings, tuple(requests), seed, acceptance)


def read_settings(
    given: Mapping[str, Any], location: str, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Small defaults, then the file, then the command line."""
    for settings, where in ((given, location), (overrides, "--set")):
        for name, value in settings.items():
            check_setting(name, value, where)
    return SMALL | dict(given) | dict(overrides)


def check_setting(name: str, value: Any, location: str) -> None:
    """Refuse a value of the wrong type; Config checks its meaning."""
    default = Config().to_dict().get(name)
    where = f"{location}.{name}" if location != "--set" else f"--set {name}"
    if isinstance(default, bool):
        kind, fits = "true or false", isinstance(value, bool)
    elif isinstance(default, int):
        kind, fits = "a whole number", whole(value)
    elif isinstance(default, float):
        kind, fits = "a number", whole(value) or isinstance(value, float)
    elif isinstance(default, str):
        kind, fits = "a name", isinstance(value, str)
    else:  # tenant weights; an unknown name is refused by Config, with a suggestion
        kind, fits = "a mapping of numbers", default is None or isinstance(value, dict)
    if not fits:
        raise ScriptError(where, f"must be {kind}, not {shown(value)}")
    most = LARGEST.get(name, LARGEST_NUMBER)
    if isinstance(value, int) and value > most:
        number = f"{value:,}" if value < NEVER else shown(value)
        raise ScriptError(where, f"is {number}; at most {most:,} can be played")


def read_scripted(fields: Fields, seed: int) -> ScriptedRequest:
    name = fields.identity("id")
    arrive_step, arrive_s = fields.arrival("arrive", NEVER)
    park = fields.nested("park")
    parked, wake_step = read_park(park) if park else ("", 0)
    abort_step = fields.whole("abort_at", NEVER, 1, NEVER)
    stop_at = fields.wholes("stop_at", 1, MOST_TOKENS)
    for what, step in (("abort_at", abort_step), ("park.until", wake_step)):
        if 0 < step < arrive_step:
            complaint = f"is step {step}, before the request arrives in step {arrive_step}"
            raise ScriptError(fields.location_of(what), complaint)
    request = read_request(fields, name, seed, arrive_s or None, stops=bool(stop_at))
    stops = read_stops(fields.location_of("stop_at"), stop_at, request)
    return ScriptedRequest(request, arrive_step, arrive_s, abort_step, wake_step, parked, stops)


def read_stops(location: str, given: list[int], request: Request) -> tuple[int, ...]:
    """One number for each sequence; a single number holds for all."""
    if request.beam_width and len(given) > 1:
        raise ScriptError(location, "is one number for all beams, not a list")
    if len(given) not in (0, 1, request.width):
        complaint = f"lists {len(given)} numbers for {request.width} sequences"
        raise ScriptError(location, complaint)
    return tuple(given) if len(given) > 1 else tuple(given or [NEVER]) * request.width


def read_request(
    fields: Fields, name: str, seed: int, arrival: float | None, stops: bool
) -> Request:
    prompt = read_prompt(fields, name, seed)
    optional = {
        "drafts": fields.whole("drafts", NEVER, 0, 64),
        "deadline": fields.seconds("deadline"),
        "token_deadline": fields.seconds("token_deadline"),
    }
    given: dict[str, Any] = {key: value for key, value in optional.items() if value < NEVER}
    given |= {key: fields.text(key, "") for key in ("tenant", "adapter", "cache_salt")}
    given |= read_family(fields)
    most = fields.whole("max_tokens", DEFAULT_MAX_TOKENS, 1, MOST_TOKENS)
    priority = fields.whole("priority", 0, -NEVER, NEVER)
    fields.finish()
    try:
        return Request(
            name,
            prompt,
            most,
            eos_token_ids=(STOP_TOKEN,) if stops else (),
            arrival=arrival,
            priority=priority,
            **given,
        )
    except RequestError as error:
        raise ScriptError(fields.location, str(error)) from None


def read_family(fields: Fields) -> dict[str, Any]:
    """How many sequences a request has, and how the best of them are found."""
    found: dict[str, Any] = {
        "n": fields.whole("n", 1, 1, MOST_SEQUENCES),
        "beam_width": fields.whole("beam_width", 0, 0, MOST_SEQUENCES),
    }
    best_of = fields.whole("best_of", 0, 1, MOST_SEQUENCES)
    if best_of:
        found["best_of"] = best_of
    if found["beam_width"]:
        found["length_penalty"] = fields.number("length_penalty", 1.0, -10.0, 10.0)
        choices = (False, True, "never")
        kind = "true, false or 'never'"
        found["early_stopping"] = fields.one_of("early_stopping", False, choices, kind)
    else:
        fields.refuse(("length_penalty", "early_stopping"), "goes with beam_width")
    return found


def read_prompt(fields: Fields, name: str, seed: int) -> Any:
    """The given token ids; or `prompt_tokens` drawn ones, after a shared prefix if one is named."""
    ids = fields.sequence("prompt")
    total = fields.whole("prompt_tokens", 0, 1, MOST_TOKENS)
    prefix = fields.nested("prefix")
    if bool(ids) == bool(total):
        raise ScriptError(
            fields.location, "needs one of prompt (token ids) and prompt_tokens (how many)"
        )
    if ids and prefix:
        raise ScriptError(fields.location_of("prefix"), "goes with prompt_tokens, not with prompt")
    if ids:
        return ids
    shared, stream = 0, ""
    if prefix:
        stream = prefix.text("name", None)
        shared = prefix.whole("tokens", None, 1, MOST_TOKENS)
        prefix.finish()
        if shared > total:
            complaint = f"is {shared}, more than the {total} prompt_tokens it is part of"
            raise ScriptError(prefix.location_of("tokens"), complaint)
    common = [token(seed, f"prefix {stream}", position) for position in range(shared)]
    return common + [token(seed, f"prompt {name}", position) for position in range(shared, total)]


def read_park(fields: Fields) -> tuple[str, int]:
    reason = fields.text("for", None)
    until = fields.whole("until", None, 1, NEVER)
    fields.finish()
    return reason, until


# -- checks of the whole workload -------------------------------------------


def refuse_twins(requests: Iterable[ScriptedRequest], locations: Iterable[str]) -> None:
    """Refuse two requests or sequences with the same name, since rows of a plan are named."""
    seen: dict[str, str] = {}
    for scripted, location in zip(requests, locations, strict=True):
        name, width = scripted.request.id, scripted.request.width
        here = location.rpartition(": ")[2]
        owned = {name: f"the id of {here}"}
        if width > 1:
            labels = [child_label(name, child) for child in range(width)]
            owned |= dict.fromkeys(labels, f"the name of a sequence of {here}")
        for one in owned:
            if one in seen:
                raise ScriptError(f"{location}.id", f"{one!r} is already {seen[one]}")
        seen |= owned


def refuse_impossible(
    requests: Iterable[ScriptedRequest],
    locations: Iterable[str],
    settings: Mapping[str, Any],
    path: str,
) -> None:
    """Submit each request to a scheduler, which refuses those that can never run."""
    try:
        scheduler = Scheduler.create(**settings)
    except (PacelineError, TypeError, ValueError) as error:
        raise ScriptError(f"{path}: settings", str(error)) from None
    for one, location in zip(requests, locations, strict=True):
        try:
            scheduler.submit(one.request, now=0.0)
        except RequestError as error:
            raise ScriptError(location, str(error)) from None
        scheduler.abort(one.request.id, now=0.0)
