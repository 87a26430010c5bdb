"""Batch files: every line gets its answer once, whatever happens in between."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline.cli.main import main
from paceline.server.batches.batch_file import BatchRun, BatchStopped, Results, entries
from paceline.server.batches.counts import Counts
from tests.cli.support import SMALL, wait_until
from tests.cli.test_main import Terminal, posix_only
from tests.server.support import Site, paced, served

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def line(name: Any, url: str = COMPLETIONS, method: str = "POST", **body: Any) -> str:
    body = {"prompt": "the fox", "max_tokens": 4, "ignore_eos": True} | body
    return json.dumps({"custom_id": name, "method": method, "url": url, "body": body})


def read(path: Path) -> dict[str, Any]:
    """The lines of an output by custom_id, or by id where there is none."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    found = {one["custom_id"] or one["id"]: one for one in lines}
    assert len(found) == len(lines), "an answer is there twice"
    return found


def run(lines: list[str], folder: Path, width: int = 4, **settings: Any) -> Counts:
    """Answer the lines on a real server; the output is `out` in the folder."""
    (folder / "in").write_text("\n".join(lines) + "\n")

    async def work() -> Counts:
        async with served(breaks=paced, **settings) as site:
            with Results(folder / "out") as results:
                batch = BatchRun(site.http, results, width)
                widest = asyncio.create_task(watch(site, width))
                counts = await batch.run(entries(folder / "in"))
                widest.cancel()
                return counts

    return asyncio.run(work())


async def watch(site: Site, width: int) -> None:
    while True:
        assert len(site.context.open_requests) <= width
        await asyncio.sleep(0.001)


def test_answers_carry_the_names_of_their_requests(tmp_path: Path) -> None:
    lines = [line(f"r{number}", max_tokens=1 + number) for number in range(9)]
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    lines.append(json.dumps({"custom_id": "c", "method": "POST", "url": CHAT, "body": chat}))
    assert run(lines, tmp_path) == Counts(answered=10)
    found = read(tmp_path / "out")
    for number in range(9):
        response = found[f"r{number}"]["response"]
        assert response["status_code"] == 200
        assert response["body"]["usage"]["completion_tokens"] == 1 + number
        assert response["request_id"] == response["body"]["id"]
        assert found[f"r{number}"]["error"] is None
    assert found["c"]["response"]["body"]["choices"][0]["message"]["role"] == "assistant"


BAD = {
    "nonsense": "line 1: not JSON",
    "[1]": "line 1: not a JSON object",
    line(None): "line 1: custom_id is missing",
    line(7): "line 1: custom_id is missing",
    line("a", method="GET"): "line 1: method is 'GET'; it must be POST",
    line("a", method=None): "line 1: method is missing; it must be POST",
    line("a", url="/v1/models"): "line 1: url is '/v1/models'; it must be /v1/chat",
    '{"custom_id": "a", "method": "POST", "url": "/v1/completions"}': "line 1: body is missing",
    line("a", stream=True): "line 1: stream is set",
    "[" * 100_000: "line 1: not JSON",
}


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad[:40])
def test_an_invalid_line_gets_an_error_and_the_others_an_answer(bad: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(f"{bad}\n\n")
    (entry,) = entries(tmp_path / "in")
    assert entry.complaint.startswith(BAD[bad])
    with Results(tmp_path / "out") as results:
        asyncio.run(BatchRun(httpx.AsyncClient(), results, 1).run(iter([entry])))
    (found,) = read(tmp_path / "out").values()
    assert found["response"] is None
    assert found["error"] == {"code": "invalid_line", "message": entry.complaint}


def test_refusals_are_answers(tmp_path: Path) -> None:
    lines = [line("long", prompt="the " * 900), line("who", model="nobody"), line("fine")]
    assert run([*lines, line("fine"), "\ud83d?"[1:]], tmp_path) == Counts(1, 2, 2)
    found = read(tmp_path / "out")
    assert found["long"]["response"]["status_code"] == 400
    assert found["who"]["response"]["body"]["error"]["code"] == "model_not_found"
    assert found["fine"]["response"]["status_code"] == 200
    assert "custom_id 'fine' was used" in found["batch_req_4"]["error"]["message"]


def test_a_run_goes_on_where_another_ended(tmp_path: Path) -> None:
    lines = [*(line(f"r{number}") for number in range(6)), "nonsense"]
    assert run(lines[:3] + lines[-1:], tmp_path) == Counts(answered=3, bad=1)
    out = tmp_path / "out"
    whole = out.read_bytes()
    first = whole.index(b"\n") + 1
    for torn in (whole, whole[:-1], whole[:-30], whole + b'{"id": "batch_', whole[: first + 3]):
        out.write_bytes(torn)
        kept = torn.count(b"\n")
        counts = run([*lines[:3], "nonsense", *lines[3:6]], tmp_path)
        assert counts.skipped == kept
        assert counts.answered + counts.bad == 7 - kept
        assert len(read(out)) == 7
    assert out.read_bytes().startswith(whole[:first])


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "out"
    other.write_text("dear diary\ntoday\n")
    with pytest.raises(BatchStopped, match="not the output of a batch"):
        Results(other)
    assert other.read_text() == "dear diary\ntoday\n"


def test_a_queue_that_is_full_is_asked_again(tmp_path: Path) -> None:
    lines = [line(f"r{number}") for number in range(8)]
    counts = run(lines, tmp_path, width=8, max_num_seqs=1, max_num_queued_reqs=2)
    assert counts == Counts(answered=8)


def test_an_engine_that_is_gone_ends_the_batch_and_what_is_there_stays(tmp_path: Path) -> None:
    async def work() -> None:
        async with served() as site:
            with Results(tmp_path / "out") as results:
                batch = BatchRun(site.http, results, 1)
                await batch.run(iter([*entries(tmp_path / "in")][:1]))
                site.context.draining = True
                with pytest.raises(BatchStopped, match="takes no requests"):
                    await batch.run(entries(tmp_path / "in"))

    (tmp_path / "in").write_text("\n".join([line("a"), line("b"), line("c")]))
    asyncio.run(work())
    assert read(tmp_path / "out").keys() == {"a"}


def test_the_command(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        line("a", model="gpt", temperature=0),
        line("b", temperature=0),
        line("c", temperature=-1),
    ]
    (tmp_path / "in").write_text("\n".join(lines))
    words = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--model", model]
    for said in (
        "2 answered, 1 refused, 0 invalid lines, 0 skipped",
        "0 answered, 0 refused",
    ):
        assert main(["run-batch", *words, *SMALL, "--served-model-name", "gpt"]) == 0
        assert said in capsys.readouterr().err
    found = read(tmp_path / "out")
    texts = [found[name]["response"]["body"]["choices"][0]["text"] for name in "ab"]
    assert texts[0] == texts[1]
    assert found["c"]["response"]["body"]["error"]["param"] == "temperature"


@posix_only
def test_an_interrupted_command_says_how_to_go_on(model: str, tmp_path: Path) -> None:
    lines = [line(f"r{number}", max_tokens=200, temperature=0) for number in range(3000)]
    (tmp_path / "in").write_text("\n".join(lines))
    words = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--model", model, *SMALL]
    terminal = Terminal("run-batch", *words)
    wait_until(lambda: (tmp_path / "out").exists() and b"\n" in (tmp_path / "out").read_bytes())
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert "/3000 requests, 0 failed, " in terminal.seen
    assert " left" in terminal.seen
    assert "run the same command again to answer the rest" in terminal.seen
    assert "Traceback" not in terminal.seen
    answered = len(read(tmp_path / "out"))
    assert f"interrupted: {answered} answered, 0 refused" in terminal.seen


def test_numbers_and_texts_that_json_does_not_have_are_refused_like_others(tmp_path: Path) -> None:
    lines = [line("a"), line("nan", temperature=float("nan")), line("half", prompt="\ud800")]
    assert run(lines, tmp_path) == Counts(answered=1, refused=2)
    found = read(tmp_path / "out")
    assert {found[name]["response"]["status_code"] for name in ("nan", "half")} == {400}


def test_two_that_are_too_much_for_the_queue_do_not_wait_for_each_other(tmp_path: Path) -> None:
    lines = [line(name, prompt=["the"] * 30) for name in "ab"]
    counts = run(lines, tmp_path, max_num_queued_reqs=8, max_num_seqs=2)
    assert counts == Counts(refused=2)


@pytest.mark.parametrize("content", ['{"my": "settings"}', "my notes\n", "{}\n"])
def test_a_file_of_one_line_that_is_something_else_is_left_alone(
    content: str, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text(content)
    with pytest.raises(BatchStopped, match="is not the output of a batch"):
        Results(tmp_path / "out")
    assert (tmp_path / "out").read_text() == content


def test_a_custom_id_that_looks_like_ours_stands_for_itself(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(line("batch_req_2") + "\nnonsense\n")
    first, second = entries(tmp_path / "in")
    with Results(tmp_path / "out") as results:
        results.write(first, {})
    with Results(tmp_path / "out") as results:
        assert first in results
        assert second not in results


def test_a_link_to_the_input_is_the_input(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(line("a"))
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(SystemExit):
        main(["run-batch", "-i", str(tmp_path / "in"), "-o", str(tmp_path / "link")])
    assert (tmp_path / "in").read_text() == line("a")


def test_an_output_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text(line("a"))
    assert main(["run-batch", "-i", str(tmp_path / "in"), "-o", str(tmp_path / "no" / "out")]) == 1
    assert capsys.readouterr().err.endswith("no/out: No such file or directory\n")


def test_the_output_is_not_the_input(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(line("a"))
    with pytest.raises(SystemExit):
        main(["run-batch", "-i", str(tmp_path / "in"), "-o", str(tmp_path / "in")])
