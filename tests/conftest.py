"""What only `make prove` proves, because `make test` has twenty minutes from nothing; and Ctrl-C for all tests."""

from __future__ import annotations

import re
import signal

import pytest

# A shell has what it starts in the background ignore Ctrl-C, and so would all the processes that tests press it for.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each has a sibling with other parameters that stays in `make test`.
LONG = [
    r"test_identity.*\[(dict|normalised|frozen-lake)\]",
    r"test_a_capture_of_one_runtime_continues_in_another\[.*(split|central)",
    r"test_killing_workers_again_and_again_changes_no_bit\[(split|fused)-slow\]",
    r"test_an_interrupted_run_is_loadable\[15-143-async\]",
    r"test_an_interrupted_run_says_how_to_go_on_and_does\[(15|10)-async\]",
    r"test_a_full_disk_costs_checkpoints_and_never_the_run\[to the end-async\]",
    r"test_a_passing_failure_is_rebuilt_and_changes_no_bit\[appo\]",
    r"test_ten_kills_of_workers_are_ten_replacements",
    r"test_a_run_that_was_done_and_continued_with_other_settings_is_retraced",
    r"test_every_kind_of_run_is_retraced\[(central|split)\]",
    r"test_a_run_is_retraced_to_its_hash_wherever_it_ran\[processes-central\]",
    r"test_an_environment_that_fails_once_costs_a_worker_and_no_bit\[swell",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if any(re.search(pattern, item.nodeid) for pattern in LONG):
            item.add_marker(pytest.mark.prove)
