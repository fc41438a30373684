"""The flight log on disk: what is written is read, what is cut is cut off, and what was changed is found out."""

from __future__ import annotations

import itertools
import resource
from contextlib import contextmanager

import numpy as np
import pytest

from rollmill.errors import Refused
from rollmill.fields import Fields
from rollmill.flight.log import FlightWriter, checksums, learned_checksum
from rollmill.flight.records import CHECKSUMS, MAGIC, HashEntry, Note, UpdateEntry, chained, parse_flight, read_flight
from rollmill.models.weights import parameters_sha256
from rollmill.types import ArraySpec, Problem, Ticket

RECORDS = dict.fromkeys(("log_prob", "value"), ArraySpec((), "float64"))
FIELDS = Fields(Problem(ArraySpec((3,), "float64"), ArraySpec((), "int64"), ArraySpec((2,), "float64"), RECORDS))
WEIGHTS = {"w": np.arange(3, dtype=np.float32)}


def unroll(steps=4, size=2, seed=0):
    """The arrays of an unroll, as an actor leaves them."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return {
        "length": np.array(steps),
        "obs": {"a": rng.random((steps + 1, size, 3)), "b": rng.random((steps + 1, size))},
        "last_state": rng.random((size, 2)),
        "action": rng.integers(0, 5, (steps, size)),
        "reward": rng.random((steps, size)),
        "log_prob": rng.random((steps, size)),
        "value": rng.random((steps, size)),
        "terminated": rng.random((steps, size)) < 0.3,
        "truncated": rng.random((steps, size)) < 0.3,
        "episode": rng.integers(0, 9, size),
        "failures": np.zeros(size, np.int64),
        "broken": np.zeros(size, np.bool_),
    }


def write(path, updates=4, begin=0, hash_every=2):
    """A log of a process that made some updates, with two unrolls each, and was killed."""
    writer = FlightWriter(path, hash_every, FIELDS)
    writer.note("begun", begin, target_steps=100)
    for update in range(begin + 1, begin + updates + 1):
        unrolls = [(Ticket(actor, update - 1, update - 1), 0, unroll(seed=10 * update + actor)) for actor in (0, 1)]
        writer.consumed(update, unrolls)
        writer.updated(update, {"loss": float(update)}, lambda: WEIGHTS)
    return writer


@contextmanager
def file_size_limit(size):
    """No file of this process may grow beyond so many bytes: the kernel cuts a write short, and refuses the next."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def records_of(entries):
    """The records as they follow one another in the file."""
    found, crc = [], 0
    for entry in entries:
        record, crc = chained([entry.pack()], crc)
        found.append(record)
    return found


def updates_of(entries):
    return [entry.update for entry in entries if isinstance(entry, UpdateEntry)]


def test_the_bytes_are_those_of_the_whole_file_after_a_resume(tmp_path):
    write(tmp_path / "log").close()
    before = (tmp_path / "log").stat().st_size
    writer = FlightWriter(tmp_path / "log", 2, FIELDS)
    assert writer.bytes == before
    writer.note("begun", 4)
    writer.close()
    assert writer.bytes == (tmp_path / "log").stat().st_size > before


def test_what_is_written_is_read(tmp_path):
    writer = write(tmp_path / "log")
    writer.note("stopped", 4, status="done")
    writer.close()
    read = read_flight(tmp_path / "log")
    assert read.damage is None
    assert read.size == (tmp_path / "log").stat().st_size == writer.bytes
    kinds = [type(entry) for entry in read.entries]
    assert kinds == [Note, UpdateEntry, UpdateEntry, HashEntry, UpdateEntry, UpdateEntry, HashEntry, Note]
    entry = read.entries[4]
    assert (entry.update, entry.learned) == (3, learned_checksum({"loss": 3.0}))
    assert [consumed.ticket for consumed in entry.unrolls] == [Ticket(0, 2, 2), Ticket(1, 2, 2)]
    assert entry.unrolls[1].checksums == checksums(unroll(seed=31), FIELDS)
    assert read.entries[-2].sha256 == parameters_sha256(WEIGHTS)
    assert read.entries[-1] == Note("stopped", 4, {"status": "done"})
    assert writer.cpu_seconds > 0


def test_an_unroll_costs_few_bytes(tmp_path):
    lengths = []
    for updates in (1, 2):
        write(tmp_path / str(updates), updates, hash_every=99).close()
        lengths.append((tmp_path / str(updates)).stat().st_size)
    # frame 4 + 4, head 1 + 8 + 4 + 2, and per unroll 4 + 8 + 8 + 4 and 4 for each of 7 checksums
    assert lengths[1] - lengths[0] == 8 + 15 + 2 * 52


@pytest.mark.parametrize("field", CHECKSUMS)
def test_every_field_has_a_checksum_of_its_own(field):
    before, changed = checksums(unroll(), FIELDS), unroll()
    leaf = {
        "obs": changed["obs"]["b"][-1:],
        "ended": changed["truncated"],
        "state": changed["last_state"],
        "status": changed["episode"],
        "records": changed["value"],
    }.get(field, changed.get(field))
    bits = leaf.reshape(-1).view(np.uint8)
    bits[-1 if field != "ended" else 0] ^= 1
    after = checksums(changed, FIELDS)
    assert [name for name, a, b in zip(CHECKSUMS, before, after, strict=True) if a != b] == [field]


def test_rows_after_the_end_of_an_unroll_do_not_count():
    before, changed = unroll(), unroll()
    before["length"], changed["length"] = np.array(3), np.array(3)
    changed["reward"][3] += 1
    changed["obs"]["a"][4] += 1
    assert checksums(before, FIELDS) == checksums(changed, FIELDS)


def test_a_log_cut_at_any_byte_reads_up_to_the_record_before_and_continues_from_there(tmp_path):
    path = tmp_path / "log"
    write(path).close()
    whole, entries = path.read_bytes(), read_flight(path).entries
    ends = list(itertools.accumulate(map(len, records_of(entries)), initial=len(MAGIC)))
    assert ends[-1] == len(whole)
    for cut in range(ends[-4], len(whole)):  # the last three records
        path.write_bytes(whole[:cut])
        read = read_flight(path)
        assert read.damage is None, cut
        assert read.size == max(end for end in ends if end <= cut)
        assert read.entries == entries[: ends.index(read.size)]
        writer = FlightWriter(path, 10, FIELDS)
        writer.note("begun", 3)
        writer.close()
        again = read_flight(path)
        assert again.damage is None
        assert again.entries == (*read.entries, Note("begun", 3))


def test_a_flipped_bit_anywhere_is_found_at_the_record_that_has_it(tmp_path):
    path = tmp_path / "log"
    writer = write(path)
    writer.note("stopped", 4, status="done")
    writer.close()
    whole, entries = path.read_bytes(), read_flight(path).entries
    owners = [number for number, record in enumerate(records_of(entries)) for _ in record]
    for place, number in zip(range(len(MAGIC), len(whole)), owners, strict=True):
        for bit in (1, 128):
            read = parse_flight(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            assert read.damage is not None, (place, bit)
            assert read.entries == entries[:number]
            assert f"after update {entries[number - 1].update if number else 0} " in read.damage


def test_a_record_left_out_or_moved_is_found(tmp_path):
    path = tmp_path / "log"
    write(path).close()
    records = records_of(read_flight(path).entries)
    path.write_bytes(MAGIC + b"".join(records[:2] + records[3:]))
    assert "after update 1 " in read_flight(path).damage
    path.write_bytes(MAGIC + b"".join([records[0], records[2], records[1], *records[3:]]))
    assert "after update 0 " in read_flight(path).damage


def test_a_damaged_log_is_kept_aside_when_the_run_continues(tmp_path):
    path = tmp_path / "flight.log"
    write(path).close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    before = read_flight(path)
    writer = write(path, updates=1, begin=4)
    writer.close()
    assert (tmp_path / "flight.log.damaged").read_bytes() == bytes(data), "nothing is lost"
    assert writer.gap == (
        f"{before.damage}; all from there on is in flight.log.damaged, and this run can't be retraced beyond it"
    )
    assert writer.complaint is None
    after = read_flight(path)
    assert after.damage is None
    assert after.entries[: len(before.entries)] == before.entries
    assert updates_of(after.entries)[-1] == 5, "and new updates are logged"

    again = bytearray(path.read_bytes())
    again[len(again) // 2] ^= 1
    path.write_bytes(again)
    FlightWriter(path, 2, FIELDS).close()
    assert (tmp_path / "flight.log.damaged").read_bytes() == bytes(data), "nor later"
    assert (tmp_path / "flight.log.damaged.2").read_bytes() == bytes(again)


def test_a_payload_that_makes_no_sense_counts_as_damage(tmp_path):
    path = tmp_path / "log"
    write(path).close()
    for payload in (b"", b"?", b"nonsense", b"n{}", b'n{"kind": "begun"}', b"h" + bytes(3), b"u" + bytes(20)):
        path.write_bytes(MAGIC + chained([Note("begun", 0).pack(), payload], 0)[0])
        read = read_flight(path)
        assert read.damage is not None, payload
        assert read.entries == (Note("begun", 0),)


def test_updates_that_a_resumed_run_makes_again_are_not_in_its_lineage(tmp_path):
    path = tmp_path / "log"
    writer = write(path, 5)
    writer.note("lost", 3, actor=0, sequence=3, rows=[1])  # found while update 4 was made, which is undone
    writer.note("lost", 2, actor=0, sequence=2, rows=[0])  # update 3 stays
    writer.close()
    write(path, 3, begin=3).close()
    lineage = read_flight(path).lineage()
    assert updates_of(lineage) == [1, 2, 3, 4, 5, 6]
    assert [entry.update for entry in lineage if isinstance(entry, HashEntry)] == [2, 4, 6]
    assert [(e.kind, e.update) for e in lineage if isinstance(e, Note)] == [("begun", 0), ("lost", 2), ("begun", 3)]


def test_what_an_update_was_to_learn_from_is_kept_if_it_ended_the_run(tmp_path):
    path = tmp_path / "log"
    writer = write(path, 2)
    writer.consumed(3, [(Ticket(1, 2, 2), 4, unroll())])
    writer.end(2, WEIGHTS, "detected", 1.0)
    attempt = read_flight(path).entries[-2]
    assert (attempt.update, attempt.learned, attempt.unrolls[0][:2]) == (3, None, (Ticket(1, 2, 2), 4))
    write(path, 1, begin=2).close()  # resumed, and now it passes
    assert not any(isinstance(e, UpdateEntry) and e.learned is None for e in read_flight(path).lineage())


@pytest.mark.parametrize("version", [1, 3])
def test_a_log_of_another_version_is_refused_and_left_alone(tmp_path, version):
    path = tmp_path / "log"
    path.write_bytes(other := b"rollmill flight log %d\nwhatever" % version)
    with pytest.raises(Refused, match=f"version {version} and 2 is known here; use the rollmill that made the run"):
        read_flight(path)
    writer = write(path)
    assert f"version {version}" in writer.complaint
    writer.close()
    assert path.read_bytes() == other


def test_a_log_whose_first_line_was_cut_begins_again(tmp_path):
    path = tmp_path / "log"
    for cut in range(len(MAGIC)):
        path.write_bytes(MAGIC[:cut])
        assert read_flight(path).damage is None
        write(path, 1).close()
        assert updates_of(read_flight(path).entries) == [1]


def test_a_full_disk_ends_the_log_at_a_whole_record_and_nothing_else(tmp_path):
    path = tmp_path / "log"
    write(path, 2).close()
    size = path.stat().st_size
    for room in (0, 1, 9, 100):
        with file_size_limit(size + room):
            writer = write(path, 2, begin=2)
            assert "File too large" in writer.complaint
        writer.note("stopped", 4)
        writer.close()
        read = read_flight(path)
        assert read.damage is None
        assert updates_of(read.entries) == [1, 2]


def test_a_place_that_can_not_be_written_is_reported(tmp_path):
    writer = write(tmp_path / "nowhere" / "log")
    assert "No such file or directory" in writer.complaint
    writer.close()


def test_the_checksum_of_what_was_learned_knows_names_and_every_bit():
    value = learned_checksum({"a": 1.0, "b": 2.0})
    assert value == learned_checksum({"b": 2.0, "a": 1.0})
    others = {"a": 2.0, "b": 1.0}, {"a": 1.0, "c": 2.0}, {"a": np.nextafter(1.0, 2.0), "b": 2.0}, {"a": 1.0}
    assert all(value != learned_checksum(other) for other in others)
