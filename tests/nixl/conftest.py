"""The plug-in, a folder in which NIXL finds it, and agents in processes of their own."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from agents import WAYS, Pair, Process

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "build/release/bindings/nixl/libplugin_BRAID.so"


def wheel() -> Path | None:
    """Where the wheel's own plug-ins are."""
    for name in ("nixl_cu12", "nixl_cu13"):
        spec = find_spec(name)
        if spec and spec.origin:
            return Path(spec.origin).parents[1] / f".{name}.mesonpy.libs/plugins"
    return None


@pytest.fixture(scope="session")
def own_plugins() -> Path:
    """NIXL's."""
    found = wheel()
    if found is None:
        pytest.skip("NIXL's wheel is not here: run scripts/test_nixl, which installs it")
    return found


@pytest.fixture(scope="session")
def plugins(own_plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NIXL_PLUGIN_DIR replaces the wheel's folder, so it has links to the wheel's plug-ins, too."""
    if not PLUGIN.exists():
        pytest.skip(f"{PLUGIN} is not built: cmake --build build/release --target nixl_plugin")
    folder = tmp_path_factory.mktemp("plugins")
    (folder / PLUGIN.name).symlink_to(PLUGIN)
    (folder / "libplugin_UCX.so").symlink_to(own_plugins / "libplugin_UCX.so")
    return folder


@pytest.fixture
def process(plugins: Path, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Makes processes that end with the test."""
    made: list[Process] = []

    def make(name: str, **environment: str) -> Process:
        made.append(Process(name, plugins, tmp_path / f"{name}.log", **environment))
        return made[-1]

    yield make
    for one in made:
        if one.code() is None:
            one.end()


@pytest.fixture(params=WAYS)
def pair(request: Any, process: Callable[..., Process]) -> Pair:
    """Over each way."""
    return Pair(process("near"), process("far"), WAYS[request.param])


@pytest.fixture
def host_pair(process: Callable[..., Process]) -> Pair:
    """On one host."""
    return Pair(process("near"), process("far"), WAYS["one host"])
