"""The journal's rows about the operator's words.

Not here: which of them are news (``plan/words.py``), the words themselves (``words.py``).
"""

from __future__ import annotations

import json
from dataclasses import asdict

from pulsar_lifecycle.plan.outcomes import OPERATOR_WORD
from pulsar_lifecycle.plan.words import KnownWord
from pulsar_lifecycle.ports import JournalRow


def journal_row(run_id: str, cluster: str, word: KnownWord, now: int) -> JournalRow:
    """One word that is in force, or has ended; ``detail`` holds all of it, ``reason`` is for reading."""
    return JournalRow(
        run_id=run_id,
        cluster=cluster,
        plan_id="",
        ledger_id=-1,
        component=word.kind.value,
        topic="",
        action=OPERATOR_WORD,
        phase=OPERATOR_WORD,
        outcome=word.how,
        reason=f"{word.subject}: {word.why or 'no reason given'}",
        bytes=0,
        checksum="",
        detail=json.dumps(asdict(word)),
        at=now,
    )
