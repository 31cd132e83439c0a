"""Class vectors from text towers: tokens and vectors are those of the reference libraries, and lie in the space of the
features. `bench/text_references.py` ran the libraries.
"""

import json
import re
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli import backbones
from dpfc_cli.backbones import Wanted
from dpfc_cli.backbones.hub import File
from dpfc_cli.backbones.vision_transformer import transformer
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.errors import UserError
from dpfc_cli.extensions.starts.text import PROMPTS, TextVectors, class_vectors, has_text, texts_of, tokenizer
from dpfc_cli.files import sha256_of
from tests.backbones.lines import lines, tokens_of
from tests.backbones.test_hub import Hub
from tests.backbones.tiny import build, kept, pictures, random_weights, tiny
from tests.hostile import altered, places
from tests.support import refuses

KNOWN: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "text.json").read_text("utf-8"))
CASES: dict[str, dict[str, Any]] = KNOWN["cases"]
TOKENS = {"clip-b16": "token_embedding.weight", "siglip-b16": "text_model.embeddings.token_embedding.weight"}


def byte_pairs() -> dict[str, Any]:
    """A tokenizer.json of CLIP: vocabulary and merges."""
    merges = KNOWN["clip"]["merges"]
    vocabulary = {token: i for i, token in enumerate(tokens_of(merges))}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "end_of_word_suffix": "</w>"}
    return {"version": "1.0", "added_tokens": [], "model": model | {"unk_token": tokenizer.END}}


def unigram() -> dict[str, Any]:
    """A tokenizer.json of SigLIP: pieces and rules for characters."""
    rules = {"type": "Precompiled", "precompiled_charsmap": KNOWN["siglip"]["rules"]}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, rules]},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": KNOWN["siglip"]["pieces"]},
    }


def new(folder: Path, form: str) -> None:
    """tokenizer.json."""
    (folder / "tokenizer.json").write_text(json.dumps(unigram() if form == "siglip-b16" else byte_pairs()), "utf-8")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of dpfc. The two models of the table have the size of the references."""
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path))
    monkeypatch.setitem(MODELS, "clip-b16", tiny("clip-b16"))
    # The text tower of the reference has another number of heads than its vision tower.
    monkeypatch.setitem(MODELS, "siglip-b16", replace(tiny("siglip-b16"), heads=3, file=File(repository="some/siglip")))
    return tmp_path


def whole(name: str) -> dict[str, np.ndarray]:
    return random_weights(CASES[name]["shapes"])


def made(cache: Path, name: str, tensors: dict[str, np.ndarray] | None = None) -> Path:
    """The weights of a model, and its tokenizer beside them, which is returned."""
    place = kept(MODELS[name], cache, whole(name) if tensors is None else tensors)
    new(place.parent, name)
    return place.parent / "tokenizer.json"


def vectors(name: str, **options: Any) -> TextVectors:
    return class_vectors(Wanted(name=name, **options), KNOWN["classes"], KNOWN["prompts"])


def relative(ours: np.ndarray, theirs: Any) -> float:
    return float(np.abs(ours - np.array(theirs)).max() / np.linalg.norm(theirs, axis=1).min())


@pytest.mark.parametrize("name", CASES)
def test_lines_of_many_scripts_have_the_numbers_of_the_library(name: str, cache: Path) -> None:
    """In one of them the tokenizers package looks at whole graphemes, where sentencepiece does not."""
    made(cache, name)
    loaded, known = tokenizer.load(MODELS[name]), KNOWN[name.partition("-")[0]]
    rows = [[*loaded.start, *loaded.tokens(line), loaded.end] for line in lines()]
    assert rows[:40:8] == known["some"]
    sums = [zlib.crc32(" ".join(map(str, row)).encode()) for row in rows]
    others = [line for line, ours, theirs in zip(lines(), sums, known["lines"], strict=True) if ours != theirs]
    assert others == (["dog……cat…"] if name == "siglip-b16" else [])


def test_where_two_tokens_have_the_number_of_the_end_the_text_ends_at_the_first(cache: Path) -> None:
    """As in transformers. What follows has no influence."""
    made(cache, "clip-b16")
    encoded = tokenizer.load(MODELS["clip-b16"])(["dog", "dog <|endoftext|> cat"], 24, "x", 10_000)
    assert encoded.ends[0] == encoded.ends[1]


@pytest.mark.parametrize("name", CASES)
def test_the_scores_of_pictures_are_those_of_the_library(name: str, cache: Path) -> None:
    """Inner products of our features and our vectors, and of the library's joint vectors."""
    weights = made(cache, name).with_name(MODELS[name].file.name)
    found = vectors(name)
    assert found.vectors.shape == (len(KNOWN["classes"]), 32)
    assert found.vectors.dtype == np.float32
    assert relative(build(weights, name)(pictures(16)) @ found.vectors.T, CASES[name]["scores"]) < 1e-5


def test_the_texts_are_computed_in_parts(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """21 texts in parts of two: the last part is not full."""
    made(cache, "clip-b16")
    heard, at_once = list[tuple[str, int, int | None]](), vectors("clip-b16").vectors
    monkeypatch.setattr(transformer, "rows", lambda *_: 2)
    parts = vectors("clip-b16", progress=lambda *said: heard.append(said)).vectors
    np.testing.assert_allclose(parts, at_once, rtol=0, atol=1e-5)
    assert heard[:2] == [("texts", 2, 21), ("texts", 4, 21)]
    assert heard[-1] == ("texts", 21, 21)


def test_the_vectors_say_what_made_them(cache: Path) -> None:
    file = made(cache, "clip-b16")
    found, model = vectors("clip-b16"), MODELS["clip-b16"].file
    assert found.origin == json.loads(json.dumps(found.origin)) == {
        "model": "clip-b16",
        "weights": {"id": model.id, "sha256": sha256_of(file.with_name(model.name))},
        "tokenizer": {"id": model.beside("tokenizer.json").id, "sha256": sha256_of(file)},
        "pooling": "cls",
        "prompts": KNOWN["prompts"],
    }  # fmt: skip
    assert len(found.notes) == 1
    assert re.fullmatch(r"3 texts of 1 class \('the river .+'\) had more than the 24 tokens .+", found.notes[0])


def test_each_prompt_has_each_name_and_an_underscore_is_a_space() -> None:
    assert texts_of(["fire_truck", " a  {} "], ["a {}.", "{}: {}"]) == [
        "a fire truck.",
        "fire truck: fire truck",
        "a a {}.",
        "a {}: a {}",
    ]
    assert all("{}" in prompt for prompt in PROMPTS)


def test_only_models_with_texts_have_a_text_tower() -> None:
    models = ["clip-b32", "clip-b16", "clip-l14", "siglip-b16", "siglip-so400m14", "medsiglip"]
    assert [name for name in backbones.BACKBONES if has_text(name)] == models
    for name in ("vit-b16", "scattering"):
        with refuses("unsupported", parameter="model"):
            class_vectors(Wanted(name=name), ["a"])


@pytest.mark.parametrize(
    ("names", "prompts", "named"),
    [
        (["a", " _ "], PROMPTS, "classes"),
        (["a\ud800"], PROMPTS, "classes"),
        (["a"], [], "prompts"),
        (["a"], ["a photo"], "prompts"),
    ],
)
def test_names_and_prompts_that_say_nothing_are_refused(names: list[str], prompts: list[str], named: str) -> None:
    with refuses("bad-value", parameter=named):
        class_vectors(Wanted(name="clip-b16"), names, prompts)


@pytest.mark.parametrize(("name", "pool"), [("clip-b16", "mean"), ("clip-b16", "map"), ("siglip-b16", "mean")])
def test_features_outside_the_joint_space_are_refused(name: str, pool: str) -> None:
    with refuses("conflict", parameter="pool"):
        class_vectors(Wanted(name=name, pool=pool), ["a"])


@pytest.mark.parametrize("name", CASES)
def test_weights_without_a_text_tower_and_folders_without_a_tokenizer_are_refused(name: str, cache: Path) -> None:
    seen = {key: array for key, array in whole(name).items() if key.startswith(("visual.", "vision_"))}
    file = made(cache, name, seen)
    with refuses("damaged"):
        vectors(name)
    file.unlink()
    with refuses("missing"):
        vectors(name)


@pytest.mark.parametrize("name", CASES)
def test_the_tokenizer_of_another_model_is_refused(name: str, cache: Path) -> None:
    file = made(cache, name)
    new(file.parent, "clip-b16" if name == "siglip-b16" else "siglip-b16")
    with refuses("damaged"):
        vectors(name)
    made(cache, name, whole(name) | {TOKENS[name]: whole(name)[TOKENS[name]][:20]})
    with refuses("conflict"):
        vectors(name)


@pytest.mark.parametrize("name", CASES)
def test_whatever_a_tensor_is_vectors_are_made_or_the_weights_refused(name: str, cache: Path) -> None:
    all_of = whole(name)
    used = [key for key in all_of if not key.startswith(("visual.", "vision_", "logit_")) and ".1." not in key]
    odds = (None, np.array(1, np.float32), np.ones((2, 3, 5), np.float32), np.ones(3, bool))
    for i, tensor in enumerate([*used, *(key for key in ("visual.proj",) if key in all_of)]):
        for odd in odds[i % 2 :: 2]:
            made(cache, name, {key: array for key, array in (all_of | {tensor: odd}).items() if array is not None})
            with pytest.raises(UserError) as caught:
                vectors(name)
            assert caught.value.code in ("damaged", "unsupported", "conflict")
    for key in TOKENS[name], used[0]:
        made(cache, name, all_of | {key: all_of[key] * np.nan})
        with refuses("damaged"):
            vectors(name)


SMALL: dict[str, dict[str, Any]] = {
    "clip-b16": {
        "added_tokens": [],
        "model": {
            "type": "BPE",
            "vocab": {"a": 0, "b</w>": 1, "ab</w>": 4, tokenizer.START: 2, tokenizer.END: 3},
            "merges": ["a b</w>"],
            "end_of_word_suffix": "</w>",
        },
    },
    "siglip-b16": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Precompiled", "precompiled_charsmap": KNOWN["siglip"]["rules"]}],
        },
        "model": {"type": "Unigram", "unk_id": 1, "vocab": [["</s>", 0.0], ["<unk>", 0], ["▁", -1.0], ["ab", -2.5]]},
    },
}


@pytest.mark.parametrize("name", SMALL)
def test_whatever_stands_in_a_tokenizer_it_is_read_or_refused(name: str, cache: Path) -> None:
    file, used, small = made(cache, name, {"any": np.ones(1, np.float32)}), 0, json.dumps(SMALL[name])
    for text in (small, *(text for place in places(SMALL[name]) for text in altered(SMALL[name], place))):
        file.write_text(text)
        try:
            used += len(tokenizer.load(MODELS[name])(["ab ﬁ"], 8, "x", 10).ids)
        except UserError as error:
            assert error.code in ("damaged", "conflict"), error  # noqa: PT017
    assert used > 1
    rules = SMALL["siglip-b16"]["normalizer"]["normalizers"][0]["precompiled_charsmap"]
    for other in ("", rules[:40], rules[:-8], "////" + rules[4:], rules[:400] + "////" + rules[404:], "AAAA", "?"):
        file.write_text(small.replace(rules, other))
        with suppress(UserError):
            tokenizer.load(MODELS[name])(["ab ﬁ … か\u3099"], 8, "x", 10)
    file.unlink()
    file.mkdir()
    with refuses("missing"):
        tokenizer.load(MODELS[name])


def test_without_a_tokenizer_no_weights_are_fetched(home: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are large."""
    clip = replace(MODELS["clip-b16"], file=File(repository="some/clip"))
    monkeypatch.setitem(MODELS, "clip-b16", clip)
    home.files["some/clip"] = {"model.safetensors": b"any"}
    with refuses("missing"):
        class_vectors(Wanted(name="clip-b16"), ["dog"])
    assert not any(path.endswith("model.safetensors") for _, path, _ in home.asked)
