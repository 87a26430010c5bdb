"""Names of adapters, and which of them are in host memory."""

from dataclasses import dataclass, replace
from threading import Event

import pytest

from paceline import LoRARequest, Request
from paceline.core.errors import RequestError
from paceline.engine.loop import adapters as module
from paceline.engine.loop.adapters import AdapterRequests


@dataclass(frozen=True)
class Content:
    version: str


class Folder:
    """Host memory, and files whose content is the end of their path."""

    def __init__(self) -> None:
        self.kept: dict[str, Content] = {}
        self.reads: list[str] = []
        self.bad = "bad"  # files that cannot be read

    def read(self, path: str) -> Content:
        self.reads.append(path)
        if path == self.bad:
            raise RequestError("bad files")
        return Content(path.rpartition("/")[2])

    def keep(self, identity: str, adapter: Content) -> None:
        self.kept[identity] = adapter

    def drop(self, identity: str) -> None:
        del self.kept[identity]


class Served:
    """Adapters a, b and c, of which host memory holds two."""

    def __init__(self, most: int = 2) -> None:
        self.host, self.news = Folder(), Event()
        self.adapters = AdapterRequests(self.host, most)
        self.adapters.news = self.news.set
        self.ready: list[str] = []
        self.adapters.load_all([LoRARequest(name, 1, f"/{name}1") for name in "abc"])
        self.host.reads.clear()

    def begin(self, name: str, adapter: str) -> bool:
        request = self.adapters.named(Request(id=name, prompt=[1], adapter=adapter))
        assert self.adapters.concerns(request)
        return self.adapters.begin(request, self.ready.append)

    def read(self) -> None:
        """Wait until something was read, and take it over."""
        assert self.news.wait(10)
        self.news.clear()
        self.adapters.poll()


@pytest.fixture
def served() -> Served:
    return Served()


def test_the_identity_has_the_version(served: Served) -> None:
    request = Request(id="r", prompt=[1], adapter="a")
    assert served.adapters.named(request).adapter == "a@a1"
    with pytest.raises(RequestError, match="'d' is not loaded; loaded adapters: a, b, c"):
        served.adapters.named(replace(request, adapter="d"))
    assert served.adapters.listed()[0] == {"name": "a", "path": "/a1"}


def test_the_least_recently_used_is_dropped_and_read_again(served: Served) -> None:
    assert served.host.kept.keys() == {"b@b1", "c@c1"}
    assert served.begin("r", "b")
    assert not served.begin("s", "a")
    assert served.adapters.is_pending("s")
    served.read()
    assert served.adapters.is_done("s")
    assert served.adapters.refusal("s") is None
    assert served.ready == ["r", "s"]
    assert served.host.kept.keys() == {"b@b1", "a@a1"}
    assert served.host.reads == ["/a1"]


def test_the_adapters_of_open_requests_stay(served: Served) -> None:
    served.begin("r", "b")
    served.begin("s", "c")
    assert not served.begin("t", "a")
    assert not served.adapters.any_pending, "there is room for no other one"
    served.adapters.forget("r")
    served.read()
    assert served.ready == ["r", "s", "t"]
    assert served.host.kept.keys() == {"c@c1", "a@a1"}


def test_a_request_that_waits_for_room_is_not_overtaken_for_ever(served: Served) -> None:
    served.begin("r", "b")
    served.begin("s", "c")
    served.begin("first", "a")
    passed = [served.begin(f"more{number}", "b") for number in range(module.MOST_OVERTAKEN + 5)]
    assert passed == [True] * module.MOST_OVERTAKEN + [False] * 5
    for name in ("r", *(f"more{number}" for number in range(module.MOST_OVERTAKEN))):
        served.adapters.forget(name)
    served.read()
    assert "first" in served.ready
    served.adapters.forget("s")
    served.read()
    assert served.ready[-5:] == [f"more{module.MOST_OVERTAKEN + number}" for number in range(5)]


def test_an_adapter_that_is_unloaded_goes_with_its_last_request(served: Served) -> None:
    served.begin("r", "b")
    served.adapters.unload("b")
    served.adapters.unload("c")
    assert served.host.kept.keys() == {"b@b1"}
    with pytest.raises(RequestError, match="the adapter 'b' is not loaded"):
        served.adapters.unload("b")
    served.adapters.forget("r")
    assert not served.host.kept


def test_an_adapter_is_loaded_while_requests_run(served: Served) -> None:
    answer = served.adapters.load(LoRARequest("d", 1, "/d1"))
    assert served.adapters.any_pending
    with pytest.raises(RequestError, match="'d' is loaded already"):
        served.adapters.load(LoRARequest("d", 1, "/d2"))
    served.read()
    assert answer.done()
    assert served.begin("r", "d")


def test_bad_files(served: Served) -> None:
    answer = served.adapters.load(LoRARequest("d", 1, "bad"))
    served.read()
    with pytest.raises(RequestError, match="bad files"):
        answer.result()
    with pytest.raises(RequestError, match="'d' is not loaded"):
        served.begin("r", "d")
    with pytest.raises(RequestError, match="needs a lora_name and a lora_path"):
        served.adapters.load(LoRARequest("d"))


def test_other_content_in_place_is_another_adapter(served: Served) -> None:
    served.begin("old", "c")
    answer = served.adapters.load(LoRARequest("c", 1, "/c2"), in_place=True)
    served.read()
    assert answer.done()
    assert served.begin("new", "c")
    assert served.host.kept.keys() == {"c@c1", "c@c2"}
    served.adapters.forget("old")
    assert served.host.kept.keys() == {"c@c2"}


def test_files_that_are_gone_refuse_the_request(served: Served) -> None:
    served.host.read = lambda path: Content("other")
    served.begin("r", "a")
    served.read()
    error = served.adapters.refusal("r")
    assert str(error) == "the files of the adapter have changed; load it again"
    served.adapters.forget("r")
    served.adapters.close()
