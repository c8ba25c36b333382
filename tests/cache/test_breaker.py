"""When a server is left alone, by a clock of the test's own."""

from __future__ import annotations

from cuplate.cache.breaker import FIRST_S, MOST_S, Breaker


def opened(at: float = 0.0) -> Breaker:
    """One that has just failed."""
    breaker = Breaker()
    turn = breaker.ask(at)
    assert turn is not None and breaker.fail(turn, at) == FIRST_S
    return breaker


def test_one_failure_opens_it_for_half_a_minute() -> None:
    """And not for longer."""
    breaker = opened()
    assert breaker.ask(FIRST_S - 0.001) is None and breaker.left_s(10.0) == FIRST_S - 10.0
    assert breaker.ask(FIRST_S) is not None


def test_the_rest_doubles_up_to_ten_minutes() -> None:
    """With every probe that fails."""
    breaker, now, rests = opened(), 0.0, []
    for _ in range(7):
        now += breaker.left_s(now)
        turn = breaker.ask(now)
        assert turn is not None
        rests.append(breaker.fail(turn, now))
    assert rests == [60.0, 120.0, 240.0, 480.0, MOST_S, MOST_S, MOST_S]


def test_a_probe_that_works_closes_it() -> None:
    """The next failure is a first one again."""
    breaker = opened()
    turn = breaker.ask(FIRST_S)
    assert turn is not None
    breaker.well(turn)
    assert breaker.left_s(FIRST_S) == 0.0
    turn = breaker.ask(FIRST_S)
    assert turn is not None and breaker.fail(turn, FIRST_S) == FIRST_S


def test_one_probes_and_the_others_are_refused() -> None:
    """Until it has ended; if it never does, until another rest is over."""
    breaker = opened()
    probe = breaker.ask(FIRST_S)
    assert probe is not None
    assert [breaker.ask(FIRST_S + s) for s in (0.0, 1.0, FIRST_S - 0.001)] == [None] * 3
    assert breaker.ask(2 * FIRST_S) not in (None, probe)


def test_who_asked_before_the_last_change_says_nothing_new() -> None:
    """64 threads that all wait for a frozen server make one rest, and a late answer ends none."""
    breaker = Breaker()
    turns = [breaker.ask(0.0) for _ in range(64)]
    assert [breaker.fail(turn, 0.2) for turn in turns if turn is not None] == [FIRST_S] + [None] * 63
    breaker.well(turns[0] or 0)
    assert breaker.ask(1.0) is None
