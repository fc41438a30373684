"""What every process of a run does first: allocator and threads."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def tune_allocator() -> bool:
    """Keep large blocks instead of giving them back to the kernel after each use; False where glibc refuses.

    Batches allocate and free the same tens of megabytes in every step; faulting the pages in again costs up to a third
    of the training speed of a convolutional network.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    settings = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, (1 << 31) - 1), (_M_TOP_PAD, 64 << 20))
    accepted = [libc.mallopt(option, value) == 1 for option, value in settings]
    return all(accepted)


def set_threads(count: int) -> None:
    """Threads of torch in this process from now on; cheap enough to call at every change of role."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def write_output_to(file: str | os.PathLike[str]) -> None:
    """Append the standard output and error of this process to a file from now on."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def usable_cores() -> list[int]:
    """The cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))
