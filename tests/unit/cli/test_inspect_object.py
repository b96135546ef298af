"""``inspect object``: both objects of a pair, what is wrong with them, and the exit code that says so."""

from __future__ import annotations

import json
from functools import partial

import pytest

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle.errors import Unavailable
from tests.golden.files import GOLDEN
from tests.kit.builders import entry
from tests.kit.command import command_over, run
from tests.kit.scenes.tiered.copy_scene import BUCKET, DATA, ID, INDEX, source_of
from tests.kit.scenes.tiered.copy_scene import CopyScene as Scene
from tests.kit.settings import write_settings

USER = json.loads((GOLDEN / "offload/g-tiny/expected.json").read_text())["s3"][0]["head"]["Metadata"]


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """The broker's own pair in one of two buckets."""
    found = Scene()
    found.service.put(BUCKET, DATA, (GOLDEN / "offload/g-tiny/object_data.bin").read_bytes(), USER)
    found.service.put(BUCKET, INDEX, (GOLDEN / "offload/g-tiny/object_index.bin").read_bytes(), USER)
    found.run = partial(command_over(objects=lambda: found.objects), "inspect", "object")
    write_settings(tmp_path, monkeypatch, [BUCKET])
    return found


@pytest.mark.parametrize("key", [DATA, INDEX])
def test_either_key_shows_the_pair(scene, key, capsys):
    assert scene.run(key, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["whole"], shown["problems"], shown["ledgerId"]) == (True, [], 4711)
    assert (shown["data"]["key"], shown["data"]["size"]) == (DATA, 1414)
    assert (shown["index"]["key"], shown["index"]["size"]) == (INDEX, 198)
    assert shown["data"]["userMetadata"] == USER
    assert shown["offloadIndex"]["blocks"] == [
        {"partId": 1, "offset": 0, "blockLen": 1414, "firstEntryId": 0, "lastEntryId": 19}
    ]
    assert shown["offloadIndex"]["segmentMetadata"]["lastEntryId"] == 19
    assert (shown["firstEntry"]["entryId"], shown["firstEntry"]["size"]) == (0, 55)
    assert (shown["lastEntry"]["entryId"], shown["lastEntry"]["messages"]) == (19, 1)

    assert scene.run(key) == 0
    text = capsys.readouterr().out
    assert "whole, as far as heads, index and both ends tell" in text
    assert "public/default/persistent/g-tiny" in text


def test_what_is_wrong_is_said_and_is_exit_code_1(scene, capsys):
    good = scene.data()
    for change, said in (
        (lambda: scene.objects.delete_many(BUCKET, [INDEX]), "there is no such object"),
        (lambda: scene.objects.delete_many(BUCKET, [DATA]), "there is no such object"),
        (lambda: scene.service.put(BUCKET, INDEX, b"no index", USER), "the magic"),
        (lambda: scene.service.put(BUCKET, DATA, good[:-1], USER), "as its index says"),
        (lambda: scene.service.put(BUCKET, DATA, good, {}), "s3managedledgeroffloaderformatversion"),
        (lambda: scene.service.put(BUCKET, DATA, b"!" + good[1:], USER), "the magic"),
        (lambda: scene.service.put(BUCKET, DATA, good[:-60] + b"!" * 60, USER), "expected"),
    ):
        heads, data = dict(scene.service.objects[BUCKET]), dict(scene.service.data)
        change()
        assert scene.run(DATA, "--json") == 1
        shown = json.loads(capsys.readouterr().out)
        assert not shown["whole"]
        assert any(said in problem for problem in shown["problems"]), shown["problems"]
        assert scene.run(DATA) == 1
        assert "not whole" in capsys.readouterr().out
        scene.service.objects[BUCKET], scene.service.data = heads, data


def test_an_entry_that_is_no_message_is_no_problem_of_the_pair(capsys, scene):
    scene.copy()
    assert scene.run(INDEX, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert "error" in shown["lastEntry"]
    assert len(shown["offloadIndex"]["blocks"]) > 3
    assert scene.run(INDEX) == 0
    assert "blocks (" in capsys.readouterr().out


def test_a_part_of_a_message_is_shown_as_one(capsys, scene):
    key = pb.EncryptionKeys(key="k", value=b"v")
    part = entry(b"part", num_chunks_from_msg=3, chunk_id=2, uuid="u")
    scene.payloads[:] = [entry(b"secret", encryption_keys=[key]), part]
    scene.reader.payloads[ID] = scene.payloads
    scene.source = source_of(scene.payloads)
    scene.copy()
    assert scene.run(INDEX, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    last = {name: shown["lastEntry"][name] for name in ("chunkId", "numChunksFromMsg", "uuid")}
    assert last == {"chunkId": 2, "numChunksFromMsg": 3, "uuid": "u"}
    assert shown["firstEntry"]["encrypted"]
    assert not any("messages" in shown[name] for name in ("firstEntry", "lastEntry"))


def test_nothing_there_and_no_answer_are_exit_code_1(scene, capsys):
    assert scene.run(DATA.replace("4711", "4712")) == 1
    assert "neither a data nor an index object" in capsys.readouterr().err
    scene.fail("head", Unavailable("no answer"), times=100)
    assert scene.run(DATA) == 1
    assert "no answer" in capsys.readouterr().err


def test_wrong_calls_are_exit_code_2(scene, tmp_path, monkeypatch, capsys):
    for key in ("nonsense", DATA.partition("-ledger")[0], f"{DATA}-index-index"):
        assert scene.run(key) == 2
        assert "expected the key of an offloaded ledger" in capsys.readouterr().err
    write_settings(tmp_path, monkeypatch, [BUCKET, "other"])
    assert scene.run(DATA) == 2
    assert f"give --bucket, one of {BUCKET}, other" in capsys.readouterr().err
    assert scene.run(DATA, "--bucket", BUCKET) == 0
    write_settings(tmp_path, monkeypatch, [])
    assert run("inspect", "object", DATA) == 2
    assert "object_store: it is not set" in capsys.readouterr().err
