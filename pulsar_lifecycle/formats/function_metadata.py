"""Which subscription a function, a sink or a source reads by, as a message of the function workers' topic says it.

Belongs here: one value of that topic. Not here: which entries there are
(``topics/system_topics/function_subscriptions.py``). Upstream: ``FunctionMetaDataManager.updateFunctionOnLeader`` and
``processMetaDataTopicMessage``, ``Function.proto`` and ``Request.proto``, pulsar-functions-worker 4.0.7.

Where workers have ``useCompactedMetadataTopic``, a value is a FunctionMetaData under its function's name, or empty once
that is deleted. Else it is a ServiceRequest without a key.
"""

from __future__ import annotations

from pulsar_lifecycle._pb import pulsar_functions_pb2 as pb
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import _wire
from pulsar_lifecycle.formats.message import Message

WHAT = "function metadata"
_UPDATE, _DELETE = 0, 1


def subscription_of(message: Message) -> str | None:
    """The name that it says, of a function that is deleted, too; None if it says none. Raises CorruptFormat.

    A function that says none subscribes as ``tenant/namespace/name``.
    """
    if message.key is not None:
        return _wire.decode(pb.FunctionMetaData, message.payload, WHAT, _of_function) if message.payload else None
    if not message.payload:
        raise CorruptFormat(WHAT, 0, "a value, or the key of what is deleted")
    return _wire.decode(pb.ServiceRequest, message.payload, WHAT, _of_request)


def _of_request(said: pb.ServiceRequest) -> str | None:
    _wire.known(said)
    if not said.HasField("functionMetaData"):
        if said.serviceRequestType in (_UPDATE, _DELETE):
            raise _wire.MalformedError("a functionMetaData")
        return None
    return _of_function(said.functionMetaData)


def _of_function(said: pb.FunctionMetaData) -> str | None:
    if not _wire.known(said).HasField("functionDetails"):
        raise _wire.MalformedError("a functionDetails")
    details = _wire.known(said.functionDetails)
    if not all(_wire.text(name) for name in (details.tenant, details.namespace, details.name)):
        raise _wire.MalformedError("tenant, namespace and name of a function")
    return _wire.text(_wire.known(details.source).subscriptionName) or None
