"""With memory, PPO values the true successor in the state the policy really had there.

Every environment is played alone, step by step, and its state is zeroed by the test itself: the reset mask of the
network, which the update relies on, is never used here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch

from rollmill import nested
from rollmill.actors.assemble import UnrollAssembler
from rollmill.algorithms.minibatches import minibatches
from rollmill.algorithms.policy import StochasticPolicy
from rollmill.algorithms.ppo import PPOConfig, PPOUpdate
from rollmill.algorithms.recipe import UpdateContext
from rollmill.fields import Fields
from rollmill.learners.optimizer import build_optimizers
from rollmill.models.config import ModelConfig
from rollmill.models.network import build_network
from rollmill.spaces import action_spec, observation_spec
from rollmill.stores.rollout import RolloutStore
from rollmill.stores.store import LeasedUnroll
from rollmill.transport.ports import Lease
from rollmill.types import Decision, Flow, GroupStatus, Outcome, Problem, Ticket

OBSERVATIONS, ACTIONS = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(3)
T, B, H = 6, 4, 5
GAMMA, LAMBDA = 0.9, 0.8

# Column 0 never ends; 1 is cut inside and then terminates; 2 begins at row 0, terminates and is cut at the last row;
# 3 is cut beside 1, ends by both flags at once, and terminates at the last row after an episode of one step.
TRUNCATED = [(2, 1), (2, 3), (4, 3), (5, 2)]
TERMINATED = [(2, 2), (4, 1), (4, 3), (5, 3)]
BEGINS = [(0, 2)]


class Played(NamedTuple):
    """What the store would give out, and what the update should find by itself."""

    batch: dict[str, Any]
    successor: np.ndarray  # [T, B]: V of what really followed each step
    last: np.ndarray  # [B]: V of row T, in the state in which the next unroll begins


def make_network(memory):
    network = build_network(OBSERVATIONS, ACTIONS, ModelConfig(hidden=(8,), memory=memory, memory_size=H), seed=5)
    network.policy.weight.data *= 100  # it starts near zero, where no decision depends on the state
    for parameter in network.encoder.memory.parameters():
        parameter.data *= 2  # a state of one step's age already counts
    return network.eval()


def flags(places, rows=T):
    mask = np.zeros((rows, B), bool)
    for place in places:
        mask[place] = True
    return mask


@torch.no_grad()
def step_alone(network, obs, state):
    """One step of one environment: distribution parameters, value and the state after it."""
    output = network(torch.from_numpy(obs)[None, None], state, torch.zeros(1, 1, dtype=torch.bool))
    return output.params[0, 0], output.value.item(), output.state


def play(network, seed=0):
    rng = np.random.default_rng(seed)
    terminated, truncated = flags(TERMINATED), flags(TRUNCATED)
    ended = terminated | truncated
    reset = np.concatenate([flags(BEGINS, rows=1), ended])
    obs, final_obs = (rng.normal(size=(n, B, 3)).astype(np.float32) for n in (T + 1, T))
    action, reward = rng.integers(3, size=(T, B)), rng.normal(size=(T, B)).astype(np.float32)
    names = list(network.initial_state(1))
    start = {name: torch.from_numpy(rng.normal(size=(B, H)).astype(np.float32)) for name in names}
    value, log_prob, successor = (np.zeros((T, B), np.float32) for _ in range(3))
    last, last_states, final_states = np.zeros(B, np.float32), [], {}
    for b in range(B):
        state = nested.index(start, slice(b, b + 1))
        for t in range(T):
            if reset[t, b]:
                state = {name: torch.zeros(1, H) for name in names}
            params, value[t, b], state = step_alone(network, obs[t, b], state)
            log_prob[t, b] = torch.distributions.Categorical(logits=params).log_prob(torch.tensor(action[t, b]))
            following = final_obs[t, b] if ended[t, b] else obs[t + 1, b]
            successor[t, b] = step_alone(network, following, state)[1]
            if ended[t, b]:
                final_states[t, b] = state
        last_states.append(state)  # not zeroed: the next unroll's first reset does that
        if reset[T, b]:
            state = {name: torch.zeros(1, H) for name in names}
        last[b] = step_alone(network, obs[T, b], state)[1]
    row_major = sorted(final_states)
    batch = {
        "obs": obs,
        "reset": reset,
        "action": action,
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "log_prob": log_prob,
        "value": value,
        "valid": np.ones((T, B), bool),
        "final_obs": np.stack([final_obs[place] for place in row_major]),
    }
    states = {
        "state": start,
        "last_state": {name: torch.cat([state[name] for state in last_states]) for name in names},
        "final_state": {name: torch.cat([final_states[place][name] for place in row_major]) for name in names},
    }
    return Played({field: torch.from_numpy(array) for field, array in batch.items()} | states, successor, last)


def make_update(network, **changes):
    settings = {"unroll": T, "minibatch": T * B, "epochs": 1, "gamma": GAMMA, "gae_lambda": LAMBDA} | changes
    config = PPOConfig(**settings)
    return PPOUpdate(network, build_optimizers(network, config.optimizer_of), config)


def advantages_of(played):
    """GAE as the sum that defines it: A[t] = Σ_k (γλ)^k δ[t+k], up to the episode's or the unroll's end."""
    batch = {field: np.asarray(played.batch[field]) for field in ("reward", "value", "terminated", "truncated")}
    delta = batch["reward"] + GAMMA * np.where(batch["terminated"], 0, played.successor) - batch["value"]
    ended = batch["terminated"] | batch["truncated"]
    advantage = np.zeros((T, B))
    for t, b in np.ndindex(T, B):
        for k in range(T - t):
            advantage[t, b] += (GAMMA * LAMBDA) ** k * delta[t + k, b]
            if ended[t + k, b]:
                break
    return advantage


both_kinds = pytest.mark.parametrize("memory", ["gru", "lstm"])


@both_kinds
def test_advantages_value_the_true_successor_in_its_own_state(memory):
    network = make_network(memory)
    played = play(network)
    samples, _ = make_update(network).prepare(played.batch)
    wanted = advantages_of(played)
    np.testing.assert_allclose(samples.advantage, wanted, atol=1e-5)
    np.testing.assert_allclose(samples.returns, wanted + played.batch["value"].numpy(), atol=1e-5)


@both_kinds
def test_the_row_after_the_last_is_valued_as_the_first_of_its_episode_where_one_begins(memory):
    """Columns 2 and 3 ended at the last row: GAE doesn't read these two, so they are compared before it."""
    network = make_network(memory)
    played = play(network)
    last, final = make_update(network)._bootstrap_values(played.batch)
    np.testing.assert_allclose(last, played.last, atol=1e-5)
    np.testing.assert_allclose(final, [played.successor[place] for place in TRUNCATED], atol=1e-5)


@both_kinds
@pytest.mark.parametrize(
    ("field", "places"),
    [
        # column 0 has no end, column 1's last episode is row 5 alone, columns 2 and 3 ended with the last row
        ("last_state", [(t, 0) for t in range(T)] + [(5, 1)]),
        # from each cut back to its episode's first row; (4, 3) terminated as well, so its future counts for nothing
        ("final_state", [(t, b) for b in (1, 3) for t in range(3)] + [(t, 2) for t in range(3, T)]),
    ],
)
def test_forgetting_a_state_changes_exactly_the_advantages_that_rest_on_it(memory, field, places):
    """The control of the tests above: with zeros in its place they would fail, in these places and no others."""
    network = make_network(memory)
    played = play(network)
    update = make_update(network)
    true, _ = update.prepare(played.batch)
    zeros = nested.map_leaves(torch.zeros_like, played.batch[field])
    false, _ = update.prepare({**played.batch, field: zeros})
    error = (true.advantage - false.advantage).abs().numpy()
    # an error e of the successor is γ (γλ)^k e at k steps before, at worst 0.9 · 0.72^5 e = 0.17 e
    assert ((error > 1e-3) == flags(places)).all()


@both_kinds
def test_ignoring_the_reset_after_the_last_row_values_the_wrong_state(memory):
    network = make_network(memory)
    played = play(network)
    reset = played.batch["reset"].clone()
    reset[-1] = False
    last, _ = make_update(network)._bootstrap_values({**played.batch, "reset": reset})
    assert (np.abs(last.numpy() - played.last) > 1e-3).tolist() == [False, False, True, True]


@both_kinds
def test_the_first_ratio_is_one_for_every_step_of_a_recurrent_batch(memory):
    network = make_network(memory)
    played = play(network)
    update = make_update(network, minibatch=T * 2)
    samples, _ = update.prepare(played.batch)
    parts = list(minibatches(update.whole(played.batch, samples), T * 2, np.random.default_rng(3)))
    assert len(parts) == 2
    for obs, state, reset, action, old in parts:  # both before any step: the first ratio of every column
        with torch.no_grad():
            output = network(obs, state, reset)
        torch.testing.assert_close(network.distribution.log_prob(output.params, action), old.log_prob)


@both_kinds
def test_the_first_minibatch_of_a_recurrent_update_has_no_divergence(memory):
    network = make_network(memory)
    metrics = make_update(network)(play(network).batch, UpdateContext(np.random.default_rng(0), 0.0)).metrics
    assert metrics["kl"] == pytest.approx(0, abs=1e-7)
    assert metrics["clip_fraction"] == 0


@both_kinds
@pytest.mark.parametrize("forgotten", ["start state", "reset 0", "reset 3", "reset 5"])
def test_forgetting_the_start_state_or_a_reset_shows_as_divergence(memory, forgotten):
    """The control of the two tests above: episodes begin at row 0 (column 2), 3 (1, 2 and 3) and 5 (1 and 3)."""
    network = make_network(memory)
    batch = play(network).batch
    if forgotten == "start state":
        batch["state"] = nested.map_leaves(torch.zeros_like, batch["state"])
    else:
        batch["reset"][int(forgotten.split()[1])] = False
    metrics = make_update(network)(batch, UpdateContext(np.random.default_rng(0), 0.0)).metrics
    assert metrics["kl"] > 1e-6


class Port:
    """The receiving end, as far as the store uses it."""

    def release(self, lease):
        pass


@both_kinds
def test_assembler_and_store_lay_out_the_batch_that_is_tested_here(memory):
    """Two groups of two environments, written row by row as an actor does and joined as a learner does."""
    network = make_network(memory)
    played = play(network)
    batch = nested.map_leaves(lambda leaf: leaf.numpy(), played.batch)
    records = StochasticPolicy.records
    fields = Fields(Problem(observation_spec(OBSERVATIONS), action_spec(ACTIONS), network.state_spec, records))
    spec = fields.unroll_spec(T, 2)
    store = RolloutStore(fields, Flow(2, 1), None, "cpu")
    for actor in (0, 1):
        out = nested.map_leaves(lambda leaf: leaf.zeros(), spec)
        assemble(batch, slice(2 * actor, 2 * actor + 2), Ticket(actor, 0, 0), out)
        store.insert(LeasedUnroll(Ticket(actor, 0, 0), 0, Lease(out, actor)))
    joined = store.sample(np.random.default_rng, 0).batch
    for field, wanted in played.batch.items():
        torch.testing.assert_close(joined[field], wanted, rtol=0, atol=0, msg=lambda m, f=field: f"{f}: {m}")


def assemble(batch, columns, ticket, out):
    """Write some columns of the batch as an actor would; where no episode ended, what is said of its end is 7."""
    ended = batch["terminated"] | batch["truncated"]
    ends = {}
    for field in ("final_obs", "final_state"):
        ends[field] = nested.map_leaves(lambda rows: np.full((T, B, rows.shape[-1]), 7, np.float32), batch[field])
        nested.assign(ends[field], ended, batch[field])
    assembler, idle = UnrollAssembler(), np.zeros(2)
    assembler.begin(out, ticket, nested.index(batch["state"], columns))
    for t in range(T):
        action, log_prob, value, reward, terminated, truncated, valid = (
            batch[field][t, columns]
            for field in ("action", "log_prob", "value", "reward", "terminated", "truncated", "valid")
        )
        final_obs, state = (nested.index(ends[field], (t, columns)) for field in ("final_obs", "final_state"))
        if t == T - 1:
            state = nested.index(batch["last_state"], columns)
        (obs, following), (reset, begins) = (batch[field][t : t + 2, columns] for field in ("obs", "reset"))
        assembler.decided(obs, reset, Decision(action, {"log_prob": log_prob, "value": value}, state))
        outcome = Outcome(
            reward, reward, terminated, truncated, final_obs, idle, idle.astype(int), valid, False, following, begins
        )
        assembler.happened(outcome, state)
    fine = GroupStatus(*np.zeros((3, 2), int), np.zeros(2, bool), np.zeros((2, 0), np.uint8))
    assembler.finish(following, begins, state, {}, fine, (0.0, 0.0, 0.0))
