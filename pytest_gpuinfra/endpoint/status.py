"""Which HTTP answers are answers: everything else ends in one of the two failures."""

from __future__ import annotations

from pytest_gpuinfra.endpoint.error_body import parse_error_body
from pytest_gpuinfra.endpoint.failures import BrokenAnswer, NoAnswer
from pytest_gpuinfra.endpoint.http import HttpAnswer
from pytest_gpuinfra.masking import first_of


def expect_200(answer: HttpAnswer) -> HttpAnswer:
    """
    Give the answer back if its status is 200 and it is no web page.

    Raises:
        NoAnswer: 401, 403 (the key) or 429.
        BrokenAnswer: Any other status, or a web page.
    """
    where = f"{answer.method} {answer.path}"
    body = parse_error_body(answer.text)
    said = f": {body.message if body else answer.text[:200]}".rstrip(": ")
    if answer.status in (401, 403):
        raise NoAnswer(
            "unauthorized",
            f"{where}: status {answer.status}{said}",
            remedy="give the API key's environment variable: api_key_env in the inventory, --gpu-api-key-env",
            status=answer.status,
        )
    if answer.status == 429:
        raise NoAnswer("throttled", f"{where}: status 429{said}", remedy="ask again in a quieter moment", status=429)
    if 300 <= answer.status < 400:
        raise BrokenAnswer(
            "redirect",
            f"{where}: sent to {answer.headers.get('location', 'nowhere')} (status {answer.status})",
            remedy="give the server's own address: something in front of it answers",
            status=answer.status,
        )
    if answer.status != 200:
        raise BrokenAnswer("status", f"{where}: status {answer.status}{said}", status=answer.status, text=answer.text)
    if "text/html" in (answer.content_type or ""):
        raise BrokenAnswer(
            "content-type",
            f"{where}: status 200 and a web page ({answer.content_type}): {first_of(answer.text.strip(), 120)!r}",
            remedy="give the server's own address: a proxy or another service answers here",
            status=200,
            text=answer.text,
        )
    return answer
