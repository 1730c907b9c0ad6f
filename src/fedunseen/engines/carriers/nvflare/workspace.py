"""The folder that an NVFlare process reads when it starts: its settings, our component, and where its keys are."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedunseen.core.files import write_json
from fedunseen.engines.remote.keeper import Child

__all__ = ["home", "secured", "start", "write_workspace"]


def write_workspace(
    folder: Path,
    side: str,
    startup: dict[str, Any],
    resources: dict[str, Any],
    kit: Path | None,
    component: dict[str, Any],
) -> None:
    """Write what an NVFlare process reads when it starts: its kit, its settings and our component."""
    for name in ("startup", "local"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    folder.chmod(0o700)
    write_json(folder / "startup" / f"fed_{side}.json", {"format_version": 2, **startup})
    components = [{"id": "fedunseen_relay", **component}]
    write_json(folder / "local" / "resources.json", {"format_version": 2, **resources, "components": components})
    # NVFlare also listens on loopback, for jobs that we do not run; by default other users of the machine may connect.
    internal = {"host": "127.0.0.1", "connection_security": "clear" if kit is None else "mtls"}
    connections = {
        "allow_adhoc_conns": False,
        "internal": {"scheme": "tcp", "resources": internal},
        "streaming_window_size": 4 << 20,  # bytes under way; small messages queue behind them
        "streaming_ack_interval": 1 << 20,
    }
    write_json(folder / "local" / "comm_config.json", connections)
    write_json(
        folder / "local" / "authorization.json", {"format_version": "1.0", "permissions": {"nobody": {"view": "none"}}}
    )
    handler = {
        "class": "logging.handlers.RotatingFileHandler",
        "formatter": "plain",
        "filename": "log.txt",  # NVFlare puts it into the workspace
        "maxBytes": 10_000_000,
        "backupCount": 3,
    }
    write_json(
        folder / "local" / "log_config.json",
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"plain": {"format": "%(asctime)s - %(name)s - %(levelname)s - %(message)s"}},
            "handlers": {"file": handler},
            "loggers": {
                "root": {"level": "INFO", "handlers": ["file"]},
                "nvflare.private.fed.client.client_engine": {"level": "WARNING"},  # writes down every reply
            },
        },
    )


def secured(kit: Path | None, side: str) -> dict[str, str]:
    """Return the part of a site's settings that says how connections are protected."""
    if kit is None:
        return {"connection_security": "clear"}
    return {
        "ssl_private_key": str(kit.resolve() / f"{side}.key"),  # keys stay where they are
        "ssl_cert": str(kit.resolve() / f"{side}.crt"),
        "ssl_root_cert": str(kit.resolve() / "rootCA.pem"),
        "connection_security": "mtls",
    }


def home(folder: Path) -> dict[str, str]:
    """Return variables that make an NVFlare process write into this folder alone and import this package."""
    path = os.pathsep.join(filter(None, sys.path))
    home = {"HOME": str(folder.resolve()), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**home, "PYTHONPATH": path, "GRPC_VERBOSITY": "ERROR"}


def start(folder: Path, side: str, kit: Path | None, more: Mapping[str, str], *options: str) -> Child:
    """Start NVFlare's parent process of a side, ``server`` or ``client``."""
    environment = {**os.environ, **more, **home(folder)}
    module = f"nvflare.private.fed.app.{side}.{side}_train"
    secure = "true" if kit is not None else "false"
    command = [sys.executable, "-u", "-m", module, "-m", str(folder.resolve()), "-s", f"fed_{side}.json"]
    command += ["--set", f"secure_train={secure}", "org=fedunseen", "config_folder=config", *options]
    return Child(command, folder / "output.txt", environment, folder)
