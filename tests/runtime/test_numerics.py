"""`runtime.numerics` and the fingerprint: who rounds how, what is kept of it, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollmill
from rollmill import numerics
from rollmill.cli import main
from rollmill.config.yaml_text import written
from rollmill.events import RunStarted, Said, Updated
from rollmill.experiment import Experiment
from rollmill.flight.records import Note, read_flight
from rollmill.persist.checkpoints import Checkpoints

QUIET = {"console": "none", "tensorboard": False, "curve": False, "final_episodes": 0, "baseline_episodes": 0}
TINY = {
    "env": {"id": "CartPole-v1", "groups": 2, "group_size": 3},
    "model": {"memory": "gru", "memory_size": 8},
    "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 48, "epochs": 2},
    "train": {"steps": 384},
    "checkpoint": {"updates": 1},
    "observe": QUIET,
}
HAS_AVX2 = numerics.cpu_kind().endswith((" avx2", " avx512", " amx"))
needs_avx2 = pytest.mark.skipif(not HAS_AVX2, reason="portable numerics need AVX2")
# an environment that fails wherever it is made without the switches, also in a worker
WATCHFUL = """
import os
import torch
from gymnasium.envs.classic_control import CartPoleEnv

class Watchful(CartPoleEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        assert os.environ["ROLLMILL_NUMERICS"] == "portable"
        assert torch.backends.cpu.get_cpu_capability() == "AVX2"
"""


@pytest.fixture(autouse=True)
def native(monkeypatch):
    """Without the switches, also where the tests themselves run with them."""
    for name in numerics.SWITCHES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(written(TINY))
    return tmp_path


def run_python(code, **variables):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | variables)


def rollmill_command(*words, **variables):
    command = [sys.executable, "-m", "rollmill", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)


def summary_of(run):
    return json.loads((Path(run) / "summary.json").read_text())


# The fingerprint

PRINT_FINGERPRINT = "from rollmill.numerics import fingerprint; print(fingerprint())"


@pytest.mark.slow
def test_two_processes_have_the_same_fingerprint_and_another_instruction_set_has_another():
    first, second = run_python(PRINT_FINGERPRINT), run_python(PRINT_FINGERPRINT)
    assert re.fullmatch(r"[0-9a-f]{16}\n", first.stdout), first.stderr
    assert first.stdout == second.stdout
    if HAS_AVX2:  # otherwise there is nothing below it
        lower = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "OPENBLAS_CORETYPE": "Nehalem"}
        for name, value in lower.items():
            assert run_python(PRINT_FINGERPRINT, **{name: value}).stdout != first.stdout, name


def test_the_fingerprint_leaves_threads_and_generators_alone():
    import torch

    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    torch.set_num_threads(2)
    try:
        expected = numerics.fingerprint.__wrapped__()
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        assert numerics.fingerprint.__wrapped__() == expected
        assert torch.equal(torch.random.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)


def test_it_is_kept_in_run_folder_summary_checkpoint_and_flight_log(tmp_path):
    run = rollmill.train(TINY, run=tmp_path / "run")
    expected = {
        "mode": "native",
        "cpu": numerics.cpu_kind(),
        "fingerprint": numerics.fingerprint(),
        "verified": None,
    }
    assert run.summary["numerics"] == summary_of(run.path)["numerics"] == expected
    assert json.loads((run.path / "run.json").read_text())["numerics"] == expected
    content = Checkpoints(run.path / "checkpoints", Experiment(rollmill.load_config(TINY)).config.checkpoint).newest()
    assert content.content.state["run"]["numerics"] == expected
    (begun,) = [e for e in read_flight(run.path / "flight.log").entries if isinstance(e, Note) and e.kind == "begun"]
    assert begun.facts["numerics"] == expected


# Resuming elsewhere


def stopped_early(folder):
    experiment = Experiment(rollmill.load_config(TINY), folder)
    for event in experiment.run():
        if isinstance(event, Updated):
            experiment.stop()
    return folder


def resumed(folder, **overrides):
    experiment = Experiment.resumed(folder, overrides)
    events = list(experiment.run())
    (started,) = [event for event in events if isinstance(event, RunStarted)]
    warnings = [event.text for event in events if isinstance(event, Said) and event.level == "warning"]
    return started.plan, warnings, experiment.summary["resume_grade"], events


def elsewhere(monkeypatch, **changes):
    here = numerics.facts("native")
    monkeypatch.setattr(
        "rollmill.experiment.facts", lambda mode: {**here, "fingerprint": "of another machine", **changes}
    )


def test_a_resume_on_a_machine_that_rounds_differently_says_so_and_is_approximate(tmp_path, monkeypatch):
    run = stopped_early(tmp_path / "run")
    elsewhere(monkeypatch)
    plan, warnings, grade, events = resumed(run)
    assert grade == "approximate: this machine rounds differently"
    assert f"resume: {grade}" in plan
    assert len(warnings) == 1
    assert warnings[0].startswith("this machine rounds differently")
    assert "runtime.numerics=portable" in warnings[0]
    kinds = [type(event) for event in events if not isinstance(event, Said) or event.level == "warning"]
    assert kinds.index(Said) < kinds.index(Updated), "before it starts"


def test_what_became_approximate_stays_so_where_the_next_machine_is_the_same(tmp_path, monkeypatch):
    run = stopped_early(tmp_path / "run")
    elsewhere(monkeypatch)
    resumed(run)
    _, warnings, grade, _ = resumed(run, **{"train.steps": 600})
    assert (warnings, grade) == ([], "approximate: this machine rounds differently")


def test_a_resume_with_other_numerics_names_the_setting(tmp_path, monkeypatch):
    run = stopped_early(tmp_path / "run")
    elsewhere(monkeypatch, mode="portable")
    assert resumed(run)[2] == "approximate: runtime.numerics was native"


def test_a_resume_on_the_same_machine_or_of_an_older_run_claims_nothing(tmp_path, monkeypatch):
    from rollmill.history import History

    run = stopped_early(tmp_path / "run")
    assert resumed(run)[1:3] == ([], "exact")
    state = History.state
    monkeypatch.setattr(History, "state", lambda self: {k: v for k, v in state(self).items() if k != "numerics"})
    old = stopped_early(tmp_path / "old")
    monkeypatch.undo()
    elsewhere(monkeypatch)
    assert resumed(old)[1:3] == ([], "exact")


# Portable


@pytest.mark.slow
@needs_avx2
def test_portable_gives_the_same_parameters_whatever_the_user_has_set(tiny):
    """The user's own switches stand for other CPUs: natively they change the parameters, or at least may."""
    expected = rollmill_command("train", "tiny.yaml", "runtime.numerics=portable", "--run", "run")
    assert expected.returncode == 0, expected.stderr
    summary = summary_of("run")
    assert (summary["numerics"]["mode"], summary["status"]) == ("portable", "done")
    assert summary["numerics"]["verified"] is (numerics.cpu_kind() in numerics.VERIFIED)
    lower = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "SSE4_2", "NPY_DISABLE_CPU_FEATURES": "X86_V3"}
    lower |= {"ONEDNN_MAX_CPU_ISA": "SSE41", "OPENBLAS_CORETYPE": "Nehalem", "NUMBA_CPU_NAME": "generic"}
    other = rollmill_command("train", "tiny.yaml", "runtime.numerics=portable", "--run", "other", **lower)
    assert other.returncode == 0, other.stderr
    for key in ("parameters_sha256", "numerics"):
        assert summary_of("other")[key] == summary[key]


@pytest.mark.slow
@needs_avx2
def test_the_command_line_keeps_arguments_and_exit_codes_when_it_begins_again(tiny):
    (tiny / "taken").mkdir()
    (tiny / "taken" / "file").touch()
    refused = rollmill_command("train", "tiny.yaml", "runtime.numerics=portable", "--run", "taken")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("rollmill: --run taken exists;")
    assert len(refused.stderr.splitlines()) == 1
    words = "train", "tiny.yaml", "runtime.numerics=portable", "--run", "a run", "train.steps=96", "seed=3"
    assert rollmill_command(*words).returncode == 0
    assert [summary_of("a run")[key] for key in ("seed", "env_steps")] == [3, 96]


@pytest.mark.slow
@needs_avx2
def test_workers_seeds_and_evaluations_have_the_switches(tiny):
    (tiny / "watchful.py").write_text(WATCHFUL)
    changes = "runtime.numerics=portable", "env.id=watchful.py:Watchful", "env.time_limit=20", "runtime.workers=2"
    words = "train", "tiny.yaml", *changes, "runtime.kind=processes", "--seeds", "1,2", "--run", "seeds"
    outcome = rollmill_command(*words)
    assert outcome.returncode == 0, outcome.stderr + outcome.stdout
    outcome = rollmill_command("evaluate", "seeds/seed-1", "--workers", 2, "--episodes", 2, "--no-baselines")
    assert outcome.returncode == 0, outcome.stderr


def test_in_a_process_without_the_switches_portable_is_refused_in_a_line_by_every_verb(tiny, capsys):
    run = rollmill.train(TINY, run=tiny / "run").path
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("numerics: native", "numerics: portable"))
    before = sorted(tiny.rglob("*"))
    portable = ["tiny.yaml", "runtime.numerics=portable"]
    for words in (
        ["train", *portable, "--run", "new"],
        ["train", *portable, "--seeds", "1,2", "--run", "new"],
        ["train", "run", "--resume", "train.steps=10000"],
        ["evaluate", "run", "--out", "new"],
        ["evaluate", "--policy", "random", "--env", "tiny.yaml", "runtime.numerics=portable", "--out", "new"],
        ["watch", "run", "--frames", "new"],
        ["retrace", "run"],
        ["tune", *portable, "--seconds", "1", "--out", "new"],
        ["profile", *portable, "--seconds", "1", "--out", "new"],
    ):
        capsys.readouterr()
        assert main(words) == 2, words
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1), words
        assert err.startswith("rollmill: runtime.numerics=portable: torch was loaded without its switches; call "), err
    assert sorted(tiny.rglob("*")) == before, "nothing was written"


@pytest.mark.slow
@needs_avx2
def test_a_program_asks_first_and_then_trains(tiny):
    code = """
import rollmill
rollmill.portable()
rollmill.portable()  # once more does no harm
run = rollmill.train("tiny.yaml", run="run", **{"runtime.numerics": "portable"})
print(run.summary["numerics"]["mode"], run.summary["parameters_sha256"])
"""
    outcome = run_python(code)
    assert outcome.returncode == 0, outcome.stderr
    assert rollmill_command("train", "tiny.yaml", "runtime.numerics=portable", "--run", "same").returncode == 0
    assert outcome.stdout.split() == ["portable", summary_of("same")["parameters_sha256"]]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_program_that_asks_too_late_is_refused_in_a_line(library):
    outcome = run_python(f"import {library}, rollmill; rollmill.portable()")
    said = outcome.stderr.strip().splitlines()[-1]
    assert re.search(r"TooLate: rollmill\.portable\(\) is called too late: \w+ is imported; call it before every", said)


def test_importing_the_switches_imports_nothing_numeric():
    code = "import sys, rollmill.numerics; assert not {'numpy', 'torch', 'numba'} & set(sys.modules)"
    assert run_python(code).returncode == 0


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ("fpu sse4_2 avx", "AuthenticAMD sse"),
        ("fpu avx avx2", "AuthenticAMD sse"),  # without fused products the C library takes other code
        ("fpu avx avx2 fma", "AuthenticAMD avx2"),
        ("fma avx2 avx512f avx512bw", "AuthenticAMD avx512"),
        ("fma avx2 avx512f amx_tile", "AuthenticAMD amx"),
    ],
)
def test_a_kind_of_cpu_is_its_vendor_and_widest_instruction_set(flags, kind):
    other = "\n\nprocessor\t: 1\nvendor_id\t: Other\nflags\t\t: amx_tile\n"
    assert numerics.kind_of(f"processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: {flags}{other}") == kind


def test_a_cpu_without_avx2_is_refused_with_the_remedy(tiny, monkeypatch, capsys):
    monkeypatch.setattr(numerics, "cpu_kind", lambda: "GenuineIntel sse")
    assert main(["train", "tiny.yaml", "runtime.numerics=portable", "--run", "new"]) == 2
    said = "needs an x86-64 CPU with AVX2 and FMA, this one is GenuineIntel sse; use runtime.numerics=native\n"
    assert capsys.readouterr().err == f"rollmill: runtime.numerics=portable {said}"


def test_the_plan_says_whether_this_kind_of_cpu_was_seen(monkeypatch):
    assert "verified" not in numerics.plan_line("native")
    monkeypatch.setattr(numerics, "cpu_kind", lambda: numerics.VERIFIED[0])
    assert numerics.plan_line("portable").endswith(", verified on this kind of CPU")
    monkeypatch.setattr(numerics, "cpu_kind", lambda: "GenuineIntel amx")
    assert numerics.plan_line("portable").endswith(", unverified on this kind of CPU: see docs/cpus.md")


def test_the_documentation_lists_the_kinds_that_the_plan_calls_verified():
    page = (Path(__file__).parents[2] / "docs" / "cpus.md").read_text()
    listed = re.findall(r"^\| `(\w+ \w+)` \|.*\| (yes|no)[^|]*\|$", page, re.MULTILINE)
    assert {kind for kind, seen in listed if seen == "yes"} == set(numerics.VERIFIED)
    assert ("GenuineIntel amx", "no") in listed


@pytest.mark.slow
@needs_avx2
def test_our_own_compiled_functions_are_compiled_for_the_pinned_cpu_and_kept_apart(tmp_path):
    code = """
import rollmill
{}
from rollmill.models import elu
import numpy as np
elu._change(np.ones(64, np.float32))
(assembly,) = elu._change.inspect_asm().values()
print(elu._change.targetctx.codegen().magic_tuple()[1:], "zmm" in assembly, "vfmadd" in assembly)
print([key[1] for key in elu._change._cache._cache_file._load_index()])
"""
    pytest.importorskip("numba")
    # in a temporary folder of their own: code that is loaded from the disk can't be inspected
    pinned, host = (run_python(code.format(call), TMPDIR=str(tmp_path)) for call in ("rollmill.portable()", ""))
    assert pinned.stdout.splitlines()[0] == "('haswell', '+avx2,+fma') False True", pinned.stderr
    assert "('haswell', '+avx2,+fma')" not in host.stdout.splitlines()[0]
    assert host.stdout.splitlines()[1].count("x86_64") >= 2, "each has machine code of its own"


def test_what_we_ask_of_opencv_has_the_same_bytes_with_every_instruction_set():
    """Which is why there is no switch for it."""
    pytest.importorskip("cv2")
    code = """
import hashlib, cv2, numpy as np
screen, digest = (np.arange(210 * 160 * 3) * 7919 % 251).astype(np.uint8).reshape(210, 160, 3), hashlib.sha256()
for picture in (screen, screen[..., 0].copy()):
    for size in ((84, 84), (128, 72), (64, 64)):
        for how in (cv2.INTER_AREA, cv2.INTER_NEAREST):
            digest.update(cv2.resize(picture, size, interpolation=how).tobytes())
digest.update(cv2.cvtColor(screen, cv2.COLOR_RGB2GRAY).tobytes())
print(digest.hexdigest())
"""
    expected = run_python(code).stdout
    assert len(expected) == 65
    assert run_python(code, OPENCV_IPP="disabled").stdout == expected
    assert run_python(code, OPENCV_CPU_DISABLE="AVX2,AVX,SSE4.2,SSE4.1").stdout == expected
