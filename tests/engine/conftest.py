from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.rig import FakeTokenizer, Rig
from tests.engine.rig import make_rig as make


@pytest.fixture
def tokenizer() -> FakeTokenizer:
    return FakeTokenizer()


@pytest.fixture
def make_rig() -> Callable[..., Rig]:
    """make_rig(answer text or script, num_blocks=..., ...) -> Rig."""
    return make
