"""Traces in the three formats, and what is told about those that are none."""

import json
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.workloads.call import Call, Segment
from paceline.workloads.traces import read


def write(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_bytes(text.encode())
    return path


def test_azure(tmp_path: Path) -> None:
    """CRLF line ends, seven digits of a second, no newline at the end."""
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:15:46.6805900,374,44\r\n"
        "2023-11-16 18:15:50.9951690,396,109"
    )
    first, second = read(write(tmp_path, text))
    assert first == Call(0.0, (Segment("2", 374),), 44)
    assert second.at_s == pytest.approx(4.314579, abs=1e-5)
    assert (second.input_len, second.output_len) == (396, 109)
    assert first.segments[0].key != second.segments[0].key


def test_azure_with_a_time_zone(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01.009930+00:00,2399,6\n"
    )
    assert [call.at_s for call in read(write(tmp_path, text))] == pytest.approx([0.0, 1.0])


def test_mooncake(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 4500, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]},
    ]
    first, second = read(write(tmp_path, "\n".join(map(json.dumps, rows)) + "\n"))
    assert first == Call(0.0, (Segment("0", 512), Segment("1", 512), Segment("2", 76)), 5)
    assert second == Call(1.5, (Segment("0", 512), Segment("9", 88)), 7)


def test_mooncake_with_too_few_ids(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [4]}
    (call,) = read(write(tmp_path, json.dumps(row)))
    assert call.input_len == 1100


def test_token_ids(tmp_path: Path) -> None:
    rows = [
        {"input_toks": 3, "output_toks": 9, "arrival_time_ns": at, "input_tok_ids": [5, 6, 7]}
        for at in (2_500_000_000, 500_000_000)
    ]
    early, late = read(write(tmp_path, "\n".join(map(json.dumps, rows))))
    assert (early.at_s, late.at_s) == (0.0, 2.0)
    assert (early.input_len, early.output_len) == (3, 9)


def test_plain_calls(tmp_path: Path) -> None:
    rows = [
        {"at_s": 1.0, "input_len": 3, "output_len": 9, "tenant": "a", "deadline_s": 2},
        {"at_s": 2.5, "segments": [["system", 8], ["own", 4]], "output_len": 1, "priority": -1},
    ]
    early, late = read(write(tmp_path, "\n".join(map(json.dumps, rows))))
    assert early == Call(0.0, (Segment("1", 3),), 9, "a", deadline_s=2.0)
    assert late == Call(1.5, (Segment("system", 8), Segment("own", 4)), 1, priority=-1)
    assert late.cut(9, 5) == Call(1.5, (Segment("system", 8), Segment("own", 1)), 1, priority=-1)
    wrong = write(tmp_path, "\n".join([json.dumps(rows[0]), '{"at_s": 1, "inputs": 3}']))
    with pytest.raises(ConfigError, match="line 2: unknown fields inputs; known are at_s"):
        read(wrong)


def test_a_mark_of_the_byte_order_is_no_part_of_a_table(tmp_path: Path) -> None:
    text = "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3,2\n"
    (call,) = read(write(tmp_path, text))
    assert call.output_len == 2


def test_empty_lines_are_left_out(tmp_path: Path) -> None:
    row = json.dumps({"input_toks": 3, "output_toks": 9, "arrival_time_ns": 0})
    assert len(read(write(tmp_path, f"{row}\n\n{row}\n  \n"))) == 2


def test_only_the_first(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [4]}
    path = write(tmp_path, f"{json.dumps(row)}\n" * 3 + "nonsense")
    assert len(read(path, 3)) == 3
    with pytest.raises(ConfigError, match=r"line 4: not JSON.*; a trace is lines of JSON, or"):
        read(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no requests in it"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests in it"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n",
            "line 2: TIMESTAMP is 'noon'; it must be a time such as 2023-11-16",
        ),
        (
            "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n",
            "line 2: no field 'GeneratedTokens'",
        ),
        ('{"a": 1}', "no known kind of trace has the fields a"),
        ('{"hash_ids": [1]}', "line 1: no field 'input_length'"),
        ("[1]", "line 1: not a JSON object"),
        ("[" * 100_000, "line 1: not JSON"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,many,2\n", "'many'; it must be"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1\n", "no field 'GeneratedTokens'"),
        ('{"at_s": 1, "input_len": 5', "line 1: not JSON at character 27; a trace is lines"),
        ('{"at_s": "x", "input_len": 5, "output_len": 1}', "at_s is 'x'; it must be a finite"),
        ('{"at_s": 1, "input_len": 5.5, "output_len": 1}', "5.5; it must be a whole number"),
        ('{"at_s": 1, "input_len": true, "output_len": 1}', "input_len is True; it must be"),
        ('{"at_s": 1, "segments": [["a"]], "output_len": 1}', "segments has ['a']; it must be"),
        ('{"hash_ids": 3, "input_length": 5}', "hash_ids is 3; it must be a list"),
        ('{"input_toks": -5, "output_toks": 1}', "input_toks is -5; it must lie in 0..2147483647"),
        ('{"input_toks": 5, "output_toks": 1, "arrival_time_ns": NaN}', "arrival_time_ns is nan"),
        ('{"input_toks": 1e999, "output_toks": 1}', "input_toks is inf; it must be a finite"),
        (
            '{"at_s": 0, "input_len": 5, "output_len": 1}\n'
            '{"at_s": 1e308, "input_len": 5, "output_len": 1}',
            "line 2: at_s is 1e+308; it must lie in -1e+10..1e+10, which is 300 years",
        ),
        (
            '{"at_s": 0, "input_len": 5, "output_len": 1, "deadline_s": -1e300}',
            "line 1: deadline_s is -1e+300; it must lie in -1e+10..1e+10",
        ),
        (
            '{"input_toks": 5, "output_toks": 1, "arrival_time_ns": 1e99}',
            "arrival_time_ns is 1e+99; it must lie in -1e+19..1e+19",
        ),
        ('{"hash_ids": [], "input_length": 5, "output_length": 1, "timestamp": 1e14}', "1e+13"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "9" * 200_000, "cannot be read: field"),
    ],
)
def test_what_is_no_trace(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trace: ") as caught:
        read(write(tmp_path, text))
    assert expected in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"\x00\xff")
    with pytest.raises(ConfigError, match="not a text: byte 1 is no UTF-8"):
        read(path)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "nowhere")
