"""What is measured, who takes part, and the ratios that are the goal."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollmill.numerics import SWITCHES

# The values that rollmill gives to mallopt at process start, in the form in which any program can take them.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


@dataclass(frozen=True)
class Workload:
    """One measurement that every side can make."""

    name: str
    title: str
    metric: str  # key of the drivers' JSON line
    unit: str
    higher_is_better: bool
    goals: dict[str, float | None]  # by peer that takes part: how many times faster ours must be
    return_goal: float | None = None  # part of the peer's return that ours must reach, where both train equally long

    @property
    def module(self) -> str:
        """The name of the driver's file."""
        return self.name.replace("-", "_")

    def speedup(self, ours: float, theirs: float) -> float:
        """How many times faster ours is, whichever way the metric points."""
        return ours / theirs if self.higher_is_better else theirs / ours


@dataclass(frozen=True)
class Peer:
    """Whom ours is compared with: somebody else's system in its own virtual environment, or ours in another form."""

    name: str
    title: str
    folder: str | None = None  # below peers/ and .venvs/; None: it is ours
    environment: dict[str, str] = field(default_factory=dict)  # variables that its process gets
    workloads: dict[str, str] = field(default_factory=dict)  # of ours: by workload, which of ours it runs instead


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="cartpole",
            title="PPO on CartPole-v1: 8 envs × 128 steps, 4 epochs, minibatch 256, separate MLP 64-64 tanh",
            metric="steps_per_second",
            unit="steps/s",
            higher_is_better=True,
            goals={"sb3": 2.0, "cleanrl": None},
        ),
        Workload(
            name="cartpole-solve",
            title="CartPole-v1 until the last 100 training episodes average 475, each side with its own best settings",
            metric="seconds_to_solve",
            unit="s",
            higher_is_better=False,
            goals={"sb3": 3.0},
        ),
        Workload(
            name="pong",
            title="PPO on Pong: 8 envs × 128 steps, 4 epochs, minibatch 256, Nature CNN, 84×84×4, frame skip 4",
            metric="steps_per_second",
            unit="steps/s",
            higher_is_better=True,
            goals={"sb3": 1.5, "sb3-malloc": 1.3, "cleanrl": 1.3},
        ),
        Workload(
            name="cartpole-async",
            title="APPO on CartPole-v1: 8 envs × 128 steps, 4 epochs, minibatch 256, separate MLP 64-64 tanh",
            metric="steps_per_second",
            unit="steps/s",
            higher_is_better=True,
            goals={"sample-factory": 5.0, "rollmill-sync": 1.2},
        ),
        Workload(
            name="pong-async",
            title="APPO on Pong: 8 envs × 128 steps, 4 epochs, minibatch 256, Nature CNN, 84×84×4, frame skip 4",
            metric="steps_per_second",
            unit="steps/s",
            higher_is_better=True,
            goals={"sample-factory": 1.8},
        ),
        *(
            Workload(
                name=name,
                title=f"PPO on {env}, 200 000 steps: seconds and return at the end; each side with its own settings "
                "(Stable-Baselines3: RL-Zoo's), one thread",
                metric="seconds",
                unit="s",
                higher_is_better=False,
                goals={"sb3": 1.67},
                return_goal=0.95,
            )
            for name, env in (("hopper", "Hopper-v5"), ("halfcheetah", "HalfCheetah-v5"))
        ),
        Workload(
            name="doom-basic-async",
            title="APPO on ViZDoom basic: 32 envs × 32 steps, 1 epoch, minibatch 1024, 128×72×3, "
            "conv 32-64-128, GRU 512, frame skip 4",
            metric="steps_per_second",
            unit="steps/s",
            higher_is_better=True,
            goals={"sample-factory": 1.8},
        ),
        *(
            Workload(
                name=f"{name}-portable",
                title=f"{title} with runtime.numerics=native (ours) and portable (theirs): what portable costs",
                metric="steps_per_second",
                unit="steps/s",
                higher_is_better=True,
                goals={"rollmill-portable": None},
            )
            for name, title in (
                ("cartpole", "PPO on CartPole"),
                ("pong", "PPO on Pong"),
                ("memory-cue", "PPO with GRU"),
            )
        ),
        Workload(
            name="doom-hgs-async",
            title="APPO on ViZDoom health gathering supreme: as doom-basic-async",
            metric="steps_per_second",
            unit="steps/s",
            higher_is_better=True,
            goals={"sample-factory": 1.8},
        ),
    )
}

PEERS = {
    peer.name: peer
    for peer in (
        Peer("sb3", "Stable-Baselines3", "sb3"),
        Peer("sb3-malloc", "Stable-Baselines3 with our allocator settings", "sb3", ALLOCATOR),
        Peer("cleanrl", "CleanRL (with EnvPool on Pong)", "cleanrl"),
        Peer(
            "sample-factory", "Sample Factory, asynchronous, with our allocator settings", "sample_factory", ALLOCATOR
        ),
        Peer(
            "rollmill-portable",
            "our own with portable numerics",
            environment=SWITCHES,
            workloads={name: name for name in WORKLOADS if name.endswith("-portable")},
        ),
        Peer("rollmill-sync", "our own synchronous PPO", workloads={"cartpole-async": "cartpole"}),
    )
}
