"""Files that NVFlare reads: a job, and the workspace of a server or site that this package starts."""

import io
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedunseen.core.files import write_json
from fedunseen.engines.remote.supervisor import Child

JOB = "fedunseen.engines.carriers.nvflare.job"
MODULES = {  # what the scripts of start-up kits and the command `nvflare simulator` run
    "server": "nvflare.private.fed.app.server.server_train",
    "client": "nvflare.private.fed.app.client.client_train",
    "simulator": "nvflare.private.fed.app.simulator.simulator",
}
_Component = tuple[str, dict[str, Any]]
_Components = Mapping[str, _Component]
_CORE = "nvflare.app_common"


def job_files(sites: Sequence[str], controller: _Component, executor: _Component) -> dict[str, dict[str, Any]]:
    """Return the files of a job, whose classes are given by path and arguments: name -> content."""
    workflow, answering = ({"path": path, "args": arguments} for path, arguments in (controller, executor))
    return {
        "meta.json": {"name": "fedunseen", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": list(sites)}},
        "app/config/config_fed_server.json": {"format_version": 2, "workflows": [{"id": "fedunseen", **workflow}]},
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": answering}],
        },
    }


def submission(number: str, sites: Sequence[str]) -> tuple[dict[str, Any], bytes]:
    """Return the description of a job that carries messages of ``host`` and ``join``, and its archive."""
    files = job_files(["server", *sites], (f"{JOB}.Coordinator", {}), (f"{JOB}.Party", {}))
    meta, buffer = files["meta.json"], io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"fedunseen/{name}", json.dumps(content))
    submitter = {"submitter_name": "coordinator", "submitter_org": "fedunseen", "submitter_role": "coordinator"}
    return {**meta, "job_id": number, "job_folder_name": "fedunseen", **submitter}, buffer.getvalue()


def allowed(*paths: str) -> dict[str, Any]:
    """Return settings under which a site builds these classes for a job, given by path or prefix, and no others."""
    return {"class_list_enforcement_mode": "enforce", "class_allow_list": list(paths)}


def write_workspace(folder: Path, side: str, startup: Mapping[str, Any], kit: Path | None) -> None:
    """Write what a process of NVFlare reads when it starts.

    A site runs no code of a job and no class but the one that carries messages, and no one may command it.
    """
    for name in ("startup", "local"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    folder.chmod(0o700)
    write_json(folder / "startup" / f"fed_{side}.json", {"format_version": 2, **startup})
    resources = _server(folder) if side == "server" else _client()
    classes = allowed(f"{JOB}.Coordinator", f"{JOB}.Party")
    write_json(folder / "local" / "resources.json", {"format_version": 2, **classes, **resources})
    # The processes of a job connect on loopback; by default other users of the machine may too.
    internal = {"host": "127.0.0.1", "connection_security": "clear" if kit is None else "mtls"}
    connections = {
        "allow_adhoc_conns": False,
        "internal": {"scheme": "tcp", "resources": internal},
        "streaming_window_size": 4 << 20,  # bytes under way; small messages queue behind them
        "streaming_ack_interval": 1 << 20,
    }
    write_json(folder / "local" / "comm_config.json", connections)
    rights = {"coordinator": {"submit_job": "any"}} if side == "client" else {"nobody": {"view": "none"}}
    write_json(folder / "local" / "authorization.json", {"format_version": "1.0", "permissions": rights})
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
            "loggers": {"root": {"level": "INFO", "handlers": ["file"]}},
        },
    )


def _server(folder: Path) -> dict[str, Any]:
    storage = f"{_CORE}.storages.filesystem_storage.FilesystemStorage"
    kept = {"path": storage, "args": {"root_dir": str(folder.resolve() / "snapshots"), "uri_root": "/"}}
    persistor = f"{_CORE}.state_persistors.storage_state_persistor.StorageStatePersistor"
    jobs = {"uri_root": str(folder.resolve() / "jobs"), "job_store_id": "job_store"}
    components: _Components = {
        "job_scheduler": (f"{_CORE}.job_schedulers.job_scheduler.DefaultJobScheduler", {"max_jobs": 1000}),
        "job_manager": ("nvflare.apis.impl.job_def_manager.SimpleJobDefManager", jobs),
        "job_store": (storage, {}),
        "process_launcher": (f"{_CORE}.job_launcher.server_process_launcher.ServerProcessJobLauncher", {}),
        "fedunseen_registry": (f"{JOB}.Registry", {}),
    }
    limits = {"max_num_clients": 10_000, "heart_beat_timeout": 60, "admin_storage": "transfer", "shutdown_period": 1}
    return {
        "servers": [limits],
        "snapshot_persistor": {"path": persistor, "args": {"uri_root": "/", "storage": kept}},
        "components": _built(components),
    }


def _client() -> dict[str, Any]:
    components: _Components = {
        "resource_manager": (f"{_CORE}.resource_managers.passthrough_resource_manager.PassthroughResourceManager", {}),
        "resource_consumer": (
            f"{_CORE}.resource_consumers.passthrough_resource_consumer.PassthroughResourceConsumer",
            {},
        ),
        "process_launcher": (f"{_CORE}.job_launcher.client_process_launcher.ClientProcessJobLauncher", {}),
    }
    return {"client": {"client_register_interval": 0.2, "retry_timeout": 30}, "components": _built(components)}


def _built(components: _Components) -> list[dict[str, Any]]:
    return [{"id": name, "path": path, "args": arguments} for name, (path, arguments) in components.items()]


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


def environment(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an NVFlare process that writes into this folder alone and imports this package."""
    home = {"HOME": str(folder.resolve()), "PYTHONDONTWRITEBYTECODE": "1", "GRPC_VERBOSITY": "ERROR"}
    return {**os.environ, **more, **home, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def start(folder: Path, side: str, kit: Path | None, more: Mapping[str, str], *options: str) -> Child:
    """Start the process of a server or site, as the script of its start-up kit does."""
    secure = "true" if kit is not None else "false"
    command = [sys.executable, "-u", "-m", MODULES[side], "-m", str(folder.resolve()), "-s", f"fed_{side}.json"]
    command += ["--set", f"secure_train={secure}", "org=fedunseen", "config_folder=config", *options]
    return Child(command, folder / "output.txt", environment(folder, more), folder)
