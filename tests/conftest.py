"""Fixtures that every test folder shares: real model files and hypothesis profiles."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from leafage.build import Assets

# Before NumPy loads: BLAS threads that wait for a busy CPU slow the oracles down several times.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if _paths := os.environ.get("PYTHONPATH"):  # tests start processes in other folders
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, _paths.split(os.pathsep)))

# A shell starts background jobs with Ctrl-C ignored, and so would be all processes that the tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# 'ci' finds the same examples every time; a machine that is busy compiling must not fail a property test.
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=_QUIET)
_SOAK_EXAMPLES = int(os.environ.get("SOAK_EXAMPLES", "2000"))
settings.register_profile("soak", max_examples=_SOAK_EXAMPLES, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the options
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs in as many processes as CPUs may be used, at most four; what is named, in one.

    `-n` and `--pdb` say otherwise, and without xdist (`-p no:xdist`) there is one process.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:  # one of those processes: it must not start others itself
        return
    from leafage.resources import available_cpus

    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    is_asked = config.getoption("numprocesses", 0) is not None or config.getoption("usepdb", False)
    num_workers = min(4, available_cpus())
    if is_whole and num_workers > 1 and not is_asked:
        config.option.numprocesses = num_workers
        config.option.dist = "worksteal"  # each takes a run of neighbours, which share a model


def real_model(alias: str, file_name: str) -> Path:
    """The file of a pulled model, else the one in LEAFAGE_TEST_MODELS; else skip.

    With LEAFAGE_REQUIRE_MODELS=1 (CI) a missing model is a failure: a skipped test proves nothing.
    """
    try:
        from leafage import store
    except ImportError:
        pulled = None
    else:
        pulled = store.installed(alias)
    if pulled is not None:
        return pulled
    folder = os.environ.get("LEAFAGE_TEST_MODELS")
    if folder and (path := Path(folder) / file_name).is_file():
        return path
    why = f"{alias} is not installed: run `leafage pull {alias}` or set LEAFAGE_TEST_MODELS"
    if os.environ.get("LEAFAGE_REQUIRE_MODELS") == "1":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, the default model."""
    return real_model("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="module")
def assets(smollm2_path: Path) -> Assets:
    """Weights and tokenizer of SmolLM2, for several engines."""
    from leafage.build import load_assets
    from leafage.config import EngineConfig

    return load_assets(EngineConfig(model=str(smollm2_path)))


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M, a base model."""
    return real_model("gemma3-270m", "gemma3-270m-Q4_K_M.gguf")
