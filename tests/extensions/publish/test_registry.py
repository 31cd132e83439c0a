"""A draft for the registry of deployments is valid there, and says what a person has to fill in."""

from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
import yaml

import dpfc_cli as dpfc
from tests.extensions.publish.conftest import Ward
from tests.support import refuses

TEXT: dict[str, Any] = {"type": "string"}
NAMES: dict[str, Any] = {"type": "array", "items": TEXT, "minItems": 1}


def one_of(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


def thing(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": [*required], "properties": properties}


FIGURES = thing(epsilon={"type": "number"}, delta={"type": ["number", "string"]}, rho={"type": "number"})
TEXTS = ("name", "intended_use", "data_product_region", "description")
PRODUCTS = (
    "Summary statistics",
    "Machine learning model",
    "Dataset",
    "Synthetic data",
    "Interactive API",
    "SQL queries",
)
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
VARIANTS = ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom")
STATES = ("Converted", "Draft", "Pending", "Changes Required", "Approved")
SCHEMA = thing(
    *("url_slug", "status", "tier", "deployment"),
    url_slug=TEXT,
    status=one_of(*STATES, "Approved (Update Requested)", "Approved (Pending)"),
    tier={"type": "integer", "enum": [1, 2, 3]},
    deployment=thing(
        "basic",
        basic=thing(
            *(*TEXTS, "data_curators", "data_product_type", "publication_date"),
            **dict.fromkeys(TEXTS, TEXT),
            data_curators=NAMES,
            data_product_type=one_of(*PRODUCTS),
            publication_date={"type": "string", "format": "date"},
            data_product_sector=one_of(*SECTORS),
        ),
        dp_variant=thing(variant_name=one_of(*VARIANTS), data_domain=TEXT, unprotected_quantities=TEXT),
        privacy_loss=thing(
            **dict.fromkeys(("privacy_unit", "privacy_unit_details", "privacy_parameters_details"), TEXT),
            privacy_parameters=FIGURES,
        ),
        deployment_model=thing(
            model_name=one_of("Local", "Central", "Shuffle", "Federated", "Varies"),
            release_type=one_of("One release", "Many releases"),
            data_source_type=one_of("Static", "Dynamic"),
            access_type=one_of("Interactive", "Non-interactive"),
            **dict.fromkeys(("model_name_details", "actors", "release_type_details"), TEXT),
            **dict.fromkeys(("data_source_type_details", "access_type_details"), TEXT),
        ),
        accounting=thing(post_processing=TEXT, composition=TEXT),
        implementation=thing(preprocessing_and_hyperparameter_tuning=TEXT, mechanisms=TEXT, justification=TEXT),
        administrative=thing("registry_authors", sources=TEXT, notes=TEXT, registry_authors=NAMES),
    ),
)
"""What `schemas/deployments-schema.yaml` of github.com/opendp/deployments-registry-data asks for, at commit 3e9c812 of
2026-07-15.
"""
TIER_3 = (
    *("dp_variant.data_domain", "dp_variant.unprotected_quantities", "privacy_loss.privacy_unit_details"),
    *("privacy_loss.privacy_parameters_details", "deployment_model.actors", "accounting.post_processing"),
    *("accounting.composition", "implementation.preprocessing_and_hyperparameter_tuning", "implementation.mechanisms"),
    "implementation.justification",
)
"""What the third tier adds, where it is more than an option."""


def test_an_entry_is_valid_in_the_registry_and_has_what_the_third_tier_asks_for(ward: Ward, tmp_path: Path) -> None:
    check = fastjsonschema.compile(SCHEMA)
    for head in (ward.second, ward.sampled):
        text = dpfc.write_report(head, tmp_path / f"{head.stem}.yaml").read_text("utf-8")
        found = yaml.safe_load(text)
        check(found)
        card, deployment = dpfc.Head.load(head).card, found["deployment"]
        assert all(deployment[part][name] for part, name in (each.split(".") for each in TIER_3))
        spent = deployment["privacy_loss"]["privacy_parameters"]
        assert spent["epsilon"] == pytest.approx(card.guarantee.epsilon, rel=1e-4)
        assert spent["epsilon"] >= card.guarantee.epsilon * (1 - 1e-8)
        assert spent["delta"] == pytest.approx(1e-5)
        assert card.features.name in deployment["dp_variant"]["unprotected_quantities"]
        # What only people know is asked for, and only there.
        assert text.count("TO BE FILLED IN: ") == 10
        with pytest.raises(fastjsonschema.JsonSchemaException):
            check({**found, "status": "Done"})


def test_a_head_without_a_guarantee_has_no_entry(ward: Ward, tmp_path: Path) -> None:
    with refuses("conflict", parameter="out"):
        dpfc.write_report(ward.plain, tmp_path / "plain.yaml")
    assert not list(tmp_path.iterdir())
