"""
The inference endpoint: one OpenAI-compatible server, asked and judged.

Importing this package imports nothing else; httpx comes with `endpoint.client`.

    client      InferenceEndpoint: readiness(), ask(), stream(), models(), engine(), speculation(), .client (httpx)
    embedded    EmbeddedServer: llama.cpp's server with the committed tiny model (extra "demo")
    ladder      climbs the rungs of readiness: port, health, models, token
    smoke       asks a prompt file: once, repeated, concurrent, streamed
    bad_requests, speculation, throughput     what their names say

The other modules are pure: text in, values out; judge_*.py give verdicts on them.
"""
