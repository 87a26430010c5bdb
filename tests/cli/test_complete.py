"""`paceline complete`: one prompt, one model, and its errors."""

import pytest

from paceline.cli.main import main
from tests.cli.support import SMALL


def complete(model: str, prompt: str, *more: str) -> int:
    return main(["complete", prompt, "--model", model, "--max-tokens", "4", *SMALL, *more])


def test_a_prompt_is_completed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert complete(model, "the fox", "--n", "2", "--temperature", "0.5", "--seed", "1") == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) >= 2
    assert said.err == ""


def test_a_refused_prompt_prints_nothing_but_the_error(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complete(model, "") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("paceline complete: ")
    assert "the prompt is empty" in said.err


@pytest.mark.parametrize(
    ("words", "option"),
    [(("--n", "0"), "--n"), (("--temperature", "-1"), "--temperature")],
)
def test_values_out_of_range_are_wrong_usage(
    words: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["complete", "x", *words])
    assert caught.value.code == 2
    assert f"Invalid value for '{option}'" in capsys.readouterr().err
