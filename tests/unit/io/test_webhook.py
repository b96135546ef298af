"""Alerts arrive as JSON; who does not take one is named without the URL, which is a secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.io.webhook import Webhook

SECRET = "/hooks/s3cret"


class Receiver(HTTPServer):
    """Keeps what is posted to it, and answers ``status``."""

    status = 200

    def __init__(self) -> None:
        self.posted: list[tuple[str, object]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{SECRET}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.posted.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_alert_arrives_as_it_is(receiver: Receiver) -> None:
    with closing(Webhook(receiver.url)) as webhook:
        webhook.send({"job": "scan", "code": None})
        webhook.send({"job": "offload"})
    assert receiver.posted == [(SECRET, {"job": "scan", "code": None}), (SECRET, {"job": "offload"})]


@pytest.mark.parametrize("status", [400, 404, 500])
def test_an_alert_that_is_refused_says_with_which_status(receiver: Receiver, status: int) -> None:
    receiver.status = status
    with closing(Webhook(receiver.url)) as webhook, pytest.raises(Unavailable, match=str(status)) as raised:
        webhook.send({})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/hooks/s3cret", "http://[/hooks/s3cret", "ftp://host/hooks/s3cret"])
def test_an_alert_that_does_not_arrive_does_not_tell_the_url(url: str) -> None:
    with closing(Webhook(url)) as webhook, pytest.raises(Unavailable) as raised:
        webhook.send({})
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None
