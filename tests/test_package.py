"""The package as a user gets it: what the wheel holds, and what a type checker sees of it."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import paceline
from paceline.runner.native.build import best_level, levels_here

ROOT = Path(__file__).parent.parent
LAZY = ("LLM", "AsyncLLM", "Ask", "GenerationRequest", "SamplingParams")

WELL_TYPED = """
from typing import assert_type

import numpy as np
from paceline import (
    LLM, Ask, AsyncLLM, EngineFailed, GenerationRequest, Outputs, Plan, QueueFull, Request,
    RequestError, RequestFailed, RequestOutput, SamplingParams, Scheduler, StepResult, TextDelta,
)

scheduler = Scheduler.create(max_num_seqs=8, num_blocks=128, block_size=16)
scheduler.submit(Request(id="a", prompt=[5, 6, 7], max_tokens=4), now=0.0)
scheduler.submit(Request("b", (5, 6), stop_token_ids=(2,)), now=0.0)
scheduler.submit(Request("c", np.arange(3)), now=0.0)
first: int = Request("d", range(3)).prompt.tolist()[0]
plan = assert_type(scheduler.plan(now=0.0), Plan)
outputs = scheduler.commit(plan, StepResult.of(plan, {"a": [17]}), now=0.1)
assert_type(outputs, Outputs)


def text_of(llm: LLM) -> list[str]:
    found = llm.generate(["a", [1, 2]], SamplingParams(temperature=0.0, max_tokens=8))
    assert_type(llm.generate("a", max_tokens=8, use_tqdm=False)[0], RequestOutput)
    llm.chat([{"role": "user", "content": "a"}], chat_template="chatml", raise_on_error=True)
    return [answer.text for output in found for answer in output.outputs]


async def stream(llm: AsyncLLM) -> None:
    async for delta in llm.generate(GenerationRequest(prompt="a")):
        assert_type(delta.text, str)
    for prompt in ("a", [1, 2], {"prompt": "a"}):
        async for delta in llm.generate(prompt, request_id="b", temperature=0.0):
            assert_type(delta, TextDelta)
    assert_type(await llm.chat([{"role": "user", "content": "a"}]).whole(), RequestOutput)


def short_name(ask: Ask) -> GenerationRequest:
    return ask


def refused(error: QueueFull | RequestError | RequestFailed | EngineFailed) -> str:
    return str(error)
"""
ILL_TYPED = {
    'Request(id="a", prompt="abc")': "prompt",
    "Request(id=5, prompt=[1])": "id",
    'SamplingParams(temperature="hot")': "temperature",
    'LLM("smollm2").generate(5)': "prompts",
    'LLM("smollm2").generate("a", max_token=5)': "max_token",
    'LLM("smollm2").generate("a", lora_request=5)': "lora_request",
    "paceline.Nothing": "Nothing",
}


def run(*command: str | Path, cwd: Path = ROOT, **more: str) -> str:
    """Neither this checkout nor its settings may leak into it."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environ | more, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    quick = tmp_path_factory.mktemp("compiler") / "cc"
    quick.write_text('#!/bin/sh\nexec cc "$@" -O0\n')  # kernels take seconds to optimize
    quick.chmod(0o755)
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, CC=str(quick))
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and with all else that is installed here."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (place,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(place)
    (place / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder


def test_wheel_and_sdist_are_complete(built: Path) -> None:
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "paceline").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"paceline/py.typed", "paceline/__main__.py"} <= sources
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info" not in name}
    compiled = {name for name in found if name.endswith(".so")}
    assert found - compiled == sources
    assert len(compiled) == (len(levels_here()) if shutil.which("cc") else 0)
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"src/{name}" for name in sources} <= held


def test_the_sdist_has_what_its_tests_read(built: Path) -> None:
    folders = ("benchmarks", "docs", "examples", "ops", "scripts", "tests", "typings")
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert wanted - held == set()
    assert {"Makefile", "mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md"} <= held


def test_a_package_index_shows_working_links(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = message_from_bytes(wheel.read(name))
    shown = metadata.get_payload()
    assert isinstance(shown, str)
    links = re.findall(r"\]\(([^)]+)\)", shown)
    paths = [link.partition("/blob/main/")[2] for link in links]
    assert len(links) > 10
    assert all(link.startswith("https://") for link in links)
    assert all((ROOT / path.partition("#")[0]).exists() for path in paths if path)
    assert metadata["Keywords"]
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_the_module_runs(installed: Path) -> None:
    python = installed / "bin" / "python"
    where = run(python, "-c", "import paceline; print(paceline.__file__)", cwd=installed)
    assert Path(where.strip()).is_relative_to(installed)
    said = run(python, "-m", "paceline", "--version", cwd=installed)
    assert said == f"paceline {paceline.__version__}\n"


@pytest.mark.skipif(not shutil.which("cc") or not best_level(), reason="the wheel has no kernels")
def test_kernels_of_the_wheel_need_no_compiler(installed: Path, tmp_path: Path) -> None:
    script = (
        f"import os; os.environ.update(CC='none', PACELINE_CACHE={str(tmp_path)!r});"
        "from paceline.runner.native.library import library; print(library()._name)"
    )
    used = run(installed / "bin" / "python", "-c", script, cwd=installed)
    assert Path(used.strip()).is_relative_to(installed)
    assert list(tmp_path.iterdir()) == []


def test_programs_of_a_user_type_check_and_mistakes_are_found(
    installed: Path, tmp_path: Path
) -> None:
    imports = "import paceline\nfrom paceline import LLM, Request, SamplingParams\n"
    wrong = imports + "\n".join(f"print({line})" for line in ILL_TYPED)
    (tmp_path / "well_typed.py").write_text(WELL_TYPED)
    (tmp_path / "ill_typed.py").write_text(wrong)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "pyright", "--outputjson"]
    found = run(*command, "--pythonpath", installed / "bin" / "python", cwd=tmp_path)
    errors: dict[str, list[str]] = {"well_typed.py": [], "ill_typed.py": []}
    for one in json.loads(found)["generalDiagnostics"]:
        if one["severity"] == "error":
            errors[Path(one["file"]).name].append(one["message"])
    assert errors["well_typed.py"] == []
    for word in ILL_TYPED.values():
        assert any(word in message for message in errors["ill_typed.py"]), word


def test_names_that_load_late_are_listed() -> None:
    assert set(LAZY) <= set(paceline.__all__) <= set(dir(paceline))
    assert all(getattr(paceline, name) is not None for name in paceline.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = paceline.Nothing


def test_no_name_loads_before_it_is_used() -> None:
    script = "import sys, paceline; dir(paceline); print('torch' in sys.modules)"
    assert run(sys.executable, "-c", script, cwd=ROOT / "src") == "False\n"


# `fastapi` brings the interface of OpenTelemetry, and not what sends spans.
OF_EXTRAS = "matplotlib nixl opentelemetry.exporter opentelemetry.sdk PIL ray redis xgrammar"
SERVING = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in {OF_EXTRAS.split()!r}:
            raise ModuleNotFoundError(f"{{name}} is not installed here", name=name)

sys.meta_path.insert(0, Refuse())
import paceline.cli.commands.serve
import paceline.engine.transport.process_main
import paceline.server.serve
import paceline.wiring.assembly
import paceline.wiring.cpu
import paceline.wiring.processes.front_end_main
import paceline.wiring.processes.serving
"""


def test_serving_needs_no_library_of_another_extra() -> None:
    """Such as the README's first command, whose environment has `.[serve]` alone."""
    command = [sys.executable, "-c", SERVING]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
