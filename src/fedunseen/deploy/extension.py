"""What deployments add to experiments: engines whose clients are elsewhere."""

from fedunseen.core.extensions import Command

NAMES = {
    "engine": {
        "websocket": "fedunseen.deploy.remote.coordinator:WebSocket",
        "flower": "fedunseen.deploy.remote.coordinator:Flower",
        "nvflare": "fedunseen.deploy.remote.coordinator:NVFlare",
        "offline": "fedunseen.deploy.offline.coordinator:Offline",
    }
}
OPTIONS = (("metrics", "fedunseen.deploy.cli.metrics:metrics_of"),)
HOOKS = ("fedunseen.deploy.hooks:Deployments",)
RULES = ("fedunseen.deploy.rules",)
COMMANDS = (
    Command("certs", "fedunseen.deploy.cli.certs:certs_app", "Deploy", group=True),
    Command("host", "fedunseen.deploy.cli.deployment:host", "Deploy"),
    Command("join", "fedunseen.deploy.cli.deployment:join", "Deploy"),
    Command("offline", "fedunseen.deploy.cli.offline:offline_app", "Deploy", group=True),
    Command("look", "fedunseen.deploy.cli.look:look_app", "Deploy", group=True),
    Command("health", "fedunseen.deploy.cli.health:health", "Deploy"),
    Command("history", "fedunseen.deploy.cli.history:history", "Deploy"),
    Command("rollback", "fedunseen.deploy.cli.history:rollback", "Deploy"),
    Command("ledger", "fedunseen.deploy.cli.health:ledger", "Deploy"),
)
REMOTE_REMOVAL = ("fedunseen.deploy.cli.deployment:host_removal",)
SPREAD = ("fedunseen.deploy.cli.encode:spread_statistics",)
EXECUTORS = (("ray", "fedunseen.deploy.engines.ray_engine:RayExecutor"),)
