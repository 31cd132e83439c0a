"""The table of the families of backbones. A new family is one row here and one module or package of its own."""

from dpfc_cli.backbones import convnext, scattering, vision_transformer
from dpfc_cli.backbones.family import Family

FAMILIES: tuple[Family, ...] = (scattering.FAMILY, vision_transformer.FAMILY, convnext.FAMILY)
