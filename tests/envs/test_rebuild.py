"""An environment that fails is rebuilt in the middle of its episode; one that keeps failing breaks its row."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rollmill.envs import instance
from rollmill.envs.group import EnvironmentFailed
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.preprocessing import StackedGroup
from rollmill.errors import SignalExit

SIZE = 3
EVERYONE = np.ones(SIZE, bool)


class Fragile(gym.Env):
    """A random walk steered by the actions; what is in the folder `faults` says how it goes wrong.

    A file "<row>-<call>-<step>" makes that call fail as its text says: "once" removes the file first.
    """

    action_space = gym.spaces.Discrete(3)

    def __init__(self, faults, row, made):
        self.observation_space = gym.spaces.Dict(
            {"place": gym.spaces.Box(-1e9, 1e9, (2,), np.float32), "step": gym.spaces.Discrete(1000)}
        )
        self.faults, self.row, self.made = faults, row, made
        self.count = 0
        self.closed = False
        made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.place = 0, np.zeros(2)
        nonsense = self.fail("reset", seed)
        return nonsense if nonsense is not None else (self.shown(), {})

    def step(self, action):
        self.count += 1
        self.place += self.np_random.normal(size=2) * (1 + action)
        nonsense = self.fail("step", self.count)
        if nonsense is not None:
            return nonsense
        return self.shown(), float(self.place[0]), self.count == 12, False, {}

    def shown(self):
        return {"place": self.place.astype(np.float32), "step": self.count}

    def fail(self, call, when):
        fault = self.faults / f"{self.row}-{call}-{when}"
        if not fault.exists():
            return None
        how, _, what = fault.read_text().partition(" ")
        if how == "once":
            fault.unlink()
        return eval(what, {"np": np, "env": self, "boom": boom, "SignalExit": SignalExit})

    def close(self):
        self.closed = True
        raise OSError("it doesn't even close")


def boom(error):
    raise error


BOOM = "boom(KeyError('lost'))"


class Fixture:
    """A group of fragile environments and everything that was ever made for it."""

    def __init__(self, faults, verify=False):
        self.faults = faults
        self.made = [[] for _ in range(SIZE)]
        rows = iter(range(SIZE))
        self.row_of_construct = None

        def construct():
            row = next(rows) if self.row_of_construct is None else self.row_of_construct
            return Fragile(faults, row, self.made[row])

        self.group = GymGroup("fragile", construct, SIZE, verify)
        self.row_of_construct = 1  # only row 1 is ever rebuilt here
        self.draw = np.random.default_rng(0)
        self.seeds = np.array([10, 20, 30])

    def plan(self, call, when, how, row=1):
        (self.faults / f"{row}-{call}-{when}").write_text(how)

    def heal(self):
        for fault in self.faults.iterdir():
            fault.unlink()

    def reset(self, *rows):
        mask = np.array(rows or [1] * SIZE, bool)
        self.group.reset(mask, self.seeds)
        return self.shown()

    def step(self, *rows):
        """What came of it in every row: observation, reward and flags."""
        action = self.draw.integers(3, size=SIZE)
        result = self.group.step(action, np.array(rows or [1] * SIZE, bool))
        return [(*shown, *(a[k].item() for a in result)) for k, shown in enumerate(self.shown())]

    def shown(self):
        obs = self.group.obs
        return [(obs["place"][k].tobytes(), obs["step"][k].item()) for k in range(SIZE)]


@pytest.fixture
def fragile(tmp_path):
    (tmp_path / "faults").mkdir()
    return Fixture(tmp_path / "faults")


@pytest.fixture
def sound(tmp_path):
    (tmp_path / "none").mkdir()
    return Fixture(tmp_path / "none")


NONSENSE = {
    "raises": (BOOM, r"env.id=fragile: environment 1 raised in step(): KeyError: 'lost'"),
    "four values": (
        "(0, 0, 0, 0)",
        "env.id=fragile: environment 1: step() gives 4 values, gymnasium's interface has 5",
    ),
    "shape": (
        "({'place': np.ones(3), 'step': 4}, 0.0, False, False, {})",
        "env.id=fragile: environment 1, step 5: the observation doesn't fit the space: "
        "its shape is (3,), the space says (2,)",
    ),
    "half an observation": (
        "({'place': np.array([7.0, 'x'], object), 'step': 4}, 0.0, False, False, {})",
        "env.id=fragile: environment 1, step 5: the observation doesn't fit the space: "
        "could not convert string to float: 'x'",
    ),
    "another kind": (
        "(np.zeros(2), 0.0, False, False, {})",
        "env.id=fragile: environment 1, step 5: the observation doesn't fit the space: "
        "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays are valid "
        "indices",
    ),
    "no reward": (
        "({'place': np.ones(2), 'step': 4}, None, False, False, {})",
        "env.id=fragile: environment 1, step 5: reward or flags aren't numbers: "
        "float() argument must be a string or a real number, not 'NoneType'",
    ),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_after_a_passing_failure_the_episode_continues_unchanged(fragile, sound, name):
    what, message = NONSENSE[name]
    assert fragile.reset() == sound.reset()
    fragile.plan("step", 5, f"once {what}")
    for _ in range(12):
        assert fragile.step() == sound.step()
    (trouble,) = fragile.group.troubles
    assert (trouble.index, trouble.call, trouble.message, trouble.is_rebuilt) == (1, "step", message, True)
    assert (trouble.traceback.count("KeyError: 'lost'") == 1) == (name == "raises")
    assert not fragile.group.broken.any()
    assert [len(made) for made in fragile.made] == [1, 2, 1]
    assert [env.closed for env in fragile.made[1]] == [True, False]


@pytest.mark.parametrize("name", NONSENSE)
def test_a_failure_that_repeats_breaks_its_row_and_no_other(fragile, sound, name):
    what, message = NONSENSE[name]
    assert fragile.reset() == sound.reset()
    fragile.plan("step", 5, f"always {what}")
    for _ in range(4):
        assert fragile.step() == sound.step()
    shown = fragile.shown()[1]
    for t in range(8):
        story, healthy = fragile.step(1, t == 0, 1), sound.step()
        assert story[1] == (*shown, 0.0, False, False)
        assert (story[0], story[2]) == (healthy[0], healthy[2])
    assert fragile.group.broken.tolist() == [False, True, False]
    (trouble,) = fragile.group.troubles
    assert trouble.message == f"{message}; after a rebuild: the same"
    assert not trouble.is_rebuilt
    assert trouble.traceback.count("KeyError: 'lost'") == (2 if name == "raises" else 0)
    assert fragile.group.snapshot(1) == b""


def test_stepping_a_broken_row_raises_what_broke_it(fragile):
    fragile.reset()
    fragile.plan("step", 1, f"always {BOOM}")
    fragile.step()
    with pytest.raises(EnvironmentFailed, match=r"environment 1 raised in step\(\): KeyError: 'lost'; after a rebuild"):
        fragile.step()


def test_a_broken_row_is_rebuilt_by_its_next_reset(fragile, sound):
    fragile.reset()
    sound.reset()
    fragile.plan("step", 2, f"always {BOOM}")
    for _ in range(2):
        fragile.step()
        sound.step()
    fragile.heal()
    fragile.seeds = sound.seeds = np.array([0, 21, 0])
    assert fragile.reset(0, 1, 0) == sound.reset(0, 1, 0)
    assert not fragile.group.broken.any()
    assert len(fragile.made[1]) == 3  # the first, the second chance, the reset
    for _ in range(10):
        assert fragile.step() == sound.step()


def test_a_reset_that_fails_once_is_rebuilt(fragile, sound):
    fragile.plan("reset", 20, f"once {BOOM}")
    assert fragile.reset() == sound.reset()
    for _ in range(12):
        assert fragile.step() == sound.step()
    (trouble,) = fragile.group.troubles
    assert (trouble.call, trouble.is_rebuilt) == ("reset", True)
    assert trouble.message == "env.id=fragile: environment 1 raised in reset(): KeyError: 'lost'"


def test_a_reset_that_keeps_failing_breaks_the_row_until_one_succeeds(fragile, sound):
    fragile.plan("reset", 20, f"always {BOOM}")
    before = fragile.shown()[1]
    shown, healthy = fragile.reset(), sound.reset()
    assert shown == [healthy[0], before, healthy[2]]
    assert fragile.group.broken.tolist() == [False, True, False]
    fragile.reset(0, 1, 0)  # one attempt in a new environment: it had its second chance
    assert fragile.group.broken[1]
    assert [trouble.is_rebuilt for trouble in fragile.group.troubles] == [False, False]
    assert len(fragile.made[1]) == 3
    fragile.heal()
    assert fragile.reset(0, 1, 0) == healthy
    for _ in range(12):
        assert fragile.step() == sound.step()


def test_an_environment_that_can_not_be_made_again_breaks_its_row(fragile):
    fragile.reset()
    fragile.plan("step", 3, f"once {BOOM}")
    fragile.row_of_construct = 99  # IndexError in the constructor
    for _ in range(3):
        fragile.step()
    assert fragile.group.broken.tolist() == [False, True, False]
    assert "environment 1 can't be made again: list index out of range" in fragile.group.troubles[0].message
    fragile.reset(0, 1, 0)
    assert fragile.group.broken[1]
    fragile.row_of_construct = 1
    fragile.reset(0, 1, 0)
    assert not fragile.group.broken.any()


def test_an_episode_that_does_not_repeat_breaks_the_row(fragile):
    fragile.reset()
    fragile.plan("step", 2, f"once {BOOM}")
    fragile.step()
    fragile.made[1][0].place += 1  # not from seed and actions
    fragile.group.obs["place"][1] += 1
    shown = fragile.shown()[1]
    assert fragile.step()[1] == (*shown, 0.0, False, False)
    assert "the same seed and actions now lead to another observation" in fragile.group.troubles[0].message


def test_an_episode_that_ends_earlier_when_repeated_breaks_the_row(fragile):
    fragile.reset()
    for _ in range(4):
        fragile.step()
    fragile.plan("step", 5, f"once {BOOM}")
    fragile.plan("step", 3, "always (env.shown(), 0.0, True, False, {})")
    fragile.step()
    assert fragile.group.broken[1]
    assert "the same seed and actions now end the episode earlier" in fragile.group.troubles[0].message


def test_an_episode_too_long_to_be_played_again_breaks_the_row(fragile, monkeypatch):
    monkeypatch.setattr(instance, "LONGEST_REPLAY", 4)
    fragile.reset()
    fragile.plan("step", 5, f"once {BOOM}")
    for _ in range(5):
        fragile.step()  # 4 actions are kept: that is still enough
    assert [trouble.is_rebuilt for trouble in fragile.group.troubles] == [True]
    fragile.plan("step", 7, f"once {BOOM}")
    for _ in range(2):
        fragile.step()
    assert "its episode has more than 4 actions to play again" in fragile.group.troubles[1].message
    fragile.reset(0, 1, 0)  # the next episode is short again
    fragile.plan("step", 2, f"once {BOOM}")
    for _ in range(2):
        fragile.step(0, 1, 0)
    assert fragile.group.troubles[2].is_rebuilt


@pytest.mark.parametrize("error", ["KeyboardInterrupt()", "SignalExit(3)"])
def test_what_ends_the_process_is_not_a_failure(fragile, error):
    fragile.reset()
    fragile.plan("step", 1, f"once boom({error})")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fragile.step()
    assert not fragile.group.troubles


@pytest.mark.parametrize("call", ["step-1", "reset-20"])
def test_lack_of_memory_is_not_fixed_by_a_rebuild(fragile, call):
    fragile.plan(*call.split("-"), "once boom(MemoryError('no more'))")
    with pytest.raises(EnvironmentFailed, match=r"environment 1 raised in \w+\(\): MemoryError: no more"):
        [play() for play in (fragile.reset, fragile.step)]
    assert not fragile.group.troubles
    assert len(fragile.made[1]) == 1


def test_the_check_at_start_up_raises_every_failure(tmp_path):
    strict = Fixture(tmp_path, verify=True)
    strict.reset()
    strict.plan("step", 1, f"once {BOOM}")
    with pytest.raises(EnvironmentFailed, match=r"KeyError: 'lost'$"):
        strict.step()
    assert not strict.group.troubles
    assert len(strict.made[1]) == 1


class Greedy(gym.Env):
    """Changes the action that it is given, and fails once."""

    observation_space = action_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    failures = 0

    def reset(self, *, seed=None, options=None):
        self.place = np.zeros(2, np.float32)
        return self.place.copy(), {}

    def step(self, action):
        self.place += action
        action[:] = 9
        if self.place[0] == 3 and not Greedy.failures:
            Greedy.failures += 1
            raise KeyError("lost")
        return self.place.copy(), 0.0, False, False, {}


def test_an_environment_that_changes_its_action_changes_neither_the_log_nor_the_agents():
    group = GymGroup("greedy", Greedy, 1)
    group.reset(np.ones(1, bool), np.zeros(1, int))
    action = np.array([[1.0, -1.0]], np.float32)
    for t in range(5):
        group.step(action, np.ones(1, bool))
        assert group.obs.tolist() == [[t + 1, -t - 1]]
    assert action.tolist() == [[1.0, -1.0]]
    assert [trouble.is_rebuilt for trouble in group.troubles] == [True]


class Boxes(Fragile):
    """Fragile, but of one stackable leaf, and with snapshots of its own."""

    def __init__(self, *args):
        super().__init__(*args)
        self.observation_space = self.observation_space["place"]

    def shown(self):
        return self.place.astype(np.float32)

    def snapshot(self):
        state = self.np_random.bit_generator.state["state"]
        return f"{self.count},{state['state']},{state['inc']},{self.place.tobytes().hex()}".encode()

    def restore(self, data):
        count, state, inc, place = data.decode().split(",")
        whole = self.np_random.bit_generator.state
        whole["state"] = {"state": int(state), "inc": int(inc)}
        self.np_random.bit_generator.state = whole
        self.count, self.place = int(count), np.frombuffer(bytes.fromhex(place)).copy()


def boxes(faults):
    group = StackedGroup(GymGroup("boxes", lambda: Boxes(faults, 0, []), 1), 3)
    group.reset(np.ones(1, bool), np.array([5]))
    return group


def play(group, steps):
    story = []
    for t in range(steps):
        result = group.step(np.array([t % 3]), np.ones(1, bool))
        story.append((group.obs.tobytes(), result.reward[0].item()))
    return story


@pytest.mark.parametrize("moment", ["right after", "later"])
@pytest.mark.parametrize("how", ["taken", "restored"])
def test_a_rebuild_starts_from_the_last_snapshot_of_the_episode(tmp_path, how, moment):
    (tmp_path / "faults").mkdir()
    group, sound = boxes(tmp_path / "faults"), boxes(tmp_path)
    assert play(group, 4) == play(sound, 4)
    data = group.snapshot(0)
    if how == "restored":
        group = boxes(tmp_path / "faults")
        group.restore(0, data)
    (tmp_path / "faults" / f"0-step-{5 if moment == 'right after' else 7}").write_text(f"once {BOOM}")
    assert play(group, 5) == play(sound, 5)
    assert [trouble.is_rebuilt for trouble in group.troubles] == [True]


def test_a_broken_row_keeps_its_stack(tmp_path):
    group = boxes(tmp_path)
    play(group, 4)
    shown = group.obs.copy()
    (tmp_path / "0-step-5").write_text(f"always {BOOM}")
    play(group, 1)
    assert group.broken[0]
    np.testing.assert_array_equal(group.obs, shown)
    (tmp_path / "0-reset-6").write_text(f"always {BOOM}")
    group.reset(np.ones(1, bool), np.array([6]))
    np.testing.assert_array_equal(group.obs, shown)
    group.reset(np.ones(1, bool), np.array([5]))
    assert not group.obs.any()
    assert not group.broken[0]
