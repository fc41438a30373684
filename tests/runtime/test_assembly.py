"""What doesn't fit together is refused before anything starts."""

from __future__ import annotations

import pytest

from rollmill.doctor.preflight import draw_blueprint
from rollmill.errors import Refused
from rollmill.runtime.topology import draw_graph
from rollmill.settings import load_config

BASE = {
    "env": {"id": "CartPole-v1", "groups": 2, "group_size": 4},
    "algorithm": {"name": "ppo", "unroll": 8, "minibatch": 32},
    "train": {"steps": 100},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.features": 64}, "model.features=64 is not read: the observation is not an image"),
        ({"model.initial_log_std": 1.0}, "model.initial_log_std=1.0 is not read: the actions are discrete"),
        (
            {"env.id": "ALE/Pong-v5", "model.hidden": [8]},
            r"model.hidden=.*8.* is not read: the observation is an image",
        ),
        ({"env.id": "ALE/Pong-v5", "model.activation": "relu"}, "model.activation='relu' is not read"),
        ({"algorithm": {"name": "vpg"}, "model.shared": True}, "model.shared=true is not read: this algorithm has no"),
        ({"algorithm.anneal_clip": True, "algorithm.clip": None}, "algorithm.anneal_clip=true is not read while"),
        ({"algorithm.minibatch": 1}, "algorithm.minibatch=1 has no standard deviation to normalise"),
    ],
)
def test_a_key_that_nothing_would_read_is_refused(changes, message):
    values = BASE | ({"algorithm": changes["algorithm"]} if "algorithm" in changes else {})
    overrides = {key: value for key, value in changes.items() if key != "algorithm"}
    with pytest.raises(Refused, match=message):
        draw_blueprint(load_config(values, overrides).config)


@pytest.mark.parametrize("roles", ["fused", "central", "split"])
@pytest.mark.parametrize("kind", ["serial", "processes"])
def test_every_topology_wires_every_port(kind, roles):
    config = load_config(BASE, {"runtime.kind": kind, "runtime.roles": roles, "runtime.workers": 2}).config
    graph = draw_graph(draw_blueprint(config))
    assert graph.places[0] == "main"
    assert (len(graph.places) == 1) == (kind == "serial")
    assert "learner" in graph.text()
