"""Print the lowest versions that pyproject.toml promises, as constraints for pip."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
for wanted in project["dependencies"] + project["optional-dependencies"]["core-test"]:
    name, version = re.match(r"([\w.-]+)>=([\w.]+)", wanted).groups()
    print(f"{name}=={version}")
