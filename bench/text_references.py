"""Makes tests/extensions/starts/data/text.json: two small vocabularies and tiny models, and what the libraries give.

It needs its own environment. The project's tests do not need it:

    python -m venv REF && REF/bin/pip install torch transformers safetensors sentencepiece protobuf ftfy regex wcwidth
    REF/bin/pip install --no-deps timm open_clip_torch
    REF/bin/python bench/text_references.py

The vocabularies are trained on the sentences of `tests/backbones/lines.py`: byte pairs as CLIP has them, and a unigram
model with rules for characters as SigLIP has it. Of the numbers that the tokenizers of transformers give for each line,
the file has the checksum.
"""

import base64
import io
import json
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import transformers as t
from sentencepiece import sentencepiece_model_pb2

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "backbones"))
from lines import SENTENCES, begun, lines, tokens_of
from references import HEADS, HIDDEN, WIDTH, fill, seen, stand_in_for_torchvision

DATA = Path(__file__).parents[1] / "tests" / "extensions" / "starts" / "data" / "text.json"
CLASSES = ["dog", "fire_truck", "große Brücke", "犬の写真", " two  spaces ", "not-broken!", "the river " * 9]
PROMPTS = ["a photo of a {}.", "{}", "it's a picture of the old {}, 1987"]
CONTEXT = {"clip": 24, "siglip": 16}


def clip_merges() -> list[str]:
    """Byte pairs, as OpenAI's vocabulary has them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=1200, end_of_word_suffix="</w>", initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    trained.train_from_iterator([each.lower() for each in SENTENCES], trainer)
    model = json.loads(trained.to_str())["model"]
    return [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]


def unigram() -> bytes:
    """A model of sentencepiece with rules for characters, of one and of several, and one that removes."""
    rules = {"ﬁ": "fi", "①": "1", "ａ": "a", "Å": "å", "e\u0301": "é", "a\u0300": "à", "\u200b": "", "\u2028": " "}
    rules |= {"か\u3099": "が", "…": "...", "……": " und so weiter", "㎏": "kg", "\u1100\u1161": "가"}
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as file:
        for old, new in rules.items():
            file.write("\t".join(" ".join(f"{ord(each):x}" for each in text) for text in (old, new)) + "\n")
        file.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([each.lower() for each in SENTENCES] * 3),
            model_writer=model,
            vocab_size=700,
            hard_vocab_limit=False,
            character_coverage=0.99,
            normalization_rule_tsv=file.name,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=2,
        )
    return model.getvalue()


def rounded(values: torch.Tensor) -> Any:
    return json.loads(json.dumps(values.double().tolist()), parse_float=lambda x: float(f"{float(x):.7g}"))


def checksums(ids: list[list[int]]) -> list[int]:
    return [zlib.crc32(" ".join(map(str, each)).encode()) for each in ids]


def case(shapes: dict[str, list[int]], text: torch.Tensor, image: torch.Tensor) -> dict[str, Any]:
    """The vectors of some texts, and the scores of two pictures for all classes, up to the lengths of the pictures."""
    units = torch.nn.functional.normalize(text.double(), dim=-1).reshape(len(CLASSES), len(PROMPTS), -1)
    joint = torch.nn.functional.normalize(units.mean(1), dim=-1)
    return {
        "shapes": shapes,
        "scores": rounded(image.double() @ joint.T),
    }


def main() -> None:
    texts = [prompt.replace("{}", " ".join(name.replace("_", " ").split())) for name in CLASSES for prompt in PROMPTS]
    merges = clip_merges()
    tokens = tokens_of(merges)
    spiece = unigram()
    clip = t.CLIPTokenizer(
        vocab={token: i for i, token in enumerate(tokens)}, merges=[tuple(each.split(" ")) for each in merges]
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spiece.model"
        file.write_bytes(spiece)
        siglip = t.SiglipTokenizer(str(file))
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(file))
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(spiece)
    all_lines = lines()
    made: dict[str, Any] = {
        "library": f"transformers {t.__version__}",
        "clip": {
            "merges": merges,
            "lines": checksums([clip(line).input_ids for line in all_lines]),
            "some": [clip(line).input_ids for line in all_lines[:40:8]],
        },
        "siglip": {
            "pieces": [
                [pieces.id_to_piece(i), float(f"{pieces.get_score(i):.7g}")] for i in range(pieces.get_piece_size())
            ],
            "rules": base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode(),
            "lines": checksums([siglip(begun(line)).input_ids for line in all_lines]),
            "some": [siglip(line).input_ids for line in all_lines[:40:8]],
        },
        "classes": CLASSES,
        "prompts": PROMPTS,
    }
    vision = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "intermediate_size": HIDDEN,
        "image_size": 16,
        "patch_size": 4,
    }
    common = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    cases: dict[str, Any] = {}

    own = {
        "vocab_size": pieces.get_piece_size(),
        "max_position_embeddings": CONTEXT["siglip"],
        "projection_size": WIDTH,
    }
    config = t.SiglipConfig(text_config=common | own, vision_config=vision)
    model = t.SiglipModel(config)
    shapes = fill(model)
    ids = siglip(
        texts, padding="max_length", truncation=True, max_length=CONTEXT["siglip"], return_tensors="pt"
    ).input_ids
    with torch.no_grad():
        text = model.get_text_features(input_ids=ids).pooler_output
        assert torch.equal(model.text_model(input_ids=ids).pooler_output, text)
        image = model.get_image_features(pixel_values=seen(16)).pooler_output
    cases["siglip-b16"] = case(shapes, text, image)

    cases["clip-b16"] = of_open_clip(texts, tokens, clip)
    DATA.write_text(json.dumps(made | {"cases": cases}, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
    print(f"{DATA.stat().st_size / 1000:.0f} kB")


def of_open_clip(texts: list[str], tokens: list[str], tokenizer: Any) -> dict[str, Any]:
    """Its text towers have heads of 64 numbers, and padding of zeros."""
    stand_in_for_torchvision()
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    model = CLIP(
        embed_dim=20,
        vision_cfg=CLIPVisionCfg(
            layers=2, width=WIDTH, head_width=WIDTH // HEADS, patch_size=4, image_size=16, mlp_ratio=HIDDEN / WIDTH
        ),
        text_cfg=CLIPTextCfg(context_length=CONTEXT["clip"], vocab_size=len(tokens), width=192, heads=3, layers=2),
        quick_gelu=True,
    )
    shapes = fill(model)
    rows = tokenizer(texts, truncation=True, max_length=CONTEXT["clip"]).input_ids
    ids = torch.tensor(np.array([row + [0] * (CONTEXT["clip"] - len(row)) for row in rows]))
    with torch.no_grad():
        text, image = model.encode_text(ids), model.encode_image(seen(16))
    return case(shapes, text, image)


if __name__ == "__main__":
    main()
