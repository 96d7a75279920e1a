from __future__ import annotations

from tests.engine.conftest import make_rig

__all__ = ["make_rig"]
