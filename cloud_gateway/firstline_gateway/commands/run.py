"""`run` and `check`: serve until SIGTERM, and try the configuration without serving."""

from __future__ import annotations

import argparse
import gc
import json
import threading
from functools import partial

from firstline_core.command_line import Commands, announce, end_now
from firstline_gateway.commands.base import add_action, naming_sources, settings_of, show


def add_commands(commands: Commands) -> None:
    """Adds both to the parser's."""
    purpose = "serve until SIGTERM; SIGHUP reloads the configuration"
    run = add_action(commands, "run", _run, purpose, "run --config gateway.toml")
    run.add_argument("--host", help="address to listen on, instead of api.host")
    run.add_argument("--port", type=int, help="port to listen on, instead of api.port; 0 lets the system choose")
    purpose = "try the configuration and load every bundle, without serving"
    add_action(commands, "check", _check, purpose, "check --config gateway.toml")


def _run(arguments: argparse.Namespace) -> int:
    flags = {"api.host": arguments.host, "api.port": arguments.port}
    read = partial(settings_of, arguments, flags)
    settings = read()  # before the imports, which take a second: a mistake in it is reported at once
    gc.disable()  # nothing of an import is garbage, and searching for it takes a fifth of the start
    try:
        import uvloop

        from firstline_core.protocol.sockets import bind, url_of
        from firstline_core.telemetry import logs, tracing
        from firstline_gateway.app import open_gateway
        from firstline_gateway.commands.serve import raise_descriptor_limit, run_gateway
        from firstline_gateway.store.database import used_by_one_gateway
    finally:
        gc.freeze()
        gc.enable()
    logs.configure(settings.log.level, settings.log.format)
    tracing.configure("firstline-gateway", settings.tracing.endpoint, settings.tracing.sample)
    with naming_sources(arguments, flags):
        bound = bind(settings.api.host, settings.api.port)
    url = url_of(bound, tls=settings.tls.enabled)
    event = {"event": "ready", "url": url}
    raise_descriptor_limit()
    with naming_sources(arguments, flags), used_by_one_gateway(settings.store):
        ended = uvloop.run(
            run_gateway(
                open_gateway(settings),
                bound,
                lambda: announce(json.dumps(event) if arguments.output == "json" else f"listening on {url}"),
                read,
            )
        )
    tracing.close()
    loads = [each for each in threading.enumerate() if each.name.startswith("model-loader") and each.is_alive()]
    if loads or not ended:
        end_now(0 if ended else 1)  # no thread can be made to stop, and the interpreter's own end would wait for it
    return 0


def _check(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)  # before the imports, as `_run`
    from firstline_core.errors import ModelLoadError, did_you_mean
    from firstline_core.telemetry import logs
    from firstline_gateway.checks import check_files, models_folder, runtime_options
    from firstline_gateway.models.repository import check_size

    logs.configure("error", settings.log.format)
    here = settings.loads_here
    with naming_sources(arguments):
        check_files(settings)
        options = runtime_options(settings) if here else None
        repository = models_folder(settings).load(options)
    served_well, refused = [], [(bundle.path, bundle.error) for bundle in repository.refused]
    for served in repository:
        try:
            check_size(served, settings.models.memory_budget_mb << 20 if here else 0)
        except ModelLoadError as error:
            refused.append((served.path, error))
        else:
            served_well.append(served)
    models = [
        {"name": served.key.name, "version": served.key.version, "digest": served.digest, "path": str(served.path)}
        for served in served_well
    ]
    lines = [f"{model['name']} version {model['version']} from {model['path']}" for model in models]
    lines += [f"refused: {error.message}" for _, error in refused]
    if not lines:
        lines = [f"no bundle in {settings.models.directory}"]
    unknown = repository.unknown(settings.models.concurrency_of)
    names = [served.key.name for served in served_well]
    lines += [
        f"models.concurrency_of names {name!a}, and there is no such model{did_you_mean(name, names)}"
        for name in unknown
    ]
    errors = [{"path": str(path), "error": error.message} for path, error in refused]
    report = {"models": models, "refused": errors, "unknown": unknown, "sessions": settings.sessions}
    show(arguments, "\n".join(lines), report)
    for served in repository:
        if served.loaded is not None:
            served.loaded.close()
    return 0 if models and not refused else 1
