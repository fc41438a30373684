"""How this machine rounds: the switches of `runtime.numerics: portable`, and a fingerprint of the results.

The numeric libraries choose their code by the CPU, and sum in another order with every instruction set. Portable
numerics hold them to the code for AVX2, which every x86-64 CPU of the last years has. The libraries read the switches
once, when they are loaded, so nothing numeric is imported here before it is needed.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NoReturn

from rollmill.errors import Refused

Mode = Literal["native", "portable"]

SWITCHES = {
    "MKL_CBWR": "COMPATIBLE",  # the only mode that MKL honours on Intel and on AMD
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",  # vector functions of MKL, on Intel; without effect on AMD
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # convolutions
    "OPENBLAS_CORETYPE": "Haswell",  # numpy's products
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",  # numpy's tanh, exp, log and sums
    "NUMBA_CPU_NAME": "haswell",  # our own compiled functions, also those that fuse a product and a sum
    "NUMBA_CPU_FEATURES": "+avx2,+fma",
    "NUMBA_DISABLE_INTEL_SVML": "1",
    "ROLLMILL_NUMERICS": "portable",  # the others were set before the libraries were loaded
}
_NUMERIC_LIBRARIES = ("numpy", "torch", "numba")

# Kinds of CPU on which portable training was seen to give the hashes of the others: the table in docs/cpus.md.
VERIFIED = ("AuthenticAMD avx2", "AuthenticAMD avx512", "GenuineIntel avx512")


REMEDY = "run it on the kind of CPU that made it, or train with runtime.numerics=portable"


class TooLate(Refused):
    """Portable numerics were asked for in a process that has loaded the libraries without the switches."""


def portable() -> None:
    """Hold the numeric libraries of this process, and of those it starts, to code that rounds equally everywhere.

    Call it before torch or numpy are imported.
    """
    if _is_switched():
        return
    _refuse_cpu()
    if loaded := [name for name in _NUMERIC_LIBRARIES if name in sys.modules]:
        raise TooLate(
            f"rollmill.portable() is called too late: {loaded[0]} is imported; call it before every other import"
        )
    os.environ.update(SWITCHES)


def require(mode: Mode) -> None:
    """Refuse portable numerics in a process without the switches, before anything of a run is made."""
    if mode == "portable" and not _is_switched():
        _refuse_cpu()
        raise TooLate(
            "runtime.numerics=portable: torch was loaded without its switches; call rollmill.portable() before every "
            "other import, or use the command line"
        )


def restart() -> NoReturn:
    """Execute this process's command again with the switches; its pid, arguments and exit code stay."""
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | SWITCHES)


def facts(mode: Mode) -> dict[str, Any]:
    """What is kept with a run; `verified`: whether portable numerics were seen to work on this kind of CPU."""
    verified = cpu_kind() in VERIFIED if mode == "portable" else None
    return {"mode": mode, "cpu": cpu_kind(), "fingerprint": fingerprint(), "verified": verified}


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Why a process with the facts `now` makes other bits than the one `before`; empty if it makes the same."""
    if before["fingerprint"] == now["fingerprint"]:
        return ""
    return (
        "this machine rounds differently" if before["mode"] == now["mode"] else f"runtime.numerics was {before['mode']}"
    )


def plan_line(mode: Mode) -> str:
    """The line of the plan."""
    found = facts(mode)
    status = {
        None: "",
        True: ", verified on this kind of CPU",
        False: ", unverified on this kind of CPU: see docs/cpus.md",
    }
    return f"numerics: {mode}, {found['cpu']}, fingerprint {found['fingerprint']}{status[found['verified']]}"


@cache
def cpu_kind() -> str:
    """Vendor and instruction set of this CPU, such as "AuthenticAMD avx2"."""
    try:
        return kind_of(Path("/proc/cpuinfo").read_text())
    except OSError:
        return platform.machine()


def kind_of(cpuinfo: str) -> str:
    """The kind of the first CPU of a /proc/cpuinfo; only the machine's name where that isn't x86-64."""
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    known = {name.strip(): value.strip() for name, _, value in lines}
    flags = set(known.get("flags", "").split())
    if "vendor_id" not in known:
        return platform.machine()
    tiers = {"amx": {"amx_tile"}, "avx512": {"avx512f"}, "avx2": {"avx2", "fma"}}
    return f"{known['vendor_id']} {next((tier for tier, needed in tiers.items() if needed <= flags), 'sse')}"


def _is_switched() -> bool:
    return all(os.environ.get(name) == value for name, value in SWITCHES.items())


def _refuse_cpu() -> None:
    if not cpu_kind().endswith((" avx2", " avx512", " amx")):
        raise Refused(
            f"runtime.numerics=portable needs an x86-64 CPU with AVX2 and FMA, this one is {cpu_kind()}; "
            "use runtime.numerics=native"
        )


@cache
def fingerprint() -> str:
    """A hash of how this process rounds; two processes with the same one make the same run, bit for bit.

    Equal fingerprints are strong evidence but not a proof: they sample small calls, in about 20 ms.
    """
    import torch

    digest = sha256()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for part in (_torch_results, _numpy_results, _python_results):
            for result in part():
                digest.update(result)
    finally:
        torch.set_num_threads(threads)
    return digest.hexdigest()[:16]


def _numbers(*shape: int) -> Any:
    """Numbers between -1 and 1 with all their bits in use; not from a generator, which may round differently."""
    import numpy as np

    return ((np.arange(np.prod(shape)) * 7919 % 10007 - 5003) / 5003).astype(np.float32).reshape(shape)


def _torch_results() -> Iterator[bytes]:
    import torch
    from torch.nn import functional as F

    def values(*shape: int) -> Any:
        return torch.from_numpy(_numbers(*shape))

    for rows, inputs, outputs in ((1, 4, 64), (8, 64, 64), (32, 256, 48)):
        x, weight = values(rows, inputs).requires_grad_(), values(outputs, inputs).requires_grad_()
        y = F.linear(x, weight, values(outputs))
        functions: tuple[Callable[[Any], Any], ...] = (torch.tanh, torch.sigmoid, torch.exp, F.elu, F.silu, F.gelu)
        y = sum((f(y / 8) for f in functions), torch.log_softmax(y, -1))
        (y.square().mean() + y.std() + torch.logsumexp(y, -1).sum()).backward()
        yield from (part.detach().numpy().tobytes() for part in (y, x.grad, weight.grad))
    for channels, side, filters, kernel, stride in ((4, 36, 32, 8, 4), (32, 9, 64, 3, 1)):
        x, weight = values(2, channels, side, side).requires_grad_(), values(filters, channels, kernel, kernel)
        weight.requires_grad_()
        y = F.conv2d(x, weight, values(filters), stride)
        y.relu().square().mean().backward()  # type: ignore[no-untyped-call]
        yield from (part.detach().numpy().tobytes() for part in (y, x.grad, weight.grad))
    yield torch.linalg.qr(values(32, 16) + torch.eye(32, 16))[0].contiguous().numpy().tobytes()


def _numpy_results() -> Iterator[bytes]:
    import numpy as np

    for kind in (np.float32, np.float64):
        x = (_numbers(64, 64) / 3).astype(kind)
        for result in (x[:8] @ x, x @ x, x @ x[0], np.tanh(x), np.exp(x), np.log(x * x + 1), np.sin(x), np.sqrt(x * x)):
            yield result.tobytes()
        yield np.array([x.sum(), x.mean(), x.std(), np.linalg.norm(x), *x.sum(0), *x.mean(1)]).tobytes()


def _python_results() -> Iterator[bytes]:
    """Of the C library, which chooses by the CPU as well: with fused products on every CPU that has AVX2 and FMA."""
    import math

    xs = [float(x) for x in _numbers(64)]
    for function in (math.sin, math.cos, math.tan, math.exp, math.atan, math.tanh, lambda x: math.log(x * x + 0.1)):
        yield repr([function(x) for x in xs]).encode()
