"""The conformance kits as the author of a plug-in uses them: from the wheel, without a checkout."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from support.documents import blocks_of, page
from support.packages import Environment, build_wheel
from support.places import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A fresh environment with `deliveryd[testing]` from the wheel."""
    folder = tmp_path_factory.mktemp("author")
    environment = Environment(folder / "venv")
    environment.install(build_wheel(ROOT, folder / "dist"), "testing")
    environment.check()
    return environment


@pytest.mark.parametrize(("document", "passed"), [("write-an-adapter.md", 18), ("write-a-directory.md", 6)])
def test_the_plug_in_of_the_document_passes_its_ten_lines(
    environment: Environment, tmp_path: Path, document: str, passed: int
) -> None:
    """Its package, its test and its configuration are taken from the page as they stand there."""
    source, test = blocks_of(page(document), "python")
    (project,) = (block for block in blocks_of(page(document), "toml") if "[project]" in block)
    name = tomllib.loads(project)["project"]["name"].replace("-", "_")
    package = tmp_path / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text(project, encoding="utf-8")
    (package / f"{name}.py").write_text(source, encoding="utf-8")
    environment.install(build_wheel(package, tmp_path / "dist"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "test_plug_in.py").write_text(test, encoding="utf-8")
    where = environment.run("-c", "import deliveryd.testing as kit; print(kit.__file__)", cwd=elsewhere)
    assert Path(where.stdout.strip()).is_relative_to(environment.site), where.stderr
    run = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", cwd=elsewhere)
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(rf"^{passed} passed", run.stdout, re.MULTILINE), run.stdout


def test_a_plug_in_that_breaks_a_rule_fails_with_the_values_compared(
    environment: Environment, tmp_path: Path
) -> None:
    """The kit's assertions are rewritten by pytest like those of a test."""
    broken = (
        "import pytest\n"
        "from deliveryd.testing.adapters import AdapterConformance, GatewayProvider\n"
        "from deliveryd.testing.gateway import open_gateway\n"
        "class TestLax(AdapterConformance):\n"
        "    adapter = 'http'\n"
        "    @pytest.fixture\n"
        "    async def provider(self):\n"
        "        async with open_gateway() as gateway:\n"
        "            url = f'{gateway.url}/send'\n"
        "            yield GatewayProvider(gateway, {'url': url, 'json': {'to': '{customer.phone}'}})\n"
    )
    (tmp_path / "test_lax.py").write_text(broken, encoding="utf-8")
    run = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert run.returncode == 1
    assert "Accepted(provider_id=None, lacks_id=False).provider_id" in run.stdout
