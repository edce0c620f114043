"""InferenceEndpoint: one OpenAI-compatible server, asked over HTTP with deadlines."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import httpx

from pytest_gpuinfra.endpoint.address import KeyFor, parse_address, read_secret
from pytest_gpuinfra.endpoint.chat import ChatAnswer, parse_chat
from pytest_gpuinfra.endpoint.engine import EngineFacts, read_engine
from pytest_gpuinfra.endpoint.failures import BrokenAnswer, NoAnswer
from pytest_gpuinfra.endpoint.http import HttpAnswer, exchange
from pytest_gpuinfra.endpoint.ladder import Ladder
from pytest_gpuinfra.endpoint.limits import Limits, Timeouts
from pytest_gpuinfra.endpoint.models import ModelList, parse_models
from pytest_gpuinfra.endpoint.readiness import Readiness, UnitState
from pytest_gpuinfra.endpoint.speculation import SpeculationCounters
from pytest_gpuinfra.endpoint.speculation_run import read_speculation
from pytest_gpuinfra.endpoint.status import expect_200
from pytest_gpuinfra.endpoint.stream import StreamAnswer
from pytest_gpuinfra.endpoint.streaming import read_stream
from pytest_gpuinfra.endpoint.transport import BoundedTransport, dial, make_transport
from pytest_gpuinfra.errors import EndpointError, ParseError
from pytest_gpuinfra.masking import secrets_of_address


class InferenceEndpoint:
    """
    An inference server behind a base URL.

    No answer is followed to another address, no proxy of the environment is used,
    and every request has its own connection: an idle one that the server drops would look like its death.

    Attributes:
        base_url: Scheme, host, port and path prefix, without user and password.
        model: Model id that requests name; None means the only one of the model list.
        api: "chat", or "completions" for a base model without a chat template.
        client: The httpx client below, for requests of your own; it sends the API key to base_url only.

    Example:
        >>> with InferenceEndpoint("http://127.0.0.1:30000") as endpoint:      # doctest: +SKIP
        ...     endpoint.readiness(wait_s=300).ready
        ...     endpoint.ask("What is 15*23? Answer briefly.").answer
        True
        '345'
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key_env: str | None = None,
        api: Literal["chat", "completions"] = "chat",
        timeouts: Timeouts | None = None,
        max_answer_bytes: int = 2 * 1024 * 1024,
        transport: httpx.BaseTransport | None = None,
        connect: Callable[[float], None] | None = None,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        """
        Prepare; nothing is sent.

        Args:
            base_url: Where /health is, without "/v1".
            model: Model id that requests name; None for the only one of the model list.
            api_key_env: Name of the environment variable that holds the API key; None for no key.
            api: Which route answers prompts.
            timeouts: Deadlines of one request.
            max_answer_bytes: An answer longer than this is broken.
            transport: httpx transport in the place of TCP; the fixture's tunnel.
            connect: Proves within so many seconds that the port takes a connection, or raises OSError;
                None for a TCP connection, or nothing at all if there is a transport.
            verify: As httpx takes it; True trusts the system's certificates.

        Raises:
            EndpointError: The environment variable is not set, or the address is none.
        """
        url = parse_address(base_url)
        secret = read_secret(api_key_env)
        self.base_url = str(url.copy_with(username=None, password=None)).rstrip("/")
        self.model = model
        self.api = api
        secrets = [secret] * bool(secret) + secrets_of_address(base_url)
        self.limits = Limits(timeouts or Timeouts(), tuple(secrets))
        self._connect = connect or (dial(url) if transport is None else None)
        self._lock = threading.Lock()
        self._list: ModelList | None = None
        self.client = httpx.Client(
            base_url=url,
            headers={"accept-encoding": "identity"},
            auth=KeyFor(url, secret) if secret else None,
            timeout=httpx.Timeout(self.limits.timeouts.read_s, connect=self.limits.timeouts.connect_s),
            follow_redirects=False,
            trust_env=False,
            transport=BoundedTransport(transport or make_transport(url, verify=verify), max_answer_bytes),
        )

    def __enter__(self) -> InferenceEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"InferenceEndpoint({self.base_url!r}, model={self.model!r})"

    def close(self) -> None:
        """Cut the requests under way, and close all connections."""
        self.limits.under_way.stop()
        self.client.close()

    def get(self, path: str, *, total_s: float | None = None) -> HttpAnswer:
        """
        Fetch one path, whatever its status; once more if the connection was closed before any answer.

        A server may close a connection at any time, and clients ask again what changes nothing. Source: RFC 9112 9.3.1.

        Raises:
            NoAnswer, BrokenAnswer: As exchange() does.
        """
        try:
            return exchange(self.client, "GET", path, limits=self._limits(total_s))
        except NoAnswer as error:
            if error.kind != "closed":
                raise
        return exchange(self.client, "GET", path, limits=self._limits(total_s))

    def post(self, path: str, body: Mapping[str, Any] | bytes, *, total_s: float | None = None) -> HttpAnswer:
        """
        Send one body, as JSON if it is a mapping.

        Raises:
            NoAnswer, BrokenAnswer: As exchange() does.
        """
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return exchange(self.client, "POST", path, content=content, limits=self._limits(total_s))

    def port_open(self, timeout_s: float) -> None:
        """
        Take and close one connection.

        Raises:
            OSError: Refused, or not within timeout_s.
        """
        if self._connect is not None:
            self._connect(timeout_s)

    def readiness(
        self,
        *,
        wait_s: float = 0.0,
        model: str | None = None,
        unit_state: Callable[[], UnitState | None] | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> Readiness:
        """
        Climb the ladder port, health, models, token, and try again until wait_s have passed.

        Args:
            wait_s: How long to wait, in seconds; 0 looks once.
            model: Id that the list must hold; None for self.model, or any.
            unit_state: State of the service's unit, asked every 2 s; a failed or flapping unit ends the wait.
            on_progress: Called with one line whenever something changed, and every 10 s.

        Returns:
            What was reached and when, whether or not it is ready; never raises for a server that is not.
        """
        return Ladder(self, wait_s, model or self.model, unit_state, on_progress).climb()

    def models(self) -> ModelList:
        """
        Fetch the model list.

        Raises:
            NoAnswer: Not reached, or 401 or 403.
            BrokenAnswer: Another status, or no model list.
        """
        answer = expect_200(self.get("/v1/models"))
        try:
            return parse_models(answer.text)
        except ParseError as error:
            raise BrokenAnswer("shape", error.reason, status=answer.status, text=answer.text) from None

    def engine(self) -> EngineFacts:
        """Find out which engine this is, and what it tells of itself."""
        return read_engine(self)

    def speculation(self) -> SpeculationCounters:
        """Read the speculation counters, as they are now."""
        return read_speculation(self)

    def ask(self, prompt: str, *, total_s: float | None = None, **options: Any) -> ChatAnswer:
        """
        Ask one question and wait for the whole answer.

        Args:
            prompt: The user's message.
            total_s: Deadline of the whole request, in seconds.
            options: Fields of the request beside those of request_body(); "system" gives a system message.

        Raises:
            NoAnswer: No answer that can be judged.
            BrokenAnswer: An error status, or a body that is no answer.
        """
        answer = expect_200(self.post(self.path, self.request_body(prompt, **options), total_s=total_s))
        return parse_chat(answer.text, took_s=answer.took_s)

    def stream(self, prompt: str, *, total_s: float | None = None, **options: Any) -> StreamAnswer:
        """
        Ask one question, read the answer as a stream, and give it when it has ended.

        Args and Raises: As for ask(); a stream that breaks off, or holds something that is no event, is a
            BrokenAnswer. An error inside the stream is in the answer's error.
        """
        body = self.request_body(prompt, **options) | {"stream": True, "stream_options": {"include_usage": True}}
        return read_stream(self.client, self.path, json.dumps(body).encode(), self._limits(total_s))

    def warm_up(self) -> ChatAnswer | EndpointError:
        """
        Ask once and judge nothing: the first request compiles and fills caches.

        Returns:
            The answer, or the failure.
        """
        try:
            return self.ask("What is 2*3? Answer briefly.", max_tokens=64)
        except EndpointError as error:
            return error

    @property
    def path(self) -> str:
        """Route that answers prompts."""
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"

    def request_body(self, prompt: str, *, system: str | None = None, **options: Any) -> dict[str, Any]:
        """Give the request for one prompt: temperature 0 and max_tokens() unless options say otherwise."""
        question: dict[str, Any] = {"prompt": prompt}
        if self.api == "chat":
            first = [{"role": "system", "content": system}] if system else []
            question = {"messages": [*first, {"role": "user", "content": prompt}]}
        if "model" not in options:
            options["model"] = self.model_id()
        if "max_tokens" not in options:
            options["max_tokens"] = self.max_tokens()
        return {**question, "temperature": 0, "stream": False, **options}

    def max_tokens(self, wanted: int = 1024) -> int:
        """Give the longest answer to ask for: as wanted, but no more than half of the model's context."""
        try:
            served = self._listed().get(self.model_id())
        except EndpointError:
            return wanted  # a server without a model list; the request itself will tell
        longest = served.max_model_len if served else None
        return min(wanted, longest // 2) if longest else wanted

    def model_id(self) -> str:
        """
        Give the model that requests name: self.model, or the only one of the list.

        Raises:
            NoAnswer: The list holds none, or several ("no-model").
        """
        if self.model is not None:
            return self.model
        ids = self._listed().ids
        if len(ids) != 1:
            raise NoAnswer(
                "no-model",
                f"the model list names {len(ids)} models: {', '.join(ids[:20]) or 'none'}",
                remedy="say which one to ask: expect.model.id in the inventory",
            )
        return ids[0]

    def _listed(self) -> ModelList:
        with self._lock:
            if self._list is None or not self._list.models:
                self._list = self.models()
            return self._list

    def _limits(self, total_s: float | None) -> Limits:
        base = self.limits
        return base if total_s is None else replace(base, timeouts=base.timeouts.within(total_s))
