"""All data sets are opened by their names, which packages add. Nothing says what the pictures show."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dpfc_cli.annotations.groups import rule_of
from dpfc_cli.errors import UserError
from dpfc_cli.images.catalogue import check, usages
from dpfc_cli.images.digits import DIGITS
from tests.images.pictures import added, files, open_images, request
from tests.support import refuses


def refused(dataset: str, data_dir: Path | None = None, **options: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        check(dataset, data_dir, request(**options))
    with pytest.raises(UserError) as again:
        open_images(dataset, data_dir, **options)
    assert str(again.value) == str(caught.value)
    return caught.value


def test_an_unknown_data_set_is_an_error_with_the_nearest_name() -> None:
    error = refused("digit")
    assert error.what == "Unknown data set 'digit'."
    assert "'digits'" in error.remedy
    assert (error.code, error.fields["known"]) == ("unknown-name", usages())
    assert refused("digits:here").code == "unknown-name"


def test_a_package_adds_a_data_set_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    added(monkeypatch, replace(DIGITS, name="small"))
    assert open_images("small").splits["train"].n == 1400
    assert "small" in refused("smal").remedy
    added(monkeypatch, cast(Any, SimpleNamespace(name="odd")))
    with refuses("unsupported"):
        open_images("odd")


def test_a_path_without_its_format_is_an_error_that_says_how_to_write_it() -> None:
    for typed in ("./photos", "one.tar", "train-{000..100}.tar", "", "a" * 5000, "nul\0"):
        error = refused(typed)
        assert (error.code, error.what) == ("unknown-name", f"Unknown data set '{typed}'.")
        assert "imagefolder:" in error.remedy


def test_a_missing_folder_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A tilde after the colon is the home folder.
    monkeypatch.setenv("HOME", str(tmp_path))
    with refuses("missing", path=str(tmp_path / "pictures")):
        open_images("imagefolder:~/pictures")


def test_an_option_that_would_have_no_effect_is_an_error_before_any_file_is_opened() -> None:
    place = Path("somewhere")
    conflicts: dict[str, Any] = {
        **{"data_dir": place, "classes": ("a", "b"), "window": (0, 1), "exif": True, "label_column": "x"},
        "group_by": rule_of("folder:1"),
    }
    for name, value in conflicts.items():
        error = refused("digits", **{name: value})
        assert (error.code, error.fields["parameter"]) == ("conflict", name)
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        ("parquet:x", {"classes": None}, "conflict", "classes"),
        ("imagefolder", {}, "missing", "source"),
        ("imagefolder:", {}, "missing", "source"),
        ("imagefolder:somewhere", {"data_dir": place}, "conflict", "data_dir"),
    ]
    for window in ((1, 1), (2, 1), (0, float("nan")), (0, float("inf")), (1,), (1, 2, 3)):
        cases.append(("imagefolder:x", {"window": window}, "bad-value", "window"))
    for dataset, options, code, parameter in cases:
        error = refused(dataset, **options)
        assert (error.code, error.fields["parameter"]) == (code, parameter)
    error = refused("parquet:x", group_by=rule_of("name:(x)"))
    assert ("column:NAME" in str(error), error.fields["parameter"]) == (True, "group_by")


def test_large_packages_are_imported_for_what_needs_them_alone(tmp_path: Path) -> None:
    """Encoded pictures need Pillow, parquet needs PyArrow, DICOM needs pydicom, and nothing here needs JAX."""
    large = "{'PIL', 'jax', 'pyarrow', 'scipy', 'urllib.request', 'pydicom'} & set(sys.modules)"
    code = (
        f"import sys, dpfc_cli.images.catalogue as i; i.open_images('digits'); print({large}); "
        f"asked = i.Request(classes=('a', 'b')); "
        f"i.open_images({files(tmp_path, 'a/1.png')!r}, None, asked).splits['train'].pixels(0, 1); print({large})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n{'PIL'}\n"
