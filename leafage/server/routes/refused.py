"""Endpoints of the OpenAI API and its relatives that are not here: 404, by name, with what to do instead.

404 and not 501: clients try again after 5xx, and no second try would find more.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from leafage.server.errors import ApiError

router = APIRouter(include_in_schema=False)

_EMBEDDINGS = "embeddings: the model that is served generates text. Use an embedding model's server"
_SCORES = "scores and ranks: the model that is served generates text. Use a reranker's server"
_AUDIO = "audio: only text is read and made here. Use a speech model's server"
_IMAGES = "images: only text is read and made here. Use an image model's server"
_LORA = "LoRA adapters: the model is served as it was loaded. Merge the adapter into the model's file"
_STORED = "stored chat completions: none are kept. Use /v1/responses with store, or keep them yourself"
_FILES = "files and batches of requests: send requests at once, they are batched while they run"
_AGENTS = "assistants, threads and conversations: use /v1/responses with previous_response_id"
_TRAINING = "training: the model is served as it was loaded"

REFUSED: dict[str, str] = {
    "/v1/embeddings": _EMBEDDINGS,
    "/pooling": _EMBEDDINGS,
    "/classify": _SCORES,
    "/v1/rerank": _SCORES,
    "/v2/rerank": _SCORES,
    "/rerank": _SCORES,
    "/v1/score": _SCORES,
    "/score": _SCORES,
    "/v1/moderations": "moderation: nothing is judged here. Ask a model made for it",
    "/v1/audio/{rest:path}": _AUDIO,
    "/v1/realtime": _AUDIO,
    "/v1/images/{rest:path}": _IMAGES,
    "/v1/videos": _IMAGES,
    "/v1/load_lora_adapter": _LORA,
    "/v1/unload_lora_adapter": _LORA,
    "/v1/chat/completions/{rest:path}": _STORED,
    "/v1/responses/{rest}/cancel": "responses in the background: close the connection of one that runs",
    "/v1/responses/{rest}/input_items": "input items of stored responses: only what was answered is told",
    "/v1/messages": "Anthropic's Messages API: use /v1/chat/completions",
    "/v1/messages/count_tokens": "Anthropic's Messages API: use /tokenize",
    "/v1/files": _FILES,
    "/v1/files/{rest:path}": _FILES,
    "/v1/batches": _FILES,
    "/v1/batches/{rest:path}": _FILES,
    "/v1/assistants": _AGENTS,
    "/v1/threads": _AGENTS,
    "/v1/threads/{rest:path}": _AGENTS,
    "/v1/conversations": _AGENTS,
    "/v1/vector_stores": "vector stores: nothing is searched here",
    "/v1/fine_tuning/{rest:path}": _TRAINING,
}
"""Path -> what is not there, and what to do."""


def _add(path: str, why: str) -> None:
    async def refuse(request: Request) -> Response:
        message = f"{request.url.path} is not there: Leafage has no {why}"
        raise ApiError(message, status=404, code="unsupported_endpoint")

    router.add_api_route(path, refuse, methods=["GET", "POST", "DELETE"])


for _path, _why in REFUSED.items():
    _add(_path, _why)
