"""What a demo is: tables whose columns say where their numbers come from, and checks with verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from leafage.engine.engine import Engine
    from leafage.sim.hardware import Hardware
    from leafage.sim.llm_spec import LLMSpec
    from leafage.sim.scenario import Scenario
    from leafage.sim.simulation import Simulation

Cell = str | int | float | None
"""A number, or text; None where the source says nothing."""


LONGEST_NUMBER = 24
"""Characters of a cell such as `97 to 232 (3 seeds)`; what is longer is a sentence."""


class Source(Enum):
    """Where the numbers of a column come from."""

    OURS = "measured here"
    LECTURE = "lecture"
    PAPER = "paper reported"
    NONE = ""  # labels and settings


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        source: where its numbers come from.
        format: of its numbers, as `str.format` takes it; text is shown as it is.
    """

    name: str
    source: Source = Source.NONE
    format: str = "{:,}"

    def show(self, cell: Cell) -> str:
        if cell is None:
            return ""
        return cell if isinstance(cell, str) else self.format.format(cell)


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers side by side; every row has a cell for each column.

    Attributes:
        stacked: so many columns after the first are shares in percent; HTML draws them as a bar.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    stacked: int = 0

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), f"{self.title}: {row} has not {len(self.columns)} cells"

    def is_text(self, column: int) -> bool:
        """Whether a column is read as text, like labels, and not compared down the rows."""
        cells = [row[column] for row in self.rows]
        return column == 0 or any(isinstance(cell, str) and len(cell) > LONGEST_NUMBER for cell in cells)

    @classmethod
    def compared(
        cls, title: str, rows: Sequence[tuple[str, Cell, Cell, Cell]], *, format: str = "{:,}"
    ) -> Table:
        """Rows of (label, ours, lecture, paper). Columns that nobody fills are left out."""
        columns = [Column("")]
        columns += [Column(source.value, source, format) for source in _COMPARED]
        kept = [i for i in range(len(columns)) if i < 2 or any(row[i] is not None for row in rows)]
        return cls(title, [columns[i] for i in kept], [[row[i] for i in kept] for row in rows])


_COMPARED = (Source.OURS, Source.LECTURE, Source.PAPER)


class Kind(Enum):
    """What a check asks for.

    EXACT: the number follows from constants or from counting, to the printed precision. BAND: it depends on a
    seed that is not known and must lie in a band. SHAPE: direction and size only.
    """

    EXACT = "EXACT"
    BAND = "BAND"
    SHAPE = "SHAPE"


@dataclass(frozen=True, slots=True)
class Check:
    """A statement about a value, and whether it holds.

    Attributes:
        text: what is checked.
        value: ours, as shown.
        wanted: the number or band, as shown.
    """

    text: str
    value: str
    wanted: str
    kind: Kind
    passed: bool

    @classmethod
    def exact(cls, text: str, value: Any, wanted: Any) -> Check:
        """Equal; numbers that are printed rounded are given as they are printed."""
        return cls(text, str(value), str(wanted), Kind.EXACT, value == wanted)

    @classmethod
    def band(cls, text: str, value: float, low: float, high: float, *, format: str = "{:,}") -> Check:
        """From `low` to `high`, both included."""
        wanted = f"{format.format(low)} to {format.format(high)}"
        return cls(text, format.format(value), wanted, Kind.BAND, low <= value <= high)

    @classmethod
    def shape(cls, text: str, value: str, wanted: str, passed: bool) -> Check:
        """A direction, decided by the caller."""
        return cls(text, value, wanted, Kind.SHAPE, passed)


@dataclass(slots=True)
class Outcome:
    """What a demo gave.

    Attributes:
        notes: sentences under the tables: settings, seeds, why numbers differ.
    """

    tables: list[Table] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


class SimulationFactory(Protocol):
    """Makes an engine over a cost model: settings of `EngineConfig`, by name."""

    def __call__(self, settings: Mapping[str, Any], hardware: Hardware, spec: LLMSpec) -> Simulation: ...


class ScenarioFactory(Protocol):
    """Makes a scenario for the simulator's experiments: settings of `EngineConfig` and of the workload."""

    def __call__(
        self,
        settings: Mapping[str, Any],
        hardware: Hardware,
        spec: LLMSpec,
        workload: str,
        workload_settings: Mapping[str, Any],
    ) -> Scenario: ...


class RealEngine(Protocol):
    """An engine over a model's weights, as `build_engine` gives it."""

    @property
    def engine(self) -> Engine: ...
    @property
    def tokenizer(self) -> Any: ...


class EngineFactory(Protocol):
    """Makes an engine that computes: `tiny` (a few random weights) or any model that `leafage pull` knows."""

    def __call__(self, model: str, settings: Mapping[str, Any]) -> RealEngine: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """Makers of what this package may not import: functions of modules, which processes can be handed.

    `block_efficiency` measures this machine's attention, see `Hardware.block_efficiency`.
    """

    simulation: SimulationFactory
    engine: EngineFactory
    scenario: ScenarioFactory
    block_efficiency: Callable[[], Sequence[tuple[int, float, float]]]


class Part(Protocol):
    """A computation that demos need, in a process of its own. Equal ones are computed once, so parts have
    `__eq__` and `__hash__`, and they and their results pickle."""

    def __call__(self, tools: Tools) -> Any: ...
    def __hash__(self) -> int: ...


Results = Mapping[Part, Any]
"""What each part gave."""


@dataclass(frozen=True, slots=True)
class Demo:
    """One demo, exercise or pitfall. It is made in one piece (`run`), or from parts (`combine`).

    Attributes:
        id: for `--only`, such as `code02-1`.
        covers: ids of the project's list of requirements, such as R3-7.
        title: one line.
        run: makes it. A function of a module.
        parts: what it is made from; they are computed side by side, and once for all demos that share them.
        combine: makes it from the results of its parts.
        pending: why there is no number yet, and what will bring it.
        model: a real model that it needs and that is pulled first; None: none.
        seconds: about what it, or each of its parts, takes on one core; long ones are started first.
    """

    id: str
    covers: tuple[str, ...]
    title: str
    run: Callable[[Tools], Outcome] | None = None
    parts: tuple[Part, ...] = ()
    combine: Callable[[Results], Outcome] | None = None
    pending: str | None = None
    model: str | None = None
    seconds: float = 0.1

    def __post_init__(self) -> None:
        ways = [self.run, self.combine, self.pending]
        assert sum(way is not None for way in ways) == 1, f"{self.id} is run, combined or pending"
        assert bool(self.parts) == (self.combine is not None), f"{self.id}: parts are for combine"
