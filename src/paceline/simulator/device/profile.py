"""A profile: how long steps take on a device with a model, as a small readable model in JSON."""

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any, Literal, cast, get_origin, get_type_hints

from paceline.core.errors import ConfigError
from paceline.core.settings.checks import check_types, not_negative, positive, require
from paceline.core.settings.config import Config
from paceline.core.system.files import json_object
from paceline.simulator.device.batch_summary import BatchSummary
from paceline.simulator.device.time_curve import NO_RATES, NOTHING, RowRates, TimeCurve

FORMAT = 1
Named = Mapping[str, Any]
MOST_ERROR = 0.15  # of steps that the fit did not see, on average: beyond it, simulations mislead
KINDS = {"decode": "decode steps", "mixed": "steps with prompts", "drafted": "steps with drafts"}


@dataclass(frozen=True, slots=True)
class StepTerms:
    """Seconds of a step on the device: the sum of a fixed part and of one curve per amount.

    Reading the weights and launching the kernels is `fixed_s`. A knee in `positions` is where
    products begin to be limited by arithmetic instead of memory. A device that runs captured
    graphs has some `sizes` only, and fills a step up to the next one.
    """

    fixed_s: float = 0.0  # of every step
    positions: TimeCurve = NOTHING  # products, by positions
    samples: TimeCurve = NOTHING  # the head and the choice of tokens, by tokens that are chosen
    contexts: TimeCurve = NOTHING  # reading keys and values, by tokens
    deepest: TimeCurve = NOTHING  # the prompt that reads most, where others wait for it, by tokens
    pairs: TimeCurve = NOTHING  # the arithmetic of attention in prompts, by pairs
    reading: RowRates = NO_RATES  # keys and values, by rows that read them
    sizes: tuple[int, ...] = ()  # of steps, in positions; none: any size

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, "fixed_s")
        whole = all(type(size) is int for size in self.sizes)
        if not whole or list(self.sizes) != sorted({max(size, 1) for size in self.sizes}):
            raise ConfigError(
                f"sizes are {list(self.sizes)}; they must be whole numbers that rise from 1 or more"
            )

    def seconds(self, batch: BatchSummary) -> float:
        """Of a step that moves no blocks."""
        reading = self.reading.seconds(self.readers(batch), batch.contexts, batch.longest)
        return self.level(batch) + (self.contexts(batch.contexts) + reading)

    def level(self, batch: BatchSummary) -> float:
        """What is the same in each repetition of a step."""
        products = self.fixed_s + self.positions(self.filled(batch.positions))
        prompts = self.pairs(batch.pairs) + self.deepest(batch.deepest)
        return products + self.samples(batch.samples) + prompts

    def readers(self, batch: BatchSummary) -> int:
        """Rows that read; those of a step of one position each are filled up."""
        return self.filled(batch.rows) if batch.rows == batch.positions else batch.rows

    def filled(self, positions: int) -> int:
        """The size that a step of so many positions is filled up to."""
        at = bisect_left(self.sizes, positions)
        return self.sizes[at] if at < len(self.sizes) else positions


@dataclass(frozen=True, slots=True)
class MoveTerms:
    """Seconds by which moving blocks delays a step, by blocks."""

    copies: TimeCurve = NOTHING  # on the device
    swap_out: TimeCurve = NOTHING
    swap_in: TimeCurve = NOTHING


@dataclass(frozen=True, slots=True)
class HostTerms:
    """Seconds of the thread that plans and commits.

    The device waits for both with one step in flight, and for neither with two, if the device
    takes longer than the host.
    """

    plan_s: float = 0.0  # of every step: planning and launching it
    plan_row_s: float = 0.0  # for each row
    mixed_s: float = 0.0  # of every step with prompts or drafts
    change_s: float = 0.0  # of every step whose rows are others than those of the step before
    admit_s: float = 0.0  # for each sequence that is admitted
    finish_s: float = 0.0  # for each sequence that ended before
    commit_s: float = 0.0  # of every step: committing it and sending its tokens
    commit_row_s: float = 0.0  # for each row

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, *(one.name for one in fields(self)))


@dataclass(frozen=True, slots=True)
class FrontEndTerms:
    """Seconds between a client and the engine, in another process than the steps."""

    request_s: float = 0.0  # from the arrival of a request until the engine has it
    prompt_token_s: float = 0.0  # the same, for each token of its prompt
    delivery_s: float = 0.0  # from a commit until the client has the text
    delivery_row_s: float = 0.0  # the same, for each row of the step

    def __post_init__(self) -> None:
        check_types(self)
        not_negative(self, *(one.name for one in fields(self)))

    def __add__(self, other: "FrontEndTerms") -> "FrontEndTerms":
        names = [one.name for one in fields(self)]
        return FrontEndTerms(*(getattr(self, name) + getattr(other, name) for name in names))

    def deliver_s(self, rows: int) -> float:
        """Until the clients of a step with so many rows have their tokens."""
        return self.delivery_s + rows * self.delivery_row_s


@dataclass(frozen=True, slots=True)
class KVMemory:
    """The room for keys and values that the device has with this model."""

    token_bytes: int = 2**16  # of one token, over all layers
    total_bytes: int = 2**31

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "token_bytes", "total_bytes")

    def blocks(self, block_size: int) -> int:
        return self.total_bytes // (self.token_bytes * block_size)


@dataclass(frozen=True, slots=True)
class Profile:
    """Step times of one model on one device.

    name, device, model   what was measured
    processor, architecture   of a CPU; empty: it was measured on another kind of device
    source, notes         where the figures come from
    depth        steps in flight
    settings     of a scheduler, such as `max_num_seqs`: defaults of an engine on this device
    versions     of the software
    error        relative errors on points that the fit did not see, by name
    memory       for keys and values
    decode       of a step in which each row computes one position
    mixed        of any other step
    moves        of blocks
    host, frontend   what they take
    http         what a server adds to the front end
    """

    name: str = ""
    device: str = ""
    model: str = ""
    processor: str = ""
    architecture: str = ""
    source: Literal["estimated", "measured"] = "estimated"
    notes: str = ""
    depth: int = 1
    settings: Named = field(default_factory=dict[str, Any])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    error: Mapping[str, float] = field(default_factory=dict[str, float])
    memory: KVMemory = field(default_factory=KVMemory)
    decode: StepTerms = field(default_factory=StepTerms)
    mixed: StepTerms = field(default_factory=StepTerms)
    moves: MoveTerms = field(default_factory=MoveTerms)
    host: HostTerms = field(default_factory=HostTerms)
    frontend: FrontEndTerms = field(default_factory=FrontEndTerms)
    http: FrontEndTerms = field(default_factory=FrontEndTerms)

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "depth")
        Config.of(**self.settings)

    # -- seconds ------------------------------------------------------------

    def device_s(self, batch: BatchSummary) -> float:
        """Seconds of a step on the device."""
        moves = self.moves
        moved = moves.copies(batch.copies) + moves.swap_out(batch.swap_out)
        return self._terms(batch).seconds(batch) + moved + moves.swap_in(batch.swap_in)

    def plan_s(self, batch: BatchSummary) -> float:
        """Seconds that the host takes before the device can begin a step."""
        host = self.host
        changes = batch.admitted * host.admit_s + batch.finished * host.finish_s
        changes += host.change_s * batch.is_changed + host.mixed_s * batch.is_mixed
        return host.plan_s + batch.rows * host.plan_row_s + changes

    def commit_s(self, batch: BatchSummary) -> float:
        """Seconds from the end of a step on the device until its tokens are sent."""
        return self.host.commit_s + batch.rows * self.host.commit_row_s

    def _terms(self, batch: BatchSummary) -> StepTerms:
        return self.mixed if batch.is_mixed else self.decode

    # -- files --------------------------------------------------------------

    @property
    def label(self) -> dict[str, Any]:
        """Name and origin, for the JSON of a report."""
        return {
            "profile": self.name,
            "profile_source": self.source,
            "profile_error": dict(self.error),
        }

    def errors_above(self, most: float) -> str:
        """Kinds of steps whose mean error is larger, in words; empty if there are none."""
        means = {words: self.error.get(f"{kind}_mean", 0.0) for kind, words in KINDS.items()}
        return ", ".join(f"{100 * one:.0f} % ({of})" for of, one in means.items() if one > most)

    def doubts(self, processor: str, architecture: str) -> list[str]:
        """Why simulations with it may mislead on a machine with this CPU, in sentences."""
        found: list[str] = []
        measure = "`paceline calibrate` measures"
        if self.source == "estimated":
            found.append(
                f"The step times of this profile are estimated, not measured: {measure} them."
            )
        elif not self.error:
            found.append("It is not known how far off this profile is: no steps were held back.")
        if above := self.errors_above(MOST_ERROR):
            found.append(
                f"WARNING: this profile is {above} off on steps that its fit did not see, so the "
                f"results may be as far off: {measure} another, while nothing else runs."
            )
        own, here = (self.processor, self.architecture), (processor, architecture)
        if self.processor and own != here:
            found.append(
                f"WARNING: this profile is of another kind of CPU than this machine has: "
                f"{self.processor} ({self.architecture}), not {processor} ({architecture}). "
                f"Steps may take several times as long here: {measure} them."
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"format": FORMAT, **plain(self)}

    def to_json(self) -> str:
        """The same as text. A curve and what belongs together are on one line."""
        lines = [f'  "{name}": {grouped(value)}' for name, value in self.to_dict().items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @staticmethod
    def of(values: Named) -> "Profile":
        """From what `to_dict` returned. ConfigError for an unknown field or a wrong value."""
        if values.get("format") != FORMAT:
            found = values.get("format")
            raise ConfigError(
                f"the format of the profile is {found!r}; this version reads {FORMAT}: run "
                "`paceline calibrate` again"
            )
        rest = {name: value for name, value in values.items() if name != "format"}
        return cast(Profile, built(Profile, rest, "the profile"))

    @staticmethod
    def load(name: str | Path) -> "Profile":
        """The profile in a file, or one that comes with the package."""
        path = Path(name)
        choice = f"name a file that `paceline calibrate` wrote, or one of {', '.join(shipped())}"
        if path.suffix != ".json":
            path = Path(str(files("paceline.simulator"))) / "profiles" / f"{name}.json"
            if not path.is_file():
                raise ConfigError(
                    f"there is no profile {str(name)!r}; {choice} (files end in .json)"
                )
        try:
            values = json_object(path)
        except ConfigError as error:
            raise ConfigError(f"{error}; {choice}") from None
        try:
            return Profile.of(values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None


def shipped() -> list[str]:
    """Names of the profiles that come with the package."""
    folder = Path(str(files("paceline.simulator"))) / "profiles"
    return sorted(path.stem for path in folder.glob("*.json"))


def plain(value: Any) -> Any:
    if isinstance(value, (TimeCurve, RowRates)):
        return [list(point) for point in value.points]
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple):
        return list(cast("tuple[Any, ...]", value))
    return dict(cast(Named, value)) if isinstance(value, Mapping) else value


def grouped(value: Any) -> str:
    """JSON with a line for each curve of an object that has curves, else on one line."""
    given: Named = cast(Named, value) if isinstance(value, Mapping) else {}
    if not any(isinstance(one, list) for one in given.values()):
        return json.dumps(value)
    lines = [f'    "{name}": {json.dumps(one)}' for name, one in given.items()]
    return "{\n" + ",\n".join(lines) + "\n  }"


def built(kind: type[Any], values: Any, where: str) -> Any:
    """A dataclass of this kind, with curves and dataclasses inside."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is {values!r}; it must be an object")
    kinds = get_type_hints(kind)
    given = dict(cast(Named, values))
    if unknown := [name for name in given if name not in kinds]:
        raise ConfigError(f"{where} has unknown fields: {', '.join(unknown)}")
    given = {name: part(kinds[name], one, f"{name} of {where}") for name, one in given.items()}
    try:
        return kind(**given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def part(kind: Any, value: Any, where: str) -> Any:
    """What a field of this kind holds. Numbers and texts are checked by the dataclass."""
    if kind in (TimeCurve, RowRates):
        try:
            return kind(value)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    if is_dataclass(kind):
        return built(cast("type[Any]", kind), value, where)
    if get_origin(kind) is tuple:
        require(isinstance(value, list), f"{where} is {value!r}; it must be a list")
        return tuple(cast("list[Any]", value))
    if get_origin(kind) is Mapping:
        require(isinstance(value, Mapping), f"{where} is {value!r}; it must be an object")
    if isinstance(value, float):
        require(isfinite(value), f"{where} is {value}; it must be finite")
    return value
