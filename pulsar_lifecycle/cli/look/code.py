"""``code``: what a code of the journal, a plan, a page or a log means. It asks no server and needs no settings."""

from __future__ import annotations

from typing import Annotated

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson


def code(
    codes: Annotated[list[str], typer.Argument(help="As the journal, a plan or a page shows it, such as turn.")],
    as_json: AsJson = False,
) -> None:
    """What a code means, in each place where one of that name is met."""
    from pulsar_lifecycle.inspect.meanings import meanings

    found = [meaning for one in codes for meaning in meanings(one)]
    if as_json:
        show.json_document([meaning._asdict() for meaning in found])
        return
    for meaning in found:
        show.text(f"{meaning.code}: {meaning.where}", "bold")
        show.text(meaning.means)
