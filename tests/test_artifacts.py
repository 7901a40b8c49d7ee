"""Folders for what attempts leave: names that stay inside the root, and removal."""

import logging
import shutil
import string
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine.artifacts import LONGEST_NAME, ArtifactFolders, folder_name

ODD_IDS = [
    "plain-1",
    "../../etc/passwd",
    "..",
    ".",
    "/",
    "/absolute",
    "a/b",
    "a\\b",
    "C:\\x",
    "a b\tc\nd",
    "käse 🧀",
    "%2E%2E",
    "~root",
    "-rf",
    "x" * 500,
    "ä" * 500,
    "." * 500,
    "/" * 500,
    "x" * 499 + "y",
    "con",
]

SAFE = set(string.ascii_letters + string.digits + "-_%~")


def is_safe(name: str) -> bool:
    """Tell whether every file system takes it as one plain name."""
    return bool(name) and set(name) <= SAFE and len(name) <= LONGEST_NAME


def is_there(path: Path | str) -> bool:
    return Path(path).is_dir()


def names_in(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


@pytest.mark.parametrize("task_id", ODD_IDS, ids=lambda task_id: ascii(task_id)[:20])
async def test_whatever_the_id_the_folder_is_below_the_root(tmp_path: Path, task_id: str) -> None:
    root = tmp_path / "root"
    folders = ArtifactFolders(root)
    folders.make("other", 1)
    folder = Path(folders.make(task_id, 1))
    assert is_there(folder)
    assert folder.parent.parent == root
    assert names_in(root) == sorted([folder.parent.name, "other"]), "and nowhere else"
    assert is_safe(folder.parent.name)
    (folder / "result.txt").write_text("x")
    await folders.clean(task_id)
    assert names_in(root) == ["other"]
    assert names_in(tmp_path) == ["root"]


def test_different_ids_have_different_folders() -> None:
    names = [folder_name(task_id) for task_id in ODD_IDS]
    assert len(set(names)) == len(ODD_IDS)


@given(st.lists(st.text(min_size=1, max_size=300), min_size=2, max_size=6, unique=True))
def test_names_of_different_ids_never_meet(ids: list[str]) -> None:
    names = [folder_name(task_id) for task_id in ids]
    assert len(set(names)) == len(ids)
    assert all(is_safe(name) for name in names)


def test_an_attempt_s_folder_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    folders = ArtifactFolders(tmp_path / "root")
    folder = Path(folders.make("t", 1))
    (folder / "kept.txt").write_text("x")
    assert folders.make("t", 1) == str(folder)
    assert (folder / "kept.txt").read_text() == "x"
    assert folder.stat().st_mode & 0o077 == 0
    assert Path(folders.make("t", 2)) == folder.parent / "2"


async def test_one_attempt_s_folder_is_removed_and_the_others_stay(tmp_path: Path) -> None:
    folders = ArtifactFolders(tmp_path)
    first, second = Path(folders.make("t", 1)), Path(folders.make("t", 2))
    (first / "deep").mkdir()
    (first / "deep" / "result.txt").write_text("x")
    await folders.clean("t", 1)
    assert not is_there(first)
    assert is_there(second)
    await folders.clean("t", 2)
    assert names_in(tmp_path) == [], "the task's own folder goes with the last of them"


async def test_all_of_a_task_s_folders_are_removed_and_those_of_other_tasks_stay(tmp_path: Path) -> None:
    folders = ArtifactFolders(tmp_path / "root")
    folders.make("t", 1)
    folders.make("t", 2)
    other = Path(folders.make("t2", 1))
    await folders.clean("t")
    assert is_there(other)
    assert names_in(tmp_path / "root") == ["t2"]


async def test_the_root_stays_when_the_last_task_in_it_is_cleaned(tmp_path: Path) -> None:
    folders = ArtifactFolders(tmp_path / "root")
    folders.make("t", 1)
    await folders.clean("t", 1)
    assert names_in(tmp_path / "root") == []
    folders.make("t", 1)
    await folders.clean("t")
    assert is_there(tmp_path / "root"), "it is the user's"


async def test_removing_what_is_not_there_does_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    folders = ArtifactFolders(root)
    await folders.clean("t")
    await folders.clean("t", 1)
    assert not is_there(root), "it is made with the first folder in it"
    folders.make("t", 1)
    await folders.clean("t", 2)
    await folders.clean("u")
    assert is_there(root / "t" / "1")


async def test_the_root_is_kept_when_the_engine_ends(tmp_path: Path) -> None:
    folders = ArtifactFolders(tmp_path / "root")
    folder = folders.make("t", 1)
    await folders.aclose()
    assert is_there(folder)


async def test_a_link_out_of_the_folder_is_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_text("x")
    folders = ArtifactFolders(tmp_path / "root")
    folder = Path(folders.make("t", 1))
    (folder / "link").symlink_to(outside, target_is_directory=True)
    await folders.clean("t", 1)
    assert not is_there(folder)
    assert (outside / "precious.txt").read_text() == "x"


async def test_what_cannot_be_removed_is_told_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, *, ignore_errors: bool) -> None:
        assert ignore_errors

    folders = ArtifactFolders(tmp_path)
    folder = folders.make("t", 1)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    with caplog.at_level(logging.WARNING):
        await folders.clean("t", 1)
    assert f"{folder} could not be removed" in caplog.text


# --- without a root ---


async def test_without_a_root_there_is_a_temporary_one_until_the_end() -> None:
    folders = ArtifactFolders(None)
    folder = Path(folders.make("../t", 1))
    assert is_there(folder)
    (folder / "result.txt").write_text("x")
    root = folder.parent.parent
    other = Path(folders.make("u", 1))
    assert other.parent.parent == root
    await folders.clean("u")
    assert not is_there(other)
    await folders.aclose()
    assert not is_there(root)
    await folders.aclose()


async def test_without_a_root_nothing_is_made_until_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**options: object) -> None:
        raise AssertionError("not needed")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    folders = ArtifactFolders(None)
    await folders.clean("t")
    await folders.clean("t", 1)
    await folders.aclose()


async def test_a_temporary_root_that_is_gone_already_is_no_trouble() -> None:
    folders = ArtifactFolders(None)
    folder = Path(folders.make("t", 1))
    shutil.rmtree(folder.parent.parent)
    await folders.clean("t")
    await folders.aclose()
