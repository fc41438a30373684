"""The loop that plays, and the players: every episode depends on its seed and nobody else."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rollmill.envs.config import EnvConfig
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.make import make_group
from rollmill.play.players import CHUNK, ConstantPlayer, EpisodeDraws, RandomPlayer
from rollmill.play.playing import Episode, play_episodes
from rollmill.seeding import generator
from rollmill_envs.probe.tracer import Tracer, decode, plan

SEVEN = np.array([7.0], np.float32)


class Notebook:
    """A listener that writes everything down."""

    def __init__(self):
        self.begun, self.seen, self.ended = [], [], []

    def begin(self, k, episode, group):
        self.begun.append((k, episode.number))
        self.seen.append(decode(group.obs[k]))

    def step(self, k, group, action, result):
        self.seen.append(decode(group.obs[k]))

    def end(self, k, played):
        self.ended.append(played)


def tracers(size):
    return make_group(EnvConfig(id="probe/tracer", group_size=size))


def test_every_row_plays_its_episodes_in_turn_to_their_true_end():
    rows = [[Episode(0, 11), Episode(2, 13)], [Episode(1, 12)], []]
    notebook = Notebook()
    played = list(play_episodes(tracers(3), ConstantPlayer(SEVEN, 3), rows, notebook))
    assert sorted(one.episode.number for one in played) == [0, 1, 2]
    for one in played:
        length, truncates = plan(one.episode.seed)
        # the reward of step t is 64 · 7 + t
        assert (one.length, one.total) == (length, 64 * 7 * length + length * (length + 1) / 2)
        assert (one.terminated, one.truncated) == (not truncates, truncates)
    assert sorted(notebook.begun) == [(0, 0), (0, 2), (1, 1)]
    for seed in (11, 12, 13):  # the first observation, then one per step, the final one included
        assert [trace.step for trace in notebook.seen if trace.seed == seed] == list(range(plan(seed)[0] + 1))


def test_no_episode_is_begun_when_that_is_not_allowed_but_those_that_run_are_finished():
    rows = [[Episode(k, 20 + k), Episode(k + 2, 30 + k)] for k in range(2)]
    played = list(play_episodes(tracers(2), ConstantPlayer(SEVEN, 2), rows, None, lambda: False))
    assert sorted(one.episode.number for one in played) == [0, 1]


def test_what_runs_is_left_when_it_may_not_go_on():
    calls = iter([True] * 2 + [False] * 99)
    seeds = [seed for seed in range(100) if plan(seed)[0] > 5][:2]
    rows = [[Episode(k, seed)] for k, seed in enumerate(seeds)]
    assert not list(play_episodes(tracers(2), ConstantPlayer(SEVEN, 2), rows, None, may_continue=lambda: next(calls)))


class BreaksWithSeedTwelve(Tracer):
    def step(self, action):
        if self._trace.seed == 12:
            raise RuntimeError("no twelve here")
        return super().step(action)


def test_a_failing_environment_is_told_and_costs_nobody_else_anything():
    group = GymGroup("breaking", BreaksWithSeedTwelve, 2)
    rows = [[Episode(0, 12), Episode(2, 13)], [Episode(1, 11)]]
    notebook = Notebook()
    played = {one.episode.number: one for one in play_episodes(group, ConstantPlayer(SEVEN, 2), rows, notebook)}
    assert "no twelve here" in played[0].failure
    assert not played[1].failure
    assert played[1].length == plan(11)[0]
    assert 2 not in played, "a row that failed for good plays on only in another unit"
    assert len(notebook.ended) == 2


def test_random_actions_belong_to_the_episode_and_not_to_the_row():
    space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    one, three = RandomPlayer(space, 1, seed=5), RandomPlayer(space, 3, seed=6)
    one.begin(0, 99)
    three.begin(2, 99)
    group = None  # chance doesn't look
    first = np.array([True]), np.array([True, False, True])
    later = np.zeros(1, bool), np.zeros(3, bool)
    for t in range(2 * CHUNK + 3):
        reset = first if t == 0 else later
        assert np.array_equal(one(group, reset[0])[0], three(group, reset[1])[2])


def test_draws_without_a_told_seed_differ_between_rows_and_episodes():
    draws = EpisodeDraws(lambda rng, steps: rng.random(steps), 2, seed=1)
    everyone = np.ones(2, bool)
    numbers = [draws.take(everyone).copy() for _ in range(3)]  # three episodes of one step
    assert len({float(number) for pair in numbers for number in pair}) == 6


def test_a_chunk_is_drawn_from_the_generator_of_the_episode():
    draws = EpisodeDraws(lambda rng, steps: rng.random(steps), 1, seed=1)
    draws.begin(0, 77)
    taken = [float(draws.take(np.array([t == 0]))[0]) for t in range(CHUNK + 2)]
    rng = generator(77, "player")
    assert taken == [*rng.random(CHUNK), *rng.random(CHUNK)[:2]]
    assert taken[1] != pytest.approx(taken[0])
