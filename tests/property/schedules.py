"""Random schedules on a pool that is always full, checked token for token."""

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from paceline.core.capabilities import StepCost, StepTimes
from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.core.events import Happened
from paceline.core.multimodal import ImageInput
from paceline.core.plan import NO_BLOCK, Outputs, Plan, StepResult
from paceline.core.pooling import CLS, LAST, MEAN, POOLING_KINDS, PooledMean
from paceline.core.request import Finish, Request, child_label
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.engine.loop.pipeline import MASKED_DEPTH
from paceline.kv import cache as kv_cache
from paceline.kv.keys import KEY_BYTES
from paceline.kv.pool import BlockPool
from paceline.sched.admission.gates import ADAPTER_SLOT
from paceline.sched.queue import SHARE_OF_SLOTS
from paceline.sched.scheduler import Scheduler
from paceline.sched.transfers.swapping import Rates
from paceline.testing.oracle import OracleRunner, hidden_state
from paceline.testing.reference import beam_search, best_of, reference
from tests.property.erratic_connector import ErraticConnector
from tests.property.grammars import (
    CHARACTERS,
    END,
    LONG_PATTERNS,
    PATTERNS,
    SCHEMAS,
    constrained_requests,
    document,
    mask_of,
)
from tests.property.replica import Replica

SHARE_WITH_TARGETS = 0.15  # of the schedules
TARGETS = ("ttft_target_ms", "itl_target_ms")
POLICIES = ("fcfs", "priority", "shortest", "deadline", "fair")
MOST_TURNS = 5_000
NOT_LOADED = "its KV could not be loaded from erratic"


def random_step_times(random: Random) -> StepTimes:
    """Step times of some device: positions may be free, or cost as much as a step."""
    fixed, each = random.uniform(0.001, 1.0), random.choice([0.0, 0.01, 0.2, 1.0])
    slower = random.uniform(1.0, 1.5)
    sizes = (1, 4, 16, 64)
    plain = tuple((size, fixed + each * size * random.uniform(0.8, 1.2)) for size in sizes)
    drafted = tuple((size, slower * taken) for size, taken in plain)
    least = tuple((size, 1.5 * taken) for size, taken in drafted) if random.random() < 0.3 else ()
    return StepTimes(plain, drafted, least)


class TightPool(BlockPool):
    """A pool that now and then pretends to have less."""

    withheld = 0

    @property
    def free(self) -> int:
        return max(super().free - self.withheld, 0)

    def sealed_keys(self) -> set[bytes]:
        """Those that events report: keys of other attention groups are longer."""
        return {key for key in self._by_key if len(key) == KEY_BYTES}


@dataclass(slots=True)
class Drive:
    """One seeded schedule: settings, requests and a script of trouble, all from the seed."""

    seed: int
    plain: bool = False  # without the older disciplines, swapping and families
    loading: bool = False  # with a small device and a host tier, so that hits have host parts
    constrained: bool = False  # with outputs that follow grammars
    adapted: bool = False  # with several adapters, and few slots for them
    pooled: bool = False  # with requests that want embeddings
    pictured: bool = False  # with images, and little room for them
    remote: bool = False  # with a connector that loads and stores KV
    grouped: bool = False  # with several attention groups, or windows
    stateful: bool = False  # with layers that keep a state; without swapping
    moved: bool = False  # with requests that other engines began
    random: Random = field(init=False)
    more: Random = field(init=False)  # for those, so that they do not change what the seed means
    latest: Random = field(init=False)  # for rows that fail and children that end, likewise
    host: Random = field(init=False)  # for `loading`, likewise
    drafting: Random = field(init=False)  # for step times and drafts that are not computed
    shaping: Random = field(init=False)  # for constraints
    writing: Random = field(init=False)  # for those that are JSON schemas
    adapting: Random = field(init=False)  # for adapters
    embedding: Random = field(init=False)  # for `pooled`, likewise
    means: dict[str, PooledMean] = field(default_factory=dict[str, PooledMean])
    picturing: Random = field(init=False)  # for images
    connector: ErraticConnector | None = None
    grouping: Random = field(init=False)  # for attention groups
    moving: Random = field(init=False)  # for `moved`, likewise
    pacing: Random = field(init=False)  # for steps that are bounded by time
    bodies: Random = field(init=False)  # for requests that came together
    grammars: ConstrainedRequests = field(init=False)
    settings: dict[str, Any] = field(init=False)
    scheduler: Scheduler = field(init=False)
    runner: OracleRunner = field(init=False)
    depth: int = field(init=False)
    vocab: int = field(init=False)
    now: float = 0.0
    to_come: deque[Request] = field(default_factory=deque[Request])
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    got: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    ends: dict[str, str] = field(default_factory=dict[str, str])
    choices: dict[str, list[list[int]]] = field(default_factory=dict[str, list[list[int]]])
    flight: deque[tuple[Plan, StepResult | None]] = field(
        default_factory=deque[tuple[Plan, StepResult | None]]
    )
    held: Plan | None = None  # the latest in flight, if it runs when those before it are delivered
    poisoned: bool = False  # a step in flight failed; those after it fail too
    spoiling: bool = field(init=False)  # may rows come to nothing?
    condemned: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    seen: Counter[str] = field(default_factory=Counter[str])
    chaos: bool = True
    found: int = 0  # tokens of hits
    loaded: int = 0  # those of them that were on the host
    replica: Replica = field(init=False)  # of the cache, as events tell it

    def __post_init__(self) -> None:
        self.random, self.more = Random(self.seed), Random(~self.seed)
        self.latest = Random(f"rows and children {self.seed}")
        self.host = Random(f"host {self.seed}")
        self.drafting = Random(f"drafts {self.seed}")
        self.shaping = Random(f"constraints {self.seed}")
        self.writing = Random(f"schemas {self.seed}")
        self.adapting = Random(f"adapters {self.seed}")
        self.embedding = Random(f"pooling {self.seed}")
        self.picturing = Random(f"items {self.seed}")
        self.grouping = Random(f"groups {self.seed}")
        self.moving = Random(f"moved {self.seed}")
        self.settings = self._settings()
        if self.pictured:
            self.settings |= self._encoder_settings()
        if self.grouped:
            self.settings |= self._groups()
        if self.stateful:
            self.settings |= self._states()
        self.pacing = Random(f"pace {self.seed}")
        self.bodies = Random(f"bodies {self.seed}")
        self.settings |= self._pace() | self._shares() | self._eviction()
        with patch.object(kv_cache, "BlockPool", TightPool):
            self.scheduler = Scheduler.create(**self.settings)
        if self.drafting.random() < 0.5:
            self.scheduler.measure_steps(random_step_times(self.drafting))
        if self.settings.get("max_step_s") and self.pacing.random() < 0.8:
            self.scheduler.measure_cost(self._cost())
        cache = self.scheduler.state.cache
        self.replica = Replica(cache.block_size)
        r = self.random
        self.vocab = r.choice([3, 7, 50])
        self.depth = r.randint(1, 4)
        lag = self.more.randint(0, self.depth - 1)
        if self.loading:
            self.depth = self.host.randint(1, 4)
            lag = self.depth - 1  # copies to the host are as late as they may be
        self.spoiling = not self.plain and self.latest.random() < 0.25
        self.runner = OracleRunner(
            cache.pool.size,
            cache.block_size,
            self.vocab,
            accept=r.random(),
            seed=self.seed,
            host_blocks=self.settings.get("swap_space", 0),
            lag=lag,
        )
        self.runner.groups = self.scheduler.config.cache.groups
        self.runner.has_states = self.stateful
        if self.remote:
            self.connector = ErraticConnector(self.runner, self.seed, self.seen)
            self.scheduler.connect(self.connector)
        self.runner.masks = self.grammars = constrained_requests(self.vocab)
        self._invent_requests()

    # -- invention ----------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        r = self.random
        slots, length = r.randint(1, 10), r.randint(16, 90)
        size = r.choice([1, 2, 4, 8, 16])
        chunked = r.random() < 0.8
        drafts = r.choice([0, 0, 0, 1, 3])
        lookahead = r.choice([0, 0, 2]) if drafts else 0
        least = -(-length // size)
        return {
            "max_num_seqs": slots,
            "max_model_len": length,
            "block_size": size,
            "num_blocks": r.randint(least, least * max(2, slots // 2)),
            "max_num_batched_tokens": max(slots, r.choice([8, 16, 64, 256]))
            if chunked
            else max(slots, length, r.choice([64, 256])),
            "enable_chunked_prefill": chunked,
            "long_prefill_token_threshold": r.choice([0, 0, 3, 16]) if chunked else 0,
            "enable_prefix_caching": r.random() < 0.85,
            "enable_kv_cache_events": r.random() < 0.3,
            "free_order": r.choice(["unsealed_first", "unsealed_first", "lru"]),
            "reserve_full_prompt": r.random() < 0.5,
            "watermark": r.choice([0.0, 0.0, 0.1, 0.4]),
            "policy": r.choice(POLICIES),
            "victim": r.choice(["newest", "cheapest"]),
            "preempt_on_arrival": r.random() < 0.5,
            "ageing_s": r.choice([3.0, 60.0]),
            "refuse_late": r.random() < 0.3,
            "tenant_weights": {"t1": 2.0},
            "num_speculative_tokens": drafts,
            "speculation": r.choice(["fixed", "adaptive"]),
            "speculation_max_batch_tokens": r.choice([4, 256]),
            "lookahead_slots": lookahead,
            "journal_requests": 4,
            "journal_spells": 16,
            "max_loras": self.adapting.choice([1, 2]) if self.adapted else 0,
            **({} if self.plain else self._older_disciplines(least)),
            **(self._much_on_the_host(slots, length) if self.loading else {}),
            **(self._remote_settings(slots, length) if self.remote else {}),
            **self._targets(),
        }

    def _targets(self) -> dict[str, Any]:
        """In some schedules the policy `slo`, with targets of the server or without."""
        r = Random(f"targets {self.seed}")
        if r.random() >= SHARE_WITH_TARGETS:
            return {}
        targets = {name: r.choice([0.0, 200.0, 5_000.0]) for name in TARGETS}
        return {"policy": "slo", **targets}

    def _much_on_the_host(self, slots: int, length: int) -> dict[str, Any]:
        """A small device, and a host tier that keeps what the device gives up."""
        r = self.host
        size = r.choice([1, 2, 4])
        least = -(-length // size)
        return {
            "max_num_seqs": max(slots, 4),
            "max_num_batched_tokens": r.choice([length, 256]),
            "block_size": size,
            "num_blocks": least + r.randint(0, least // 2),
            "enable_prefix_caching": True,
            "preemption_mode": "swap",
            "swap_space": r.choice([max(least // 2, 1), least, 2 * least, 4 * least]),
        }

    def _remote_settings(self, slots: int, length: int) -> dict[str, Any]:
        """A small device, so that requests find most of what they share at the connector."""
        r = Random(f"remote {self.seed}")
        size = r.choice([1, 2, 4])
        least = -(-length // size)
        return {
            "max_num_seqs": max(slots, 3),
            "max_num_batched_tokens": r.choice([length, 256]),
            "block_size": size,
            "num_blocks": least + r.randint(0, least),
            "enable_prefix_caching": True,
            "kv_load_failure_policy": r.choice(["recompute", "recompute", "fail"]),
            "kv_load_timeout_s": r.choice([2.0, 20.0, 1000.0]),
        }

    def _older_disciplines(self, least: int) -> dict[str, Any]:
        r = self.more
        mode = r.choice(["recompute", "recompute", "swap", "swap", "auto"])
        return {
            "discipline": r.choice(["unified", "prefill_first"]),
            "max_wait": r.choice([0.0, 2.0, 1000.0]),
            "preemption_mode": mode,
            "swap_space": 0 if mode == "recompute" else r.choice([1, 4, least, 4 * least]),
            "recompute_tokens_per_s": r.choice([1.0, 1e6]),
            "swap_blocks_per_s": r.choice([1.0, 100.0]),
        }

    def _pace(self) -> dict[str, Any]:
        """Maybe steps of a few positions, whatever the budget."""
        settings = self.settings
        is_cut = (
            settings["enable_chunked_prefill"] and settings.get("discipline") != "prefill_first"
        )
        if not is_cut or settings.get("disable_chunked_mm_input") or self.pacing.random() < 0.6:
            return {}
        self.seen["paced"] += 1
        return {"max_step_s": self.pacing.choice([1e-8, 0.01, 0.25])}

    def _eviction(self) -> dict[str, Any]:
        """Maybe another order than by age, which needs blank blocks to go first."""
        if Random(f"eviction {self.seed}").random() < 0.5:
            return {}
        self.seen["sessions"] += 1
        return {"eviction": "sessions", "free_order": "unsealed_first"}

    def _shares(self) -> dict[str, Any]:
        """Maybe slots that the requests of a body leave to others."""
        slots = self.settings["max_num_seqs"]
        shares = slots > 1 and self.bodies.random() < 0.5
        return {"slots_for_others": self.bodies.randint(1, slots - 1)} if shares else {}

    def _with_body(self, request: Request) -> Request:
        """Maybe one of several that came together."""
        if not self.settings.get("slots_for_others") or self.bodies.random() < 0.3:
            return request
        return replace(request, origin=self.bodies.choice(["x", "x", "y"]))

    def _cost(self) -> StepCost:
        """What a position costs: from nearly nothing to more than a step should take."""
        r = self.pacing
        return StepCost(r.choice([1, 10**6, 10**8]), r.choice([0, 0, 10**5, 10**8]))

    def _encoder_settings(self) -> dict[str, Any]:
        """Room for about one image, or for a few."""
        r = self.picturing
        return {
            "max_num_encoder_input_tokens": r.choice([4, 6, 12, 64]),
            "encoder_cache_size": r.choice([4, 5, 9, 16, 64]),
            "disable_chunked_mm_input": r.random() < 0.4,
        }

    def _groups(self) -> dict[str, Any]:
        """One to four groups, and a pool that one sequence may fill."""
        r, settings = self.grouping, self.settings
        size = settings["block_size"]
        window = r.choice([2, size, size + 1, 2 * size - 1, 3 * size, 7])
        kinds = {
            "full": {"kind": "full"},
            "window": {"kind": "sliding_window", "window": window, "count": r.choice([1, 1, 2])},
            "chunk": {
                "kind": "chunked_local",
                "window": r.choice([2, size, 3 * size, 7]),
                "count": r.choice([1, 1, 2]),
            },
        }
        layouts = ("full window", "window full", "window", "full chunk", "chunk", "window chunk")
        groups = [kinds[kind] for kind in r.choice([*layouts, "full window chunk"]).split()]
        row = settings["max_num_batched_tokens"]
        if settings["enable_chunked_prefill"]:
            row = max(r.choice([row, 8, 16]), settings["max_num_seqs"])
        most = min(row, settings["long_prefill_token_threshold"] or row)
        most += settings["lookahead_slots"]
        least = 0
        for one in groups:
            positions, whole = (
                one.get("window", 0) + most - 2,
                -(-settings["max_model_len"] // size),
            )
            held = min(whole, -(-positions // size) + 1) if "window" in one else whole
            least += held * one.get("count", 1)
        return {
            "attention_groups": groups,
            "max_num_batched_tokens": row,
            "num_blocks": least + r.choice([0, r.randint(0, least), 3 * least]),
        }

    def _states(self) -> dict[str, Any]:
        """States of one to five blocks, in a pool that they may outgrow."""
        r, tight = Random(f"states {self.seed}"), self.loading or self.remote
        room = 0 if tight else r.choice([0, 0, 4, 40])
        return {
            "state_blocks": r.choice([1, 1, 2, 5]),
            "snapshots": r.choice(["auto", "auto", "auto", "block", "last", "none"]),
            "num_blocks": self.settings["num_blocks"] + room,
            "num_speculative_tokens": Random(f"drafts {self.seed}").choice([0, 0, 1, 4]),
            "lookahead_slots": 0,
        }

    def _with_images(self, request: Request) -> Request:
        """Maybe with images, mostly in the places where others have them."""
        if not self.pictured or self.picturing.random() < 0.2:
            return request
        layout = Random(f"layout {self.seed} {self.picturing.choice([1, 1, 2, 3])}")
        lengths = {"cat": 1, "dog": 2, "cow": 3, "owl": 4, "bee": 9}
        if self.settings["encoder_cache_size"] < lengths["bee"] and layout.random() < 0.9:
            del lengths["bee"]  # it would be refused
        images: list[ImageInput] = []
        position = layout.randint(0, 2)
        while position < len(request.prompt):
            name = layout.choice(list(lengths))
            image = ImageInput(name, position, lengths[name])
            if image.end <= len(request.prompt):
                images.append(image)
            position = image.end + layout.choice([0, 0, 1, 3, 6])
        return replace(request, images=tuple(images))

    def _invent_requests(self) -> None:
        r, length = self.random, self.settings["max_model_len"]
        shared = [r.randrange(self.vocab) for _ in range(length // 2)]
        beginnings, others = [shared], ["pepper", "lora"]
        tiered = self.loading or self.remote
        if tiered:
            others = ["", ""]
            beginnings += [[self.host.randrange(self.vocab) for _ in shared] for _ in range(3)]
        sequence_groups = 0.0 if self.plain else self.more.choice([0.0, 0.3, 0.8])
        for number in range(r.randint(1, 24) + (16 if tiered else 0)):
            kept = r.randint(0, len(shared))
            if tiered:
                kept = self.host.choice([kept, len(shared)])
            prompt = self.host.choice(beginnings)[:kept]
            prompt += [r.randrange(self.vocab) for _ in range(r.randint(0 if prompt else 1, 12))]
            prompt = prompt[: length - 1]
            most = r.randint(1, length - len(prompt)) if r.random() < 0.9 else None
            self.to_come.append(
                Request(
                    id=f"r{number}",
                    prompt=prompt,  # pyright: ignore[reportArgumentType]
                    max_tokens=most,
                    min_tokens=r.randint(0, most) if most and r.random() < 0.3 else 0,
                    ignore_eos=r.random() < 0.3,
                    eos_token_ids=(2,) if r.random() < 0.5 else (),
                    stop_token_ids=(r.randrange(self.vocab),) if r.random() < 0.2 else (),
                    seed=r.choice([None, 5]),
                    priority=r.randint(0, 3),
                    tenant=r.choice(["", "t1", "t2"]),
                    session=Random(f"session {self.seed} {number}").choice(["", "s1", "s2"]),
                    deadline=r.choice([None, 2.0, 50.0]),
                    token_deadline=r.choice([None, 1.0]),
                    cache_salt=r.choice(["", "", "", others[0]]),
                    adapter=r.choice(["", "", "", others[1]]),
                    drafts=r.choice([None, None, 0, 2])
                    if self.settings["num_speculative_tokens"]
                    else None,
                    **(self._family() if self.more.random() < sequence_groups else {}),
                )
            )

    def _shaped(self, request: Request) -> Request:
        """Maybe with one of several adapters, and pooled or constrained where any are."""
        request = self._with_body(request)
        if self.adapted and self.adapting.random() < 0.7:
            request = replace(request, adapter=self.adapting.choice("xyz"))
        if self.pooled and request.width == 1 and self.embedding.random() < 0.6:
            kind = self.embedding.choice(POOLING_KINDS)
            reads = kind == LAST and self.embedding.random() < 0.7
            return replace(request, pooling=kind, reads_cache=reads, max_tokens=1, min_tokens=0)
        if not self.constrained or self.shaping.random() < 0.4:
            return request
        constraint = Constraint.regex(self.shaping.choice(PATTERNS + LONG_PATTERNS))
        if self.vocab >= len(CHARACTERS) and self.writing.random() < 0.7:
            constraint = document(self.writing.randrange(SCHEMAS))
        if self.shaping.random() < 0.3:  # behind some text, which may have a beginning
            constraint = constraint.after_reasoning(self.shaping.choice(["", "1"]), "01")
            self.seen["reasoning"] += 1
        if self.shaping.random() < 0.2:  # then each of its tokens is sampled
            sampling = replace(request.sampling, logprob_token_ids=(0, 1))
            request = replace(request, sampling=sampling)
        return replace(request, constraint=constraint, eos_token_ids=(END,))

    def _family(self) -> dict[str, Any]:
        """Parallel samples, the best of several, or beams."""
        r = self.more
        n = r.randint(1, 3)
        kind = r.choice(["n", "best_of", "beams"])
        if kind == "n":
            return {"n": n + 1}
        if kind == "best_of":
            return {"n": n, "best_of": n + r.randint(0, 2)}
        return {
            "n": n,
            "beam_width": max(2, n + r.randint(0, 2)),
            "length_penalty": r.choice([1.0, 0.0, -0.5, 2.0]),
            "early_stopping": r.choice([True, False, "never"]),
        }

    @property
    def pool(self) -> TightPool:
        pool = self.scheduler.state.cache.pool
        assert isinstance(pool, TightPool)
        return pool

    # -- the script ---------------------------------------------------------

    def run(self) -> "Drive":
        """Turn until everything has ended; every turn may hold some trouble."""
        trouble_until = self.random.randint(20, 200)
        for turn in range(MOST_TURNS):
            if turn == trouble_until:
                self.calm_down()
            if self.chaos:
                self.trouble()
            if self.turn_and_check():
                break
        else:
            raise AssertionError(f"seed {self.seed}: no end in {MOST_TURNS} turns")
        self.judge()
        return self

    def turn_and_check(self) -> bool:
        """One turn of the loop; is everything at its end?"""
        self._turn()
        self.scheduler.check()
        return not self.to_come and not self.flight and self.scheduler.idle

    def _turn(self) -> None:
        r = self.random
        self.now += r.choice([0.0, 0.1, 1.0])
        while self.to_come and (r.random() < 0.4 or not self.chaos):
            self.submit(self._with_images(self._shaped(self.to_come.popleft())))
        if len(self.flight) < self.most_in_flight:
            self.plan()
            self._check_events()
        if self.flight and (len(self.flight) >= self.most_in_flight or r.random() < 0.4):
            self.deliver()
            self._check_events()

    def _check_events(self) -> None:
        """A consumer of the events knows exactly which keys are cached."""
        if self.settings["enable_kv_cache_events"]:
            events = self.scheduler.cache_events()
            slides = all(one.slides for one in self.runner.groups)  # then prefixes have holes
            self.replica.orphans = self.seen["failed rows"] > 0 or slides
            self.replica.apply(events)
            for event in events:
                self.seen[type(event).__name__] += 1
            assert self.replica.keys == self.pool.sealed_keys(), "the events are not the cache"
            if self.connector is not None:
                assert self.replica.elsewhere == self.connector.keys(), "they are not the tier"

    @property
    def most_in_flight(self) -> int:
        return min(self.depth, MASKED_DEPTH) if self.grammars.any_open else self.depth

    def _continued(self, request: Request) -> Request:
        """Maybe with what another engine generated, and with sequences that have ended there."""
        if not self.moved or self.moving.random() < 0.4:
            return request
        if request.silent or request.pooling:
            return replace(request, generated=((),) * request.width)
        wholes = [self._reference(request, child)[0] for child in range(request.width)]
        ended = self.moving.sample(range(request.width), self.moving.randint(0, request.width - 1))
        lengths = [self.moving.randrange(len(whole)) for whole in wholes]
        generated = [tuple(one[:most]) for one, most in zip(wholes, lengths, strict=True)]
        self.seen["continued"] += any(generated)
        self.seen["ended elsewhere"] += len(ended)
        kept = (None if child in ended else one for child, one in enumerate(generated))
        return replace(request, generated=tuple(kept))

    def _reference(self, request: Request, child: int) -> tuple[list[int], str]:
        seed = None if request.seed is None else request.seed + child
        length = self.settings["max_model_len"]
        own = replace(request, seed=seed, generated=())
        return reference(own, self.vocab, length, mask_of(own, self.vocab))

    def submit(self, request: Request) -> None:
        request = self._continued(request)
        parked = "grammar" if self.chaos and self.random.random() < 0.1 else ""
        try:
            self.scheduler.submit(request, self.now, parked)
        except RequestError:
            assert request.width > 1 or request.images, "a single sequence always fits"
            self.seen["refused"] += 1
            return
        self.requests[request.id] = request
        if request.constraint is not None:
            assert self.grammars.begin(request, lambda _: None)
            self.seen["constrained"] += 1
        for label in self._labels(request):
            self.got[label] = []
        for child, label in enumerate(self._labels(request)[-request.width :]):
            if child in request.open_children:
                self.got[label] += (request.generated or ((),) * request.width)[child] or ()
            else:
                self.got[label], self.ends[label] = self._reference(request, child)

    @staticmethod
    def _labels(request: Request) -> list[str]:
        """The request itself, and its children."""
        children = range(request.width) if request.width > 1 else ()
        return [request.id, *(child_label(request.id, child) for child in children)]

    def plan(self) -> None:
        self._run_held()
        scheduler = self.scheduler
        before = scheduler.snapshot()
        plan = scheduler.plan(self.now)
        told = plan.to_dict()
        assert sum(told["tokens"].values()) <= self.settings["max_num_batched_tokens"]
        self.seen["preempted"] += len(told["preempted"])
        self.seen["cached"] += sum(new.computed for new in plan.admitted)
        self.seen["drafts"] += sum(told["drafts"].values())
        for name in ("saves_before", "loads", "saves", "block_copies"):
            self.seen[name] += len(getattr(plan.states, name))
        self.seen["forked states"] += len(plan.states.copies)
        self.seen["swapped states"] += len(plan.states.swap_out)
        self.seen["returned states"] += len(plan.states.swap_in)
        for name in ("copies", "swap_out", "swap_in"):
            self.seen[name] += len(told[name])
        self.seen[plan.kind] += 1
        self.seen["left to others"] += SHARE_OF_SLOTS in before["parked"].values()
        self._count_hits(plan)
        self.grammars.follow(plan)
        self._count_adapters(plan)
        self._check_encoder(plan)
        assert not (plan.swap_out and plan.swap_in), "swapped in and out in one step"
        self._assert_kind(plan)
        if self.poisoned or self._breaks(plan):
            self.poisoned = True
            self.runner.lose(plan)
            result = None
        elif self.flight and self.grammars.wants(plan):
            self._assert_nothing_doubtful_is_found(plan)
            self.held, result = plan, None
            self.seen["held"] += 1
        else:
            result = self._result(plan)
            self._assert_nothing_doubtful_is_found(plan)
        if not plan.empty:
            self.flight.append((plan, result))
            return
        self._take(scheduler.commit(plan, StepResult.of(plan, {}), self.now))
        if not self.flight:
            self._assert_not_stuck(before, told)

    def _run_held(self) -> None:
        plan, self.held = self.held, None
        if plan is not None:
            assert len(self.flight) == 1, "its masks are of tokens that are not committed"
            self.flight[0] = plan, self._result(plan)

    def _result(self, plan: Plan) -> StepResult:
        if self.chaos and self.spoiling and len(plan.rows) and self.latest.random() < 0.1:
            self.spoil(self.latest.choice(plan.rows.labels))
        return self._with_fewer_drafts(plan, self.runner.run(plan))

    def _check_encoder(self, plan: Plan) -> None:
        """A step encodes no more than it may, and each content once."""
        if not self.pictured:
            assert not plan.encode
            return
        rows = [row for one in plan.encode for row in one.rows.tolist()]
        identities = [one.identity for one in plan.encode]
        assert len(rows) <= self.settings["max_num_encoder_input_tokens"]
        assert len(rows) == len(set(rows))
        assert all(row < self.settings["encoder_cache_size"] for row in rows)
        assert len(identities) == len(set(identities)), "a content is encoded twice in a step"
        self.seen["encoded"] += len(identities)
        why = self.scheduler.why().values()
        self.seen["encoder full"] += sum("encoder cache" in one for one in why)
        if self.settings["disable_chunked_mm_input"]:
            self._assert_whole_images(plan)

    def _assert_whole_images(self, plan: Plan) -> None:
        """Only a row that computes all that it may ends inside of an image."""
        table = self.scheduler.state.table
        rows = plan.rows.slot.tolist(), plan.start.tolist(), plan.rows.count.tolist()
        for slot, start, count in zip(*rows, strict=True):
            for image in table.sequence(slot).request.images:
                inside = image.offset < start + count < image.end
                cap = min(int(table.ceiling[slot]), int(table.known[slot]))
                assert not inside or start + count == cap, f"{image} is split at {start + count}"

    def _breaks(self, plan: Plan) -> bool:
        """Does the device fail in this step?"""
        if not self.chaos or plan.empty:
            return False
        loads = self.loading and bool(plan.swap_in) and self.host.random() < 0.2
        return self.random.random() < 0.02 or loads

    def _count_hits(self, plan: Plan) -> None:
        """What requests found when they were admitted, and what was loaded for that."""
        if not plan.admitted:
            assert not plan.swap_in
            return
        lives = [self.scheduler.view.life(one) for one in self.scheduler.view.live_ids()]
        now = [one for life in lives for one in life if one.step == plan.step]
        amounts = Counter[Happened]()
        for moment in now:
            amounts[moment.happened] += moment.amount
        states = sum(len(blocks) for _, blocks in plan.states.swap_in)
        loads = len(plan.swap_in) + states - amounts[Happened.RETURNED]
        assert amounts[Happened.LOADED] == loads * self.settings["block_size"], "loads not noted"
        self.found += amounts[Happened.ADMITTED] + amounts[Happened.RESUMED]
        self.loaded += amounts[Happened.LOADED]

    def _count_adapters(self, plan: Plan) -> None:
        used = {self.requests[name].adapter for name in plan.rows.request_id.tolist()} - {""}
        most = self.settings["max_loras"]
        assert not most or len(used) <= most, f"{used} in one step"
        self.seen["several adapters"] += len(used) > 1
        self.seen["passed over"] += ADAPTER_SLOT in "".join(self.scheduler.why().values())

    def _with_fewer_drafts(self, plan: Plan, result: StepResult) -> StepResult:
        """As if the proposer had nothing for some of the drafts that were wrong."""
        if not plan.rows.drafts.any() or self.drafting.random() < 0.5:
            return result
        right, planned = np.maximum(result.count - 1, 0), plan.rows.drafts
        fewer = [*map(self.drafting.randint, right.tolist(), planned.tolist())]
        self.seen["fewer drafts"] += int(planned.sum()) - sum(fewer)
        return replace(result, computed_drafts=np.array(fewer, np.int32))

    def spoil(self, label: str) -> None:
        """The next row of a sequence comes to nothing."""
        self.runner.spoiled.add(label)

    def _assert_nothing_doubtful_is_found(self, plan: Plan) -> None:
        """Nobody is admitted on blocks of a row that is known to have failed, unless this step
        writes them anew."""
        size = self.runner.block_size
        written = self._written(plan) if self.condemned else set[int]()
        for new in plan.admitted if self.condemned else ():
            groups = [one[: new.computed // size] for one in (new.blocks, *new.more)]
            found_blocks = {block for one in groups for block in one} - {NO_BLOCK}
            for block in found_blocks - written:
                spoil = self.runner.spoil_in(block)
                since = spoil and self.condemned.get((spoil.slot, spoil.epoch))
                found = spoil is not None and since is not None and spoil.step >= since
                assert not found, f"{new.request.id} begins on {spoil}, which is known to be bad"

    def _written(self, plan: Plan) -> set[int]:
        """Blocks that the rows of a plan write."""
        tables, size = self.scheduler.state.cache.tables, self.runner.block_size
        rows = plan.rows.slot.tolist(), plan.start.tolist(), plan.rows.count.tolist()
        return {
            block
            for slot, start, count in zip(*rows, strict=True)
            for block in tables.blocks(slot, start // size, (start + count - 1) // size + 1)
        }

    def _condemn(self, plan: Plan, result: StepResult) -> None:
        """From now on nothing may be found that rows which failed have written; of those that
        are gone, since that step."""
        alive = self.scheduler.state.table.alive(plan.rows)
        for one in result.failed:
            self.seen["failed rows"] += 1
            residence = int(plan.rows.slot[one.row]), int(plan.rows.epoch[one.row])
            self.condemned.setdefault(residence, 0 if alive[one.row] else plan.step)

    def _commit(self, plan: Plan, result: StepResult) -> None:
        accepted = self.grammars.accept(plan, result, self.scheduler.view.ahead(plan.rows))
        assert accepted.failed == result.failed, "a grammar rejected a token"
        result = accepted
        for one in result.forced:
            self.seen["forced"] += len(one.tokens)
            constraint = self.requests[plan.rows.request_id[one.row]].constraint
            assert constraint is not None
            self.seen[f"forced in {constraint.kind}"] += len(one.tokens)
        self._condemn(plan, result)
        for span in result.pooled:
            self.means.setdefault(span.request_id, PooledMean()).add(span)
        outputs = self.scheduler.commit(plan, result, self.now)
        failed = {plan.rows.request_id[one.row] for one in result.failed}
        errors = [one for one in outputs.finished if one.finish is Finish.ERROR]
        ended = {one.request_id for one in errors if NOT_LOADED not in one.message}
        self.seen["not loaded"] += len(errors) - len(ended)
        assert ended <= failed, f"{ended - failed} ended with the errors of others"
        self._take(outputs)

    def _assert_kind(self, plan: Plan) -> None:
        """A step of the prefill-first discipline is all prefill or all decode."""
        if not len(plan.rows):
            return
        if self.settings.get("discipline", "unified") == "unified":
            assert plan.kind == "mixed"
        elif plan.kind == "decode":
            assert (plan.rows.count - plan.rows.drafts == 1).all()
        else:
            assert plan.kind == "prefill"
            assert not plan.rows.drafts.any()
            new = {one.slot for one in plan.admitted}
            long = (plan.rows.count > 1) | ~plan.rows.samples  # or cut before an image
            assert all(
                slot in new or is_long
                for slot, is_long in zip(plan.rows.slot.tolist(), long.tolist(), strict=True)
            ), "someone decodes in a prefill step"

    def _assert_not_stuck(self, before: dict[str, Any], told: dict[str, Any]) -> None:
        """Nothing was planned and nothing is in flight: there must be a good reason."""
        excused = self.scheduler._planner.paused or self.pool.withheld or told["preempted"]  # pyright: ignore[reportPrivateUsage]
        here = {*before["waiting"], *before["running"], *before["swapped"]}
        ended = set(told["finished"]) >= set(before["waiting"]) | set(before["swapped"])
        if self.connector is not None:
            excused = excused or self.connector.underway or self.connector.asked_later
        assert excused or ended or not here, "stuck"

    def deliver(self) -> None:
        if len(self.flight) == 1:
            self._run_held()
        plan, result = self.flight.popleft()
        self.runner.settle(plan.step)
        if result is not None:
            if self.chaos and self.random.random() < 0.02:
                self.seen["retried"] += 1
                self.scheduler.retry(plan, self.now)
                self.runner.reading.clear()  # all steps in flight are void
            else:
                self._commit(plan, result)
            return
        self._give_up(plan)
        while self.flight:  # a device that failed is started anew, with nothing in flight
            later, result = self.flight.popleft()
            if result is None:
                self._give_up(later)
            else:
                self._commit(later, result)
        self.poisoned = False

    def _give_up(self, plan: Plan) -> None:
        self.runner.reading.clear()
        if self.random.random() < 0.5:
            self.seen["retried"] += 1
            self.scheduler.retry(plan, self.now)
        else:
            self.seen["failed"] += 1
            self._take(self.scheduler.fail(plan, self.now))

    def _take(self, outputs: Outputs) -> None:
        for request_id, told in outputs.to_dict().items():
            assert request_id not in self.ends, f"{request_id} got something after its end"
            self.got[request_id] += told["tokens"]
            if told["finish"]:
                self.ends[request_id] = told["finish"]
                self.grammars.forget(request_id)
            if "choices" in told:
                self.choices[request_id] = told["choices"]

    # -- trouble ------------------------------------------------------------

    def trouble(self) -> None:
        r, scheduler, pool = self.random, self.scheduler, self.pool
        if r.random() < 0.06 and self.requests:
            self.abort(r.choice(list(self.requests)))
        if self.loading and self.host.random() < 0.3:  # their copies may be in flight
            for request_id in scheduler.snapshot()["swapped"]:
                self.abort(request_id)
        for request_id in self.connector.unlucky() if self.connector is not None else ():
            self.abort(request_id)
        if self.latest.random() < 0.1 and self.requests and not self.plain:
            self.abort_child(self.latest.choice(list(self.requests)), self.latest.randint(0, 3))
        if r.random() < 0.05 and self.requests:
            scheduler.park(
                r.choice(list(self.requests)), r.choice(["grammar", "remote_kv", "x"]), self.now
            )
        if r.random() < 0.2:
            for request_id in scheduler.snapshot()["parked"]:
                scheduler.wake(request_id, self.now)
        if r.random() < 0.1:
            pool.withheld = r.choice([0, 0, 1, 3, pool.size])
        if r.random() < 0.03:
            self.now += r.choice([-100.0, 50.0, -1.0])
        if r.random() < 0.05:
            r.choice([scheduler.resume, scheduler.pause, lambda: scheduler.pause("all")])()
        if r.random() < 0.02:
            scheduler.reset_prefix_cache(reset_running_requests=r.random() < 0.5, now=self.now)
        if self.more.random() < 0.02:
            scheduler.measure(Rates(self.more.choice([1.0, 1e6]), self.more.choice([1.0, 100.0])))
        if r.random() < 0.05 and self.requests:
            scheduler.state.live and scheduler.explain(next(iter(scheduler.state.live)))

    def abort(self, request_id: str) -> None:
        before = request_id in self.scheduler.state.live
        if before and self.connector is not None:
            self.seen["aborted loads"] += request_id in self.connector.loading
        assert self.scheduler.abort(request_id, self.now) == before
        assert not self.scheduler.abort(request_id, self.now)
        if before:
            assert request_id not in self.ends
            self.ends[request_id] = "abort"
            self.grammars.forget(request_id)

    def abort_child(self, request_id: str, child: int) -> None:
        request, label = self.requests[request_id], child_label(request_id, child)
        here = request_id in self.scheduler.state.live
        if here and request.silent:
            with pytest.raises(RequestError, match="alone"):
                self.scheduler.abort(request_id, self.now, child)
            return
        before = here and 1 < request.width > child and label not in self.ends
        assert self.scheduler.abort(request_id, self.now, child) == before
        assert not self.scheduler.abort(request_id, self.now, child)
        if before:
            self.seen["ended alone"] += 1
            self.ends[label] = "abort"
            rest = [one for one in self._labels(request)[1:] if one not in self.ends]
            assert (request_id in self.scheduler.state.live) == bool(rest)

    def calm_down(self) -> None:
        """No more trouble: from here on everything must come to its end."""
        self.chaos = False
        self.pool.withheld = 0
        self.scheduler.resume()
        for request_id in self.scheduler.snapshot()["parked"]:
            self.scheduler.wake(request_id, self.now)

    # -- judgement ----------------------------------------------------------

    def _end_transfers(self) -> None:
        """Let the connector end what is under way."""
        for _ in range(MOST_TURNS):
            if self.connector is None or not self.connector.underway:
                return
            self.scheduler.plan(self.now)
        raise AssertionError("a transfer does not end")

    def judge(self) -> None:
        self._end_transfers()
        last = self.scheduler.plan(self.now)  # nobody is left, but some ends may be untold
        self._take(self.scheduler.commit(last, StepResult.of(last, {}), self.now))
        self._end_transfers()  # of states that the last step kept
        pool, length = self.pool, self.settings["max_model_len"]
        pool.withheld = 0
        assert pool.free == pool.size, "blocks are held after the end"
        host = self.scheduler.state.cache.host
        assert host.free == host.size, "host blocks are held after the end"
        assert not self.scheduler.state.images.cache.held, "embeddings are held after the end"
        for request in self.requests.values():
            if request.width > 1:
                self._judge_family(request, length)
            else:
                self._judge_one(request, 0, request.id)
        stats = self.scheduler.stats
        on_device = stats.prefix_hits + stats.resumed_hits
        assert on_device + stats.external_hits == self.found, "miscounted"
        assert self.remote or stats.external_hits == self.loaded, "miscounted"
        self._check_events()
        self.seen["stale"] = stats.stale_rows
        self.seen["remote hits" if self.remote else "host hits"] = stats.external_hits
        self.seen["encoder hits"] = stats.encoder_hits

    def _judge_one(self, request: Request, child: int, label: str) -> None:
        tokens, finish = self._reference(request, child)
        got, end = self.got[label], self.ends[label]
        if end in ("abort", "error", "timeout"):
            assert got == tokens[: len(got)], f"{label}: {got} is not {tokens}"
        else:
            assert (got, end) == (tokens, finish), f"{label}: {got} {end}, not {tokens} {finish}"
        if request.pooling and end not in ("abort", "error", "timeout"):
            self._judge_embedding(request)

    def _judge_embedding(self, request: Request) -> None:
        self.seen[request.pooling] += 1
        states = [hidden_state(token, place) for place, token in enumerate(request.prompt.tolist())]
        due = {LAST: states[-1], CLS: states[0], MEAN: sum(states) / len(states)}
        found = self.means[request.id].value()
        assert found is not None
        assert found[0] == np.float32(due[request.pooling]), request.id

    def _judge_family(self, request: Request, length: int) -> None:
        end, labels = self.ends[request.id], self._labels(request)[1:]
        assert not self.got[request.id]
        if not request.silent:
            for child, label in enumerate(labels):
                if end == "abort":
                    self.ends.setdefault(label, "abort")
                self._judge_one(request, child, label)
            return
        assert not any(self.got[label] for label in labels), "told before the end"
        if end in ("abort", "error", "timeout"):
            return
        self.seen["beams" if request.beam_width else "best_of"] += 1
        if request.beam_width:
            found = beam_search(request, self.vocab, length, mask_of(request, self.vocab))
            expected = [list(one.tokens) for one in found]
            assert end == found[0].finish.value
        else:
            mask = mask_of(request, self.vocab)
            expected = best_of(request, self.vocab, length, mask)
        assert self.choices[request.id] == expected, f"{request.id}: {self.choices[request.id]}"


def drive(seed: int, **kinds: bool) -> Counter[str]:
    """Run the schedule of a seed, with the kinds of requests that `Drive` has switches for."""
    try:
        return Drive(seed, **kinds).run().seen
    except AssertionError as error:
        error.add_note(f"schedule with seed {seed}")
        raise
