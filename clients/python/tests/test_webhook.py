"""Signatures of callbacks."""

from __future__ import annotations

import pytest

from trunkline_client import InvalidSignature, verify_callback

# The example of the standard.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'
TIME = 1614265330
HEADERS = {
    "Webhook-Id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": str(TIME),
    "webhook-signature": "v1,other v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


def test_the_example_of_the_standard() -> None:
    assert verify_callback(SECRET, HEADERS, BODY, now=TIME + 10) == {"test": 2432232314}


@pytest.mark.parametrize(
    "secret, headers, body, now",
    [
        (SECRET, HEADERS, BODY + b" ", TIME),
        (SECRET, HEADERS, BODY, TIME + 301),
        (SECRET, HEADERS, BODY, TIME - 301),
        ("whsec_" + "A" * 32, HEADERS, BODY, TIME),
        ("not base64", HEADERS, BODY, TIME),
        (SECRET, HEADERS | {"webhook-timestamp": "soon"}, BODY, TIME),
        (SECRET, HEADERS | {"webhook-signature": "v1,é"}, BODY, TIME),
        (SECRET, {"webhook-id": "x"}, BODY, TIME),
    ],
)
def test_others_are_refused(secret: str, headers: dict[str, str], body: bytes, now: int) -> None:
    with pytest.raises(InvalidSignature):
        verify_callback(secret, headers, body, now=now)
