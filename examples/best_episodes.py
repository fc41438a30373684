"""Keep the best whole episodes of the last tenth of training: python examples/best_episodes.py [KEY=VALUE]..."""

import heapq
import sys
from pathlib import Path

import numpy as np

import rollmill
from rollmill import nested
from rollmill.observe.stitching import Stitcher, WholeEpisode


class BestEpisodes(rollmill.Hooks):
    """Writes <run>/best_episodes/*.npz: observations, actions, rewards, and the weights' version at each step."""

    def __init__(self, keep: int = 10, last: float = 0.1) -> None:
        self.keep, self.begin = keep, 1.0 - last
        self.stitcher = Stitcher()
        self.best: list[tuple[float, int, WholeEpisode]] = []  # a heap with the worst of them on top
        self.seen = 0

    def on_init(self, progress, run):
        self.folder = run / "best_episodes"

    def on_trajectory(self, progress, unroll):
        for episode in self.stitcher.add(unroll):  # from the first unroll on: what ends late may begin early
            if progress.fraction < self.begin:
                continue
            self.seen += 1
            heapq.heappush(self.best, (episode.raw_return, -self.seen, episode))
            if len(self.best) > self.keep:
                heapq.heappop(self.best)

    def on_stop(self, progress, status, summary):
        self.folder.mkdir(exist_ok=True)
        for old in self.folder.glob("*.npz"):  # of an earlier process of this run
            old.unlink()
        for place, (raw_return, _, episode) in enumerate(sorted(self.best, reverse=True)):
            obs = {f"obs.{path}".rstrip("."): leaf for path, leaf in nested.leaves(episode.obs)}
            np.savez_compressed(
                self.folder / f"{place:03d}.npz",
                raw_return=raw_return,
                truncated=episode.truncated,
                action=episode.action,
                reward=episode.reward,
                version=episode.version,
                **obs,
            )
        print(f"kept {len(self.best)} of {self.seen} episodes in {self.folder}")


def main(*overrides: str) -> None:
    config = rollmill.load_config(Path(__file__).with_suffix(".yaml"), overrides)
    for _ in rollmill.Experiment(config).run():
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
