"""Which labels the result of a PromQL query has, by the metrics of a server."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import Metric
from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    LabelModifierType,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    StringLiteral,
    SubqueryExpr,
    VectorMatchCardinality,
    VectorSelector,
    parse,
)

SCRAPED = frozenset({"job", "instance"})  # labels that Prometheus adds to all that it scrapes
GROWING = ("counter", "histogram")


@dataclass(frozen=True)
class SampleKind:
    """The type of a metric, and the labels of its samples."""

    type: str
    labels: frozenset[str] = field(default_factory=frozenset[str])


def kinds_of(families: Iterable[Metric]) -> dict[str, SampleKind]:
    """By the name of the samples."""
    return {
        sample.name: SampleKind(family.type, SCRAPED.union(sample.labels))
        for family in families
        for sample in family.samples
    }


class Query:
    """A query over metrics that are known; a mistake in it is an AssertionError."""

    def __init__(self, text: str, kinds: Mapping[str, SampleKind]) -> None:
        self._kinds = kinds
        self.labels = self._of(parse(text))

    def _of(self, expr: Expr) -> frozenset[str]:
        """The labels of the result of a part of the query."""
        match expr:
            case NumberLiteral() | StringLiteral():
                return frozenset()
            case ParenExpr() | SubqueryExpr():
                return self._of(expr.expr)
            case MatrixSelector():
                return self._of(expr.vector_selector)
            case VectorSelector():
                return self._selected(expr)
            case Call():
                return self._called(expr)
            case AggregateExpr():
                return self._aggregated(expr)
            case BinaryExpr():
                return self._combined(expr)
            case _:
                raise AssertionError(f"{expr.prettify()}: a kind of expression without a rule")

    def _matched(self, expr: VectorSelector) -> list[SampleKind]:
        names = [one.value for one in expr.matchers.matchers if one.name == "__name__"]
        pattern = (expr.name and re.escape(expr.name)) or names[0]
        found = [kind for name, kind in self._kinds.items() if re.fullmatch(pattern, name)]
        assert found, f"no metric matches {pattern}"
        return found

    def _selected(self, expr: VectorSelector) -> frozenset[str]:
        common = frozenset.intersection(*(one.labels for one in self._matched(expr)))
        for one in expr.matchers.matchers:
            assert one.name in {*common, "__name__"}, f"{expr.prettify()} has no {one.name}"
        return common

    def _called(self, expr: Call) -> frozenset[str]:
        name, arguments = expr.func.name, expr.args
        labels = [self._of(one) for one in arguments]
        match name:
            case "rate" | "increase":
                assert self._types(arguments[0]) <= {*GROWING}, f"{expr.prettify()}: not a counter"
                return labels[0]
            case "histogram_quantile":
                assert "le" in labels[1], f"{expr.prettify()}: no buckets"
                return labels[1] - {"le"}
            case "label_replace":
                new, source = arguments[1].val, arguments[3].val
                assert source in {*labels[0], "__name__"}, f"{expr.prettify()} has no {source}"
                return labels[0] | {new}
            case _:
                raise AssertionError(f"{name}: a function without a rule")

    def _types(self, expr: Expr) -> set[str]:
        """The types of the metrics that a range vector is made of."""
        match expr:
            case MatrixSelector():
                return self._types(expr.vector_selector)
            case VectorSelector():
                return {one.type for one in self._matched(expr)}
            case SubqueryExpr():
                return self._types(expr.expr)
            case Call():
                return self._types(expr.args[0])
            case _:
                raise AssertionError(f"{expr.prettify()}: not a range")

    def _aggregated(self, expr: AggregateExpr) -> frozenset[str]:
        inner = self._of(expr.expr)
        if expr.modifier is None:
            return frozenset()
        assert expr.modifier.type == AggModifierType.By, "write by instead of without"
        assert inner.issuperset(expr.modifier.labels), f"{expr.prettify()}: it has only {inner}"
        return frozenset(expr.modifier.labels)

    def _combined(self, expr: BinaryExpr) -> frozenset[str]:
        """Two sides whose labels differ have no elements in common, unless `on` says otherwise."""
        left, right = self._of(expr.lhs), self._of(expr.rhs)
        modifier = expr.modifier
        matching = modifier and modifier.matching
        if matching is None:
            assert left == right, (
                f"{expr.prettify()}: {set(left)} on one side, {set(right)} on the other"
            )
            return left
        assert matching.type == LabelModifierType.Include, "write on instead of ignoring"
        on = frozenset(matching.labels)
        assert on <= left & right, f"{expr.prettify()}: not on both sides"
        assert modifier is not None
        many = (VectorMatchCardinality.ManyToOne, VectorMatchCardinality.ManyToMany)
        return left if modifier.card in many else on
