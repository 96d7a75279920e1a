"""Some rows measured again: their place in the report of a whole run."""

from __future__ import annotations

from typing import Any


def updated(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`old` with what `new` measured instead, and when that was.

    Raises:
        ValueError: the two are not of one machine, or of other versions or settings.
    """
    for name in ("machine", "repetitions"):
        if old[name] != new[name]:
            raise ValueError(f"the report to update has {name} {old[name]}, this run {new[name]}")
    for engine, version in new["versions"].items():
        before = old["versions"].get(engine, version)
        if before != version:
            raise ValueError(f"the report to update has {engine} {before}, this run {version}")
    rows = {(row["title"], row["against"]): row for row in new["rows"]}
    titles = [(row["title"], row["against"]) for row in old["rows"]]
    record, instead = dict(old["record"]), new["record"]
    again = {(entry["side"], entry["workload"]) for name in ("samples", "errors") for entry in instead[name]}
    for kind in ("samples", "errors"):
        kept = [entry for entry in record[kind] if (entry["side"], entry["workload"]) not in again]
        record[kind] = kept + instead[kind]
    for kind in ("floors", "checks"):
        record[kind] = {**record[kind], **instead[kind]}
    return {
        **old,
        "versions": {**old["versions"], **new["versions"]},
        "rows": [rows.get(title, row) for title, row in zip(titles, old["rows"], strict=True)]
        + [row for title, row in rows.items() if title not in titles],
        "record": record,
        "again": [
            *old.get("again", []),
            {"date": new["date"], "load": new["load"], "rows": sorted({title for title, _ in rows})},
        ],
    }
