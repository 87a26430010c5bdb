"""Every setting is a flag with a sentence, under a name of its own."""

import re
from dataclasses import dataclass, fields
from typing import Any

import pytest

from paceline.cli.commands.serve_dynamo import WorkerSettings
from paceline.cli.main import main
from paceline.cli.sampling import KINDS, OF_COMMANDS, SamplingOptions
from paceline.cli.setting_flags import (
    ENVIRONMENT,
    HIDDEN,
    METAVARS,
    NAMES,
    OF_EACH_ENGINE,
    SHOWN_DEFAULTS,
    TITLES,
    ServingSettings,
    Setting,
    Settings,
)
from paceline.core.adapter import AdapterConfig
from paceline.core.errors import ConfigError
from paceline.core.settings.config import COMPONENTS, Config
from paceline.core.settings.features import RecordConfig
from paceline.core.settings.load import LoadConfig
from paceline.wiring.settings import (
    BATCH_DEFAULTS,
    CPU_DEFAULTS,
    CUDA_DEFAULTS,
)


def test_every_setting_has_a_flag() -> None:
    names = {one.name for one in Settings.all()}
    kinds = (LoadConfig, AdapterConfig, *COMPONENTS.values(), RecordConfig)
    known = {one.name for kind in kinds for one in fields(kind)}
    assert names == known - (set(HIDDEN) - {"swap_space"}) - {*OF_EACH_ENGINE, *Settings.apart}


def test_every_setting_has_a_sentence() -> None:
    settings = [*ServingSettings.all(), *WorkerSettings.all()]
    names = {one.name for one in settings}
    assert {*NAMES, *METAVARS, *SHOWN_DEFAULTS, *ENVIRONMENT} <= names
    assert {one.component for one in settings} == set(TITLES)
    declared = [one for pair in COMPONENTS.items() for one in Setting.declared_by(*pair)]
    assert all(one.meaning.endswith(".") for one in (*settings, *declared))


def test_units_and_meanings_come_from_the_docstring_of_the_dataclass() -> None:
    @dataclass
    class Cooling:
        """How the machine is kept cool.

        Attributes:
            fans (blades): Number of fans, with
                all their blades.
            pause_s: Time between checks; 0: none.
            loud: Whether it may be loud.
        """

        place: str
        fans: int = 2
        pause_s: float = 1.5
        loud: bool = False
        quiet: bool = True

    fans, pause, loud, quiet = Setting.declared_by("cooling", Cooling)
    assert fans == Setting(
        *("cooling", "fans", int, 2, "blades", "Number of fans, with all their blades.")
    )
    assert (pause.unit, pause.meaning) == ("seconds", "Time between checks; 0: none.")
    assert (loud.unit, loud.meaning) == ("", "Whether it may be loud.")
    assert (quiet.unit, quiet.meaning) == ("", "")


def test_sampling_parameters_are_explained_by_their_first_sentence() -> None:
    options = {one.name: one.annotation.__metadata__[0] for one in SamplingOptions.flags()}
    assert options.keys() == KINDS.keys() - {*OF_COMMANDS}
    assert options["seed"].help == "Seed of the samples."
    assert all(re.fullmatch(r"[A-Z].{15,}[^.]\.", one.help) for one in options.values())


def test_a_setting_may_have_a_short_flag() -> None:
    (one,) = (one for one in Settings.all() if one.name == "tensor_parallel_size")
    option = one.flag.annotation.__metadata__[0]
    assert [option.default, *option.param_decls] == ["--tensor-parallel-size", "-tp"]


def test_every_number_has_a_unit() -> None:
    settings = {one.name: one for one in ServingSettings.all()}
    numbers = {name for name, one in settings.items() if one.kind in (int, float)}
    by_tenant = {"tenant_weights", "tenant_ttft_target_ms", "tenant_itl_target_ms"}
    assert {name for name, one in settings.items() if one.unit} == numbers | by_tenant


def test_defaults_of_engines_are_those_of_the_build() -> None:
    shown = {one.name: one.default_text for one in ServingSettings.all()}
    for name in BATCH_DEFAULTS:
        assert shown[name] == f"{Config().to_dict()[name]}; for batches {BATCH_DEFAULTS[name]}"
    for name, value in CUDA_DEFAULTS.items():
        plain = CPU_DEFAULTS.get(name, Config().to_dict()[name])
        assert shown[name] == f"{plain}; on a GPU {value}"
    assert shown["max_step_s"].startswith(f"{CPU_DEFAULTS['max_step_s']} on a CPU")
    assert shown["fill_positions"] == "0; on a GPU 256 for weights of 3 GiB or more"
    assert (shown["timings"], shown["api_keys"], shown["depth"]) == ("no", "", "0")


def test_only_what_was_given_is_passed_on() -> None:
    given = dict.fromkeys(one.name for one in ServingSettings.all())
    assert ServingSettings.among(given) == {}
    given |= {"api_keys": ["a", "b"], "depth": 2, "timings": False, "aliases": []}
    assert ServingSettings.among(given) == {"api_keys": ("a", "b"), "depth": 2, "timings": False}


def test_tenants_have_weights_by_name() -> None:
    given = dict.fromkeys(one.name for one in Settings.all())
    assert Settings.among({**given, "tenant_weights": []}) == {}
    pairs = ["alice=2", "team=b=0.5"]
    assert Settings.among({**given, "tenant_weights": pairs}) == {
        "tenant_weights": {"alice": 2.0, "team=b": 0.5}
    }
    for wrong in ("alice", "=2", "alice=much"):
        with pytest.raises(ConfigError, match="NAME=NUMBER"):
            Settings.among({**given, "tenant_weights": [wrong]})


def test_help_groups_settings_by_component(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    said = capsys.readouterr().out
    titles = [TITLES[one] for one in ServingSettings.components]
    places = [said.index(f"\n{title}:\n") for title in titles]
    assert places == sorted(places)
    for one in ServingSettings.all():
        assert one.flag.name in given_names(said)


def given_names(text: str) -> set[str]:
    """Names of settings behind the flags of a help text."""
    flags = {word.removeprefix("--").replace("-", "_") for word in text.split() if "--" in word}
    return flags | {name for name, plain in NAMES.items() if plain in flags}


def test_flags_of_vllm_pass_or_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "paceline.wiring.processes.serving.serve", lambda model, **settings: given.append(settings)
    )
    flags = ["--trust-remote-code", "--pipeline-parallel-size", "1", "--hf-overrides", "{}"]
    flags += ["--no-enable-log-requests", "--task", "generate", "--seed", "3", "--dtype", "half"]
    flags += ["--disable-hybrid-kv-cache-manager", "--enable-flashinfer-autotune"]
    flags += ["--kv-cache-dtype", "fp8_e4m3", "--load-format", "hf", "--revision", "1"]
    assert main(["serve", "smollm2", *flags, "--served-model-name", "a"]) == 0
    (settings,) = given
    asked = {"trust_remote_code": True, "pipeline_parallel_size": 1, "hf_overrides": {}}
    asked |= {"enable_log_requests": False, "task": "generate", "seed": 3, "dtype": "half"}
    asked |= {"disable_hybrid_kv_cache_manager": True, "enable_flashinfer_autotune": True}
    asked |= {"kv_cache_dtype": "fp8_e4m3", "load_format": "hf", "revision": "1"}
    assert asked.items() <= settings.items()
    assert settings["aliases"] == ("a",)
    monkeypatch.undo()
    assert main(["serve", "smollm2", "--port", "0", "--pipeline-parallel-size", "2"]) == 2
    assert "pipeline_parallel_size is 2, which is not supported" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    assert "trust-remote-code" not in capsys.readouterr().out
