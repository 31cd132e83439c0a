"""What is downloaded of official data sets."""

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dpfc_cli.extensions.archives.cifar import CIFAR10, CIFAR100
from dpfc_cli.extensions.archives.mnist import FASHION_MNIST, MNIST
from tests.images.pictures import open_images
from tests.support import refuses


def test_the_table_holds_complete_checksums_and_https_addresses() -> None:
    remotes = [remote for each in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100) for remote in each.remotes]
    for remote in remotes:
        assert len(bytes.fromhex(str(remote.sha256))) == hashlib.sha256().digest_size
        assert remote.size
        assert len(remote.urls) > 1
        for url in remote.urls:
            assert urlsplit(url).scheme == "https"
            assert url.endswith(f"/{remote.place.name}")
    assert len({remote.sha256 for remote in remotes}) == len(remotes) == 10


def test_what_official_sets_and_archives_do_not_take_is_refused_before_any_file_is_opened(tmp_path: Path) -> None:
    place = tmp_path / "nowhere"
    cases: list[tuple[str, Path | None, dict[str, Any], str, str]] = [
        *((name, place, {}, "missing", "data_dir") for name in ("mnist", "fashion-mnist", "cifar10", "cifar100")),
        ("webdataset:x", None, {"classes": None}, "conflict", "classes"),
        ("webdataset:x", None, {"table": place}, "conflict", "table"),
    ]
    for name, data_dir, asked, code, parameter in cases:
        with refuses(code, parameter=parameter):
            open_images(name, data_dir, **asked)
