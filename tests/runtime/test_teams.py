"""What is decided about workers that fail, by hand arithmetic: no process, no clock."""

from __future__ import annotations

from rollmill.runtime.teams import Fault, GiveUp, Kill, Replaced, Team, TeamStep

RESTARTS = 3
FROM_OUTSIDE = Fault("a", "a", "killed by SIGKILL", is_from_outside=True)
BY_ITSELF = Fault("a", "actor.0", "ValueError: no", "its traceback")


def running(*places: str) -> Team:
    """A team whose workers are ready."""
    team = Team(places, frozenset(), (0, 1))
    team.start()
    for place in places:
        team.ready(place, 0.0)
    assert team.decide(0.0, 0, RESTARTS) is None
    return team


def lose_all(team: Team, fault: Fault, now: float) -> None:
    team.blame(fault, now)
    team.living.clear()


def test_the_rest_of_the_team_is_killed_at_once_and_the_failed_worker_after_its_grace():
    team = running("a", "b", "c")
    team.blame(BY_ITSELF, 10.0)
    assert team.decide(10.0, 0, RESTARTS) == Kill(("b", "c"))
    assert team.decide(10.5, 0, RESTARTS) is None
    team.living.discard("b")
    assert team.decide(11.0, 0, RESTARTS) == Kill(("a", "c"))  # 10 + 1 s of grace; c does not go, so again
    team.living.clear()
    assert team.has_to_recover
    assert team.decide(11.1, 0, RESTARTS) is TeamStep.RECOVER
    assert not team.has_to_recover
    assert team.decide(11.1, 0, RESTARTS) is TeamStep.START, "the first replacement waits for nothing"


def test_a_hung_worker_has_no_grace():
    team = running("a")
    team.blame(Fault("a", "a", "hung in step()", grace=0.0), 10.0)
    assert team.decide(10.0, 0, RESTARTS) == Kill(("a",))


def test_only_the_first_fault_is_reported_and_when_all_are_ready_again():
    team = running("a", "b")
    lose_all(team, BY_ITSELF, 10.0)
    team.blame(FROM_OUTSIDE, 10.1)
    assert team.decide(10.2, 5, RESTARTS) is TeamStep.RECOVER
    team.start()
    team.ready("b", 0.2)
    assert team.decide(11.0, 5, RESTARTS) is None
    team.ready("a", 0.1)
    assert team.decide(12.5, 5, RESTARTS) == Replaced(BY_ITSELF, 2.5, 1)
    assert team.replay_seconds == 0.2
    assert team.decide(12.6, 5, RESTARTS) is None, "once"


def test_replacements_in_a_row_wait_twice_as_long_each_time_until_there_were_too_many():
    team, delays = running("a"), []
    for attempt in range(RESTARTS):
        now = 100.0 * (attempt + 1)
        lose_all(team, Fault("a", "a", f"fault {attempt}"), now)
        assert team.decide(now, 7, RESTARTS) is TeamStep.RECOVER
        assert team.start_at is not None
        delays.append(team.start_at - now)
        assert team.decide(team.start_at - 0.01, 7, RESTARTS) is None
        assert team.decide(team.start_at, 7, RESTARTS) is TeamStep.START
        team.start()
        team.ready("a", 0.0)
    assert delays == [0.0, 0.5, 1.0]
    lose_all(team, Fault("a", "a", "fault 3"), 900.0)
    given_up = team.decide(900.0, 7, RESTARTS)
    assert isinstance(given_up, GiveUp)
    assert given_up.fault.reason == "fault 0", "the first is the cause"
    assert "fault 0; replaced 3 times in a row" in given_up.message


def test_an_unroll_in_between_forgives():
    team = running("a")
    for unrolls in range(1, 10):
        lose_all(team, FROM_OUTSIDE, 10.0 * unrolls)
        assert team.decide(10.0 * unrolls, unrolls, RESTARTS) is TeamStep.RECOVER
        assert team.start_at == 10.0 * unrolls
        team.start()
        team.ready("a", 0.0)


def test_a_worker_that_never_ran_is_replaced_only_if_it_was_killed_from_outside():
    for fault, expected in [(BY_ITSELF, GiveUp(BY_ITSELF, "ValueError: no")), (FROM_OUTSIDE, TeamStep.RECOVER)]:
        team = Team(("a",), frozenset(), (0,))
        team.start()
        lose_all(team, fault, 1.0)
        assert team.decide(1.0, 0, RESTARTS) == expected


def test_silence_counts_while_others_continue_and_unrolls_are_waited_for():
    team = running("a")  # of actors 0 and 1; there are 3, so that 6 unrolls of others are continuing
    assert team.silence(10.0, (4, 4, 4), [0], 5.0) is None
    assert team.silence(16.0, (4, 4, 9), [0], 5.0) is None, "5 of others"
    assert team.silence(16.0, (4, 4, 10), [0], 5.0) == "made no unroll for 6 s while others did (runtime.stall_seconds)"
    assert team.silence(17.0, (4, 4, 10), [2], 5.0) is None, "no unroll of this team is waited for"
    assert team.silence(18.0, (4, 5, 20), [0], 5.0) is None, "one came"
