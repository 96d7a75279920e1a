"""A page of one file: no scripts, and nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f8f7; color: #22302b; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 48px; }
header p { margin: 4px 0 0; color: #56666b; overflow-wrap: anywhere; }
h1 { margin: 0; font-size: 1.6rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 34px 0 12px; font-size: 1.15rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.tiles { gap: 12px; margin-top: 22px; }
.tile, figure, .table { background: #fff; border: 1px solid #e0e6e3; border-radius: 10px; }
.tile { padding: 12px 14px; }
.tile b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tile span { color: #56666b; font-size: .85rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 470px), 1fr)); }
.figures { gap: 16px; }
figure { margin: 0; padding: 14px 14px 8px; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: 2px; }
figcaption small { display: block; font-weight: 400; color: #56666b; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: system-ui, sans-serif !important; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: 7px 14px; text-align: right; white-space: nowrap; border-top: 1px solid #edf1ef; }
thead th { border-top: 0; color: #56666b; font-weight: 600; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td.text { color: #56666b; white-space: normal; min-width: 16em; }
td.best { font-weight: 700; color: #14603b; }
.note { border-left: 4px solid #e9b44c; background: #fff8e6; padding: 8px 14px; margin: 16px 0 0; }
.note { overflow-wrap: anywhere; }
details { margin-top: 30px; color: #3c474b; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; background: #fff; border: 1px solid #e0e6e3; border-radius: 10px; }
pre { padding: 12px; font-size: .8rem; }
footer { margin-top: 30px; color: #7a878c; font-size: .85rem; }
@media (max-width: 520px) {
  main { padding: 18px 10px 32px; }
  h1 { font-size: 1.25rem; }
  figure { padding: 10px 6px 4px; }
  th, td { padding: 6px 9px; }
  td.text { min-width: 11em; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .tile b { font-size: 1.1rem; }
}
"""


@dataclass(slots=True)
class Page:
    """Parts of a page, in their order.

    Attributes:
        title, subtitle: what was simulated.
        tiles: (number, what it is) of what matters most.
        notes: what the reader must know.
        settings: all of them as text, folded away.
    """

    title: str
    subtitle: str
    tiles: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    settings: str = ""
    _parts: list[str] = field(default_factory=list)

    def figures(self, title: str, figures: Sequence[tuple[str, str, str]]) -> None:
        """Plots side by side: (caption, what it shows, SVG)."""
        drawn = "".join(
            f"<figure><figcaption>{escape(caption)}<small>{escape(text)}</small></figcaption>{svg}</figure>"
            for caption, text, svg in figures
        )
        self._parts.append(f'<h2>{escape(title)}</h2><div class="figures">{drawn}</div>')

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[tuple[str, bool]]]) -> None:
        """A table; cells are (text, whether it is the best of its kind)."""
        texts = {index for index, column in enumerate(columns) if column == "what it is"}
        head = "".join(
            f"<th{' class=text' if index in texts else ''}>{escape(column)}</th>"
            for index, column in enumerate(columns)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f"<td{' class=best' if best else ' class=text' if index in texts else ''}>{escape(text)}</td>"
                for index, (text, best) in enumerate(row)
            )
            + "</tr>"
            for row in rows
        )
        self._parts.append(
            f'<h2>{escape(title)}</h2><div class="table"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def text(self, sentence: str) -> None:
        """A paragraph."""
        self._parts.append(f"<p>{escape(sentence)}</p>")

    def html(self) -> str:
        """The page."""
        tiles = "".join(
            f'<div class="tile"><b>{escape(number)}</b><span>{escape(what)}</span></div>'
            for number, what in self.tiles
        )
        notes = "".join(f'<p class="note">{escape(note)}</p>' for note in self.notes)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{_CSS}</style></head><body><main>"
            f"<header><h1>{escape(self.title)}</h1><p>{escape(self.subtitle)}</p></header>{notes}"
            f"{f'<div class=tiles>{tiles}</div>' if tiles else ''}{''.join(self._parts)}"
            f"<details><summary>All settings</summary><pre>{escape(self.settings)}</pre></details>"
            "<footer>Simulated by Leafage: the engine's own scheduler over a model of the device's speed."
            "</footer></main></body></html>\n"
        )
