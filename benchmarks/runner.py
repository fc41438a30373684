"""One run of one side in its own process, with the conditions under which it was made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bystanders import QUIET_CORES, Bystanders, wait_for_quiet
from benchmarks.calibration import calibrate
from benchmarks.machine import ROOT
from benchmarks.workloads import Peer, Workload

START_UP = 3600.0  # seconds that a run may take beyond its measurement, or for its task
CONTROLLED = (
    *("OMP_", "MKL_", "OPENBLAS_", "GOMP_", "KMP_", "MALLOC_", "PYTHONPATH", "PYTHONWARNINGS"),
    *("ATEN_", "ONEDNN_", "NPY_", "NUMBA_", "ROLLMILL_"),
)

Run = dict[str, Any]


@dataclass(frozen=True)
class Runner:
    """Starts the drivers, all in the same way."""

    seconds: float  # length of a throughput measurement
    patience: float  # seconds to wait for a quiet machine, and to repeat a run that was disturbed

    def run_ours(self, workload: Workload, seed: int) -> Run:
        command = [sys.executable, "-m", "benchmarks.ours", workload.name]
        return self._run("ours", workload, command, {}, seed)

    def run_peer(self, workload: Workload, peer: Peer, python: Path, seed: int) -> Run:
        command = [str(python), "-m", f"benchmarks.peers.{peer.folder}.{workload.module}"]
        if peer.folder is None:
            command = [str(python), "-m", "benchmarks.ours", peer.workloads[workload.name]]
        return self._run(peer.name, workload, command, peer.environment, seed)

    def _run(self, name: str, workload: Workload, command: list[str], environment: dict[str, str], seed: int) -> Run:
        """The first run that nobody disturbed, or the last before patience ended."""
        command = [*command, "--seconds", str(self.seconds), "--seed", str(seed)]
        deadline = time.perf_counter() + self.patience
        attempt = 0
        while True:
            attempt += 1
            wait_for_quiet(deadline)
            run = self._run_once(command, environment)
            run |= {"value": run.get(workload.metric), "attempt": attempt}
            _print(run, name, workload, seed)
            if run["other_cores"] < QUIET_CORES or time.perf_counter() > deadline:
                return run

    def _run_once(self, command: list[str], environment: dict[str, str]) -> Run:
        """What the driver printed, between two calibrations; a run that fails has a reason instead."""
        before, bystanders, start = calibrate(), Bystanders(), time.perf_counter()
        result = self._result(command, environment)
        wall, others = time.perf_counter() - start, bystanders.cores()
        return {
            **result,
            "calibration_ms": [round(before, 1), round(calibrate(), 1)],
            "other_cores": round(others, 3),
            "wall_seconds": round(wall, 2),
        }

    def _result(self, command: list[str], environment: dict[str, str]) -> Run:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(CONTROLLED)}
        limit = self.seconds + START_UP
        try:
            process = subprocess.run(
                command,
                cwd=ROOT,
                env={**inherited, **environment},
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failure": f"no result within {limit:.0f} s"}
        if process.returncode or not process.stdout:
            errors = process.stderr.strip().splitlines()
            return {"failure": errors[-1] if errors else f"exit code {process.returncode}"}
        result: Run = json.loads(process.stdout.splitlines()[-1])
        return result


def _print(run: Run, name: str, workload: Workload, seed: int) -> None:
    figure = f"{run['value']:10.1f} {workload.unit}" if run["value"] else run.get("failure", "not solved")
    if run.get("return_at_end") is not None:
        figure += f", return {run['return_at_end']:.0f}"
    before, after = run["calibration_ms"]
    conditions = f"calibration {before:.0f} → {after:.0f} ms, others took {run['other_cores']:.2f} cores"
    print(f"  seed {seed}  {name:14} {figure:20} {conditions}", flush=True)
