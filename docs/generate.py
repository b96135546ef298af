"""The parts of reference pages that are made from the code whenever the site is built, as a hook of MkDocs.

Belongs here: turning what the code defines into Markdown. Not here: prose, which stands in the pages, and words about a
setting, command, job or code, which stand where the thing is defined. What is read is named in this one block.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, get_args

import dagster as dg
import pyarrow as pa
import typer.main
from dagster._config import ConfigType, ConfigTypeKind
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestration.definitions import build_defs
from pulsar_lifecycle.cli import app
from pulsar_lifecycle.inspect.meanings import CODES, documented, load, members, text
from pulsar_lifecycle.journal.metrics import METRICS
from pulsar_lifecycle.journal.prometheus import PREFIX
from pulsar_lifecycle.scan.references import KINDS
from pulsar_lifecycle.setting_types import parse_duration
from pulsar_lifecycle.settings import Settings

TABLES = {
    "bookkeeper_ledgers": "values.tables.BOOKKEEPER_LEDGERS",
    "managed_ledgers": "values.tables.MANAGED_LEDGERS",
    "managed_cursors": "values.tables.MANAGED_CURSORS",
    "schemas": "values.tables.SCHEMAS",
    "topics": "values.tables.TOPICS",
    "findings, in a scan's folder of the lake": "values.tables.FINDINGS",
    "storage_report, in a scan's folder of the lake": "lifecycle.storage.STORAGE_REPORT",
    "open_ledgers, in a scan's folder of the lake": "lifecycle.held.open_ledgers.OPEN_LEDGERS",
    "subscription_backlog, in a scan's folder of the lake": "lifecycle.held.backlog.SUBSCRIPTION_BACKLOG",
    "ledger_reasons, in a scan's folder of the lake": "lifecycle.reasons.LEDGER_REASONS",
    "topic_activity, in a scan's folder of the lake": "lifecycle.activity.activity_tables.TOPIC_ACTIVITY",
    "cursor_activity, in a scan's folder of the lake": "lifecycle.activity.activity_tables.CURSOR_ACTIVITY",
    "inactive_topics, in a scan's folder of the lake": "values.plans.inactive_plan.INACTIVE_TOPICS",
    "inactive_cursors, in a scan's folder of the lake": "values.plans.inactive_plan.INACTIVE_CURSORS",
    "delayed_index_buckets": "delayed_index.stored.index_tables.DELAYED_INDEX_BUCKETS",
    "delayed_index_messages": "delayed_index.stored.index_tables.DELAYED_INDEX_MESSAGES",
    "delayed_index_findings, of a scan in the lake": "delayed_index.stored.index_tables.DELAYED_INDEX_FINDINGS",
    "delayed_index_capacity, of a scan in the lake": "delayed_index.stored.index_tables.DELAYED_INDEX_CAPACITY",
    "delayed_messages_due, of a scan in the lake": "delayed_index.stored.index_tables.DELAYED_MESSAGES_DUE",
    "bookkeeper_entries, pulsar_offload": "sources.entry_tables.ENTRIES",
    "bookkeeper_entries, pulsar_offload as messages": "sources.messages.MESSAGES",
}
"""The Arrow schema of each table that Spark can load, by name or as Parquet; below ``pulsar_lifecycle``."""

SOURCES = (
    "pulsar_lifecycle.metastore.sources",
    "pulsar_lifecycle.sources.entry_tables",
    "pulsar_lifecycle.sources.entries",
    "pulsar_lifecycle.sources.offloaded",
    "pulsar_lifecycle.sources.index_sources",
)
"""The modules whose docstrings say which options the data sources have."""

CENSUS = ("pulsar_lifecycle.values.tables.STAT", "pulsar_lifecycle.values.tables.CENSUS")


def on_page_markdown(markdown: str, **_: object) -> str:
    """MkDocs asks for the Markdown of a page: put in what the code says. Raises KeyError for an unknown part."""
    return re.sub(r"^\{\{ (\w+) \}\}$", lambda found: PARTS[found[1]](), markdown, flags=re.MULTILINE)


# --------------------------------------------------------------------------------------------- docstrings and tables


def table(headers: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    lines = [list(headers), *[[str(cell) for cell in row] for row in rows]]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


# ---------------------------------------------------------------------------------------------------------- settings


def settings_part() -> str:
    """Every key of the settings file, from the models."""
    whole = documented(Settings)
    top: list[tuple[str, str, str]] = []
    sections: list[str] = []
    for name, field in Settings.model_fields.items():
        if section := model_of(field):
            optional = " Leave the section out if there is none." if field.default is None else ""
            rows = list(keys(section, f"{name}."))
            sections.append(f"## `[{name}]`\n\n{text(section.__doc__)}{optional}\n\n" + settings_table(rows))
        else:
            top.append((name, default_of(field), text(whole[name])))
    return "\n\n".join([settings_table(top), *sections])


def keys(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Key, default and meaning of each field of a section; fields of one model have their keys once, below KIND.

    One whose model extends that has its own keys, too.
    """
    said = {name: words for one in reversed(section.__mro__[:-2]) for name, words in documented(one).items()}
    parts = [type(field.default) for field in section.model_fields.values() if isinstance(field.default, BaseModel)]
    for name, field in section.model_fields.items():
        if not isinstance(field.default, BaseModel):
            yield prefix + name, default_of(field), text(said.get(name))
            continue
        assert field.default == type(field.default)(), f"{name}: its own defaults would not be shown"
        part = type(field.default)
        if parts.count(part) == 1 and part.__base__ not in parts:
            yield prefix + name, "as below", text(said.get(name))
            yield from keys(part, f"{prefix}{name}.")
            continue
        yield prefix + name, "as `KIND`", text(said.get(name))
        if part.__base__ in parts:
            own = documented(part).items()
            yield from ((f"{prefix}{name}.{key}", default_of(part.model_fields[key]), text(says)) for key, says in own)
    for part in {one: None for one in parts if parts.count(one) > 1}:
        yield from keys(part, f"{prefix}KIND.")


def settings_table(rows: Iterable[tuple[str, str, str]]) -> str:
    """Keys as a table."""
    return table(("key", "default", "meaning"), [(f"`{key}`", default, meaning) for key, default, meaning in rows])


def model_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a section; None for a plain key."""
    for one in (field.annotation, *get_args(field.annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def default_of(field: FieldInfo) -> str:
    """A field's default as the file would have it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if any(getattr(one, "func", None) is parse_duration for one in field.metadata):
        return f"`{duration(value)}`"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        power = value.bit_length() - 1
        tens = power - power % 10
        return f"2^{power}" if value == 1 << power else f"{value / (1 << tens):g} × 2^{tens}"
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def duration(seconds: float) -> str:
    """As the file would have it."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f'"{seconds / size:g}{unit}"'
    return f'"{seconds * 1000:g}ms"'


def commands_part() -> str:
    """Every command, from the command line's own definitions."""
    return "\n\n".join(command_part(path, one) for path, one in commands())


def commands() -> Iterator[tuple[str, Any]]:
    """Each command by its whole name, groups left out."""

    def below(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
        for name, one in group.commands.items():
            if hasattr(one, "commands"):
                yield from below(f"{prefix} {name}".strip(), one)
            else:
                yield f"{prefix} {name}".strip(), one

    return below("", typer.main.get_command(app))


def command_part(path: str, command: Any) -> str:
    """One command with its arguments and options."""
    named = {p.name: (p.metavar or p.name or "").upper() for p in command.params if p.param_type_name == "argument"}
    required = {p.name for p in command.params if p.required}
    usage = "".join(f" {shown}" if name in required else f" [{shown}]" for name, shown in named.items())
    rows = [
        (f"`{named[p.name]}`" if p.name in named else ", ".join(f"`{option}`" for option in p.opts), text(p.help))
        for p in command.params
        if p.name != "help"
    ]
    said = "\n\n".join(text(part) for part in inspect.cleandoc(command.help or "").replace("\f", "").split("\n\n"))
    said += "\n\n" + (table(("", ""), rows) if rows else "")
    return f"## {path}\n\n```\npulsar-lifecycle {path}{usage}\n```\n\n{said}"


# --------------------------------------------------------------------------------------------------- jobs and assets


def jobs_part() -> str:
    """Jobs, schedules, sensors and assets, from Dagster's own definitions."""
    repository = build_defs().get_repository_def()
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    rings = [
        *((s.name, f"schedule `{s.cron_schedule}`", f"Starts `{s.job_name}`.") for s in repository.schedule_defs),
        *(
            (s.name, f"sensor, every {s.minimum_interval_seconds} s", text(s.description))
            for s in repository.sensor_defs
        ),
    ]
    return "\n\n".join(
        [
            "## Jobs",
            *map(job_part, sorted(jobs, key=lambda job: job.name)),
            "## Schedules and sensors\n\nAll ship stopped.\n\n"
            + table(
                ("name", "rings", "what it does"), [(f"`{name}`", when, what) for name, when, what in sorted(rings)]
            ),
            "## Assets",
            *assets_parts(repository.asset_graph),
        ],
    )


def job_part(job: dg.JobDefinition) -> str:
    """A job, what it makes, and its configuration."""
    parts = [f"### {job.name}\n\n{text(job.description)}"]
    made = sorted(key.path[-1] for key in job.asset_layer.executable_asset_keys)
    if made:
        parts.append("Makes " + ", ".join(f"`{name}`" for name in made) + ".")
    for node in job.nodes:
        op = node.definition
        schema: Any = getattr(op, "config_schema", None)
        fields: Mapping[str, Any] = getattr(schema.config_type, "fields", {}) if schema else {}
        if not made:
            parts.append(text(op.description))
        if fields:
            name = node.name.replace("pulsar_", "CLUSTER_", 1) if made else node.name
            said = text(getattr(schema.config_type, "description", ""))
            rows = [(f"`{key}`", type_of(one.config_type), configured_default(one)) for key, one in fields.items()]
            parts.append(f"Configuration, below `ops: {name}: config:`. {said}")
            parts.append(table(("key", "type", "default"), rows))
    return "\n\n".join(parts)


def configured_default(field: Any) -> str:
    """A configuration field's default."""
    return "required" if field.is_required else f"`{json.dumps(field.default_value)}`"


def type_of(config_type: ConfigType) -> str:
    """A configuration field's type in words."""
    inner: Any = config_type
    match config_type.kind:
        case ConfigTypeKind.NONEABLE:
            return type_of(inner.inner_type)
        case ConfigTypeKind.ARRAY:
            return f"list of {type_of(inner.inner_type)}"
        case ConfigTypeKind.STRICT_SHAPE | ConfigTypeKind.PERMISSIVE_SHAPE:
            return (
                "{ " + ", ".join(f"`{name}`: {type_of(one.config_type)}" for name, one in inner.fields.items()) + " }"
            )
        case ConfigTypeKind.SCALAR_UNION:
            return type_of(inner.scalar_type)
        case _:
            return str(config_type.given_name or config_type.key).removesuffix("SourceType").lower()


def assets_parts(graph: Any) -> Iterator[str]:
    """The assets of each group."""
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    for group in sorted({node.group_name for node in nodes}):
        some = sorted((node for node in nodes if node.group_name == group), key=lambda node: node.key)
        rows = [
            (
                f"`{node.key.path[-1]}`",
                text(node.description),
                ", ".join(f"`{check.name}`" for check in sorted(node.check_keys, key=str)),
            )
            for node in some
        ]
        yield f"### {group}\n\n" + table(("asset", "what it is", "checks"), rows)


def codes_part() -> str:
    """Every code that the journal, a plan, a page or a command shows."""
    parts = ((title, [(f"`{code}`", means) for code, means in members(load(name))]) for title, name in CODES)
    return "\n\n".join(f"## {title}\n\n" + table(("code", "means"), rows) for title, rows in parts)


def kinds_part() -> str:
    """Every kind of reference."""
    rows = [(kind.code, kind.name, f"{kind.where}", kind.treatment) for kind in KINDS.values()]
    return table(("kind", "what", "where", "treatment"), rows)


def metrics_part() -> str:
    """The metrics, from the code that counts them."""
    rows = [(f"`{PREFIX}_{one.name}_total`", one.help, COUNTED[one.name]) for one in METRICS]
    return table(("metric", "PIP-186's words", "counts journal rows with"), rows)


COUNTED = {
    "ledgers_sent": "phase `send`, outcome `sent`",
    "offload_ledgers_sent": "phase `send`, outcome `sent`, about an offloaded copy",
    "messages_received": "phase `delete`: one for each message and run that took it",
    "ledgers_deleted": "phase `delete`, outcome `deleted`",
    "offload_ledgers_deleted": "phase `delete`, outcome `deleted`, about an offloaded copy",
    "ledger_deletions_failed": "phase `delete`, outcome `retrying` or `dead-lettered`: every failed try",
    "offload_ledger_deletions_failed": "the same about an offloaded copy",
    "messages_acknowledged": "phase `delete`, any outcome but `waiting` and `not-deleted`",
    "messages_max_retries_reached": "phase `delete`, outcome `dead-lettered`",
}


def tables_part() -> str:
    """The tables that Spark loads, column by column."""
    parts = [table_part(title, f"pulsar_lifecycle.{name}") for title, name in TABLES.items()]
    common = [(f"`{field.name}`", spark_type(field.type)) for name in CENSUS for field in load(name)]
    said = " ".join(
        text(documented(importlib.import_module(name.rpartition(".")[0]))[name.rpartition(".")[2]]) for name in CENSUS
    )
    options = [
        f"## Options of {name.rpartition('.')[2]}\n\n{docstring(importlib.import_module(name))}" for name in SOURCES
    ]
    ends = f"## The last columns of every metastore table\n\n{said}\n\n" + table(("column", "type"), common)
    return "\n\n".join([*parts, ends, *options])


def docstring(module: ModuleType) -> str:
    """What a module says about itself, without its first line and what it leaves to others."""
    parts = inspect.cleandoc(module.__doc__ or "").split("\n\n")[1:]
    kept = [part for part in parts if not part.startswith(("Not here", "Belongs here"))]
    return "\n\n".join(part if part.startswith("    ") else re.sub(r"\s*::$", ":", text(part)) for part in kept)


def table_part(title: str, name: str) -> str:
    """One table."""
    module, _, attribute = name.rpartition(".")
    schema: pa.Schema = load(name)
    census = {field.name for part in CENSUS for field in load(part)}
    rows = [(f"`{field.name}`", spark_type(field.type)) for field in schema if field.name not in census]
    said = text(documented(importlib.import_module(module))[attribute])
    return f"## {title}\n\n{said}\n\n" + table(("column", "type"), rows)


def spark_type(kind: pa.DataType) -> str:
    """An Arrow type in Spark's words."""
    if pa.types.is_list(kind):
        return f"array of {spark_type(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "struct of " + ", ".join(f"`{field.name}` {spark_type(field.type)}" for field in kind)
    if pa.types.is_map(kind):
        return f"map of {spark_type(kind.key_type)} to {spark_type(kind.item_type)}"
    return {"int64": "bigint", "int32": "int", "bool": "boolean"}.get(str(kind), str(kind))


PARTS: dict[str, Callable[[], str]] = {
    "settings": settings_part,
    "commands": commands_part,
    "jobs": jobs_part,
    "codes": codes_part,
    "references": kinds_part,
    "metrics": metrics_part,
    "tables": tables_part,
}
"""What stands for ``{{ name }}``, alone on a line of a page."""
