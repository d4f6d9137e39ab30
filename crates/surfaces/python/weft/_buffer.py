"""The type of objects with the buffer protocol: bytes, bytearray, memoryview, ndarray, Memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
elif TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    # Python has no name for it yet.
    Buffer = Any

__all__ = ["Buffer"]
