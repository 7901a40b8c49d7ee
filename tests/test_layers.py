"""The layers that import-linter checks leave nobody out; the check itself is CI's (`lint-imports`)."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_module_has_its_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    listed = {name.strip() for layer in layers for name in layer.replace(":", "|").split("|")}
    folder = ROOT / "taskengine"
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert modules | packages == listed
