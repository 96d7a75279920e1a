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
    groups = {row["group"] for row in new["rows"]}
    rows: list[dict[str, Any]] = []
    for row in [*old["rows"], *new["rows"]]:
        if row["group"] not in groups:
            rows.append(row)
        elif row["group"] not in {done["group"] for done in rows}:  # all of them where the first one stood
            rows += [again for again in new["rows"] if again["group"] == row["group"]]
    record, instead = dict(old["record"]), new["record"]
    measured = {
        (entry["side"], entry["workload"]) for name in ("samples", "errors") for entry in instead[name]
    }
    for kind in ("samples", "errors"):
        kept = [entry for entry in record[kind] if (entry["side"], entry["workload"]) not in measured]
        record[kind] = kept + instead[kind]
    for kind in ("floors", "checks"):
        record[kind] = {**record[kind], **instead[kind]}
    return {
        **old,
        "versions": {**old["versions"], **new["versions"]},
        "rows": rows,
        "record": record,
        "again": [
            *old.get("again", []),
            {"date": new["date"], "load": new["load"], "groups": sorted(groups)},
        ],
    }
