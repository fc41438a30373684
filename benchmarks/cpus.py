"""Tests that numerics can touch, and hashes of short runs, for every instruction set of this CPU: `make cpus`.

Emulation uses the same switches as portable numerics, so it can't prove them: see docs/cpus.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python benchmarks/cpus.py` works like `-m`

from benchmarks.machine import ROOT, describe_commit, describe_machine
from rollmill.numerics import SWITCHES, cpu_kind

TESTS = (
    *("tests/models", "tests/algorithms", "tests/learners", "tests/runtime/test_numerics.py"),
    *("tests/runtime/test_identity.py", "tests/runtime/test_exact_resume.py", "tests/runtime/test_retrace.py"),
    *("tests/evaluation/test_evaluation_processes.py", "tests/evaluation/test_evaluate_verb.py"),
)
RUNS = {"cartpole": 8192, "pong": 512, "memory_cue": 8192}  # env steps
QUIET = ("observe.console=none", "observe.final_episodes=0", "observe.baseline_episodes=0", "observe.curve=false")

_NO_AVX512 = "X86_V4 AVX512_ICL AVX512_SPR"
LEGS = {
    "native": {},
    "avx512": {
        "MKL_CBWR": "AVX512,STRICT",
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "OPENBLAS_CORETYPE": "SkylakeX",
    },
    "avx2": {
        "MKL_CBWR": "AVX2,STRICT",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": _NO_AVX512,
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx2,+fma",
    },
    "sse": {
        "MKL_CBWR": "SSE4_2",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": f"X86_V3 {_NO_AVX512}",
        "NUMBA_CPU_NAME": "nehalem",
        "NUMBA_CPU_FEATURES": "+sse4.2",
    },
    "portable": SWITCHES,
}


def legs_of(kind: str) -> list[str]:
    """The instruction sets that a CPU of this kind has."""
    left_out = {" avx512": (), " amx": (), " avx2": ("avx512",)}.get(
        f" {kind.split()[-1]}", ("avx512", "avx2", "portable")
    )
    return [name for name in LEGS if name not in left_out]


def variables_of(leg: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    return {**inherited, "OMP_NUM_THREADS": "1", **LEGS[leg]}


def run_tests(leg: str) -> tuple[bool, str]:
    """Whether they passed, and the last line that pytest printed."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-n", "2", "-m", "not prove", "--durations=0", "-p", "no:cacheprovider"]
    outcome = subprocess.run([*command, *TESTS], cwd=ROOT, env=variables_of(leg), stdout=subprocess.PIPE, text=True)
    if outcome.returncode:
        print("\n".join(line for line in outcome.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))))
    last = outcome.stdout.splitlines()[-1] if outcome.stdout else f"exit code {outcome.returncode}"
    return not outcome.returncode, f"{last.strip('= ')} ({time.perf_counter() - begun:.0f} s)"


def hash_of(run: str, leg: str, numerics: str) -> tuple[str, str]:
    """The hash of a run's parameters, and the fingerprint."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", f"configs/ppo/{run}.yaml", f"train.steps={RUNS[run]}", f"runtime.numerics={numerics}", *QUIET]
        command = [sys.executable, "-m", "rollmill", *words, "--run", f"{folder}/run"]
        subprocess.run(command, cwd=ROOT, env=variables_of(leg), check=True, stdout=subprocess.DEVNULL)
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    return summary["parameters_sha256"][:12], summary["numerics"]["fingerprint"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=LEGS, action="append", help="this instruction set (may be repeated)")
    parser.add_argument("--hashes", action="store_true", help="only the table of hashes")
    arguments = parser.parse_args()
    legs = arguments.only or legs_of(cpu_kind())
    has_failed = False
    for leg in [] if arguments.hashes else legs:
        print(f"{leg}: {len(TESTS)} parts of the tests …", flush=True)
        has_passed, said = run_tests(leg)
        has_failed |= not has_passed
        print(f"{leg}: {said}", flush=True)
    print(f"\n{describe_machine()['cpu']}, {cpu_kind()}, commit {describe_commit()}, steps {RUNS}\n")
    print(f"| instruction set | numerics | fingerprint | {' | '.join(RUNS)} |\n|{' --- |' * (3 + len(RUNS))}")
    portable = set()
    for leg in legs:
        for numerics in ("portable",) if leg == "portable" else ("native", "portable"):
            if numerics == "portable" and "portable" not in legs_of(cpu_kind()):
                continue
            found = [hash_of(run, leg, numerics) for run in RUNS]
            hashes = [parameters for parameters, _ in found]
            portable |= {tuple(hashes)} if numerics == "portable" else set()
            print(f"| {leg} | {numerics} | {found[0][1]} | {' | '.join(hashes)} |", flush=True)
    if len(portable) > 1:
        print("portable hashes differ: a switch is missing in rollmill/numerics.py")
    raise SystemExit(has_failed or len(portable) > 1)


if __name__ == "__main__":
    main()
