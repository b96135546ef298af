"""What a mutation is: a deliberate fault of the product, while its context is open.

Belongs here: the type. Not here: the mutations, which stand beside it by the room of the product that they break.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Mutation = Callable[[], AbstractContextManager[Any]]
