"""
The inference endpoint: one OpenAI-compatible server, asked and judged.

Importing this package imports nothing else; httpx comes with `endpoint.client`.

    client      InferenceEndpoint: readiness(), ask(), stream(), models(), engine(), speculation(), .client (httpx)
    embedded    EmbeddedServer: llama.cpp's server with the committed tiny model (extra "demo")
    ladder      climbs the rungs of readiness: port, health, models, token
    smoke       asks a prompt file: once, repeated, concurrent, streamed
    bad_requests, speculation, throughput     what their names say

Everything below is pure: text in, values out. Verdicts stand in pytest_gpuinfra.subjects.

    topic             function                                              fields of the result
    ----------------  ----------------------------------------------------  -----------------------------------------
    endpoint-health   health.parse_health(status, body, content_type)       state, status, body, error, error_type
                      verdict.readiness.judge_health(answers, models,       ending, observed, ...
                          models_status)
                      metrics.pick_metrics([(path, status, text), ...])     path, label("model_name"), total(NAME)
    endpoint-models   models.parse_models(text)                             ids, models[i].max_model_len
                      verdict.model.judge_model_id(models, id)              ending, warnings
                      server_info.parse_sglang_info(text)                   tp_size, accept_length, context_length
    endpoint-metrics  metrics.parse_metrics(text), then                     acceptance.drafts, .draft_tokens,
                      speculation.speculation_from(engine, metrics)           .accepted_tokens, .rate, .mean_length,
                                                                              .accept_length, .accept_rate
                      speculation_logs.parse_speculation_log(text)          one for all of a log
                      verdict.speculation.judge_acceptance(acceptance)      ending
    chat              chat.parse_chat(text)                                 answer, content, finish_reason, usage.*
                      stream.parse_stream(text, status=200)                 answer.*, done, error.code, status
                      error_body.parse_error_body(text)                     message, code, type
                      error_body.parse_context_overflow(text)               limit, requested, input, completion
                      verdict.answers.judge_body(answer)                    ending, warnings: is it an answer at all?
                      verdict.answers.judge_streamed(stream)                the same of a stream
                      verdict.answers.repeated_text(text)                   "" or what is repeated
"""
