"""The simulator bites: a law catches each deliberate fault of the engine, and within how many schedules."""

from __future__ import annotations

import pytest

from tests.simulation.faults import traps
from tests.simulation.mutations.activity_mutations import ACTIVITY
from tests.simulation.mutations.copy_mutations import COPIES
from tests.simulation.mutations.delayed_mutations import DELAYED
from tests.simulation.mutations.deletion_mutations import DELETION
from tests.simulation.mutations.load_mutations import IDLE_LOADS, LOADS, UNORDERED
from tests.simulation.mutations.overtaken_mutations import OVERTAKEN
from tests.simulation.mutations.record_mutations import OFFLOADED_RECORDS, RECORDS
from tests.simulation.mutations.retention_mutations import RETENTION
from tests.simulation.mutations.scan_mutations import SCANS
from tests.simulation.mutations.tiered_mutations import TIERED
from tests.simulation.mutations.topic_mutations import TOPICS
from tests.simulation.operators import (
    delaying,
    idle_loads,
    idling,
    loading,
    recording,
    recording_offloaded,
    retaining,
    tiering,
)
from tests.simulation.simulator import simulate

ALL = {
    **DELETION,
    **SCANS,
    **TOPICS,
    **COPIES,
    **TIERED,
    **RETENTION,
    **LOADS,
    **IDLE_LOADS,
    **UNORDERED,
    **RECORDS,
    **OFFLOADED_RECORDS,
    **DELAYED,
    **ACTIVITY,
    **OVERTAKEN,
}

WITHIN = 400
"""Schedules that may pass before a mutation is caught."""

CAUGHT_BY = {
    "skip the owner check": 8,
    "acknowledge before deleting": 0,
    "acknowledge before journalling": 0,
    "drop the grace period": 2,
    "trust the message instead of the covered epoch": 1,
    "delete without version guard": 4,
    "delete without lease guard": 49,
    "count a lost connection as not deleted": 6,
    "ignore the earlier scan": 1,
    "treat unreadable as absent when asking the owner": 22,
    "treat unreadable as gone when scanning": 274,
    "skip sync": 17,
    "delete without archiving": 0,
    "acknowledge what was not copied to the retry topic": 2,
    "acknowledge what must wait": 21,
    "leave what must wait at the head": 69,
    "count what must wait as a retry": 21,
    "act on a scan that is not covered": 108,
    "go on while paused": 217,
    "no budget": 8,
    "go on while ZooKeeper is slow": 101,
    "compensate after an ambiguous compare-and-set": 0,
    "trim past the cursors": 15,
    "never journal for a run that ended": 62,
    "delete offloaded copies that metadata names": 208,
    "delete objects whatever their age and origin": 2,
    "take ledgers off lists whose offloaded copies no run deletes": 13,
    "take ledgers off lists beside an open ledger that leaked": 422,
    "take ledgers off lists beside an offload attempt of a broker": 574,
    "write topics that were created again meanwhile": 71,
    "take ledgers off lists of system topics that deletion runs keep": 69,
    "delete topics before their messages are sent": 11,
    "undo without asking the bookies": 90,
    "acknowledge dead letters before they are sent again": 17,
    "never look whether the store went back in time": 617,
    "forget what the scans between two found": 22,
    "forget shadow topics that the newest scan did not see": 3,
    "count what got lost instead of weighing it": 90,
    "keep no owner of a damaged entry": 0,
    "take no answer for an empty memory": 40,
    "stop every plan for what a broker does not say of one topic": 0,
    "never look for another cluster on the ZooKeeper": 20,
    "take listings for whole": 20,
    "let a launch raise the settings' caps": 0,
    "take any number of ledgers off lists": 50,
    "free snapshots of cursors without a z-node": 11,
    "free snapshots whose range is trimmed": 65,
    "free snapshots of whatever cursor a broker does not name": 242,
    "compare a sample of two copies": 321,
    "compare the lengths of two copies": 321,
    "compare only copies that are small": 321,
    "forget that earlier scans found the ledger of a copy listed": 1,
    "plan ledgers younger than their retention": 72,
    "apply a plan of retention whatever the policy is by now": 1332,
    "have brokers load the topics of a plan of retention": 12,
    "count a ledger among what is retained behind it": 132,
    "apply a plan of retention whatever policies topics have by now": 2272,
    "retain whatever the policies of topics say": 292,
    "retain whatever the global policies of topics say": 1172,
    "retain by global policies before local ones": 292,
    "retain by policies that were deleted": 1172,
    "load topics that nobody ordered": 36,
    "load what shares a bundle": 176,
    "load without a note": 56,
    "have brokers load topics for a scan": 36,
    "expire messages younger than their TTL": 76,
    "expire messages whatever the policies of topics say": 176,
    "expire messages whatever the global policies of topics say": 796,
    "load topics whatever their global policies do at first": 176,
    "load topics whose TTL counts too late": 176,
    "load topics whose deduplication counts too late": 616,
    "expire messages of cursors that are no subscriptions": 376,
    "let brokers delete subscriptions meanwhile": 776,
    "let brokers drop backlogs meanwhile": 196,
    "explain young ledgers away": 98,
    "explain without what our first phase took off lists": 5,
    "skip the proof of an offloaded copy": 3,
    "prove an offloaded copy once and for all": 3,
    "delete copies before the lag": 55,
    "remove the objects of an attempt without aborting it": 479,
    "sweep without the second scan": 103,
    "delete copies that no broker has read": 3,
    "go on after a broker could not read": 3,
    "forget a copy deletion's journal": 3,
    "delete copies before the message is sent": 3,
    "revert while a deletion run is at it": 3623,
    "revert without asking BookKeeper": 3,
    "count a partial listing as whole": 319,
    "delete BookKeeper's copy whatever became of the objects": 191,
    "upload before the attempt is noted": 3,
    "delete BookKeeper's copy whatever brokers could read": 479,
    "abort a committed attempt": 535,
    "delete subscriptions that are used since the load": 56,
    "believe z-nodes of subscriptions whose broker died": 2116,
    "take the ledger that a position lies in": 30,
    "move low watermarks back": 630,
    "answer before the ledgers are gone": 30,
    "answer whatever low watermark is kept": 1770,
    "move subscriptions past the low watermark": 630,
    "believe a search over publish times": 330,
    "answer before the bookies have collected": 670,
    "ask no bookie of what earlier runs deleted": 450,
    "answer partitions for one another": 150,
    "answer whatever topic has the name by now": 1150,
    "answer before the objects are gone": 327,
    "answer before the ledger of the low watermark is gone": 407,
    "exchange buckets without the version of the topic": 933,
    "delete old snapshots before the new ones are named": 33,
    "rebuild buckets that overlap": 213,
    "rebuild by the position of another subscription": 33,
    "merge buckets without the segments that were loaded": 273,
    "name snapshots that are not written": 33,
    "discard new snapshots that a cursor names": 33,
    "merge and drop buckets beside those that lost messages": 1013,
    "rebuild buckets that are early": 33,
    "take what merges lost for late arrivals": 113,
    "find what a merge lost of its first bucket alone": 233,
    "repair buckets that the plan does not name": 1013,
    "exchange buckets that another has written meanwhile": 733,
    "overlook that a subscription moved": 118,
    "take one scan for a history": 118,
    "wait for less than the period": 378,
    "delete subscriptions without asking their broker": 18,
    "delete inactive topics whatever changed since the plan": 2718,
    "delete inactive subscriptions that are used since the load": 1538,
    "delete inactive subscriptions that stay on other partitions": 2838,
    "take every subscription of unloaded topics for inactive": 638,
    "have brokers load topics beside a plan of their loads": 38,
    "have brokers load topics for any run": 1,
    "free what left a list beside open ledgers from before the write that ours replaced": 184,
    "free what left a list beside open ledgers from after our write": 464,
    "free what left a list beside the open ledgers of another topic of its name": 64,
    "free what left a list beside one more open ledger": 864,
    "free what left a list by the numbers of writes before a restore": 4,
}
"""The lowest seed that caught each, when last looked for: it is tried first.

It proves what any other seed does, as the same laws judge it. Once the engine or the schedules change it may catch
nothing any more; then every seed from 0 is tried, and what the test prints belongs here.
"""


@pytest.mark.parametrize("name", ALL)
def test_a_mutation_finds_what_it_replaces(name: str) -> None:
    with ALL[name]():
        pass


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ALL)
def test_a_mutation_is_caught(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    hint = CAUGHT_BY.get(name, 0)
    seeds = range(WITHIN)
    if name in TIERED:
        seeds = range(tiering.AT, WITHIN * tiering.EVERY, tiering.EVERY)
    elif name in RETENTION:
        seeds = range(retaining.AT, WITHIN * retaining.EVERY, retaining.EVERY)
    elif name in LOADS:
        seeds = range(loading.AT, WITHIN * retaining.EVERY, retaining.EVERY)
    elif name in IDLE_LOADS:
        seeds = range(idle_loads.AT, WITHIN * idle_loads.EVERY, idle_loads.EVERY)
    elif name in RECORDS:
        seeds = range(recording.AT, WITHIN * retaining.EVERY, retaining.EVERY)
    elif name in OFFLOADED_RECORDS:
        one = recording_offloaded
        seeds = range(one.AT, WITHIN * one.EVERY, one.EVERY)
    elif name in DELAYED:
        seeds = range(delaying.AT, WITHIN * retaining.EVERY, retaining.EVERY)
    elif name in ACTIVITY:
        seeds = range(idling.AT, WITHIN * retaining.EVERY, retaining.EVERY)
    elif name in OVERTAKEN:
        seeds = range(traps.LOADED_AT, WITHIN * traps.EVERY, traps.EVERY)
    with ALL[name]():
        found = next((one for one in map(simulate, (hint, *seeds)) if one.violation), None)
    assert found, f"{name}: not caught by seeds {seeds}"
    assert not found.error, f"{name}: no law catches it, it breaks the code: {found.violation}"
    assert not simulate(found.seed).violation, f"seed {found.seed} is violated without the mutation too"
    if found.seed != hint:
        with capsys.disabled():
            print(f"\n{name}: caught by seed {found.seed}: {found.violation[:110]}")
