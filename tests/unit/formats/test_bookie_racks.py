import json

import pytest

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import bookie_racks


def test_racks_are_those_that_brokers_place_by():
    data = {
        "default": {"a:3181": {"rack": "/eu/r1", "hostname": "a"}, "b:3181": {"rack": "r2"}},
        "other": {"c:3181": {"hostname": "c"}, "d:3181": {"rack": ""}},
    }
    assert bookie_racks.decode(json.dumps(data).encode()) == {"a:3181": "/eu/r1", "b:3181": "/r2"}


@pytest.mark.parametrize("data", [b"", b"{}", b" \n"])
def test_none_are_set(data):
    assert bookie_racks.decode(data) == {}


@pytest.mark.parametrize(
    "data", [b"[]", b"{", b'{"g": []}', b'{"g": {"b": 1}}', b'{"g": {"b": {"rack": 1}}}', b"[" * 9999]
)
def test_what_is_no_rack_map_is_refused_with_its_path(data):
    with pytest.raises(CorruptFormat, match="/bookies"):
        bookie_racks.decode(data)
