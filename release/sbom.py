"""An image's packages as a CycloneDX document, by the library of the CycloneDX project, which also checks it against
the schema.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from release.inventory import Image, Package


class InvalidSbom(Exception):
    """The document breaks the schema of CycloneDX."""


def sbom(name: str, version: str, image: Image, at: datetime) -> str:
    """The same text for the same image. Raises InvalidSbom."""
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{name}@{image.digest}"))
    bom.metadata.timestamp = at
    purl = PackageURL("oci", None, name, image.digest)
    bom.metadata.component = Component(
        type=ComponentType.CONTAINER, name=name, version=version, purl=purl, bom_ref=purl.to_string()
    )
    bom.components.update(_component(package, image.distribution) for package in image.packages)
    bom.register_dependency(bom.metadata.component, bom.components)
    text: str = JsonV1Dot6(bom).output_as_string(indent=1)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise InvalidSbom(f"{name}: {error}")
    return text + "\n"


def _component(package: Package, distribution: str) -> Component:
    if package.ecosystem == "deb":
        qualifiers = {"arch": package.architecture, "distro": distribution}
        purl = PackageURL("deb", distribution.partition("-")[0] or None, package.name, package.version, qualifiers)
    else:
        # Ours are not on PyPI: a scanner must not look for them there.
        kind = "generic" if package.name.startswith("understudy") else "pypi"
        purl = PackageURL(kind, None, package.name, package.version)
    licenses = [LicenseFactory().make_from_string(package.license)] if package.license else None
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        purl=purl,
        bom_ref=purl.to_string(),
        licenses=licenses,
    )
