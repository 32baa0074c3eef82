"""The import rules: rooms build on those below them, and stay free of what they must not know."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("dataplane", "preprocess", "training")

_DATA = ("dataplane.errors", "dataplane.metrics", "dataplane.plan", "dataplane.storage", "dataplane.formats")
_LOADER = (*_DATA, "dataplane.buffers", "dataplane.catalog", "dataplane.pipeline", "dataplane.profile")
MAY_IMPORT = {
    "dataplane.errors": (),
    "dataplane.metrics": (),
    "dataplane.buffers": (),
    "dataplane.plan": ("dataplane.errors",),
    "dataplane.storage": ("dataplane.errors", "dataplane.metrics", "dataplane.buffers"),
    "dataplane.formats": ("dataplane.errors", "dataplane.plan", "dataplane.storage"),
    "dataplane.catalog": (
        "dataplane.errors",
        "dataplane.metrics",
        "dataplane.plan",
        "dataplane.storage",
        "dataplane.formats",
    ),
    "dataplane.pipeline": ("dataplane.errors", "dataplane.metrics", "dataplane.buffers", "dataplane.plan"),
    "dataplane.profile": ("dataplane.errors", "dataplane.metrics"),
    "dataplane.source": _LOADER,
    "dataplane.state": (*_LOADER, "dataplane.source"),
    "dataplane.loader": (*_LOADER, "dataplane.source", "dataplane.state"),
    "dataplane.torch_dataset": (*_LOADER, "dataplane.loader", "dataplane.source", "dataplane.state"),
    "dataplane.seaweed": ("dataplane.errors", "dataplane.storage"),
    "preprocess": (*_DATA, "dataplane.catalog"),
    # A bare package name stands for its public names.
    "training": ("dataplane", "dataplane.errors", "dataplane.profile", "dataplane.storage"),
}
NEVER_IN = {
    "torch": ("dataplane.plan", "dataplane.storage", "dataplane.formats", "dataplane.catalog", "preprocess"),
    "pyarrow": ("dataplane.plan", "dataplane.storage"),
}


def files_of(layer: str) -> list[Path]:
    path = ROOT.joinpath(*layer.split("."))
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def imported_modules(path: Path) -> set[str]:
    """What a file imports anywhere, also within functions; `from package import module` is that module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.relative_to(ROOT)}:{node.lineno}: a relative import"
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            ours = node.module.split(".")[0] in OURS
            modules = {name for name in below if is_module(name)} if ours else set()
            found |= modules | ({node.module} if len(modules) < len(below) else set())
    return found


def within(module: str, layer: str) -> bool:
    return module == layer or module.startswith(layer + ".")


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_imports_only_what_it_may(layer):
    for path in files_of(layer):
        for module in imported_modules(path):
            if module.split(".")[0] in OURS and not within(module, layer):
                assert any(module == name if name in OURS else within(module, name) for name in MAY_IMPORT[layer]), (
                    f"{path.relative_to(ROOT)} must not import {module}"
                )


def test_every_file_has_its_rules():
    known = (*MAY_IMPORT, "dataplane.cli")
    for package in OURS:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            assert name in ("dataplane.__init__", "dataplane.__main__") or any(
                within(name, layer) for layer in known
            ), f"{path.relative_to(ROOT)} belongs to no room; name it in MAY_IMPORT"


def test_nothing_imports_the_command_line():
    for package in OURS:
        for path in (ROOT / package).rglob("*.py"):
            if path.name != "__main__.py" and ROOT / "dataplane" / "cli" not in path.parents:
                assert not any(within(name, "dataplane.cli") for name in imported_modules(path)), path


@pytest.mark.parametrize(
    ("library", "layer"), [(library, layer) for library, layers in NEVER_IN.items() for layer in layers]
)
def test_a_layer_stays_free_of_a_library(library, layer):
    for path in files_of(layer):
        assert not any(within(module, library) for module in imported_modules(path)), path


@pytest.mark.parametrize("layer", NEVER_IN["torch"])
def test_importing_a_layer_does_not_load_torch(layer):
    # Torch costs seconds and a quarter of a gigabyte in each process that only moves bytes or packs.
    program = f"import {layer}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0
