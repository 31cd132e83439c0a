"""A draft for the public registry of deployments of differential privacy (github.com/opendp/deployments-registry-data),
by its schema of 2026-07-15, commit 3e9c812.
"""

import json
import re
from collections.abc import Mapping

from dpfc_cli import rounding
from dpfc_cli.errors import conflict, parameter, printable
from dpfc_cli.records.card import Card
from dpfc_cli.show.document import Document

_ENTRY = """\
# A person fills in what begins with TO BE FILLED IN.
url_slug: {slug}
status: Draft
tier: 3
deployment:
  basic:
    name: "TO BE FILLED IN: a name"
    data_curators: ["TO BE FILLED IN: who publishes the head"]
    intended_use: "TO BE FILLED IN: what the head is for"
    data_product_type: Machine learning model
    data_product_region: "TO BE FILLED IN: where the people live, and whose laws apply"
    description: {what it is, trained on}
    publication_date: {date}
  dp_variant:
    variant_name: Approximate DP
    data_domain: {trained on; of whom, and what of them}
    unprotected_quantities: {number of records, number of persons, labels per record, classes, feature set}
  privacy_loss:
    privacy_unit: {unit}
    privacy_unit_details: {protects, compared}
    privacy_parameters: {figures}
    privacy_parameters_details: {variant, delta, this means, several of one person}
  deployment_model:
    model_name: {model}
    actors: {trust; who holds the records, who trains, who gets the head}
    release_type: One release
    release_type_details: {spent in total, other heads}
    data_source_type: Static
    access_type: Non-interactive
  accounting:
    post_processing: The head is computed from the noisy sums alone.
    composition: {accounting}
  implementation:
    preprocessing_and_hyperparameter_tuning: {options, tuned on, public start; what the backbone was trained on}
    mechanisms: {method, sampler, side channels, program, audit; who has access to the records, and until when}
    justification: "TO BE FILLED IN: why this epsilon, delta and unit, and who reviewed it"
  administrative:
    notes: {SHA-256 of this head}
    registry_authors: ["TO BE FILLED IN: who wrote this entry"]
"""
"""In braces stand names of facts, and behind a semicolon what a person has to add."""


def entry(card: Card, name: str, facts: Mapping[str, str]) -> str:
    """The entry of a head with a guarantee. name: of the head. facts: of its report."""
    slug = re.sub("[^a-z0-9]+", "-", f"{name.removesuffix('.safetensors')} {card.date[:4]}".lower()).strip("-")
    model = "Federated" if "federation" in card.parts else "Central"
    own = {"slug": slug, "date": card.date[:10], "unit": f"{card.unit.capitalize()}-level", "model": model}

    def filled(found: re.Match[str]) -> str:
        if found[1] == "figures":
            # YAML takes a number without a point for a text.
            spent = rounding.epsilon(card.guarantee.epsilon), rounding.delta(card.guarantee.delta)
            return "{{epsilon: {:#.5g}, delta: {:#.3g}}}".format(*map(float, spent))
        names, _, asked = found[1].partition("; ")
        said = [
            f"{each[0].upper()}{each[1:]}: {facts[each].rstrip('.')}." for each in names.split(", ") if each in facts
        ]
        text = own.get(found[1]) or " ".join([*said, *([f"TO BE FILLED IN: {asked}"] if asked else [])])
        # JSON is YAML. A backslash would begin a formula on the registry's page.
        return json.dumps(printable(text).replace("\\", "/"), ensure_ascii=False)

    return re.sub("{(.+?)}", filled, _ENTRY)


def yaml_of(document: Document) -> str:
    """UserError: it is of a head without a guarantee."""
    if "registry" not in document.values:
        what = "A head without a guarantee has no place in the registry of deployments."
        raise conflict(what, f"Choose another ending of {parameter('out')}.", parameter="out")
    return str(document.values["registry"])
