"""Seconds and memory of `dpfc zero-shot --from text`, with weights of CLIP ViT-B/16's size from a hub on this machine.

    python -m bench.zero_shot --classes 10 1000

The weights are random, so the vectors mean nothing. Both towers lie in one file of 0.6 GB, as they are published. Each
number of classes is timed twice: with an empty cache, so that the file is fetched, and again. Memory is the peak
resident size of the command.
"""

import argparse
import http.server
import itertools
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import measured

REPOSITORY = "timm/vit_base_patch16_clip_224.openai"
VISION, TEXT, BLOCKS, JOINT, VOCABULARY = 768, 512, 12, 512, 49_408
COMMIT = "0" * 40


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of CLIP ViT-B/16, with OpenAI's names."""
    found: dict[str, tuple[int, ...]] = {
        "visual.conv1.weight": (VISION, 3, 16, 16),
        "visual.class_embedding": (VISION,),
        "visual.positional_embedding": (197, VISION),
        "visual.proj": (VISION, JOINT),
        "positional_embedding": (77, TEXT),
        "token_embedding.weight": (VOCABULARY, TEXT),
        "text_projection": (TEXT, JOINT),
        "logit_scale": (1,),
    }
    for name, width in (("visual.ln_pre", VISION), ("visual.ln_post", VISION), ("ln_final", TEXT)):
        found |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    for tower, width in (("visual.", VISION), ("", TEXT)):
        dense = {"attn.in_proj_": (3, 1), "attn.out_proj.": (1, 1), "mlp.c_fc.": (4, 1), "mlp.c_proj.": (1, 4)}
        for i in range(BLOCKS):
            block = f"{tower}transformer.resblocks.{i}."
            for norm in ("ln_1", "ln_2"):
                found |= {f"{block}{norm}.weight": (width,), f"{block}{norm}.bias": (width,)}
            for name, (out, into) in dense.items():
                found |= {f"{block}{name}weight": (out * width, into * width), f"{block}{name}bias": (out * width,)}
    return found


def write_weights(path: Path) -> None:
    """Random weights of these shapes, of a size that keeps activations near 1."""
    from safetensors.numpy import save_file

    random = np.random.default_rng(0)
    made = {}
    for name, shape in shapes().items():
        values = random.standard_normal(shape, np.float32)
        made[name] = (1 + 0.1 * values if "ln_" in name else values / np.sqrt(shape[-1])).astype(np.float32)
    save_file(made, path)


def write_tokenizer(folder: Path) -> None:
    """A vocabulary of CLIP's size: all bytes, alone and at the end of a word, and pairs of them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(each) for each in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    ends = [f"{letter}</w>" for letter in letters]
    pairs = list(itertools.islice(itertools.product(letters, ends), VOCABULARY - 2 * len(letters) - 2))
    words = [*letters, *ends, *("".join(pair) for pair in pairs), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    merges = "".join(f"{a} {b}\n" for a, b in pairs)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", "utf-8")


class _Home(http.server.BaseHTTPRequestHandler):
    """The files of one folder as files of a repository of the hub."""

    folder: Path
    digests: dict[str, str]

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        path = self._answer()
        if path is not None:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    self.wfile.write(block)

    def _answer(self) -> Path | None:
        path = self.folder / self.path.rpartition("/")[2]
        there = path.is_file() and self.path.startswith(f"/{REPOSITORY}/")
        self.send_response(200 if there else 404)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(path.stat().st_size) if there else "0")
        if there:
            self.send_header("ETag", f'"{self.digests[path.name]}"')
        else:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        return path if there else None

    def log_message(self, *_: object) -> None: ...


def rows(classes: list[int], folder: Path) -> Iterator[tuple[int, str, float, float, float]]:
    """(classes, cache, seconds, seconds of all cores, MB) of each run."""
    from dpfc_cli.files import sha256_of

    home = folder / "home"
    home.mkdir()
    write_weights(home / "open_clip_model.safetensors")
    write_tokenizer(home)
    handler: Any = type("Home", (_Home,), {"folder": home, "digests": {p.name: sha256_of(p) for p in home.iterdir()}})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for m in classes:
        (folder / "classes.txt").write_text("".join(f"thing number {i}\n" for i in range(m)))
        cache = folder / f"cache-{m}"
        environment = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(cache)}
        for state in ("empty", "full"):
            line = [sys.executable, "-m", "dpfc_cli", "-q", "zero-shot", "--from", "text", "--model", "clip-b16"]
            line += ["--classes", str(folder / "classes.txt"), "--out", str(folder / f"{m}-{state}.safetensors")]
            found = measured(line, environment=environment)
            assert found is not None
            yield m, state, found["seconds"], found["busy"], found["peak"]
    server.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 1000])
    print("| classes | cache | seconds | of all cores | MB |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for m, state, seconds, cores, megabytes in rows(parser.parse_args().classes, Path(folder)):
            print(f"| {m:,} | {state} | {seconds:.1f} | {cores:.1f} | {megabytes:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
