"""What an extraction needs of the network: named at once if it is missing, listed, fetched, or put in place by hand."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from dpfc_cli import backbones
from dpfc_cli.backbones import Wanted
from dpfc_cli.backbones.hub import File
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.downloads import Remote
from dpfc_cli.extraction import fetching
from dpfc_cli.extraction.extract import extract
from dpfc_cli.extraction.fetching import Needed
from dpfc_cli.geometry import Geometry
from dpfc_cli.images.digits import DIGITS
from tests.backbones.test_hub import Hub, home  # noqa: F401
from tests.backbones.tiny import tiny, weights_of, write
from tests.images.pictures import added
from tests.support import refuses


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The file of a data set that nobody serves, an empty cache, and no mirror."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path / "own"))
    monkeypatch.delenv("DPFC_MIRROR", raising=False)
    name, data = "pictures.bin", b"pictures"
    (tmp_path / "mirror" / "small").mkdir(parents=True)
    remote = Remote(f"small/{name}", len(data), hashlib.sha256(data).hexdigest(), (f"http://127.0.0.1:1/{name}",))
    added(monkeypatch, replace(DIGITS, name="small", location="data_dir", remotes=(remote,)))
    small = replace(tiny("vit-ti16"), native=Geometry(resize=16, crop=16), recipe="native")
    monkeypatch.setitem(MODELS, "vit-ti16", replace(small, file=File(repository="some/vit")))
    return data


@pytest.fixture
def model(home: Hub, tmp_path: Path) -> bytes:  # noqa: F811
    content = write(weights_of("vit-ti16"), tmp_path).read_bytes()
    home.files["some/vit"] = {"model.safetensors": content}
    return content


def needs() -> list[Needed]:
    return fetching.needed("small", None, Wanted(name="vit-ti16"))


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("archive")
def test_without_a_network_all_that_is_missing_is_named_at_once_with_the_line_that_lists_it(
    monkeypatch: pytest.MonkeyPatch,
    home: Hub,  # noqa: F811
) -> None:
    offline(monkeypatch)
    with refuses("unreachable", missing=["small", "vit-ti16"]) as refused:
        extract("small", model="vit-ti16")
    assert "dpfc fetch --dataset small --model vit-ti16 --dry-run" in refused.value.remedy
    assert home.asked == []


def test_files_that_are_put_where_the_list_says_are_taken(
    archive: bytes,
    model: bytes,
    home: Hub,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = {remote.place.name: remote for each in needs() for remote in each.remotes()}
    assert listed["model.safetensors"][1:3] == (len(model), hashlib.sha256(model).hexdigest())
    offline(monkeypatch)
    assert [each.here() for each in needs()] == [False, False]
    held = {"pictures.bin": archive, **home.files["some/vit"]}
    for name, remote in listed.items():
        remote.place.parent.mkdir(parents=True, exist_ok=True)
        remote.place.write_bytes(held[name])
    assert [each.here() for each in needs()] == [True, True]
    asked = len(home.asked)
    fetching.fetch(needs())
    made = extract("small", model="vit-ti16").features
    assert made is not None
    assert made.manifest.backbone["weights"]["id"] == "hf:some/vit/model.safetensors"
    assert len(home.asked) == asked


@pytest.mark.usefixtures("model")
def test_what_was_fetched_is_here_and_a_mirror_is_asked_first_and_checked(
    archive: bytes,
    home: Hub,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    mirror = tmp_path / "mirror"
    monkeypatch.setenv("DPFC_MIRROR", mirror.as_uri())
    copy = mirror / "small" / "pictures.bin"
    copy.write_bytes(archive[:-1] + bytes([archive[-1] ^ 1]))
    with refuses("unreachable") as refused:
        fetching.fetch(needs())
    assert refused.value.fields["missing"] == ["small"]
    copy.write_bytes(archive)
    fetching.fetch(needs())
    offline(monkeypatch)
    monkeypatch.delenv("DPFC_MIRROR")
    assert [each.here() for each in needs()] == [True, True]
    fetching.fetch(needs())


def test_of_a_model_with_a_text_tower_its_tokenizer_is_fetched_too() -> None:
    for text, names in ((False, ["model.safetensors"]), (True, ["model.safetensors", "tokenizer.json"])):
        assert [each.name for each in backbones.files(Wanted(name="siglip-b16"), text=text)] == names
