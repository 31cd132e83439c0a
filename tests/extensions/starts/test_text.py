"""Class vectors from text towers: tokens and vectors are those of the reference libraries, and lie in the space of the
features. `bench/text_references.py` ran the libraries.
"""

import hashlib
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
from dpfc_cli.backbones import Wanted, hub
from dpfc_cli.backbones.checkpoint import Parameters
from dpfc_cli.backbones.vision_transformer import transformer
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.errors import UserError
from dpfc_cli.extensions.starts.text import PROMPTS, TextVectors, class_vectors, has_text, texts_of, tokenizer, tower
from tests.backbones.lines import lines, tokens_of
from tests.backbones.test_hub import Hub
from tests.backbones.tiny import build, pictures, random_weights, write
from tests.hostile import altered, places
from tests.support import refuses

KNOWN: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "text.json").read_text("utf-8"))
CASES: dict[str, dict[str, Any]] = KNOWN["cases"]
TOKENS = {
    "clip": "text_model.embeddings.token_embedding.weight",
    "open-clip": "token_embedding.weight",
    "siglip": "text_model.embeddings.token_embedding.weight",
}
MODEL = {"clip": "clip-b16", "open-clip": "clip-b16", "siglip": "siglip-b16"}


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
    (folder / "tokenizer.json").write_text(json.dumps(unigram() if form == "siglip" else byte_pairs()), "utf-8")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two models of the table, in the size of the references."""
    for name in ("clip-b16", "siglip-b16"):
        monkeypatch.setitem(MODELS, name, replace(MODELS[name], width=32, depth=2, heads=2, patch=4))


def made(folder: Path, name: str, other: dict[str, np.ndarray] | None = None) -> Path:
    """A folder with the weights of a case, its config.json and its tokenizer. other: tensors that are exchanged."""
    case = CASES[name]
    write(random_weights(case["shapes"]) | (other or {}), folder, config=case["config"])
    new(folder, name)
    return folder


def vectors(folder: Path, name: str, **options: Any) -> TextVectors:
    return class_vectors(Wanted(name=MODEL[name], weights=str(folder), **options), KNOWN["classes"], KNOWN["prompts"])


def relative(ours: np.ndarray, theirs: Any) -> float:
    return float(np.abs(ours - np.array(theirs)).max() / np.linalg.norm(theirs, axis=1).min())


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_lines_of_many_scripts_have_the_numbers_of_the_library(kind: str, tmp_path: Path) -> None:
    """In one of them the tokenizers package looks at whole graphemes, where sentencepiece does not."""
    write({"any": np.ones(1, np.float32)}, tmp_path)
    new(tmp_path, kind)
    loaded = tokenizer.load(MODELS[MODEL[kind]], str(tmp_path))
    rows = [[*loaded.start, *loaded.tokens(line), loaded.end] for line in lines()]
    assert rows[:40:8] == KNOWN[kind]["some"]
    sums = [zlib.crc32(" ".join(map(str, row)).encode()) for row in rows]
    others = [line for line, ours, theirs in zip(lines(), sums, KNOWN[kind]["lines"], strict=True) if ours != theirs]
    assert others == (["dog……cat…"] if kind == "siglip" else [])


def test_where_two_tokens_have_the_number_of_the_end_the_text_ends_at_the_first(tmp_path: Path) -> None:
    """As in transformers. What follows has no influence."""
    made(tmp_path, "clip")
    loaded = tokenizer.load(MODELS["clip-b16"], str(tmp_path))
    encoded = loaded(["dog", "dog <|endoftext|> cat"], 24, "x", 10_000)
    assert encoded.ends[0] == encoded.ends[1]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("tiny")
def test_the_scores_of_pictures_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    """Inner products of our features and our vectors, and of the library's joint vectors."""
    folder = made(tmp_path, name)
    found = vectors(folder, name)
    assert found.vectors.shape == (len(KNOWN["classes"]), 32)
    assert found.vectors.dtype == np.float32
    assert relative(build(folder)(pictures(16)) @ found.vectors.T, CASES[name]["scores"]) < 1e-5


@pytest.mark.parametrize(
    ("model", "width", "config", "heads", "epsilon", "activation"),
    [
        ("clip-b16", 512, {"num_attention_heads": 12, "hidden_act": "gelu"}, 8, 1e-5, "gelu"),
        ("clip-l14", 768, {"architecture": "vit_large_patch14_clip_224"}, 12, 1e-5, "gelu"),
        ("clip-b16", 512, {"model_type": "clip", "vision_config": {"num_attention_heads": 12}}, 8, 1e-5, "quick_gelu"),
        ("clip-b16", 512, {"text_config": {"num_attention_heads": 4, "hidden_act": "gelu"}}, 4, 1e-5, "gelu"),
        ("siglip-b16", 768, {"text_config": {"model_type": "siglip_text_model"}}, 12, 1e-6, "gelu_tanh"),
        ("siglip-so400m14", 1152, {"text_config": {"layer_norm_eps": 1e-4}}, 16, 1e-4, "gelu_tanh"),
    ],
)
def test_what_the_shapes_do_not_show_comes_from_the_configuration_of_the_text_tower_then_from_the_table(
    model: str, width: int, config: dict[str, Any], heads: int, epsilon: float, activation: str
) -> None:
    located = hub.Located(id="x", file=Path(), config=config, expected=None)
    outer = {"tokens": np.empty((1, width), np.float32)}
    found = tower.architecture(MODELS[model], Parameters(dialect="x", outer=outer, blocks=[], heads=None), located)
    assert (found.heads, found.epsilon, found.activation) == (heads, epsilon, activation)


@pytest.mark.usefixtures("tiny")
def test_the_texts_are_computed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """21 texts in parts of two: the last part is not full."""
    folder, heard = made(tmp_path, "clip"), []
    at_once = vectors(folder, "clip").vectors
    monkeypatch.setattr(transformer, "rows", lambda *_: 2)
    parts = vectors(folder, "clip", progress=lambda *said: heard.append(said)).vectors
    np.testing.assert_allclose(parts, at_once, rtol=0, atol=1e-6)
    assert heard[:2] == [("texts", 2, 21), ("texts", 4, 21)]
    assert heard[-1] == ("texts", 21, 21)


@pytest.mark.usefixtures("tiny")
def test_the_vectors_say_what_made_them(tmp_path: Path) -> None:
    folder = made(tmp_path, "clip")
    found = vectors(folder, "clip")
    weights = backbones.load(
        backbones.Wanted(name="clip-b16", image_shape=(256, 256, 3), weights=str(folder))
    ).describe()["weights"]
    digest = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    assert found.origin == json.loads(json.dumps(found.origin)) == {
        "model": "clip-b16",
        "weights": weights,
        "tokenizer": {"id": "tokenizer.json", "sha256": digest},
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
@pytest.mark.usefixtures("tiny")
def test_weights_without_a_text_tower_and_folders_without_a_tokenizer_are_refused(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path, name)
    shapes = {key: shape for key, shape in CASES[name]["shapes"].items() if key.startswith(("visual.", "vision_"))}
    write(random_weights(shapes), folder)
    with pytest.raises(UserError, match="text tower"):
        vectors(folder, name)
    (folder / "tokenizer.json").unlink()
    with refuses("missing", parameter="weights"):
        vectors(folder, name)


@pytest.mark.parametrize("name", ["clip", "siglip"])
@pytest.mark.usefixtures("tiny")
def test_the_tokenizer_of_another_model_is_refused(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path, name)
    new(folder, "clip" if name == "siglip" else "siglip")
    with refuses("damaged", parameter="weights"):
        vectors(folder, name)
    new(folder, name)
    fewer = random_weights({**CASES[name]["shapes"], TOKENS[name]: [20, 24]})
    write(fewer, folder, config=CASES[name]["config"])
    with refuses("conflict"):
        vectors(folder, name)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("tiny")
def test_whatever_a_tensor_is_vectors_are_made_or_the_weights_refused(name: str, tmp_path: Path) -> None:
    whole = random_weights(CASES[name]["shapes"])
    made(tmp_path, name)
    used = [key for key in whole if not key.startswith(("visual.", "vision_", "logit_")) and ".1." not in key]
    odds = (None, np.array(1, np.float32), np.ones((2, 3, 5), np.float32), np.ones(3, bool))
    for i, tensor in enumerate([*used, *(key for key in ("visual.proj",) if key in whole)]):
        for odd in odds[i % 2 :: 2]:
            write({key: array for key, array in (whole | {tensor: odd}).items() if array is not None}, tmp_path)
            with pytest.raises(UserError) as caught:
                vectors(tmp_path, name)
            assert caught.value.code in ("damaged", "unsupported", "conflict")
    for key in TOKENS[name], used[0]:
        write(whole | {key: whole[key] * np.nan}, tmp_path)
        with refuses("damaged", parameter="weights"):
            vectors(tmp_path, name)


SMALL: dict[str, dict[str, Any]] = {
    "clip": {
        "added_tokens": [],
        "model": {
            "type": "BPE",
            "vocab": {"a": 0, "b</w>": 1, "ab</w>": 4, tokenizer.START: 2, tokenizer.END: 3},
            "merges": ["a b</w>"],
            "end_of_word_suffix": "</w>",
        },
    },
    "siglip": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Precompiled", "precompiled_charsmap": KNOWN["siglip"]["rules"]}],
        },
        "model": {"type": "Unigram", "unk_id": 1, "vocab": [["</s>", 0.0], ["<unk>", 0], ["▁", -1.0], ["ab", -2.5]]},
    },
}


@pytest.mark.parametrize("name", SMALL)
def test_whatever_stands_in_a_tokenizer_it_is_read_or_refused(name: str, tmp_path: Path) -> None:
    write({"any": np.ones(1, np.float32)}, tmp_path)
    file, used = tmp_path / "tokenizer.json", 0
    whole = json.dumps(SMALL[name])
    for text in (whole, *(text for place in places(SMALL[name]) for text in altered(SMALL[name], place))):
        file.write_text(text)
        try:
            used += len(tokenizer.load(MODELS[MODEL[name]], str(tmp_path))(["ab ﬁ"], 8, "x", 10).ids)
        except UserError as error:
            assert error.code in ("damaged", "conflict"), error  # noqa: PT017
    assert used > 1
    rules = SMALL["siglip"]["normalizer"]["normalizers"][0]["precompiled_charsmap"]
    for other in ("", rules[:40], rules[:-8], "////" + rules[4:], rules[:400] + "////" + rules[404:], "AAAA", "?"):
        file.write_text(whole.replace(rules, other))
        with suppress(UserError):
            tokenizer.load(MODELS[MODEL[name]], str(tmp_path))(["ab ﬁ … か\u3099"], 8, "x", 10)
    file.unlink()
    file.mkdir()
    with refuses("missing", parameter="weights"):
        tokenizer.load(MODELS[MODEL[name]], str(tmp_path))


def test_without_a_tokenizer_no_weights_are_fetched(home: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are large."""
    from huggingface_hub import constants

    home.files["some/clip"] = {"model.safetensors": b"any", "config.json": b"{}"}
    with refuses("missing", parameter="weights"):
        class_vectors(Wanted(name="clip-b16", weights="hf:some/clip"), ["dog"])
    assert not any(path.endswith("model.safetensors") for _, path, _ in home.asked)
    home.files["some/other"] = {"tokenizer.json": b"{}"}
    found = hub.beside("hf:some/other", "tokenizer.json")
    assert found is not None
    found.file.write_bytes(b"[]")
    with refuses("damaged"):
        class_vectors(Wanted(name="clip-b16", weights="hf:some/other"), ["dog"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refuses("unreachable", parameter="weights"):
        class_vectors(Wanted(name="clip-b16", weights="hf:some/third"), ["dog"])
