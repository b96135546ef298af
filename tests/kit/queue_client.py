"""The vendor's client as the queue uses it: what becomes of each message, and what a consumer gets.

Belongs here: what the client answers. Not here: what a test expects of the queue.
"""

import _pulsar
import pulsar


class Producer:
    """A client's producer: ``script`` says what becomes of each message, in order; ``before`` is called before each."""

    def __init__(self, script):
        self.script = list(script)
        self.sent = []
        self.before = lambda: None

    def send_async(self, content, callback, **options):
        self.before()
        self.sent.append((content, options))
        result = self.script.pop(0) if self.script else _pulsar.Result.Ok
        if isinstance(result, Exception):
            raise result
        callback(result, _pulsar.MessageId(-1, 1, len(self.sent), -1))


class Consumer:
    def __init__(self, messages):
        self.messages = list(messages)
        self.acknowledged = []

    def receive(self, timeout_millis):
        return self.messages.pop(0)

    def acknowledge(self, message_id):
        self.acknowledged.append(message_id)


class Reader(Consumer):
    def has_message_available(self):
        return bool(self.messages)

    def read_next(self, timeout_millis):
        return self.messages.pop(0)

    def close(self):
        pass


class Client:
    """``not_answering`` partitions take no producer."""

    def __init__(self, script=(), messages=(), failure=None, not_answering=()):
        self.producer, self.consumer, self.failure = Producer(script), Consumer(messages), failure
        self.opened = []
        self.not_answering = set(not_answering)
        self.reader = Reader(messages)

    def create_producer(self, topic, **options):
        self.opened.append(topic)
        if self.failure:
            raise self.failure
        if topic in self.not_answering:
            raise _pulsar.Timeout("t")
        assert options["batching_enabled"] is False
        return self.producer

    def subscribe(self, topics, subscription, **options):
        if self.failure:
            raise self.failure
        return self._unhindered(self.consumer, options)

    def create_reader(self, topic, start, **options):
        return self._unhindered(self.reader, options)

    def _unhindered(self, whose, options):
        """As the client does: by default it hands out no message that is encrypted, nor says that there was one."""
        if options.get("crypto_failure_action") != pulsar.ConsumerCryptoFailureAction.CONSUME:
            whose.messages = [one for one in whose.messages if one.encryption_context() is None]
        return whose

    def close(self):
        pass
