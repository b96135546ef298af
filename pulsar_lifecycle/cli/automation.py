"""``automation`` and ``approve``: what would be applied by itself, and saying that a plan may be.

Belongs here: the pages. Not here: the rule (``runs/automation_rule.py``), applying, which Dagster's sensor
``automation`` starts.
"""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson, cluster_of


def automation(context: typer.Context, as_json: AsJson = False) -> None:
    """What becomes of the newest plan of each kind by itself, and why, as `[automation]` has it."""
    from pulsar_lifecycle.inspect.automation import KINDS, settings_of, told, unless_stopped

    where = cluster_of(context)
    modes = {kind.name: settings_of(where, kind).mode for kind in KINDS}
    decisions = unless_stopped(where, [told(where, kind) for kind in KINDS])
    found = [(name, mode, one) for (name, mode), one in zip(modes.items(), decisions, strict=True)]
    if as_json:
        show.json_document(
            [
                {"kind": name, "mode": mode.value, "code": one.code.value, "plan_id": one.plan_id, "text": one.text}
                for name, mode, one in found
            ]
        )
        return
    show.table(
        ["kind", "mode", "code", "plan", "why"],
        [(name, mode.value, one.code.value, one.plan_id, one.text) for name, mode, one in found],
    )
    if any(one.goes for one in decisions):
        show.text("The last tick of sensor `automation` says whether it is switched on, and what became of the runs.")


def approve(
    context: typer.Context,
    plan_id: Annotated[str, typer.Argument(help="As `plans` or its page names it.")],
    digest: Annotated[str, typer.Argument(help="The digest that you looked at.")],
    by: Annotated[str, typer.Option("--by", help="Who approves it. [default: the user of this process]")] = "",
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take the approval back.")] = False,
) -> None:
    """Let a plan be applied by itself, where its kind's mode is `approve`; who and when goes into the journal."""
    from pulsar_lifecycle.inspect.automation import after_approval, after_withdrawal, approve_plan

    where = cluster_of(context)
    run_id = f"approve-{where.ids.token(4)}"
    done = approve_plan(where, run_id, plan_id, digest, by or getpass.getuser(), withdraw=withdraw)
    if withdraw:
        show.text(f"the approval of {plan_id} is withdrawn by {done.by}")
    else:
        show.text(f"{plan_id} is approved by {done.by} until {show.moment(done.until)}")
    for line in (after_withdrawal if withdraw else after_approval)(where, plan_id):
        show.text(line)
