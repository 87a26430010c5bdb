"""The page of all settings is what the settings say."""

from pathlib import Path

from paceline.cli.setting_flags import HIDDEN, ServingSettings
from paceline.cli.settings_page import page, types
from paceline.llm import LLM_ARGUMENTS
from paceline.wiring import setting_fields
from paceline.wiring.settings import ENGINE_SETTINGS
from paceline.wiring.vllm.table import VLLM

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_committed_page_is_what_the_generator_prints() -> None:
    wanted = "python -m paceline.cli.settings_page > docs/settings.md"
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == page(), f"run {wanted}"


def test_every_setting_is_on_the_page() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `--")]
    assert len(rows) == len(list(ServingSettings.all()))
    for one in ServingSettings.all():
        (row,) = [row for row in rows if row.startswith(f"| `{one.flag_name}` | `{one.name}` |")]
        assert row.count("|") == 6
    assert all(page().count(f"\n| `{name}` |") == 1 for name in HIDDEN)


def test_type_checkers_know_every_setting() -> None:
    wanted = "python -m paceline.cli.settings_page types > src/paceline/wiring/setting_fields.py"
    assert Path(setting_fields.__file__).read_text(encoding="utf-8") == types(), f"run {wanted}"
    ours = setting_fields.PacelineSettings.__annotations__
    assert ours.keys() == {*ENGINE_SETTINGS}
    assert ours["max_model_len"] == int | None
    known = setting_fields.VllmSettings.__annotations__.keys()
    assert known | ours.keys() == {*LLM_ARGUMENTS, *VLLM, "revision"} - {"progress"}
