"""Section `env`: defaults by kind of environment, and no key that is not read."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rollmill.envs.config import AtariConfig, EnvConfig


@pytest.mark.parametrize(
    ("env_id", "given", "expected"),
    [("CartPole-v1", None, 1), ("CartPole-v1", 3, 3), ("ALE/Pong-v5", None, 4), ("Pong", None, 4), ("Pong", 1, 1)],
)
def test_frames_are_stacked_by_four_in_atari_by_default(env_id, given, expected):
    assert EnvConfig(id=env_id, frame_stack=given).stacked_frames == expected


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Blackjack-v1", "probe/tracer", "pong.py:Pong", "games.pong:Pong"])
def test_an_atari_section_is_refused_where_it_is_not_read(env_id):
    with pytest.raises(ValidationError) as refusal:
        EnvConfig.model_validate({"id": env_id, "atari": {"frame_skip": 2}})
    assert f"env.atari is not read: env.id={env_id} is not an Atari game; remove it" in str(refusal.value)


def test_constructor_arguments_are_refused_for_atari():
    with pytest.raises(ValidationError, match=r"env.args is not read: env.id=Pong is an Atari game; use env.atari"):
        EnvConfig(id="Pong", args={"frameskip": 2})


@pytest.mark.parametrize(
    "config",
    [
        EnvConfig(id="CartPole-v1", args={"sutton_barto_reward": True}, time_limit=10, reward_clip=1.0),
        EnvConfig(id="Pong", atari=AtariConfig(one_life=True)),
    ],
)
@pytest.mark.parametrize("mode", ["python", "json"])
def test_what_is_written_loads_again(config, mode):
    assert EnvConfig.model_validate(config.model_dump(mode=mode)) == config


@pytest.mark.parametrize(
    "wrong",
    [
        {"groups": 0},
        {"group_size": 0},
        {"frame_stack": 0},
        {"time_limit": 0},
        {"reward_clip": 0.0},
        {"reward_scale": 0.0},
    ],
)
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        EnvConfig(id="CartPole-v1", **wrong)


@pytest.mark.parametrize("config", [EnvConfig, AtariConfig])
def test_every_key_is_described_in_the_schema(config):
    for name, entry in config.model_json_schema()["properties"].items():
        assert entry.get("description"), name
