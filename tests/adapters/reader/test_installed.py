"""Which files belong to installed packages, and which are the program's."""

from __future__ import annotations

from pathlib import Path

import pytest

from teola_plugin.adapters.reader.values import is_installed_file


def test_packages_may_lie_beside_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "frame_work-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: frame-work\nVersion: 1.0\n")
    (told / "RECORD").write_text(
        "frame_work/__init__.py,,\nsingle.py,,\n../bin/run,,\nframe_work-1.0.dist-info/RECORD,,\n"
    )
    own = tmp_path / "program.egg-info"
    own.mkdir()
    (own / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: program\nVersion: 1.0\n")
    (own / "SOURCES.txt").write_text("program/app.py\n")
    files = ["frame_work/inner/part.py", "single.py", "program/app.py", "frame_work_app.py", "other.py"]
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [is_installed_file(str(tmp_path / each)) for each in files] == [True, True, False, False, False]
    assert not is_installed_file(str(tmp_path.parent / "frame_work" / "part.py"))
    assert is_installed_file("/usr/lib/python3/dist-packages/yaml/__init__.py")
    assert not is_installed_file("<stdin>")
