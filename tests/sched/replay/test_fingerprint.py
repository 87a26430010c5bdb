"""The digest of a plan covers every field."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from paceline import Plan, Request
from paceline.core.multimodal import Embedded, Encoding
from paceline.core.plan import NO_ROWS, Admitted, Grown, Rows, StateMoves
from paceline.sched.replay.fingerprint import PART_BYTES, PARTS, Fingerprint, listing

DIGESTED = {
    Plan: "step rows start grown admitted released preempted finished copies swap_out swap_in "
    "chosen kind encode embedded states",
    StateMoves: "saves_before swap_out copies loads swap_in saves block_copies",
    Rows: "slot epoch serial request_id child count drafts samples",
    Grown: "slot index block more",
    Encoding: "slot image identity rows",
    Embedded: "row offset source",
    Admitted: "slot request tokens computed blocks resumed more",
}


def ask(name: str = "a", tokens: int = 3, **other: Any) -> Request:
    return Request(id=name, prompt=np.arange(tokens), **other)


def sample_plan() -> Plan:
    slot = np.array([1, 2])
    column = np.array([3, 4], np.int32)
    names = np.array(["a", "b"], object)
    samples = np.array([True, False])
    rows = Rows(slot, column, slot, names, column, column, column, samples)
    new = Admitted(2, ask("b"), np.arange(3, dtype=np.int32), 0, (8, 9), False, ((4, 5),))
    pairs = (((1, 2),), ((3, 4),), ((5, 6),), ((7, 8),))
    grown = Grown(slot, slot, column, (Grown(slot, slot, column),))
    changes = grown, (new,), (5,), ("p",), ("f",), *pairs
    encode = (Encoding(2, 0, "cat", column),)
    embedded = Embedded(slot, column, column)
    placed = ((0, (1, 2)),)
    states = StateMoves(placed, placed, ((0, 3),), placed, placed, placed, ((1, 2),))
    return Plan(7, rows, column, *changes, "mixed", encode, embedded, states)


def altered(value: Any) -> Any:
    """Something else of the same form."""
    if isinstance(value, np.ndarray):
        return np.array(["c", "d"], object) if value.dtype == object else ~value
    if isinstance(value, tuple):
        return (*value, value[0])
    if isinstance(value, Request):
        return ask("other")
    if isinstance(value, str):
        return "decode"
    return not value if isinstance(value, bool) else value + 1


def test_the_digest_covers_every_field() -> None:
    for kind, names in DIGESTED.items():
        assert [field.name for field in fields(kind)] == names.split(), "digest the new field too"
    plan = sample_plan()
    nested = ("rows", "grown", "embedded", "states")
    plainly = [name for name in DIGESTED[Plan].split() if name not in nested]
    others = [replace(plan, **{name: altered(getattr(plan, name))}) for name in plainly]
    for name in DIGESTED[Rows].split():
        value = altered(getattr(plan.rows, name))
        others.append(replace(plan, rows=replace(plan.rows, **{name: value})))
    for name in DIGESTED[Grown].split():
        value = altered(getattr(plan.grown, name))
        others.append(replace(plan, grown=replace(plan.grown, **{name: value})))
    for name in DIGESTED[Admitted].split():
        value = altered(getattr(plan.admitted[0], name))
        others.append(replace(plan, admitted=(replace(plan.admitted[0], **{name: value}),)))
    for name in DIGESTED[Encoding].split():
        value = altered(getattr(plan.encode[0], name))
        others.append(replace(plan, encode=(replace(plan.encode[0], **{name: value}),)))
    for name in DIGESTED[Embedded].split():
        value = altered(getattr(plan.embedded, name))
        others.append(replace(plan, embedded=replace(plan.embedded, **{name: value})))
    for name in DIGESTED[StateMoves].split():
        value = altered(getattr(plan.states, name))
        others.append(replace(plan, states=replace(plan.states, **{name: value})))
    digests = [Fingerprint().of(one) for one in (plan, *others)]
    assert len(set(digests)) == len(digests) == 46
    assert {len(digest) for digest in digests} == {PART_BYTES * len(PARTS)}
    assert Fingerprint().of(sample_plan()) == digests[0]


def test_the_digest_covers_a_field_that_alone_says_something() -> None:
    nothing = Plan(7, NO_ROWS, NO_ROWS.count)
    full, rest = sample_plan(), DIGESTED[Plan].split()[3:]
    alone = [name for name in rest if name not in ("kind", "encode")]  # what is encoded is read
    others = [replace(nothing, **{name: getattr(full, name)}) for name in alone]
    others.append(replace(nothing, kind="prefill"))
    digests = [Fingerprint().of(one) for one in (nothing, *others)]
    assert len(set(digests)) == len(digests) == 13


def test_shared_rows_give_the_same_digest_as_equal_ones() -> None:
    plan, reused = sample_plan(), Fingerprint()
    later = replace(plan, step=8)
    assert reused.of(plan) == Fingerprint().of(plan)
    assert reused.of(later) == Fingerprint().of(later) != Fingerprint().of(plan)


def test_a_description_names_only_some_of_many() -> None:
    assert listing(list("abcdef")) == "a, b, c, d and 2 more"
