"""``ndfeed verify``: what it prints, and the status a script goes by."""

import json

import numpy as np
import packed_making
import pytest


@pytest.fixture
def packed(tmp_path):
    packed_making.write(
        tmp_path / "p",
        {"image": np.arange(60.0).reshape(20, 3), "text": [np.arange(n) for n in range(20)]},
        rows_per_block=5,
    )
    return tmp_path / "p"


def damage(packed):
    path = packed / "00000/image.npy"
    data = bytearray(path.read_bytes())
    data[128 + 24 * 7] ^= 1
    path.write_bytes(data)


def test_a_sound_dataset(invoke, packed):
    """One look tells."""
    done = invoke("verify", packed)

    assert done.exit_code == 0
    assert "20 rows in 3 columns" in done.stdout
    assert "no damage found" in done.stdout
    assert done.stderr == ""


def test_damage_is_listed_with_its_rows(ndfeed_process, packed):
    """Status 1, the list on standard output, one line with the way out on standard error."""
    damage(packed)
    done = ndfeed_process("verify", packed, COLUMNS="200")

    assert done.returncode == 1
    assert f"{packed}/00000/image.npy" in done.stdout
    assert "[5, 10)" in done.stdout
    assert "no damage found" not in done.stdout
    assert done.stderr == (
        f"ndfeed: {packed}: 1 damaged range; restore it with ndfeed pack --repair\n"
    )


def test_json_says_the_same(invoke, packed):
    """For scripts: the keys are public."""
    sound = json.loads(invoke("verify", packed, "--json", "--threads", "2").stdout)
    damage(packed)
    done = invoke("verify", packed, "--json")
    found = json.loads(done.stdout)

    assert sound.pop("seconds") >= 0
    assert sound == {
        "path": str(packed),
        "ok": True,
        "rows": 20,
        "columns": 3,
        "bytes": 3 * 128 + 20 * 24 + 190 * 8 + 21 * 8,
        "damaged": [],
    }
    assert done.exit_code == 1
    assert not found["ok"]
    assert found["damaged"] == [
        {
            "file": f"{packed}/00000/image.npy",
            "field": "image",
            "rows": [5, 10],
            "problem": "does not match the checksum from when it was written",
        }
    ]


def test_a_damaged_manifest_is_one_line(ndfeed_process, packed, tmp_path):
    """And the other paths are verified all the same."""
    text = (packed / "ndfeed.json").read_bytes()
    packed_making.write(tmp_path / "q", {"x": np.arange(3)})
    (packed / "ndfeed.json").write_bytes(text.replace(b"image", b"imoge"))
    done = ndfeed_process("verify", packed, tmp_path / "q", tmp_path)

    assert done.returncode == 1
    assert done.stdout.count("no damage found") == 1
    first, second = done.stderr.splitlines()
    assert first.startswith(f"ndfeed: {packed}/ndfeed.json: expected digest ")
    assert first.endswith("; copy or pack the dataset again")
    assert second.startswith(f"ndfeed: {tmp_path}: no packed dataset")
