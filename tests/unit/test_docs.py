"""The documentation builds strictly, and what it tells an operator to type exists."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import typer.main
import yaml

from docs import generate
from orchestration.definitions import UNCONFIGURED, build_defs
from pulsar_lifecycle.cli import app, journal_codes
from pulsar_lifecycle.inspect import meanings
from pulsar_lifecycle.settings import CONFIG_VARIABLE, Settings
from pulsar_lifecycle.values.gaps import GapCode

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != CONFIG_VARIABLE} | {
    "NO_MKDOCS_2_WARNING": "1"
}


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` runs."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_module_with_servers_is_named_where_it_says_what_it_proves() -> None:
    named = re.findall(r"`(test_[a-z_*]+)`", (ROOT / "docs/testing.md").read_text())
    modules = {path.stem for path in (ROOT / "tests/integration").rglob("test_*.py")}
    assert {module for module in modules if not any(fnmatchcase(module, name) for name in named)} == set()


def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()
    assert not list(site.rglob("*.py"))


def test_broken_links_anchors_and_pictures_fail_the_build(tmp_path: Path) -> None:
    """The checks of our mkdocs.yml, on two pages of their own."""
    inherited = (
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: pages\nextra_css: []\nhooks: []\nnav: [index.md, other.md]\n"
    )
    (tmp_path / "mkdocs.yml").write_text(inherited)
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "other.md").write_text("# Other\n")
    page = tmp_path / "pages" / "index.md"
    page.write_text("# Index\n\n[fine](other.md#other)\n")
    assert build(tmp_path / "mkdocs.yml", tmp_path / "site").returncode == 0
    page.write_text("# Index\n\n[a](missing.md) [b](#missing-b) [c](other.md#missing-c) ![d](missing.png)\n")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    assert not [name for name in ("missing.md", "#missing-b", "#missing-c", "missing.png") if name not in done.stderr]


@pytest.mark.parametrize("name", ["settings", "codes", "metrics"])
def test_every_row_that_is_made_from_the_code_has_words(site: Path, name: str) -> None:
    """One without them is a definition without a docstring."""
    rows = re.findall(r"<tr>\s*<td>(.*?)</tr>", (site / "reference" / f"{name}.html").read_text(), flags=re.DOTALL)
    assert len(rows) >= 9
    assert not [row for row in rows if re.search(r"<td></td>\s*$", row)]


def test_the_page_of_settings_has_the_keys_of_all_kinds_once_and_each_kinds_own_words() -> None:
    page = generate.settings_part()
    assert page.count(".max_growth`") == page.count("| `automation.KIND.mode` |") == 1
    assert "| `automation.objects` | as `KIND` | Objects that nothing needs" in page
    assert "| `automation.bookies` | as `KIND` | Having bookies collect" in page
    assert "| `automation.bookies.max_share` | `1.0` | Share of the cluster's bookies. |" in page
    assert page.count("| `automation.bookies") == 2


NO_CODES = {
    "Action",
    "AutomationCode",
    "BacklogEnds",
    "BucketProblem",
    "CursorHold",
    "DiskVerdict",
    "ExplainCode",
    "GapCode",
    "Harm",
    "IndexFinding",
    "IntentState",
    "Lacks",
    "Level",
    "LoadFailure",
    "LoadNeed",
    "NotAsked",
    "ObjectKind",
    "OffloadChoice",
    "OffloadStateCode",
    "OffsetProblem",
    "OpenCause",
    "PartitionFinding",
    "Phase",
    "Presence",
    "Problem",
    "Reason",
    "RepairLevel",
    "RunEnd",
    "StopCode",
    "SweepAction",
    "UseEvidence",
    "Verdict",
}
"""Enumerations of the page Codes that column ``code`` of the journal has no members of."""


@pytest.mark.parametrize("name", [name for _, name in meanings.CODES])
def test_a_code_is_one_word(name: str) -> None:
    """It is typed after ``--code``, and a filter in SQL: a phrase would be a sentence that somebody compares."""
    assert [code.value for code in meanings.load(name) if not re.fullmatch(r"[A-Za-z0-9_-]+", code.value)] == []


def test_every_enumeration_of_the_page_is_asked_of_the_journal_or_never_in_it() -> None:
    """A new one is named in ``journal_codes.CODES`` or here: `journal --code` must not refuse a code that a row has."""
    page = {name.rpartition(".")[2] for _, name in meanings.CODES}
    assert {codes.__name__ for codes in journal_codes.CODES} == page - NO_CODES
    assert page >= NO_CODES


# ------------------------------------------------------------------------------------------ what an operator is to type


def blocks(*languages: str) -> Iterator[tuple[str, str]]:
    """Page and content of each fenced block of these languages; "" is one without."""
    for page in PAGES:
        for fence in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", page.read_text(), flags=re.MULTILINE | re.DOTALL):
            if fence[2] in languages:
                lines = [line.removeprefix(fence[1]) for line in fence[3].splitlines()]
                yield str(page.relative_to(ROOT)), "\n".join(lines)


def typed(program: str) -> list[Any]:
    """Every line of a page that begins with a program."""
    found = []
    for page, text in blocks("", "bash", "sh"):
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            while words and "=" in words[0]:
                words = words[1:]
            if words and Path(words[0]).name == program:
                found.append(pytest.param(words[1:], id=f"{page}: {line.strip()[:60]}"))
    inline = re.compile(rf"`((?:\.venv/bin/)?{re.escape(program)} [^`\n]+)`")
    for page in PAGES:
        for line in inline.findall(page.read_text()):
            found.append(pytest.param(shlex.split(line)[1:], id=f"{page.relative_to(ROOT)}: {line[:60]}"))
    return found


@cache
def defs() -> dg.Definitions:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(CONFIG_VARIABLE, raising=False)  # pages speak of no cluster
        return build_defs()


@pytest.mark.parametrize("words", typed("pulsar-lifecycle"))
def test_a_command_exists(words: list[str]) -> None:
    if "|" in words:
        words = words[: words.index("|")]
    command: Any = typer.main.get_command(app)
    context = command.make_context("pulsar-lifecycle", list(words), resilient_parsing=True)
    rest = [*context._protected_args, *context.args]
    while hasattr(command, "commands"):
        assert rest, "a group needs a command"
        command = command.commands[rest[0]]
        rest = rest[1:]
    options = {option for param in command.params for option in param.opts} | {"-h", "--help"}
    assert not [word for word in rest if word.startswith("-") and word not in options]


@pytest.mark.parametrize("words", typed("make"))
def test_a_make_target_exists(words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert words[0] in targets


@pytest.mark.parametrize("words", typed("dagster"))
def test_a_job_exists(words: list[str]) -> None:
    for flag, job in pairwise(words):
        if flag == "-j":
            assert job == "JOB" or defs().resolve_job_def(job)


def test_jobs_assets_and_sensors_that_pages_name_exist() -> None:
    repository = defs().get_repository_def()
    known = {
        "job": {job.name for job in repository.get_all_jobs()},
        "asset": {key.path[-1] for key in repository.asset_graph.get_all_asset_keys()},
        "sensor": {sensor.name for sensor in repository.sensor_defs},
        "check": {check.name for node in repository.asset_graph.asset_nodes for check in node.check_keys},
    }
    named = re.compile(r"\b(job|asset|sensor|check)s?\s+`(\w+)`")
    wrong = [
        f"{page.name}: {kind} {name}"
        for page in PAGES
        for kind, name in named.findall(page.read_text())
        if name not in known[kind]
    ]
    assert not wrong


@pytest.mark.parametrize(
    "config", [pytest.param(text, id=page) for page, text in blocks("yaml") if text.startswith("ops:")]
)
def test_a_run_configuration_is_one_of_a_job(config: str) -> None:
    document = yaml.safe_load(config.replace("CLUSTER", UNCONFIGURED))
    (op,) = document["ops"]
    jobs = [job for job in defs().get_repository_def().get_all_jobs() if not job.name.startswith("__")]
    (job,) = [job for job in jobs if op in {node.name for node in job.nodes}]
    assert dg.validate_run_config(job, document)


@pytest.mark.parametrize("text", [pytest.param(text, id=page) for page, text in blocks("toml")])
def test_settings_in_a_page_exist(text: str) -> None:
    known = {name: getattr(model_of(field), "model_fields", None) for name, field in Settings.model_fields.items()}
    for section, value in tomllib.loads(text).items():
        assert section in known
        for key in value if isinstance(value, dict) else ():
            assert key in (known[section] or {}), f"[{section}] {key}"


def model_of(field: Any) -> Any:
    return next(
        (one for one in (field.annotation, *getattr(field.annotation, "__args__", ())) if hasattr(one, "model_fields")),
        None,
    )


def test_settings_that_pages_name_exist() -> None:
    sections = {name for name, field in Settings.model_fields.items() if model_of(field)}
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in re.findall(rf"`((?:{'|'.join(sections)})(?:\.\w+)+)(?: = [^`]*)?`", page.read_text())
        if not is_a_setting(name) and not name.endswith((".json", ".yaml"))  # apply.json
    ]
    assert not missing


def is_a_setting(name: str) -> bool:
    model: Any = Settings
    for key in name.split("."):
        field = getattr(model, "model_fields", {}).get(key)
        if field is None:
            return False
        model = model_of(field)
    return True


NAMES_OF_OTHERS = {
    *("clusters", "deletion_east", "offload_east", "zookeeper_east", "directory_type", "root_module", "get_async"),
    *("entry_location_compact", "entry_log_ids", "gc_details", "list_bookie_info", "list_disk_file", "server_config"),
    *("ledgers_under_replicated", "max_runtime"),
    *(f"pulsar_delayed_message_index_bucket_{name}" for name in ("op_count", "op_latency_ms", "total")),
    *("pulsar_delayed_message_index_bucket_snapshot_size_bytes", "pulsar_delayed_message_index_loaded"),
}
"""Of Dagster, kazoo, bookies and brokers, and of the example of two clusters."""


def inline(folder: str = "") -> Iterator[tuple[str, str]]:
    """Page and content of each piece of code within its prose."""
    for page in PAGES:
        if str(page.relative_to(ROOT)).startswith(folder):
            prose = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
            yield from ((str(page.relative_to(ROOT)), found) for found in re.findall(r"`([^`\n]+)`", prose))


def product() -> list[Path]:
    folders = (ROOT / name for name in ("pulsar_lifecycle", "assets", "orchestration", "resources", "sandbox", "bench"))
    return [path for folder in folders for path in folder.rglob("*.py")]


def test_names_that_pages_have_exist() -> None:
    """Codes, columns, options of sources, configuration keys, metrics, assets: a new name must reach the pages."""
    known = {word for path in product() for word in re.findall(r"\w+", path.read_text())}
    known |= {path.stem for path in (ROOT / "tests").rglob("*.py")} | NAMES_OF_OTHERS | {"pulsar_lifecycle"}
    known |= {f"{generate.PREFIX}_{one.name}_total" for one in generate.METRICS}
    known |= {f"{generate.PREFIX}_in_flight_deletions"}
    named = re.compile(r"(?<![\w.*-])[a-z]+(?:_[a-z0-9]+)+(?![\w*-])")
    wrong = [f"{page}: {name}" for page, code in inline() for name in named.findall(code) if name not in known]
    assert not wrong


def test_options_that_pages_name_exist() -> None:
    known = {option for _, command in generate.commands() for param in command.params for option in param.opts}
    known |= {"--config", "--help", "--shrink"}  # of all commands, and of the simulator
    wrong = [
        f"{page}: {option}"
        for page, code in inline()
        if not code.startswith("pulsar-admin ")
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", code)
        if option not in known
    ]
    assert not wrong


COMPOSED = {
    "its copy in BookKeeper stays: its broker cannot read it",
    "No module named ...",
    "cannot read ...: No such file",
}
"""Two of our sentences as one; what Python and the operating system say."""


def test_messages_that_a_how_to_goes_by_are_ours() -> None:
    said = " ".join(" ".join(literals(path)) for path in product())
    wrong = [
        f"{page.name}: {quoted}"
        for page in (ROOT / "docs/howto").glob("*.md")
        for row in re.findall(r"^\| ([^|]*)", page.read_text(), flags=re.MULTILINE)
        for quoted in re.findall(r'"([^"`]{6,})"', row)
        if quoted not in COMPOSED and not all(part in said for part in quoted.split(" ... "))
    ]
    assert not wrong


def literals(path: Path) -> Iterator[str]:
    """The strings of a module; a formatted one has a gap where a value goes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in (ROOT / "docs/howto").glob("*.md")])
def test_a_how_to_fits_a_screen(page: Path) -> None:
    words = page.read_text().split()
    assert len(words) <= 490
    text = " ".join(words)
    assert text.count("**When**") == text.count("**What it will not do**") == 1
    assert " 1. " in text
    assert "| if you see | do |" in text


def test_pages_that_code_names_exist() -> None:
    """A message that sends an operator to a page must not outlive the page."""
    folders = (ROOT / name for name in ("pulsar_lifecycle", "assets", "orchestration"))
    source = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    for name in re.findall(r"docs/[\w/-]+\.md", source):
        assert (ROOT / name).is_file()


def test_modules_that_prose_names_exist() -> None:
    """In pages and docstrings, by file (``deletion/batch.py``) and by attribute (``deletion.batch.decide``)."""
    sources = [
        path
        for folder in ("pulsar_lifecycle", "assets", "orchestration", "resources", "sandbox", "bench", "tests", "docs")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    known = {str(path.relative_to(ROOT)) for path in sources}
    rooms = {path.name for path in (ROOT / "pulsar_lifecycle").iterdir() if path.is_dir()}
    wrong: list[str] = []
    for path in [*PAGES, *sources]:
        text = path.read_text()
        for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", text):
            if not any(one == name or one.endswith("/" + name) for one in known):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
        for dotted in re.findall(r"`([a-z_]+\.[a-z_]+)\.[A-Za-z_]+`", text):
            room, module = dotted.split(".")
            here = {f"pulsar_lifecycle/{room}/{module}.py", f"pulsar_lifecycle/{room}/{module}/__init__.py"}
            if (room in rooms or room in ("plan", "engine", "spark")) and not here & known:
                wrong.append(f"{path.relative_to(ROOT)}: {dotted}")
    assert not wrong


def test_names_that_docstrings_send_a_reader_to_exist() -> None:
    """``module.name``: settings, and what is in a module or is written like that somewhere in the code."""
    texts = {path: path.read_text() for path in product()}
    everything = "\n".join(texts.values())
    wrong = [
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path, text in texts.items()
        for module, name in re.findall(r"``([a-z_]+)\.(\w+)``", text)
        if name not in ("py", "toml", "json", "yaml", "maxbuffer", "asdict")
        and not is_a_setting(f"{module}.{name}")
        and not any(one.stem == module and re.search(rf"\b{name}\b", texts[one]) for one in texts)
        and not any(one.parent.name == module and one.stem == name for one in texts)
        and not re.search(rf"\b{name}\b", texts.get(ROOT / "pulsar_lifecycle" / module / "__init__.py", ""))
        and not re.search(rf"(?<![`\w]){module}\.{name}\b", everything)
    ]
    assert not wrong


def test_the_coverage_page_says_what_to_do_about_every_gap() -> None:
    page = (ROOT / "docs/understand/coverage.md").read_text()
    assert [code.value for code in GapCode if f"`{code.value}`" not in page] == []


def test_safety_rules_that_the_simulator_judges_by_are_on_their_page() -> None:
    page = set(re.findall(r"^\| ([IP]\d+) \|", (ROOT / "docs/reference/safety-rules.md").read_text(), re.MULTILINE))
    judged = {
        rule
        for module in (ROOT / "tests/simulation").rglob("*.py")
        for rule in re.findall(r'"([IP]\d+)\b', module.read_text())
    }
    assert judged
    assert judged <= page
