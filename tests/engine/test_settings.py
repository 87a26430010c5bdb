"""Settings reach other processes with the types that they declare."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType, NoneType
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

from paceline.core.adapter import AdapterConfig
from paceline.core.errors import ConfigError
from paceline.core.settings.config import Config
from paceline.core.settings.load import LoadConfig
from paceline.engine.loop.messages import Capacity
from paceline.engine.settings import ENGINE_COMPONENTS, EngineSettings
from paceline.engine.transport.front_end_link import FrontEndBuild, to_front_end
from paceline.engine.transport.process import ProcessCore
from paceline.engine.transport.wire import as_declared, declared_types, encoder, plain, read_only
from paceline.server.settings import ServerSettings
from paceline.wiring.processes.supervisor import FrontEndSettings
from paceline.wiring.ranks.rank_processes import BuildRank, RankedModel, to_rank

SAMPLES: dict[type[Any], Any] = {
    bool: True,
    int: 7,
    float: 2.5,
    str: "text",
    NoneType: None,
    object: 3,
}


def sample(kind: Any) -> Any:
    """A value of a declared type."""
    origin, inner = get_origin(kind), [one for one in get_args(kind) if one is not Ellipsis]
    if origin is Literal:
        return inner[-1]
    if origin in (tuple, frozenset, set, list):
        return origin(map(sample, inner))
    if origin in (dict, MappingProxyType):
        return origin({sample(inner[0]): sample(inner[1])})
    if inner:  # of a union
        return sample(inner[0])
    if kind is Any:
        return [1, {"a": "b"}]
    if issubclass(kind, Enum):
        return list(kind)[-1]
    return SAMPLES[kind] if kind in SAMPLES else kind()


def samples(components: Any) -> dict[str, Any]:
    return {name: sample(kind) for name, kind in declared_types(components).items()}


def filled(component: Any) -> Any:
    """A component with all the samples that its checks accept, alone and beside the others."""
    found = component()
    for name, value in samples([component]).items():
        with suppress(ConfigError):
            found = replace(found, **{name: value})
    return found


def tell(_model: str, **settings: Any) -> Any:
    """A factory that builds nothing, and says what it was given."""
    raise ConfigError(repr(sorted(settings.items())))


def test_every_setting_of_an_engine_reaches_its_process() -> None:
    """Also one that does not exist yet: the values come from the declared types."""
    sent = samples(ENGINE_COMPONENTS.values())
    kinds = {type(one) for one in sent.values()}
    assert {str, int, float, bool, tuple, MappingProxyType} <= kinds
    assert {*sent} >= {*Config.names(), "lora_modules", "trace", "device"}
    core = ProcessCore("tests.engine.test_settings:tell", "none", sent, EngineSettings())
    with pytest.raises(ConfigError) as told:
        core.ready()
    assert str(told.value) == repr(sorted(sent.items()))


def test_every_setting_reaches_front_ends_and_ranks() -> None:
    server, load, adapters = map(filled, (ServerSettings, LoadConfig, AdapterConfig))
    assert server.api_keys == server.aliases == adapters.lora_modules == ("text",)
    sent = FrontEndSettings("model", "path", load, server, {}, {"depth": 7}, (3, 4), 5)
    build = FrontEndBuild(0, Capacity(8, 4, 2, 8, 64), msgspec.to_builtins(sent, enc_hook=plain))
    got = to_front_end.decode(encoder.encode(build))
    assert isinstance(got, FrontEndBuild)
    assert msgspec.convert(got.settings, FrontEndSettings, dec_hook=read_only) == sent
    model = RankedModel("model", samples(ENGINE_COMPONENTS.values()), load, adapters, "gloo")
    rank = to_rank.decode(encoder.encode(BuildRank(1, 2, "store", model)))
    assert isinstance(rank, BuildRank)
    assert (rank.model.load, rank.model.adapters) == (load, adapters)
    assert repr(as_declared(rank.model.settings)) == repr(model.settings)


NO_PAIRS: MappingProxyType[str, tuple[int, ...]] = MappingProxyType({})


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Size:
    width: int = 2
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Further:
    """Types that no setting has so far."""

    colour: Colour = Colour.RED
    size: Size = Size()
    sizes: tuple[Size, ...] = ()
    words: frozenset[str] = frozenset()
    pairs: MappingProxyType[str, tuple[int, ...]] = field(default_factory=lambda: NO_PAIRS)
    most: int | None = None


@pytest.mark.parametrize("given", [Further(), Further(**samples([Further]))])
def test_other_types_survive_as_well(given: Further) -> None:
    sent = {name: getattr(given, name) for name in declared_types([Further])}
    got = msgspec.msgpack.decode(encoder.encode(sent))
    assert repr(as_declared(got, [Further])) == repr(sent)


def test_a_wrong_value_is_left_to_the_component_that_refuses_it() -> None:
    wrong = {"lora_modules": [1], "max_num_seqs": "many", "unknown": [2], "device": "moon"}
    assert as_declared(wrong) == wrong
