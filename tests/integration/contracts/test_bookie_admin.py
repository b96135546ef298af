from contextlib import ExitStack, closing

import pytest

from pulsar_lifecycle.io.bookkeeper.bookie_admin import HttpBookieAdmin
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.settings import BookieAdminSettings, ZooKeeperSettings
from tests.kit.contracts.bookie_contract import BookieAdminContract

pytestmark = pytest.mark.integration


class TestHttpBookieAdmin(BookieAdminContract):
    @pytest.fixture
    def bookies(self, sandbox):
        with ExitStack() as stack:
            store = stack.enter_context(closing(KazooStore(ZooKeeperSettings(hosts=sandbox.zookeeper), read_only=True)))
            yield stack.enter_context(closing(HttpBookieAdmin(store, "/ledgers", BookieAdminSettings())))

    @pytest.fixture
    def bookie(self, bookies):
        return next(iter(bookies.bookies()))
