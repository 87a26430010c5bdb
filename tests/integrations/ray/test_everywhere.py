"""Requests that concern all replicas."""

import pytest

from paceline.integrations.ray.everywhere import WholeResponse, combination_for


def response(replica: str, status: int = 200, body: bytes = b"") -> WholeResponse:
    return WholeResponse(replica, status, [(b"content-length", b"%d" % len(body))], body)


@pytest.mark.parametrize(
    ("path", "status"), [("/pause", 503), ("/requests/an/id/explain", 200), ("/v1/models", None)]
)
def test_one_response_is_chosen(path: str, status: int | None) -> None:
    combined = combination_for(path)
    found = combined and combined([response("a", 200), response("b", 503)]).status
    assert found == status


def test_metrics_have_the_replica_as_a_label() -> None:
    text = b'# HELP n Requests.\n# TYPE n gauge\nn{engine="0"} 1.0\n'
    combined = combination_for("/metrics")
    assert combined
    whole = combined([response("a", body=text), response("b", body=text)])
    assert whole.body.decode().splitlines()[2:] == [
        'n{engine="0",replica="a"} 1.0',
        'n{engine="0",replica="b"} 1.0',
    ]
    assert whole.headers == [(b"content-length", b"%d" % len(whole.body))]
