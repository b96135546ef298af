"""Brokers that answer admin requests as a test says, and note what they were asked."""

import httpx

from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.settings import PulsarSettings


class AnsweringCluster:
    """Answers of a made-up cluster by method and raw path, and the requests that came."""

    def __init__(self, answers=None, url="http://b1:8080", before=lambda topic: None, **settings):
        self.requests: list[httpx.Request] = []
        self.answers = {("GET", "/admin/v2/brokers"): ["b1:8080", "b2:8080"], **(answers or {})}
        self.admin = HttpBrokerAdmin(
            PulsarSettings(admin_url=url, service_url="pulsar://b1:6650", **settings),
            transport=httpx.MockTransport(self.answer),
            before=before,
        )

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.raw_path.decode()
        by_host = (request.method, f"{request.url.scheme}://{request.url.netloc.decode()}{path}")
        answer = self.answers.get(by_host, self.answers.get((request.method, path)))
        if answer is None:
            return httpx.Response(404, json={"reason": f"nothing at {path}"})
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, json=answer)


def heartbeat(broker: str) -> tuple[str, str]:
    return ("GET", f"/lookup/v2/topic/persistent/pulsar/{broker.replace(':', '%3A')}/healthcheck")
