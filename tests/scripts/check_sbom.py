"""check_sbom.py FILE: whether a list of crates keeps the schema of CycloneDX 1.5, strictly, and each
licence in it is an expression of SPDX."""

import json
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.spdx import is_expression
from cyclonedx.validation.json import JsonStrictValidator

name = sys.argv[1]
with open(name) as file:
    text = file.read()
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
if error is not None:
    sys.exit(f"{name}: {error}")
parts = json.loads(text)["components"]
for part in parts:
    for license in part["licenses"]:
        if not is_expression(license["expression"]):
            sys.exit(f"{name}: {part['name']} has {license['expression']}")
print(f"{len(parts)} crates are as they should be")
