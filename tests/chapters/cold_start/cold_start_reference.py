"""Small random profiles, and every schedule of one, tried out: independent of the planners' formulas."""

from collections.abc import Iterator
from itertools import permutations, product

from hypothesis import strategies as st

from edgeplan.planning.profile import Candidate, Contention, Fresh, Layer, Profile

# Times are whole quarters, so that sums are exact and ties happen.
_times = st.integers(0, 40).map(lambda n: n / 4)
_factors = st.sampled_from([1.0, 1.25, 1.5])
_fresh_factors = st.sampled_from([0.5, 1.0, 1.25, 1.5])  # a fresh process may be faster at a stage too


@st.composite
def profiles(draw: st.DrawFn, steps: int = 3, candidates: int = 2, equal: bool | None = None) -> Profile:
    equal = draw(st.booleans()) if equal is None else equal
    big = draw(st.integers(2, 3)) if equal else draw(st.integers(1, 2))
    widths = sorted({1, big})

    def candidate(i: int) -> Candidate:
        times = [{"big": draw(_times)} | ({"little": draw(_times)} if draw(st.booleans()) else {}) for _ in range(3)]
        executions = {w: draw(_times) for w in widths}
        return Candidate(f"k{i}", "raw" if i % 2 == 0 else "cached_read", *times, executions, 4 * i, 3 * i, 2 * i)

    layers = tuple(
        Layer(f"s{k}", (f"n{k}",), tuple(candidate(i) for i in range(draw(st.integers(1, candidates)))))
        for k in range(draw(st.integers(1, steps)))
    )
    contention = Contention(*(draw(_factors) for _ in range(7)))
    fresh = Fresh(*(draw(_fresh_factors) for _ in range(6)), hand_over_ms=draw(_times))
    little = 0 if equal else draw(st.integers(1, 2))
    ratio = 1.0 if equal else draw(st.sampled_from([1.0, 2.0]))
    return Profile("m", "nhwc", big, little, ratio, layers, contention, fresh=fresh)


def optimum_ms(profile: Profile) -> float:
    """The least makespan over all choices, places, widenings, orders on every queue and interleavings on the main core."""
    n = len(profile.layers)
    widenings = range(n + 1) if profile.equal else (n,)
    queues = profile.big_cores - 1 if profile.equal else profile.little_cores
    choices = product(*(layer.candidates for layer in profile.layers))
    return min(
        _finish(profile, choice, w, orders, main)
        for choice in choices
        for place in product(range(-1, queues), repeat=n)
        for orders in product(*(permutations([k for k in range(n) if place[k] == q]) for q in range(queues)))
        for w in widenings
        for main in _interleavings([k for k in range(n) if place[k] == -1], 0, n, w)
    )


def _interleavings(own: list[int], execute: int, n: int, w: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Every order of the main core's preparations and executions in which each execution may come when it does."""
    if execute == n and not own:
        yield ()
    for k in own:
        for rest in _interleavings([other for other in own if other != k], execute, n, w):
            yield (("prepare", k), *rest)
    if execute < n and execute not in own and not (own and execute >= w):
        for rest in _interleavings(own, execute + 1, n, w):
            yield (("execute", execute), *rest)


def _finish(
    profile: Profile,
    choice: tuple[Candidate, ...],
    w: int,
    orders: tuple[tuple[int, ...], ...],
    main: tuple[tuple[str, int], ...],
) -> float:
    n = len(choice)
    alone = not any(orders) and w == (0 if profile.equal else n)
    c, f = Contention() if alone else profile.contention, profile.fresh
    handed_ms = 0.0 if alone else f.hand_over_ms

    def prepare(k: int, little: bool, on_main: bool) -> float:
        read, create, transform = (
            t["little"] if little and "little" in t else t["big"]
            for t in (choice[k].read_ms, choice[k].create_ms, choice[k].transform_ms)
        )
        read *= f.map if choice[k].source == "cached_mmap" else f.read
        create, transform = create * f.create, transform * f.transform
        raw = choice[k].source == "raw"
        if on_main:
            return (read + create + transform) * (c.raw_main if raw else c.main)
        reading, making = (c.raw_read, c.raw_prepare) if raw else (c.read, c.prepare)
        return (read * reading + (create + transform) * making) * (profile.little_ratio if little else 1.0)

    ready = dict.fromkeys(range(n), 0.0)
    ends = [0.0]
    for order in orders:
        now = 0.0
        for k in order:
            now = ready[k] = now + prepare(k, not profile.equal, on_main=False)
        ends.append(now)
    now = 0.0
    for what, k in main:
        if what == "prepare":
            now += prepare(k, little=False, on_main=True)
        elif profile.equal and k >= w:
            now = max(now, *ends) + choice[k].execute_ms[profile.big_cores] * f.wide
        else:
            width = 1 if profile.equal else profile.big_cores
            now = max(now, ready[k]) + choice[k].execute_ms[width] * f.execute * c.execute + handed_ms
    return now
