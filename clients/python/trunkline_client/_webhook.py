"""Callbacks are signed as Standard Webhooks has it: HMAC-SHA256 over id, time and body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from typing import Any, Mapping

from ._errors import InvalidSignature

_PREFIX = "whsec_"


def verify_callback(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: float = 300,
    now: float | None = None,
) -> Any:
    """Returns the JSON of a callback that was signed with this secret, at most `tolerance` seconds
    ago. Raises `InvalidSignature` for any other. `webhook-id` tells repetitions apart."""
    by_name = {name.lower(): value for name, value in headers.items()}
    try:
        message, sent = by_name["webhook-id"], by_name["webhook-timestamp"]
        signatures = by_name["webhook-signature"].split()
        age = (time.time() if now is None else now) - int(sent)
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except KeyError as missing:
        raise InvalidSignature(f"the header {missing} is missing") from None
    except (ValueError, binascii.Error):
        raise InvalidSignature("the time, or the secret, cannot be read") from None
    if abs(age) > tolerance:
        raise InvalidSignature("the callback is too old, or the clocks differ")
    signed = f"{message}.{sent}.".encode() + body
    mac = hmac.new(key, signed, hashlib.sha256).digest()
    expected = b"v1," + base64.b64encode(mac)
    if not any(hmac.compare_digest(expected, signature.encode()) for signature in signatures):
        raise InvalidSignature("no signature is valid")
    return json.loads(body) if body else None
