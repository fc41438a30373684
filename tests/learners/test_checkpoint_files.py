"""A checkpoint comes back bit for bit or is refused, whatever happened to its files."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollmill.errors import RollmillError
from rollmill.persist.checkpoints import Checkpoint, CheckpointConfig, Checkpoints, Content, Damaged, Unjudged

FILES = ("manifest.json", "state.json", "journal.safetensors", "weights.safetensors", "store@0.safetensors")
OLDER, NEWER = 3, 7
NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff4dead0000beef"))[0]


def sample(update: int) -> Content:
    generator = np.random.default_rng(update)
    arrays = {
        "weights": {"torso.0/weight": generator.standard_normal((3, 4)).astype(np.float32), "bias": np.zeros(3)},
        "journal": {"obs": generator.integers(0, 255, (2, 5), dtype=np.uint8)},
    }
    chunks = {"store": {"0": {"frames": generator.integers(0, 255, 7, dtype=np.uint8)}}}
    return Content(arrays, {"scores": [1.5, float("nan")], "sequence": update}, update, update * 100, chunks)


def bits(value: Any) -> Any:
    """A form in which two contents are equal exactly if all their bits are."""
    if isinstance(value, Content):
        return bits(value.arrays), bits(value.state), value.update, value.env_steps, bits(value.chunks)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    return type(value), value


def checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(folder, CheckpointConfig())


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """The folder with an older and a newer good checkpoint, never changed."""
    folder = tmp_path_factory.mktemp("originals")
    for update in (OLDER, NEWER):
        checkpoints(folder).write(sample(update))
    assert sorted(os.listdir(folder / f"{NEWER:09d}")) == sorted(FILES)
    return folder


@pytest.fixture
def folder(originals, tmp_path):
    return Path(shutil.copytree(originals, tmp_path / "checkpoints", symlinks=True))


def assert_passed_over(folder: Path) -> None:
    """The newer checkpoint is refused with a reason in one line, and the older one is used in its place."""
    damaged = folder / f"{NEWER:09d}"
    with pytest.raises(Damaged) as refusal:
        Checkpoints.read(damaged)
    assert str(refusal.value) == f"{damaged}: {refusal.value.reason}"
    assert "\n" not in str(refusal.value)
    found = checkpoints(folder).newest()
    assert found is not None
    assert bits(found.content) == bits(sample(OLDER))
    assert found.path.name == f"{OLDER:09d}"
    assert found.complaints == [str(refusal.value)]


# --- round trips

DTYPES = (np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64, np.float16, np.int8)
any_array = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
any_name = st.one_of(st.text(max_size=12), st.sampled_from(["", ".", "..", "a.b/c", "/", "größe", "重み", "\x00"]))
any_state = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(width=64) | st.text() | st.just(NAN_WITH_PAYLOAD),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.sampled_from(["~", "~float", "~~float"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    arrays=st.dictionaries(
        st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,9}", fullmatch=True),
        st.dictionaries(any_name, any_array, max_size=3),
        max_size=3,
    ),
    state=st.dictionaries(st.text(max_size=8) | st.just("~float"), any_state, max_size=4),
    update=st.integers(0, 2**40),
)
def test_every_content_comes_back_bit_for_bit(arrays, state, update):
    content = Content(arrays, state, update, 2 * update)
    with tempfile.TemporaryDirectory() as temporary:
        path = checkpoints(Path(temporary)).write(content)
        assert bits(Checkpoints.read(path)) == bits(content)


def test_nan_bit_patterns_survive_in_arrays_and_state(tmp_path):
    patterns = np.array([0x7FC00000, 0xFFC00001, 0x7F800001, 0xFFBFFFFF], np.uint32)
    floats = [NAN_WITH_PAYLOAD, float("inf"), float("-inf"), -0.0, 5e-324, 0.1, 1e22]
    content = Content({"a": {"nan": patterns.view(np.float32)}}, {"floats": floats}, 0, 0)
    back = Checkpoints.read(checkpoints(tmp_path).write(content))
    assert back.arrays["a"]["nan"].view(np.uint32).tolist() == patterns.tolist()
    assert [struct.pack(">d", x) for x in back.state["floats"]] == [struct.pack(">d", x) for x in floats]


@pytest.mark.parametrize(
    "view", [lambda a: a.T, lambda a: a[:, ::2], lambda a: a[::-1], lambda a: np.asfortranarray(a), lambda a: a[1, 2]]
)
def test_views_of_any_strides_are_stored_by_value(tmp_path, view):
    # safetensors 0.8 takes the memory as it lies and would scramble them silently
    array = np.asarray(view(np.arange(12.0).reshape(3, 4)))
    back = Checkpoints.read(checkpoints(tmp_path).write(Content({"a": {"view": array}}, {}, 0, 0)))
    assert back.arrays["a"]["view"].shape == array.shape
    np.testing.assert_array_equal(back.arrays["a"]["view"], array)


def test_what_is_read_may_be_written_to(folder):
    bias = Checkpoints.read(folder / f"{NEWER:09d}").arrays["weights"]["bias"]
    assert bias.flags.writeable
    bias[:] = 1
    assert (bias == 1).all()


def test_numpy_scalars_in_the_state_become_plain_numbers(tmp_path):
    state = {"a": np.float32(0.1), "b": np.int64(-3), "c": np.bool_(True), "d": (1, np.float64("nan"))}
    back = Checkpoints.read(checkpoints(tmp_path).write(Content({}, state, 0, 0))).state
    assert bits(back) == bits({"a": float(np.float32(0.1)), "b": -3, "c": True, "d": [1, float("nan")]})


@pytest.mark.parametrize(
    ("arrays", "state"),
    [
        ({"../a": {}}, {}),
        ({"": {}}, {}),
        ({".hidden": {}}, {}),
        ({"a/b": {}}, {}),
        ({"a@b": {}}, {}),
        ({"a": {"__metadata__": np.zeros(1)}}, {}),
        ({}, {"x": object()}),
        ({}, {"x": {1: 2}}),
        ({}, {"x": np.zeros(2)}),
    ],
)
def test_content_that_could_not_be_read_back_is_not_written(tmp_path, arrays, state):
    with pytest.raises((ValueError, TypeError)):
        checkpoints(tmp_path).write(Content(arrays, state, 0, 0))
    assert os.listdir(tmp_path) == []


# --- damage


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_at_any_position_is_seen(folder, name):
    path = folder / f"{NEWER:09d}" / name
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position * 5 % 8)  # the bits 0, 5, 2, 7, 4, 1, 6, 3 in turn
        path.write_bytes(bad)
        with pytest.raises(Damaged):
            Checkpoints.read(path.parent)
    assert_passed_over(folder)
    path.write_bytes(good)
    assert bits(Checkpoints.read(path.parent)) == bits(sample(NEWER))


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_at_any_length_is_seen(folder, name):
    path = folder / f"{NEWER:09d}" / name
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(Damaged):
            Checkpoints.read(path.parent)
    assert_passed_over(folder)


READERS: dict[str, Callable[[Checkpoint], Any]] = {
    "state.json": Checkpoint.state,
    "journal.safetensors": lambda checkpoint: checkpoint.part("journal"),
    "weights.safetensors": lambda checkpoint: checkpoint.part("weights"),
    "store@0.safetensors": lambda checkpoint: dict(checkpoint.chunks("store")),
}


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
@pytest.mark.parametrize("name", READERS)
def test_damage_of_a_part_is_named_when_that_part_is_read_and_the_others_are_read_all_the_same(folder, name, spoil):
    path = folder / f"{NEWER:09d}"
    (path / name).write_bytes(spoil((path / name).read_bytes()))
    checkpoint = Checkpoint(path)
    for other, read in READERS.items():
        if other != name:
            assert read(checkpoint)
    with pytest.raises(Damaged, match=f"{path}: {name} (is cut short: |has a wrong checksum)"):
        READERS[name](checkpoint)


def test_a_part_is_read_without_the_others(folder):
    path = folder / f"{NEWER:09d}"
    for name in set(FILES) - {"manifest.json", "weights.safetensors"}:
        (path / name).unlink()
    assert bits(Checkpoint(path).part("weights")) == bits(sample(NEWER).arrays["weights"])
    found = checkpoints(folder).newest_with(lambda checkpoint: checkpoint.part("weights"))
    assert (found.path, found.complaints) == (path, [])


def test_a_part_that_a_checkpoint_does_not_have_is_named(folder):
    with pytest.raises(Damaged, match=r"manifest\.json doesn't name batch\.safetensors"):
        Checkpoint(folder / f"{NEWER:09d}").part("batch")
    assert dict(Checkpoint(folder / f"{NEWER:09d}").chunks("batch")) == {}


def test_parts_are_of_one_checkpoint_though_the_link_leads_elsewhere_meanwhile(folder):
    checkpoint = Checkpoint(folder / "latest")
    (folder / "latest").unlink()
    (folder / "latest").symlink_to(f"{OLDER:09d}")
    assert bits(checkpoint.part("weights")) == bits(sample(NEWER).arrays["weights"])


def flip(path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    content = bytearray((path / name).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    (path / name).write_bytes(content)


def cut(path: Path, data: st.DataObject) -> None:
    file = path / data.draw(st.sampled_from(FILES))
    os.truncate(file, data.draw(st.integers(0, file.stat().st_size - 1)))


def delete(path: Path, data: st.DataObject) -> None:
    for name in data.draw(st.sets(st.sampled_from(FILES), min_size=1)):
        (path / name).unlink()


def insert(path: Path, data: st.DataObject) -> None:
    file = path / data.draw(st.sampled_from(FILES))
    content, extra = file.read_bytes(), data.draw(st.sampled_from([b"\n", b" "]) | st.binary(min_size=1, max_size=40))
    at = data.draw(st.integers(0, len(content)))
    file.write_bytes(content[:at] + extra + content[at:])


def swap(path: Path, data: st.DataObject) -> None:
    one, other = (path / name for name in data.draw(st.permutations(FILES))[:2])
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def overwrite(path: Path, data: st.DataObject) -> None:
    (path / data.draw(st.sampled_from(FILES))).write_bytes(data.draw(st.binary(max_size=100)))


def mix(path: Path, data: st.DataObject) -> None:
    """Files of the older checkpoint in place of the newer one's."""
    names = data.draw(st.sets(st.sampled_from(FILES), min_size=1))
    for name in names:
        shutil.copy(path.parent / f"{OLDER:09d}" / name, path / name)


def zeros(path: Path, data: st.DataObject) -> None:
    """The length is right and the blocks never reached the disk."""
    file = path / data.draw(st.sampled_from(FILES))
    size = file.stat().st_size
    os.truncate(file, data.draw(st.integers(0, size - 1)))
    os.truncate(file, size)


def replace_by_another_kind(path: Path, data: st.DataObject) -> None:
    file = path / data.draw(st.sampled_from(FILES))
    match data.draw(st.sampled_from(["link", "loop", "dangling", "fifo", "folder"])):
        case "link":
            os.rename(file, path / "elsewhere")
            file.symlink_to("elsewhere")
        case "loop":
            file.unlink()
            file.symlink_to(file.name)
        case "dangling":
            file.unlink()
            file.symlink_to("nothing")
        case "fifo":
            file.unlink()
            os.mkfifo(file)
        case "folder":
            file.unlink()
            file.mkdir()


def garbage_manifest(path: Path, data: st.DataObject) -> None:
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    keys = st.text(max_size=4) | st.sampled_from(["format", "files", "update", "sha256", "metric"])
    value = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=8)
    (path / "manifest.json").write_text(json.dumps(data.draw(value)))


def another_version(path: Path, data: st.DataObject) -> None:
    record = json.loads((path / "manifest.json").read_text())
    number = data.draw(st.integers(-5, 10**12).filter(lambda n: n != 1))
    (path / "manifest.json").write_bytes(signed({**record, "format": number}))


def empty(path: Path, data: st.DataObject) -> None:
    shutil.rmtree(path)
    path.mkdir()


DAMAGES: list[Callable[[Path, Any], None]] = [
    flip,
    cut,
    delete,
    insert,
    swap,
    overwrite,
    mix,
    zeros,
    replace_by_another_kind,
    garbage_manifest,
    another_version,
    empty,
]


def snapshot(path: Path) -> dict[str, bytes | None]:
    return {
        entry.name: (path / entry.name).read_bytes() if entry.is_file(follow_symlinks=False) else None
        for entry in os.scandir(path)
    }


@pytest.mark.parametrize("damage", DAMAGES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_passed_over_for_the_older_checkpoint(originals, damage, data):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(shutil.copytree(originals, Path(temporary) / "checkpoints", symlinks=True))
        newer = folder / f"{NEWER:09d}"
        before = snapshot(newer)
        damage(newer, data)
        if damage is mix and bits_or_none(newer) == bits(sample(OLDER)):
            found = checkpoints(folder).newest()  # all of it was taken from the older one: whole, but wrongly named
            assert found.path.name == f"{OLDER:09d}"
            assert found.complaints == [f"{newer}: is named for update {NEWER} but holds update {OLDER}"]
        elif snapshot(newer) != before:
            assert_passed_over(folder)
        else:
            assert bits(checkpoints(folder).newest().content) == bits(sample(NEWER))


def bits_or_none(path: Path) -> Any:
    try:
        return bits(Checkpoints.read(path))
    except Damaged:
        return None


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), damage=st.sampled_from([flip, cut, delete, overwrite, empty]))
def test_when_all_are_damaged_there_is_none_and_each_is_named(originals, data, damage):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(shutil.copytree(originals, Path(temporary) / "checkpoints", symlinks=True))
        older = folder / f"{OLDER:09d}"
        before = snapshot(older)
        damage(older, data)
        if snapshot(older) == before:
            return
        shutil.rmtree(folder / f"{NEWER:09d}")
        shutil.copytree(older, folder / f"{NEWER:09d}")
        found = checkpoints(folder)
        assert found.newest() is None
        assert [f"/{NEWER:09d}: " in found.complaints[0], f"/{OLDER:09d}: " in found.complaints[1]] == [True, True]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            lambda path: os.truncate(path / "weights.safetensors", 50),
            "weights.safetensors is cut short: 50 of 248 bytes",
        ),
        (lambda path: (path / "state.json").unlink(), "state.json is missing"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json is unreadable"),
        (lambda path: shutil.rmtree(path), "there is no such folder"),
        (lambda path: path.rename(path.with_name("old")) and path.write_text(""), "is not a folder"),
    ],
)
def test_the_reason_says_what_is_wrong(folder, damage, reason):
    path = folder / f"{NEWER:09d}"
    size = (path / "weights.safetensors").stat().st_size
    damage(path)
    with pytest.raises(Damaged) as refusal:
        Checkpoints.read(path)
    assert refusal.value.reason == reason.replace("248", str(size))
    assert isinstance(refusal.value, RollmillError)
    assert refusal.value.exit_code == 2


def test_a_format_from_the_future_is_named_and_may_be_good_elsewhere(folder):
    path = folder / f"{NEWER:09d}"
    record = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_bytes(signed({**record, "format": 2, "shards": 4}))
    with pytest.raises(Unjudged, match="a newer format, 2; this rollmill reads 1; update rollmill"):
        Checkpoints.read(path)
    assert_passed_over(folder)


# --- malice: everything is signed correctly


def rendered(record: dict[str, Any]) -> bytes:
    return json.dumps(record, indent=1).encode() + b"\n"


def signed(record: dict[str, Any]) -> bytes:
    """The manifest with a right checksum of its own, by the documented rule."""
    record = {key: value for key, value in record.items() if key != "sha256"}
    return rendered({**record, "sha256": sha256(rendered(record)).hexdigest()})


def record_of(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": sha256(data).hexdigest()}


def forge(path: Path, **changes: Any) -> None:
    record = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_bytes(signed({**record, **changes}))


def test_the_forger_of_these_tests_makes_manifests_that_pass(folder):
    path = folder / f"{NEWER:09d}"
    forge(path, rollmill="forged")
    assert bits(Checkpoints.read(path)) == bits(sample(NEWER))


SECRET = b"secret"


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/tmp/secret.safetensors",
        "a/b.safetensors",
        "./weights.safetensors",
        ".safetensors",
        "weights.safetensors\x00",
        "weights.safetensors\n",
        "ü.safetensors",
        "manifest.json",
        "a@.safetensors",
        "a@b@c.safetensors",
        "..",
        "",
    ],
)
def test_a_manifest_that_names_other_paths_is_refused_unopened(folder, name):
    path = folder / f"{NEWER:09d}"
    (folder / "secret.safetensors").write_bytes(SECRET)
    files = json.loads((path / "manifest.json").read_text())["files"]
    forge(path, files={**files, name: record_of(SECRET)})
    with pytest.raises(Damaged, match="names a file that can't be part of a checkpoint"):
        Checkpoints.read(path)
    assert_passed_over(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"update": -1},
        {"update": True},
        {"update": 7.0},
        {"update": "7"},
        {"update": NEWER + 1},
        {"env_steps": 5},
        {"metric": {"name": "m", "value": float("nan")}},
        {"metric": 3},
        {"files": {}},
        {"files": []},
        {"files": {"state.json": {"size": 1 << 60, "sha256": "0" * 64}}},
        {"files": {"state.json": {"size": 1 << 35, "sha256": "0" * 64}}},
        {"files": {"state.json": {"size": -1, "sha256": "0" * 64}}},
        {"files": {"state.json": {"size": 1, "sha256": "0" * 63}}},
        {"extra": 1},
        {"format": True},
        {"format": "1"},
        {"format": 10**5000},
        {"rollmill": "x" * (1 << 20)},
    ],
)
def test_wrong_entries_are_refused_though_the_checksum_is_right(folder, changes):
    path = folder / f"{NEWER:09d}"
    if changes.get("format") == 10**5000:
        text = (path / "manifest.json").read_text().replace('"format": 1', '"format": 1' + "0" * 5000)
        (path / "manifest.json").write_text(text)
    else:
        forge(path, **changes)
    assert_passed_over(folder)


def test_a_key_that_stands_twice_is_refused(folder):
    path = folder / f"{NEWER:09d}" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"{\n", b'{\n "update": 3,\n', 1))
    assert_passed_over(folder)


def test_deep_nesting_is_refused(folder):
    (folder / f"{NEWER:09d}" / "manifest.json").write_text('{"format": ' + "[" * 200_000)
    assert_passed_over(folder)


def put(path: Path, name: str, data: bytes) -> None:
    """A file with any content and the right checksum."""
    (path / name).write_bytes(data)
    files = json.loads((path / "manifest.json").read_text())["files"]
    forge(path, files={**files, name: record_of(data)})


def header(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 1 << 62),
        header("{"),
        header('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'),
        header('{"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}') + b"\0\0",
        header('{"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}') + b"\0",
        header('{"a": {"dtype": "O", "shape": [1], "data_offsets": [0, 1]}}') + b"\0",
        header('{"a": {"dtype": "F32", "shape": [9223372036854775807, 4], "data_offsets": [0, 4]}}') + b"\0" * 4,
    ],
)
def test_safetensors_that_make_no_sense_are_refused(folder, data):
    put(folder / f"{NEWER:09d}", "weights.safetensors", data)
    if b"BF16" in data and bits_or_none(folder / f"{NEWER:09d}") is not None:
        pytest.skip("numpy knows bfloat16 here")
    assert_passed_over(folder)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60) | st.text(max_size=40).map(header))
def test_no_content_of_a_file_raises_anything_but_damaged(originals, data):
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(shutil.copytree(originals / f"{NEWER:09d}", Path(temporary) / "checkpoint"))
        for name in ("weights.safetensors", "state.json"):
            put(path, name, data)
            found = bits_or_none(path)
            assert found is None or Checkpoints.read(path).update == NEWER, f"{name} is refused, or makes sense"


@pytest.mark.parametrize(
    "state",
    [
        "[]",
        "{}",
        "[" * 200_000,
        '{"update": 7, "env_steps": 700}',
        '{"update": 7, "env_steps": 700, "state": 3}',
        '{"update": 7, "env_steps": 700, "state": {"x": {"~float": 3}}}',
        '{"update": 7, "env_steps": 700, "state": {"x": {"~float": "zz"}}}',
        '{"update": 7, "env_steps": 700, "state": {"x": {"~float": "00"}}}',
        '{"update": 7, "env_steps": 700, "state": {"~float": "7ff8000000000000"}}',
        '{"update": 7, "env_steps": 700, "state": {"x": 1, "x": 2}}',
        '{"update": 3, "env_steps": 700, "state": {}}',
    ],
)
def test_a_state_that_makes_no_sense_is_refused(folder, state):
    put(folder / f"{NEWER:09d}", "state.json", state.encode())
    assert_passed_over(folder)


def test_nothing_is_allocated_for_a_size_that_the_file_does_not_have(folder):
    resource = pytest.importorskip("resource")
    path = folder / f"{NEWER:09d}"
    forge(path, files={"state.json": {"size": 1 << 36, "sha256": "0" * 64}})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Damaged, match="cut short"):
        Checkpoints.read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # kB


def test_reading_leaves_no_descriptor_open(folder):
    path = folder / f"{NEWER:09d}"
    before = len(os.listdir("/proc/self/fd"))
    Checkpoints.read(path)
    (path / "state.json").unlink()
    (path / "state.json").mkdir()
    assert_passed_over(folder)
    assert len(os.listdir("/proc/self/fd")) == before
