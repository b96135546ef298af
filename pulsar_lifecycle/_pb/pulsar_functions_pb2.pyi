from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SourceSpec(_message.Message):
    __slots__ = ("subscriptionName",)
    SUBSCRIPTIONNAME_FIELD_NUMBER: _ClassVar[int]
    subscriptionName: str
    def __init__(self, subscriptionName: _Optional[str] = ...) -> None: ...

class FunctionDetails(_message.Message):
    __slots__ = ("tenant", "namespace", "name", "source")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    namespace: str
    name: str
    source: SourceSpec
    def __init__(self, tenant: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., source: _Optional[_Union[SourceSpec, _Mapping]] = ...) -> None: ...

class FunctionMetaData(_message.Message):
    __slots__ = ("functionDetails", "version")
    FUNCTIONDETAILS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    functionDetails: FunctionDetails
    version: int
    def __init__(self, functionDetails: _Optional[_Union[FunctionDetails, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class ServiceRequest(_message.Message):
    __slots__ = ("serviceRequestType", "functionMetaData")
    SERVICEREQUESTTYPE_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONMETADATA_FIELD_NUMBER: _ClassVar[int]
    serviceRequestType: int
    functionMetaData: FunctionMetaData
    def __init__(self, serviceRequestType: _Optional[int] = ..., functionMetaData: _Optional[_Union[FunctionMetaData, _Mapping]] = ...) -> None: ...
