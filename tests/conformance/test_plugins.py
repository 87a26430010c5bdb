"""Every kind of plug-in is found by name and by dotted path."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.core.plugins import load
from paceline.core.settings.config import Config
from paceline.core.settings.features import ConnectorConfig, SpeculationConfig
from paceline.kv import connector
from paceline.runner import attention_backend, proposer
from paceline.runner.weights import weight_format
from paceline.sched import speculation
from paceline.sched.scheduler import Scheduler
from paceline.structured.backend import backend_class
from paceline.tools.registry import reasoning_parser, tool_parser


def scheduler_with(**settings: Any) -> Scheduler:
    return Scheduler(Config.of(**settings))


# What loads a kind, one of its names, and the dotted path of the same class.
KINDS: dict[str, tuple[Callable[[str], object], str, str]] = {
    "attention backend": (attention_backend.load, "sdpa", "paceline.runner.attention.sdpa.Sdpa"),
    "discipline": (
        lambda name: scheduler_with(discipline=name),
        "unified",
        "paceline.sched.disciplines.unified.Unified",
    ),
    "grammar backend": (
        backend_class,
        "llguidance",
        "paceline.structured.llguidance_backend.LLGuidanceBackend",
    ),
    "kv_connector": (
        lambda name: connector.load(ConnectorConfig(kv_connector=name)),
        "host",
        "paceline.kv.connectors.host.Host",
    ),
    "policy": (
        lambda name: scheduler_with(policy=name),
        "fcfs",
        "paceline.sched.policies.fcfs.Fcfs",
    ),
    "proposer": (
        lambda name: proposer.load(SpeculationConfig(proposer=name)),
        "ngram",
        "paceline.runner.proposers.ngram.Ngram",
    ),
    "reasoning parser": (
        reasoning_parser,
        "qwen3",
        "paceline.tools.reasoning_parser.Qwen3Reasoning",
    ),
    "speculation": (
        lambda name: speculation.load(SpeculationConfig(speculation=name)),
        "fixed",
        "paceline.sched.speculation.Fixed",
    ),
    "tool parser": (tool_parser, "hermes", "paceline.tools.formats.hermes.HermesParser"),
    "weight format": (weight_format.load, "fp8", "paceline.runner.formats.fp8.Fp8"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_and_its_dotted_path_load_the_same_class(kind: str) -> None:
    find, name, path = KINDS[kind]
    assert kind_of(find(name)) is kind_of(find(path))


def kind_of(found: object) -> type:
    return found if isinstance(found, type) else type(found)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_is_refused_with_the_known_ones(kind: str) -> None:
    find, name, _ = KINDS[kind]
    with pytest.raises(ConfigError, match=f"no {kind} 'none_such': .*{name}.*, and dotted paths"):
        find("none_such")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["no.such.Module", "json.no_such_class"])
def test_a_path_that_leads_nowhere_is_refused(kind: str, path: str) -> None:
    with pytest.raises(ConfigError, match=f"no {kind} '{path}': .*no_such|no {kind} .*'no'"):
        KINDS[kind][0](path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_of_another_kind_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind} 'fractions.Fraction' is not a subclass of"):
        KINDS[kind][0]("fractions.Fraction")


def test_a_class_without_its_methods_is_refused() -> None:
    path = "paceline.runner.proposer.Proposer"
    with pytest.raises(ConfigError, match="does not define propose"):
        load("proposer", path, {}, proposer.Drafter)
