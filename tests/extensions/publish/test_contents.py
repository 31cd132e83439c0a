"""A report on a head: what is in it, who may read it, and that nothing in a file can change how it is read."""

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

import dpfc_cli as dpfc
from dpfc_cli import rounding
from dpfc_cli.errors import printable
from dpfc_cli.extensions.publish import contents
from dpfc_cli.extensions.publish.html import html_of
from dpfc_cli.extensions.publish.request import Reporting
from dpfc_cli.folders import LEDGER
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.ledger import caps
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.records import statement
from dpfc_cli.show.document import Document, Table
from dpfc_cli.show.markdown import escaped, markdown
from tests.extensions.publish.conftest import CLASSES, WHO, WHY, Ward
from tests.hostile import with_card
from tests.signing import key_pair, sign
from tests.support import blobs, feature_set, refuses, replace

VOID = {"meta"}
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "section", "span", "strong", "ul", "li", "dl"),
    *("dt", "dd", "table", "caption", "thead", "tbody", "tr", "th", "td", "pre", "figure"),
    *("svg", "g", "path", "text", "circle"),
}
"""Everything that a report is made of: nothing that runs, loads or links."""
LOADING = {"src", "href", "srcset", "action", "background", "poster", "data", "http-equiv"}


class Read(HTMLParser):
    """What a browser makes of a page: its elements and its texts. It sees that all of them are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.attributes = set[str](), list[tuple[str, str]]()
        self.texts, self.open = list[str](), list[str]()
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def header_of(text: str) -> dict[str, Any]:
    """What the hub reads of a model card."""
    found: dict[str, Any] = ModelCard(text).data.to_dict()  # type: ignore[no-untyped-call]
    return found


def words(report: Document) -> str:
    """All texts of a report."""
    return repr(report)


def grid(report: Document, first: str) -> Table:
    """The table whose first column has this name."""
    grids = (block for part in report.sections for block in part.blocks if isinstance(block, Table))
    return next(each for each in grids if each.columns[0] == first)


def forged(head: Path, out: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a head with another card."""
    loaded = Head.load(head)
    card = json.loads(loaded.card.json)
    change(card)
    out.write_bytes(with_card(loaded, card))
    return out


def document(head: Head, **asked: Any) -> Document:
    return contents.document(head, Reporting(head.file, **asked))


# --- What is in it.


def test_a_report_says_all_that_the_statement_says(ward: Ward) -> None:
    head = Head.load(ward.second)
    said = statement.document(head.card, hashlib.sha256(ward.second.read_bytes()).hexdigest())
    assert document(head).facts.items() >= said.facts.items()
    assert [row[0] for row in grid(document(head), "release").rows] == [each.kind for each in head.card.plan]


def _grouped(card: dict[str, Any], rule: dict[str, Any]) -> None:
    card["features"]["grouped_by"] = rule


def test_it_says_how_persons_were_found_and_what_is_done_to_a_feature_vector(ward: Ward, tmp_path: Path) -> None:
    for rule, said in (
        ({"by": "folder", "level": 2}, "2 folders"),
        ({"by": "name"}, "name"),
        ({"by": "table", "column": "patient"}, "'patient'"),
        ({"by": "column"}, "column"),
    ):
        shown = document(Head.load(forged(ward.first, tmp_path / "a.safetensors", partial(_grouped, rule=rule))))
        assert said in shown.facts["persons"]
    assert "length" in shown.facts["what is done to a feature vector first"]


def test_a_report_says_what_published_practice_calls_its_epsilon(ward: Ward) -> None:
    head = Head.load(ward.second)
    for epsilon, said in ((1, "strong"), (1.01, "reasonable"), (10.01, "weak")):
        told = document(replace(head, card=replace(head.card, epsilon=epsilon))).facts["beside others"]
        assert re.findall("strong|reasonable|weak", told)[3:] == [said]


def test_a_head_of_samples_and_one_without_a_guarantee_have_their_reports(ward: Ward) -> None:
    sampled = html_of(document(Head.load(ward.sampled)))
    assert "Kairouz" in sampled
    assert "svg" in Read(sampled).tags
    plain = document(Head.load(ward.plain))
    assert "∞" in plain.facts["this head"]
    assert plain.notice != document(Head.load(ward.first)).notice
    assert "svg" not in Read(html_of(plain)).tags
    assert plain.header["tags"] == ["dpfc", "no-privacy-guarantee"]
    # There is no guarantee that could cover something else.
    assert "the guarantee is for one record" not in words(plain)


def test_a_page_draws_the_curve_with_its_figures_and_runs_and_loads_nothing(ward: Ward) -> None:
    page, said = (
        Read(html_of(document(Head.load(ward.second), kind="internal"))),
        statement.meaning(Head.load(ward.second).card),
    )
    assert said is not None
    assert rounding.at_most(said["power"]) in page.texts
    assert "figure" in page.tags
    assert page.tags <= TAGS
    loading = {(name, value) for name, value in page.attributes if name.split(":")[-1] in LOADING}
    assert {value for name, value in loading if name != "http-equiv" and not value.startswith("#")} == set()
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


# --- Who may read it.


def test_a_shared_report_is_a_function_of_the_heads_file(ward: Ward, tmp_path: Path) -> None:
    """Nothing was released of it. Of the other head the ledger here has figures, which anybody may read."""
    here = dpfc.write_report("first", tmp_path / "here.html").read_bytes()
    (tmp_path / "away").mkdir()
    shutil.copy(ward.first, tmp_path / "away")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path / "away")
        away = dpfc.write_report(Path("first.safetensors"), "away.html").read_bytes()
        assert here == away
        with refuses("missing", parameter="ledger"):
            dpfc.write_report(Path("first.safetensors"), "internal.html", kind="internal")
        assert not Path("internal.html").exists()
    kept = json.loads(Path("released.json").read_text())["figures"]["charge"]
    assert dpfc.spent(dpfc.open_features("clinic")).charges[-1].id == kept
    assert document(Head.load(ward.second)).sections != document(Head.load(ward.first)).sections
    assert "released" in markdown(document(Head.load(ward.second)))


def test_intervals_of_a_set_that_knows_persons_are_said_to_be_for_persons(ward: Ward) -> None:
    x, y = blobs(120, 8, 3, seed=3, apart=2.5)
    groups = np.arange(120) // 3
    parts = {"train": slice(90), "test": slice(90, 120)}
    known: dict[str, Any] = {"x": x, "y": y, "groups": groups}
    arrays: dict[str, Any] = {f"{name}_{of}": a[part] for name, part in parts.items() for of, a in known.items()}
    np.savez("persons.npz", **arrays)
    place = Path("features/persons")
    features = feature_set(Path("persons.npz"), place, classes=CLASSES, population="persons")
    head = dpfc.train(features, epsilon=8.0, method="dp-ls", out="heads/persons.safetensors").head
    assert "intervals" in document(head, kind="internal").facts
    head = replace(head, card=replace(head.card, features=replace(head.card.features, hold_out=0.2)))
    assert all(said in document(head).facts["test split"] for said in ("0.2", "persons"))
    assert "intervals" not in document(Head.load(ward.first), kind="internal").facts


@pytest.mark.parametrize("write_down", [html_of, markdown])
def test_what_only_the_holder_may_know_is_in_an_internal_report_alone(
    ward: Ward, write_down: Callable[[Document], str]
) -> None:
    shared = write_down(document(Head.load(ward.first)))
    report = document(Head.load(ward.first), kind="internal")
    internal = write_down(report)
    top1 = dpfc.evaluate(Head.load(ward.first), dpfc.open_features("clinic")).top1
    assert 0.5 < top1 < 1
    for told in (WHO, WHY, "the board", "section 4", "second"):
        assert told in internal
        assert told not in shared
    assert f"{top1:.0%}".replace("%", " %") in report.facts["accuracy on the test split"]
    # The digest of the source's listing is in neither.
    identity = dpfc.open_features("clinic").manifest.source["identity"]
    for listing in identity["listing"].values():
        assert listing not in internal
    assert [part.title for part in report.sections if part.internal] == [
        *("Verdict", "The ledger", "How good it is", "What was checked", "Appendix: backbone and digests")
    ]
    assert "holder" in report.notice
    assert not report.header


def test_auditors_get_the_ledger_and_no_exact_figure(ward: Ward) -> None:
    report, internal = (document(Head.load(ward.first), kind=kind) for kind in ("auditor", "internal"))
    for told in (WHO, WHY, "the board", "section 4", "second"):
        assert told in words(report)
    added = internal.facts.keys() - report.facts.keys()
    assert added == {"accuracy on the test split", "top-1", "guesses reach", "records"}
    assert "top-1" not in markdown(report).lower()
    assert "auditors" in report.kind


def test_a_report_begins_with_a_verdict_and_then_what_is_not_covered(ward: Ward) -> None:
    for kind, total in (("shared", r"epsilon = 2\.\d+ .*2 charges"), ("auditor", r"epsilon = 2\.\d+ .*as of 20")):
        report = document(Head.load(ward.second), kind=kind)
        first, second = report.sections[:2]
        facts = Document(title="", sections=[first]).facts
        named = "spent in total" if kind == "shared" else "spent by all trainings of these people"
        assert {"this head", "protects", "this means", "beside others", "confirmed by", named} <= facts.keys()
        assert re.search(total, facts[named])
        assert ("as of" in facts["confirmed by"]) == (kind == "auditor")
        assert Document(title="", sections=[second]).facts.keys() >= {name for name, _ in statement.NOT_COVERED}


# --- An audit of the method.


def audited(head: Head, **changed: Any) -> dict[str, Any]:
    """What 'dpfc audit --json' prints of a method, with other values."""
    bound = {"epsilon": 0.7, "mu": 0.1, "statistic": "x", "runs": 1000}
    found = {"method": head.card.method, "claim": {"epsilon": 1.0, "delta": 1e-5}, "attainable": 0.9}
    found |= {"release_level": bound, "whole_training": {**bound, "epsilon": 0.1}}
    shape = {"adjacency": "zero-out", "sampling_rate": 1.0, "labels_per_record": 1, "records_per_person": None}
    values = {"dpfc": head.card.versions.dpfc, "confidence": 0.95, "violated": [], "audits": [found], **shape}
    return values | changed


def test_an_audit_is_told_where_it_is_of_such_trainings_and_refuted_nothing(ward: Ward, tmp_path: Path) -> None:
    head, path = Head.load(ward.first), tmp_path / "audit.json"
    path.write_text(json.dumps(audited(head)))
    assert all(said in document(head, audit=path).facts["audit"] for said in ("0.70", "0.10", "1,000 pairs"))
    others: dict[str, Any] = {"adjacency": "replace-one", "sampling_rate": 0.5, "labels_per_record": 2}
    others |= {"records_per_person": 3, "dpfc": "0.0", "violated": ["dp-ls"], "audits": []}
    for name, value in others.items():
        path.write_text(json.dumps(audited(head, **{name: value})))
        with refuses("conflict", parameter="audit"):
            document(head, audit=path)
    for text in ("{}", json.dumps(audited(head, sampling_rate="much")), "no JSON"):
        path.write_text(text)
        with refuses("damaged", parameter="audit"):
            document(head, audit=path)


def test_the_ledger_of_an_internal_report_is_what_the_account_says(ward: Ward) -> None:
    report = document(Head.load(ward.first), kind="internal")
    book = read(ledger_path(Path("features/clinic")))
    account = book.account_of(dpfc.open_features("clinic").manifest.id)
    made = grid(report, "no.")
    rows = [dict(zip(made.columns, row, strict=True)) for row in made.rows]
    assert [(row["set"], row["split"], row["epsilon"]) for row in rows] == [
        *(("clinic", "test", "2"), ("clinic", "train", "2"), ("clinic", "train", "1"))
    ]
    whys = [(row[0], row[1], *row[3:]) for row in grid(report, "purpose").rows[1:]]
    assert whys == [("–", "2", WHO, "second"), (WHY, "1", WHO, "first")]
    assert report.facts["cap"].startswith(caps.said(account.caps[0]))
    assert report.facts["spent by all trainings of these people"].startswith(account.summed(1e-5))
    assert report.facts["left"] == rounding.left((caps.left(account, 1e-5) or (0.0,))[0], 1e-5)


def test_a_ledger_that_contradicts_the_head_is_refused(ward: Ward, tmp_path: Path) -> None:
    def cheaper(card: dict[str, Any]) -> None:
        card["date"] = "2020-01-01T00:00:00+00:00"

    other = forged(ward.first, tmp_path / "first.safetensors", cheaper)
    head, changed = Head.load(ward.first), tmp_path / "changed.safetensors"
    changed.write_bytes(encoded(replace(head, bias=head.bias + 1)))
    for path in (other, changed):
        for kind in ("internal", "auditor", "shared"):
            with refuses("damaged"):
                dpfc.write_report(path, tmp_path / "report.md", kind=kind)
        with refuses("damaged"):
            dpfc.push(path, "hf:some/flu", dry_run=True)
    assert not (tmp_path / "report.md").exists()


def test_who_signed_is_said_once_in_either_kind_of_report(ward: Ward, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path, "k")
    signature = sign(ward.first, private)
    for kind in ("shared", "auditor", "internal"):
        report = dpfc.write_report(ward.first, tmp_path / f"{kind}.md", kind=kind, public_key=public)
        said = report.read_text("utf-8")
        assert said.count("holder of the private key") == 2
        assert "who must have signed" not in said
    signature.unlink()


# --- Figures that were released.


def test_released_figures_are_in_either_kind_of_report(ward: Ward) -> None:
    head, figures = Head.load(ward.second), json.loads(ward.released.read_text())["figures"]
    shared = document(head, evaluation=ward.released)
    assert f"{figures['top1']:.0%}".replace("%", " %") in shared.facts["top-1"]
    assert shared.facts["this cost"].startswith("epsilon = 2 at")
    assert "'clinic'" in shared.facts["scored on"]
    internal = document(head, kind="internal", evaluation=ward.released)
    assert "accuracy on the test split" not in words(internal)
    [model] = header_of(markdown(shared))["model-index"]
    [result] = model["results"]
    assert result["metrics"][0]["value"] == figures["top1"]


def test_forged_figures_are_refused_by_the_ledger_and_elsewhere_not_compared(ward: Ward, tmp_path: Path) -> None:
    figures, path = json.loads(ward.released.read_text())["figures"], tmp_path / "figures.json"
    head = Head.load(ward.second)
    assert head.card.ledger is not None
    of = {"charge": head.card.ledger.charge}
    for forged in ({"top1": 0.99}, {"features": "a"}, {"top1": 0.99, "charge": "0" * 32}, of):
        better = {**figures, **forged}
        sha256 = hashlib.sha256(json.dumps(better, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps({"figures": better, "sha256": sha256}))
        with refuses("damaged", parameter="evaluation"):
            document(head, kind="internal", evaluation=path)
        assert words(document(head, evaluation=path)).lower().count("not compared with a ledger") == 3
    assert "not compared" not in words(document(head, kind="internal", evaluation=ward.released))


# --- Nothing in a file changes how a report is read.

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "| a | b |\n| --- | --- |\n# title",
    "[click](javascript:alert(1)) ![i](https://example.org/i.png) https://example.org www.example.org @someone $x$",
    "`code` ***bold*** ~~struck~~ <!-- note --> &lt; &amp;",
    "---\ntags: [mine]\n---",
    "\u202eright to left\u0007\x1b[31m",
    "1. one",
    "- one",
    "    indented",
    "\\",
)


def hostile(ward: Ward, tmp_path: Path, text: str) -> Document:
    """A report of a head whose card has that text wherever one may be."""

    def change(card: dict[str, Any]) -> None:
        card["classes"] = [text, *CLASSES[1:]]
        weights = {"sha256": text, "id": f"hf:{text}/{text}"}
        card["features"] |= {"name": text, "backbone": {"name": text, text: {text: text}, "weights": weights}}
        card["versions"]["dpfc"] = text

    return document(Head.load(forged(ward.first, tmp_path / "a.safetensors", change)))


def test_texts_of_files_are_texts_of_the_page(ward: Ward, tmp_path: Path) -> None:
    page = Read(html_of(hostile(ward, tmp_path, "".join(HOSTILE))))
    assert page.tags <= TAGS
    assert not {name for name, _ in page.attributes if name.startswith("on")}
    assert f"'{printable(''.join(HOSTILE))}', 'cold', 'rare'" in page.texts


def test_texts_of_files_are_texts_of_the_markdown(ward: Ward, tmp_path: Path) -> None:
    for text in HOSTILE:
        report = hostile(ward, tmp_path, text)
        card, header = ModelCard(markdown(report)), header_of(markdown(report))
        assert set(header) <= {"library_name", "tags", "pipeline_tag", "base_model"}
        assert header["tags"] == ["dpfc", "differential-privacy"]
        rendered = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(card.text)
        page = Read(rendered)
        allowed = {"h1", "h2", "p", "blockquote", "table", "thead", "tbody", "tr", "th", "td", "strong", "ul", "li"}
        assert page.tags <= {*allowed, "pre", "code"}
        assert rendered.count("<h2>") == len(report.sections)
        assert f"'{printable(text)}', 'cold', 'rare'" in "".join(page.texts)


def test_a_line_of_markdown_is_a_paragraph_of_its_text() -> None:
    begins = ("- a", "+ a", "1. a", "12) a", "# a", "> a", "    a", "---", "===", "```", "* a", "| a |")
    for text in (*begins, "0.1 %", "2.5", "1)a", "+8.8"):
        rendered = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(f"above\n\n{escaped(text)}\n\nbelow")
        assert Read(rendered).tags == {"p"}
        assert text.strip() in Read(rendered).texts
        assert text in begins or escaped(text) == text


# --- Files.


def test_without_packages_beyond_our_own_all_but_pdf_is_written(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "dpfc_cli.extensions.publish.pdf", raising=False)
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    with refuses("unsupported", parameter="out") as error:
        dpfc.write_report("first", tmp_path / "a.pdf")
    assert (error.value.fields["package"], error.value.fields["extra"]) == ("weasyprint", "pdf")
    for name in ("a.md", "a.html"):
        assert dpfc.write_report("first", tmp_path / name).exists()


def test_pdf_is_the_page_as_the_package_prints_it(ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = []

    def page(string: str) -> SimpleNamespace:
        printed.append(string)
        return SimpleNamespace(write_pdf=lambda: b"%PDF")

    monkeypatch.delitem(sys.modules, "dpfc_cli.extensions.publish.pdf", raising=False)
    monkeypatch.setitem(sys.modules, "weasyprint", SimpleNamespace(HTML=page))
    assert dpfc.write_report("first", tmp_path / "a.pdf").read_bytes() == b"%PDF"
    assert printed == [html_of(document(Head.load(ward.first)))]


def test_an_internal_report_needs_the_ledger_and_not_the_set(ward: Ward, tmp_path: Path) -> None:
    for path in (ledger_path(Path("features/clinic")), ward.first):
        shutil.copy(path, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFC_FEATURES", str(tmp_path))
        report = document(Head.load(tmp_path / "first.safetensors"), kind="internal")
        (tmp_path / LEDGER).rename(tmp_path / "theirs.sqlite")
        with refuses("missing"):
            document(Head.load(tmp_path / "first.safetensors"), kind="internal")
        named = document(Head.load(tmp_path / "first.safetensors"), kind="internal", ledger=tmp_path / "theirs.sqlite")
    assert WHY in words(report)
    assert words(named) == words(report)
