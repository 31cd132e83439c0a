"""Model cards: Markdown with a YAML header, as the Hugging Face hub shows them on the page of a model."""

import json
import re
from collections.abc import Mapping
from typing import Any

from dpfc_cli.errors import printable
from dpfc_cli.rounding import epsilon as rounded
from dpfc_cli.trust import statement

_MARKS = re.compile(r"[\\`*_{}\[\]<>#|~$&!]")
_HOME = re.compile(r"hf:([^/\s]+/[^/\s]+)/.+")


def header(card: Mapping[str, Any], license: str | None = None, evaluation: Mapping[str, Any] | None = None) -> str:
    """The YAML header, between its two lines of dashes.

    Args:
        card: the card of a head.
        license: the identifier of a licence, as the hub lists them. None: nothing is said of it.
        evaluation: released figures (`trust.released`) with an accuracy. None: the header has no metrics.

    """
    private = card["claim"] == "private"
    backbone = card["features"].get("backbone")
    weights = backbone.get("weights") if isinstance(backbone, dict) else None
    named = backbone.get("name") if isinstance(backbone, dict) else None
    home = _HOME.fullmatch(str(weights.get("id"))) if isinstance(weights, dict) else None
    values: dict[str, Any] = {
        "library_name": "dpfc",
        # Imported features may be of texts.
        **({"pipeline_tag": "image-classification"} if named not in (None, "imported") else {}),
        "tags": ["dpfc", "linear-head", *(["differential-privacy"] if private else ["no-privacy-guarantee"])],
        **({} if license is None else {"license": license}),
        **({} if home is None else {"base_model": home[1]}),
    }
    if evaluation is not None:
        figure = {"type": "accuracy", "name": "top-1 accuracy, released with noise", "value": evaluation["top1"]}
        data = {"name": evaluation["features"], "type": evaluation["features"], "split": evaluation["split"]}
        result = {"task": {"type": "image-classification"}, "dataset": data, "metrics": [figure]}
        values["model-index"] = [{"name": card["method"], "results": [result]}]
    # JSON is YAML.
    lines = [f"{name}: {json.dumps(_shown(value), ensure_ascii=False)}" for name, value in values.items()]
    return "\n".join(["---", *lines, "---", ""])


def text(
    card: Mapping[str, Any],
    sha256: str,
    name: str,
    license: str | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> str:
    """A whole model card: the header, what the head is, how to use it, and its statement.

    Args:
        card: the card of a head.
        sha256: the digest of the head's file.
        name: what `Head.load` takes, such as `hf:OWNER/NAME`.
        license: as for `header`.
        evaluation: as for `header`.

    """
    private = card["claim"] == "private"
    classes = card["classes"]
    named = ", ".join(classes[:20]) + (f" and {len(classes) - 20:,} more" if len(classes) > 20 else "")
    warning = "" if private else "\n**This head has no guarantee of privacy.**\n"
    figures = ""
    if evaluation is not None:
        low, high = (100 * end for end in evaluation["interval"][:2])
        unit, spent = evaluation["unit"], evaluation["epsilon"]
        figures = (
            f"\nTop-1 accuracy: {100 * evaluation['top1']:.1f} % (95 % interval {low:.1f} to {high:.1f} %) on "
            f"{evaluation['n']:,} {unit}s of the split {marked(evaluation['split'])} of "
            f"{marked(evaluation['features'])}, counted with noise (epsilon = {rounded(spent)} at delta = "
            f"{evaluation['delta']:g} for one {unit} of that split).\n"
        )
    rows = "\n".join(f"- **{marked(label)}**: {marked(said)}" for label, said in statement.rows(card, sha256))
    return f"""{header(card, license, evaluation)}
# A linear head by dpfc
{warning}
A linear classifier of {card["facts"]["m"]:,} classes on frozen features: {marked(named)}.
{figures}
## Use

```python
import dpfc_cli as dpfc

head = dpfc.Head.load("{name}")
names = head.predict(features)  # n × d, from the backbone that head.card names
```

`dpfc verify {name}` checks whether the head can be what it says.

## Statement

{rows}
"""


def marked(text: str) -> str:
    """A text as Markdown shows it as it is: one line, and no mark in it has a meaning."""
    return _MARKS.sub(r"\\\g<0>", printable(text))


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return printable(value) if isinstance(value, str) else value
