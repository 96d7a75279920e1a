"""Some rows measured again: their place in the report of a whole run."""

from __future__ import annotations

from typing import Any


def updated(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`old` with what `new` measured instead, and when that was.

    Raises:
        ValueError: the two are not of one machine, or of other versions or settings.
    """
    both = old["versions"].keys() & new["versions"].keys()
    old_side, new_side = (
        {
            "machine": report["machine"],
            "repetitions": report["repetitions"],
            "versions": {engine: report["versions"][engine] for engine in sorted(both)},
        }
        for report in (old, new)
    )
    for name, before in old_side.items():
        if before != new_side[name]:
            raise ValueError(
                f"{name}: {before} in the report, {new_side[name]} in this run; measure all rows again"
            )
    groups = {row["group"] for row in new["rows"]}
    rows: list[dict[str, Any]] = []
    for row in [*old["rows"], *new["rows"]]:
        if row["group"] not in groups:
            rows.append(row)
        elif row["group"] not in {done["group"] for done in rows}:  # all of them where the first one stood
            rows += [again for again in new["rows"] if again["group"] == row["group"]]
    earlier = [
        {**entry, "groups": [group for group in entry["groups"] if group not in groups]}
        for entry in old.get("again", [])
    ]
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
            *(entry for entry in earlier if entry["groups"]),
            {"date": new["date"], "load": new["load"], "groups": sorted(groups)},
        ],
    }
