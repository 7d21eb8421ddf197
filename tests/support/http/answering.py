"""Whether an answer has its documented form: every field of it, and no other."""

import json
from typing import Any

from pydantic import BaseModel


def follows(model: type[BaseModel], answer: dict[str, Any]) -> None:
    """Fail with the location of a field that is missing, of another type, or not documented."""
    found = model.model_validate_json(json.dumps(answer))
    _refuse_extra(found, model.__name__)


def _refuse_extra(found: Any, path: str) -> None:
    if isinstance(found, BaseModel):
        assert not found.model_extra, f"{path} has undocumented {sorted(found.model_extra or ())}"
        for name in type(found).model_fields:
            _refuse_extra(getattr(found, name), f"{path}.{name}")
    elif isinstance(found, list):
        for n, one in enumerate(found):
            _refuse_extra(one, f"{path}.{n}")
