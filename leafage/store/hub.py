"""`hf:owner/repo[/file]`: models of the Hugging Face hub, in its own shared cache.

huggingface_hub (it comes with tokenizers) does the transfer, with the user's token, endpoint, proxy and cache
settings; it resumes files that were cut off.
"""

from __future__ import annotations

import fnmatch
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leafage.errors import DownloadError, LeafageError, ModelNotFoundError
from leafage.store import files
from leafage.store.files import ProgressCallback

_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
# All that a folder of safetensors needs; no second copy of the weights in another format.
_FOLDER_PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "*.safetensors",
    "*.safetensors.index.json",
)


def parse(ref: str) -> tuple[str, str | None]:
    """`hf:owner/repo/folder/file` -> ("owner/repo", "folder/file")."""
    parts = ref.removeprefix("hf:").strip("/").split("/")
    if len(parts) < 2 or not all(parts):
        raise ModelNotFoundError(
            "not a Hugging Face name", value=ref, limit="hf:owner/repo or hf:owner/repo/file"
        )
    return "/".join(parts[:2]), "/".join(parts[2:]) or None


def choose(ref: str, names: list[str], file: str | None) -> list[str]:
    """Which of a repository's files make the model; the first is the one to open, for a folder config.json.

    Raises:
        ModelNotFoundError: no such file, nothing usable, or several GGUF files to choose from.
    """
    if file is not None:
        if file not in names:
            raise ModelNotFoundError(
                f"{ref}: no such file", limit=f"GGUF files there: {_listing(names)}", remedy="check the name"
            )
        return _with_siblings(file, names)
    firsts = [name for name in names if name.endswith(".gguf") and _is_first(name)]
    has_folder = "config.json" in names and any(name.endswith(".safetensors") for name in names)
    if has_folder:
        wanted = [n for n in names if any(fnmatch.fnmatchcase(n, pattern) for pattern in _FOLDER_PATTERNS)]
        return sorted((n for n in wanted if "/" not in n), key=lambda n: (n != "config.json", n))
    if len(firsts) == 1:
        return _with_siblings(firsts[0], names)
    if firsts:
        raise ModelNotFoundError(
            f"{ref} holds {len(firsts)} GGUF files",
            limit=_listing(names),
            remedy=f"name one, as in {ref.rstrip('/')}/{firsts[0]}",
        )
    raise ModelNotFoundError(
        f"{ref} holds no model that Leafage can open",
        limit="a .gguf file, or config.json with .safetensors files",
    )


def cached(ref: str) -> Path:
    """The model, if the cache has it; no network.

    Raises:
        ModelNotFoundError: not pulled yet.
    """
    repo, file = parse(ref)
    hub = _library()
    try:
        folder = Path(hub.snapshot_download(repo, local_files_only=True))
        names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        return _result(folder, choose(ref, names, file))
    except (hub.errors.LocalEntryNotFoundError, ModelNotFoundError):
        raise ModelNotFoundError(
            f"model {ref} is not on this machine yet", remedy=f"run `leafage pull {ref}`"
        ) from None
    except ValueError as error:  # an impossible repository name
        raise ModelNotFoundError(f"{ref}: {_first_line(error)}") from None


def pull(ref: str, on_progress: ProgressCallback) -> Path:
    """Fetch a repository's model, checking the sha256 that the hub declares for its large files."""
    repo, file = parse(ref)
    hub = _library()
    on_progress(f"asking the hub for {repo}", 0, None)
    with _readable(ref):
        info = hub.HfApi().model_info(repo, files_metadata=True)
        siblings = {s.rfilename: s for s in info.siblings or ()}
        wanted = choose(ref, sorted(siblings), file)
        sizes = {name: siblings[name].size or 0 for name in wanted}
        missing = {n: s for n, s in sizes.items() if not _in_cache(hub, repo, n, info.sha)}
        files.require_space(files.make_folder(Path(hub.constants.HF_HUB_CACHE)), sum(missing.values()))
        done, total = 0, sum(sizes.values())
        for name in wanted:
            label = f"downloading {name}"
            on_progress(label, done, total)
            bar = _bar(hub, functools.partial(_shifted, on_progress, label, done, total))
            path = Path(hub.hf_hub_download(repo, name, revision=info.sha, **bar))
            expected = getattr(siblings[name].lfs, "sha256", None)
            if name in missing and expected and files.sha256_of(path, on_progress) != expected:
                _delete({path})
                raise DownloadError(
                    f"{ref}: {name} arrived damaged; it was deleted", remedy="run the same command again"
                )
            done += sizes[name]
        folder = path
        for _ in name.split("/"):
            folder = folder.parent
        # The library finds a cached revision through refs/main, which a download by sha does not write.
        ref_file = folder.parent.parent / "refs" / "main"
        ref_file.parent.mkdir(parents=True, exist_ok=True)
        ref_file.write_text(folder.name)
    result = _result(folder, wanted)
    files.record(ref, result)
    return result


def remove(ref: str, path: Path) -> int:
    """Delete a pulled model from the hub's cache; returns the bytes freed."""
    if path.is_dir():
        links = {p for p in path.rglob("*") if p.is_file()}
    else:
        names = [p.name for p in path.parent.iterdir()]
        links = {path.parent / name for name in _with_siblings(path.name, names)}
    freed = _delete(links)
    files.forget(ref)
    return freed


def _delete(links: set[Path]) -> int:
    """Files of the cache are links to blobs: both go, but for blobs that other revisions or files share."""
    snapshots = next(p for p in next(iter(links)).parents if p.name == "snapshots")
    others = {p.resolve() for p in snapshots.rglob("*") if p.is_file() and p not in links}
    blobs = {link.resolve() for link in links} - others
    freed = sum(blob.stat().st_size for blob in blobs)
    for path in [*links, *blobs]:
        path.unlink(missing_ok=True)
    return freed


def _result(folder: Path, chosen: list[str]) -> Path:
    return folder if chosen[0] == "config.json" else folder / chosen[0]


def _is_first(name: str) -> bool:
    split = _SPLIT.search(name)
    return split is None or int(split[1]) == 1


def _with_siblings(name: str, names: list[str]) -> list[str]:
    split = _SPLIT.search(name)
    if split is None:
        return [name]
    parts = [f"{name[: split.start()]}-{i:05d}-of-{split[2]}.gguf" for i in range(1, int(split[2]) + 1)]
    absent = [part for part in parts if part not in names]
    if absent:
        raise ModelNotFoundError(f"split model {name} is not complete", value=f"missing {absent[0]}")
    return parts


def _listing(names: list[str]) -> str:
    ggufs = [name for name in names if name.endswith(".gguf")]
    return ", ".join(ggufs[:8]) + (f" and {len(ggufs) - 8} more" if len(ggufs) > 8 else "") or "none"


def _in_cache(hub: Any, repo: str, name: str, revision: str | None) -> bool:
    return isinstance(hub.try_to_load_from_cache(repo, name, revision=revision), str)


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise DownloadError(
            "models named hf:... need the package huggingface_hub", remedy="pip install huggingface_hub"
        ) from None
    return huggingface_hub


def _shifted(on_progress: ProgressCallback, label: str, before: int, total: int, done: int) -> None:
    on_progress(label, before + done, total)


def _bar(hub: Any, report: Callable[[int], None]) -> dict[str, Any]:
    """Arguments that make a download count its bytes to us: the one bar on the screen is ours.

    Older releases of the library cannot be told; they show their own bar.
    """
    if "tqdm_class" not in inspect.signature(hub.hf_hub_download).parameters:
        return {}
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.seen = int(kwargs.get("initial") or 0)
            kwargs.pop("name", None)
            super().__init__(*args, **(kwargs | {"disable": True}))

        def update(self, n: float | None = 1) -> None:
            self.seen += int(n or 0)
            report(self.seen)

    return {"tqdm_class": Bar}


@contextmanager
def _readable(ref: str) -> Iterator[None]:
    """Turn the hub's exceptions into ours."""
    errors = _library().errors
    try:
        yield
    except LeafageError:
        raise
    except errors.GatedRepoError:
        raise DownloadError(
            f"{ref} is gated", remedy="accept its terms on the hub, then run `hf auth login`"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelNotFoundError(f"{ref}: no such repository, or it is private") from None
    except ValueError as error:  # an impossible repository name
        raise ModelNotFoundError(f"{ref}: {_first_line(error)}") from None
    except Exception as error:  # the transport library, and with it its errors, changes between releases
        raise DownloadError(
            f"cannot fetch {ref}", value=_first_line(error), remedy="check the network and run it again"
        ) from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
